"""etcd as a process, and a writer to it: the program of tests/upstreams."""

import asyncio
import json
import subprocess
import time

from driver import Failed
from server import free_port

START_SECONDS = 30
ANSWER_SECONDS = 15
RETRY_SECONDS = 0.1


class Etcd:
    """etcd with an empty data directory, and its client."""

    def __init__(self, program, directory):
        self.program, self.directory = program, directory
        self.url = f"http://127.0.0.1:{free_port()}"
        self.process = self.driver = None

    async def start(self):
        """Starts both, and waits until etcd has written something."""
        peer = f"http://127.0.0.1:{free_port()}"
        command = [self.program, "serve", str(self.directory / "etcd"), "m0", self.url, f"m0={peer}"]
        with open(self.directory / "etcd.log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        pipe = asyncio.subprocess.PIPE
        self.driver = await asyncio.create_subprocess_exec(self.program, "drive", self.url, stdin=pipe, stdout=pipe)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return await self.put("/started", "")
            except Failed:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    async def put(self, key, value):
        """Writes a key in a transaction of its own. Returns the revision."""
        return await self._write({"put": {key: value}})

    async def delete(self, key):
        """Deletes a key in a transaction of its own. Returns the revision."""
        return await self._write({"delete": [key]})

    async def _write(self, command):
        self.driver.stdin.write(json.dumps(command).encode() + b"\n")
        line = await asyncio.wait_for(self.driver.stdout.readline(), ANSWER_SECONDS)
        answer = json.loads(line or b'{"error": "its client has ended"}')
        if "error" in answer:
            raise Failed(f"etcd has not written {command}: {answer['error']}")
        return answer["revision"]

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        if self.driver and self.driver.returncode is None:
            self.driver.kill()
