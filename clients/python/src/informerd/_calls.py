"""Requests and results of the plain calls, for both clients."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Protocol

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from informerd._core import datetime_of
from informerd._errors import ContractError, Error, error_of_rpc
from informerd._objects import Key, Object, object_of
from informerd._options import Selection, View
from informerd._target import Target
from informerd.v1 import informerd_pb2 as pb

Request = pb.ListRequest | pb.ByIndexRequest | pb.GetRequest | pb.ListResourcesRequest
Chunk = pb.ListResponse | pb.ByIndexResponse

SERVICE = "/informerd.v1.InformerService/"


class SourceState(Enum):
    """The freshness of a resource at the server."""

    UNKNOWN = "UNKNOWN"
    """Of a newer server."""
    SYNCING = "SYNCING"
    """There is no state yet."""
    SYNCED = "SYNCED"
    STALE = "STALE"
    """The last known state: the upstream cannot be reached."""


@dataclass(frozen=True)
class ListResult:
    """Objects of one consistent snapshot."""

    objects: Sequence[Object]
    """Sorted by namespace and name."""
    version: str
    """The snapshot's version."""
    history: str
    """To watch from the version, together with it."""
    source: SourceState
    source_seen_at: datetime | None
    """Time of the server's last contact with the upstream."""
    namespaces: Sequence[str]
    """The namespaces that the caller's rights limit the result to; empty = not limited."""
    next_page_token: str
    """For the next page; empty on the last one."""


@dataclass(frozen=True)
class GetResult:
    """One object."""

    object: Object
    version: str
    """The snapshot's version; the object has its own."""
    history: str
    source: SourceState
    source_seen_at: datetime | None


@dataclass(frozen=True)
class Problem:
    """A standing problem of a resource."""

    reason: str
    message: str
    subject: str
    since: datetime | None


@dataclass(frozen=True)
class Resource:
    """A resource of a server."""

    name: str
    source: str
    """The kind of its source: ``kube``, ``etcd``, ``files``, ``stream``, ``informerd``."""
    state: SourceState
    version: str
    oldest_version: str
    """The oldest version that a watch can resume from."""
    objects: int
    watchers: int
    indexes: Sequence[str]
    source_seen_at: datetime | None
    last_error: str
    problems: Sequence[Problem]
    namespaces: Sequence[str]
    """The namespaces that the source follows; empty = all."""


@dataclass(frozen=True)
class Resources:
    """The resources of a server that the caller may read, sorted by name."""

    resources: Sequence[Resource]
    server_version: str
    capabilities: Sequence[str]
    """The parts of the contract that the server implements."""


def needed(request: Request | pb.WatchRequest) -> list[str]:
    """Returns the capabilities without which a server would ignore a part of the request."""
    fields = {field.name for field, _ in request.ListFields()}
    return [capability for field, capability in (("shard", "shards"), ("view", "views")) if field in fields]


def require(capabilities: Iterable[str], answer: pb.ListResourcesResponse, target: Target) -> None:
    """Raises an Error unless the server has the capabilities."""
    for capability in capabilities:
        if capability not in answer.server.capabilities:
            version = f" (version {answer.server.version})" if answer.server.version else ""
            text = f"informerd at {target.name}{version} has no {capability}: update it, or request without"
            raise Error(grpc.StatusCode.UNIMPLEMENTED, text, "NOT_IMPLEMENTED")


def list_request(
    resource: str, selection: Selection | None, view: View | None, min_version: str, size: int, token: str
) -> pb.ListRequest:
    selection = selection or Selection()
    index = selection.index
    return pb.ListRequest(
        resource=resource,
        index=pb.IndexMatch(name=index.name, values=index.values) if index else None,
        page_size=size,
        page_token=token,
        **_common(selection, view, min_version),
    )


def by_index_request(
    resource: str,
    index: str,
    value: str,
    like: Key | None,
    selection: Selection | None,
    view: View | None,
    min_version: str,
    size: int,
    token: str,
) -> pb.ByIndexRequest:
    selection = selection or Selection()
    if selection.index:
        raise ValueError("by_index has an index already: leave out Selection.index, or use expression")
    return pb.ByIndexRequest(
        resource=resource,
        index=index,
        value=value,
        like=pb.ObjectKey(namespace=like[0], name=like[1]) if like else None,
        page_size=size,
        page_token=token,
        **_common(selection, view, min_version),
    )


def get_request(resource: str, name: str, namespace: str, view: View | None, min_version: str) -> pb.GetRequest:
    return pb.GetRequest(
        resource=resource,
        namespace=namespace,
        name=name,
        format=pb.PAYLOAD_FORMAT_RAW,
        min_resource_version=min_version,
        view=view.message() if view else None,
    )


def _common(selection: Selection, view: View | None, min_version: str) -> dict[str, Any]:
    return {
        "namespace": selection.namespace,
        "label_selector": selection.label_selector,
        "field_selector": _field_selector(selection),
        "expression": selection.expression,
        "shard": selection.shard.message() if selection.shard else None,
        "view": view.message() if view else None,
        "format": pb.PAYLOAD_FORMAT_RAW,
        "min_resource_version": min_version,
    }


def _field_selector(selection: Selection) -> str:
    """Returns the field selector with a requirement for the name: these requests have no field for it."""
    if not selection.name:
        return selection.field_selector
    name = "metadata.name=" + re.sub(r"[\\,=]", r"\\\g<0>", selection.name)
    return f"{selection.field_selector},{name}" if selection.field_selector else name


def list_result(chunks: Iterable[pb.ListResponse | pb.ByIndexResponse]) -> ListResult:
    """Returns the result of all chunks of a stream."""
    objects: list[Object] = []
    first = last = None
    for chunk in chunks:
        objects.extend(map(object_of, chunk.objects))
        first, last = first or chunk, chunk
    if first is None or last is None:
        raise ContractError("a list without a chunk")
    return ListResult(
        objects,
        last.resource_version,
        last.history,
        _source(last.source),
        _seen(last),
        tuple(first.namespaces),
        last.next_page_token,
    )


def get_result(response: pb.GetResponse) -> GetResult:
    if not response.HasField("object"):
        raise ContractError("a Get without an object")
    return GetResult(
        object_of(response.object),
        response.resource_version,
        response.history,
        _source(response.source),
        _seen(response),
    )


def resources_result(response: pb.ListResourcesResponse) -> Resources:
    return Resources(
        [_resource(r) for r in response.resources], response.server.version, tuple(response.server.capabilities)
    )


def _resource(message: pb.Resource) -> Resource:
    problems = [
        Problem(p.reason, p.message, p.subject, datetime_of(p.since) if p.HasField("since") else None)
        for p in message.problems
    ]
    return Resource(
        message.name,
        message.source,
        _source(message.state),
        message.resource_version,
        message.oldest_resource_version,
        message.objects,
        message.watchers,
        tuple(message.indexes),
        _seen(message),
        message.last_error,
        problems,
        tuple(message.namespaces),
    )


def _source(state: int) -> SourceState:
    known: dict[int, SourceState] = {
        pb.SYNC_STATE_SYNCING: SourceState.SYNCING,
        pb.SYNC_STATE_SYNCED: SourceState.SYNCED,
        pb.SYNC_STATE_STALE: SourceState.STALE,
    }
    return known.get(state, SourceState.UNKNOWN)


def error_of(error: grpc.RpcError, call: str, target: Target, timeout: float) -> Error:
    """Returns the error of a failed call, with what gRPC's own texts leave out."""
    failure = error_of_rpc(error)
    if failure.reason:
        return failure
    if failure.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Error(failure.code, f"{call} of {target.name}: no complete answer within {timeout:g} s")
    return Error(failure.code, f"{call} of {target.name}: {failure.message}")


class _Seen(Protocol):
    @property
    def source_seen_at(self) -> Timestamp: ...

    def HasField(self, field_name: Any) -> bool: ...


def _seen(message: _Seen) -> datetime | None:
    return datetime_of(message.source_seen_at) if message.HasField("source_seen_at") else None
