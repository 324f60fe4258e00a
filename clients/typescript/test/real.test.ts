/** The client and the real server, `INFORMERD`, which serves a directory of manifests. Needs openssl. */
import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, test } from "node:test";
import { Client, type ConnectionOptions, Informer, type InformerdError, shardOf, type UntilEvent } from "../src/index.js";
import { TcpProxy } from "./server.js";

interface Job {
  metadata: { name: string; labels: Record<string, string> };
  status: { phase: string };
}

const work = mkdtempSync(join(tmpdir(), "informerd-"));
const jobs = join(work, "jobs");
mkdirSync(jobs);
const servers: ChildProcess[] = [];
after(() => {
  for (const server of servers) server.kill("SIGKILL");
  rmSync(work, { recursive: true });
});

/** Writes a job as an editor does: to another file, which is renamed. */
function put(name: string, phase: string, node = "n1"): void {
  const draft = join(jobs, ".draft");
  const metadata = { namespace: "shop", name, labels: { app: name } };
  writeFileSync(
    draft,
    JSON.stringify({ apiVersion: "batch/v1", kind: "Job", metadata, spec: { nodeName: node }, status: { phase } }),
  );
  renameSync(draft, join(jobs, `${name}.json`));
}

/** Starts a server of the directory, and returns its address when it serves. */
async function serve(listen = "127.0.0.1:0", sections = ""): Promise<{ address: string; server: ChildProcess }> {
  const program = process.env.INFORMERD;
  assert.ok(program, "INFORMERD has to name the server's program");
  const config = join(work, "config.yaml");
  writeFileSync(
    config,
    `resources: { jobs: { source: { files: { path: ${jobs} } }, indexes: { node: { path: .spec.nodeName } } } }\n${sections}`,
  );
  const server = spawn(program, ["serve", "--config", config, "--listen", listen, "--admin-listen", "none"], {
    env: { PATH: process.env.PATH },
    stdio: ["ignore", "ignore", "pipe"],
  });
  servers.push(server);
  const lines: string[] = [];
  let address = "";
  let isSynced = false;
  for await (const line of createInterface({ input: server.stderr })) {
    lines.push(line);
    address ||= /grpc listening.*address=(\S+)/.exec(line)?.[1] ?? "";
    isSynced ||= line.includes("synced objects=");
    if (address && isSynced) break;
  }
  assert.ok(address && isSynced, `the server has ended: ${lines.join("\n")}`);
  server.stderr.resume();
  return { address, server };
}

async function kill(server: ChildProcess, signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
  server.kill(signal);
  await once(server, "exit");
}

/** Returns the condition that a job has this phase. */
function hasPhase(phase: string) {
  return ({ object }: UntilEvent<Job>) => object?.body.status.phase === phase;
}

test("plain calls", async () => {
  put("a", "Running", "n1");
  put("b", "Pending", "n2");
  put("c", "Running", "n2");
  const { address, server } = await serve();
  const client = new Client({ target: address });

  const { resources, capabilities, serverVersion } = await client.resources();
  assert.deepEqual(
    resources.map(({ name, state, objects, versionFormat }) => ({ name, state, objects, versionFormat })),
    [{ name: "jobs", state: "SYNCED", objects: 3n, versionFormat: "LINEAGE" }],
  );
  assert.ok(capabilities.includes("shards") && serverVersion !== "");

  const all = await client.list<Job>("jobs");
  assert.deepEqual(
    all.objects.map(({ namespace, name, body }) => `${namespace}/${name} ${body.status.phase}`),
    ["shop/a Running", "shop/b Pending", "shop/c Running"],
  );
  assert.deepEqual([all.state, all.nextPageToken, all.namespaces, all.version !== ""], ["SYNCED", "", [], true]);
  const names = (list: { objects: { name: string }[] }) => list.objects.map(({ name }) => name).join(" ");
  assert.equal(names(await client.list("jobs", { labelSelector: "app in (a,b)", fieldSelector: "status.phase=Running" })), "a");
  assert.equal(names(await client.list("jobs", { index: { name: "node", values: ["n2"] } }, { minVersion: all.version })), "b c");
  assert.equal(names(await client.list("jobs", { name: "c", labelSelector: "app in (a,c)" })), "c");
  const shards = [shardOf(0, 2, "key"), shardOf(1, 2, "key")].map((shard) => client.list("jobs", { shard }));
  assert.equal((await Promise.all(shards)).map(names).join(" ").split(" ").filter(Boolean).sort().join(" "), "a b c");
  const first = await client.list("jobs", {}, { pageSize: 2 });
  const second = await client.list("jobs", {}, { pageSize: 2, pageToken: first.nextPageToken });
  assert.deepEqual([names(first), names(second), second.nextPageToken], ["a b", "c", ""]);

  assert.equal(names(await client.byIndex("jobs", "node", "n2", { namespace: "shop" })), "b c");
  assert.equal(names(await client.byIndex("jobs", "node", { like: { namespace: "shop", name: "b" } })), "b c");
  assert.deepEqual(await client.indexValues("jobs", "node"), [
    { value: "n1", objects: 1n },
    { value: "n2", objects: 2n },
  ]);

  const got = await client.get<Job>("jobs", { namespace: "shop", name: "b" }, { view: { fields: ["status.phase"] } });
  assert.deepEqual(
    [got.object.body, got.object.kind, got.object.labels],
    [{ status: { phase: "Pending" } }, "Job", { app: "b" }],
  );
  const bare = await client.get("jobs", { namespace: "shop", name: "b" }, { format: "METADATA" });
  assert.deepEqual([bare.object.body, bare.object.raw, bare.object.labels], [undefined, undefined, { app: "b" }]);
  await assert.rejects(client.get("jobs", { name: "zz" }), { code: "NOT_FOUND", reason: "OBJECT_NOT_FOUND" });
  await assert.rejects(client.list("jobz"), (error: InformerdError) => {
    return error.reason === "RESOURCE_NOT_FOUND" && /resource "jobz" not found/.test(error.message);
  });

  const met = client.until<Job>(
    "jobs",
    [hasPhase("Done"), ({ type }) => type === "DELETED"],
    { name: "b" },
    { timeoutMs: 20_000 },
  );
  assert.equal((await client.until("jobs", [({ count }) => count === 3, ({ object }) => !object])).type, "SYNCED");
  put("b", "Done");
  rmSync(join(jobs, "c.json"));
  await client.until("jobs", undefined, { name: "b", expression: 'object.status.phase == "Done"' }, { timeoutMs: 20_000 });
  rmSync(join(jobs, "b.json"));
  const { type, object, version } = await met;
  assert.deepEqual([type, object?.body.status.phase, version !== ""], ["DELETED", "Done", true]);
  await assert.rejects(
    client.until("jobs", ({ count }) => count === 99, {}, { timeoutMs: 100 }),
    { code: "DEADLINE_EXCEEDED", message: "the conditions were not met within 100 ms" },
  );
  await assert.rejects(client.until("jobs", undefined, { expression: "count == 99" }), { reason: "EXPRESSION_INVALID" });
  client.close();
  await kill(server);
  rmSync(join(jobs, "a.json"));
});

test("an informer through kill -9, a restart and changes in between", async () => {
  put("a", "Running");
  put("b", "Running");
  const { address, server } = await serve();
  const informer = new Informer<Job>({
    target: address,
    resource: "jobs",
    indexers: { phase: ({ body }) => body.status.phase },
    bookmarkIntervalMs: 100,
    maxBackoffMs: 100,
  });
  const log: string[] = [];
  const changes = (async () => {
    for await (const event of informer) {
      if (event.type === "synced") continue;
      log.push(
        `${event.type} ${event.object.name}${event.type === "deleted" ? ` ${event.cause}` : ` ${event.object.body.status.phase}`}`,
      );
      if (event.object.name === "last") return;
    }
  })();
  informer.start();
  await informer.waitSynced({ timeoutMs: 20_000 });
  const lost = new Promise((resolve) => informer.on("disconnected", resolve));
  await kill(server);
  await lost;
  assert.equal(informer.healthy(), false);
  assert.equal(informer.size, 2, "the store serves the old state");
  put("a", "Done");
  rmSync(join(jobs, "b.json"));
  const { server: second } = await serve(address);
  const client = new Client({ target: address });
  put("last", "Running");
  await client.until("jobs", undefined, { name: "last" }, { timeoutMs: 20_000 });
  await changes;
  // The new run has another lineage: every version is another one, and only the difference is reported.
  assert.deepEqual(log, ["added a Running", "added b Running", ...log.slice(2)]);
  assert.deepEqual(log.slice(2).sort(), ["added last Running", "deleted b INFERRED", "updated a Done"]);
  const { version } = await client.list("jobs");
  await informer.readAfter(version, { timeoutMs: 20_000 });
  assert.deepEqual(
    [informer.healthy(), informer.byIndex("phase", "Done").map(({ name }) => name), informer.freshness().state],
    [true, ["a"], "LIVE"],
  );
  await informer.stop();
  client.close();
  await kill(second);
});

test("until while the server is restarted", async () => {
  put("a", "Running");
  let { address, server } = await serve();
  const client = new Client({ target: address });
  const met: string[] = [];
  const noting = (phase: string) => (event: UntilEvent<Job>) => hasPhase(phase)(event) && met.push(phase);
  const isDeleted = ({ type }: UntilEvent<Job>) => type === "DELETED";
  const waiting = client.until<Job>(
    "jobs",
    [noting("Running"), noting("Paused"), noting("Done"), isDeleted],
    { name: "a" },
    { timeoutMs: 60_000 },
  );
  const reaches = async (phase: string) => {
    while (!met.includes(phase)) await new Promise((resolve) => setTimeout(resolve, 5));
  };
  await reaches("Running");
  // The new server has another lineage: the version of the wait has expired.
  for (const [signal, phase] of [
    ["SIGTERM", "Paused"],
    ["SIGKILL", "Done"],
  ] as const) {
    await kill(server, signal);
    put("a", phase);
    ({ server } = await serve(address));
    await reaches(phase);
  }
  await kill(server);
  rmSync(join(jobs, "a.json"));
  ({ server } = await serve(address));
  assert.equal((await waiting).type, "DELETED");
  client.close();
  await kill(server);
});

test("until behind a proxy that ends idle connections", async () => {
  put("a", "Running");
  const { address, server } = await serve();
  const proxy = new TcpProxy(Number(address.split(":")[1]), 200);
  const client = new Client({ target: await proxy.start() });
  const waiting = client.until<Job>(
    "jobs",
    [hasPhase("Running"), hasPhase("Done"), ({ type }) => type === "DELETED"],
    {},
    { timeoutMs: 60_000 },
  );
  const reaches = async (connections: number) => {
    while (proxy.connections < connections) await new Promise((resolve) => setTimeout(resolve, 5));
  };
  await reaches(4);
  put("a", "Done");
  await reaches(proxy.connections + 3);
  rmSync(join(jobs, "a.json"));
  assert.equal((await waiting).type, "DELETED");
  client.close();
  proxy.stop();
  await kill(server);
});

test("TLS, client certificates and tokens", async () => {
  const openssl = (...args: string[]) => execFileSync("openssl", args, { cwd: work, stdio: ["ignore", "ignore", "pipe"] });
  const rsa = ["-newkey", "rsa:2048", "-nodes"];
  openssl("req", "-x509", ...rsa, "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt");
  const sign = (name: string, extension: string) => {
    openssl("req", ...rsa, "-subj", `/O=${name}/CN=${name}`, "-keyout", `${name}.key`, "-out", `${name}.csr`);
    writeFileSync(join(work, `${name}.ext`), extension);
    const authority = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"];
    openssl("x509", "-req", "-in", `${name}.csr`, ...authority, "-days", "2", "-extfile", `${name}.ext`, "-out", `${name}.crt`);
  };
  sign("server", "subjectAltName=DNS:localhost");
  sign("web", "extendedKeyUsage=clientAuth");
  const file = (name: string) => join(work, name);
  writeFileSync(file("tokens"), `${createHash("sha256").update("secret").digest("hex")} ci\n`);
  writeFileSync(file("token"), "wrong\n");
  const { address, server } = await serve(
    "127.0.0.1:0",
    `tls: { cert: ${file("server.crt")}, key: ${file("server.key")}, client_ca: ${file("ca.crt")} }
authentication: { client_certificates: true, token_file: ${file("tokens")} }
authorization: { rules: [{ subjects: ["user:web", "user:ci"], verbs: ["*"], resources: [jobs], namespaces: ["*"] }] }
`,
  );
  const tls: ConnectionOptions = { target: `https://localhost:${address.split(":")[1]}`, certificateAuthority: file("ca.crt") };
  const web = { ...tls, clientCertificate: file("web.crt"), clientKey: file("web.key") };
  const call = async (options: ConnectionOptions) => {
    const client = new Client(options);
    try {
      return (await client.list("jobs")).objects.length;
    } finally {
      client.close();
    }
  };
  const count = await call(web);
  assert.equal(await call({ ...web, target: address, serverName: "localhost" }), count);
  await assert.rejects(call({ target: tls.target }), /self.signed certificate in certificate chain|unable to verify/);
  await assert.rejects(call(tls), { code: "UNAUTHENTICATED", reason: "CREDENTIALS_MISSING" });

  const informer = new Informer({ ...tls, tokenFile: file("token"), resource: "jobs", onError: () => {} });
  informer.on("disconnected", () => writeFileSync(file("token"), "secret\n"));
  informer.start();
  await informer.waitSynced({ timeoutMs: 20_000 });
  assert.equal(informer.size, count);
  await informer.stop();
  await kill(server);
});
