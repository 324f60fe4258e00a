from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PayloadFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAYLOAD_FORMAT_UNSPECIFIED: _ClassVar[PayloadFormat]
    PAYLOAD_FORMAT_STRUCT: _ClassVar[PayloadFormat]
    PAYLOAD_FORMAT_RAW: _ClassVar[PayloadFormat]
    PAYLOAD_FORMAT_METADATA: _ClassVar[PayloadFormat]

class InitialEvents(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INITIAL_EVENTS_UNSPECIFIED: _ClassVar[InitialEvents]
    INITIAL_EVENTS_SEND: _ClassVar[InitialEvents]
    INITIAL_EVENTS_NONE: _ClassVar[InitialEvents]

class FullChannelPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FULL_CHANNEL_POLICY_UNSPECIFIED: _ClassVar[FullChannelPolicy]
    FULL_CHANNEL_POLICY_DROP: _ClassVar[FullChannelPolicy]
    FULL_CHANNEL_POLICY_BLOCK: _ClassVar[FullChannelPolicy]
    FULL_CHANNEL_POLICY_REPLAY: _ClassVar[FullChannelPolicy]
    FULL_CHANNEL_POLICY_COALESCE: _ClassVar[FullChannelPolicy]

class EventType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_TYPE_UNSPECIFIED: _ClassVar[EventType]
    EVENT_TYPE_ADDED: _ClassVar[EventType]
    EVENT_TYPE_MODIFIED: _ClassVar[EventType]
    EVENT_TYPE_DELETED: _ClassVar[EventType]
    EVENT_TYPE_BOOKMARK: _ClassVar[EventType]
    EVENT_TYPE_ERROR: _ClassVar[EventType]
    EVENT_TYPE_DROPPED: _ClassVar[EventType]

class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAUSE_UNSPECIFIED: _ClassVar[Cause]
    CAUSE_INITIAL: _ClassVar[Cause]
    CAUSE_ENTERED_SELECTION: _ClassVar[Cause]
    CAUSE_LEFT_SELECTION: _ClassVar[Cause]
    CAUSE_INFERRED: _ClassVar[Cause]
    CAUSE_NOT_SERVED: _ClassVar[Cause]
    CAUSE_EXPIRED: _ClassVar[Cause]

class ResourceVersionMatch(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESOURCE_VERSION_MATCH_UNSPECIFIED: _ClassVar[ResourceVersionMatch]
    RESOURCE_VERSION_MATCH_EXACT: _ClassVar[ResourceVersionMatch]

class TermResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TERM_RESULT_UNSPECIFIED: _ClassVar[TermResult]
    TERM_RESULT_MATCH: _ClassVar[TermResult]
    TERM_RESULT_NO_MATCH: _ClassVar[TermResult]
    TERM_RESULT_FAILED: _ClassVar[TermResult]

class SyncState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SYNC_STATE_UNSPECIFIED: _ClassVar[SyncState]
    SYNC_STATE_SYNCING: _ClassVar[SyncState]
    SYNC_STATE_SYNCED: _ClassVar[SyncState]
    SYNC_STATE_STALE: _ClassVar[SyncState]

class VersionFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERSION_FORMAT_UNSPECIFIED: _ClassVar[VersionFormat]
    VERSION_FORMAT_DECIMAL: _ClassVar[VersionFormat]
    VERSION_FORMAT_LINEAGE: _ClassVar[VersionFormat]

class WatcherState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WATCHER_STATE_UNSPECIFIED: _ClassVar[WatcherState]
    WATCHER_STATE_INITIAL_EVENTS: _ClassVar[WatcherState]
    WATCHER_STATE_CATCHING_UP: _ClassVar[WatcherState]
    WATCHER_STATE_LIVE: _ClassVar[WatcherState]
    WATCHER_STATE_FROZEN: _ClassVar[WatcherState]
    WATCHER_STATE_BLOCKING: _ClassVar[WatcherState]
    WATCHER_STATE_COALESCING: _ClassVar[WatcherState]
    WATCHER_STATE_PARKED: _ClassVar[WatcherState]
    WATCHER_STATE_ENDED: _ClassVar[WatcherState]
PAYLOAD_FORMAT_UNSPECIFIED: PayloadFormat
PAYLOAD_FORMAT_STRUCT: PayloadFormat
PAYLOAD_FORMAT_RAW: PayloadFormat
PAYLOAD_FORMAT_METADATA: PayloadFormat
INITIAL_EVENTS_UNSPECIFIED: InitialEvents
INITIAL_EVENTS_SEND: InitialEvents
INITIAL_EVENTS_NONE: InitialEvents
FULL_CHANNEL_POLICY_UNSPECIFIED: FullChannelPolicy
FULL_CHANNEL_POLICY_DROP: FullChannelPolicy
FULL_CHANNEL_POLICY_BLOCK: FullChannelPolicy
FULL_CHANNEL_POLICY_REPLAY: FullChannelPolicy
FULL_CHANNEL_POLICY_COALESCE: FullChannelPolicy
EVENT_TYPE_UNSPECIFIED: EventType
EVENT_TYPE_ADDED: EventType
EVENT_TYPE_MODIFIED: EventType
EVENT_TYPE_DELETED: EventType
EVENT_TYPE_BOOKMARK: EventType
EVENT_TYPE_ERROR: EventType
EVENT_TYPE_DROPPED: EventType
CAUSE_UNSPECIFIED: Cause
CAUSE_INITIAL: Cause
CAUSE_ENTERED_SELECTION: Cause
CAUSE_LEFT_SELECTION: Cause
CAUSE_INFERRED: Cause
CAUSE_NOT_SERVED: Cause
CAUSE_EXPIRED: Cause
RESOURCE_VERSION_MATCH_UNSPECIFIED: ResourceVersionMatch
RESOURCE_VERSION_MATCH_EXACT: ResourceVersionMatch
TERM_RESULT_UNSPECIFIED: TermResult
TERM_RESULT_MATCH: TermResult
TERM_RESULT_NO_MATCH: TermResult
TERM_RESULT_FAILED: TermResult
SYNC_STATE_UNSPECIFIED: SyncState
SYNC_STATE_SYNCING: SyncState
SYNC_STATE_SYNCED: SyncState
SYNC_STATE_STALE: SyncState
VERSION_FORMAT_UNSPECIFIED: VersionFormat
VERSION_FORMAT_DECIMAL: VersionFormat
VERSION_FORMAT_LINEAGE: VersionFormat
WATCHER_STATE_UNSPECIFIED: WatcherState
WATCHER_STATE_INITIAL_EVENTS: WatcherState
WATCHER_STATE_CATCHING_UP: WatcherState
WATCHER_STATE_LIVE: WatcherState
WATCHER_STATE_FROZEN: WatcherState
WATCHER_STATE_BLOCKING: WatcherState
WATCHER_STATE_COALESCING: WatcherState
WATCHER_STATE_PARKED: WatcherState
WATCHER_STATE_ENDED: WatcherState

class Object(_message.Message):
    __slots__ = ("namespace", "name", "uid", "resource_version", "labels", "api_version", "kind", "media_type", "struct", "raw")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    API_VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    STRUCT_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    uid: str
    resource_version: str
    labels: _containers.ScalarMap[str, str]
    api_version: str
    kind: str
    media_type: str
    struct: _struct_pb2.Struct
    raw: bytes
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ..., resource_version: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., api_version: _Optional[str] = ..., kind: _Optional[str] = ..., media_type: _Optional[str] = ..., struct: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., raw: _Optional[bytes] = ...) -> None: ...

class ObjectKey(_message.Message):
    __slots__ = ("namespace", "name")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("fields", "drop", "only_if_changed", "name")
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    ONLY_IF_CHANGED_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    fields: _containers.RepeatedScalarFieldContainer[str]
    drop: _containers.RepeatedScalarFieldContainer[str]
    only_if_changed: bool
    name: str
    def __init__(self, fields: _Optional[_Iterable[str]] = ..., drop: _Optional[_Iterable[str]] = ..., only_if_changed: bool = ..., name: _Optional[str] = ...) -> None: ...

class QueueOptions(_message.Message):
    __slots__ = ("policy", "length")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    policy: FullChannelPolicy
    length: int
    def __init__(self, policy: _Optional[_Union[FullChannelPolicy, str]] = ..., length: _Optional[int] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("key", "ranges")
    KEY_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    key: str
    ranges: _containers.RepeatedCompositeFieldContainer[ShardRange]
    def __init__(self, key: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[ShardRange, _Mapping]]] = ...) -> None: ...

class ShardRange(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("resource", "resource_version", "initial_events", "namespace", "name", "label_selector", "field_selector", "expression", "index", "format", "queue", "bookmark_interval", "min_resource_version", "timeout", "history", "view", "complete_initial_events", "shard", "batch_initial_events")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    INITIAL_EVENTS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABEL_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    FIELD_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BOOKMARK_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    MIN_RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_INITIAL_EVENTS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    BATCH_INITIAL_EVENTS_FIELD_NUMBER: _ClassVar[int]
    resource: str
    resource_version: str
    initial_events: InitialEvents
    namespace: str
    name: str
    label_selector: str
    field_selector: str
    expression: str
    index: IndexMatch
    format: PayloadFormat
    queue: QueueOptions
    bookmark_interval: _duration_pb2.Duration
    min_resource_version: str
    timeout: _duration_pb2.Duration
    history: str
    view: View
    complete_initial_events: bool
    shard: Shard
    batch_initial_events: bool
    def __init__(self, resource: _Optional[str] = ..., resource_version: _Optional[str] = ..., initial_events: _Optional[_Union[InitialEvents, str]] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., label_selector: _Optional[str] = ..., field_selector: _Optional[str] = ..., expression: _Optional[str] = ..., index: _Optional[_Union[IndexMatch, _Mapping]] = ..., format: _Optional[_Union[PayloadFormat, str]] = ..., queue: _Optional[_Union[QueueOptions, _Mapping]] = ..., bookmark_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., min_resource_version: _Optional[str] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., history: _Optional[str] = ..., view: _Optional[_Union[View, _Mapping]] = ..., complete_initial_events: bool = ..., shard: _Optional[_Union[Shard, _Mapping]] = ..., batch_initial_events: bool = ...) -> None: ...

class IndexMatch(_message.Message):
    __slots__ = ("name", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("type", "resource_version", "object", "cause", "bookmark", "dropped", "error", "coalesced", "relisted", "open", "batch")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    BOOKMARK_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COALESCED_FIELD_NUMBER: _ClassVar[int]
    RELISTED_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    type: EventType
    resource_version: str
    object: Object
    cause: Cause
    bookmark: Bookmark
    dropped: Dropped
    error: _status_pb2.Status
    coalesced: int
    relisted: bool
    open: bool
    batch: _containers.RepeatedCompositeFieldContainer[Object]
    def __init__(self, type: _Optional[_Union[EventType, str]] = ..., resource_version: _Optional[str] = ..., object: _Optional[_Union[Object, _Mapping]] = ..., cause: _Optional[_Union[Cause, str]] = ..., bookmark: _Optional[_Union[Bookmark, _Mapping]] = ..., dropped: _Optional[_Union[Dropped, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., coalesced: _Optional[int] = ..., relisted: bool = ..., open: bool = ..., batch: _Optional[_Iterable[_Union[Object, _Mapping]]] = ...) -> None: ...

class Bookmark(_message.Message):
    __slots__ = ("initial_events_end", "draining", "source", "source_seen_at", "history", "namespaces", "suppressed", "expression_errors")
    INITIAL_EVENTS_END_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_ERRORS_FIELD_NUMBER: _ClassVar[int]
    initial_events_end: bool
    draining: bool
    source: SyncState
    source_seen_at: _timestamp_pb2.Timestamp
    history: str
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    suppressed: int
    expression_errors: ExpressionErrors
    def __init__(self, initial_events_end: bool = ..., draining: bool = ..., source: _Optional[_Union[SyncState, str]] = ..., source_seen_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., history: _Optional[str] = ..., namespaces: _Optional[_Iterable[str]] = ..., suppressed: _Optional[int] = ..., expression_errors: _Optional[_Union[ExpressionErrors, _Mapping]] = ...) -> None: ...

class ExpressionErrors(_message.Message):
    __slots__ = ("failed", "evaluated", "first", "first_reason")
    FAILED_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    FIRST_REASON_FIELD_NUMBER: _ClassVar[int]
    failed: int
    evaluated: int
    first: ObjectKey
    first_reason: str
    def __init__(self, failed: _Optional[int] = ..., evaluated: _Optional[int] = ..., first: _Optional[_Union[ObjectKey, _Mapping]] = ..., first_reason: _Optional[str] = ...) -> None: ...

class Dropped(_message.Message):
    __slots__ = ("count", "after_resource_version")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    AFTER_RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    count: int
    after_resource_version: str
    def __init__(self, count: _Optional[int] = ..., after_resource_version: _Optional[str] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("open", "close", "pause", "resume")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    open: _containers.RepeatedCompositeFieldContainer[OpenWatch]
    close: _containers.RepeatedScalarFieldContainer[int]
    pause: _containers.RepeatedScalarFieldContainer[int]
    resume: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, open: _Optional[_Iterable[_Union[OpenWatch, _Mapping]]] = ..., close: _Optional[_Iterable[int]] = ..., pause: _Optional[_Iterable[int]] = ..., resume: _Optional[_Iterable[int]] = ...) -> None: ...

class OpenWatch(_message.Message):
    __slots__ = ("id", "watch")
    ID_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    id: int
    watch: WatchRequest
    def __init__(self, id: _Optional[int] = ..., watch: _Optional[_Union[WatchRequest, _Mapping]] = ...) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("deliveries",)
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("watch_ids", "responses", "ended")
    WATCH_IDS_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    watch_ids: _containers.RepeatedScalarFieldContainer[int]
    responses: _containers.RepeatedCompositeFieldContainer[WatchResponse]
    ended: bool
    def __init__(self, watch_ids: _Optional[_Iterable[int]] = ..., responses: _Optional[_Iterable[_Union[WatchResponse, _Mapping]]] = ..., ended: bool = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("resource", "namespace", "label_selector", "field_selector", "expression", "format", "page_size", "page_token", "min_resource_version", "index", "view", "shard", "resource_version_match", "history")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LABEL_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    FIELD_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MIN_RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_MATCH_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    resource: str
    namespace: str
    label_selector: str
    field_selector: str
    expression: str
    format: PayloadFormat
    page_size: int
    page_token: str
    min_resource_version: str
    index: IndexMatch
    view: View
    shard: Shard
    resource_version_match: ResourceVersionMatch
    history: str
    def __init__(self, resource: _Optional[str] = ..., namespace: _Optional[str] = ..., label_selector: _Optional[str] = ..., field_selector: _Optional[str] = ..., expression: _Optional[str] = ..., format: _Optional[_Union[PayloadFormat, str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., min_resource_version: _Optional[str] = ..., index: _Optional[_Union[IndexMatch, _Mapping]] = ..., view: _Optional[_Union[View, _Mapping]] = ..., shard: _Optional[_Union[Shard, _Mapping]] = ..., resource_version_match: _Optional[_Union[ResourceVersionMatch, str]] = ..., history: _Optional[str] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("resource_version", "objects", "next_page_token", "source", "source_seen_at", "history", "namespaces", "expression_errors")
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_ERRORS_FIELD_NUMBER: _ClassVar[int]
    resource_version: str
    objects: _containers.RepeatedCompositeFieldContainer[Object]
    next_page_token: str
    source: SyncState
    source_seen_at: _timestamp_pb2.Timestamp
    history: str
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    expression_errors: ExpressionErrors
    def __init__(self, resource_version: _Optional[str] = ..., objects: _Optional[_Iterable[_Union[Object, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., source: _Optional[_Union[SyncState, str]] = ..., source_seen_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., history: _Optional[str] = ..., namespaces: _Optional[_Iterable[str]] = ..., expression_errors: _Optional[_Union[ExpressionErrors, _Mapping]] = ...) -> None: ...

class ByIndexRequest(_message.Message):
    __slots__ = ("resource", "index", "value", "namespace", "label_selector", "field_selector", "expression", "format", "page_size", "page_token", "min_resource_version", "view", "like", "shard", "resource_version_match", "history")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LABEL_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    FIELD_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MIN_RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    LIKE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_MATCH_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    resource: str
    index: str
    value: str
    namespace: str
    label_selector: str
    field_selector: str
    expression: str
    format: PayloadFormat
    page_size: int
    page_token: str
    min_resource_version: str
    view: View
    like: ObjectKey
    shard: Shard
    resource_version_match: ResourceVersionMatch
    history: str
    def __init__(self, resource: _Optional[str] = ..., index: _Optional[str] = ..., value: _Optional[str] = ..., namespace: _Optional[str] = ..., label_selector: _Optional[str] = ..., field_selector: _Optional[str] = ..., expression: _Optional[str] = ..., format: _Optional[_Union[PayloadFormat, str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., min_resource_version: _Optional[str] = ..., view: _Optional[_Union[View, _Mapping]] = ..., like: _Optional[_Union[ObjectKey, _Mapping]] = ..., shard: _Optional[_Union[Shard, _Mapping]] = ..., resource_version_match: _Optional[_Union[ResourceVersionMatch, str]] = ..., history: _Optional[str] = ...) -> None: ...

class ByIndexResponse(_message.Message):
    __slots__ = ("resource_version", "objects", "next_page_token", "source", "source_seen_at", "history", "namespaces", "expression_errors")
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_ERRORS_FIELD_NUMBER: _ClassVar[int]
    resource_version: str
    objects: _containers.RepeatedCompositeFieldContainer[Object]
    next_page_token: str
    source: SyncState
    source_seen_at: _timestamp_pb2.Timestamp
    history: str
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    expression_errors: ExpressionErrors
    def __init__(self, resource_version: _Optional[str] = ..., objects: _Optional[_Iterable[_Union[Object, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., source: _Optional[_Union[SyncState, str]] = ..., source_seen_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., history: _Optional[str] = ..., namespaces: _Optional[_Iterable[str]] = ..., expression_errors: _Optional[_Union[ExpressionErrors, _Mapping]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("resource", "namespace", "name", "format", "min_resource_version", "view", "resource_version_match", "history")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    MIN_RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_MATCH_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    resource: str
    namespace: str
    name: str
    format: PayloadFormat
    min_resource_version: str
    view: View
    resource_version_match: ResourceVersionMatch
    history: str
    def __init__(self, resource: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., format: _Optional[_Union[PayloadFormat, str]] = ..., min_resource_version: _Optional[str] = ..., view: _Optional[_Union[View, _Mapping]] = ..., resource_version_match: _Optional[_Union[ResourceVersionMatch, str]] = ..., history: _Optional[str] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("resource_version", "object", "source", "source_seen_at", "history")
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    resource_version: str
    object: Object
    source: SyncState
    source_seen_at: _timestamp_pb2.Timestamp
    history: str
    def __init__(self, resource_version: _Optional[str] = ..., object: _Optional[_Union[Object, _Mapping]] = ..., source: _Optional[_Union[SyncState, str]] = ..., source_seen_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., history: _Optional[str] = ...) -> None: ...

class ChangesRequest(_message.Message):
    __slots__ = ("resource", "from_resource_version", "to_resource_version", "namespace", "name", "label_selector", "field_selector", "expression", "format", "view", "index", "shard", "history")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    FROM_RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TO_RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABEL_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    FIELD_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    resource: str
    from_resource_version: str
    to_resource_version: str
    namespace: str
    name: str
    label_selector: str
    field_selector: str
    expression: str
    format: PayloadFormat
    view: View
    index: IndexMatch
    shard: Shard
    history: str
    def __init__(self, resource: _Optional[str] = ..., from_resource_version: _Optional[str] = ..., to_resource_version: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., label_selector: _Optional[str] = ..., field_selector: _Optional[str] = ..., expression: _Optional[str] = ..., format: _Optional[_Union[PayloadFormat, str]] = ..., view: _Optional[_Union[View, _Mapping]] = ..., index: _Optional[_Union[IndexMatch, _Mapping]] = ..., shard: _Optional[_Union[Shard, _Mapping]] = ..., history: _Optional[str] = ...) -> None: ...

class ChangesResponse(_message.Message):
    __slots__ = ("resource_version", "changes", "history", "namespaces")
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    resource_version: str
    changes: _containers.RepeatedCompositeFieldContainer[NetChange]
    history: str
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, resource_version: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[NetChange, _Mapping]]] = ..., history: _Optional[str] = ..., namespaces: _Optional[_Iterable[str]] = ...) -> None: ...

class NetChange(_message.Message):
    __slots__ = ("type", "old", "new")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    type: EventType
    old: Object
    new: Object
    def __init__(self, type: _Optional[_Union[EventType, str]] = ..., old: _Optional[_Union[Object, _Mapping]] = ..., new: _Optional[_Union[Object, _Mapping]] = ...) -> None: ...

class UntilRequest(_message.Message):
    __slots__ = ("watch", "conditions")
    WATCH_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    watch: WatchRequest
    conditions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, watch: _Optional[_Union[WatchRequest, _Mapping]] = ..., conditions: _Optional[_Iterable[str]] = ...) -> None: ...

class UntilResponse(_message.Message):
    __slots__ = ("event", "namespaces")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    event: WatchResponse
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, event: _Optional[_Union[WatchResponse, _Mapping]] = ..., namespaces: _Optional[_Iterable[str]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("watch", "watcher_id", "key")
    WATCH_FIELD_NUMBER: _ClassVar[int]
    WATCHER_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    watch: WatchRequest
    watcher_id: int
    key: ObjectKey
    def __init__(self, watch: _Optional[_Union[WatchRequest, _Mapping]] = ..., watcher_id: _Optional[int] = ..., key: _Optional[_Union[ObjectKey, _Mapping]] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("resource_version", "object", "selected", "terms", "problem", "watcher")
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    WATCHER_FIELD_NUMBER: _ClassVar[int]
    resource_version: str
    object: Object
    selected: bool
    terms: _containers.RepeatedCompositeFieldContainer[SelectionTerm]
    problem: Problem
    watcher: Watcher
    def __init__(self, resource_version: _Optional[str] = ..., object: _Optional[_Union[Object, _Mapping]] = ..., selected: bool = ..., terms: _Optional[_Iterable[_Union[SelectionTerm, _Mapping]]] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ..., watcher: _Optional[_Union[Watcher, _Mapping]] = ...) -> None: ...

class SelectionTerm(_message.Message):
    __slots__ = ("field", "term", "result", "found")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    field: str
    term: str
    result: TermResult
    found: str
    def __init__(self, field: _Optional[str] = ..., term: _Optional[str] = ..., result: _Optional[_Union[TermResult, str]] = ..., found: _Optional[str] = ...) -> None: ...

class ListIndexValuesRequest(_message.Message):
    __slots__ = ("resource", "index", "page_size", "page_token")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    resource: str
    index: str
    page_size: int
    page_token: str
    def __init__(self, resource: _Optional[str] = ..., index: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListIndexValuesResponse(_message.Message):
    __slots__ = ("resource_version", "values", "next_page_token", "namespaces")
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    resource_version: str
    values: _containers.RepeatedCompositeFieldContainer[IndexValue]
    next_page_token: str
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, resource_version: _Optional[str] = ..., values: _Optional[_Iterable[_Union[IndexValue, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., namespaces: _Optional[_Iterable[str]] = ...) -> None: ...

class IndexValue(_message.Message):
    __slots__ = ("value", "objects")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    value: str
    objects: int
    def __init__(self, value: _Optional[str] = ..., objects: _Optional[int] = ...) -> None: ...

class ListResourcesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListResourcesResponse(_message.Message):
    __slots__ = ("resources", "server")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedCompositeFieldContainer[Resource]
    server: ServerInfo
    def __init__(self, resources: _Optional[_Iterable[_Union[Resource, _Mapping]]] = ..., server: _Optional[_Union[ServerInfo, _Mapping]] = ...) -> None: ...

class ServerInfo(_message.Message):
    __slots__ = ("version", "commit", "capabilities", "config_error")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_ERROR_FIELD_NUMBER: _ClassVar[int]
    version: str
    commit: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    config_error: str
    def __init__(self, version: _Optional[str] = ..., commit: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., config_error: _Optional[str] = ...) -> None: ...

class Resource(_message.Message):
    __slots__ = ("name", "source", "state", "resource_version", "oldest_resource_version", "objects", "watchers", "indexes", "source_seen_at", "last_error", "path", "problems", "version_format", "namespaces", "history", "views", "view_required", "aliases", "oldest_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    OLDEST_RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    WATCHERS_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FORMAT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    VIEW_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    state: SyncState
    resource_version: str
    oldest_resource_version: str
    objects: int
    watchers: int
    indexes: _containers.RepeatedScalarFieldContainer[str]
    source_seen_at: _timestamp_pb2.Timestamp
    last_error: str
    path: _containers.RepeatedScalarFieldContainer[str]
    problems: _containers.RepeatedCompositeFieldContainer[Problem]
    version_format: VersionFormat
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    history: str
    views: _containers.RepeatedCompositeFieldContainer[NamedView]
    view_required: bool
    aliases: _containers.RepeatedScalarFieldContainer[str]
    oldest_at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., state: _Optional[_Union[SyncState, str]] = ..., resource_version: _Optional[str] = ..., oldest_resource_version: _Optional[str] = ..., objects: _Optional[int] = ..., watchers: _Optional[int] = ..., indexes: _Optional[_Iterable[str]] = ..., source_seen_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., last_error: _Optional[str] = ..., path: _Optional[_Iterable[str]] = ..., problems: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ..., version_format: _Optional[_Union[VersionFormat, str]] = ..., namespaces: _Optional[_Iterable[str]] = ..., history: _Optional[str] = ..., views: _Optional[_Iterable[_Union[NamedView, _Mapping]]] = ..., view_required: bool = ..., aliases: _Optional[_Iterable[str]] = ..., oldest_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class NamedView(_message.Message):
    __slots__ = ("name", "view")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    name: str
    view: View
    def __init__(self, name: _Optional[str] = ..., view: _Optional[_Union[View, _Mapping]] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("reason", "message", "subject", "since")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    subject: str
    since: _timestamp_pb2.Timestamp
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., subject: _Optional[str] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListWatchersRequest(_message.Message):
    __slots__ = ("resource", "page_size", "page_token", "include_ended")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_ENDED_FIELD_NUMBER: _ClassVar[int]
    resource: str
    page_size: int
    page_token: str
    include_ended: bool
    def __init__(self, resource: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., include_ended: bool = ...) -> None: ...

class ListWatchersResponse(_message.Message):
    __slots__ = ("watchers", "next_page_token")
    WATCHERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    watchers: _containers.RepeatedCompositeFieldContainer[Watcher]
    next_page_token: str
    def __init__(self, watchers: _Optional[_Iterable[_Union[Watcher, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DisconnectWatchersRequest(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DisconnectWatchersResponse(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Watcher(_message.Message):
    __slots__ = ("id", "resource", "peer", "identity", "selection", "policy", "queue_length", "queued", "sent", "dropped", "resource_version", "since", "last_progress", "parked", "state", "bytes_held", "lag", "bytes_sent", "suppressed", "format", "view", "user_agent", "stream_id", "watch_id", "ended_at", "end_status")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LAST_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BYTES_HELD_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    USER_AGENT_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    WATCH_ID_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    END_STATUS_FIELD_NUMBER: _ClassVar[int]
    id: int
    resource: str
    peer: str
    identity: str
    selection: str
    policy: FullChannelPolicy
    queue_length: int
    queued: int
    sent: int
    dropped: int
    resource_version: str
    since: _timestamp_pb2.Timestamp
    last_progress: _timestamp_pb2.Timestamp
    parked: bool
    state: WatcherState
    bytes_held: int
    lag: _duration_pb2.Duration
    bytes_sent: int
    suppressed: int
    format: PayloadFormat
    view: View
    user_agent: str
    stream_id: int
    watch_id: int
    ended_at: _timestamp_pb2.Timestamp
    end_status: _status_pb2.Status
    def __init__(self, id: _Optional[int] = ..., resource: _Optional[str] = ..., peer: _Optional[str] = ..., identity: _Optional[str] = ..., selection: _Optional[str] = ..., policy: _Optional[_Union[FullChannelPolicy, str]] = ..., queue_length: _Optional[int] = ..., queued: _Optional[int] = ..., sent: _Optional[int] = ..., dropped: _Optional[int] = ..., resource_version: _Optional[str] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., last_progress: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., parked: bool = ..., state: _Optional[_Union[WatcherState, str]] = ..., bytes_held: _Optional[int] = ..., lag: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., bytes_sent: _Optional[int] = ..., suppressed: _Optional[int] = ..., format: _Optional[_Union[PayloadFormat, str]] = ..., view: _Optional[_Union[View, _Mapping]] = ..., user_agent: _Optional[str] = ..., stream_id: _Optional[int] = ..., watch_id: _Optional[int] = ..., ended_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("server", "resources")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    server: ServerStats
    resources: _containers.RepeatedCompositeFieldContainer[ResourceStats]
    def __init__(self, server: _Optional[_Union[ServerStats, _Mapping]] = ..., resources: _Optional[_Iterable[_Union[ResourceStats, _Mapping]]] = ...) -> None: ...

class ServerStats(_message.Message):
    __slots__ = ("started_at", "draining", "connections", "watchers", "held_bytes", "held_bytes_limit", "resident_bytes")
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    WATCHERS_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_LIMIT_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    started_at: _timestamp_pb2.Timestamp
    draining: bool
    connections: int
    watchers: int
    held_bytes: int
    held_bytes_limit: int
    resident_bytes: int
    def __init__(self, started_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., draining: bool = ..., connections: _Optional[int] = ..., watchers: _Optional[int] = ..., held_bytes: _Optional[int] = ..., held_bytes_limit: _Optional[int] = ..., resident_bytes: _Optional[int] = ...) -> None: ...

class ResourceStats(_message.Message):
    __slots__ = ("resource", "changes", "relists", "events_sent", "bytes_sent", "dropped", "suppressed", "parked", "max_lag", "blocked", "cache_bytes", "history_bytes", "expression_errors")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    RELISTS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HISTORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_ERRORS_FIELD_NUMBER: _ClassVar[int]
    resource: str
    changes: int
    relists: int
    events_sent: int
    bytes_sent: int
    dropped: int
    suppressed: int
    parked: int
    max_lag: _duration_pb2.Duration
    blocked: _duration_pb2.Duration
    cache_bytes: int
    history_bytes: int
    expression_errors: int
    def __init__(self, resource: _Optional[str] = ..., changes: _Optional[int] = ..., relists: _Optional[int] = ..., events_sent: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., dropped: _Optional[int] = ..., suppressed: _Optional[int] = ..., parked: _Optional[int] = ..., max_lag: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., blocked: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., cache_bytes: _Optional[int] = ..., history_bytes: _Optional[int] = ..., expression_errors: _Optional[int] = ...) -> None: ...
