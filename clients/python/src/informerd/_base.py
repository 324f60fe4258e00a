"""Parts that the informer of threads and the informer of asyncio share."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import grpc

from informerd import _versions
from informerd._backlog import Backlog
from informerd._core import Core, Freshness, Next, State
from informerd._errors import Error, HandlerError
from informerd._objects import Event, EventType, Object
from informerd._options import Credentials, Options, Selection, View
from informerd._store import Indexer
from informerd._target import parse_target
from informerd._until import Batch, Observer
from informerd.v1 import informerd_pb2 as pb

logger = logging.getLogger("informerd")

WATCH = "/informerd.v1.InformerService/Watch"
RESOURCES = "/informerd.v1.InformerService/ListResources"

if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """Returns seconds that also pass while the machine is suspended: the store is as old as they say."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    now = time.monotonic


class Handler(NamedTuple):
    """Functions that an informer calls on changes of its store; for ``informerd.aio``, coroutine functions too."""

    added: Callable[[Object], Any] | None = None
    updated: Callable[[Object, Object], Any] | None = None
    deleted: Callable[[Object, Any], Any] | None = None

    def call(self, event: Event) -> Any:
        """Calls the function for an event, if there is one, and returns its result."""
        if event.type is EventType.ADDED:
            return self.added(event.object) if self.added else None
        if event.type is EventType.UPDATED:
            return self.updated(event.old, event.object) if self.updated and event.old else None
        return self.deleted(event.object, event.cause) if self.deleted else None


Handlers = tuple[Handler, ...]
# BaseInformer.list hides the builtin from the annotations of its class.
Objects = list[Object]
Sink = TypeVar("Sink", bound=Backlog[Any])


class BaseInformer(Generic[Sink]):
    """Store, handlers and freshness of one watched resource. The store can be read from every thread.

    `target` is ``host:port``, ``http://host:port``, ``https://host:port`` or ``unix:/path``; it uses TLS if it is
    https, or has no scheme and the credentials have an authority or a client certificate.

    `indexers` are functions from an object to its values in an index, for `by_index`.

    `on_error` is called with what the informer survives: HandlerError, HandlerLag, IndexerError, and the Error of each
    stream that failed; and with the Error that makes it give up, which is `error` then. It must not block. By default
    these are logged by the logger ``informerd``.
    """

    def __init__(
        self,
        target: str,
        resource: str,
        selection: Selection | None = None,
        view: View | None = None,
        indexers: Mapping[str, Indexer] | None = None,
        *,
        credentials: Credentials | None = None,
        options: Options | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self._resource = resource
        self._target = parse_target(target, credentials)
        self._options = options or Options()
        self._on_error = on_error
        # Guards everything that follows. An indexer may read the store, so it can be taken again.
        self._lock = threading.RLock()
        self._reports: list[Exception] = []
        self._core = Core(resource, selection or Selection(), view, indexers or {}, self._options, self._reports.append)
        self._handlers: Handlers = ()
        self._sinks: list[Sink] = []
        self._stopping = False
        self._last_failure: Error | None = None
        self._observer: Observer | None = None
        self._set_up()
        self._sink = self._new_sink()

    # ------------------------------------------------------------------------------------------ store

    def get(self, name: str, namespace: str = "") -> Object | None:
        """Returns an object of the store; None if there is none of that name."""
        with self._lock:
            return self._core.store.get((namespace, name))

    def list(self, namespace: str | None = None) -> Objects:
        """Returns all objects of the store, or those of one namespace, sorted by namespace and name."""
        with self._lock:
            return self._core.store.objects(namespace)

    def by_index(self, index: str, value: str) -> Objects:
        """Returns the objects with a value in an index of this informer, sorted by namespace and name.

        Raises KeyError for an index that the informer was not made with.
        """
        with self._lock:
            return self._core.store.by_index(index, value)

    def __len__(self) -> int:
        """The number of objects."""
        with self._lock:
            return len(self._core.store)

    def __bool__(self) -> bool:
        return True

    @property
    def version(self) -> str:
        """The version of the store; empty before the first sync."""
        with self._lock:
            return self._core.version

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces that the caller's rights limit the store to; empty = not limited."""
        with self._lock:
            return self._core.namespaces

    @property
    def error(self) -> Error | None:
        """The error that made the informer give up; None while it works."""
        with self._lock:
            return self._core.error

    def freshness(self) -> Freshness:
        """Returns the state of the store, as of now."""
        with self._lock:
            freshness = self._core.freshness(now())
            if self._stopping:
                return Freshness(State.DISCONNECTED, freshness.source_seen_at, freshness.last_message_age)
            return freshness

    def healthy(self) -> bool:
        """Returns True if the store equals the server's state as of the last message: LIVE or STALE."""
        return self.freshness().healthy

    # ------------------------------------------------------------------------------------------ handlers

    def _add_handler(self, handler: Handler) -> None:
        with self._lock:
            self._handlers += (handler,)
            self._put(self._sink, (handler,), self._present())
        self._flush_reports()

    def _present(self) -> Sequence[Event]:
        return [Event(EventType.ADDED, o) for o in self._core.store.objects(None)]

    def _set_up(self) -> None:
        """Makes what waiting needs, when the base is complete."""
        raise NotImplementedError

    def _new_sink(self) -> Sink:
        raise NotImplementedError

    def _put(self, sink: Sink, handlers: Handlers, events: Sequence[Event]) -> None:
        if events:
            if lag := sink.put(handlers, events):
                self._reports.append(lag)
            sink.wake()

    # ------------------------------------------------------------------------------------------ streams

    def _receive(self, message: pb.WatchResponse) -> bool:
        """Applies a message. Returns False if the stream has to be closed."""
        with self._lock:
            core = self._core
            version, synced, deadline = core.version, core.synced, core.deadline
            events = core.receive(message, now())
            if events:
                if self._handlers:
                    self._put(self._sink, self._handlers, events)
                for sink in self._sinks:
                    self._put(sink, (), events)
            if self._observer is not None and (events or core.synced != synced):
                self._observer(Batch(events, core.version, core.namespaces))
            if core.version != version or core.synced != synced:
                self._changed()
            # The first message may have much longer than each of the others.
            if deadline is not None and core.deadline is not None and core.deadline < deadline:
                self._hurry()
            ending = core.ending
        if self._reports:
            self._flush_reports()
        return ending is None

    def _close(self, error: Error | None) -> Next:
        with self._lock:
            step = self._core.close_stream(error, now())
            if step.failed:
                self._changed()
                self._ended()
                if self._observer is not None:
                    self._observer(None)
        self._log(step)
        return step

    def _failed_to_open(self, cause: Exception) -> Next:
        error = Error(grpc.StatusCode.UNKNOWN, f"cannot watch: {cause}")
        error.__cause__ = cause
        with self._lock:
            step = self._core.failed_to_open(error)
        self._log(step)
        return step

    def _log(self, step: Next) -> None:
        subject = f"resource={self._resource} target={self._target.name}"
        if step.error is None:
            logger.info("watch ended %s retry_in=%.1fs", subject, step.delay)
            return
        self._last_failure = step.error
        if self._on_error is not None:
            self._report(step.error)
        elif step.failed:
            logger.error('watch failed for good %s error="%s"', subject, step.error)
        else:
            logger.warning('watch failed %s error="%s" retry_in=%.1fs', subject, step.error, step.delay)

    def _observe(self, observer: Observer) -> None:
        """Passes each batch to the observer, from the first list on, and None when the informer has given up."""
        self._observer = observer

    def _standing_failure(self) -> Error | None:
        """Returns the last failure, unless the store has become current since."""
        return None if self.healthy() else self._last_failure

    def _timeout(self, timeout: float | None, what: str) -> TimeoutError:
        failure = self._standing_failure()
        text = f"timed out after {timeout} s waiting for {what}: the state is {self.freshness().state.name}"
        return TimeoutError(text if failure is None else f"{text}; the last failure: {failure}")

    def _changed(self) -> None:
        """Wakes those who wait for a sync, for a version or for a failure."""
        raise NotImplementedError

    def _hurry(self) -> None:
        """Wakes who waits for the deadline of the stream: it has become earlier."""
        raise NotImplementedError

    def _ended(self) -> None:
        """Wakes everything that waits for more of the stream: nothing follows."""
        raise NotImplementedError

    def _reaches(self, version: str) -> bool:
        """Returns True if the store has reached a version. Raises the Error of an informer that has given up."""
        with self._lock:
            self._check()
            return _versions.reaches(self._core.version, version)

    def _is_synced(self) -> bool:
        with self._lock:
            self._check()
            return self._core.synced

    def _check(self) -> None:
        if self._core.error is not None:
            raise self._core.error
        if self._stopping:
            raise RuntimeError("the informer has been stopped")

    # ------------------------------------------------------------------------------------------ reports

    def _handler_failed(self, event: Event, cause: BaseException) -> None:
        error = HandlerError(event)
        error.__cause__ = cause
        self._report(error)

    def _flush_reports(self) -> None:
        with self._lock:
            reports = self._reports[:]
            self._reports.clear()
        for report in reports:
            self._report(report)

    def _report(self, error: Exception) -> None:
        if self._on_error is None:
            logger.warning("%s", error, exc_info=error.__cause__)
            return
        try:
            self._on_error(error)
        except Exception:  # The store goes on, whatever the user's function does.
            logger.exception("on_error failed on: %s", error)
