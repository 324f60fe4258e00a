"""Informer of threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

import grpc
from grpc.experimental import ChannelOptions

from informerd import _calls
from informerd._backlog import Backlog
from informerd._base import RESOURCES, WATCH, BaseInformer, Handler, Handlers, now
from informerd._core import Next
from informerd._errors import Error, error_of_rpc
from informerd._objects import Cause, Event, Object
from informerd.v1 import informerd_pb2 as pb

Begun = TypeVar("Begun", bound=grpc.Call)


class _Sink(Backlog[Handlers]):
    """Backlog whose consumer is a thread."""

    def __init__(self, limit: int, lock: threading.RLock) -> None:
        super().__init__(limit)
        self.condition = threading.Condition(lock)

    def wake(self) -> None:
        self.condition.notify_all()


class Informer(BaseInformer[_Sink]):
    """A local store of one resource of an informerd server, and calls of handlers on each change of it.

    The store follows the server across broken connections, restarts and expired versions: handlers receive only what
    changed. It cannot go silent: `freshness` and `healthy` show at once when the store may be wrong.

    All methods can be called from every thread. One thread reads the stream, one supervises it, and one calls the
    handlers.
    """

    def _set_up(self) -> None:
        self._store_changed = threading.Condition(self._lock)
        # The stream has been opened or closed, or the informer is to stop.
        self._stream_changed = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []
        self._call: grpc.Call | None = None

    def _new_sink(self) -> _Sink:
        return _Sink(self._options.lag_limit, self._lock)

    # ------------------------------------------------------------------------------------------ user's side

    def add_handler(
        self,
        *,
        added: Callable[[Object], object] | None = None,
        updated: Callable[[Object, Object], object] | None = None,
        deleted: Callable[[Object, Cause], object] | None = None,
    ) -> None:
        """Adds a handler: `added(object)`, `updated(old, new)`, `deleted(last, cause)`.

        It receives the objects that the store has already as added. The calls of all handlers come one after the other,
        on a thread of their own, in the order of the changes; the store is ahead of them. An exception is reported, and
        the next call follows.
        """
        self._add_handler(Handler(added, updated, deleted))

    def start(self) -> None:
        """Starts to watch, and returns at once. An informer is started once."""
        with self._lock:
            if self._threads or self._stopping:
                raise RuntimeError("the informer has been started before: make a new one")
            for name, target in (("watch", self._run), ("handlers", self._handle), ("deadline", self._supervise)):
                self._threads.append(threading.Thread(target=target, name=f"informerd-{name}", daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float | None = 10.0) -> None:
        """Ends the watch and the handlers; idempotent. No call of a handler begins after it returns.

        It waits for a call in progress, at most for the timeout in seconds, unless a handler itself calls it.
        """
        with self._lock:
            self._stopping = True
            call = self._call
            self._changed()
            self._ended()
        if call is not None:
            call.cancel()
        until = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(None if until is None else max(0.0, until - time.monotonic()))

    def wait_synced(self, timeout: float | None = None) -> None:
        """Waits until the store is complete for the first time.

        Raises TimeoutError after the timeout in seconds, the Error of an informer that has given up, and RuntimeError
        if it is stopped.
        """
        self._wait(self._is_synced, timeout, "the first sync")

    def read_after(self, version: str, timeout: float | None = 30.0) -> None:
        """Waits until the store has reached a version, for example that of a write, so that reads include it.

        Raises as `wait_synced` does, and ValueError for a version that has no order with that of the store: one of
        another lineage, or no version.
        """
        self._wait(lambda: self._reaches(version), timeout, f"version {version}")

    def events(self) -> Iterator[Event]:
        """Yields the present objects as ADDED, then each change, until the informer is stopped.

        Raises the Error of an informer that has given up. Events wait for the iterator as for a handler.
        """
        sink = self._new_sink()
        with self._lock:
            self._put(sink, (), self._present())
            self._sinks.append(sink)
        try:
            while (batch := self._take(sink)) is not None:
                for event in batch[1]:
                    sink.done()
                    yield event
        finally:
            with self._lock:
                self._sinks.remove(sink)
        if (error := self.error) is not None:
            raise error

    def __enter__(self) -> Informer:
        """Starts the informer."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stops the informer."""
        self.stop()

    def _wait(self, condition: Callable[[], bool], timeout: float | None, what: str) -> None:
        with self._store_changed:
            if not self._store_changed.wait_for(condition, timeout):
                raise self._timeout(timeout, what)

    def _take(self, sink: _Sink) -> tuple[Handlers, Sequence[Event]] | None:
        """Waits for a batch; returns None if the informer has been stopped, or has given up and nothing waits."""
        with sink.condition:
            while not self._stopping:
                if (batch := sink.take()) is not None:
                    return batch
                if self._core.error is not None:
                    break
                sink.condition.wait()
            return None

    # ------------------------------------------------------------------------------------------ threads

    def _changed(self) -> None:
        self._store_changed.notify_all()

    def _hurry(self) -> None:
        self._stream_changed.notify_all()

    def _ended(self) -> None:
        self._stream_changed.notify_all()
        for sink in (self._sink, *self._sinks):
            sink.wake()

    def _run(self) -> None:
        channel: grpc.Channel | None = None
        step: Next | None = None
        while not self._stopping:
            try:
                channel = channel or self._connect()
                step = self._watch(channel)
            except Exception as error:
                # A file with credentials that cannot be used, or a bug here or in gRPC: nothing ends the watch.
                step = self._failed_to_open(error)
            if channel is not None and (step is None or step.new_connection):
                channel.close()
                channel = None
            if step is None or step.failed:
                break
            with self._lock:
                self._stream_changed.wait_for(lambda: self._stopping, step.delay)
        if channel is not None:
            channel.close()

    def _connect(self) -> grpc.Channel:
        options = [
            *self._target.channel_options(self._options.connect_timeout, retries=False),
            # The thread that reads a stream receives its messages itself, without a change of threads for each.
            (ChannelOptions.SingleThreadedUnaryStream, 1),
        ]
        credentials = self._target.channel_credentials()
        if credentials is None:
            return grpc.insecure_channel(self._target.name, options=options)
        return grpc.secure_channel(self._target.name, credentials, options=options)

    def _watch(self, channel: grpc.Channel) -> Next | None:
        """Reads one stream to its end; returns None if the informer has been stopped."""
        resources: grpc.UnaryStreamMultiCallable[pb.ListResourcesRequest, pb.ListResourcesResponse]
        # As a stream, which `_supervise` and `stop` cancel as they cancel a watch.
        resources = channel.unary_stream(
            RESOURCES, pb.ListResourcesRequest.SerializeToString, pb.ListResourcesResponse.FromString
        )
        method: grpc.UnaryStreamMultiCallable[pb.WatchRequest, pb.WatchResponse] = channel.unary_stream(
            WATCH, pb.WatchRequest.SerializeToString, pb.WatchResponse.FromString
        )
        metadata = self._target.metadata()
        with self._lock:
            request = self._core.open_stream(now())
        error: Error | None = None
        try:
            # Before each stream: an older server may have replaced the last one.
            if needed := _calls.needed(request):
                answers = [*self._begin(lambda: resources(pb.ListResourcesRequest(), metadata=metadata))]
                # A stream may have no message.
                _calls.require(needed, answers[-1] if answers else pb.ListResourcesResponse(), self._target)
            for message in self._begin(lambda: method(request, metadata=metadata)):
                if not self._receive(message) or self._stopping:
                    break
        except grpc.RpcError as problem:
            error = error_of_rpc(problem)
        except Error as problem:
            error = problem
        finally:
            with self._lock:
                call, self._call = self._call, None
            if call is not None:
                call.cancel()
        return None if self._stopping else self._close(error)

    def _begin(self, call: Callable[[], Begun]) -> Begun:
        """Begins a call, which ends at the deadline of the stream, or when the informer stops."""
        with self._lock:
            self._call = begun = call()
            if self._stopping:
                begun.cancel()
            self._stream_changed.notify_all()
            return begun

    def _supervise(self) -> None:
        """Cancels a stream when its deadline has passed: gRPC has no timeout for a message."""
        with self._lock:
            while not self._stopping and self._core.error is None:
                deadline, call = self._core.deadline, self._call
                if deadline is None or call is None:
                    self._stream_changed.wait()
                elif (rest := deadline - now()) > 0:
                    self._stream_changed.wait(rest)
                else:
                    self._core.expire(now())
                    self._call = None
                    call.cancel()

    def _handle(self) -> None:
        while (batch := self._take(self._sink)) is not None:
            handlers, events = batch
            for event in events:
                for handler in handlers:
                    if self._stopping:
                        return
                    try:
                        handler.call(event)
                    except BaseException as error:  # SystemExit too: it would end this thread, and no program.
                        self._handler_failed(event, error)
                self._sink.done()
