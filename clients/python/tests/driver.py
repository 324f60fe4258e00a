"""Driver of the conformance suite (informerd-conformance): one JSON object a line on stdin and stdout.

Commands that name a client have an informer for each.

python driver.py [--aio]
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from typing import Any

import informerd
import informerd.aio
from informerd import Cause, Credentials, Error, HandlerError, Informer, Object, Options, Policy, Selection

_output = threading.Lock()


def say(command: dict[str, Any], line: dict[str, Any]) -> None:
    """Prints a line for the client of a command, if it names one."""
    if "client" in command:
        line = {**line, "client": command["client"]}
    with _output:
        print(json.dumps(line), flush=True)


def shown(o: Object) -> dict[str, Any]:
    body = None if isinstance(o.body, bytes) else o.body
    shown = {"namespace": o.namespace, "name": o.name, "uid": o.uid, "version": o.version}
    return {**shown, "labels": dict(o.labels), "body": body}


def app_of(o: Object) -> list[str]:
    return [o.labels["app"]] if "app" in o.labels else []


def arguments(start: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the informer that the suite wants."""

    def seconds(name: str) -> float:
        return float(start[name]) / 1000

    options = Options(
        bookmark_interval=seconds("bookmark_interval_ms"),
        first_message_timeout=seconds("first_message_timeout_ms"),
        connect_timeout=seconds("connect_timeout_ms"),
        backoff=seconds("backoff_ms"),
        max_backoff=seconds("max_backoff_ms"),
        drain_jitter=seconds("drain_jitter_ms"),
        policy=Policy[start["policy"]] if start.get("policy") else None,
    )

    def on_error(error: Exception) -> None:
        print(f"{time.time():.3f} {error!r}: {error}", file=sys.stderr, flush=True)
        if isinstance(error, HandlerError):
            say(start, {"event": "handler_error", "message": str(error)})

    return {
        "target": start["target"],
        "resource": start["resource"],
        "selection": Selection(namespace=start.get("namespace", ""), label_selector=start.get("label_selector", "")),
        "indexers": {"app": app_of},
        "credentials": Credentials(token_file=start.get("token_file") or None),
        "options": options,
        "on_error": on_error,
    }


def failed(start: dict[str, Any], error: Error) -> None:
    say(start, {"event": "failed", "code": error.code.name, "reason": error.reason})


def state(informer: Informer | informerd.aio.Informer, request: dict[str, Any]) -> None:
    # In this order: a store that is read after the freshness has all that this is about.
    freshness = informer.freshness()
    # The store may advance between two calls.
    while True:
        version, objects = informer.version, informer.list()
        if version == informer.version:
            break
    values = sorted({value for o in objects for value in app_of(o)})
    age, seen = freshness.last_message_age, freshness.source_seen_at
    say(
        request,
        {
            "reply": request["id"],
            "version": version,
            "state": freshness.state.name,
            "healthy": freshness.healthy,
            "last_message_age_ms": None if age is None else round(age * 1000),
            "source_seen_at": None if seen is None else seen.isoformat().replace("+00:00", "Z"),
            "objects": [shown(o) for o in objects],
            "by_app": {v: ["/".join(filter(None, o.key)) for o in informer.by_index("app", v)] for v in values},
        },
    )


class Log:
    """The lines of the handler, and what the suite wants it to do wrong."""

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = start
        handler = start.get("handler") or {}
        self.fail_on = handler.get("fail_on", "")
        self.delay_on = handler.get("delay_on", "")
        self.delay = handler.get("delay_ms", 0) / 1000

    def delay_of(self, o: Object) -> float:
        return self.delay if self.delay_on in ("*", o.name) and self.delay_on else 0.0

    def log(self, o: Object, line: dict[str, Any]) -> None:
        say(self.start, {**line, "object": shown(o)})
        if self.fail_on and o.name == self.fail_on:
            raise RuntimeError(f"the suite wants the handler to fail on {o.name}")

    def added(self, o: Object) -> None:
        self.log(o, {"event": "added"})

    def updated(self, old: Object, new: Object) -> None:
        self.log(new, {"event": "updated", "old": shown(old)})

    def deleted(self, last: Object, cause: Cause) -> None:
        self.log(last, {"event": "deleted", "cause": cause.name})


def main() -> None:
    informers: dict[Any, Informer] = {}

    def started(start: dict[str, Any]) -> Informer:
        informer, log = Informer(**arguments(start)), Log(start)

        def added(o: Object) -> None:
            time.sleep(log.delay_of(o))
            log.added(o)

        def updated(old: Object, new: Object) -> None:
            time.sleep(log.delay_of(new))
            log.updated(old, new)

        def deleted(last: Object, cause: Cause) -> None:
            time.sleep(log.delay_of(last))
            log.deleted(last, cause)

        def watch() -> None:
            try:
                informer.wait_synced()
                say(start, {"event": "synced"})
                for _ in informer.events():
                    pass
            except Error as error:
                failed(start, error)
            except RuntimeError:
                pass  # stopped before the first sync

        informer.add_handler(added=added, updated=updated, deleted=deleted)
        informer.start()
        threading.Thread(target=watch, daemon=True).start()
        return informer

    def read_after(informer: Informer, request: dict[str, Any]) -> None:
        try:
            informer.read_after(request["version"], request["timeout_ms"] / 1000)
            say(request, {"reply": request["id"], "ok": True})
        except Exception as error:
            say(request, {"reply": request["id"], "ok": False, "error": str(error)})

    for line in sys.stdin:
        request = json.loads(line)
        client = request.get("client")
        if request["do"] == "start":
            informers[client] = started(request)
        elif client not in informers:
            raise RuntimeError("the first request of a client is start")
        elif request["do"] == "state":
            state(informers[client], request)
        elif request["do"] == "read_after":
            threading.Thread(target=read_after, args=(informers[client], request), daemon=True).start()
        elif request["do"] == "stop":
            informers[client].stop()
            say(request, {"reply": request["id"]})
    for informer in informers.values():
        informer.stop()


async def main_aio() -> None:
    informers: dict[Any, informerd.aio.Informer] = {}
    tasks: set[asyncio.Task[None]] = set()

    async def started(start: dict[str, Any]) -> informerd.aio.Informer:
        informer, log = informerd.aio.Informer(**arguments(start)), Log(start)

        async def added(o: Object) -> None:
            await asyncio.sleep(log.delay_of(o))
            log.added(o)

        async def updated(old: Object, new: Object) -> None:
            await asyncio.sleep(log.delay_of(new))
            log.updated(old, new)

        async def deleted(last: Object, cause: Cause) -> None:
            await asyncio.sleep(log.delay_of(last))
            log.deleted(last, cause)

        async def watch() -> None:
            try:
                await informer.wait_synced()
                say(start, {"event": "synced"})
                async for _ in informer.events():
                    pass
            except Error as error:
                failed(start, error)
            except RuntimeError:
                pass  # stopped before the first sync

        informer.add_handler(added=added, updated=updated, deleted=deleted)
        await informer.start()
        tasks.add(asyncio.create_task(watch()))
        return informer

    async def read_after(informer: informerd.aio.Informer, request: dict[str, Any]) -> None:
        try:
            await informer.read_after(request["version"], request["timeout_ms"] / 1000)
            say(request, {"reply": request["id"], "ok": True})
        except Exception as error:
            say(request, {"reply": request["id"], "ok": False, "error": str(error)})

    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        client = request.get("client")
        if request["do"] == "start":
            informers[client] = await started(request)
        elif client not in informers:
            raise RuntimeError("the first request of a client is start")
        elif request["do"] == "state":
            state(informers[client], request)
        elif request["do"] == "read_after":
            tasks.add(asyncio.create_task(read_after(informers[client], request)))
        elif request["do"] == "stop":
            await informers[client].stop()
            say(request, {"reply": request["id"]})
    for informer in informers.values():
        await informer.stop()


if __name__ == "__main__":
    if sys.argv[1:] == ["--aio"]:
        asyncio.run(main_aio())
    else:
        main()
