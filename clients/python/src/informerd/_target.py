"""Address of a server: its connection, TLS and tokens."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import grpc

from informerd._options import Credentials
from informerd._version import __version__

MAX_MESSAGE_BYTES = 64 << 20
# A header of HTTP/2 has at most 16 KiB.
MAX_TOKEN_BYTES = 8 << 10
MAX_PEM_BYTES = 1 << 20
_EXAMPLES = "examples: 127.0.0.1:50051, https://informerd.example:50051, unix:/run/informerd.sock"

ChannelOptions = Sequence[tuple[str, int | str]]


@dataclass(frozen=True)
class Target:
    """An address, and the credentials for it."""

    name: str
    """As gRPC takes it."""
    tls: bool
    loopback: bool
    credentials: Credentials

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Returns the TLS of a new connection; None for plain text. Raises OSError for files that cannot be read."""
        if not self.tls:
            return None
        given = self.credentials
        return grpc.ssl_channel_credentials(
            _pem(given.ca_file), _pem(given.client_key_file), _pem(given.client_certificate_file)
        )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the headers of a call. Raises OSError or ValueError, without the token, for a token file in error."""
        path = self.credentials.token_file
        if path is None:
            return ()
        token = _read(path, MAX_TOKEN_BYTES).strip()
        if not re.fullmatch(rb"[!-~]+", token):
            raise ValueError(f"token file {path}: {'characters that no header may have' if token else 'it is empty'}")
        return (("authorization", f"Bearer {token.decode()}"),)

    def channel_options(self, connect_timeout: float, *, retries: bool) -> ChannelOptions:
        """Returns gRPC's options of a channel."""
        options: list[tuple[str, int | str]] = [
            ("grpc.primary_user_agent", f"informerd-python/{__version__}"),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.keepalive_time_ms", 15_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            # Otherwise another channel of this process to the same address shares the connection that is to be left.
            ("grpc.use_local_subchannel_pool", 1),
            # gRPC's name for the time that an attempt to connect has.
            ("grpc.min_reconnect_backoff_ms", round(connect_timeout * 1000)),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.enable_retries", int(retries)),
            # Another server after one that drains, where the name has several addresses.
            (
                "grpc.service_config",
                json.dumps({"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": True}}]}),
            ),
        ]
        if self.loopback:
            # No proxy reaches this host's loopback or sockets.
            options.append(("grpc.enable_http_proxy", 0))
        if self.name.startswith("unix:"):
            # gRPC would send the path, which is no host: servers refuse it.
            options.append(("grpc.default_authority", "localhost"))
        if self.credentials.server_name:
            options.append(("grpc.ssl_target_name_override", self.credentials.server_name))
        return options


def parse_target(text: str, credentials: Credentials | None) -> Target:
    """Returns the target.

    Raises ValueError for an address of another form, or one that would send a token in the clear.

    Forms: ``host:port``, ``http://host:port``, ``https://host:port``, ``unix:/path``. TLS: https, or an address without
    a scheme and an authority or a client certificate among the credentials.
    """
    credentials = credentials or Credentials()

    def problem(what: str) -> ValueError:
        return ValueError(f"invalid server address {text.rpartition('@')[2][:80]!r}: {what}; {_EXAMPLES}")

    scheme, separator, rest = text.partition("://")
    if text.startswith("unix:"):
        path = re.sub(r"^unix:(//)?", "", text)
        if not path.startswith("/"):
            raise problem("the path of the socket is not absolute")
        return Target(f"unix:{path}", credentials.tls, True, credentials)
    if not separator:
        scheme, rest = ("https" if credentials.tls else "http"), text
    scheme, authority = scheme.lower(), rest.removesuffix("/")
    if scheme not in ("http", "https"):
        raise problem("the scheme is not http, https or unix")
    match = re.fullmatch(r"(\[[0-9a-fA-F:.%\w]+\]|[^\s:/?#@\[\]]+):(\d{1,5})", authority)
    if not match or not 0 < int(match[2]) < 65536:
        raise problem("it is not HOST:PORT")
    if scheme == "http" and credentials.tls:
        raise problem("ca_file and client certificates need https")
    target = Target(authority, scheme == "https", _is_loopback(match[1].strip("[]")), credentials)
    if credentials.token_file is not None and not target.tls and not target.loopback:
        raise problem("the token would be sent in the clear: use https")
    return target


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _pem(path: str | PathLike[str] | None) -> bytes | None:
    return None if path is None else _read(path, MAX_PEM_BYTES)


def _read(path: str | PathLike[str], limit: int) -> bytes:
    with Path(path).open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{path}: it has more than {limit} bytes")
    return content
