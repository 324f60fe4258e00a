"""Checks with a Python program over grpcio, whose messages come from reflection, without generated stubs."""

import json
import os
import queue
import re
import subprocess
import threading
import time
import uuid

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

from harness import Failed, Manifests, check, equal, is_files_version, key

EVENT_SECONDS = 20
EXIT_SECONDS = 10


class Client:
    """Services of a server, called by the names of their methods."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address)
        self.pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))

    def call(self, method, /, _service="informerd.v1.InformerService", **request):
        """Starts a call; its request is the JSON form of the message. Returns an iterator or a message."""
        descriptor = self.pool.FindServiceByName(_service).methods_by_name[method]
        request_class = message_factory.GetMessageClass(descriptor.input_type)
        response_class = message_factory.GetMessageClass(descriptor.output_type)
        start = self.channel.unary_stream if descriptor.server_streaming else self.channel.unary_unary
        stub = start(
            f"/{_service}/{method}",
            request_serializer=request_class.SerializeToString,
            response_deserializer=response_class.FromString,
        )
        return stub(json_format.ParseDict(request, request_class()), timeout=120)


def as_dict(message):
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


class Watching:
    """Open Watch, read by a thread, so that waiting for its next message can have a deadline."""

    def __init__(self, client, **request):
        self.call = client.call("Watch", **request)
        self.messages = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            for response in self.call:
                self.messages.put((time.monotonic(), as_dict(response)))
            self.messages.put((time.monotonic(), None))
        except grpc.RpcError as error:
            self.messages.put((time.monotonic(), error))

    def next(self, seconds=EVENT_SECONDS):
        """Returns the next message and its time; at the end of the stream, its error, or None if it ended well."""
        try:
            return self.messages.get(timeout=seconds)
        except queue.Empty:
            raise Failed(f"nothing came on a Watch within {seconds:.0f} s") from None

    def event(self):
        """Returns the time of the next change, and the change: any other message but a bookmark is an error."""
        while True:
            at, message = self.next()
            if not isinstance(message, dict):
                raise Failed(f"a Watch ended where a change was awaited: {message}")
            if message["type"] != "EVENT_TYPE_BOOKMARK":
                return at, message

    def cancel(self):
        self.call.cancel()


def error_info(error):
    """Returns the ErrorInfo among the details of a status."""
    for detail in rpc_status.from_call(error).details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo()
            detail.Unpack(info)
            return info
    raise Failed(f"no ErrorInfo in the details of: {error}")


def describe(event):
    """Returns a change as one tuple, for comparison."""
    body = event["object"]
    return event["type"].removeprefix("EVENT_TYPE_"), event.get("cause", ""), key(body), body["struct"]


def run(server, manifests):
    client = Client(server.address)
    listing(client, manifests)
    errors(client)
    version = changes(client, manifests)
    shutdown(server, client)
    after_restart(server, manifests.directory, version)


def listing(client, manifests):
    pods = manifests.objects["Pod"]
    chunks = list(client.call("List", resource="pods", format="PAYLOAD_FORMAT_RAW"))
    found = {f"{each.namespace}/{each.name}": json.loads(each.raw) for chunk in chunks for each in chunk.objects}
    equal(found, pods, f"grpcio: List of {len(pods)} pods as RAW gives the JSON of the manifests")

    found, versions, token = [], set(), ""
    for page in range(len(pods)):
        chunks = list(client.call("List", resource="pods", page_size=5, page_token=token))
        names = [f"{each.namespace}/{each.name}" for chunk in chunks for each in chunk.objects]
        if len(names) > 5:
            raise Failed(f"a page of 5 has {len(names)}")
        found += names
        versions |= {chunk.resource_version for chunk in chunks}
        token = chunks[-1].next_page_token
        if not token:
            break
    equal(found, manifests.keys("Pod"), f"grpcio: List in {page + 1} pages of 5 has every pod once, sorted")
    equal(len(versions), 1, "grpcio: all pages are of one snapshot")


def errors(client):
    for method, code, reason, words, request in (
        ("List", "NOT_FOUND", "RESOURCE_NOT_FOUND", ["pods", "services"], {"resource": "unicorns"}),
        ("Watch", "NOT_FOUND", "RESOURCE_NOT_FOUND", ["pods", "services"], {"resource": "unicorns"}),
        ("Get", "NOT_FOUND", "OBJECT_NOT_FOUND", [], {"resource": "pods", "namespace": "orders", "name": "no-such"}),
        ("Watch", "INVALID_ARGUMENT", "LABEL_SELECTOR_INVALID", [], {"resource": "pods", "label_selector": "app in (web"}),
        ("Watch", "INVALID_ARGUMENT", "RESOURCE_VERSION_INVALID", [], {"resource": "pods", "resource_version": "x y"}),
        ("Watch", "INVALID_ARGUMENT", "EXPRESSION_INVALID", [], {"resource": "pods", "expression": "1 +"}),
        ("Watch", "OUT_OF_RANGE", "RESOURCE_VERSION_EXPIRED", [], {"resource": "pods", "resource_version": "old.7"}),
    ):
        info = refused(client, method, code, reason, **request)
        text = " ".join(info.metadata.values())
        check(all(word in text for word in words), f"  and metadata: {dict(info.metadata)}", f"wanted {words}")


def changes(client, manifests):
    """Edits manifests under open watches; returns the last version that it has seen."""
    pods = manifests.objects["Pod"]
    every = Watching(client, resource="pods")
    initial = [every.next()[1] for _ in pods]
    equal(
        {describe(event)[:3] for event in initial},
        {("ADDED", "CAUSE_INITIAL", name) for name in pods},
        f"grpcio: Watch begins with an ADDED for each of {len(pods)} pods",
    )
    versions = [event["resource_version"] for event in initial if event.get("resource_version")]
    equal(versions, [], "grpcio: none of which is a point to resume from")
    bookmark = every.next()[1]
    start = bookmark.get("resource_version", "")
    end = bookmark.get("bookmark", {}).get("initial_events_end")
    check(end, "grpcio: then a BOOKMARK with initial_events_end", bookmark)
    check(is_files_version(start), f"grpcio: which is one: {start}")

    running = Watching(
        client, resource="pods", initial_events="INITIAL_EVENTS_NONE", field_selector="status.phase=Running"
    )
    joined = running.next()[1]
    equal(
        (joined["type"], joined.get("resource_version")),
        ("EVENT_TYPE_BOOKMARK", start),
        "grpcio: with INITIAL_EVENTS_NONE a Watch begins with a BOOKMARK where it joins",
    )

    answer = as_dict(client.call("ListWatchers", _service="informerd.v1.AdminService", resource="pods"))
    policies = [each.get("policy") for each in answer.get("watchers", [])]
    equal(policies, ["FULL_CHANNEL_POLICY_REPLAY"] * 2, "grpcio: ListWatchers has the two, of the default policy")

    # One pod of a file with several objects; sed writes another file and renames it over the first.
    pod = next(name for name in manifests.keys("Pod") if pods[name]["metadata"]["labels"]["app"] == "checkout")
    path, before, address = manifests.files["Pod", pod], pods[pod], pods[pod]["status"]["podIP"]
    expression = rf"s/phase: Running, podIP: {re.escape(address)} /phase: Failed, podIP: {address} /"
    subprocess.run(["sed", "-i", expression, str(path)], check=True)
    saved = time.monotonic()
    after = Manifests(manifests.directory).objects["Pod"][pod]
    if after["status"]["phase"] != "Failed":
        raise Failed(f"sed has not changed {path}")
    at, modified = every.event()
    equal(describe(modified), ("MODIFIED", "", pod, after), f"grpcio: sed -i: MODIFIED after {milliseconds(saved, at)}")
    equal(modified["object"]["uid"], before["metadata"]["uid"], "grpcio: of the same uid")
    equal(
        describe(running.event()[1]),
        ("DELETED", "CAUSE_LEFT_SELECTION", pod, before),
        "grpcio: for the Watch of Running ones it has left, with its last state there",
    )

    documents = path.read_text().split("\n---\n")
    kept = [each for each in documents if f"  name: {pod.split('/')[1]}\n" not in each]
    if len(kept) != len(documents) - 1:
        raise Failed(f"{pod} is not one document of {path}")
    rename_over(path, "\n---\n".join(kept).rstrip("\n") + "\n")
    saved = time.monotonic()
    at, deleted = every.event()
    equal(
        describe(deleted),
        ("DELETED", "", pod, after),
        f"grpcio: its document is gone: DELETED, with its last state, after {milliseconds(saved, at)}",
    )

    failed = next(name for name in manifests.keys("Pod") if manifests.files["Pod", name].suffix == ".json")
    manifests.files["Pod", failed].unlink()
    saved = time.monotonic()
    at, removed = every.event()
    equal(
        describe(removed),
        ("DELETED", "", failed, pods[failed]),
        f"grpcio: a file is gone: DELETED, with its last state, after {milliseconds(saved, at)}",
    )

    again = json.loads(json.dumps(before))
    again["metadata"]["uid"] = str(uuid.uuid4())
    rename_over(path.with_name("checkout-again.json"), json.dumps(again))
    saved = time.monotonic()
    at, added = every.event()
    equal(describe(added), ("ADDED", "", pod, again), f"grpcio: a new file: ADDED after {milliseconds(saved, at)}")
    also = describe(running.event()[1])
    equal(also, ("ADDED", "", pod, again), "grpcio: also for the Watch of Running ones, and nothing in between")

    history = [modified, deleted, removed, added]
    numbers = [int(event["resource_version"].rpartition(".")[2]) for event in (bookmark, *history)]
    check(numbers == sorted(set(numbers)), "grpcio: versions went up", numbers)
    resumed = Watching(client, resource="pods", resource_version=start)
    equal(
        [resumed.event()[1] for _ in history],
        history,
        f"grpcio: a Watch resumed from {start} gets the same {len(history)} changes at the same versions",
    )
    path.with_name("checkout-again.json").unlink()
    equal(
        describe(resumed.event()[1]),
        ("DELETED", "", pod, again),
        "grpcio: then the next change",
    )
    gone = every.event()[1]
    equal(describe(gone), ("DELETED", "", pod, again), "grpcio: as does the Watch that was open all the time")
    resumed.cancel()
    for watch in (every, running):
        watch.cancel()
    return gone["resource_version"]


def refused(client, method, code, reason, **request):
    """Checks that a call returns a status, and nothing else."""
    try:
        answer = client.call(method, **request)
        messages = [as_dict(each) for each in answer] if hasattr(answer, "__iter__") else [as_dict(answer)]
        raise Failed(f"grpcio: {method} {request} was answered: {messages}")
    except grpc.RpcError as error:
        equal(error.code().name, code, f"grpcio: {method} {request} is {code}")
        info = error_info(error)
        equal((info.domain, info.reason), ("informerd", reason), f"  its ErrorInfo has the reason {reason}")
        return info


def shutdown(server, client):
    """Sends SIGTERM under open watches: each gets a message, and ends; the process exits with 0."""
    watches = [Watching(client, resource=name, initial_events="INITIAL_EVENTS_NONE") for name in ("pods", "services")]
    for watch in watches:
        watch.next()
    sent = time.monotonic()
    server.terminate()
    for watch in watches:
        message = watch.next(EXIT_SECONDS)[1]
        while isinstance(message, dict) and not message.get("bookmark", {}).get("draining"):
            if message["type"] != "EVENT_TYPE_BOOKMARK":
                raise Failed(f"after SIGTERM a Watch got: {message}")
            message = watch.next(EXIT_SECONDS)[1]
        check(isinstance(message, dict), "grpcio: after SIGTERM a Watch gets a BOOKMARK with draining", message)
        check(is_files_version(message.get("resource_version", "")), "grpcio: which is a point to resume from", message)
        at, end = watch.next(EXIT_SECONDS)
        if isinstance(end, dict) and end["type"] == "EVENT_TYPE_ERROR":
            at, end = watch.next(EXIT_SECONDS)
        check(isinstance(end, grpc.RpcError), "grpcio: then it ends with a status", end)
        equal(end.code().name, "UNAVAILABLE", f"grpcio: which is UNAVAILABLE, after {milliseconds(sent, at)}")
        equal(error_info(end).reason, "DRAINING", "grpcio: for the reason DRAINING")
    code = server.exit_code(EXIT_SECONDS - (time.monotonic() - sent))
    equal(code, 0, f"the server has exited with 0, {milliseconds(sent, time.monotonic())} after SIGTERM")
    client.channel.close()


def after_restart(server, directory, version):
    """Serves the same directory after a restart: its current objects, and versions of another lineage."""
    server.start()
    client = Client(server.address)
    wanted = Manifests(directory).objects["Pod"]
    chunks = client.call("List", resource="pods")
    found = {key(each): each["struct"] for chunk in chunks for each in as_dict(chunk).get("objects", [])}
    equal(found, wanted, f"grpcio: after a restart List has the {len(wanted)} pods of the edited manifests")
    # A version from before the restart has another lineage.
    info = refused(client, "Watch", "OUT_OF_RANGE", "RESOURCE_VERSION_EXPIRED", resource="pods", resource_version=version)
    check(is_files_version(info.metadata["current"]), f"  and the current version: {info.metadata['current']}")
    client.channel.close()
    server.terminate()
    equal(server.exit_code(EXIT_SECONDS), 0, "the server has exited with 0, with no Watch open")


def rename_over(path, text):
    """Saves a file as an editor does: another file, under an ignored name, renamed over it."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def milliseconds(start, end):
    return f"{max(0.0, (end - start) * 1000):.0f} ms"
