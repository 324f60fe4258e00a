"""A rolling restart of two replicas over one etcd, under clients of all languages that watch, while a writer changes keys.

Each driver has many clients, and all of them connect through one balancer. Three quarters of them watch a resource that changes all
the time, and the others one that does not change until the end: its version advances with that of etcd all the same. The replicas
are restarted one after the other, as by a Deployment: SIGTERM, exit, start, ready. A pod takes longer to start than clients take to
move, so a replica starts again when its clients are at the other one: a server has no history from before its own list.

Checked are:

- each handler log is the writer's log: every change once, in order;
- no client lists again: the audit logs of the servers have one watch with initial events for each client, and no List;
- each server ends by itself within its drain, with exit code 0, and resets no stream.

Times are printed. With --kill the replicas are killed instead, and what differs is printed, not checked.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import shlex
import signal
import tempfile
import time
from pathlib import Path

from balancer import Balancer, Replica
from driver import Failed, Process
from etcd import Etcd
from server import Server, free_port

KEYS = 40
# Keys that exist before the clients begin.
SEEDS = 20
# Each wait has an end, as long as it takes a busy machine.
ANY_SECONDS = 120
POLL_SECONDS = 0.05
# Writes before the first restart, and after the last.
QUIET_WRITES = 50
BUSY, QUIET = "things", "settings"
# One client of so many watches the quiet resource.
QUIET_SHARE = 4
# The defaults of the clients.
START = {
    "namespace": "",
    "label_selector": "",
    "policy": "",
    "bookmark_interval_ms": 10_000,
    "first_message_timeout_ms": 100_000,
    "connect_timeout_ms": 5_000,
    "backoff_ms": 200,
    "max_backoff_ms": 10_000,
    "drain_jitter_ms": 1_000,
    "request_timeout_ms": 30_000,
    "token_file": "",
    "handler": {"fail_on": "", "delay_on": "", "delay_ms": 0},
}
# The defaults of drain.delay and drain.period.
DRAIN_SECONDS = 0 + 5
# A server logs it before it resets what is open.
DRAIN_TIMED_OUT = "drain timed out"

# A call of a handler: its kind, the key, the number in the body, and the version of the object. A deletion has the number of the
# last body, and no version.
Change = collections.namedtuple("Change", "kind key number version")


class Writer:
    """Writer of a resource, one change after the other, each in a transaction of its own; and the log of the changes."""

    def __init__(self, etcd, resource, seed):
        self.etcd, self.resource, self.prefix = etcd, resource, f"/{resource}/"
        self.random = random.Random(seed)
        # Number in the body of each key.
        self.numbers = {}
        self.count = 0
        self.seeds, self.log = [], []
        self.is_running = True

    async def seed(self):
        self.seeds = [await self._put(self._key(at)) for at in range(SEEDS)]

    async def run(self, rate):
        due = time.monotonic()
        while self.is_running:
            await self.change()
            due += 1 / rate
            await asyncio.sleep(max(0, due - time.monotonic()))

    @staticmethod
    def _key(at):
        return f"ns{at % 3}/key-{at}"

    async def change(self):
        key = self._key(self.random.randrange(KEYS))
        if key in self.numbers and self.random.random() < 0.2:
            await self.etcd.delete(self.prefix + key)
            self.log.append(Change("deleted", key, self.numbers.pop(key), ""))
        else:
            self.log.append(await self._put(key))

    async def _put(self, key):
        kind = "updated" if key in self.numbers else "added"
        self.count += 1
        self.numbers[key] = self.count
        revision = await self.etcd.put(self.prefix + key, json.dumps({"n": self.count}))
        return Change(kind, key, self.count, str(revision))


class Client:
    """The handler log of one client."""

    def __init__(self, name, writer):
        self.name, self.writer = name, writer
        self.is_synced = False
        self.log = []
        # Time of the last call, and the longest time between two calls.
        self.called_at, self.gap = 0, 0

    def receive(self, message):
        """Takes a line of the handler; returns the rule that it violates, if any."""
        kind = message["event"]
        if kind == "synced":
            self.is_synced = True
            return None
        if kind in ("failed", "handler_error"):
            return f"{self.name} reported {message}"
        item = message["object"]
        version = "" if kind == "deleted" else item["version"]
        self.log.append(Change(kind, f"{item['namespace']}/{item['name']}", item["body"]["n"], version))
        now = time.monotonic()
        if len(self.log) > SEEDS + 1:
            self.gap = max(self.gap, now - self.called_at)
        self.called_at = now
        return None

    def has(self, changes):
        """Returns true if the log has the list and this number of changes."""
        return len(self.log) >= SEEDS + changes

    def difference(self):
        """Returns the first difference to the writer's log; none if they are equal. The order of a list is free."""
        expected = sorted(self.writer.seeds) + self.writer.log
        found = sorted(self.log[:SEEDS]) + self.log[SEEDS:]
        if found == expected:
            return None
        at = len(os.path.commonprefix([found, expected]))
        return f"{self.name}: {len(found)} calls of {len(expected)}; call {at} is {found[at:][:3]}, not {expected[at:][:3]}"


class Fleet(Process):
    """A driver with many clients."""

    def __init__(self, name, command, log_path, clients):
        super().__init__(name, command, log_path)
        self.clients = clients

    async def begin(self, target):
        starts = ({"target": target, "resource": each.writer.resource, "client": at} for at, each in enumerate(self.clients))
        await self.start(*(START | start for start in starts))

    def _receive(self, message):
        return self.clients[message["client"]].receive(message)

    async def stop(self):
        for at in range(len(self.clients)):
            await self._ask("stop", client=at)
        return await self._end()


class Audit:
    """The audit log of a server, over all its runs."""

    def __init__(self, path):
        calls = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        begun = [call for call in calls if call["event"] == "begin"]
        self.lists = [call for call in begun if self._is_list(call)]
        self.resumed = [call for call in begun if not self._is_list(call)]
        # Calls that were denied, and lines that were lost.
        self.other = [call for call in calls if call["event"] not in ("begin", "end")]

    @staticmethod
    def _is_list(call):
        return call["method"] != "Watch" or call["from"] == "LIST"


class Restart:
    """The restart of one server, and its times."""

    def __init__(self, name, connections, ended, moved, ready):
        self.name, self.connections, self.ended, self.moved, self.ready = name, connections, ended, moved, ready

    def __str__(self):
        times = f"ended after {self.ended:.2f} s, its clients moved after {self.moved:.2f} s"
        return f"{self.name}, {self.connections} connections: {times}, ready {self.ready:.2f} s after its start"


class Rolling:
    """etcd, two replicas, the balancer, and the clients."""

    def __init__(self, arguments, directory):
        self.is_kill, self.directory = arguments.kill, directory
        self.drain_seconds, drain = DRAIN_SECONDS, ""
        if arguments.drain:
            self.drain_seconds = sum(arguments.drain)
            drain = "drain: {{ delay: {:.0f}ms, period: {:.0f}ms }}\n".format(*(each * 1000 for each in arguments.drain))
        self.etcd = Etcd(arguments.etcd, directory)
        self.rate = arguments.rate
        self.busy, self.quiet = (Writer(self.etcd, resource, arguments.seed) for resource in (BUSY, QUIET))
        endpoints = f"endpoints: ['{self.etcd.url}']"
        sources = {resource: f"{{ etcd: {{ {endpoints}, prefix: /{resource}/ }} }}" for resource in (BUSY, QUIET)}
        self.servers, self.replicas = [], []
        for name in ("a", "b"):
            admin = free_port()
            settings = (
                f"admin: {{ listen: 127.0.0.1:{admin} }}\naudit: {{ file: {self._audit(name)} }}\n{drain}"
                # All clients have the address of the balancer.
                "limits: { peer_share: 100 }"
            )
            server = Server(arguments.informerd, name, sources, directory, settings)
            self.servers.append(server)
            self.replicas.append(Replica(server.port, admin))
        self.balancer = Balancer(*self.replicas)
        self.fleets = []
        for at, driver in enumerate(arguments.drivers):
            name, _, program = driver.partition("=")
            count = (arguments.clients + at) // len(arguments.drivers)
            writers = [self.busy if number % QUIET_SHARE else self.quiet for number in range(count)]
            clients = [Client(f"{name} {number}", writer) for number, writer in enumerate(writers)]
            self.fleets.append(Fleet(name, shlex.split(program), directory / f"{name}.log", clients))
        self.clients = [client for fleet in self.fleets for client in fleet.clients]

    def _audit(self, name):
        return self.directory / f"audit-{name}.jsonl"

    async def run(self):
        try:
            await self.etcd.start()
            for writer in (self.busy, self.quiet):
                await writer.seed()
            for server in self.servers:
                server.start()
            await self.balancer.start()
            for replica in self.replicas:
                await self._until("a server is ready", replica.ready.is_set)
            for fleet in self.fleets:
                await fleet.begin(f"127.0.0.1:{self.balancer.port}")
            await self._until("each client has listed", lambda: all(each.is_synced for each in self.clients))
            writing = asyncio.create_task(self.busy.run(self.rate))
            await self._writes(QUIET_WRITES, writing)
            began = time.monotonic()
            restarts = [await self._restart(*each) for each in zip(self.servers, self.replicas)]
            whole = time.monotonic() - began
            await self._writes(QUIET_WRITES, writing)
            self.busy.is_running = False
            await writing
            await self.quiet.change()
            # A client that misses some has a difference below.
            await self._until("each client has all changes", self._has_all, is_fatal=False)
            for fleet in self.fleets:
                if (status := await fleet.stop()) != 0:
                    raise Failed(f"{fleet.name}: its driver ended with {status}")
            for server in self.servers:
                await self._drain(server)
            self._check()
            self._report(restarts, whole)
        finally:
            for fleet in self.fleets:
                await fleet.kill()
            for server in (*self.servers, self.etcd):
                server.kill()

    def _has_all(self):
        return all(each.has(len(each.writer.log)) for each in self.clients)

    async def _until(self, what, is_met, is_fatal=True):
        """Waits for a condition."""
        deadline = time.monotonic() + ANY_SECONDS
        while not is_met():
            for fleet in self.fleets:
                if fleet.problem:
                    raise Failed(f"{fleet.name}: {fleet.problem}")
            if time.monotonic() > deadline:
                if is_fatal:
                    raise Failed(f"not within {ANY_SECONDS} s: {what}")
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _writes(self, count, writing):
        """Waits until each client of the busy resource has this number of further changes."""
        count += len(self.busy.log)
        following = [each for each in self.clients if each.writer is self.busy]
        await self._until("further changes", lambda: writing.done() or all(each.has(count) for each in following))
        if writing.done():
            writing.result()

    async def _drain(self, server):
        """Ends a server, within its drain."""
        began = time.monotonic()
        status = await server.drain()
        seconds = time.monotonic() - began
        if status != 0:
            raise Failed(f"{server.name} ended with {status}")
        if seconds > self.drain_seconds or DRAIN_TIMED_OUT in server.log_path.read_text(encoding="utf-8"):
            raise Failed(f"{server.name} has not drained within {self.drain_seconds:.1f} s, but {seconds:.2f}")

    async def _restart(self, server, replica):
        began, connections = time.monotonic(), replica.connections
        if not connections:
            raise Failed(f"no client is connected to {server.name}")
        if self.is_kill:
            server.kill()
        else:
            await self._drain(server)
        ended = time.monotonic()
        await self._until("the balancer leaves the server out", lambda: not replica.ready.is_set())
        other = next(each for each in self.replicas if each is not replica)
        while await other.watchers() < len(self.clients):
            await self._until(f"{other.connections} clients are connected", lambda: other.connections >= len(self.clients))
            await asyncio.sleep(POLL_SECONDS)
        moved = time.monotonic()
        server.start()
        await self._until(f"{server.name} is ready again", replica.ready.is_set)
        return Restart(server.name, connections, ended - began, moved - began, time.monotonic() - moved)

    def _check(self):
        self.audits = [Audit(self._audit(server.name)) for server in self.servers]
        differences = [difference for each in self.clients if (difference := each.difference())]
        lists = [call for audit in self.audits for call in audit.lists]
        other = [call for audit in self.audits for call in audit.other]
        problems = [f"{len(differences)} handler logs differ from the writer's: {differences[0]}"] if differences else []
        if len(lists) != len(self.clients):
            last = sorted(lists, key=lambda call: call["time"])[-1]
            problems.append(f"{len(lists)} lists of {len(self.clients)} clients; the last: {last}")
        if other:
            problems.append(f"the audit logs have {other[:5]}")
        if problems and not self.is_kill:
            raise Failed("\n".join(problems))
        for problem in problems:
            print(f"not checked with --kill: {problem}")

    def _report(self, restarts, whole):
        lists, resumed = (sum(map(len, calls)) for calls in zip(*((audit.lists, audit.resumed) for audit in self.audits)))
        print(f"{len(self.clients)} clients, {len(self.busy.log)} changes: {lists} lists, {resumed} watches resumed")
        for restart in restarts:
            print(restart)
        drains, allowed = sum(each.ended for each in restarts), self.drain_seconds * len(restarts)
        print(f"the whole {whole:.2f} s, {drains:.2f} s of it drains, which have {allowed:.1f} s")
        for fleet in self.fleets:
            gaps = [each.gap for each in fleet.clients if each.writer is self.busy]
            print(f"{fleet.name}: {len(fleet.clients)} clients, at most {max(gaps, default=0):.2f} s without a change")


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--informerd", required=True, help="the binary")
    parser.add_argument("--etcd", default=os.environ.get("INFORMERD_UPSTREAMS"), help="the program of tests/upstreams")
    parser.add_argument("--clients", type=int, default=200, help="number of clients, over all drivers")
    parser.add_argument("--rate", type=float, default=50, help="writes a second")
    parser.add_argument(
        "--drain", type=float, nargs=2, metavar=("DELAY", "PERIOD"), help="seconds; those of the program if left out"
    )
    parser.add_argument("--kill", action="store_true", help="kill -9 in place of SIGTERM; report only")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("drivers", nargs="+", metavar="NAME=PROGRAM", help="a client and its conformance driver")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.clients} clients, {arguments.rate:.0f} writes a second", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        rolling = Rolling(arguments, Path(directory))
        try:
            async with asyncio.timeout(5 * ANY_SECONDS):
                await rolling.run()
        except Failed as failure:
            for server in rolling.servers:
                print(f"-- log of {server.name}\n{server.log()}")
            for fleet in rolling.fleets:
                if fleet.name in str(failure):
                    print(f"-- stderr of {fleet.name}\n{fleet.log_path.read_text(errors='replace')[-4000:]}")
            raise SystemExit(f"FAILED with seed {arguments.seed}: {failure}") from None


if __name__ == "__main__":
    asyncio.run(main())
