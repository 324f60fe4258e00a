"""Measures the events a second that an informer takes into its store, from a real server on loopback.

    INFORMERD=…/target/release/informerd python bench/throughput.py [--aio] [--events N] [--objects N]

The server follows changes that a child process writes to its standard input: N events of 1 KiB on some objects. Until
the server has all of them, this process is stopped (SIGSTOP); then it reads as fast as it can. The informer has an
index, and a handler that counts. The cost is the processor time of this process from the first event to the last,
without that of the child and of the server; the rate is for one core, and Python uses one at most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import multiprocessing.synchronize
import os
import signal
import socket
import subprocess
import time
from typing import IO

import informerd
import informerd.aio
from informerd import Object, Options, Policy

OPTIONS = Options(policy=Policy.REPLAY, lag_limit=10_000_000, bookmark_interval=600)


def free_address() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def feed(pipe: IO[bytes], begin: multiprocessing.synchronize.Event, address: str, events: int, objects: int) -> None:
    """Writes the events while the parent is stopped, and waits until the server has them."""
    begin.wait()
    parent = os.getppid()
    os.kill(parent, signal.SIGSTOP)
    try:
        padding = "x" * 800
        for number in range(events):
            labels = {"app": f"app-{number % 20}"}
            metadata = {"namespace": "bench", "name": f"object-{number % objects}", "labels": labels}
            event = {"type": "MODIFIED", "object": {"metadata": metadata, "number": number, "padding": padding}}
            pipe.write(json.dumps(event).encode() + b"\n")
        pipe.flush()
        last = f"object.number == {events - 1}"
        with informerd.Client(address) as client:
            newest = informerd.Selection(expression=last)
            client.until("bench", selection=newest, view=informerd.View(name="@metadata"), timeout=600)
    finally:
        os.kill(parent, signal.SIGCONT)


def by_app(o: Object) -> list[str]:
    return [o.labels["app"]] if "app" in o.labels else []


class Count:
    """A handler that counts, and the time since its first call."""

    def __init__(self, events: int) -> None:
        self.events = events
        self.calls = 0

    def changed(self, *_: object) -> None:
        if self.calls == 0:
            self.wall, self.cpu = time.perf_counter(), time.process_time()
        self.calls += 1

    def show(self, form: str) -> None:
        wall, cpu, events = time.perf_counter() - self.wall, time.process_time() - self.cpu, self.events
        print(
            f"{form}: {events} events in {wall:.2f} s; {cpu:.2f} s of one core: "
            f"{events / cpu:,.0f} events/s a core, {cpu / events * 1e6:.1f} us each"
        )


def threads(address: str, begin: multiprocessing.synchronize.Event, events: int) -> None:
    count = Count(events)
    informer = informerd.Informer(address, "bench", indexers={"app": by_app}, options=OPTIONS)
    informer.add_handler(added=count.changed, updated=count.changed)
    with informer:
        informer.wait_synced(30)
        begin.set()
        while count.calls < events:
            time.sleep(0.01)
        count.show("threads")


async def tasks(address: str, begin: multiprocessing.synchronize.Event, events: int) -> None:
    count = Count(events)
    informer = informerd.aio.Informer(address, "bench", indexers={"app": by_app}, options=OPTIONS)
    informer.add_handler(added=count.changed, updated=count.changed)
    async with informer:
        await informer.wait_synced(30)
        begin.set()
        while count.calls < events:  # noqa: ASYNC110 (an Event would cost the handler time that is not the informer's)
            await asyncio.sleep(0.01)
        count.show("asyncio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aio", action="store_true")
    parser.add_argument("--events", type=int, default=50_000, help="at most 100,000, the history of the server")
    parser.add_argument("--objects", type=int, default=1_000)
    arguments = parser.parse_args()

    address = free_address()
    command = [os.environ["INFORMERD"], "serve", "--listen", address, "--admin-listen", "none", "--stream", "bench=-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdin is not None
        # A process of its own, so that its work is not counted. It forks before gRPC has any thread.
        context = multiprocessing.get_context("fork")
        begin = context.Event()
        context.Process(
            target=feed, args=(server.stdin, begin, address, arguments.events, arguments.objects), daemon=True
        ).start()
        try:
            if arguments.aio:
                asyncio.run(tasks(address, begin, arguments.events))
            else:
                threads(address, begin, arguments.events)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
