"""Runs the code blocks of the README's start section in a clone, and checks their output."""

import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from pages import SECONDS, Background, blocks, fail, ok, section, until

BUILD_SECONDS = 1800
# A closed connection of a client keeps its port for a minute, and it may be one of the README's.
PORT_SECONDS = 90


def await_port(port):
    """Waits until a server can listen on the port."""

    def is_free():
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                return False
            return True

    until(f"port {port} is free, as the README's have to be", is_free, PORT_SECONDS)


def is_ready():
    try:
        with urllib.request.urlopen("http://127.0.0.1:9464/readyz", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def main():
    clone = Path(sys.argv[1])
    found = blocks(section((clone / "README.md").read_text(encoding="utf-8"), "Start"))
    if len(found) != 6:
        fail(f"the start section has {len(found)} blocks of commands, and this knows 6")
    serve, ask, watch, edit, grpcurl, directory = found

    for port in (50051, 9464):
        await_port(port)
    server = Background(serve, clone)
    until("the server is ready", lambda: server.process.poll() is not None or is_ready(), BUILD_SECONDS)
    if server.process.poll() is not None:
        fail(f"the server has ended:\n{server.text()}")
    ok(f"{serve}: ready")

    prelude = [line for line in ask.splitlines() if line.startswith("export ")]

    def run(line):
        command = ["bash", "-c", "\n".join([*prelude, line])]
        return subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=SECONDS, check=False)

    expected = {
        "informerd resources": (0, "pods          files    SYNCED"),
        "informerd list pods": (0, "checkout-nmchhpcx9g-6rxrs"),
        "informerd list pods -n orders -l tier=backend -o wide": (0, "registry.example.com/shop/checkout"),
        "informerd by-index pods node node-a": (0, "node-a"),
        "informerd values pods phase": (0, "Running   19"),
        "informerd get service edge -o yaml": (3, 'did you mean "services"?'),
    }
    for line in ask.splitlines():
        if line in prelude:
            continue
        if line not in expected:
            fail(f"not known here: {line}")
        code, words = expected.pop(line)
        done = run(line)
        if done.returncode != code or words not in done.stdout + done.stderr:
            fail(f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        ok(f"{line}: {words}")
    if expected:
        fail(f"not in the README: {list(expected)}")

    watching = Background("\n".join([*prelude, f"exec {watch}"]), clone)
    until("the watch is synced", lambda: "# synced: 8 objects" in watching.text())
    ok(f"{watch}: synced")
    subprocess.run(["bash", "-c", edit], cwd=clone, check=True)

    def changed():
        return [line for line in watching.text().splitlines() if line.startswith(("MODIFIED", "DELETED"))]

    until("the change is watched", lambda: len(changed()) == 1 and "Running" in changed()[0])
    ok(f"{edit}: {changed()[0]}")

    server.end(signal.SIGKILL)
    until("the watch has noticed", lambda: "# reconnecting" in watching.text())
    subprocess.run(["git", "checkout", "--quiet", "examples/manifests"], cwd=clone, check=True)
    server = Background(serve, clone)
    until("the server is ready again", is_ready)
    until("the watch is told", lambda: len(changed()) == 2)
    until("the watch is synced again", lambda: "# relisted: 1 change" in watching.text())
    if "Pending" not in changed()[1]:
        fail(f"not what changed meanwhile:\n{watching.text()}")
    ok(f"kill -9, and start again: the watch prints exactly what has changed: {changed()[1]}")
    watching.process.send_signal(signal.SIGINT)
    if watching.process.wait(SECONDS) != 0:
        fail(f"Ctrl-C ended the watch with {watching.process.returncode}\n{watching.text()}")
    ok("Ctrl-C ends the watch with 0")

    if shutil.which("grpcurl"):
        for line in grpcurl.splitlines():
            words = "Streams the current objects" if "describe" in line else '"orders"'
            if line.endswith("/Watch"):
                line, words = f"timeout 3 {line} || true", "EVENT_TYPE_ADDED"
            done = run(line)
            if words not in done.stdout:
                fail(f"{line}\n{done.stdout}{done.stderr}")
            ok(f"{line}: {words}")
    else:
        ok("skipped: grpcurl is not here")

    await_port(50052)
    other = Background("\n".join([*prelude, f"exec {directory}"]), clone)
    ask_it = "informerd list pods --server 127.0.0.1:50052"
    until("the server of a directory answers", lambda: "checkout" in run(ask_it).stdout, of=other)
    ok(directory)
    for each in (other, server):
        each.end(signal.SIGTERM)
        if each.process.returncode != 0:
            fail(f"SIGTERM ended it with {each.process.returncode}: {each.command}\n{each.text()}")
    ok("SIGTERM ends the servers with 0")


main()
