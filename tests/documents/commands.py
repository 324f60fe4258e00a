"""Runs the commands of the other pages in docs/, and checks what they print."""

import json
import os
import re
import shutil
import signal

from pages import REPOSITORY, Examples, blocks, fail, run, until, until_printed

# The kind of source in examples of configurations, and one that has objects here.
KUBE_PODS = "{ kube: { version: v1, plural: pods } }"
FILES_PODS = f"{{ files: {{ path: {REPOSITORY}/examples/manifests, kind: Pod }} }}"
EVENT = {"type": "ADDED", "object": {"kind": "Pod", "metadata": {"namespace": "shop", "name": "recorded"}}}


class Page(Examples):
    """A page whose commands run in a directory with a copy of the examples."""

    def __init__(self, page, work, addresses, heading=None):
        super().__init__(page, work, addresses, heading)
        shutil.copytree(REPOSITORY / "examples", self.file("examples"))

    def serve_shop(self):
        return self.serve("informerd serve --config examples/shop.yaml")

    def serve_configuration(self, text):
        self.file("informerd.yaml").write_text(text, encoding="utf-8")
        return self.serve("informerd serve --config informerd.yaml")

    def serve_with(self, authentication):
        """Serves the pods to callers that an example authenticates, under the rule of the page for everything."""
        page = (REPOSITORY / "docs/authorization.md").read_text(encoding="utf-8")
        rules = re.search(r"write a rule for everything: `(rules: .*)`", page)[1]
        resources = f"resources: {{ pods: {{ source: {FILES_PODS} }} }}"
        return self.serve_configuration(f"{authentication}\nauthorization: {{ {rules} }}\n{resources}\n")

    def run(self, command, words):
        """Runs a command that ends, and checks that it prints some words."""
        printed = run(command, directory=self.directory)
        if words not in printed:
            fail(f"{self.name}: {command}: {words!r} is not in\n{printed}")

    def follow(self, command, words):
        """Starts a command that stays open, and waits until it prints some words."""
        started = self.start(command)
        until_printed(words, started)
        return started


def lines(block):
    """Returns the commands of a block, without comments."""
    joined = block.replace("\\\n", " ")
    return [line.split("   #")[0].strip() for line in joined.splitlines()]


def etcd(page):
    page.expect(shell=2)
    page.serve(page.shell[0])
    listed, gotten, watched = lines(page.shell[1])
    page.run(listed, "greeting")
    page.run(gotten, "retries: 3")
    page.follow(watched, "checkout")
    page.done("the keys are listed, read and watched")


def files(page):
    page.expect(shell=1)
    page.serve(page.shell[0])
    page.run("informerd list pods -o name | wc -l", "21")
    page.done("the pods of the directory are served")


def relay(page):
    page.expect(shell=1)
    page.serve_shop()
    serve, watch = lines(page.shell[0])
    page.serve(serve)
    page.follow(watch, "# synced: 21 objects")
    page.done("a client of the relay has every pod")


def kube(page):
    page.expect(shell=1)
    serve, rbac = lines(page.shell[0])
    server = page.start(serve)
    until("both resources are synced", lambda: server.text().count("synced objects=") == 2, of=server)
    page.run(rbac, "kind: ClusterRole")
    page.run("informerd list pods -o name", "shop/web-1")
    page.done("the resources are served, and the role is printed")


def stream(page):
    page.expect(shell=2)
    recorded, piped, copied = lines(page.shell[0])
    page.file("events.jsonl").write_text(json.dumps(EVENT) + "\n", encoding="utf-8")

    def serves(command, resource, words):
        server = page.start(command)
        listed = f"informerd list {resource} -o name || true"
        until(f"{words} of {command}", lambda: words in run(listed, directory=page.directory), of=server)
        server.kill()

    serves(recorded, "events", "shop/recorded")
    serves(piped, "pods", "shop/web-1")
    page.start(page.shell[1])
    until("the pipe", lambda: page.file("pods.pipe").exists())
    serves("informerd serve --stream pods=pods.pipe", "pods", "shop/web-1")
    page.serve_shop()
    copy = page.start(copied)
    address = copied.split("--listen ")[1].split()[0]
    counted = f"informerd list copy --server {address} -o name | wc -l"
    until("the copy", lambda: run(f"{counted} || true").strip() == "21", of=copy)
    page.done("a recording, the output of kubectl, a pipe and the record of another server are served")


def mirror(page):
    page.expect(shell=1)
    page.serve_shop()
    keys, once, again = lines(page.shell[0])
    page.follow(keys, "# synced:")
    until("a file for a key", lambda: page.read("settings/platform/auth-config/PASSKEYS") == "true")
    run(once, directory=page.directory)
    page.serve(again)
    address = again.split("--listen ")[1].split()[0]
    page.run(f"informerd list copy --server {address} -o name | wc -l", "21")
    page.done("the files are those of the objects, and are served again")


def api(page):
    page.expect(shell=6)
    call, views, shards, past, subscribe, expressions = page.shell
    page.serve_configuration(
        page.configurations[0].replace(KUBE_PODS, FILES_PODS).replace("allowed_views", "# allowed_views")
    )
    if shutil.which("grpcurl"):
        page.follow(call, "EVENT_TYPE_ADDED")
        page.follow(subscribe, "EVENT_TYPE_ADDED")
    listed, named = lines(views)
    page.run(listed, '"nodeName"')
    page.run(named, "placement")
    for line in lines(shards):
        page.follow(line, "# synced:")
    version = json.loads(run("informerd list pods -o json", directory=page.directory))["metadata"]["resourceVersion"]
    run(lines(past)[0].replace("812", version).replace("900", version), directory=page.directory)
    selected, until_two = lines(expressions)
    run(selected, directory=page.directory)
    run(until_two, directory=page.directory)
    page.done("views, shards and expressions select")


def http(page):
    page.expect(shell=1)
    server = page.serve_configuration(page.configurations[0])
    listed, gotten, watched = (line.replace("curl ", "curl --silent --fail ") for line in lines(page.shell[0]))
    page.run(listed, '"resourceVersion"')
    page.run(gotten, '"web-95mrm8mw82-jbmvc"')
    page.follow(watched, '"initialEventsEnd":true')
    text = (REPOSITORY / page.page).read_text(encoding="utf-8").replace("127.0.0.1:8001", page.addresses["127.0.0.1:8001"])
    program, use = blocks(text, "js")
    page.file("follow.mjs").write_text(program, encoding="utf-8")
    page.file("use.mjs").write_text(use, encoding="utf-8")
    follower = page.start("exec node use.mjs")
    until_printed("BOOKMARK", follower)
    manifest = page.file("examples/manifests/http.yaml")
    manifest.write_text("{kind: Pod, metadata: {namespace: storefront, name: http-1}}\n", encoding="utf-8")
    until_printed("ADDED http-1", follower)
    # At its next start the server has other versions: 410, and all objects again.
    server.signal(signal.SIGKILL)
    server.process.wait()
    manifest.write_text("{kind: Pod, metadata: {namespace: storefront, name: http-2}}\n", encoding="utf-8")
    page.serve("informerd serve --config informerd.yaml")
    until_printed("ADDED http-2", follower)
    page.done("curl and a program of the page read and follow the pods, also over a restart")


def clients(page):
    page.expect(shell=1)
    page.serve_shop()
    page.follow(page.shell[0], '"nodeName"')
    page.done("the watch prints the fields")


def configuration(page):
    page.expect(shell=1)
    check, serve = lines(page.shell[0])
    page.file("informerd.yaml").write_text(page.configurations[0].replace(KUBE_PODS, FILES_PODS), encoding="utf-8")
    page.run(check, "indexed by")
    page.serve(serve)
    page.run("informerd by-index pods node node-a", "node-a")
    page.done("the example is valid, and is served")


def certificates(page):
    page.expect(shell=1)
    commands, _, listed = page.shell[0].rpartition("\n")
    run(commands, directory=page.directory)
    page.serve_with(page.configurations[0])
    page.run(listed, "checkout")
    page.done("a client with a certificate is served")


def tokens(page):
    page.expect(shell=2)
    make, call = page.shell
    # The blocks share a variable.
    run(f'{make}\nprintf %s "$token" >token', directory=page.directory)
    os.environ["INFORMERD_ADMIN_LISTEN"] = call.split("http://")[1].split("/")[0]
    page.serve_with(page.configurations[0])
    os.environ["INFORMERD_ADMIN_LISTEN"] = "none"
    page.run(f'token="$(cat token)"\n{call.replace("curl ", "curl --silent --fail ")}', "informerd_cache_objects")
    page.run("informerd list pods 2>&1 || true", "CREDENTIALS_MISSING")
    page.done("a client with a token is served, and one without is refused")


def jwt(page):
    page.expect(shell=1)
    commands, _, listed = page.shell[0].rpartition("\n")
    run(commands, directory=page.directory)
    page.serve_with(page.configurations[0].replace("jwks.json", "keys.pem"))
    page.run(listed, "checkout")
    page.done("a client with a token that openssl signed is served")


def chart_values(page):
    """Renders the chart with the values of an example. Returns the objects, as Helm prints them."""
    (values,) = [block for block in page.configurations if block.startswith("mode:")]
    page.file("values.yaml").write_text(values, encoding="utf-8")
    homes = " ".join(f'{name}="$PWD"' for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"))
    chart = "../informerd/deploy/helm/informerd"
    return run(f'{homes} "$INFORMERD_HELM" template informerd {chart} --values values.yaml', directory=page.directory)


def kubernetes(page):
    if "kind: PodMonitor" not in chart_values(page):
        fail(f"{page.name}: no PodMonitor")
    page.done("the chart accepts the values")


def log_level(page):
    page.expect(shell=1)
    shown, changed = (line.replace("curl ", "curl --silent --fail ") for line in lines(page.shell[0]))
    os.environ["INFORMERD_ADMIN_LISTEN"] = shown.split("http://")[1].split("/")[0]
    page.serve_shop()
    os.environ["INFORMERD_ADMIN_LISTEN"] = "none"
    page.run(shown, "info")
    page.run(changed, "")
    page.run(shown, "informerd::grpc=debug")
    page.done("the log level is shown and changed")


def sizing(page):
    page.expect(shell=0)
    text = (REPOSITORY / page.page).read_text(encoding="utf-8")
    stated = re.search(r"a\s+memory\s+limit\s+of\s+(\d+)\s+MiB:((?:[^.]|\n)*)\.", text)
    terms = re.sub(r"(\d+) · (\d+)", lambda term: str(int(term[1]) * int(term[2])), stated[2])
    total = sum(int(number) for number in re.findall(r"\d+", terms))
    if total != int(stated[1]) or f"limits: {{ memory: {stated[1]}Mi }}" not in chart_values(page):
        fail(f"{page.name}: {stated[1]} MiB are stated, the terms add up to {total}, and the chart has another limit")
    page.done(f"the chart sets the memory limit of {total} MiB that the page calculates")


def scale(page):
    page.expect(shell=1)
    page.run(page.shell[0], "processes: ")
    for subscribers, processors, processes in [(10_000, "0.18", 1), (100_000, "1.76", 1), (1_000_000, "17.60", 10)]:
        plan = f"informerd check examples/shop.yaml --plan subscribers={subscribers},rate=1,bytes=1024"
        page.run(plan, f"{processors} processors;")
        page.run(plan, f"processes: {processes}")
    page.done("the plan has the figures of its table")


# The pages, the headings of their commands where some are run elsewhere, and what checks them.
PAGES = [
    ("docs/kubernetes.md", None, kubernetes),
    ("docs/operations.md", "## Logs", log_level),
    ("docs/operations.md", "## Sizing", sizing),
    ("docs/scale.md", None, scale),
    ("docs/sources/etcd.md", None, etcd),
    ("docs/sources/files.md", None, files),
    ("docs/sources/informerd.md", None, relay),
    ("docs/sources/kube.md", None, kube),
    ("docs/sources/stream.md", None, stream),
    ("docs/mirror.md", None, mirror),
    ("docs/api.md", None, api),
    ("docs/http.md", None, http),
    ("docs/clients.md", "## The command line", clients),
    ("docs/configuration.md", None, configuration),
    ("docs/authentication.md", "## Client certificates", certificates),
    ("docs/authentication.md", "## Static tokens", tokens),
    ("docs/authentication.md", "## JSON Web Tokens", jwt),
]
ELSEWHERE = {
    # recipes.py
    ("docs/recipes.md", None),
    # Commands for a cluster; tests/upstreams/ installs the chart and applies the overlays.
    ("docs/kubernetes.md", None),
    # tests/clients/page.py, clients/run, tests/conformance/run
    ("docs/clients.md", "### Python"),
    ("docs/clients.md", "### Go"),
    ("docs/clients.md", "### TypeScript and JavaScript"),
    ("docs/clients.md", "## Other clients"),
    ("docs/clients.md", "## The conformance suite"),
}


def headings_with_commands(page):
    """Returns the headings that have blocks of commands below them."""
    heading, language, found = None, None, set()
    for line in (REPOSITORY / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            language = None if language is not None else line[3:]
            if language == "sh":
                found.add(heading)
        elif line.startswith("#") and language is None:
            heading = line
    return found


def check_syntax():
    """Checks that bash reads every block of commands, those that nothing runs too."""
    folders = ("benches", "deploy", "docs", "examples")
    paths = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.md")]
    paths += [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("clients/*/README.md")]
    for path in paths:
        for block in blocks(path.read_text(encoding="utf-8")):
            run("bash -n", text=block)


def run_all(work, addresses):
    check_syntax()
    known = {(path, heading) for path, heading, _ in PAGES} | ELSEWHERE
    for path in sorted((REPOSITORY / "docs").rglob("*.md")):
        page = str(path.relative_to(REPOSITORY))
        unknown = [heading for heading in headings_with_commands(page) if not known & {(page, heading), (page, None)}]
        if unknown:
            fail(f"{page} has commands that nothing runs, under {unknown}")
    for path, heading, check in PAGES:
        check(Page(path, work, addresses, heading))
