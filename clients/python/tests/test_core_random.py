"""The core against a model of a server, in random histories with random faults.

After each message the store is the model's state at the core's version: never a part of a batch, nothing missing,
nothing too much. The handler calls add up to the store. In the end the store is the model's newest state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import added, batch, bookmark, deleted, dropped, end, initial, modified, obj, status

from informerd import EventType, Object, Options, Selection
from informerd._core import Core
from informerd._errors import Error, error_of_status
from informerd.v1 import informerd_pb2 as pb

Content = tuple[str, object]
Snapshot = dict[str, Content]
NAMES = st.sampled_from("abcde")


@dataclass
class Server:
    """A lineage of atomic commits to the objects that a watch selects, at versions with gaps."""

    lineage: int
    state: Snapshot
    number: int = 1
    commits: list[tuple[int, int, list[tuple[str, Content | None]]]] = field(default_factory=list)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.snapshots[self.version(self.number)] = dict(self.state)

    def version(self, number: int) -> str:
        return f"l{self.lineage}.{number}"

    @property
    def history(self) -> str:
        return f"h{self.lineage}"

    def commit(self, gap: int, changes: dict[str, Content | None]) -> None:
        # The gap is what others have changed, at versions of their own.
        for _ in range(gap):
            self.number += 1
            self.snapshots[self.version(self.number)] = dict(self.state)
        before = self.number
        effective: list[tuple[str, Content | None]] = []
        self.number += 1
        for name, content in changes.items():
            old = self.state.get(name)
            if old == content:
                continue
            if old is not None and (content is None or content[0] != old[0]):
                effective.append((name, None))
            if content is not None:
                effective.append((name, content))
            self.state = {k: v for k, v in {**self.state, name: content}.items() if v is not None}
        self.commits.append((before, self.number, effective))
        self.snapshots[self.version(self.number)] = dict(self.state)

    def messages(self, after: int) -> list[pb.WatchResponse]:
        """Returns what a watch sends after a version, up to now."""
        messages, known = [], dict(self.snapshots[self.version(after)])
        for before, number, changes in self.commits:
            if number <= after:
                continue
            for index, (name, content) in enumerate(changes):
                version = self.version(number if index == len(changes) - 1 else before)
                of = content or known[name]
                o = obj(name, self.version(number), of[0], of[1])
                old = known.pop(name, None)
                if content is None:
                    messages.append(deleted(version, o))
                    continue
                known[name] = content
                messages.append((modified if old else added)(version, o))
        return [*messages, bookmark(self.version(self.number), self.history)]

    def listing(self) -> list[pb.WatchResponse]:
        version = self.version(self.number)
        objects = [obj(name, version, *content) for name, content in sorted(self.state.items())]
        # The first one alone, as a large object comes.
        return [*map(initial, objects[:1]), *([batch(*objects[1:])] if objects[1:] else []), end(version, self.history)]


contents = st.tuples(st.sampled_from(["u1", "u2"]), st.integers(0, 3))
commits = st.tuples(st.integers(0, 2), st.dictionaries(NAMES, st.none() | contents, min_size=1, max_size=4))
faults = st.sampled_from(["cut", "end", "expire", "restart", "drop", "silence", "contract"])
rounds = st.lists(st.tuples(st.lists(commits, max_size=4), faults, st.integers(0, 12)), min_size=1, max_size=8)


class Client:
    """The core, its handler's view, and the check after each message."""

    def __init__(self) -> None:
        self.core = Core("things", Selection(), None, {}, Options(backoff=0, drain_jitter=0), self.fail)
        self.seen: dict[str, Object] = {}
        self.servers: dict[str, Server] = {}

    @staticmethod
    def fail(report: Exception) -> None:
        raise report

    def receive(self, message: pb.WatchResponse) -> None:
        for event in self.core.receive(message, 0):
            name = event.object.name
            if event.type is EventType.ADDED:
                assert name not in self.seen
            else:
                assert self.seen.pop(name).uid == event.object.uid
            if event.type is not EventType.DELETED:
                self.seen[name] = event.object
        self.check()

    def check(self) -> None:
        store = {o.name: (o.uid, o.body) for o in self.core.store.objects(None)}
        assert {name: (o.uid, o.body) for name, o in self.seen.items()} == store
        if self.core.version:
            server = self.servers[self.core.version.partition(".")[0]]
            assert store == server.snapshots[self.core.version]

    def watch(self, server: Server, fault: str, at: int) -> None:
        """Opens a stream, which a fault ends after some messages."""
        self.servers[f"l{server.lineage}"] = server
        request = self.core.open_stream(0)
        lineage, _, number = request.resource_version.partition(".")
        assert request.history == (request.resource_version and f"h{lineage.removeprefix('l')}")
        if not number:
            messages = server.listing()
        elif lineage != f"l{server.lineage}":
            self.core.close_stream(_error(grpc.StatusCode.OUT_OF_RANGE, "HISTORY_CHANGED"), 0)
            return self.watch(server, fault, at)
        elif fault == "expire":
            self.core.close_stream(_error(grpc.StatusCode.OUT_OF_RANGE, "RESOURCE_VERSION_EXPIRED"), 0)
            return self.watch(server, "end", at)
        else:
            messages = server.messages(int(number))
        for message in messages if fault == "end" else messages[:at]:
            self.receive(message)
        error = None
        if fault == "drop" and number and self.core.version:
            self.receive(dropped(server.version(server.number), self.core.version))
        elif fault == "contract":
            self.receive(pb.WatchResponse())
        elif fault == "silence":
            self.core.expire(1e9)
        elif fault == "cut":
            error = Error(grpc.StatusCode.UNAVAILABLE, "broken")
        assert not self.core.close_stream(error, 0).failed
        self.check()
        return None


def _error(code: grpc.StatusCode, reason: str) -> Error:
    return error_of_status(status(code, reason))


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, contents), rounds)
def test_the_store_is_the_servers_state_at_its_version(
    first: Snapshot, history: list[tuple[list[tuple[int, dict[str, Content | None]]], str, int]]
) -> None:
    server, client = Server(0, first), Client()
    for changes, fault, at in history:
        for gap, change in changes:
            server.commit(gap, change)
        if fault == "restart":
            server = Server(server.lineage + 1, dict(server.state))
        client.watch(server, fault, at)
    client.watch(server, "end", 0)
    store = {o.name: (o.uid, o.body) for o in client.core.store.objects(None)}
    assert store == server.state
    assert client.core.version == server.version(server.number)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.binary(max_size=40) | st.builds(lambda b, k: bytes([8, k]) + b, st.binary(max_size=30), st.integers(0, 7)),
        max_size=20,
    )
)
def test_no_message_raises_an_exception(messages: list[bytes]) -> None:
    core = Core("things", Selection(), None, {"x": lambda o: [o.name]}, Options(), print)
    core.open_stream(0)
    for raw in messages:
        try:
            message = pb.WatchResponse.FromString(raw)
        except DecodeError:
            continue
        core.receive(message, 0)
        if core.ending is not None:
            core.close_stream(None, 0)
            if core.error is not None:
                return
            core.open_stream(0)
