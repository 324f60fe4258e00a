"""The states of the resource: each version with a digest of its objects, and the server's List."""

import asyncio
import hashlib
import json

import grpc
from google.protobuf.duration_pb2 import Duration
from informerd.v1 import informerd_pb2 as pb
from informerd.v1 import informerd_pb2_grpc

RETRY_SECONDS = 0.02
# Of an origin, which sends a bookmark ten times a second.
SILENT_SECONDS = 5
# Channels share neither connections nor their back-off.
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 50), ("grpc.initial_reconnect_backoff_ms", 20)]


def digest(item):
    """Returns the digest of an object in the form of the conformance protocol. Those of a state are combined with XOR."""
    text = json.dumps([item[field] for field in ("namespace", "name", "uid", "version", "labels", "body")], sort_keys=True)
    return int.from_bytes(hashlib.sha1(text.encode()).digest()[:8])


def combined(objects):
    result = 0
    for each in objects:
        result ^= digest(each)
    return result


def key(item):
    return item["namespace"], item["name"]


def translated(message):
    """Returns an object of the contract in the form of the conformance protocol."""
    return {
        "namespace": message.namespace,
        "name": message.name,
        "uid": message.uid,
        "version": message.resource_version,
        "labels": dict(message.labels),
        "body": json.loads(message.raw),
    }


def number(version):
    """Returns the number in a version of a lineage."""
    return int(version.rsplit(".", 1)[-1])


async def listed(address):
    """Returns the version and the objects of a List."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        stub = informerd_pb2_grpc.InformerServiceStub(channel)
        request = pb.ListRequest(resource="things", format=pb.PAYLOAD_FORMAT_RAW)
        version, objects = "", []
        async for chunk in stub.List(request, wait_for_ready=True, timeout=10):
            version = chunk.resource_version
            objects.extend(translated(each) for each in chunk.objects)
        return version, objects


class Truth:
    """Watch of the origin, which no fault but its own end interrupts. The versions of a relay are those of its origin."""

    def __init__(self, address):
        self.address = address
        self.states = {}

    async def run(self):
        while True:
            try:
                async with grpc.aio.insecure_channel(self.address, options=OPTIONS) as channel:
                    await self._follow(informerd_pb2_grpc.InformerServiceStub(channel))
            except (grpc.RpcError, TimeoutError):
                pass
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self, stub):
        interval = Duration(nanos=100_000_000)
        request = pb.WatchRequest(resource="things", format=pb.PAYLOAD_FORMAT_RAW, bookmark_interval=interval)
        digests, state, last = {}, 0, None
        call = stub.Watch(request, wait_for_ready=True)
        while message := await asyncio.wait_for(call.read(), SILENT_SECONDS):
            version = message.resource_version
            if message.type == pb.EVENT_TYPE_BOOKMARK:
                is_within = False
            elif message.type in (pb.EVENT_TYPE_ADDED, pb.EVENT_TYPE_MODIFIED, pb.EVENT_TYPE_DELETED):
                item = translated(message.object)
                state ^= digests.pop(key(item), 0)
                if message.type != pb.EVENT_TYPE_DELETED:
                    digests[key(item)] = digest(item)
                    state ^= digests[key(item)]
                # Inside a batch, or among the initial events.
                is_within = version in ("", last) or number(version) < number(item["version"])
            else:
                return
            if not is_within:
                self.states[version] = state
                last = version
