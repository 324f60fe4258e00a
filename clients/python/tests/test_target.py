"""Addresses, tokens and versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from informerd import Credentials, Options, Shard
from informerd._target import parse_target
from informerd._versions import is_before, reaches


@pytest.mark.parametrize(
    ("text", "name", "tls", "loopback"),
    [
        ("127.0.0.1:50051", "127.0.0.1:50051", False, True),
        ("localhost:1", "localhost:1", False, True),
        ("http://[::1]:50051/", "[::1]:50051", False, True),
        ("https://informerd.example:443", "informerd.example:443", True, False),
        ("HTTPS://informerd.example:443", "informerd.example:443", True, False),
        ("informerd:50051", "informerd:50051", False, False),
        ("unix:/run/x.sock", "unix:/run/x.sock", False, True),
        ("unix:///run/x.sock", "unix:/run/x.sock", False, True),
    ],
)
def test_addresses(text: str, name: str, tls: bool, loopback: bool) -> None:
    target = parse_target(text, None)
    assert (target.name, target.tls, target.loopback) == (name, tls, loopback)


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", "host:0", "host:70000", ":1", "ftp://h:1", "http://h:1/x", "http://u:secret@h:1", "unix:x"],
)
def test_addresses_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid server address") as caught:
        parse_target(text, None)
    assert "secret" not in str(caught.value)
    assert "examples: 127.0.0.1:50051" in str(caught.value)


def test_an_authority_means_tls() -> None:
    credentials = Credentials(ca_file="ca.crt")
    assert parse_target("informerd.example:1", credentials).tls
    with pytest.raises(ValueError, match="need https"):
        parse_target("http://informerd.example:1", credentials)
    with pytest.raises(ValueError, match="belong together"):
        Credentials(client_key_file="x")


def test_a_token_is_not_sent_in_the_clear() -> None:
    credentials = Credentials(token_file="/token")
    for text in ("127.0.0.1:1", "unix:/x", "https://h:1", "localhost:1"):
        parse_target(text, credentials)
    for text in ("h:1", "10.0.0.1:1", "http://h:1", "localhost.example:1"):
        with pytest.raises(ValueError, match="sent in the clear"):
            parse_target(text, credentials)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b" \n", "it is empty"), (b"x" * 8193, "more than 8192 bytes"), (b"canary\nb", "characters")],
)
def test_tokens_that_are_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "token").write_bytes(content)
    target = parse_target("127.0.0.1:1", Credentials(token_file=tmp_path / "token"))
    with pytest.raises(ValueError, match=problem) as caught:
        target.metadata()
    assert "canary" not in str(caught.value)


def test_versions() -> None:
    assert reaches("10", "9")
    assert reaches("l.10", "l.10")
    assert not reaches("9", "10")
    assert not reaches("", "10")
    assert is_before("l.9", "l.10")
    assert not is_before("l.9", "m.10")
    assert not is_before("9", "")
    for version, wanted in (
        ("l.1", "m.1"),
        ("1", "l.1"),
        ("1", ""),
        ("1", "-1"),
        ("1", ".1"),
        ("1", "1_0"),
        ("1", "a.b"),
    ):
        with pytest.raises(ValueError, match=r"lineage|invalid version"):
            reaches(version, wanted)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"bookmark_interval is 0\.05; at least 0\.1 s"):
        Options(bookmark_interval=0.05)
    with pytest.raises(ValueError, match="backoff is -1"):
        Options(backoff=-1)
    with pytest.raises(ValueError, match="there is no shard 3 of 3"):
        Shard(3, 3)
