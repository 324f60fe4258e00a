"""Code blocks of a page, and the commands in them, as processes whose output is checked."""

import atexit
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SECONDS = 30
# Installing a package, or compiling a program of Go for the first time.
INSTALL_SECONDS = 300


def fail(message):
    print(f"FAILED  {message}", file=sys.stderr)
    sys.exit(1)


def ok(message):
    print(f"ok  {message}", flush=True)


def section(page, heading):
    """Returns the text below a heading of the second level, or of the level that its number signs say."""
    heading = heading if heading.startswith("#") else f"## {heading}"
    level = heading.split(" ")[0]
    return re.split(rf"\n#{{2,{len(level)}}} ", page.split(f"\n{heading}\n")[1])[0]


def blocks(text, language="sh"):
    return [block.strip() for block in re.findall(rf"```{language}\n(.*?)```", text, re.S)]


def until(what, condition, seconds=SECONDS, of=None):
    """Waits until a condition returns a value, and returns it. Shows the output of a background command that failed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (of is None or of.process.poll() is None):
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    fail(f"not within {seconds} s: {what}\n{of.text() if of else ''}")


def until_printed(words, of):
    """Waits until a background command has printed some words."""
    until(f"{words!r} of {of.command}", lambda: words in of.text(), of=of)


class Background:
    """Command that runs until it gets a signal."""

    def __init__(self, command, directory, **environment):
        self.command = command
        self.log = directory.parent / f"log-{time.monotonic_ns()}"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", command],
                cwd=directory,
                env=os.environ | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # A shell cannot trap a signal that was ignored at its start, as SIGHUP is below nohup.
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
            )
        # After a failure, too.
        atexit.register(self.kill)

    def text(self):
        return self.log.read_text(encoding="utf-8")

    def servers(self):
        """Returns the informerd processes of this command's session, without cargo and the shell."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "comm").read_text().strip() == "informerd" and os.getsid(
                    int(entry.name)
                ) == self.process.pid:
                    found.append(int(entry.name))
            except (OSError, ValueError):
                continue
        return found

    def signal(self, number):
        for pid in self.servers():
            os.kill(pid, number)

    def end(self, number):
        self.signal(number)
        return self.process.wait(SECONDS)

    def kill(self):
        """Ends everything that the command has started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(SECONDS)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run(command, text=None, directory=None, codes=(0,)):
    """Runs a command to its end, and returns what it prints."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        input=text,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if done.returncode not in codes:
        fail(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Examples:
    """Blocks of code of a page or of a part of it, and a new directory to run them in, beside the repository."""

    def __init__(self, page, work, addresses, heading=None):
        self.addresses = addresses
        self.page, self.name = page, f"{page}, {heading.lstrip('# ')}" if heading else page
        text = (REPOSITORY / page).read_text(encoding="utf-8")
        if heading:
            text = section(text, heading)
        for written, actual in addresses.items():
            text = text.replace(written, actual)
        self.shell = blocks(text)
        self.programs = blocks(text, "(?:go|python)")
        self.configurations = blocks(text, "yaml")
        self.directory = Path(tempfile.mkdtemp(dir=work)) / "program"
        self.directory.mkdir()
        (self.directory.parent / "informerd").symlink_to(REPOSITORY)
        self.running = []

    def expect(self, shell, programs=0):
        if (len(self.shell), len(self.programs)) != (shell, programs):
            fail(
                f"{self.name}: {len(self.shell)} blocks of commands and {len(self.programs)} programs; "
                f"this knows {shell} and {programs}"
            )

    def file(self, name):
        return self.directory / name

    def read(self, name):
        path = self.file(name)
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def start(self, command):
        """Starts a block that stays open."""
        self.running.append(Background(command, self.directory))
        return self.running[-1]

    def serve(self, command):
        server = self.start(command)
        signs = ("synced objects=", "state=Synced")
        until(f"synced: {command}", lambda: any(sign in server.text() for sign in signs), of=server)
        return server

    def done(self, what):
        """Ends everything that runs."""
        for each in reversed(self.running):
            each.kill()
        self.running.clear()
        ok(f"{self.name}: {what}")
