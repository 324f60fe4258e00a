"""Clients under faults, all at once and against the real server, while the resource changes without pause.

An origin serves a directory of manifests, a relay serves the origin, and each client watches the relay through a proxy of its own.
One fault follows the other: kill -9 and drain of the relay, kill -9 of the origin (whose versions then begin anew), SIGSTOP of the
relay, connections that are cut, and black holes, which forward nothing on open or on all connections. After each there is a quiet
point. Checked are, for each client:

- at each quiet point its store is the server's List, and its handler log adds up to the same;
- at any time its store is a state that the resource has had, at its version, and never half of a batch;
- it is not healthy three bookmark intervals after the last message, at the latest;
- it is healthy at all other times: before a fault, and soon after its end.
"""

import argparse
import asyncio
import math
import random
import shlex
import signal
import tempfile
import time
from pathlib import Path

from driver import Driver, Failed
from proxy import Proxy
from server import Server
from storm import Storm
from truth import Truth, combined, key, listed

BOOKMARK_SECONDS = 1.0
SILENT_SECONDS = 3 * BOOKMARK_SECONDS
SAMPLE_SECONDS = 0.1
# A message that was under way when a fault began may reach the client later: it shares the machine with the others.
SLACK_SECONDS = 1.0
# Back-off, connecting and the first message, twice.
RECOVERY_SECONDS = 20
QUIET_SECONDS = 60
# All other waits have an end of their own; this is for those that were forgotten.
ANY_SECONDS = 900
START = {
    "resource": "things",
    "namespace": "",
    "label_selector": "",
    "bookmark_interval_ms": int(BOOKMARK_SECONDS * 1000),
    "first_message_timeout_ms": 5000,
    "connect_timeout_ms": 1000,
    "backoff_ms": 100,
    "max_backoff_ms": 1000,
    "drain_jitter_ms": 200,
    "request_timeout_ms": 5000,
    "token_file": "",
    "handler": {"fail_on": "", "delay_on": "", "delay_ms": 0},
}
POLICIES = ("REPLAY", "COALESCE")


class Fault:
    """A fault. With `is_silent`, nothing comes on open connections from its beginning on; `has_way_around`: but on new ones."""

    def __init__(self, name, is_silent, has_way_around=False):
        self.name, self.is_silent, self.has_way_around = name, is_silent, has_way_around
        self.began = self.ended = time.monotonic()


class Loop:
    """The servers, the storm, the clients, and the faults."""

    def __init__(self, arguments, directory):
        self.random = random.Random(arguments.seed)
        self.stop_seconds = arguments.stop
        manifests = directory / "manifests"
        manifests.mkdir()
        self.storm = Storm(manifests, self.random, arguments.rate)
        files = f"{{ files: {{ path: {manifests}, kind: Thing, rescan: 1s }} }}"
        self.origin = Server(arguments.informerd, "origin", {"things": files}, directory)
        relay = f"{{ informerd: {{ endpoint: 'http://{self.origin.address}' }} }}"
        self.relay = Server(arguments.informerd, "relay", {"things": relay}, directory)
        self.truth = Truth(self.origin.address)
        self.proxies, self.drivers = [], []
        for command in arguments.drivers:
            name, _, program = command.partition("=")
            for policy in POLICIES:
                self.proxies.append(Proxy(self.relay.port))
                self.drivers.append(Driver(f"{name} {policy}", shlex.split(program), directory / f"{name}-{policy}.log"))
        # Times at which this process itself did not run, so that it cannot judge the clients.
        self.stalls = []
        self.adopted = self.checked = 0
        self.noticed, self.recovered = {}, {}

    async def run(self, seconds):
        self.origin.start()
        self.relay.start()
        tasks = self.tasks = [asyncio.create_task(each) for each in (self.truth.run(), self.storm.run(), self._watch_stalls())]
        try:
            for at, (proxy, driver) in enumerate(zip(self.proxies, self.drivers)):
                await proxy.start()
                policy = POLICIES[at % len(POLICIES)]
                await driver.start(START | {"target": f"127.0.0.1:{proxy.port}", "policy": policy})
            await self._quiet("the start")
            tasks.extend(asyncio.create_task(self._sample(driver)) for driver in self.drivers)
            ends_at, count = time.monotonic() + seconds, 0
            # Each fault once, then each once more in another order.
            while count == 0 or time.monotonic() < ends_at:
                for fault in self.random.sample(FAULTS, len(FAULTS)):
                    if count < len(FAULTS) or time.monotonic() < ends_at:
                        await self._cycle(fault)
                        count += 1
            for driver in self.drivers:
                if (status := await driver.stop()) != 0:
                    raise Failed(f"{driver.name}: its driver ended with {status}")
            self._report(count)
        finally:
            for task in tasks:
                task.cancel()
            for driver in self.drivers:
                await driver.kill()
            for server in (self.origin, self.relay):
                server.kill()

    async def _watch_stalls(self):
        while True:
            before = time.monotonic()
            await asyncio.sleep(SAMPLE_SECONDS)
            late = time.monotonic() - before - SAMPLE_SECONDS
            if late > SAMPLE_SECONDS:
                self.stalls.append((before, before + SAMPLE_SECONDS + late))

    def _stalled(self, since, until):
        """Returns the time within a period in which this process did not run."""
        return sum(max(0, min(end, until) - max(start, since)) for start, end in self.stalls)

    async def _sample(self, driver):
        while driver.problem is None:
            await driver.sample()
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _cycle(self, act):
        for task in self.tasks:
            if task.done():
                task.result()
        began = time.monotonic()
        self.storm.resume()
        await asyncio.sleep(self.random.uniform(1, 3))
        fault = await act(self)
        fault.ended = time.monotonic()
        await asyncio.sleep(self.random.uniform(0, 2))
        await self.storm.pause()
        await self._quiet(fault.name)
        for proxy, driver in zip(self.proxies, self.drivers):
            self._check(proxy, driver, began, fault)
        print(f"ok  {fault.name}, {fault.ended - fault.began:.1f} s: {self._versions()}", flush=True)

    async def _quiet(self, after):
        """Waits until the server has everything, and then until each client has what the server has."""
        deadline = time.monotonic() + QUIET_SECONDS
        expected = {at: (each["metadata"]["uid"], each) for at, each in self.storm.objects.items()}
        while True:
            version, objects = await listed(self.relay.address)
            if {key(each): (each["uid"], each["body"]) for each in objects} == expected:
                break
            if time.monotonic() > deadline:
                raise Failed(f"after {after}, the server's List is not what was written")
            await asyncio.sleep(SAMPLE_SECONDS)
        self.version = version
        for driver in self.drivers:
            while True:
                sample, reply = await driver.sample()
                if driver.problem:
                    raise Failed(f"{driver.name}: {driver.problem}")
                is_current = sample.version == version and sample.state == "LIVE" and sample.digest == combined(objects)
                if is_current and driver.is_folded_to(objects):
                    break
                if time.monotonic() > deadline:
                    raise Failed(self._difference(driver, after, sample, reply["objects"], version, objects))
                await asyncio.sleep(SAMPLE_SECONDS)

    @staticmethod
    def _difference(driver, after, sample, store, version, objects):
        mine, theirs = ({key(each): each for each in side} for side in (store, objects))
        keys = sorted(at for at in mine.keys() | theirs.keys() if mine.get(at) != theirs.get(at))
        shown = [f"\n  {at}: {mine.get(at)} instead of {theirs.get(at)}" for at in keys[:3]]
        what = f"{len(keys)} keys differ" if keys else "the store is right, its version, state or handler log is not"
        return f"after {after}, {driver.name} is not at {version}: {sample}; {what}{''.join(shown)}"

    def _check(self, proxy, driver, began, fault):
        """Checks the samples of one cycle."""
        samples, driver.samples = driver.samples, []
        for sample in samples:
            self._check_sample(driver, sample)
        during = [sample for sample in samples if fault.began <= sample.asked and sample.answered <= fault.ended]
        first = next((sample for sample in samples if sample.asked >= fault.began and not sample.is_healthy), None)
        limit = fault.began + SILENT_SECONDS + SLACK_SECONDS
        limit += self._stalled(fault.began, limit)
        # From here on the client can be healthy, on another connection; between two samples it may have been unhealthy before.
        around = next((at for at in proxy.accepted if at >= fault.began), math.inf) if fault.has_way_around else math.inf
        late = [sample for sample in during if sample.is_healthy and sample.asked > limit and sample.answered < around]
        is_noticed = (around <= limit or first is not None and first.asked <= limit) and not late
        if fault.is_silent and not is_noticed:
            raise Failed(f"{driver.name}: {fault.name} at {fault.began:.2f} was not noticed by {limit:.2f}: {(late or during)[0]}")
        unhealthy = [sample for sample in samples if not sample.is_healthy]
        before = [sample for sample in unhealthy if began <= sample.asked and sample.answered < fault.began]
        if any(self._stalled(sample.asked - SILENT_SECONDS, sample.answered) < BOOKMARK_SECONDS for sample in before):
            raise Failed(f"{driver.name}: not healthy without a fault: {before[0]}")
        recovery = max([sample.answered - fault.ended for sample in unhealthy] + [0])
        if recovery > RECOVERY_SECONDS + self._stalled(fault.ended, fault.ended + recovery):
            raise Failed(f"{driver.name}: not healthy {recovery:.1f} s after the end of {fault.name}")
        if first:
            self.noticed.setdefault((driver.name, fault.name), []).append(first.answered - fault.began)
        self.recovered.setdefault((driver.name, fault.name), []).append(recovery)

    def _check_sample(self, driver, sample):
        known = self.truth.states.get(sample.version)
        if sample.version == "":
            # The client has no version to resume from, and lists again.
            is_false = sample.is_healthy
        elif known is None:
            # The origin was killed before this process had received it. The other clients have to agree.
            is_false, self.truth.states[sample.version] = False, sample.digest
            self.adopted += 1
        else:
            is_false, self.checked = known != sample.digest, self.checked + 1
        if is_false:
            raise Failed(f"{driver.name}: its store is not the state at its version: {sample}")
        # The age is in whole milliseconds.
        is_young = sample.age is not None and sample.age <= SILENT_SECONDS * 1000
        if sample.is_healthy and (sample.state not in ("LIVE", "STALE") or not is_young):
            raise Failed(f"{driver.name}: healthy without a message for three bookmark intervals: {sample}")
        if not sample.is_healthy and sample.state in ("LIVE", "STALE"):
            raise Failed(f"{driver.name}: {sample}")

    def _versions(self):
        return f"{len(self.drivers)} clients at {self.version}"

    def _report(self, count):
        if self.adopted > len(self.truth.states) / 10:
            raise Failed(f"{self.adopted} of {len(self.truth.states)} states are known from the clients alone")
        print(f"\n{count} faults, {self.storm.writes} writes, {self.checked} stores compared with their version's state")
        for driver in self.drivers:
            own = {fault: times for (name, fault), times in self.noticed.items() if name == driver.name}
            noticed = ", ".join(f"{fault} {max(times):.1f}" for fault, times in sorted(own.items()))
            recovery = max(max(times) for (name, _), times in self.recovered.items() if name == driver.name)
            print(f"{driver.name}: {driver.calls} calls; noticed after at most (s): {noticed}; healthy again {recovery:.1f} s")

    # The faults.

    def _outage_seconds(self):
        """Draws the length of a fault that the clients have to notice."""
        return self.random.uniform(SILENT_SECONDS + 2, SILENT_SECONDS + 5)

    async def kill_relay(self):
        fault = Fault("kill -9 of the relay", True)
        self.relay.kill()
        await asyncio.sleep(self._outage_seconds())
        self.relay.start()
        return fault

    async def restart_relay(self):
        fault = Fault("kill -9 and restart of the relay", False)
        self.relay.kill()
        self.relay.start()
        return fault

    async def drain_relay(self):
        fault = Fault("drain of the relay", False)
        await self.relay.drain()
        self.relay.start()
        return fault

    async def kill_origin(self):
        fault = Fault("kill -9 of the origin", False)
        self.origin.kill()
        await asyncio.sleep(self.random.uniform(0, 2))
        self.origin.start()
        return fault

    async def stop_relay(self):
        fault = Fault("SIGSTOP of the relay", True)
        self.relay.signal(signal.SIGSTOP)
        await asyncio.sleep(self.stop_seconds)
        self.relay.signal(signal.SIGCONT)
        return fault

    async def cut(self):
        fault = Fault("cut connections", False)
        for proxy in self.proxies:
            proxy.cut()
        return fault

    async def blackhole(self, new_too):
        fault = Fault(f"black hole of {'all' if new_too else 'open'} connections", True, not new_too)
        for proxy in self.proxies:
            proxy.blackhole(new_too)
        await asyncio.sleep(self._outage_seconds())
        for proxy in self.proxies:
            proxy.restore()
        return fault

    async def blackhole_open(self):
        return await self.blackhole(False)

    async def blackhole_all(self):
        return await self.blackhole(True)


FAULTS = (
    Loop.kill_relay,
    Loop.restart_relay,
    Loop.drain_relay,
    Loop.kill_origin,
    Loop.stop_relay,
    Loop.cut,
    Loop.blackhole_open,
    Loop.blackhole_all,
)


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--informerd", required=True, help="the binary")
    parser.add_argument("--seconds", type=float, default=60, help="no fault begins later; each comes once in any case")
    parser.add_argument("--stop", type=float, default=8, help="seconds of a SIGSTOP")
    parser.add_argument("--rate", type=float, default=50, help="writes a second")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("drivers", nargs="+", metavar="NAME=PROGRAM", help="a client and its conformance driver")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.seconds:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        loop = Loop(arguments, Path(directory))
        try:
            async with asyncio.timeout(arguments.seconds + ANY_SECONDS):
                await loop.run(arguments.seconds)
        except Failed as failure:
            for server in (loop.origin, loop.relay):
                print(f"-- log of the {server.name}\n{server.log()}")
            for driver in loop.drivers:
                if driver.name in str(failure):
                    print(f"-- stderr of {driver.name}\n{driver.log_path.read_text(errors='replace')[-4000:]}")
            raise SystemExit(f"FAILED with seed {arguments.seed}: {failure}") from None


if __name__ == "__main__":
    asyncio.run(main())
