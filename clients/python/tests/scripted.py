"""A gRPC server that plays what a test sends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from types import TracebackType
from typing import Any, TypeAlias

import grpc
from google.rpc import status_pb2

from informerd.v1 import informerd_pb2 as pb

Step: TypeAlias = pb.WatchResponse | status_pb2.Status | None


class Stream:
    """An open Watch: its request, and what the server sends on it. None ends it with OK."""

    def __init__(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> None:
        self.request = request
        self.metadata = dict(context.invocation_metadata())
        self.peer = context.peer()
        self._steps: queue.SimpleQueue[Step] = queue.SimpleQueue()

    def send(self, *steps: Step) -> Stream:
        for step in steps:
            self._steps.put(step)
        return self

    def close(self) -> None:
        self.send(None)

    def next(self) -> Step:
        return self._steps.get()


class Scripted:
    """The server. `stream` waits for the next Watch."""

    capabilities: tuple[str, ...] = ("shards", "views")
    # Cleared, the answers of ListResources wait.
    answers: threading.Event
    # An answer without a message, as of something between.
    answers_nothing = False

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self._streams: queue.SimpleQueue[Stream] = queue.SimpleQueue()
        self._open: list[Stream] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
        handler = grpc.unary_stream_rpc_method_handler(
            self._watch, pb.WatchRequest.FromString, pb.WatchResponse.SerializeToString
        )
        resources = grpc.unary_stream_rpc_method_handler(
            self._resources, pb.ListResourcesRequest.FromString, pb.ListResourcesResponse.SerializeToString
        )
        handlers: dict[str, Any] = {"Watch": handler, "ListResources": resources}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("informerd.v1.InformerService", handlers),)
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.WatchResponse]:
        stream = Stream(request, context)
        context.add_callback(stream.close)
        self._open.append(stream)
        self._streams.put(stream)
        while (step := stream.next()) is not None:
            if isinstance(step, status_pb2.Status):
                context.set_trailing_metadata((("grpc-status-details-bin", step.SerializeToString()),))
                code: Any = {c.value[0]: c for c in grpc.StatusCode}[step.code]
                context.abort(code, step.message)
            yield step

    def _resources(self, _: pb.ListResourcesRequest, __: grpc.ServicerContext) -> Iterator[pb.ListResourcesResponse]:
        self.answers.wait(20)
        if not self.answers_nothing:
            yield pb.ListResourcesResponse(server=pb.ServerInfo(version="0.1.0", capabilities=self.capabilities))

    def stream(self) -> Stream:
        return self._streams.get(timeout=20)

    def __enter__(self) -> Scripted:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for stream in self._open:
            stream.close()
        self._server.stop(0).wait(10)
