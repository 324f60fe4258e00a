"""Both informers against a scripted server: threads, tasks, handlers, iterators, connections."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from forms import AioInformer, AnyInformer, Log
from messages import added, bookmark, deleted, end, error, initial, modified, obj, status
from scripted import Scripted

import informerd
from informerd import Credentials, Error, EventType, Options, Selection, Shard, State, View

FAST = Options(
    bookmark_interval=0.5,
    connect_timeout=0.5,
    first_message_timeout=2,
    backoff=0.02,
    max_backoff=0.1,
    drain_jitter=0.05,
)
FORMS = [pytest.param(informerd.Informer, id="threads"), pytest.param(AioInformer, id="asyncio")]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted() as server:
        yield server


class Case:
    """An informer, its log and the server."""

    def __init__(self, form: Any, target: str, **more: Any) -> None:
        self.log = Log()
        more.setdefault("options", FAST)
        self.informer: AnyInformer = form(
            target,
            "things",
            Selection("ns"),
            indexers={"app": lambda o: o.labels.get("app", ())},
            on_error=self.log.report,
            **more,
        )
        self.informer.add_handler(**self.log.handler)


def test_a_store_follows_across_streams(form: Any, server: Scripted) -> None:
    case = Case(form, server.address)
    assert case.informer.freshness().state is State.SYNCING
    with case.informer as informer:
        first = server.stream().send(initial(obj("a", app="x")), initial(obj("b", app="y")), end("5", seen=7))
        informer.wait_synced(20)
        assert first.request.namespace == "ns"
        assert str(first.metadata["user-agent"]).startswith("informerd-python/")
        assert [o.name for o in informer.list()] == ["a", "b"]
        assert [o.name for o in informer.list("other")] == []
        assert [o.name for o in informer.by_index("app", "y")] == ["b"]
        assert informer.freshness().state is State.LIVE
        assert informer.healthy()
        case.log.wait_for("+a", "+b")

        first.send(modified("6", obj("a", "6", body=1)), deleted("7", obj("b", "7")))
        informer.read_after("7", 20)
        assert informer.get("b", "ns") is None
        changed = informer.get("a", "ns")
        assert changed is not None
        assert changed.body == 1
        case.log.wait_for("~a", "-b DELETED")

        first.send(None)
        second = server.stream()
        assert (second.request.resource_version, second.request.history) == ("7", "h1")
        assert second.peer == first.peer, "the stream ended in order, the connection is kept"
        second.send(bookmark("7"), status(grpc.StatusCode.OUT_OF_RANGE, "RESOURCE_VERSION_EXPIRED"))
        third = server.stream()
        assert third.request.resource_version == ""
        third.send(initial(obj("a", "1", body=1)), initial(obj("c", "1")), end("l.1"))
        case.log.wait_for("+c")
        informer.read_after("l.1", 20)
        assert case.log.calls.count("~a") == 1
        assert [o.name for o in informer.list()] == ["a", "c"]
        with pytest.raises(ValueError, match="another lineage"):
            informer.read_after("8", 1)
        with pytest.raises(ValueError, match="invalid version"):
            informer.read_after("nonsense", 1)
        with pytest.raises(TimeoutError, match=r"waiting for version l\.9"):
            informer.read_after("l.9", 0.01)
        assert len(informer) == 2
    assert informer.freshness().state is State.DISCONNECTED


def test_draining_moves_to_another_connection(form: Any, server: Scripted) -> None:
    with Case(form, server.address).informer as informer:
        first = server.stream().send(end("5"))
        informer.wait_synced(20)
        first.send(bookmark("6", draining=True))
        second = server.stream()
        assert second.request.resource_version == "6"
        assert second.peer != first.peer
        second.send(bookmark("6"), error(grpc.StatusCode.UNAVAILABLE, "DRAINING", "6"))
        assert server.stream().peer not in (first.peer, second.peer)


def test_silence_leads_to_another_connection(form: Any, server: Scripted) -> None:
    # The first message may take 30 s, longer than this test waits for the second stream.
    case = Case(form, server.address, options=Options(bookmark_interval=0.2))
    with case.informer as informer:
        first = server.stream().send(initial(obj("a")), end("5"))
        informer.wait_synced(20)
        second = server.stream()
        assert not informer.healthy()
        assert second.request.resource_version == "5"
        assert second.peer != first.peer
        case.log.wait_for("Error: the server sent no message in time: reconnecting (UNAVAILABLE)")
        second.send(added("6", obj("b")), bookmark("6"))
        informer.read_after("6", 20)
        assert [o.name for o in informer.list()] == ["a", "b"]


def test_silence_of_a_stream_that_resumes(form: Any, server: Scripted) -> None:
    with Case(form, server.address).informer as informer:
        server.stream().send(end("5"), None)
        second = server.stream()
        third = server.stream()
        assert third.peer != second.peer
        assert third.request.resource_version == "5"
        third.send(bookmark("6"))
        informer.read_after("6", 20)


def test_a_server_that_accepts_and_never_answers(form: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        case = Case(form, f"127.0.0.1:{listener.getsockname()[1]}")
        with case.informer as informer:
            for _ in range(3):
                connection, _ = listener.accept()
                connection.settimeout(20)
                while connection.recv(4096):
                    pass  # until the client gives up
                connection.close()
            with pytest.raises(TimeoutError, match="waiting for the first sync"):
                informer.wait_synced(0.01)


def test_a_timeout_has_the_reason_and_the_log_the_failures(form: Any, caplog: pytest.LogCaptureFixture) -> None:
    options = Options(backoff=60, max_backoff=60, connect_timeout=0.5)
    with form("127.0.0.1:1", "things", options=options) as informer:
        with pytest.raises(TimeoutError, match=r"the last failure: .*127\.0\.0\.1:1"):
            informer.wait_synced(2)
    assert "watch failed resource=things target=127.0.0.1:1 error=" in caplog.text


def test_giving_up(form: Any, server: Scripted) -> None:
    case = Case(form, server.address)
    with case.informer as informer:
        server.stream().send(status(grpc.StatusCode.PERMISSION_DENIED, "ACCESS_DENIED"))
        with pytest.raises(Error) as caught:
            informer.wait_synced(20)
        assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ACCESS_DENIED")
        assert str(caught.value) == "the server's text for ACCESS_DENIED (PERMISSION_DENIED / ACCESS_DENIED)"
        assert caught.value.metadata == {"detail": "x"}
        with pytest.raises(Error):
            list(informer.events())
        with pytest.raises(Error):
            informer.read_after("5", 20)
        assert informer.error is caught.value
        assert not informer.healthy()


@pytest.mark.parametrize(
    ("selection", "view", "has"),
    [(Selection(shard=Shard(0, 2)), None, "views"), (Selection(), View(fields=["spec"]), "shards")],
)
def test_a_server_that_would_ignore_a_part_of_the_request(
    form: Any, server: Scripted, selection: Selection, view: View | None, has: str
) -> None:
    server.capabilities = (has,)
    with form(server.address, "things", selection, view, options=FAST) as informer:
        with pytest.raises(Error) as caught:
            informer.wait_synced(10)
        assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.UNIMPLEMENTED, "NOT_IMPLEMENTED")
        missing = "views" if has == "shards" else "shards"
        assert f"informerd at {server.address} (version 0.1.0) has no {missing}" in str(caught.value)
    server.capabilities = ("shards", "views")
    with form(server.address, "things", selection, view, options=FAST) as informer:
        stream = server.stream().send(end("10"))
        informer.wait_synced(10)
        # The next server may be an older one.
        server.capabilities = ()
        stream.send(status(grpc.StatusCode.UNAVAILABLE, "DRAINING"))
        with pytest.raises(Error) as caught:
            informer.read_after("11", 10)
        assert caught.value.reason == "NOT_IMPLEMENTED"


def test_a_server_that_is_silent_before_the_watch(form: Any, server: Scripted) -> None:
    server.answers.clear()
    case = Case(form, server.address, view=View(fields=["spec"]), options=replace(FAST, first_message_timeout=0.3))
    with case.informer as informer:
        silent = "Error: the server sent no message in time: reconnecting (UNAVAILABLE)"
        case.log.wait_for(silent)
        # And before the next one, whose deadline is another one.
        case.log.calls.clear()
        case.log.wait_for(silent)
        server.answers.set()
        server.stream().send(end("10"))
        informer.wait_synced(10)


def test_a_stream_that_begins_while_the_informer_stops_ends(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    informer = informerd.Informer(server.address, "things", options=Options())
    open_stream = informer._core.open_stream

    def stopping(now: float) -> Any:
        # As `stop`, which finds no call to cancel.
        informer._stopping = True
        return open_stream(now)

    monkeypatch.setattr(informer._core, "open_stream", stopping)
    informer.start()
    try:
        informer._threads[0].join(10)
        assert not informer._threads[0].is_alive()
    finally:
        informer.stop()


def test_an_answer_without_the_capabilities_has_none(server: Scripted) -> None:
    server.answers_nothing = True
    with informerd.Informer(server.address, "things", view=View(fields=["spec"]), options=FAST) as informer:
        with pytest.raises(Error) as caught:
            informer.wait_synced(10)
        assert caught.value.reason == "NOT_IMPLEMENTED"


def test_handlers_that_fail_and_lag(form: Any, server: Scripted) -> None:
    case = Case(form, server.address, options=Options(lag_limit=3))
    release = threading.Event()

    def fails(o: informerd.Object) -> None:
        if o.name == "a":
            raise RuntimeError("on purpose")
        if o.name == "b":
            release.wait(20)

    case.informer.add_handler(added=fails)
    with case.informer as informer:
        stream = server.stream().send(initial(obj("a")), end("5"))
        case.log.wait_for("+a", "HandlerError: a handler failed on ADDED of 'ns/a'")
        if form is AioInformer:
            release.set()  # A function that blocks would block the loop.
        for number, name in enumerate("bcdefghij", 6):
            stream.send(added(str(number), obj(name)))
        informer.read_after("14", 20)
        assert len(informer) == 10, "the store does not wait for handlers"
        release.set()
        case.log.wait_for("+j")
        lags = [call for call in case.log.calls if call.startswith("HandlerLag")]
        assert len(lags) == (0 if form is AioInformer else 1)


def test_handlers_that_exit_or_are_cancelled(form: Any, server: Scripted) -> None:
    case = Case(form, server.address)

    def exits(o: informerd.Object) -> None:
        if o.name == "a":
            raise SystemExit

    async def awaits_what_is_cancelled(o: informerd.Object) -> None:
        if o.name == "a":
            never = asyncio.get_running_loop().create_future()
            never.cancel()
            await never

    # asyncio itself ends the loop on SystemExit, and Python 3.10 cannot tell who has been cancelled.
    if form is AioInformer and sys.version_info < (3, 11):
        pytest.skip("Python 3.10")
    case.informer.add_handler(added=awaits_what_is_cancelled if form is AioInformer else exits)
    with case.informer:
        server.stream().send(initial(obj("a")), end("5"), added("6", obj("b")))
        case.log.wait_for("+a", "HandlerError: a handler failed on ADDED of 'ns/a'", "+b")


def test_a_handler_added_later_gets_what_is_there(form: Any, server: Scripted) -> None:
    with Case(form, server.address).informer as informer:
        stream = server.stream().send(initial(obj("a")), initial(obj("b")), end("5"))
        informer.wait_synced(20)
        late = Log()
        informer.add_handler(**late.handler)
        stream.send(added("6", obj("c")))
        late.wait_for("+c")
        assert late.calls == ["+a", "+b", "+c"]


def test_no_handler_is_called_after_stop(form: Any, server: Scripted) -> None:
    case = Case(form, server.address)
    begun, calls = threading.Event(), []

    def slow(o: informerd.Object) -> None:
        calls.append(o.name)
        begun.set()
        if form is not AioInformer:
            stopping.wait(20)

    stopping = threading.Event()
    case.informer.add_handler(added=slow)
    with case.informer as informer:
        server.stream().send(*(initial(obj(str(n))) for n in range(100)), end("5"))
        assert begun.wait(20)
        threading.Timer(0.05, stopping.set).start()
        informer.stop()
        count = len(calls)
        informer.stop()
        assert len(calls) == count
        if form is not AioInformer:
            assert count == 1
        with pytest.raises(RuntimeError, match="stopped"):
            informer.read_after("9", 20)
        with pytest.raises(RuntimeError, match="started before"):
            informer.start()


def test_a_handler_may_stop_the_informer(server: Scripted) -> None:
    case = Case(informerd.Informer, server.address)
    case.informer.add_handler(added=lambda _: case.informer.stop())
    with case.informer:
        server.stream().send(*(initial(obj(str(n))) for n in range(100)), end("5"))
        case.log.wait_for("+0")
    assert case.log.calls == ["+0"]


def test_events_begin_with_what_is_there(form: Any, server: Scripted) -> None:
    with Case(form, server.address).informer as informer:
        stream = server.stream().send(initial(obj("a")), end("5"))
        informer.wait_synced(20)
        events = informer.events()
        assert next(events).object.name == "a"
        stream.send(modified("6", obj("a", body=2)), deleted("7", obj("a", body=2)))
        updated, gone = next(events), next(events)
        assert updated.type is EventType.UPDATED
        assert updated.old is not None
        assert updated.old.body == {"of": "a"}
        assert gone.type is EventType.DELETED
        assert gone.cause is informerd.Cause.DELETED
        threading.Timer(0.05, informer.stop).start()
        assert next(events, None) is None


def test_a_token_is_read_at_each_call(form: Any, server: Scripted, tmp_path: Path) -> None:
    token = tmp_path / "token"
    case = Case(form, server.address, credentials=Credentials(token_file=token))
    with case.informer as informer:
        case.log.wait_for(
            f"Error: cannot watch: [Errno 2] No such file or directory: '{token}' (UNKNOWN)",
        )
        token.write_text("first\n")
        stream = server.stream().send(end("5"))
        informer.wait_synced(20)
        assert stream.metadata["authorization"] == "Bearer first"
        token.write_text("second")
        stream.send(status(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIALS_EXPIRED"))
        stream = server.stream()
        assert stream.metadata["authorization"] == "Bearer second"
        assert stream.request.resource_version == "5"
        stream.send(status(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIALS_EXPIRED"))
        with pytest.raises(Error, match="CREDENTIALS_EXPIRED"):
            informer.read_after("9", 20)


def test_a_bug_of_the_informer_does_not_silence_it(
    form: Any, server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(form, server.address)
    with case.informer as informer:
        stream = server.stream().send(end("5"))
        informer.wait_synced(20)
        with monkeypatch.context() as patch:

            def raises(*_: object) -> None:
                raise RuntimeError("a bug")

            patch.setattr("informerd._core.object_of", raises)
            stream.send(added("6", obj("a")))
            case.log.wait_for("Error: cannot watch: a bug (UNKNOWN)")
        again = server.stream()
        assert again.request.resource_version == "", "what was applied is not known"
        again.send(initial(obj("a")), end("6"))
        informer.read_after("6", 20)


def test_a_program_that_does_not_stop_it_ends(server: Scripted) -> None:
    program = f"""
import informerd
informer = informerd.Informer({server.address!r}, "things")
informer.start()
informer.wait_synced(20)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    server.stream().send(end("5"))
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, b"")
