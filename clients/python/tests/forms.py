"""Both informers and both clients under one interface, so that each test is one of both: asyncio has its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

import pytest

import informerd
import informerd.aio
from informerd import Cause, Event, Freshness, Object

T = TypeVar("T")


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.spawn(work).result(30)

    def call(self, function: Callable[[], T]) -> T:
        async def work() -> T:
            return function()

        return self.run(work())

    def close(self) -> None:
        async def finish() -> None:
            # As asyncio.run does: gRPC has tasks of its own that end after a call.
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(finish())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class AioInformer:
    """informerd.aio.Informer with the methods of informerd.Informer."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._loop = Loop()
        self.inner = self._loop.call(lambda: informerd.aio.Informer(*arguments, **more))

    def add_handler(self, **functions: Callable[..., object]) -> None:
        self._loop.call(lambda: self.inner.add_handler(**functions))

    def start(self) -> None:
        self._loop.run(self.inner.start())

    def stop(self, timeout: float | None = 10) -> None:
        if not self._loop.loop.is_closed():
            self._loop.run(self.inner.stop(timeout))

    def wait_synced(self, timeout: float | None = None) -> None:
        self._loop.run(self.inner.wait_synced(timeout))

    def read_after(self, version: str, timeout: float | None = 30) -> None:
        self._loop.run(self.inner.read_after(version, timeout))

    def events(self) -> Iterator[Event]:
        iterator = self.inner.events().__aiter__()

        async def following() -> Event | None:
            return await anext(iterator, None)

        while (event := self._loop.run(following())) is not None:
            yield event

    def __enter__(self) -> AioInformer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._loop.close()

    def get(self, name: str, namespace: str = "") -> Object | None:
        return self.inner.get(name, namespace)

    def list(self, namespace: str | None = None) -> Any:
        return self.inner.list(namespace)

    def by_index(self, index: str, value: str) -> Any:
        return self.inner.by_index(index, value)

    def freshness(self) -> Freshness:
        return self.inner.freshness()

    def healthy(self) -> bool:
        return self.inner.healthy()

    @property
    def version(self) -> str:
        return self.inner.version

    @property
    def error(self) -> informerd.Error | None:
        return self.inner.error

    def __len__(self) -> int:
        return len(self.inner)


class AioClient:
    """informerd.aio.Client with the methods of informerd.Client."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._loop = Loop()
        self._inner = self._loop.call(lambda: informerd.aio.Client(*arguments, **more))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **more: self._loop.run(getattr(self._inner, name)(*arguments, **more))

    def __enter__(self) -> AioClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._loop.close()


AnyInformer = informerd.Informer | AioInformer
CLIENTS = [pytest.param(informerd.Client, id="threads"), pytest.param(AioClient, id="asyncio")]


class Log:
    """A handler that keeps its calls, and waits for them."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.calls: list[str] = []

    def note(self, call: str) -> None:
        with self._condition:
            self.calls.append(call)
            self._condition.notify_all()

    def wait_for(self, *calls: str) -> None:
        """Waits until these have come, in any order, and fails if they do not."""
        with self._condition:
            arrived = self._condition.wait_for(lambda: set(calls) <= set(self.calls), 20)
            assert arrived, f"{set(calls) - set(self.calls)} did not come: {self.calls}"

    def report(self, error: Exception) -> None:
        self.note(f"{type(error).__name__}: {error}")

    def added(self, o: Object) -> None:
        self.note(f"+{o.name}")

    def updated(self, old: Object, new: Object) -> None:
        assert old.key == new.key
        self.note(f"~{new.name}")

    def deleted(self, last: Object, cause: Cause) -> None:
        self.note(f"-{last.name} {cause.name}")

    @property
    def handler(self) -> dict[str, Callable[..., None]]:
        return {"added": self.added, "updated": self.updated, "deleted": self.deleted}
