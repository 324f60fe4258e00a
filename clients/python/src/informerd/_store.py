"""Objects of one state, with indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from informerd._errors import IndexerError
from informerd._objects import Cause, Event, EventType, Key, Object

Indexer = Callable[[Object], Iterable[str]]
"""Returns the values of an object in an index."""

Report = Callable[[Exception], None]


class Change(NamedTuple):
    """A change that a server has sent: an upsert, or a deletion if there is a cause."""

    object: Object
    cause: Cause | None = None


class Store:
    """Applies changes, and returns the events that they make of the state before."""

    def __init__(self, indexers: Mapping[str, Indexer], report: Report) -> None:
        self._objects: dict[Key, Object] = {}
        self._indexes = {name: _Index(name, indexer) for name, indexer in indexers.items()}
        self._report = report

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key)

    def objects(self, namespace: str | None) -> list[Object]:
        objects = self._objects.values()
        return _sorted(o for o in objects if namespace is None or o.namespace == namespace)

    def by_index(self, index: str, value: str) -> list[Object]:
        if index not in self._indexes:
            raise KeyError(f"there is no index {index!r}; there are: {', '.join(sorted(self._indexes)) or 'none'}")
        return _sorted(self._indexes[index].get(value))

    def __len__(self) -> int:
        return len(self._objects)

    def apply(self, changes: Iterable[Change]) -> list[Event]:
        """Applies changes in order."""
        events: list[Event] = []
        for new, cause in changes:
            if cause is None:
                self._upsert(new, events)
            else:
                self._delete(new, cause, events)
        return events

    def replace(self, objects: Mapping[Key, Object]) -> list[Event]:
        """Makes these the only objects."""
        events: list[Event] = []
        for key in [key for key in self._objects if key not in objects]:
            self._remove(key, self._objects[key], Cause.INFERRED, events)
        for new in objects.values():
            self._upsert(new, events)
        return events

    def _upsert(self, new: Object, events: list[Event]) -> None:
        key = new.key
        old = self._objects.get(key)
        if old is not None and old.uid != new.uid:
            self._remove(key, old, Cause.INFERRED, events)
            old = None
        self._objects[key] = new
        self._index(key, new)
        if old is None:
            events.append(Event(EventType.ADDED, new))
        elif not old.same_state(new):
            events.append(Event(EventType.UPDATED, new, old))

    def _delete(self, last: Object, cause: Cause, events: list[Event]) -> None:
        key = last.key
        old = self._objects.get(key)
        # A deletion may be repeated, and may be that of an object that had the same name before.
        if old is None or (old.uid and last.uid and old.uid != last.uid):
            return
        self._remove(key, old if last.raw is None else last, cause, events)

    def _remove(self, key: Key, last: Object, cause: Cause, events: list[Event]) -> None:
        del self._objects[key]
        self._index(key, None)
        events.append(Event(EventType.DELETED, last, None, cause))

    def _index(self, key: Key, new: Object | None) -> None:
        for index in self._indexes.values():
            try:
                index.put(key, new)
            except Exception as cause:
                error = IndexerError(index.name, key)
                error.__cause__ = cause
                self._report(error)


class _Index:
    """Objects by the values that an indexer has returned for them."""

    def __init__(self, name: str, indexer: Indexer) -> None:
        self.name = name
        self._indexer = indexer
        self._objects: dict[str, dict[Key, Object]] = {}
        self._values: dict[Key, Sequence[str]] = {}

    def get(self, value: str) -> Iterable[Object]:
        return self._objects.get(value, {}).values()

    def put(self, key: Key, new: Object | None) -> None:
        """Replaces the object under a key. If the indexer raises an exception, the index has neither."""
        before = self._values.pop(key, ())
        try:
            # A string is iterable too, but nobody means its letters.
            values = () if new is None else self._indexer(new)
            after = (values,) if isinstance(values, str) else tuple(dict.fromkeys(values or ()))
        except Exception:
            self._replace(key, None, before, ())
            raise
        self._replace(key, new, before, after)

    def _replace(self, key: Key, new: Object | None, before: Sequence[str], after: Sequence[str]) -> None:
        for value in before:
            if value not in after:
                objects = self._objects[value]
                del objects[key]
                if not objects:
                    del self._objects[value]
        if new is not None and after:
            for value in after:
                self._objects.setdefault(value, {})[key] = new
            self._values[key] = after


def _sorted(objects: Iterable[Object]) -> list[Object]:
    return sorted(objects, key=lambda o: (o.namespace, o.name))
