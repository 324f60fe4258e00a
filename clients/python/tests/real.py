"""The real server, as a process over a directory of files."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from informerd import Client, Credentials, Error

BINARY = os.environ.get("INFORMERD", "")


class Real:
    """A server with the resources `things` and `others`, which can be ended and started again."""

    def __init__(self, directory: Path, *, unix: bool = False, **config: Any) -> None:
        self.files = directory / "files"
        self.files.mkdir()
        if unix:
            self.address = f"unix:{directory}/socket"
        else:
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                self.address = f"127.0.0.1:{taken.getsockname()[1]}"
        source = {"source": {"files": {"path": str(self.files), "kind": "Thing"}}}
        things = {**source, "indexes": {"app": {"label": "app"}}}
        others = {"source": {"files": {"path": str(self.files), "kind": "Other"}}}
        self.config = directory / "config.yaml"
        # JSON is YAML.
        listen = {"listen": self.address, "admin": {"listen": "none"}}
        self.config.write_text(json.dumps({**listen, "resources": {"things": things, "others": others}, **config}))
        self.log = directory / "server.log"
        self.process: subprocess.Popen[bytes] | None = None

    def put(self, name: str, app: str = "x", **spec: Any) -> None:
        """Writes an object, in one step."""
        metadata = {"namespace": "ns", "name": name, "labels": {"app": app}}
        text = json.dumps({"apiVersion": "v1", "kind": "Thing", "metadata": metadata, "spec": spec})
        new = self.files.parent / "new"
        new.write_text(text)
        new.replace(self.files / f"{name}.json")

    def delete(self, name: str) -> None:
        (self.files / f"{name}.json").unlink()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([BINARY, "serve", "--config", str(self.config)], stderr=log, stdout=log)

    def wait(self, target: str, credentials: Credentials | None = None) -> None:
        """Waits until the server answers."""
        until = time.monotonic() + 30
        with Client(target, credentials=credentials) as client:
            while True:
                try:
                    resources = client.resources(timeout=5).resources
                except Error:
                    resources = []
                if any(r.name == "things" and r.version for r in resources):
                    return
                assert self.process is not None
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < until, self.log.read_text()
                time.sleep(0.05)

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> None:
        """Ends the process with a signal, and waits for its end."""
        self.send(number)
        assert self.process is not None
        self.process.wait(30)

    def __enter__(self) -> Real:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.end()
