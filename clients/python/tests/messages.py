"""Messages of a Watch, for tests."""

from __future__ import annotations

import json
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2

from informerd.v1 import informerd_pb2 as pb


def obj(name: str, version: str = "", uid: str = "u1", body: Any = None, **labels: str) -> pb.Object:
    return pb.Object(
        namespace="ns",
        name=name,
        uid=uid,
        resource_version=version,
        labels=labels,
        media_type="application/json",
        raw=json.dumps(body if body is not None else {"of": name}).encode(),
    )


def initial(o: pb.Object) -> pb.WatchResponse:
    return pb.WatchResponse(type=pb.EVENT_TYPE_ADDED, object=o, cause=pb.CAUSE_INITIAL)


def batch(*objects: pb.Object) -> pb.WatchResponse:
    return pb.WatchResponse(type=pb.EVENT_TYPE_ADDED, batch=objects, cause=pb.CAUSE_INITIAL)


def added(version: str, o: pb.Object, **more: Any) -> pb.WatchResponse:
    return pb.WatchResponse(type=pb.EVENT_TYPE_ADDED, resource_version=version, object=o, **more)


def modified(version: str, o: pb.Object, **more: Any) -> pb.WatchResponse:
    return pb.WatchResponse(type=pb.EVENT_TYPE_MODIFIED, resource_version=version, object=o, **more)


def deleted(version: str, o: pb.Object, **more: Any) -> pb.WatchResponse:
    return pb.WatchResponse(type=pb.EVENT_TYPE_DELETED, resource_version=version, object=o, **more)


def bookmark(version: str, history: str = "h1", *, seen: int = 0, **more: Any) -> pb.WatchResponse:
    more.setdefault("source", pb.SYNC_STATE_SYNCED)
    mark = pb.Bookmark(history=history, source_seen_at=Timestamp(seconds=seen) if seen else None, **more)
    return pb.WatchResponse(type=pb.EVENT_TYPE_BOOKMARK, resource_version=version, bookmark=mark)


def end(version: str, history: str = "h1", **more: Any) -> pb.WatchResponse:
    return bookmark(version, history, initial_events_end=True, **more)


def dropped(version: str, after: str) -> pb.WatchResponse:
    hole = pb.Dropped(count=1, after_resource_version=after)
    return pb.WatchResponse(type=pb.EVENT_TYPE_DROPPED, resource_version=version, dropped=hole)


def error(code: grpc.StatusCode, reason: str, version: str = "", retry: float | None = None) -> pb.WatchResponse:
    return pb.WatchResponse(type=pb.EVENT_TYPE_ERROR, resource_version=version, error=status(code, reason, retry))


def status(code: grpc.StatusCode, reason: str, retry: float | None = None) -> status_pb2.Status:
    info = AnyMessage()
    info.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="informerd", metadata={"detail": "x"}))
    details = [info]
    if retry is not None:
        delay = AnyMessage()
        delay.Pack(error_details_pb2.RetryInfo(retry_delay=Duration(nanos=int(retry % 1 * 1e9), seconds=int(retry))))
        details.append(delay)
    return status_pb2.Status(code=code.value[0], message=f"the server's text for {reason}", details=details)
