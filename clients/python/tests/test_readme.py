"""The programs of the README, over the shop of examples/."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real import BINARY

from informerd import Client, Error

HERE = Path(__file__).parents[1]
PROGRAMS = re.findall(r"```python\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    shutil.copytree(HERE / "../../examples", tmp_path / "shop")
    command = [BINARY, "serve", "--config", "shop/shop.yaml", "--listen", address, "--admin-listen", "none"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as server:
        try:
            with Client(address) as client:
                until = time.monotonic() + 30
                while True:
                    try:
                        client.until("pods", timeout=10)
                        break
                    except Error:
                        if server.poll() is not None or time.monotonic() > until:
                            raise
                        time.sleep(0.05)
            yield address
        finally:
            server.kill()


def run(program: str, address: str, wanted: str) -> None:
    """Runs a program until it prints the wanted text, then interrupts it."""
    # A job in the background of a script ignores the signal, and so would the program.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += program.replace("127.0.0.1:50051", address)
    with subprocess.Popen(
        [sys.executable, "-uc", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as p:
        assert p.stdout is not None
        lines = []
        for line in p.stdout:
            lines.append(line)
            if wanted in line:
                p.send_signal(signal.SIGINT)
                break
        _, errors = p.communicate(timeout=30)
        assert lines, errors
        assert wanted in lines[-1], errors
        assert p.returncode == 0 or "KeyboardInterrupt" in errors, errors


def test_the_first_program(shop: str) -> None:
    assert PROGRAMS[0].count("\n") < 30
    run(PROGRAMS[0], shop, "of them on node-a")


def test_the_program_of_asyncio(shop: str) -> None:
    run(PROGRAMS[1], shop, "ADDED platform ")
