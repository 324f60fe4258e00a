"""Common part of all clients: the checks, the manifests to count, and the server to start and stop."""

import collections
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

import yaml

START_SECONDS = 30


class Failed(Exception):
    """Failed check."""


def ok(what):
    print(f"ok  {what}", flush=True)


def check(holds, what, found=""):
    if not holds:
        raise Failed(f"{what}; found: {found}" if found != "" else what)
    ok(what)


def equal(found, wanted, what):
    if found != wanted:
        raise Failed(f"{what}\n  wanted: {wanted}\n  found:  {found}")
    ok(what)


def key(metadata):
    """Returns the key of an object, from its metadata."""
    return f"{metadata['namespace']}/{metadata['name']}"


def is_files_version(version):
    """Returns true for a version of the files source: a lineage, and a number in it."""
    return re.fullmatch(r"[a-z0-9]+\.[0-9]+", version) is not None


def json_documents(text):
    """Returns the JSON documents of a text that holds one after the other, as grpcurl and buf print a stream."""
    decoder, position, documents = json.JSONDecoder(), 0, []
    while text[position:].strip():
        position += len(text[position:]) - len(text[position:].lstrip())
        document, position = decoder.raw_decode(text, position)
        documents.append(document)
    return documents


def run_client(arguments, seconds=30):
    """Runs a command-line client to its end."""
    return subprocess.run(arguments, capture_output=True, text=True, timeout=seconds, check=False)


def image_names(body):
    """Returns the values of an object for the index `image` of the pods."""
    return {container["image"] for container in body["spec"]["containers"]}


class Manifests:
    """Objects in a directory of manifests, read without the server."""

    def __init__(self, directory):
        self.directory = directory
        self.objects = collections.defaultdict(dict)  # kind → key → object
        self.files = {}  # (kind, key) → path
        for path in sorted(directory.rglob("*")):
            if path.suffix in (".json", ".yaml", ".yml") and not path.name.startswith("."):
                for body in yaml.safe_load_all(path.read_text(encoding="utf-8")):
                    self.objects[body["kind"]][key(body["metadata"])] = body
                    self.files[body["kind"], key(body["metadata"])] = path

    def keys(self, kind, where=lambda body: True):
        """Returns the keys of the objects that meet a condition, in the order of a List."""
        kept = (body["metadata"] for body in self.objects[kind].values() if where(body))
        return [key(metadata) for metadata in sorted(kept, key=lambda m: (m["namespace"], m["name"]))]

    def counts(self, kind, values):
        """Counts the objects under each value; `values` returns those of one object."""
        return dict(collections.Counter(value for body in self.objects[kind].values() for value in set(values(body))))


class Server:
    """Process of the server, on ports that it chose."""

    def __init__(self, binary, config, log):
        self.binary, self.config, self.log = binary, config, log
        self.process = self.address = self.admin = None

    def start(self):
        # The caller's environment must not change the configuration.
        ours = ("INFORMERD", "RUST_LOG")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        command = [self.binary, "serve", "--config", str(self.config)]
        command += ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        self.address = self._address_of("grpc listening")
        self.admin = self._address_of("admin listening")
        self._within(START_SECONDS, "/readyz says 200", lambda: self.get("/readyz")[0] == 200)
        ok(f"serve: grpc on {self.address}, admin on {self.admin}, ready")

    def check_admin(self):
        check("\x1b" not in self.log.read_text(), "the log has no colours where stderr is not a terminal")
        equal(self.get("/livez")[0], 200, "/livez")
        status, metrics = self.get("/metrics")
        own = status == 200 and re.search(r"^informerd_\w+", metrics, re.M)
        check(own, "/metrics has informerd's own", metrics[:300])

    def get(self, path):
        """Returns the status and the body of a response of the admin port."""
        try:
            with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self, seconds):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"still running after {seconds:.1f} s"

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def log_tail(self, lines=60):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else "(none)"

    def _address_of(self, message):
        pattern = re.compile(rf'^.*{message}.*\baddress="?(127\.0\.0\.1:[1-9][0-9]*)\b', re.M)
        return self._within(
            START_SECONDS, f"a log line «{message} … address=…»", lambda: pattern.search(self.log.read_text())
        ).group(1)

    def _within(self, seconds, what, attempt):
        deadline = time.monotonic() + seconds
        while True:
            if result := attempt():
                return result
            if (code := self.process.poll()) is not None:
                raise Failed(f"the server ended with {code} before: {what}")
            if time.monotonic() > deadline:
                raise Failed(f"not within {seconds} s: {what}")
            time.sleep(0.05)
