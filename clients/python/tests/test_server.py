"""Both informers and both clients against the real server, the program that INFORMERD names."""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from forms import CLIENTS, AioInformer, AnyInformer, Log
from real import BINARY, Real

import informerd
import informerd.aio
from informerd import (
    Client,
    Credentials,
    Error,
    Index,
    NotFoundError,
    Options,
    Policy,
    Selection,
    Shard,
    SourceState,
    State,
    View,
)

FAST = Options(bookmark_interval=0.3, connect_timeout=1, first_message_timeout=10, backoff=0.05, max_backoff=0.2)
FORMS = [pytest.param(informerd.Informer, id="threads"), pytest.param(AioInformer, id="asyncio")]


@pytest.fixture(autouse=True)
def binary() -> None:
    if not BINARY:
        pytest.fail("INFORMERD does not name the server's program")


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Real]:
    with Real(tmp_path) as server:
        for name, app in (("a", "web"), ("b", "web"), ("c", "db")):
            server.put(name, app, n=1)
        server.start()
        server.wait(server.address)
        yield server


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition that another process makes true."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@pytest.mark.parametrize("client_form", CLIENTS)
def test_calls(client_form: Any, server: Real) -> None:
    with client_form(server.address) as client:
        listed = client.list("things")
        assert [o.name for o in listed.objects] == ["a", "b", "c"]
        assert listed.objects[0].body["spec"] == {"n": 1}
        assert listed.source is SourceState.SYNCED
        assert listed.history
        assert listed.source_seen_at is not None
        assert len(client.list("things", Selection(label_selector="app=web")).objects) == 2
        assert len(client.list("things", Selection(index=Index("app", ["web", "db"]))).objects) == 3
        viewed = client.list("things", Selection("ns", expression="object.metadata.name == 'a'"), view=View(["spec.n"]))
        assert [o.body for o in viewed.objects] == [{"spec": {"n": 1}}]
        shards = [client.list("things", Selection(shard=Shard(n, 3, "key"))).objects for n in range(3)]
        assert sorted(o.name for part in shards for o in part) == ["a", "b", "c"]

        page = client.list("things", page_size=2)
        rest = client.list("things", page_size=2, page_token=page.next_page_token)
        assert [o.name for o in (*page.objects, *rest.objects)] == ["a", "b", "c"]
        assert rest.next_page_token == ""

        assert [o.name for o in client.by_index("things", "app", "web").objects] == ["a", "b"]
        assert [o.name for o in client.by_index("things", "app", like=("ns", "b")).objects] == ["a", "b"]
        got = client.get("things", "c", "ns", min_version=listed.version)
        assert got.object.labels == {"app": "db"}
        assert got.version == listed.version

        met = client.until("things", [lambda e: e.count == 3, lambda e: e.object is None])
        assert (met.type, met.object, met.count, met.version) == ("SYNCED", None, 3, listed.version)
        met = client.until("things", selection=Selection(name="b", expression="object.spec.n == 1"))
        assert (met.type, met.object.name) == ("ADDED", "b")

        resources = client.resources()
        assert [r.name for r in resources.resources] == ["others", "things"]
        assert resources.resources[1].indexes == ("app", "namespace")
        assert resources.resources[1].objects == 3
        assert "shards" in resources.capabilities

        with pytest.raises(NotFoundError, match="OBJECT_NOT_FOUND"):
            client.get("things", "nope", "ns")
        with pytest.raises(NotFoundError, match="RESOURCE_NOT_FOUND"):
            client.list("thingz")
        with pytest.raises(Error, match="INDEX_NOT_FOUND") as caught:
            client.by_index("things", "nope", "x")
        assert caught.value.metadata["known"] == "app,namespace"
        with pytest.raises(Error, match=r"conditions were not met within 0\.2 s \(DEADLINE_EXCEEDED\)"):
            client.until("things", lambda e: e.count > 99, timeout=0.2)
        with pytest.raises(Error, match="EXPRESSION_INVALID"):
            client.until("things", selection=Selection(expression="count > 99"))
        with pytest.raises(KeyError, match="nope"):
            client.until("things", lambda e: e.object.body["nope"])
        with pytest.raises(TypeError, match=r"Selection\.expression"):
            client.until("things", "count > 99")
        assert [o.name for o in client.list("things", Selection(name="a")).objects] == ["a"]


@pytest.mark.parametrize("client_form", CLIENTS)
def test_calls_to_nobody(client_form: Any) -> None:
    with client_form("127.0.0.1:1") as client, pytest.raises(Error, match=r"127\.0\.0\.1:1") as caught:
        client.resources()
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("policy", [None, Policy.DROP, Policy.COALESCE])
def test_changes_restarts_and_a_list_again(form: Any, server: Real, policy: Policy | None) -> None:
    log = Log()
    options = Options(
        bookmark_interval=0.3, connect_timeout=1, backoff=0.05, max_backoff=0.2, policy=policy, queue_length=4
    )
    informer: AnyInformer = form(
        server.address, "things", Selection("ns"), indexers={"app": lambda o: o.labels["app"]}, options=options
    )
    informer.add_handler(**log.handler)
    with informer:
        informer.wait_synced(30)
        log.wait_for("+a", "+b", "+c")
        assert [o.name for o in informer.by_index("app", "web")] == ["a", "b"]
        server.put("a", "web", n=2)
        server.put("d", "db", n=1)
        server.delete("b")
        log.wait_for("~a", "+d", "-b DELETED")
        for number in range(3, 60):
            server.put("a", "web", n=number)
        last = informer.get

        def newest() -> bool:
            a = last("a", "ns")
            return a is not None and a.body["spec"]["n"] == 59

        until(newest, "the last of many changes")
        until(informer.healthy, "healthy after many changes")

        for number in (signal.SIGKILL, signal.SIGTERM):
            server.end(number)
            until(lambda: not informer.healthy(), "unhealthy without a server")
            log.calls.clear()
            server.put("c", "db", n=f"at {number}")
            server.start()
            log.wait_for("~c")
            assert log.calls == ["~c"], "only the difference, though every version is another one"
            until(informer.healthy, "healthy again")
        with Client(server.address) as client:
            listed = client.list("things")
        informer.read_after(listed.version, 30)
        assert [(o.name, o.raw) for o in informer.list()] == [(o.name, o.raw) for o in listed.objects]


def test_a_server_that_stands_still(form: Any, server: Real) -> None:
    with form(server.address, "things", options=FAST) as informer:
        informer.wait_synced(30)
        until(informer.healthy, "healthy")
        server.send(signal.SIGSTOP)
        try:
            until(lambda: informer.freshness().state is State.DISCONNECTED, "disconnected")
        finally:
            server.send(signal.SIGCONT)
        until(informer.healthy, "healthy again")


def test_metadata_only(form: Any, server: Real) -> None:
    options = Options(metadata_only=True, bookmark_interval=0.3)
    with form(server.address, "things", options=options) as informer:
        informer.wait_synced(30)
        assert [(o.name, o.body) for o in informer.list()] == [("a", None), ("b", None), ("c", None)]


def test_a_socket(form: Any, tmp_path: Path) -> None:
    with Real(tmp_path, unix=True) as server:
        server.put("a")
        server.start()
        server.wait(server.address)
        with form(server.address, "things", options=FAST) as informer:
            informer.wait_synced(30)
            assert len(informer) == 1


def test_an_unknown_resource(form: Any, server: Real) -> None:
    with form(server.address, "thingz", options=FAST) as informer, pytest.raises(NotFoundError, match="thingz"):
        informer.wait_synced(30)


def test_tls_certificates_and_tokens(form: Any, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    certificate = authority.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(tmp_path / "tls.key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    own = authority.issue_cert("client.example", common_name="client.example")
    own.private_key_pem.write_to_path(tmp_path / "client.key")
    own.cert_chain_pems[0].write_to_path(tmp_path / "client.crt")
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.crt")
    (tmp_path / "tokens").write_text(f"{hashlib.sha256(b'secret').hexdigest()} ci team\n")
    (tmp_path / "token").write_text("secret\n")
    rule = {"subjects": ["user:ci"], "verbs": ["*"], "resources": ["*"], "namespaces": ["*"]}
    files = {"cert": "tls.crt", "key": "tls.key", "client_ca": "ca.crt"}
    config: dict[str, Any] = {
        "tls": {key: str(tmp_path / file) for key, file in files.items()},
        "authentication": {"token_file": str(tmp_path / "tokens"), "client_certificates": True},
        "authorization": {"rules": [rule]},
    }
    tls: dict[str, Any] = {
        "ca_file": tmp_path / "ca.crt",
        "client_certificate_file": tmp_path / "client.crt",
        "client_key_file": tmp_path / "client.key",
    }
    with_token = Credentials(**tls, token_file=tmp_path / "token")
    with Real(tmp_path, **config) as server:
        server.put("a")
        server.start()
        target = server.address.replace("127.0.0.1", "localhost")
        server.wait(target, with_token)
        with form(f"https://{target}", "things", credentials=with_token, options=FAST) as informer:
            informer.wait_synced(30)
            assert len(informer) == 1
        with form(target, "things", credentials=Credentials(**tls), options=FAST) as informer:
            with pytest.raises(Error, match="ACCESS_DENIED"):
                informer.wait_synced(30)
        (tmp_path / "token").write_text("wrong")
        with form(target, "things", credentials=with_token, options=FAST) as informer:
            with pytest.raises(Error, match="CREDENTIALS_INVALID"):
                informer.wait_synced(30)
        # Nobody that this client trusts; then not TLS.
        tls["ca_file"] = tmp_path / "other.crt"
        for address, credentials in ((target, Credentials(**tls)), (f"http://{target}", Credentials())):
            log = Log()
            with form(address, "things", credentials=credentials, options=FAST, on_error=log.report) as informer:
                with pytest.raises(TimeoutError, match="waiting for the first sync"):
                    informer.wait_synced(1.5)
                assert informer.error is None
            assert any("UNAVAILABLE" in call for call in log.calls), log.calls
