"""Events that wait for handlers or for an iterator."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from informerd._errors import HandlerLag
from informerd._objects import Event

H = TypeVar("H")


class Backlog(Generic[H]):
    """Batches of events, each with the handlers that were registered when it came.

    Nothing is merged or dropped, as in client-go: the consumer's lag is reported instead. One thread puts, one takes.
    """

    def __init__(self, limit: int) -> None:
        self._batches: deque[tuple[H, Sequence[Event]]] = deque()
        self._limit = limit
        self._put = 0
        self._done = 0
        self._lags = False

    def put(self, handlers: H, events: Sequence[Event]) -> HandlerLag | None:
        """Adds events. Returns a report when an episode of lag begins: more than the limit waited already."""
        waiting = self.waiting
        report = None
        if waiting > self._limit:
            if not self._lags:
                self._lags = True
                report = HandlerLag(waiting)
        elif waiting <= self._limit // 2:
            self._lags = False
        self._batches.append((handlers, events))
        self._put += len(events)
        return report

    def take(self) -> tuple[H, Sequence[Event]] | None:
        """Returns the oldest batch; None if there is none."""
        return self._batches.popleft() if self._batches else None

    def wake(self) -> None:
        """Wakes the consumer."""
        raise NotImplementedError

    def done(self) -> None:
        """Counts one event of the batches taken as no longer waiting."""
        self._done += 1

    @property
    def waiting(self) -> int:
        """The number of events that wait."""
        return self._put - self._done
