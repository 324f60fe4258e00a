"""Writer of a directory of manifests, which changes without pause, and knows what it must add up to."""

import asyncio
import json
import os

KEYS = 40
# Objects of the one file that always changes as a whole.
BATCH_KEYS = 10
APPS = ("web", "api", "db")


class Storm:
    """Objects of one kind in files of their own, and a batch of objects in one file. Every write is a rename."""

    def __init__(self, directory, random, rate):
        self.directory, self.random, self.interval = directory, random, 1 / rate
        self.objects = {}
        self.uids = self.writes = 0
        self.runs = asyncio.Event()
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self._write_batch()
        for at in range(KEYS // 2):
            self._put(self._key(at))

    async def run(self):
        while True:
            if not self.runs.is_set():
                self.is_idle.set()
                await self.runs.wait()
                self.is_idle.clear()
            self._change()
            await asyncio.sleep(self.interval)

    async def pause(self):
        self.runs.clear()
        await self.is_idle.wait()

    def resume(self):
        self.is_idle.clear()
        self.runs.set()

    @staticmethod
    def _key(at):
        return ("" if at % 4 == 0 else f"ns{at % 3}", f"thing-{at}")

    def _change(self):
        self.writes += 1
        key, chance = self._key(self.random.randrange(KEYS)), self.random.random()
        if chance < 0.05:
            self._write_batch()
        elif key not in self.objects or chance < 0.7:
            self._put(key)
        elif chance < 0.8:
            # Deleted and created between two looks of the server: another object under the same key.
            self._put(key, is_new=True)
        else:
            del self.objects[key]
            (self.directory / self._file(key)).unlink()

    def _put(self, key, is_new=False):
        self.objects[key] = self._manifest(key, None if is_new else self.objects.get(key))
        self._write(self._file(key), json.dumps(self.objects[key]))

    def _write_batch(self):
        for at in range(BATCH_KEYS):
            key = ("batch", f"member-{at}")
            self.objects[key] = self._manifest(key, self.objects.get(key)) | {"round": self.writes}
        items = [manifest for key, manifest in self.objects.items() if key[0] == "batch"]
        self._write("batch.json", json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))

    def _manifest(self, key, before):
        namespace, name = key
        if before is None:
            self.uids += 1
        uid = f"uid-{self.uids}" if before is None else before["metadata"]["uid"]
        metadata = {"name": name, "uid": uid, "labels": {"app": self.random.choice(APPS)}}
        if namespace:
            metadata["namespace"] = namespace
        spec = {"n": self.writes, "text": "x" * self.random.randrange(200)}
        return {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": metadata, "spec": spec}

    @staticmethod
    def _file(key):
        return f"{key[0] or 'none'}-{key[1]}.json"

    def _write(self, name, text):
        hidden = self.directory / f".{name}"
        hidden.write_text(text, encoding="utf-8")
        os.rename(hidden, self.directory / name)
