"""Informer of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

import grpc
import grpc.aio

from informerd import _calls
from informerd._backlog import Backlog
from informerd._base import RESOURCES, WATCH, BaseInformer, Handler, Handlers, now
from informerd._core import Next
from informerd._errors import Error, error_of_rpc
from informerd._objects import Cause, Event, Object
from informerd.v1 import informerd_pb2 as pb

Call = TypeVar("Call", bound=grpc.aio.Call)

EVENTS_IN_A_ROW = 100
"""Calls of handlers that await nothing, after which other tasks get their turn."""


class _Sink(Backlog[Handlers]):
    """Backlog whose consumer is a task."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.event = asyncio.Event()

    def wake(self) -> None:
        self.event.set()


class Informer(BaseInformer[_Sink]):
    """A local store of one resource of an informerd server, and calls of handlers on each change of it.

    The store follows the server across broken connections, restarts and expired versions: handlers receive only what
    changed. It cannot go silent: `freshness` and `healthy` show at once when the store may be wrong.

    It belongs to the event loop that it is started in. Its store can be read from every thread.
    """

    def _set_up(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._deadline_moved = asyncio.Event()

    def _new_sink(self) -> _Sink:
        return _Sink(self._options.lag_limit)

    # ------------------------------------------------------------------------------------------ user's side

    def add_handler(
        self,
        *,
        added: Callable[[Object], Awaitable[object] | object] | None = None,
        updated: Callable[[Object, Object], Awaitable[object] | object] | None = None,
        deleted: Callable[[Object, Cause], Awaitable[object] | object] | None = None,
    ) -> None:
        """Adds a handler of functions or coroutines: `added(object)`, `updated(old, new)`, `deleted(last, cause)`.

        It receives the objects that the store has already as added. The calls of all handlers come one after the other,
        in a task of their own, in the order of the changes; the store is ahead of them. An exception is reported, and
        the next call follows.
        """
        self._add_handler(Handler(added, updated, deleted))

    async def start(self) -> None:
        """Starts to watch, and returns at once. An informer is started once."""
        if self._tasks or self._stopping:
            raise RuntimeError("the informer has been started before: make a new one")
        self._tasks = [
            asyncio.create_task(self._run(), name="informerd-watch"),
            asyncio.create_task(self._handle(), name="informerd-handlers"),
        ]

    async def stop(self, timeout: float | None = 10.0) -> None:
        """Ends the watch and the handlers; idempotent. No call of a handler begins after it returns.

        It waits for a call in progress, at most for the timeout in seconds, then cancels it; unless a handler itself
        calls it.
        """
        with self._lock:
            self._stopping = True
        self._changed()
        self._ended()
        # The handler in progress may end; the watch has nothing to finish.
        for task in self._tasks[:1]:
            task.cancel()
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        if others:
            _, late = await asyncio.wait(others, timeout=timeout)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)

    async def wait_synced(self, timeout: float | None = None) -> None:
        """Waits until the store is complete for the first time.

        Raises TimeoutError after the timeout in seconds, the Error of an informer that has given up, and RuntimeError
        if it is stopped.
        """
        await self._wait(self._is_synced, timeout, "the first sync")

    async def read_after(self, version: str, timeout: float | None = 30.0) -> None:
        """Waits until the store has reached a version, for example that of a write, so that reads include it.

        Raises as `wait_synced` does, and ValueError for a version that has no order with that of the store: one of
        another lineage, or no version.
        """
        await self._wait(lambda: self._reaches(version), timeout, f"version {version}")

    async def events(self) -> AsyncIterator[Event]:
        """Yields the present objects as ADDED, then each change, until the informer is stopped.

        Raises the Error of an informer that has given up. Events wait for the iterator as for a handler.
        """
        sink = self._new_sink()
        with self._lock:
            self._put(sink, (), self._present())
            self._sinks.append(sink)
        try:
            while (batch := await self._take(sink)) is not None:
                for event in batch[1]:
                    sink.done()
                    yield event
        finally:
            with self._lock:
                self._sinks.remove(sink)
        if (error := self.error) is not None:
            raise error

    async def __aenter__(self) -> Informer:
        """Starts the informer."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stops the informer."""
        await self.stop()

    async def _wait(self, condition: Callable[[], bool], timeout: float | None, what: str) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            rest = None if until is None else max(0.0, until - time.monotonic())
            try:
                await asyncio.wait_for(waiter, rest)
            except asyncio.TimeoutError:
                raise self._timeout(timeout, what) from None
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)

    async def _take(self, sink: _Sink) -> tuple[Handlers, Sequence[Event]] | None:
        """Waits for a batch; returns None if the informer has been stopped, or has given up and nothing waits."""
        while not self._stopping:
            if (batch := sink.take()) is not None:
                return batch
            if self._core.error is not None:
                break
            sink.event.clear()
            await sink.event.wait()
        return None

    # ------------------------------------------------------------------------------------------ tasks

    def _changed(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _hurry(self) -> None:
        self._deadline_moved.set()

    def _ended(self) -> None:
        for sink in (self._sink, *self._sinks):
            sink.wake()

    async def _run(self) -> None:
        channel: grpc.aio.Channel | None = None
        step: Next | None = None
        try:
            while True:
                try:
                    channel = channel or self._connect()
                    step = await self._watch(channel)
                except Exception as error:
                    # A file with credentials that cannot be used, or a bug here or in gRPC: nothing ends the watch.
                    step = self._failed_to_open(error)
                if channel is not None and step.new_connection:
                    await channel.close()
                    channel = None
                if step.failed:
                    break
                await asyncio.sleep(step.delay)
        finally:
            if channel is not None:
                await channel.close()

    def _connect(self) -> grpc.aio.Channel:
        options = self._target.channel_options(self._options.connect_timeout, retries=False)
        credentials = self._target.channel_credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(self._target.name, options=options)
        return grpc.aio.secure_channel(self._target.name, credentials, options=options)

    async def _watch(self, channel: grpc.aio.Channel) -> Next:
        """Reads one stream to its end."""
        method: grpc.aio.UnaryStreamMultiCallable[pb.WatchRequest, pb.WatchResponse] = channel.unary_stream(
            WATCH, pb.WatchRequest.SerializeToString, pb.WatchResponse.FromString
        )
        resources: grpc.aio.UnaryUnaryMultiCallable[pb.ListResourcesRequest, pb.ListResourcesResponse]
        resources = channel.unary_unary(
            RESOURCES, pb.ListResourcesRequest.SerializeToString, pb.ListResourcesResponse.FromString
        )
        metadata = self._target.metadata()
        with self._lock:
            request = self._core.open_stream(now())
        error: Error | None = None
        try:
            # Before each stream: an older server may have replaced the last one.
            if needed := _calls.needed(request):
                with self._supervised(resources(pb.ListResourcesRequest(), metadata=metadata)) as answer:
                    _calls.require(needed, await answer, self._target)
            with self._supervised(method(request, metadata=metadata)) as call:
                while True:
                    message = await call.read()
                    # EOF, which is an object of its own.
                    if not isinstance(message, pb.WatchResponse) or not self._receive(message):
                        break
        except grpc.RpcError as problem:
            error = error_of_rpc(problem)
        except Error as problem:
            error = problem
        except asyncio.CancelledError:
            # Also raised for a call that the supervisor has cancelled.
            if self._stopping or self._core.ending is None or _is_cancelled(default=False):
                raise
        return self._close(error)

    @contextlib.contextmanager
    def _supervised(self, call: Call) -> Iterator[Call]:
        """Ends a call with the block, and at the deadline of the stream."""
        supervisor = asyncio.create_task(self._supervise(call), name="informerd-deadline")
        try:
            yield call
        finally:
            supervisor.cancel()
            call.cancel()

    async def _supervise(self, call: grpc.aio.Call) -> None:
        """Cancels a stream when its deadline has passed: gRPC has no timeout for a message."""
        while (deadline := self._core.deadline) is not None:
            if (rest := deadline - now()) > 0:
                self._deadline_moved.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._deadline_moved.wait(), rest)
                continue
            with self._lock:
                self._core.expire(now())
            call.cancel()
            return

    async def _handle(self) -> None:
        while (batch := await self._take(self._sink)) is not None:
            handlers, events = batch
            for number, event in enumerate(events, 1):
                if number % EVENTS_IN_A_ROW == 0:
                    await asyncio.sleep(0)
                for handler in handlers:
                    if self._stopping:
                        return
                    try:
                        result = handler.call(event)
                        if inspect.isawaitable(result):
                            await result
                    except asyncio.CancelledError as error:
                        # Also raised by a handler that awaits what somebody has cancelled.
                        if self._stopping or _is_cancelled(default=True):
                            raise
                        self._handler_failed(event, error)
                    except Exception as error:
                        self._handler_failed(event, error)
                self._sink.done()
            await asyncio.sleep(0)


def _is_cancelled(*, default: bool) -> bool:
    """Returns True if the current task is being cancelled. Python 3.10 cannot tell."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return default if cancelling is None else bool(cancelling())
