"""Time until clients are right again after a kill -9 and restart of the server, with the times that clients have by default.

One server serves a directory of manifests to all clients. It is killed, an object changes, and it is started again: it has other
versions then, so that each client lists again. Measured is the time from the server's first List with the change until the client is
LIVE and has the objects of that List. Fails where the median of a client is longer than the limit.
"""

import argparse
import asyncio
import json
import shlex
import statistics
import tempfile
import time
from pathlib import Path

import grpc
from driver import Driver, Failed
from rolling import START as DEFAULTS
from server import Server
from truth import combined, listed

LIMIT_SECONDS = 2.0
OBJECTS = 200
SAMPLE_SECONDS = 0.02
ROUND_SECONDS = 60
START = {**DEFAULTS, "resource": "things"}


def write(directory, number, value):
    metadata = {"namespace": "ns", "name": f"thing-{number}", "labels": {"app": "restart"}}
    draft = directory.parent / "draft"
    draft.write_text(json.dumps({"apiVersion": "v1", "kind": "Thing", "metadata": metadata, "value": value}), encoding="utf-8")
    draft.replace(directory / f"{number}.json")


async def ready(server, value):
    """Waits until the server has the change, and returns its objects."""
    deadline = time.monotonic() + ROUND_SECONDS
    while time.monotonic() < deadline:
        server.check()
        try:
            _, objects = await listed(server.address)
        except grpc.RpcError:
            objects = []
        if len(objects) == OBJECTS and any(each["body"]["value"] == value for each in objects):
            return objects
        await asyncio.sleep(SAMPLE_SECONDS)
    raise Failed(f"the server is not ready within {ROUND_SECONDS} s: {server.log()}")


async def recovered(driver, objects, since):
    """Waits until a client has the objects, and returns how long that took."""
    while True:
        asked = time.monotonic()
        sample, _ = await driver.sample()
        driver.samples.clear()
        if driver.problem:
            raise Failed(f"{driver.name}: {driver.problem}")
        if sample.state == "LIVE" and sample.digest == combined(objects):
            return max(0.0, asked - since)
        if asked > since + ROUND_SECONDS:
            raise Failed(f"{driver.name} is not right {ROUND_SECONDS} s after the restart: {sample}")
        await asyncio.sleep(SAMPLE_SECONDS)


async def run(arguments, directory):
    manifests = directory / "manifests"
    manifests.mkdir()
    for number in range(OBJECTS):
        write(manifests, number, 0)
    server = Server(arguments.informerd, "server", {"things": f"{{ files: {{ path: {manifests}, kind: Thing }} }}"}, directory)
    drivers = []
    for command in arguments.drivers:
        name, _, program = command.partition("=")
        drivers.append(Driver(name, shlex.split(program), directory / f"{name}.log"))
    times = {driver.name: [] for driver in drivers}
    try:
        server.start()
        objects = await ready(server, 0)
        for driver in drivers:
            await driver.start(START | {"target": server.address})
        await asyncio.gather(*(recovered(driver, objects, time.monotonic()) for driver in drivers))
        for value in range(1, arguments.rounds + 1):
            server.kill()
            write(manifests, value % OBJECTS, value)
            await asyncio.sleep(arguments.outage)
            server.start()
            objects = await ready(server, value)
            since = time.monotonic()
            for driver, took in zip(drivers, await asyncio.gather(*(recovered(each, objects, since) for each in drivers))):
                times[driver.name].append(took)
        for driver in drivers:
            if (status := await driver.stop()) != 0:
                raise Failed(f"{driver.name}: its driver ended with {status}")
    finally:
        for driver in drivers:
            await driver.kill()
        server.kill()
    late = []
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name}: LIVE and equal {median:.2f} s after the server is ready (median of {len(taken)}; at most {max(taken):.2f} s)")
        if median > LIMIT_SECONDS:
            late.append(name)
    if late:
        raise Failed(f"later than {LIMIT_SECONDS} s: {', '.join(late)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--informerd", required=True, help="the binary")
    parser.add_argument("--rounds", type=int, default=10, help="restarts")
    parser.add_argument("--outage", type=float, default=0, help="seconds between the kill and the start; back-offs grow meanwhile")
    parser.add_argument("drivers", nargs="+", metavar="NAME=PROGRAM", help="a client and its conformance driver")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        try:
            asyncio.run(run(arguments, Path(directory)))
        except Failed as failure:
            raise SystemExit(f"FAILED: {failure}") from None


if __name__ == "__main__":
    main()
