"""`until` of both clients: what ends a stream does not end the wait."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from forms import CLIENTS, Log
from messages import added, deleted, end, error, initial, modified, obj, status
from real import BINARY, Real
from scripted import Scripted

import informerd
from informerd import Error, Selection, Shard, UntilEvent, View
from informerd.v1 import informerd_pb2 as pb


@pytest.fixture(params=CLIENTS)
def client_form(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted() as server:
        yield server


class Wait:
    """A wait for events, each written as the log has it, one after the other; the log has what was tested."""

    def __init__(self, client: Any, *events: str, **more: Any) -> None:
        self.log = Log()

        def condition(wanted: str) -> Any:
            def is_met(event: UntilEvent) -> bool:
                shown = event.type
                if event.object is not None:
                    spec = event.object.body.get("spec", event.object.body)
                    shown += f" {event.object.name}={spec['n']}"
                shown += f" {event.count}" + (f" {event.cause.name}" if event.cause else "")
                self.log.note(shown)
                return shown.startswith(wanted)

            return is_met

        more.setdefault("timeout", 25)
        self._pool = ThreadPoolExecutor(1)
        self._result: Future[UntilEvent] = self._pool.submit(
            lambda: client.until("things", [condition(event) for event in events], **more)
        )

    def result(self) -> UntilEvent:
        try:
            return self._result.result(30)
        finally:
            self._pool.shutdown()


def thing(name: str, n: int, version: str = "", uid: str = "u1") -> pb.Object:
    return obj(name, version, uid, {"n": n})


@pytest.mark.parametrize(
    "ended",
    [
        None,
        status(grpc.StatusCode.UNAVAILABLE, ""),
        status(grpc.StatusCode.UNAVAILABLE, "DRAINING"),
        error(grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_CONSUMER", "10"),
    ],
)
def test_a_stream_that_ends(client_form: Any, server: Scripted, ended: Any) -> None:
    with client_form(server.address) as client:
        wait = Wait(client, "ADDED a=1", "DELETED a", selection=Selection("ns", expression="object.n > 0"))
        stream = server.stream()
        assert stream.request.expression == "object.n > 0"
        stream.send(initial(thing("a", 1)), end("10"), ended)
        # The first condition stays met, and what happened between the streams is an event.
        stream = server.stream()
        assert (stream.request.resource_version, stream.request.history) == ("10", "h1")
        stream.send(modified("11", thing("a", 2, "11")), deleted("12", thing("a", 2, "12")))
        met = wait.result()
        assert (met.type, met.version) == ("DELETED", "12")
        assert wait.log.calls == ["ADDED a=1 1", "ADDED a=1 1", "SYNCED 1", "MODIFIED a=2 1", "DELETED a=2 0 DELETED"]


def test_an_expired_version(client_form: Any, server: Scripted) -> None:
    with client_form(server.address) as client:
        wait = Wait(client, "MODIFIED b=3", "DELETED a")
        server.stream().send(
            initial(thing("a", 1)),
            initial(thing("b", 2, uid="u2")),
            end("10"),
            error(grpc.StatusCode.OUT_OF_RANGE, "RESOURCE_VERSION_EXPIRED"),
        )
        stream = server.stream()
        assert stream.request.resource_version == ""
        stream.send(initial(thing("b", 3, uid="u2")), end("x.1"), status(grpc.StatusCode.OUT_OF_RANGE, ""))
        server.stream().send(initial(thing("b", 3, uid="u2")), initial(thing("a", 4, uid="u3")), end("x.2"))
        wait.log.wait_for("ADDED a=4 2")
        assert wait.log.calls[3:5] == ["DELETED a=1 1 INFERRED", "MODIFIED b=3 1"]
        client.close()
        with pytest.raises(Error, match="has been closed"):
            wait.result()


def test_a_deletion_that_a_new_list_shows(client_form: Any, server: Scripted) -> None:
    with client_form(server.address) as client:
        wait = Wait(client, "DELETED a=1 0 INFERRED")
        server.stream().send(initial(thing("a", 1)), end("10"), status(grpc.StatusCode.OUT_OF_RANGE, ""))
        server.stream().send(end("x.1"))
        assert wait.result().version == "x.1"


def test_what_can_no_longer_be_served_counts(client_form: Any, server: Scripted) -> None:
    with client_form(server.address) as client:
        wait = Wait(client, "DELETED")
        server.stream().send(
            end("10"),
            added("11", thing("a", 1, "11")),
            deleted("12", thing("a", 1, "12"), cause=pb.CAUSE_NOT_SERVED),
            added("13", thing("b", 2, "13", "u2")),
            added("14", thing("a", 3, "14")),
            deleted("15", thing("b", 2, "15", "u2"), cause=pb.CAUSE_LEFT_SELECTION),
        )
        assert wait.result().count == 1
        assert wait.log.calls == [
            "SYNCED 0",
            "ADDED a=1 1",
            "ADDED b=2 2",
            "ADDED a=3 2",
            "DELETED b=2 1 LEFT_SELECTION",
        ]


def test_its_own_ends(client_form: Any, server: Scripted) -> None:
    with client_form(server.address) as client:
        for code, reason in ((grpc.StatusCode.PERMISSION_DENIED, "ACCESS_DENIED"), (grpc.StatusCode.NOT_FOUND, "X")):
            wait = Wait(client, "never")
            server.stream().send(status(code, reason))
            with pytest.raises(Error, match=reason) as caught:
                wait.result()
            assert caught.value.code is code
        wait = Wait(client, "never", timeout=0.5)
        server.stream().send(status(grpc.StatusCode.UNAVAILABLE, "NOT_SYNCED"))
        with pytest.raises(Error, match=r"not met within 0\.5 s .*NOT_SYNCED.*DEADLINE_EXCEEDED"):
            wait.result()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Real]:
    assert BINARY, "INFORMERD does not name the server's program"
    with Real(tmp_path) as server:
        server.put("a", n=1)
        server.start()
        server.wait(server.address)
        yield server


def test_a_server_that_is_restarted(client_form: Any, real: Real) -> None:
    with client_form(real.address) as client:
        wait = Wait(client, "ADDED a=1", "MODIFIED a=2", "MODIFIED a=3", "DELETED a=3", selection=Selection(name="a"))
        wait.log.wait_for("ADDED a=1 1")
        # The new server has another lineage: the version of the wait has expired.
        for n, number in ((2, signal.SIGTERM), (3, signal.SIGKILL)):
            real.end(number)
            real.put("a", n=n)
            real.start()
            wait.log.wait_for(f"MODIFIED a={n} 1")
        real.end()
        real.delete("a")
        real.start()
        assert wait.result().type == "DELETED"


class IdleProxy:
    """A proxy that ends a connection on which nothing has come from the server for 0.2 s."""

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.log = Log()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            for number in range(1, 1000):
                client, _ = self._listener.accept()
                self.log.note(f"connection {number}")
                server = socket.create_connection(self._target)
                server.settimeout(0.2)
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, client), daemon=True).start()

    @staticmethod
    def _forward(from_: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := from_.recv(1 << 16):
                to.sendall(data)
        for side in (from_, to):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def test_a_proxy_that_ends_idle_connections(client_form: Any, real: Real) -> None:
    with contextlib.closing(IdleProxy(real.address)) as proxy, client_form(proxy.address) as client:
        wait = Wait(client, "ADDED a=1", "MODIFIED a=2", "DELETED a=2")
        proxy.log.wait_for("connection 4")
        real.put("a", n=2)
        wait.log.wait_for("MODIFIED a=2 1")
        proxy.log.wait_for(f"connection {len(proxy.log.calls) + 3}")
        real.delete("a")
        assert wait.result().type == "DELETED"


def test_a_plain_call_to_a_server_that_would_ignore_a_part_of_it(client_form: Any, server: Scripted) -> None:
    server.capabilities = ()
    selection, view = Selection(shard=Shard(0, 2)), View(fields=["spec"])
    with client_form(server.address) as client:
        calls: list[tuple[Callable[[], object], str]] = [
            (lambda: client.list("things", selection), "shards"),
            (lambda: client.list("things", view=view), "views"),
            (lambda: client.by_index("things", "app", "web", selection), "shards"),
            (lambda: client.get("things", "a", view=view), "views"),
            (lambda: client.until("things", selection=selection, timeout=10), "shards"),
        ]
        for call, missing in calls:
            with pytest.raises(Error) as caught:
                call()
            assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.UNIMPLEMENTED, "NOT_IMPLEMENTED")
            assert f"has no {missing}" in str(caught.value)


def test_a_wait_ends_at_its_timeout_also_while_events_wait(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock, tested = Clock(), []
    monkeypatch.setattr(informerd._until, "time", clock)
    with informerd.Client(server.address) as client:

        def is_met(event: UntilEvent) -> bool:
            tested.append(event)
            (batches,) = client._waits
            # All of the others wait now.
            while not clock.now and batches.qsize() < 10:
                threading.Event().wait(0.001)
            clock.now = 60.0
            return False

        feeding = ThreadPoolExecutor(1)
        changes = [modified(f"{n}", thing("a", n, f"{n}")) for n in range(11, 21)]
        fed = feeding.submit(lambda: server.stream().send(initial(thing("a", 1)), end("10"), *changes))
        with pytest.raises(Error) as caught:
            client.until("things", is_met, timeout=30)
        fed.result(10)
        feeding.shutdown()
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert [event.type for event in tested] == ["ADDED", "SYNCED"]


def test_the_check_of_the_server_and_the_call_have_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    now, timeouts = [0.0], []

    def check(_: object, timeout: float, metadata: object) -> pb.ListResourcesResponse:
        now[0] = 20.0
        return pb.ListResourcesResponse(server=pb.ServerInfo(capabilities=["views"]))

    def listed(_: object, timeout: float, metadata: object) -> list[pb.ListResponse]:
        timeouts.append(timeout)
        return [pb.ListResponse(resource_version="1")]

    def got(_: object, timeout: float, metadata: object) -> pb.GetResponse:
        timeouts.append(timeout)
        return pb.GetResponse(object=obj("a"))

    class Channel:
        def unary_unary(self, method: str, *_: object) -> Any:
            return check if method.endswith("ListResources") else got

        def unary_stream(self, *_: object) -> Any:
            return listed

    class Clock:
        def monotonic(self) -> float:
            return now[0]

    monkeypatch.setattr(informerd._client, "time", Clock())
    with informerd.Client("127.0.0.1:1") as client:
        with monkeypatch.context() as patch:
            patch.setattr(client, "_channel", Channel())
            client.list("things", view=View(fields=["spec"]), timeout=30)
            now[0] = 0.0
            client.get("things", "a", view=View(fields=["spec"]), timeout=30)
    assert timeouts == [10.0, 10.0]
