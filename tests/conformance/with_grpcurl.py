"""Checks with grpcurl, as a person uses it without a .proto file."""

import json
import re

from harness import Failed, check, equal, image_names, is_files_version, json_documents, key, run_client

SERVICE = "informerd.v1.InformerService"
# grpcurl exits with 64 + the code of the status.
INVALID_ARGUMENT, NOT_FOUND = 64 + 3, 64 + 5


class Grpcurl:
    def __init__(self, binary, address):
        self.binary, self.address = binary, address

    def run(self, *arguments, data=None):
        flags = ["-plaintext", "-max-time", "20"] + ([] if data is None else ["-d", json.dumps(data)])
        return run_client([self.binary, *flags, self.address, *arguments])

    def text(self, *arguments):
        result = self.run(*arguments)
        if result.returncode != 0:
            raise Failed(f"grpcurl {' '.join(arguments)} ended with {result.returncode}: {result.stderr}")
        return result.stdout

    def call(self, method, /, **data):
        """Returns the messages of a response that is OK."""
        result = self.run(method if "/" in method else f"{SERVICE}/{method}", data=data)
        if result.returncode != 0:
            raise Failed(f"grpcurl {method} {data} ended with {result.returncode}: {result.stderr}")
        return json_documents(result.stdout)

    def objects(self, method, /, **data):
        return [each for message in self.call(method, **data) for each in message.get("objects", [])]

    def refused(self, method, code, name, /, *words, **data):
        """Checks that a call ends with a status, and that its printed details contain the words."""
        result = self.run(method if "/" in method else f"{SERVICE}/{method}", data=data)
        what = f"grpcurl: {method} {json.dumps(data)} is {name}"
        equal(result.returncode, code, f"{what}  {result.stderr}" if result.returncode != code else what)
        for word in words:
            check(word in result.stderr, f"  and says {word}", result.stderr)


def run(binary, address, manifests, proto):
    grpcurl = Grpcurl(binary, address)
    reflection(grpcurl, proto)
    reads(grpcurl, manifests)
    watch(grpcurl, manifests)
    discovery(grpcurl, manifests)
    errors(grpcurl)
    health(grpcurl)


def reflection(grpcurl, proto):
    services = grpcurl.text("list").split()
    for service in (SERVICE, "informerd.v1.AdminService", "grpc.health.v1.Health"):
        check(service in services, f"grpcurl: list has {service}", services)
    methods = set(re.findall(r"^\s*rpc (\w+)\(", proto.read_text().split("service AdminService")[0], re.M))
    found = {line.rsplit(".", 1)[1] for line in grpcurl.text("list", SERVICE).split()}
    check(methods and methods == found, f"grpcurl: list {SERVICE} has its {len(methods)} methods", found)

    # Reflection must keep the comments of the .proto file: they are the manual of a person with grpcurl.
    comment = re.search(r"//\s*(.+)\n\s*rpc Watch\(", proto.read_text()).group(1)
    found = grpcurl.text("describe", f"{SERVICE}.Watch")
    check(comment in found, f"grpcurl: describe {SERVICE}.Watch shows «{comment}»", found)
    # (grpcurl shows the comments above a field, not those behind it.)
    message = proto.read_text().split("\nmessage WatchRequest {")[1]
    comment = re.search(r"^\s*// (.+)\n(?:\s*//.*\n)*\s*string resource_version = 2;", message, re.M).group(1)
    found = grpcurl.text("describe", "informerd.v1.WatchRequest")
    check(comment in found, f"grpcurl: describe informerd.v1.WatchRequest shows «{comment}»", found)
    found = grpcurl.text("describe", "google.rpc.ErrorInfo")
    check("string reason = 1;" in found, "grpcurl: describe knows google.rpc.ErrorInfo", found)


def reads(grpcurl, manifests):
    pods = manifests.objects["Pod"]
    chunks = grpcurl.call("List", resource="pods")
    found = [each for chunk in chunks for each in chunk.get("objects", [])]
    equal([key(each) for each in found], manifests.keys("Pod"), f"grpcurl: List of pods has all {len(pods)}, sorted")
    equal({key(each): each["struct"] for each in found}, pods, "grpcurl: their bodies are those of the manifests")
    for field, of_body in (
        ("uid", lambda body: body["metadata"]["uid"]),
        ("labels", lambda body: body["metadata"]["labels"]),
        ("apiVersion", lambda body: body["apiVersion"]),
        ("kind", lambda body: body["kind"]),
    ):
        wanted = [of_body(pods[key(each)]) for each in found]
        equal([each[field] for each in found], wanted, f"grpcurl: each has its {field}")
    versions = {chunk["resourceVersion"] for chunk in chunks}
    check(len(versions) == 1 and is_files_version(*versions), "grpcurl: all of it at one version", versions)

    for field, where in (
        ({"namespace": "orders"}, lambda body: body["metadata"]["namespace"] == "orders"),
        (
            {"label_selector": "app in (web,cart),tier!=frontend"},
            lambda body: body["metadata"]["labels"]["app"] == "cart",
        ),
        ({"field_selector": "status.phase!=Running"}, lambda body: body["status"]["phase"] != "Running"),
    ):
        wanted = manifests.keys("Pod", where)
        found = [key(each) for each in grpcurl.objects("List", resource="pods", **field)]
        check(wanted and found == wanted, f"grpcurl: List of pods with {field} has {len(wanted)}", found)
    found = grpcurl.objects("List", resource="configmaps", format="PAYLOAD_FORMAT_METADATA")
    wanted = manifests.keys("ConfigMap")
    equal([key(each) for each in found], wanted, f"grpcurl: List of configmaps without bodies has {len(wanted)}")
    check(not any("struct" in each or "raw" in each for each in found), "grpcurl: and there is no body", found)

    for resource, kind, index, value, where in (
        ("pods", "Pod", "node", "node-a", lambda body: body["spec"].get("nodeName") == "node-a"),
        ("pods", "Pod", "namespace", "platform", lambda body: body["metadata"]["namespace"] == "platform"),
        ("pods", "Pod", "image", envoy(manifests), lambda body: envoy(manifests) in image_names(body)),
        ("services", "Service", "port", "443", lambda body: 443 in [port["port"] for port in body["spec"]["ports"]]),
        ("services", "Service", "selector-app", "gateway", lambda body: body["spec"]["selector"]["app"] == "gateway"),
    ):
        wanted = manifests.keys(kind, where)
        found = [key(each) for each in grpcurl.objects("ByIndex", resource=resource, index=index, value=value)]
        check(wanted and found == wanted, f"grpcurl: ByIndex of {resource}, {index} {value}, has {len(wanted)}", found)
    found = grpcurl.objects("ByIndex", resource="pods", index="node", value="node-z")
    equal(found, [], "grpcurl: ByIndex of pods, node node-z, has none")

    name = manifests.keys("Pod")[0]
    found = grpcurl.call("Get", resource="pods", namespace=name.split("/")[0], name=name.split("/")[1])
    equal([each["object"]["struct"] for each in found], [pods[name]], f"grpcurl: Get of pod {name}")


def envoy(manifests):
    """Returns the image of the proxies, which several pods run beside another one."""
    return next(i for body in manifests.objects["Pod"].values() for i in sorted(image_names(body)) if "envoy" in i)


def watch(grpcurl, manifests):
    events = grpcurl.call("Watch", resource="pods", label_selector="tier=backend", timeout="1s")
    wanted = manifests.keys("Pod", lambda body: body["metadata"]["labels"]["tier"] == "backend")
    added = [key(event["object"]) for event in events if event["type"] == "EVENT_TYPE_ADDED"]
    equal(sorted(added), sorted(wanted), f"grpcurl: Watch of backend pods begins with the {len(wanted)} there are")
    end, last = events[len(wanted)], events[-1]
    check(end.get("bookmark", {}).get("initialEventsEnd"), "grpcurl: then a BOOKMARK with initialEventsEnd", end)
    check(last["type"] == "EVENT_TYPE_BOOKMARK", "grpcurl: its timeout ends it with a BOOKMARK and OK", last)


def discovery(grpcurl, manifests):
    for resource, kind, index, values in (
        ("pods", "Pod", "node", lambda body: filter(None, [body["spec"].get("nodeName")])),
        ("pods", "Pod", "namespace", lambda body: [body["metadata"]["namespace"]]),
        ("pods", "Pod", "phase", lambda body: [body["status"]["phase"]]),
        ("pods", "Pod", "image", image_names),
        ("deployments", "Deployment", "image", lambda body: image_names(body["spec"]["template"])),
        ("services", "Service", "port", lambda body: [str(port["port"]) for port in body["spec"]["ports"]]),
        ("configmaps", "ConfigMap", "app", lambda body: [body["metadata"]["labels"]["app"]]),
    ):
        (found,) = grpcurl.call("ListIndexValues", resource=resource, index=index)
        found = {each["value"]: int(each["objects"]) for each in found["values"]}
        wanted = manifests.counts(kind, values)
        equal(found, wanted, f"grpcurl: ListIndexValues of {resource}, {index}: {len(wanted)} values")

    (found,) = grpcurl.call("ListResources")
    found = {each["name"]: each for each in found["resources"]}
    indexes = {
        "pods": ("Pod", {"app", "image", "node", "phase"}),
        "deployments": ("Deployment", {"app", "image"}),
        "services": ("Service", {"app", "port", "selector-app"}),
        "configmaps": ("ConfigMap", {"app"}),
    }
    equal(sorted(found), sorted(indexes), "grpcurl: ListResources has the four")
    for resource, (kind, wanted) in indexes.items():
        each, objects = found[resource], len(manifests.objects[kind])
        summary = (each["source"], each["state"], int(each["objects"]))
        equal(summary, ("files", "SYNC_STATE_SYNCED", objects), f"grpcurl: {resource} synced from files: {objects}")
        check(wanted <= set(each["indexes"]), f"  with the indexes {', '.join(sorted(wanted))}", each["indexes"])


def errors(grpcurl):
    # Printed as JSON, under its type: grpcurl has resolved the detail by reflection.
    unknown = ("google.rpc.ErrorInfo", '"RESOURCE_NOT_FOUND"', '"informerd"')
    grpcurl.refused("List", NOT_FOUND, "NOT_FOUND", *unknown, resource="unicorns")
    grpcurl.refused("Watch", NOT_FOUND, "NOT_FOUND", *unknown, resource="unicorns")
    missing = {"resource": "pods", "namespace": "orders", "name": "no-such"}
    grpcurl.refused("Get", NOT_FOUND, "NOT_FOUND", "OBJECT_NOT_FOUND", **missing)
    for method in ("List", "Watch"):
        grpcurl.refused(
            method, INVALID_ARGUMENT, "INVALID_ARGUMENT", '"informerd"', resource="pods", label_selector="app in (web"
        )
    colour = {"resource": "pods", "index": "colour", "value": "red"}
    grpcurl.refused("ByIndex", INVALID_ARGUMENT, "INVALID_ARGUMENT", '"informerd"', **colour)


def health(grpcurl):
    method = "grpc.health.v1.Health/Check"
    for service in ("", "resource/pods"):
        found = grpcurl.call(method, service=service)
        equal(found, [{"status": "SERVING"}], f"grpcurl: health of «{service}» is SERVING")
    grpcurl.refused(method, NOT_FOUND, "NOT_FOUND", service="resource/unicorns")
