"""Errors of calls, and reports of an informer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from informerd._objects import Event

DOMAIN = "informerd"
_CODES = {code.value[0]: code for code in grpc.StatusCode}
RESUME = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""Codes after which the same call may succeed later."""


class Error(Exception):
    """A call that failed, or an informer that has given up. Its text is one line."""

    code: grpc.StatusCode
    reason: str
    """The server's reason, for example ``OBJECT_NOT_FOUND``; empty when the status is not informerd's own."""
    message: str
    metadata: Mapping[str, str]
    """Details of the reason."""
    retry_after: float | None
    """The seconds that the server requests to wait before the next attempt."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = " ".join(message.split())
        self.reason = reason
        self.metadata = metadata or {}
        self.retry_after = retry_after

    @property
    def is_answer(self) -> bool:
        """True for a status of the server: those of libraries, proxies and the network lack a reason and this code."""
        return bool(self.reason) or self.code is grpc.StatusCode.OUT_OF_RANGE

    def __str__(self) -> str:
        return f"{self.message} ({self.code.name}{' / ' + self.reason if self.reason else ''})"


class NotFoundError(Error):
    """An object or a resource that does not exist."""


class ContractError(Error):
    """A response that violates the contract; the server may be another version, or no informerd."""

    def __init__(self, problem: str) -> None:
        super().__init__(grpc.StatusCode.INTERNAL, f"invalid response of the server: {problem}")


class HandlerError(Exception):
    """A handler raised an exception, which is the ``__cause__``. The next event is handled as if it had not."""

    event: Event

    def __init__(self, event: Event) -> None:
        key = "/".join(filter(None, event.object.key))
        super().__init__(f"a handler failed on {event.type.name} of {key!r}")
        self.event = event


class HandlerLag(Exception):
    """More events wait for the handlers, or for one iterator, than ``Options.lag_limit``. The store goes on."""

    waiting: int

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} events wait for a handler or an iterator: it is too slow")
        self.waiting = waiting


class IndexerError(Exception):
    """An indexer raised an exception, which is the ``__cause__``. The object has no value in that index."""

    def __init__(self, index: str, key: tuple[str, str]) -> None:
        super().__init__(f"the indexer {index!r} failed on {'/'.join(filter(None, key))!r}")


def error_of_rpc(error: grpc.RpcError) -> Error:
    """Returns the error of a failed call of gRPC."""
    call: Any = error
    code, text = call.code(), call.details() or ""
    if not isinstance(code, grpc.StatusCode):
        return Error(grpc.StatusCode.UNKNOWN, text or "the call failed without a status")
    trailers: Iterable[tuple[str, str | bytes]] = call.trailing_metadata() or ()
    for key, value in trailers:
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            try:
                return _error(code, text, status_pb2.Status.FromString(value).details)
            except DecodeError:
                break
    return _error(code, text, ())


def error_of_status(status: status_pb2.Status) -> Error:
    """Returns the error of the status in a message."""
    return _error(_CODES.get(status.code, grpc.StatusCode.UNKNOWN), status.message, status.details)


def _error(code: grpc.StatusCode, message: str, details: Iterable[Any]) -> Error:
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    reason, metadata, retry_after = "", {}, None
    for detail in details:
        try:
            if detail.Unpack(info) and info.domain == DOMAIN:
                reason, metadata = info.reason, dict(info.metadata)
            elif detail.Unpack(retry):
                delay = retry.retry_delay
                retry_after = max(0.0, delay.seconds + delay.nanos / 1e9)
        except DecodeError:
            continue
    kind = NotFoundError if code is grpc.StatusCode.NOT_FOUND else Error
    return kind(code, message or code.value[1], reason, metadata, retry_after)
