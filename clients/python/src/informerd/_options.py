"""Options of informers and calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from os import PathLike

from informerd.v1 import informerd_pb2 as pb


class Policy(Enum):
    """The server's action when the queue of a watch is full."""

    DROP = pb.FULL_CHANNEL_POLICY_DROP
    """Events are lost; an informer resumes at the hole and receives them."""
    BLOCK = pb.FULL_CHANNEL_POLICY_BLOCK
    """The server waits for this client, within a budget."""
    REPLAY = pb.FULL_CHANNEL_POLICY_REPLAY
    """The client continues from the history."""
    COALESCE = pb.FULL_CHANNEL_POLICY_COALESCE
    """Changes merge: the client receives the latest state of each object."""


@dataclass(frozen=True)
class Index:
    """The objects under any of some values (at most 256) of one of the server's indexes."""

    name: str
    values: Sequence[str]


@dataclass(frozen=True)
class Shard:
    """Part `number`, from 0, of `of` equal parts of a resource, by the hash of a key."""

    number: int
    of: int
    key: str = "uid"
    """``uid``, ``namespace``, ``key`` (namespace and name), or the path of a scalar such as ``spec.nodeName``."""

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.of:
            raise ValueError(f"there is no shard {self.number} of {self.of}: they are numbered from 0")

    def message(self) -> pb.Shard:
        """Returns the shard as the server takes it."""
        start, end = (n * 2**64 // self.of for n in (self.number, self.number + 1))
        return pb.Shard(key=self.key, ranges=[pb.ShardRange(start=start, end=end % 2**64)])


@dataclass(frozen=True)
class Selection:
    """The objects of a resource that all of these select; by default, all objects."""

    namespace: str = ""
    name: str = ""
    label_selector: str = ""
    """As in Kubernetes: ``app=web,tier in (a,b),!canary``."""
    field_selector: str = ""
    """``metadata.name=x,spec.nodeName!=n1``."""
    expression: str = ""
    """CEL over ``object``."""
    index: Index | None = None
    """Not for by_index."""
    shard: Shard | None = None


@dataclass(frozen=True)
class View:
    """The part of each body that the server sends."""

    fields: Sequence[str] = ()
    """Paths to keep, for example ``metadata.labels``; empty = everything."""
    drop: Sequence[str] = ()
    """Paths to leave out."""
    only_if_changed: bool = False
    """A watch leaves out changes outside of the view."""
    name: str = ""
    """Instead of paths: ``@metadata``, ``@no-status``, ``@no-managed-fields``."""

    def message(self) -> pb.View:
        """Returns the view as the server takes it."""
        return pb.View(fields=self.fields, drop=self.drop, only_if_changed=self.only_if_changed, name=self.name)


@dataclass(frozen=True)
class Credentials:
    """Files with credentials.

    The token is read at each call. Certificates are read at each connection of an informer, and when a client is made.
    """

    token_file: str | PathLike[str] | None = None
    """A bearer token. It is sent to https addresses, Unix sockets and loopback only."""
    ca_file: str | PathLike[str] | None = None
    """PEM of the authorities that the server's certificate may have; without it, gRPC's own."""
    client_certificate_file: str | PathLike[str] | None = None
    client_key_file: str | PathLike[str] | None = None
    server_name: str = ""
    """The name in the server's certificate, if it is not the host of the address."""

    def __post_init__(self) -> None:
        if (self.client_certificate_file is None) != (self.client_key_file is None):
            raise ValueError("client_certificate_file and client_key_file belong together: give both")

    @property
    def tls(self) -> bool:
        """True if they need TLS."""
        return self.ca_file is not None or self.client_certificate_file is not None


@dataclass(frozen=True)
class Options:
    """Times are in seconds."""

    bookmark_interval: float = 10.0
    """The longest time without a message of the server, from 0.1; after three of them a connection is dead."""
    first_message_timeout: float = 100.0
    """The silence allowed before the first message of a resumed stream, more than the server's future_wait (90 s)."""
    first_list_timeout: float = 30.0
    """The silence allowed before the first message of a stream that lists; first_message_timeout, if that is less."""
    connect_timeout: float = 5.0
    """For each address of the server's name, from 0.1."""
    backoff: float = 0.2
    """The longest first delay before another attempt. It doubles with each; the delay is random."""
    max_backoff: float = 10.0
    drain_jitter: float = 1.0
    """The longest delay before the informer leaves a server that drains."""
    policy: Policy | None = None
    """Of a full queue; None = the server's default."""
    queue_length: int = 0
    """In events; 0 = the server's default."""
    metadata_only: bool = False
    """Objects without bodies."""
    lag_limit: int = 10_000
    """More events than this waiting for the handlers are reported, once per episode."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float | int) and not (0 <= value < math.inf):
                raise ValueError(f"{field.name} is {value}; it is a number from 0")
        for name in ("bookmark_interval", "connect_timeout"):
            if getattr(self, name) < 0.1:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 0.1 s")
