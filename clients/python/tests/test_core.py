"""The rules, one by one, without a server and without a clock."""

from __future__ import annotations

import json

import grpc
import pytest
from messages import added, batch, bookmark, deleted, dropped, end, error, initial, modified, obj, status

from informerd import (
    ContractError,
    Error,
    Index,
    IndexerError,
    Object,
    Options,
    Policy,
    Selection,
    Shard,
    State,
    View,
    _calls,
)
from informerd._core import Core, Ending, Next
from informerd._errors import error_of_status
from informerd.v1 import informerd_pb2 as pb

UNAVAILABLE, OUT_OF_RANGE = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OUT_OF_RANGE


class Watch:
    """A core with a clock, and a log of its events."""

    def __init__(self, options: Options | None = None) -> None:
        self.reports: list[Exception] = []
        self.now = 1000.0
        self.log: list[str] = []
        indexers = {"app": lambda o: [o.labels["app"]]}
        self.core = Core("things", Selection(), None, indexers, options or Options(), self.reports.append)

    def open(self) -> pb.WatchRequest:
        return self.core.open_stream(self.now)

    def send(self, *messages: pb.WatchResponse) -> list[str]:
        """Delivers messages, and returns the handler calls that they lead to."""
        calls = []
        for message in messages:
            for event in self.core.receive(message, self.now):
                old = f" was {event.old.body['of']}" if event.old else ""
                cause = f" {event.cause.name}" if event.cause else ""
                calls.append(f"{event.type.name} {event.object.name}={event.object.body['of']}{old}{cause}")
        self.log += calls
        return calls

    def ended(self, code: grpc.StatusCode | None = None, reason: str = "", retry: float | None = None) -> Next:
        failure = error_of_status(status(code, reason, retry)) if code and reason else None
        if code and not reason:
            failure = Error(code, "broken")
        return self.core.close_stream(failure, self.now)

    def synced(self, *objects: pb.Object, version: str = "5") -> Watch:
        self.open()
        self.send(*map(initial, objects), end(version))
        return self

    def names(self) -> dict[str, object]:
        return {o.name: o.body["of"] for o in self.core.store.objects(None)}

    def state(self) -> State:
        return self.core.freshness(self.now).state


def thing(name: str, of: object, version: str = "", uid: str = "u1", **labels: str) -> pb.Object:
    return obj(name, version, uid, {"of": of}, **labels)


def test_the_first_list_is_applied_as_a_whole() -> None:
    watch = Watch()
    request = watch.open()
    assert (request.resource_version, request.history) == ("", "")
    assert request.format == pb.PAYLOAD_FORMAT_RAW
    assert request.bookmark_interval.seconds == 10
    assert watch.send(initial(thing("a", 1)), initial(thing("b", 2))) == []
    assert watch.names() == {}
    assert not watch.core.synced
    assert watch.state() is State.SYNCING
    assert watch.send(end("5")) == ["ADDED a=1", "ADDED b=2"]
    assert watch.core.synced
    assert watch.state() is State.LIVE
    assert watch.core.version == "5"


def test_a_list_that_breaks_off_leaves_the_store() -> None:
    watch = Watch()
    watch.open()
    watch.send(initial(thing("a", 1)))
    watch.ended(UNAVAILABLE)
    watch.open()
    assert watch.send(initial(thing("b", 2)), end("5")) == ["ADDED b=2"]


def test_a_batch_of_initial_events_is_its_events() -> None:
    watch = Watch()
    assert watch.open().batch_initial_events
    messages = [batch(thing("a", 1), thing("b", 2)), initial(thing("c", 3)), batch(thing("d", 4))]
    assert watch.send(*messages) == []
    assert watch.names() == {}
    assert watch.send(end("5")) == ["ADDED a=1", "ADDED b=2", "ADDED c=3", "ADDED d=4"]
    watch.ended(UNAVAILABLE)
    assert watch.open().batch_initial_events, "also when it resumes"
    watch.send(added("6", thing("e", 5)))
    assert watch.names() == {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}


def test_a_list_that_breaks_off_leaves_nothing_of_its_batches() -> None:
    watch = Watch()
    watch.open()
    watch.send(batch(thing("a", 1), thing("b", 2)))
    watch.ended(UNAVAILABLE)
    watch.open()
    assert watch.send(end("5")) == []
    assert watch.names() == {}
    assert watch.core.synced


def test_a_list_again_is_a_difference_by_content() -> None:
    watch = Watch().synced(thing("a", 1, "5"), thing("b", 2, "4"), thing("c", 3), thing("d", 4, uid="x"))
    watch.send(error(OUT_OF_RANGE, "RESOURCE_VERSION_EXPIRED"))
    assert watch.core.ending is Ending.ERROR
    watch.ended()
    request = watch.open()
    assert (request.resource_version, request.history) == ("", "")
    assert watch.names() == {"a": 1, "b": 2, "c": 3, "d": 4}, "the old state is served meanwhile"
    relist = [thing("a", 1, "n.1"), thing("b", 7, "n.1"), thing("d", 4, uid="y"), thing("e", 5)]
    calls = watch.send(*map(initial, relist), end("n.1"))
    assert calls == ["DELETED c=3 INFERRED", "UPDATED b=7 was 2", "DELETED d=4 INFERRED", "ADDED d=4", "ADDED e=5"]
    a = watch.core.store.get(("ns", "a"))
    assert a is not None
    assert a.version == "n.1", "its version is renewed"


def test_labels_are_compared() -> None:
    watch = Watch().synced(thing("a", 1, app="x"))
    assert watch.send(modified("6", thing("a", 1, app="x"))) == []
    assert watch.send(modified("7", thing("a", 1, app="y"))) == ["UPDATED a=1 was 1"]
    assert [o.name for o in watch.core.store.by_index("app", "y")] == ["a"]
    assert watch.core.store.by_index("app", "x") == []


def test_objects_without_bodies_are_compared_by_version() -> None:
    def bare(version: str) -> pb.Object:
        return pb.Object(namespace="ns", name="a", uid="u", resource_version=version)

    watch = Watch(Options(metadata_only=True))
    assert watch.open().format == pb.PAYLOAD_FORMAT_METADATA
    counts = [len(watch.core.receive(m, 0)) for m in (initial(bare("4")), end("5"))]
    counts += [len(watch.core.receive(modified(v, bare(v)), 0)) for v in ("4", "6")]
    assert counts == [0, 1, 0, 1]


def test_a_batch_is_applied_when_the_version_advances() -> None:
    watch = Watch().synced(thing("a", 1))
    assert watch.send(modified("5", thing("a", 2, "8")), added("5", thing("b", 1, "8"))) == []
    assert watch.names() == {"a": 1}
    assert watch.core.version == "5"
    assert watch.send(deleted("8", thing("c", 1, "8")), added("9", thing("d", 1, "9"))) == [
        "UPDATED a=2 was 1",
        "ADDED b=1",
        "ADDED d=1",
    ]
    assert watch.core.version == "9"


def test_a_bookmark_completes_a_batch() -> None:
    watch = Watch().synced()
    assert watch.send(added("5", thing("a", 1, "6")), bookmark("5")) == []
    assert watch.send(bookmark("6")) == ["ADDED a=1"]


def test_a_batch_is_open_while_its_version_is_lower_than_that_of_its_objects() -> None:
    watch = Watch().synced()
    assert watch.send(added("5", thing("a", 1, "6"))) == []
    # The version has advanced over changes of others: the batch at 6 is complete, that at 9 is open.
    assert watch.send(added("8", thing("b", 1, "9"))) == ["ADDED a=1"]
    assert watch.core.version == "8"
    assert watch.send(added("9", thing("c", 1, "9"))) == ["ADDED b=1", "ADDED c=1"]


def test_a_batch_that_breaks_off_is_discarded_and_repeated() -> None:
    watch = Watch().synced()
    watch.send(added("5", thing("a", 1, "6")))
    watch.ended(UNAVAILABLE)
    request = watch.open()
    assert (request.resource_version, request.history) == ("5", "h1")
    assert watch.send(added("5", thing("a", 1, "6")), added("6", thing("b", 1, "6"))) == ["ADDED a=1", "ADDED b=1"]


def test_open_events_are_applied_at_once_unless_a_batch_is_open() -> None:
    watch = Watch().synced()
    assert watch.send(added("5", thing("a", 1, "6"), open=True)) == ["ADDED a=1"]
    assert watch.send(added("5", thing("b", 1, "7"))) == []
    assert watch.send(added("5", thing("c", 1, "7"), open=True)) == []
    assert watch.send(added("6", thing("d", 1, "8"), open=True)) == ["ADDED b=1", "ADDED c=1", "ADDED d=1"]


def test_repeated_events_are_upserts_and_idempotent() -> None:
    watch = Watch().synced(thing("a", 1))
    assert watch.send(modified("6", thing("b", 1))) == ["ADDED b=1"]
    assert watch.send(added("7", thing("a", 1))) == []
    assert watch.send(added("8", thing("a", 2))) == ["UPDATED a=2 was 1"]
    assert watch.send(deleted("9", thing("a", 3))) == ["DELETED a=3 DELETED"]
    assert watch.send(deleted("10", thing("a", 3))) == []


def test_another_uid_is_another_object() -> None:
    watch = Watch().synced(thing("a", 1))
    assert watch.send(deleted("6", thing("a", 1, uid="older"))) == []
    assert watch.send(modified("7", thing("a", 1, uid="u2"))) == ["DELETED a=1 INFERRED", "ADDED a=1"]


def test_the_last_state_and_cause_of_a_deletion() -> None:
    watch = Watch().synced(thing("a", 1), thing("b", 1), thing("c", 1))
    bare = pb.Object(namespace="ns", name="a", uid="u1", resource_version="6")
    assert watch.send(deleted("6", bare, cause=pb.CAUSE_LEFT_SELECTION)) == ["DELETED a=1 LEFT_SELECTION"]
    assert watch.send(deleted("7", thing("b", 2), cause=pb.CAUSE_NOT_SERVED)) == ["DELETED b=2 NOT_SERVED"]
    unknown = deleted("8", thing("c", 2))
    unknown.MergeFromString(b"\x20\x63")  # cause = 99
    assert watch.send(unknown) == ["DELETED c=2 OTHER"]


def test_a_hole_is_healed_from_before_it() -> None:
    watch = Watch().synced()
    watch.send(added("6", thing("a", 1, "6")), added("6", thing("b", 1, "7")))
    assert watch.send(dropped("9", "6")) == [], "the batch at 7 may be in the hole"
    assert watch.core.ending is Ending.DROPPED
    step = watch.ended()
    assert watch.state() is State.SYNCING
    request = watch.open()
    assert (request.resource_version, request.history) == ("6", "h1")
    assert step.delay == 0
    assert watch.state() is State.SYNCING
    watch.send(added("7", thing("b", 1, "7")))
    assert watch.state() is State.SYNCING
    watch.send(bookmark("9"))
    assert watch.state() is State.LIVE


def test_a_hole_after_a_complete_batch() -> None:
    watch = Watch().synced()
    assert watch.send(added("5", thing("a", 1, "6")), dropped("9", "6")) == ["ADDED a=1"]
    watch.ended()
    assert watch.open().resource_version == "6"


def test_only_a_bookmark_replaces_the_history() -> None:
    watch = Watch().synced()
    watch.send(bookmark("6", "h2"), added("7", thing("a", 1)))
    watch.ended(UNAVAILABLE)
    request = watch.open()
    assert (request.resource_version, request.history) == ("7", "h2")
    watch.send(bookmark("7", "h3"))
    watch.ended(UNAVAILABLE)
    assert watch.open().history == "h3"


def test_namespaces_that_change_complete_what_is_pending() -> None:
    watch = Watch().synced()
    assert watch.send(bookmark("6", "none"), added("6", thing("a", 1, "3"))) == []
    assert watch.send(bookmark("6", "h2", namespaces=["ns"])) == ["ADDED a=1"]
    assert watch.core.namespaces == ("ns",)


def test_an_error_with_a_version_is_resumed_from_there() -> None:
    watch = Watch().synced()
    watch.send(added("5", thing("a", 1, "6")))
    assert watch.send(error(grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_CONSUMER", "6")) == ["ADDED a=1"]
    watch.ended()
    assert watch.open().resource_version == "6"


@pytest.mark.parametrize(
    ("code", "reason", "lists"),
    [
        (None, "", False),
        (UNAVAILABLE, "", False),
        (UNAVAILABLE, "AUTHORIZER_UNAVAILABLE", False),
        (UNAVAILABLE, "DRAINING", False),
        (grpc.StatusCode.INTERNAL, "", False),
        (grpc.StatusCode.UNKNOWN, "", False),
        (grpc.StatusCode.ABORTED, "", False),
        (grpc.StatusCode.CANCELLED, "", False),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "", False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_CONSUMER", False),
        (grpc.StatusCode.NOT_FOUND, "RESOURCE_NOT_FOUND", False),
        (OUT_OF_RANGE, "RESOURCE_VERSION_EXPIRED", True),
        (OUT_OF_RANGE, "HISTORY_CHANGED", True),
        (OUT_OF_RANGE, "ACCESS_CHANGED", True),
    ],
)
def test_ends_that_are_survived(code: grpc.StatusCode | None, reason: str, lists: bool) -> None:
    watch = Watch().synced()
    watch.ended(code, reason)
    assert watch.core.error is None
    assert watch.state() is State.DISCONNECTED
    assert watch.open().resource_version == ("" if lists else "5")
    assert watch.state() is State.SYNCING
    watch.send(end("6") if lists else bookmark("6"))
    assert watch.state() is State.LIVE


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.ALREADY_EXISTS,
    ],
)
def test_ends_that_are_given_up(code: grpc.StatusCode) -> None:
    watch = Watch().synced()
    step = watch.ended(code, "REASON")
    assert step.failed
    assert watch.core.error is not None
    assert watch.state() is State.DISCONNECTED


def test_an_unknown_resource_is_given_up_before_the_first_sync() -> None:
    watch = Watch()
    watch.open()
    assert watch.ended(grpc.StatusCode.NOT_FOUND, "RESOURCE_NOT_FOUND").failed


def test_credentials_are_tried_once_more() -> None:
    watch = Watch().synced()
    step = watch.ended(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIALS_EXPIRED")
    assert not step.failed
    assert step.new_connection
    watch.open()
    watch.send(bookmark("6"))
    assert not watch.ended(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIALS_EXPIRED").failed
    watch.open()
    assert watch.ended(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIALS_EXPIRED").failed


def test_a_version_that_is_too_large_twice_leads_to_a_list() -> None:
    watch = Watch().synced()
    watch.ended(UNAVAILABLE, "RESOURCE_VERSION_TOO_LARGE")
    assert watch.open().resource_version == "5"
    watch.ended(UNAVAILABLE, "RESOURCE_VERSION_TOO_LARGE")
    assert watch.open().resource_version == ""
    watch.send(end("3"))
    assert watch.core.version == "3"
    watch.ended(UNAVAILABLE, "RESOURCE_VERSION_TOO_LARGE")
    assert watch.open().resource_version == "3", "the count begins anew"


def test_an_event_between_two_versions_that_are_too_large_begins_the_count_anew() -> None:
    watch = Watch().synced()
    watch.ended(UNAVAILABLE, "RESOURCE_VERSION_TOO_LARGE")
    watch.open()
    watch.send(added("6", thing("a", 1)))
    watch.ended(grpc.StatusCode.CANCELLED)
    watch.open()
    watch.ended(UNAVAILABLE, "RESOURCE_VERSION_TOO_LARGE")
    assert watch.open().resource_version == "6"


def test_contract_errors_lead_to_a_list() -> None:
    unknown = pb.WatchResponse(resource_version="7")
    unknown.MergeFromString(b"\x08\x63")  # type = 99
    no_object = pb.WatchResponse(type=pb.EVENT_TYPE_ADDED, resource_version="6")
    no_status = pb.WatchResponse(type=pb.EVENT_TYPE_ERROR)
    late_batch = batch(thing("a", 1))
    bad = [unknown, no_object, no_status, added("", thing("a", 1)), bookmark(""), dropped("7", ""), late_batch]
    for message in bad:
        watch = Watch().synced()
        watch.send(message)
        assert watch.core.ending is Ending.ERROR, message
        step = watch.ended()
        assert isinstance(step.error, ContractError)
        assert watch.open().resource_version == "", message
    for message in [modified("", thing("a", 1)), deleted("", thing("a", 1)), end(""), dropped("6", "5")]:
        watch = Watch()
        watch.open()
        watch.send(message)
        assert watch.core.ending is Ending.ERROR, message


def test_silence_is_shown_at_once_and_ends_the_stream() -> None:
    watch = Watch(Options(bookmark_interval=1)).synced()
    watch.now += 2.9
    assert watch.state() is State.LIVE
    watch.core.expire(watch.now)
    assert watch.core.ending is None
    watch.now += 0.1
    assert watch.state() is State.DISCONNECTED
    watch.core.expire(watch.now)
    assert watch.core.ending is Ending.SILENT
    step = watch.ended()
    assert step.new_connection
    assert watch.open().resource_version == "5"


def test_the_first_message_may_take_longer() -> None:
    watch = Watch(Options(bookmark_interval=1))
    watch.open()
    assert watch.core.deadline == watch.now + 30
    watch.send(end("5"))
    assert watch.core.deadline == watch.now + 3
    watch.ended(UNAVAILABLE)
    watch.open()
    assert watch.core.deadline == watch.now + 100


def test_stale_is_a_state() -> None:
    watch = Watch().synced()
    watch.send(bookmark("5", source=pb.SYNC_STATE_STALE, seen=7))
    freshness = watch.core.freshness(watch.now + 1)
    assert freshness.state is State.STALE
    assert freshness.healthy
    assert freshness.last_message_age == 1
    assert freshness.source_seen_at is not None
    assert freshness.source_seen_at.timestamp() == 7
    watch.send(bookmark("5", seen=8))
    assert watch.state() is State.LIVE


def test_a_drain_leaves_after_a_random_delay_and_reads_until_then() -> None:
    watch = Watch(Options(drain_jitter=1, bookmark_interval=10)).synced()
    watch.send(bookmark("6", draining=True))
    deadline = watch.core.deadline
    assert deadline is not None
    assert watch.now <= deadline <= watch.now + 1
    watch.send(added("7", thing("a", 1)))
    assert watch.core.deadline == deadline
    assert watch.state() is State.LIVE
    watch.now = deadline
    watch.core.expire(watch.now)
    assert watch.core.ending is Ending.DRAINED
    step = watch.ended()
    assert step.new_connection
    assert step.delay == 0
    assert watch.open().resource_version == "7"


def test_a_drain_among_the_initial_events() -> None:
    watch = Watch()
    watch.open()
    watch.send(initial(thing("a", 1)), bookmark("", draining=True))
    step = watch.ended(UNAVAILABLE, "DRAINING")
    assert step.new_connection
    assert watch.open().resource_version == ""


def test_back_off_doubles_and_is_reset_by_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Core, "_random", staticmethod(lambda limit: limit))
    watch = Watch(Options(backoff=1, max_backoff=5))
    delays = []
    for _ in range(5):
        watch.open()
        delays.append(watch.ended(UNAVAILABLE).delay)
    assert delays == [1, 2, 4, 5, 5]
    watch.open()
    watch.send(end("5"))
    assert watch.ended(UNAVAILABLE, "X", 100).delay == 61
    watch.open()
    watch.send(bookmark("5"))
    assert watch.ended().delay == 0, "OK after progress"
    watch.open()
    assert watch.ended().delay == 1, "OK without progress"


def test_an_indexer_that_fails_is_reported() -> None:
    watch = Watch()
    watch.open()
    watch.send(initial(thing("a", 1)), initial(thing("b", 1, app="x")), end("5"))
    assert [type(report) for report in watch.reports] == [IndexerError]
    assert [o.name for o in watch.core.store.by_index("app", "x")] == ["b"]
    assert watch.names() == {"a": 1, "b": 1}
    watch.send(modified("6", thing("b", 2)))
    assert watch.core.store.by_index("app", "x") == []
    with pytest.raises(KeyError, match="there are: app"):
        watch.core.store.by_index("nope", "x")


def test_the_request_has_the_whole_selection() -> None:
    selection = Selection("ns", "a", "app=x", "spec.y=1", "true", None, Shard(1, 3))
    options = Options(policy=Policy.COALESCE, queue_length=7, bookmark_interval=0.25)
    core = Core("things", selection, View(drop=["status"], only_if_changed=True), {}, options, print)
    request = core.open_stream(0)
    assert request.queue == pb.QueueOptions(policy=pb.FULL_CHANNEL_POLICY_COALESCE, length=7)
    assert request.view == pb.View(drop=["status"], only_if_changed=True)
    assert request.bookmark_interval.nanos == 250_000_000
    assert (request.shard.ranges[0].start, request.shard.ranges[0].end) == (2**64 // 3, 2 * 2**64 // 3)
    assert Shard(2, 3).message().ranges[0].end == 0
    assert (request.namespace, request.name, request.label_selector) == ("ns", "a", "app=x")
    assert (request.field_selector, request.expression) == ("spec.y=1", "true")


def test_bodies() -> None:
    text = json.dumps({"big": 2**60, "x": [1.5]})
    assert Object("", "a", raw=text.encode()).body == {"big": 2**60, "x": [1.5]}
    assert Object("", "a", raw=b"\xff", media_type="application/octet-stream").body == b"\xff"
    assert Object("", "a").body is None
    with pytest.raises(ValueError, match="Expecting value"):
        Object("", "a", raw=b"nope").body  # noqa: B018


def test_plain_calls_select_as_informers_do() -> None:
    selection = Selection("shop", name="a,b=\\c", field_selector="spec.x=1")
    listed = _calls.list_request("things", selection, None, "", 0, "")
    assert listed.field_selector == r"spec.x=1,metadata.name=a\,b\=\\c"
    found = _calls.by_index_request("things", "app", "web", None, Selection(name="web"), None, "", 0, "")
    assert found.field_selector == "metadata.name=web"
    index = Selection(index=Index("node", ["n1"]))
    with pytest.raises(ValueError, match="by_index has an index already"):
        _calls.by_index_request("things", "app", "web", None, index, None, "", 0, "")
