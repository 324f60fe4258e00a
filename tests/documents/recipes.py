"""Runs the commands of docs/recipes.md, as they are written, and checks what they do."""

import json
import re
import signal
import socket

from pages import REPOSITORY, Examples, fail, run, until, until_printed


def pod(name, phase=None):
    """Creates a pod with the label app=web in the namespace shop, or sets its phase."""
    if phase:
        patch = json.dumps({"status": {"phase": phase}})
        run(f"kubectl patch pod {name} -n shop --subresource=status --type=merge -p '{patch}'")
        return
    container = {"name": "web", "image": "registry.example.com/web"}
    metadata = {"name": name, "namespace": "shop", "labels": {"app": "web"}}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    run("kubectl create -f -", json.dumps(manifest))


def watches(command):
    """Returns the number of watches of pods, as the command of the page prints it."""
    return sum(float(line.split()[-1]) for line in run(command, codes=(0, 1)).splitlines())


def client_go(recipe):
    recipe.expect(shell=3, programs=1)
    serve, build, count = recipe.shell
    recipe.serve(serve)
    recipe.file("main.go").write_text(recipe.programs[0], encoding="utf-8")
    before = watches(count)
    if before < 1:
        fail(f"{count}: no watch is counted")
    setup, _, start = build.rpartition("\n")
    run(setup, directory=recipe.directory)
    # `go run` three times would compile three times; its program is the same.
    run("go vet . && go build -o program .", directory=recipe.directory)
    if start != "go run .":
        fail(f"{recipe.name}: {start}")
    programs = [recipe.start("exec ./program") for _ in range(3)]
    pod("web-0")
    for program in programs:
        until_printed("shop/web-0 Pending", program)
    pod("web-0", "Running")
    for program in programs:
        until_printed("shop/web-0 Running", program)
    if watches(count) != before:
        fail(f"{count}: {before} watches before the programs, and {watches(count)} with three of them")
    recipe.done(
        f"three programs see each change, and the API server has the {before:.0f} watches that it had without them"
    )


def polling(recipe, serve):
    recipe.expect(shell=3)
    poll, watch, wait = recipe.shell
    polled = recipe.start(poll)
    until("the loop has polled", lambda: recipe.read("web.txt") == "web-0\n", of=polled)
    polled.kill()
    recipe.file("web.txt").unlink()

    server = recipe.serve(serve)
    watching = recipe.start(watch)
    until("the same file", lambda: recipe.read("web.txt") == "web-0\n", of=watching)
    waiting = recipe.start(wait.replace("web-0", "web-1"))
    pod("web-1")
    pod("web-1", "Running")
    until("the next state", lambda: recipe.read("web.txt") == "web-0\nweb-1\n", of=watching)
    if waiting.process.wait(30) != 0 or "web-1" not in waiting.text():
        fail(f"{wait}: {waiting.process.returncode}\n{waiting.text()}")
    # Neither an outage nor what changes meanwhile is lost, and no empty file is written.
    server.signal(signal.SIGKILL)
    server.process.wait()
    run("kubectl delete pod web-0 -n shop --grace-period=0 --force 2>&1")
    if recipe.read("web.txt") != "web-0\nweb-1\n":
        fail(f"the file changed while the server was away: {recipe.read('web.txt')}")
    recipe.serve(serve)
    until("the state after the outage", lambda: recipe.read("web.txt") == "web-1\n", of=watching)
    run(wait.replace("web-0", "web-1"), directory=recipe.directory)
    late = wait.replace("60s", "1s")
    run(late, directory=recipe.directory, codes=(4,))
    recipe.done(
        "the file follows the state, also over kill -9 of the server; the condition ends with 0, a timeout with 4"
    )


def etcdctl(recipe):
    recipe.expect(shell=3)
    watch, serve, mirror = recipe.shell
    apply = recipe.file("apply")
    apply.write_text('#!/bin/sh\necho "applied $*" >>applied\n', encoding="utf-8")
    apply.chmod(0o755)

    def applied():
        return recipe.read("applied").count("applied")

    run("etcdctl put /settings/shop/before '{\"a\":1}'")
    old = recipe.start(watch)

    # There is no sign of when etcdctl's watch is open: puts until it has seen one.
    def has_seen():
        run("etcdctl put /settings/shop/checkout '{\"retries\":3}'")
        return "/settings/shop/checkout" in recipe.read("applied")

    until("the script of etcdctl", has_seen, of=old)
    if "/settings/shop/before" in recipe.read("applied"):
        fail("etcdctl watch has shown what was before it: the page denies that")
    old.kill()
    recipe.file("applied").unlink()

    recipe.serve(serve)
    mirroring = recipe.start(mirror)
    until("the mirror is complete", lambda: applied() == 1, of=mirroring)
    if (
        recipe.read("settings/shop/before.json") != '{"a":1}'
        or recipe.read("settings/shop/checkout.json") != '{"retries":3}'
    ):
        fail("the mirror differs from etcd")
    run("etcdctl put /settings/shop/checkout '{\"retries\":5}'")
    until("a change is applied", lambda: applied() == 2, of=mirroring)
    mirroring.signal(signal.SIGKILL)
    mirroring.process.wait()
    run("etcdctl del /settings/shop/before && etcdctl put /settings/shop/cart '{}'")
    again = recipe.start(mirror)
    until("the mirror is right again", lambda: applied() == 3, of=again)
    found = sorted(path.name for path in recipe.file("settings/shop").iterdir())
    if found != ["cart.json", "checkout.json"] or recipe.read("settings/shop/checkout.json") != '{"retries":5}':
        fail(f"not the state of etcd: {found}")
    recipe.done("etcdctl misses what was before; the mirror has it, and what changed while it was killed")


def inotify(recipe):
    recipe.expect(shell=2)
    serve, mirror = recipe.shell
    # A program that reads its configuration at the start, and again on SIGHUP.
    program = recipe.start(
        "read_it() { cat copy/shop/checkout/app.conf >>seen 2>&1; }; trap read_it HUP; echo $$ >program.pid; "
        # Not `wait`: a signal that comes just before it is only handled after it.
        "while :; do sleep 0.1; done"
    )
    until("the program runs", lambda: recipe.read("program.pid"), of=program)
    recipe.serve(serve)
    mirroring = recipe.start(mirror)
    until("the first configuration", lambda: recipe.read("seen") == "retries=3", of=mirroring)
    # As an editor writes: another file, and a rename.
    text = recipe.read("settings/checkout.yaml").replace("retries=3", "retries=4")
    recipe.file("settings/.checkout.yaml").write_text(text, encoding="utf-8")
    recipe.file("settings/.checkout.yaml").rename(recipe.file("settings/checkout.yaml"))
    until("the next configuration", lambda: recipe.read("seen") == "retries=3retries=4", of=mirroring)
    recipe.done("the program gets one signal for each change, and reads the new file after it")


def redis(recipe):
    recipe.expect(shell=3, programs=1)
    put, serve, install = recipe.shell
    run(put)
    server = recipe.serve(serve)
    recipe.file("flags.py").write_text(recipe.programs[0], encoding="utf-8")
    setup, _, start = install.rpartition("\n")
    run(setup, directory=recipe.directory)
    subscriber = recipe.start(start)

    def lines():
        return [line for line in subscriber.text().splitlines() if line.startswith(("ADDED", "UPDATED", "DELETED"))]

    until("the present value", lambda: lines() == ["ADDED checkout {'express': True}"], of=subscriber)
    server.signal(signal.SIGKILL)
    server.process.wait()
    run("etcdctl put /flags/checkout '{\"express\":false}'")
    recipe.serve(serve)
    wanted = ["ADDED checkout {'express': True}", "UPDATED checkout {'express': False}"]
    until("what was published meanwhile", lambda: lines() == wanted, of=subscriber)
    recipe.done("a subscriber gets the present value first, and what was put while the server was killed")


def fan_out(recipe, serve, address):
    recipe.expect(shell=2, programs=1)
    install, curl = recipe.shell
    recipe.serve(serve)
    recipe.file("fanout.py").write_text(recipe.programs[0], encoding="utf-8")
    setup, _, start = install.rpartition("\n")
    run(setup, directory=recipe.directory)
    service = recipe.start(start)
    host, port = address.split(":")

    def connect():
        try:
            return socket.create_connection((host, int(port)))
        except OSError:
            return None

    # It requests the events, and reads none of them.
    silent = until("the service listens", connect, of=service)
    silent.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    first = recipe.start(f"exec {curl}")
    until_printed('"type": "ADDED", "name": "web-1"', first)
    pod("web-2")
    until_printed('"type": "ADDED", "name": "web-2"', first)
    late = recipe.start(f"exec {curl}")
    until("the state, for a later client", lambda: '"web-1"' in late.text() and '"web-2"' in late.text(), of=late)
    pod("web-2", "Running")
    for client in (first, late):
        until_printed('"type": "UPDATED", "name": "web-2"', client)
    silent.close()
    recipe.done("two clients get the state and each change, beside one that reads nothing")


# The headings of the recipes, and what checks each.
RECIPES = {
    "An informer of client-go in each program": client_go,
    "A loop that polls kubectl": polling,
    "etcdctl watch with a script": etcdctl,
    "A loop over inotify": inotify,
    "Redis pub/sub for configuration": redis,
    "A fan-out of your own in Python": fan_out,
}


def run_all(work, addresses):
    """Runs the recipes in the order of the page: some use the server of the first."""
    page = (REPOSITORY / "docs/recipes.md").read_text(encoding="utf-8")
    found = re.findall(r"^## (.*)$", page, re.M)
    if found != list(RECIPES):
        fail(f"docs/recipes.md has the recipes {found}; this knows {list(RECIPES)}")
    serve = None
    for heading, check in RECIPES.items():
        recipe = Examples("docs/recipes.md", work, addresses, heading)
        more = {polling: [serve], fan_out: [serve, addresses["127.0.0.1:8080"]]}.get(check, [])
        check(recipe, *more)
        serve = serve or recipe.shell[0]
