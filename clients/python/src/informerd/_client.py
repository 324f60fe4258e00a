"""Client of plain calls, for threads."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

import grpc

from informerd import _calls
from informerd._calls import GetResult, ListResult, Resources
from informerd._errors import Error
from informerd._informer import Informer
from informerd._objects import Key
from informerd._options import Credentials, Options, Selection, View
from informerd._target import parse_target
from informerd._until import Batch, Condition, UntilEvent, Waiting, any_object
from informerd.v1 import informerd_pb2 as pb

T = TypeVar("T")


class Client:
    """Plain calls to an informerd server, over one connection. `target` is as of `Informer`.

    Every call has a deadline: its `timeout`, by default `request_timeout`, in seconds. A failed call raises `Error`.
    All methods can be called from every thread.
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: Credentials | None = None,
        request_timeout: float = 30.0,
        connect_timeout: float = 5.0,
    ) -> None:
        self._address = target
        self._credentials = credentials
        self._target = parse_target(target, credentials)
        self._timeout = request_timeout
        self._options = Options(connect_timeout=connect_timeout)
        self._waits: set[queue.SimpleQueue[Batch | None]] = set()
        options = self._target.channel_options(connect_timeout, retries=True)
        tls = self._target.channel_credentials()
        self._channel = (
            grpc.insecure_channel(self._target.name, options=options)
            if tls is None
            else grpc.secure_channel(self._target.name, tls, options=options)
        )

    def list(
        self,
        resource: str,
        selection: Selection | None = None,
        *,
        view: View | None = None,
        min_version: str = "",
        page_size: int = 0,
        page_token: str = "",
        timeout: float | None = None,
    ) -> ListResult:
        """Returns the objects of a resource; a page of them if `page_size` is not 0.

        With `min_version` the server waits until its cache has reached that version: a read of one's own write.
        """
        request = _calls.list_request(resource, selection, view, min_version, page_size, page_token)
        return self._stream("List", request, pb.ListResponse.FromString, timeout)

    def by_index(
        self,
        resource: str,
        index: str,
        value: str = "",
        selection: Selection | None = None,
        *,
        like: Key | None = None,
        view: View | None = None,
        min_version: str = "",
        page_size: int = 0,
        page_token: str = "",
        timeout: float | None = None,
    ) -> ListResult:
        """Returns the objects with a value in an index of the server.

        With `like`, a namespace and name, in place of the value: those that share one with that object.
        """
        request = _calls.by_index_request(
            resource, index, value, like, selection, view, min_version, page_size, page_token
        )
        return self._stream("ByIndex", request, pb.ByIndexResponse.FromString, timeout)

    def get(
        self,
        resource: str,
        name: str,
        namespace: str = "",
        *,
        view: View | None = None,
        min_version: str = "",
        timeout: float | None = None,
    ) -> GetResult:
        """Returns one object. Raises NotFoundError if there is none of that name."""
        request = _calls.get_request(resource, name, namespace, view, min_version)
        return _calls.get_result(self._call("Get", request, pb.GetResponse.FromString, timeout))

    def until(
        self,
        resource: str,
        conditions: Condition | Sequence[Condition] = any_object,
        selection: Selection | None = None,
        *,
        view: View | None = None,
        timeout: float | None = None,
    ) -> UntilEvent:
        """Waits until conditions have been met, one after the other, and returns the event that met the last one.

        Conditions are functions of an `UntilEvent`: of each selected object as ADDED, then SYNCED, then each change.
        Each is tested first on the event that met the one before. Without conditions it waits for an object: what the
        server evaluates is the expression of the selection.

        It is a watch of its own, like that of an `Informer`: restarts, broken connections, idle timeouts and expired
        versions do not end it, met conditions stay met, and what was deleted meanwhile is an event. An exception of a
        condition is raised here.

        Raises Error with DEADLINE_EXCEEDED when the timeout has passed, and the Error of a watch that gives up.
        """
        waiting = Waiting(conditions, self._timeout if timeout is None else timeout)
        batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        informer = Informer(
            self._address,
            resource,
            selection,
            view,
            credentials=self._credentials,
            options=self._options,
            on_error=_ignore,
        )
        informer._observe(batches.put)
        self._waits.add(batches)
        try:
            with informer:
                while True:
                    try:
                        # An empty timeout still returns what waits.
                        if not (left := waiting.left):
                            raise queue.Empty
                        batch = batches.get(timeout=min(left, threading.TIMEOUT_MAX))
                    except queue.Empty:
                        raise waiting.timed_out(informer._standing_failure()) from None
                    if batch is None:
                        raise informer.error or Error(grpc.StatusCode.CANCELLED, "the client has been closed")
                    if (met := waiting.test(batch)) is not None:
                        return met
        finally:
            self._waits.discard(batches)

    def resources(self, *, timeout: float | None = None) -> Resources:
        """Returns the resources of the server."""
        request = pb.ListResourcesRequest()
        response = self._call("ListResources", request, pb.ListResourcesResponse.FromString, timeout)
        return _calls.resources_result(response)

    def close(self) -> None:
        """Closes the connection; idempotent. Calls in progress fail."""
        for batches in list(self._waits):
            batches.put(None)
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, name: str, request: _calls.Request, decode: Callable[[bytes], T], timeout: float | None) -> T:
        method: grpc.UnaryUnaryMultiCallable[_calls.Request, T] = self._channel.unary_unary(
            _calls.SERVICE + name, type(request).SerializeToString, decode
        )
        timeout = self._timeout if timeout is None else timeout
        left = self._require(request, timeout)
        try:
            return method(request, timeout=left, metadata=self._target.metadata())
        except grpc.RpcError as error:
            raise _calls.error_of(error, name, self._target, timeout) from None

    def _stream(
        self,
        name: str,
        request: _calls.Request,
        decode: Callable[[bytes], _calls.Chunk],
        timeout: float | None,
    ) -> ListResult:
        method: grpc.UnaryStreamMultiCallable[_calls.Request, _calls.Chunk] = self._channel.unary_stream(
            _calls.SERVICE + name, type(request).SerializeToString, decode
        )
        timeout = self._timeout if timeout is None else timeout
        left = self._require(request, timeout)
        try:
            call = method(request, timeout=left, metadata=self._target.metadata())
            return _calls.list_result(call)
        except grpc.RpcError as error:
            raise _calls.error_of(error, name, self._target, timeout) from None

    def _require(self, request: _calls.Request, timeout: float) -> float:
        """Checks the capabilities of the server; an older one may have replaced it. Returns the rest of the timeout."""
        ends_at = time.monotonic() + timeout
        if needed := _calls.needed(request):
            resources = pb.ListResourcesRequest()
            answer = self._call("ListResources", resources, pb.ListResourcesResponse.FromString, timeout)
            _calls.require(needed, answer, self._target)
        return max(0.0, ends_at - time.monotonic())


def _ignore(_: Exception) -> None:
    """The error after the timeout has the last failure."""
