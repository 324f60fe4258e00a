"""Servers, as processes."""

import asyncio
import os
import signal
import socket
import subprocess


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """An informerd process on a port that it keeps over restarts."""

    def __init__(self, informerd, name, sources, directory, settings="admin: {listen: none}\ndrain: {period: 1s}"):
        self.name, self.port = name, free_port()
        self.address = f"127.0.0.1:{self.port}"
        config = directory / f"{name}.yaml"
        resources = "".join(f"  {resource}:\n    source: {source}\n" for resource, source in sources.items())
        config.write_text(f"listen: {self.address}\n{settings}\nresources:\n{resources}", encoding="utf-8")
        self.command = [informerd, "serve", "--config", str(config)]
        self.log_path = directory / f"{name}.log"
        self.process = None

    def start(self):
        with open(self.log_path, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def signal(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()

    async def drain(self):
        """Ends it with SIGTERM: its clients receive DRAINING. Returns the exit code."""
        self.signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait)

    def check(self):
        """Fails if the process has ended by itself."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the {self.name} ended with {self.process.returncode}; its log: {self.log()}")

    def log(self):
        return "".join(self.log_path.read_text(encoding="utf-8").splitlines(keepends=True)[-20:])
