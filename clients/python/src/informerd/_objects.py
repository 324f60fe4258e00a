"""Objects and events, as users see them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from informerd.v1 import informerd_pb2 as pb

JSON = "application/json"

Key = tuple[str, str]
"""Namespace and name of an object."""

_UNDECODED: Any = object()


class Object:
    """An object of a resource, at one version. The store and all handlers share it and its body: modify neither."""

    __slots__ = ("_body", "api_version", "kind", "labels", "media_type", "name", "namespace", "raw", "uid", "version")

    namespace: str
    """Empty when the object has none."""
    name: str
    uid: str
    """Empty when the source has none. Another uid under the same key is another object."""
    version: str
    """The object's own version, which no watch resumes from."""
    labels: Mapping[str, str]
    api_version: str
    kind: str
    media_type: str
    raw: bytes | None
    """The source's own bytes; None without a body: under metadata_only, and where a view leaves it out."""

    def __init__(
        self,
        namespace: str,
        name: str,
        uid: str = "",
        version: str = "",
        labels: Mapping[str, str] | None = None,
        api_version: str = "",
        kind: str = "",
        media_type: str = JSON,
        raw: bytes | None = None,
    ) -> None:
        self.namespace = namespace
        self.name = name
        self.uid = uid
        self.version = version
        self.labels = labels or {}
        self.api_version = api_version
        self.kind = kind
        self.media_type = media_type
        self.raw = raw
        self._body = _UNDECODED

    @property
    def key(self) -> Key:
        """The namespace and name."""
        return self.namespace, self.name

    @property
    def body(self) -> Any:
        """The parsed body if its media type is JSON, else its bytes; None without `raw`.

        JSON is parsed at the first use. Raises ValueError for a body that is not the JSON that its media type promises.
        """
        if self._body is _UNDECODED:
            raw = self.raw
            self._body = json.loads(raw) if raw is not None and self.media_type == JSON else raw
        return self._body

    def same_state(self, other: Object) -> bool:
        """Returns True if both are one state of one object: uid, body and labels; without bodies, the version too.

        A server that restarts may number its versions anew, so the version of an object with a body says nothing.
        """
        return (
            self.raw == other.raw
            and self.uid == other.uid
            and self.labels == other.labels
            and (self.raw is not None or self.version == other.version)
        )

    def __repr__(self) -> str:
        return f"<Object {self.namespace}/{self.name} version={self.version!r} uid={self.uid!r}>"


def object_of(message: pb.Object) -> Object:
    """Returns the object of a message."""
    raw = message.raw if message.HasField("raw") else None
    labels = message.labels
    return Object(
        message.namespace,
        message.name,
        message.uid,
        message.resource_version,
        # Half the time of dict(labels).
        {key: labels[key] for key in labels},
        message.api_version,
        message.kind,
        message.media_type,
        raw,
    )


class Cause(Enum):
    """The reason for a deletion."""

    DELETED = "DELETED"
    """The object was deleted."""
    INFERRED = "INFERRED"
    """Nobody saw the deletion: a later list did not contain the object, or it has another uid now."""
    LEFT_SELECTION = "LEFT_SELECTION"
    """The object still exists, and no longer matches."""
    NOT_SERVED = "NOT_SERVED"
    """The object still exists, and the server cannot serve it: a controller must not remove what belongs to it."""
    EXPIRED = "EXPIRED"
    """The source has not reported the object for the resource's ttl."""
    OTHER = "OTHER"
    """A reason of a newer server that this package does not know; the object may still exist."""


CAUSES: Mapping[int, Cause] = {
    pb.CAUSE_UNSPECIFIED: Cause.DELETED,
    pb.CAUSE_INFERRED: Cause.INFERRED,
    pb.CAUSE_LEFT_SELECTION: Cause.LEFT_SELECTION,
    pb.CAUSE_NOT_SERVED: Cause.NOT_SERVED,
    pb.CAUSE_EXPIRED: Cause.EXPIRED,
}


class EventType(Enum):
    """The type of an event."""

    ADDED = "ADDED"
    UPDATED = "UPDATED"
    DELETED = "DELETED"


class Event(NamedTuple):
    """A change of the store."""

    type: EventType
    object: Object
    """The new state; of a deleted object, its last known one."""
    old: Object | None = None
    """The state before, of UPDATED."""
    cause: Cause | None = None
    """The reason, of DELETED."""
