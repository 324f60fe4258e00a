"""Conditions on the events of an informer, which are met one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import grpc

from informerd._errors import Error
from informerd._objects import Cause, Event, EventType, Key, Object


@dataclass(frozen=True)
class UntilEvent:
    """An event that a condition is tested on."""

    type: str
    """``ADDED``, ``MODIFIED``, ``DELETED``, or ``SYNCED`` after the objects of the first list, which has no object."""
    object: Object | None
    """The new state; of a deleted object, its last known one."""
    cause: Cause | None
    """The reason, of DELETED."""
    count: int
    """The number of selected objects after the event; for ADDED of the first list and SYNCED, that of the list."""
    version: str
    namespaces: Sequence[str]
    """The namespaces that the caller's rights limit the selection to; empty = not limited."""


Condition = Callable[[UntilEvent], object]
"""Returns something true if the event meets the condition."""


class Batch(NamedTuple):
    """What an informer has applied in one step; the first one is its first list."""

    events: Sequence[Event]
    version: str
    namespaces: Sequence[str]


Observer = Callable[["Batch | None"], object]
"""Receives each batch, and None when nothing follows."""


def any_object(event: UntilEvent) -> bool:
    """The condition that an object is selected."""
    return event.count > 0


class Waiting:
    """The conditions of one `until`, and its time."""

    def __init__(self, conditions: Condition | Sequence[Condition], timeout: float) -> None:
        self._conditions = [conditions] if callable(conditions) else list(conditions)
        if not self._conditions or not all(callable(condition) for condition in self._conditions):
            # A text is a sequence, too.
            raise TypeError(
                "a condition is a function of an UntilEvent; what the server evaluates is Selection.expression"
            )
        self._timeout = timeout
        self._ends_at = time.monotonic() + timeout
        self._met = 0
        self._count = 0
        self._is_first_list = True
        self._not_served: set[Key] = set()

    @property
    def left(self) -> float:
        """The seconds until the timeout."""
        return max(0.0, self._ends_at - time.monotonic())

    def timed_out(self, failure: Error | None) -> Error:
        """Returns the error after the timeout, with the failure that is still standing, if there is one."""
        text = f"the conditions were not met within {self._timeout:g} s"
        return Error(grpc.StatusCode.DEADLINE_EXCEEDED, text if failure is None else f"{text} (last error: {failure})")

    def test(self, batch: Batch) -> UntilEvent | None:
        """Returns the event that has met the last condition, if it is in the batch."""
        is_first_list, self._is_first_list = self._is_first_list, False
        if is_first_list:
            self._count = len(batch.events)
        for event in batch.events:
            if not is_first_list and not self._counts(event):
                continue
            kind = "MODIFIED" if event.type is EventType.UPDATED else event.type.value
            if met := self._meets(kind, event.object, event.cause, batch):
                return met
        return self._meets("SYNCED", None, None, batch) if is_first_list else None

    def _counts(self, event: Event) -> bool:
        """Counts an object. Returns False for one that can no longer be served: it exists, and is not tested."""
        key = event.object.key
        if event.type is EventType.DELETED:
            if event.cause is Cause.NOT_SERVED:
                self._not_served.add(key)
                return False
            self._count -= 1
        elif event.type is EventType.ADDED:
            if key in self._not_served:
                self._not_served.remove(key)
            else:
                self._count += 1
        return True

    def _meets(self, kind: str, of: Object | None, cause: Cause | None, batch: Batch) -> UntilEvent | None:
        event = UntilEvent(kind, of, cause, self._count, batch.version, batch.namespaces)
        while self._conditions[self._met](event):
            self._met += 1
            if self._met == len(self._conditions):
                return event
        return None
