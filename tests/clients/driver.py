"""Processes of drivers, over the protocol of the conformance suite, and the lines of their handlers."""

import asyncio
import itertools
import json
import os
import signal
import time
from asyncio import FIRST_COMPLETED

from truth import combined, digest, key

LINE_BYTES = 64 << 20
REPLY_SECONDS = 60


class Failed(Exception):
    """A rule does not hold."""


class Sample:
    """One answer to the question for the state."""

    def __init__(self, asked, answered, reply):
        self.asked, self.answered = asked, answered
        self.version, self.state, self.is_healthy = reply["version"], reply["state"], reply["healthy"]
        self.age = reply["last_message_age_ms"]
        self.digest = combined(reply["objects"])

    def __str__(self):
        return f"{self.answered:.2f} {self.state} healthy={self.is_healthy} age={self.age} ms version={self.version!r}"


class Process:
    """Process of a driver: it takes commands, and prints replies and the lines of handlers."""

    def __init__(self, name, command, log_path):
        self.name, self.command, self.log_path = name, command, log_path
        self.process = None
        self.ids = itertools.count(1)
        self.replies = {}
        # The first violation of the rules; whoever waits fails with it.
        self.problem = None

    async def start(self, *requests):
        log = open(self.log_path, "wb")
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            limit=LINE_BYTES,
            # A driver can be a script that starts the client as another process.
            start_new_session=True,
        )
        log.close()
        self.reading = asyncio.create_task(self._read())
        for request in requests:
            self._send({"do": "start"} | request)

    def _send(self, request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")

    async def _ask(self, what, **fields):
        identifier = next(self.ids)
        self.replies[identifier] = asyncio.get_running_loop().create_future()
        self._send({"do": what, "id": identifier} | fields)
        await asyncio.wait({self.replies[identifier], self.reading}, timeout=REPLY_SECONDS, return_when=FIRST_COMPLETED)
        reply = self.replies.pop(identifier)
        if not reply.done():
            raise Failed(f"{self.name}: no reply to `{what}`; {self.problem or f'not within {REPLY_SECONDS} s'}")
        return reply.result()

    async def _read(self):
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            if "reply" in message:
                self.replies[message["reply"]].set_result(message)
            elif self.problem is None:
                self.problem = self._receive(message)
        self.problem = self.problem or "its driver has ended"

    def _receive(self, message):
        """Takes a line of a handler; returns the rule that it violates, if any."""
        raise NotImplementedError

    async def stop(self):
        """Ends the driver as the protocol says: it exits with 0 when its input ends."""
        await self._ask("stop")
        return await self._end()

    async def _end(self):
        self.process.stdin.close()
        return await asyncio.wait_for(self.process.wait(), REPLY_SECONDS)

    async def kill(self):
        """Kills the driver and all processes that it has started, if they still run."""
        if self.process:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            await asyncio.wait_for(self.process.wait(), REPLY_SECONDS)


class Driver(Process):
    """A client: its handler log, folded to the objects that it adds up to, and the samples of its state."""

    def __init__(self, name, command, log_path):
        super().__init__(name, command, log_path)
        self.folded = {}
        self.samples = []
        self.synced = self.calls = 0

    async def sample(self):
        """Asks for the state, and keeps the answer without the objects. Returns the whole reply, too."""
        asked = time.monotonic()
        reply = await self._ask("state")
        sample = Sample(asked, time.monotonic(), reply)
        self.samples.append(sample)
        return sample, reply

    def _receive(self, message):
        """Applies a line of the handler log; returns the rule that it violates, if any."""
        kind = message["event"]
        if kind == "synced":
            self.synced += 1
            return None if self.synced == 1 else "a second `synced`"
        if kind in ("failed", "handler_error"):
            return f"reported {message}"
        self.calls += 1
        at = key(message["object"])
        before = self.folded.get(at)
        if kind == "deleted":
            self.folded.pop(at, None)
            return None if before else f"deleted {at}, which was not there"
        self.folded[at] = message["object"]
        if kind == "added":
            return f"added {at}, which was there" if before else None
        if before is None or without_version(before) != without_version(message["old"]):
            return f"updated {at} from {message['old']}, which was {before}"
        if before["uid"] != message["object"]["uid"]:
            return f"updated {at} to another uid"
        if without_version(before) == without_version(message["object"]):
            return f"updated {at} without a change"
        return None

    def is_folded_to(self, objects):
        """Returns true if the handler log adds up to these objects. Their versions may be newer: that alone is no call."""
        mine = sorted((digest(without_version(each)) for each in self.folded.values()))
        return mine == sorted(digest(without_version(each)) for each in objects)


def without_version(item):
    return item | {"version": ""}
