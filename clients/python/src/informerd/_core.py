"""The rules of an informer: streams, messages, the store, its freshness. Without I/O, threads and clocks.

A driver opens streams one after the other, passes on what they deliver, and ends them when the core says so:

    core.open_stream(now) -> WatchRequest
    core.receive(message, now) -> events     for each message, until core.ending
    core.expire(now)                         at core.deadline, if nothing has moved it
    core.close_stream(error, now) -> Next    when and how to open the next one

`now` is a time in seconds that never decreases. The proto's comment of Watch is the source of the rules.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from informerd import _versions
from informerd._errors import RESUME, ContractError, Error, error_of_status
from informerd._objects import CAUSES, Cause, Event, Key, Object, object_of
from informerd._options import Options, Selection, View
from informerd._store import Change, Indexer, Report, Store
from informerd.v1 import informerd_pb2 as pb

SILENT_INTERVALS = 3
"""Intervals without a message after which a connection is dead."""
MAX_RETRY_AFTER = 60.0
"""The longest delay, in seconds, that a server can request."""
MAX_PENDING = 1_000_000
"""Events of one open batch; after more, the informer lists again rather than keeping a batch without an end."""

_NO_EVENTS: Sequence[Event] = ()


class State(Enum):
    """The state of a store relative to the server."""

    SYNCING = "SYNCING"
    """The store is not known to be current: the first list, a list again, what was missed is being received."""
    LIVE = "LIVE"
    """The store is the server's state as of the last message."""
    STALE = "STALE"
    """As LIVE, and the server has lost its upstream: this is the last known state."""
    DISCONNECTED = "DISCONNECTED"
    """No stream, or no message for three bookmark intervals."""


@dataclass(frozen=True)
class Freshness:
    """The state of a store, and its age."""

    state: State
    source_seen_at: datetime | None
    """Time of the server's last contact with the upstream, as the last bookmark reported it."""
    last_message_age: float | None
    """Seconds since the last message of any stream; None before the first."""

    @property
    def healthy(self) -> bool:
        """True for LIVE and STALE: the store equals the server's state as of the last message."""
        return self.state in (State.LIVE, State.STALE)


class Ending(Enum):
    """The reason why a stream has to be closed, besides its own end."""

    SILENT = "SILENT"
    DRAINED = "DRAINED"
    DROPPED = "DROPPED"
    ERROR = "ERROR"


@dataclass(frozen=True)
class Next:
    """The step after a stream."""

    delay: float
    """In seconds, before the next stream is opened."""
    new_connection: bool
    """True if the next stream needs another connection."""
    error: Error | None
    """The failure that ended the stream, if it was none of the usual ends."""
    failed: bool = False
    """True if the informer gives up with the error: there is no next stream."""


class Core:
    """State of one informer."""

    def __init__(
        self,
        resource: str,
        selection: Selection,
        view: View | None,
        indexers: Mapping[str, Indexer],
        options: Options,
        report: Report,
    ) -> None:
        self.store = Store(indexers, report)
        self.version = ""
        """The last version that is safe to resume from."""
        self.namespaces: tuple[str, ...] = ()
        self.synced = False
        self.error: Error | None = None
        """The reason for giving up."""
        self.ending: Ending | None = None
        """Set when the open stream has to be closed."""
        self.deadline: float | None = None
        """The time to call `expire` at, while a stream is open."""
        self._options = options
        self._request = _request(resource, selection, view, options)
        self._silence = SILENT_INTERVALS * options.bookmark_interval
        self._history = ""
        self._source = pb.SYNC_STATE_UNSPECIFIED
        self._source_seen_at: Timestamp | None = None
        self._last_message_at: float | None = None
        # Of the open stream.
        self._is_open = False
        self._is_current = False
        self._initial: dict[Key, Object] | None = None
        self._pending: list[Change] = []
        self._has_progressed = False
        self._drain_at: float | None = None
        self._stream_error: Error | None = None
        # Across streams.
        self._lists_again = True
        self._is_healing = False
        self._failures = 0
        self._is_answered = False
        self._relists = False
        self._too_large = 0
        self._unauthenticated = 0
        self._streams = 0

    # ------------------------------------------------------------------------------------------ streams

    def open_stream(self, now: float) -> pb.WatchRequest:
        """Begins a stream, and returns its request."""
        self._streams += 1
        self._is_open = True
        self._is_current = False
        self._initial = {} if self._lists_again else None
        self._pending.clear()
        self._has_progressed = False
        self._drain_at = None
        self._stream_error = None
        self.ending = None
        options, patience = self._options, self._options.first_message_timeout
        self.deadline = now + (min(patience, options.first_list_timeout) if self._lists_again else patience)
        request = pb.WatchRequest()
        request.CopyFrom(self._request)
        if not self._lists_again:
            request.resource_version, request.history = self.version, self._history
        return request

    def receive(self, message: pb.WatchResponse, now: float) -> Sequence[Event]:
        """Applies a message, and returns the changes of the store."""
        self._last_message_at = now
        deadline = now + self._silence
        self.deadline = deadline if self._drain_at is None else min(deadline, self._drain_at)
        kind = message.type
        if kind != pb.EVENT_TYPE_ERROR:
            self._unauthenticated = self._too_large = 0
        try:
            if kind in (pb.EVENT_TYPE_ADDED, pb.EVENT_TYPE_MODIFIED, pb.EVENT_TYPE_DELETED):
                return self._events(message)
            if kind == pb.EVENT_TYPE_BOOKMARK:
                return self._bookmark(message, now)
            if kind == pb.EVENT_TYPE_DROPPED:
                return self._dropped(message)
            if kind == pb.EVENT_TYPE_ERROR:
                return self._error(message)
            raise ContractError(f"a message of the unknown type {kind}")
        except ContractError as error:
            self._end(Ending.ERROR, error)
            return _NO_EVENTS

    def expire(self, now: float) -> None:
        """Sets `ending` if the deadline of the stream has passed."""
        if self.ending is None and self.deadline is not None and now >= self.deadline:
            is_drained = self._drain_at is not None and now >= self._drain_at
            self._end(Ending.DRAINED if is_drained else Ending.SILENT)

    def close_stream(self, error: Error | None, now: float) -> Next:
        """Ends the stream, which gRPC ended with the error or without one, or which had to be closed."""
        ending, drain_at, is_resume = self.ending, self._drain_at, self._initial is None
        if ending is not None:
            error = self._stream_error
        self._discard_stream()
        self._is_healing = ending is Ending.DROPPED
        # The failures before an answer were those of a server that could not be reached.
        is_answer = error is not None and error.is_answer
        if self._has_progressed or (is_answer and not self._is_answered):
            self._failures = 0
        if self._has_progressed:
            self._relists = False
        self._is_answered = is_answer
        if self._is_drained(ending, error):
            jitter = self._random(self._options.drain_jitter) if drain_at is None else max(0.0, drain_at - now)
            return Next(jitter + _requested(error) + self._graceful_delay(), True, None)
        if ending is Ending.DROPPED:
            return Next(self._graceful_delay(), False, None)
        if ending is Ending.SILENT:
            silent = Error(grpc.StatusCode.UNAVAILABLE, "the server sent no message in time: reconnecting")
            return Next(self._failure_delay(), True, silent)
        if error is None:
            return Next(self._graceful_delay(), False, None)
        if isinstance(error, ContractError):
            self._lists_again = True
        elif error.code is grpc.StatusCode.OUT_OF_RANGE:
            # Whatever the reason: a proxy may have removed it, and a newer server has others.
            return self._list_again(error)
        elif error.reason == "RESOURCE_VERSION_TOO_LARGE" and is_resume:
            self._too_large += 1
            if self._too_large >= 2:
                return self._list_again(error)
        elif error.code is grpc.StatusCode.UNAUTHENTICATED and self._unauthenticated == 0:
            self._unauthenticated = 1
        elif error.code is grpc.StatusCode.NOT_FOUND and self.synced:
            pass
        elif error.code not in RESUME:
            self.error = error
            return Next(0, True, error, failed=True)
        # A status of the server itself shows that its connection works.
        return Next(_requested(error) + self._failure_delay(), not error.is_answer or self._unauthenticated > 0, error)

    def _list_again(self, error: Error) -> Next:
        """Lists after a jitter, in place of the back-off; after the back-off if that has failed."""
        self._lists_again = True
        delay = self._failure_delay() if self._relists else self._random(self._options.drain_jitter)
        self._relists = True
        return Next(_requested(error) + delay, False, error)

    def _is_drained(self, ending: Ending | None, error: Error | None) -> bool:
        if error is not None and error.reason == "DRAINING":
            return True
        # A server that has announced its end may end a stream in any way.
        return self._drain_at is not None and ending is not Ending.ERROR and (error is None or error.code in RESUME)

    def failed_to_open(self, error: Error) -> Next:
        """Ends a stream that failed on this side: it could not be requested, or its messages could not be applied."""
        # An exception amid a change may have left a part of it.
        self._lists_again = self._lists_again or self._is_open
        self._discard_stream()
        self._is_healing = False
        self._streams += 1
        return Next(self._failure_delay(), True, error)

    def _discard_stream(self) -> None:
        self._is_open = self._is_current = False
        self._initial = None
        self._pending.clear()
        self.deadline = None
        self.ending = None

    def _end(self, ending: Ending, error: Error | None = None) -> None:
        self.ending = ending
        self._is_current = False
        self._stream_error = error

    def _failure_delay(self) -> float:
        self._failures += 1
        longest = self._options.backoff * 2.0 ** min(self._failures - 1, 32)
        return self._random(min(longest, self._options.max_backoff))

    def _graceful_delay(self) -> float:
        """Returns no delay, unless streams end again and again without any progress."""
        return 0.0 if self._has_progressed else self._failure_delay()

    @staticmethod
    def _random(limit: float) -> float:
        return random.uniform(0, limit)

    # ------------------------------------------------------------------------------------------ messages

    def _events(self, message: pb.WatchResponse) -> Sequence[Event]:
        """Applies the event of a message, or the initial events of its batch."""
        if not message.batch:
            if not message.HasField("object"):
                raise ContractError("an event without an object")
            return self._event(message, message.object)
        if self._initial is None:
            raise ContractError("a batch that is not of the initial events")
        for wire in message.batch:
            self._event(message, wire)
        return _NO_EVENTS

    def _event(self, message: pb.WatchResponse, wire: pb.Object) -> Sequence[Event]:
        new = object_of(wire)
        kind, version = message.type, message.resource_version
        if self._initial is not None:
            if kind != pb.EVENT_TYPE_ADDED:
                raise ContractError("an event other than ADDED among the initial events")
            self._initial[new.key] = new
            return _NO_EVENTS
        if not version:
            raise ContractError("an event without a version to resume from")

        cause = CAUSES.get(message.cause, Cause.OTHER) if kind == pb.EVENT_TYPE_DELETED else None
        change = Change(new, cause)
        if message.open and not self._pending:
            self.version = version
            return self.store.apply((change,))
        if version == self.version:
            # The batch at the next version is open.
            self._keep(change)
            return _NO_EVENTS
        if not message.open and _versions.is_before(version, new.version):
            # So is this one: the selection has nothing of what lies between the two versions.
            events = self._advance(version)
            self._keep(change)
            return events
        return self._advance(version, change)

    def _keep(self, change: Change) -> None:
        if len(self._pending) >= MAX_PENDING:
            raise ContractError(f"more than {MAX_PENDING} events in one batch")
        self._pending.append(change)

    def _advance(self, version: str, *last: Change) -> Sequence[Event]:
        """Applies the pending events, which are complete, and one more."""
        self.version = version
        if not self._pending:
            return self.store.apply(last) if last else _NO_EVENTS
        changes = [*self._pending, *last]
        self._pending.clear()
        return self.store.apply(changes)

    def _bookmark(self, message: pb.WatchResponse, now: float) -> Sequence[Event]:
        bookmark, version = message.bookmark, message.resource_version
        events = _NO_EVENTS
        if self._initial is None:
            if version:
                # The objects that come and go with the caller's namespaces do so without another version.
                if version != self.version or tuple(bookmark.namespaces) != self.namespaces:
                    events = self._advance(version)
                self._progress(bookmark)
            elif not bookmark.draining:
                raise ContractError("a BOOKMARK without a version")
        elif bookmark.initial_events_end:
            if not version:
                raise ContractError("the end of the initial events without a version")
            events = self.store.replace(self._initial)
            self._initial = None
            self._lists_again = False
            self.version = version
            self.synced = True
            self._progress(bookmark)
        self._source = bookmark.source
        if bookmark.HasField("source_seen_at"):
            self._source_seen_at = bookmark.source_seen_at
        if bookmark.draining and self._drain_at is None:
            self._drain_at = now + self._random(self._options.drain_jitter)
            self.deadline = min(self._drain_at, now + self._silence)
        return events

    def _progress(self, bookmark: pb.Bookmark) -> None:
        self._history = bookmark.history
        self.namespaces = tuple(bookmark.namespaces)
        self._is_current = True
        self._has_progressed = True

    def _dropped(self, message: pb.WatchResponse) -> Sequence[Event]:
        after = message.dropped.after_resource_version
        if self._initial is not None or not after:
            raise ContractError("a DROPPED among the initial events, or without a version to resume from")
        events = self._advance(after) if after != self.version else _NO_EVENTS
        self._end(Ending.DROPPED)
        return events

    def _error(self, message: pb.WatchResponse) -> Sequence[Event]:
        version = message.resource_version
        if not message.error.code:
            raise ContractError("an ERROR without a status")
        advances = self._initial is None and version and version != self.version
        events = self._advance(version) if advances else _NO_EVENTS
        self._end(Ending.ERROR, error_of_status(message.error))
        return events

    # ------------------------------------------------------------------------------------------ freshness

    def freshness(self, now: float) -> Freshness:
        """Returns the state now, however long ago the last call was."""
        seen = self._source_seen_at
        age = None if self._last_message_at is None else max(0.0, now - self._last_message_at)
        return Freshness(self._state(age), None if seen is None else datetime_of(seen), age)

    def _state(self, age: float | None) -> State:
        if self.error is not None or (age is not None and age >= self._silence):
            return State.DISCONNECTED
        if not self._is_open:
            # Between two streams that heal a hole the connection stays; and nothing is lost yet before the first one.
            return State.SYNCING if self._is_healing or self._streams == 0 else State.DISCONNECTED
        if not self._is_current:
            return State.SYNCING
        return State.STALE if self._source == pb.SYNC_STATE_STALE else State.LIVE


def _request(resource: str, selection: Selection, view: View | None, options: Options) -> pb.WatchRequest:
    index, shard, policy = selection.index, selection.shard, options.policy
    request = pb.WatchRequest(
        resource=resource,
        namespace=selection.namespace,
        name=selection.name,
        label_selector=selection.label_selector,
        field_selector=selection.field_selector,
        expression=selection.expression,
        index=pb.IndexMatch(name=index.name, values=index.values) if index else None,
        shard=shard.message() if shard else None,
        view=view.message() if view else None,
        format=pb.PAYLOAD_FORMAT_METADATA if options.metadata_only else pb.PAYLOAD_FORMAT_RAW,
        bookmark_interval=_duration(options.bookmark_interval),
        # A server that has no batches ignores it.
        batch_initial_events=True,
    )
    if policy or options.queue_length:
        request.queue.length = options.queue_length
        if policy:
            request.queue.policy = policy.value
    return request


def _duration(seconds: float) -> Duration:
    return Duration(seconds=int(seconds), nanos=round(seconds % 1 * 1e9) % 10**9)


def datetime_of(seen: Timestamp) -> datetime | None:
    """Returns the time; None for one that Python cannot represent."""
    try:
        return seen.ToDatetime(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        return None


def _requested(error: Error | None) -> float:
    return min((error.retry_after if error else None) or 0.0, MAX_RETRY_AFTER)
