/** The informer over real connections, with scripted servers. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { getEventListeners, once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, test } from "node:test";
import { fileURLToPath } from "node:url";
import { status } from "@grpc/grpc-js";
import { Endpoint } from "../src/connection.js";
import { ByIndexResponse, ListResponse, ServerInfo } from "../src/generated/informerd/v1/informerd.js";
import {
  Client,
  HandlerError,
  Informer,
  type InformerdError,
  type InformerOptions,
  type Selection,
  shardOf,
} from "../src/index.js";
import { added, bookmark, deleted, end, initial, modified } from "./script.js";
import { ScriptedServer, TcpProxy } from "./server.js";

interface Body {
  x: number;
}

const TIMES = { bookmarkIntervalMs: 60_000, backoffMs: 1, maxBackoffMs: 5, drainJitterMs: 1 };
const DRIVER = fileURLToPath(new URL("../conformance/driver.js", import.meta.url));

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve(...args: Parameters<typeof ScriptedServer.start>): Promise<ScriptedServer> {
  const server = await ScriptedServer.start(...args);
  cleanups.push(() => server.stop());
  return server;
}

function informer(target: string, options: Partial<InformerOptions<Body>> = {}): Informer<Body> {
  const created = new Informer<Body>({
    target,
    resource: "things",
    ...TIMES,
    onError: (error) => assert.fail(error),
    ...options,
  });
  cleanups.push(() => created.stop());
  return created;
}

/** Starts an informer that has listed a and b at version 10. */
async function live(server: ScriptedServer, options: Partial<InformerOptions<Body>> = {}, target = server.target) {
  const started = informer(target, options);
  started.start();
  const watch = await server.watch();
  watch.send(initial("a", { labels: { app: "web" } }), initial("b"), end("10"));
  await started.waitSynced();
  return { informer: started, watch };
}

/** Waits until the informer's stream ends. */
function disconnected(informer: Informer<Body>): Promise<InformerdError> {
  return new Promise((resolve) => informer.on("disconnected", (error) => resolve(error)));
}

test("the store, handlers and iterators follow the server", async () => {
  const server = await serve();
  const log: string[] = [];
  const started = informer(server.target, { indexers: { app: ({ labels }) => labels.app, x: ({ body }) => [`x${body.x}`] } })
    .on("added", (object) => log.push(`added ${object.name} ${object.body.x}`))
    .on("updated", (old, object) => log.push(`updated ${object.name} ${old.body.x} ${object.body.x}`))
    .on("deleted", (last, cause) => log.push(`deleted ${last.name} ${last.body.x} ${cause}`))
    .on("synced", () => log.push("synced"));
  const handled = new Promise((resolve) => started.on("deleted", resolve));
  const early = started[Symbol.asyncIterator]();
  assert.deepEqual([started.version, started.healthy(), started.freshness().state], ["", false, "DISCONNECTED"]);
  started.start();
  const watch = await server.watch();
  assert.deepEqual(
    { ...watch.request, queue: undefined },
    {
      ...watch.request,
      resource: "things",
      resourceVersion: "",
      history: "",
      format: 2,
      bookmarkInterval: { seconds: 60n, nanos: 0 },
      batchInitialEvents: true,
    },
  );
  watch.send(initial("a", { labels: { app: "web" } }), initial("b"), end("10"));
  await started.waitSynced();
  assert.deepEqual([started.version, started.healthy(), started.freshness().state, started.size], ["10", true, "LIVE", 2]);
  assert.deepEqual(
    started.byIndex("app", "web").map(({ name }) => name),
    ["a"],
  );
  assert.throws(() => started.byIndex("nme", "x"), /there is no indexer "nme" \(there are: "app", "x"\)/);

  watch.send(modified("a", { at: "11", body: { x: 2 } }), deleted("b", { at: "12" }));
  await started.readAfter("12");
  assert.equal(started.get("ns", "a")?.body.x, 2);
  assert.equal(started.get("a"), undefined);
  assert.deepEqual(
    [started.list().length, started.list("ns").length, started.list("other").length, started.indexValues("x")],
    [1, 1, 0, ["x2"]],
  );

  const seen: string[] = [];
  for await (const event of { [Symbol.asyncIterator]: () => early }) {
    seen.push(event.type === "synced" ? "synced" : `${event.type} ${event.object.name}`);
    if (event.type === "deleted") break;
  }
  assert.deepEqual(seen, ["added a", "added b", "synced", "updated a", "deleted b"]);
  const late: string[] = [];
  for await (const event of started) {
    late.push(event.type);
    if (event.type === "synced") break;
  }
  assert.deepEqual(late, ["added", "synced"]);
  await handled;
  assert.deepEqual(log, ["added a 1", "added b 1", "synced", "updated a 1 2", "deleted b 1 DELETED"]);
  await started.stop();
  await watch.cancelled;
  assert.equal(started.size, 1, "the store stays readable");
});

test("an answer of the server keeps the connection; DRAINING, a broken connection and bad credentials replace it", async () => {
  const server = await serve();
  const { watch } = await live(server);
  watch.end();
  const second = await server.watch();
  assert.equal(second.peer, watch.peer);
  assert.deepEqual([second.request.resourceVersion, second.request.history], ["10", "h1"]);
  second.send(bookmark("10")).fail(8, "SLOW_CONSUMER");
  const third = await server.watch();
  assert.equal(third.peer, watch.peer);
  third.send(bookmark("11", { draining: true }));
  const fourth = await server.watch();
  assert.notEqual(fourth.peer, third.peer);
  await third.cancelled;
  fourth.fail(16, "CREDENTIALS_EXPIRED");
  const fifth = await server.watch();
  assert.notEqual(fifth.peer, fourth.peer);
  const { port } = server;
  server.stop();
  const restarted = await serve({}, port);
  const sixth = await restarted.watch();
  assert.deepEqual([sixth.request.resourceVersion, sixth.request.history], ["11", "h1"]);
});

test("two informers of one target have connections of their own", async () => {
  const server = await serve();
  const [first, second] = [await live(server), await live(server)];
  assert.notEqual(first.watch.peer, second.watch.peer);
});

test("a connection that forwards nothing is replaced, and the state shows it at once", async () => {
  const server = await serve();
  const proxy = new TcpProxy(server.port);
  cleanups.push(() => proxy.stop());
  const { informer, watch } = await live(server, { bookmarkIntervalMs: 100 }, await proxy.start());
  const lost = disconnected(informer);
  proxy.freeze();
  watch.send(added("c", { at: "11" }));
  assert.match((await lost).message, /no message for \d+ ms/);
  assert.equal(informer.healthy(), false);
  const resumed = await server.watch();
  assert.notEqual(resumed.peer, watch.peer);
  assert.equal(resumed.request.resourceVersion, "10");
  resumed.send(added("c", { at: "11" }), bookmark("11"));
  await informer.readAfter("11");
  assert.equal(proxy.connections, 2);
});

test("every message before the end of a stream is applied", async () => {
  const server = await serve();
  const { informer, watch } = await live(server);
  const last = 10 + 300;
  for (let version = 11; version <= last; version++) watch.send(modified("a", { at: `${version}`, body: { x: version } }));
  watch.fail(14, "DRAINING");
  const resumed = await server.watch();
  assert.equal(resumed.request.resourceVersion, `${last}`);
  assert.equal(informer.get("ns", "a")?.body.x, last);
});

test("the informer gives up with the server's reason", async () => {
  const server = await serve();
  const errors: InformerdError[] = [];
  const started = informer(server.target, { onError: (error) => errors.push(error) });
  const iterator = started[Symbol.asyncIterator]();
  const failed = new Promise<InformerdError>((resolve) => started.on("failed", (error) => resolve(error)));
  const waits = Promise.allSettled([started.waitSynced(), started.readAfter("5"), iterator.next()]);
  started.start();
  (await server.watch()).fail(7, "ACCESS_DENIED");
  const { code, reason, metadata, message } = await failed;
  assert.deepEqual(
    [code, reason, metadata, message],
    ["PERMISSION_DENIED", "ACCESS_DENIED", { current: "7" }, "ACCESS_DENIED in words"],
  );
  for (const wait of await waits) assert.equal(wait.status === "rejected" && wait.reason.reason, "ACCESS_DENIED");
  await assert.rejects(started.waitSynced(), { reason: "ACCESS_DENIED" });
  await assert.rejects(started[Symbol.asyncIterator]().next(), { reason: "ACCESS_DENIED" });
  assert.throws(() => started.start(), { reason: "ACCESS_DENIED" });
  assert.deepEqual([started.healthy(), started.freshness().state, errors.length], [false, "DISCONNECTED", 1]);
});

test("onError may stop the informer, and waits have the reason", async () => {
  const server = await serve();
  const started: Informer<Body> = informer(server.target, { onError: () => started.stop() });
  const synced = assert.rejects(started.waitSynced(), { reason: "ACCESS_DENIED" });
  started.start();
  (await server.watch()).fail(7, "ACCESS_DENIED");
  await synced;
  await assert.rejects(started.readAfter("1"), { reason: "ACCESS_DENIED" });
});

test("a handler that throws or rejects is reported, and the next call follows", async () => {
  const server = await serve();
  const errors: string[] = [];
  const names: string[] = [];
  const onError = (error: InformerdError) => {
    assert.ok(error instanceof HandlerError);
    errors.push(error.message);
    throw new Error("onError throws, too");
  };
  const indexers = { bad: () => assert.fail("no index") };
  const started = informer(server.target, { onError, indexers });
  const all = new Promise((resolve) => {
    started
      .on("added", ({ name }) => {
        if (name === "a") throw new Error("no a");
      })
      .on("added", ({ name }) => (name === "b" ? Promise.reject(new Error("no b")) : undefined))
      .on("added", ({ name }) => names.push(name))
      .on("synced", () => resolve(undefined));
  });
  started.start();
  (await server.watch()).send(initial("a"), initial("b"), end("10"));
  await all;
  assert.deepEqual(names, ["a", "b"]);
  const bad = 'the indexer "bad" failed: no index';
  assert.deepEqual(errors, [bad, bad, 'the handler of "added" failed: no a', 'the handler of "added" failed: no b']);
  assert.deepEqual([started.healthy(), started.byIndex("bad", "x"), started.size], [true, [], 2]);
});

test("a slow handler does not hold up the store", async () => {
  const server = await serve();
  let release = () => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  const seen: number[] = [];
  const { informer, watch } = await live(server);
  informer.on("updated", async (_, object) => {
    await released;
    seen.push(object.body.x);
  });
  for (let x = 11; x <= 13; x++) watch.send(modified("a", { at: `${x}`, body: { x } }));
  await informer.readAfter("13");
  assert.deepEqual([seen, informer.healthy()], [[], true]);
  const done = new Promise((resolve) => informer.on("deleted", resolve));
  release();
  watch.send(deleted("a", { at: "31" }));
  await done;
  assert.deepEqual(seen, [11, 12, 13]);
});

test("no handler is called after stop", async () => {
  const server = await serve();
  const { informer, watch } = await live(server);
  const iterator = informer[Symbol.asyncIterator]();
  const calls: string[] = [];
  informer.on("added", async ({ name }) => {
    calls.push(name);
    await informer.stop();
    await informer.stop();
  });
  informer.on("added", () => calls.push("the second handler"));
  watch.send(added("c", { at: "11" }), added("d", { at: "12" }));
  await watch.cancelled;
  assert.deepEqual(calls, ["c"]);
  assert.deepEqual(await iterator.next(), { done: true, value: undefined });
  await assert.rejects(informer.waitSynced(), /has been stopped/);
  assert.throws(() => informer.start(), /has been stopped/);
});

test("waits end with their time, their signal, and another lineage", async () => {
  const server = await serve();
  const started = informer(server.target);
  await assert.rejects(started.waitSynced({ timeoutMs: 1 }), { code: "DEADLINE_EXCEEDED" });
  await assert.rejects(started.waitSynced({ signal: AbortSignal.abort(new Error("enough")) }), /enough/);
  await assert.rejects(started.readAfter("1.x"), { reason: "RESOURCE_VERSION_INVALID" });
  const early = started.readAfter("other.3");
  started.start();
  (await server.watch()).send(end("one.9"));
  await assert.rejects(early, /"other.3" is of another lineage than the store's version "one.9"/);
  await started.readAfter("one.9");
  await assert.rejects(started.readAfter("one.10", { timeoutMs: 1 }), /version one.10 has not been reached after 1 ms/);
  await assert.rejects(started.readAfter("10"), { code: "OUT_OF_RANGE" });
});

test("a wait may be longer than a timer, or endless", async () => {
  const server = await serve();
  const started = informer(server.target);
  const waits = [Number.POSITIVE_INFINITY, 2 ** 31].map((timeoutMs) => started.waitSynced({ timeoutMs }));
  // Its timer is later than theirs would be.
  await assert.rejects(started.waitSynced({ timeoutMs: 20 }), { code: "DEADLINE_EXCEEDED" });
  started.start();
  (await server.watch()).send(end("1"));
  await Promise.all(waits);
});

test("the token is read at every call, and never sent in the clear", async () => {
  const server = await serve();
  const directory = mkdtempSync(join(tmpdir(), "informerd-"));
  cleanups.push(() => rmSync(directory, { recursive: true }));
  const tokenFile = join(directory, "token");
  assert.throws(() => informer(server.target, { tokenFile }), /cannot read credentials from ".*token"/);
  writeFileSync(tokenFile, "one\n");
  for (const token of ["sec\nret", "sec\tret", "secr\u00e9t", "s".repeat(8193)]) {
    writeFileSync(tokenFile, token);
    assert.throws(
      () => informer(server.target, { tokenFile }),
      (error: Error) => /cannot read credentials from ".*token": /.test(error.message) && !/sec|sss/.test(error.message),
    );
  }
  writeFileSync(tokenFile, "s".repeat(8192));
  informer(server.target, { tokenFile });
  writeFileSync(tokenFile, "one\n");
  assert.throws(() => informer("example.com:1", { tokenFile }), /tokenFile is refused for the plaintext target "example.com:1"/);
  const { watch } = await live(server, { tokenFile });
  assert.equal(watch.authorization, "Bearer one");
  writeFileSync(tokenFile, "two");
  watch.fail(16, "CREDENTIALS_EXPIRED");
  assert.equal((await server.watch()).authorization, "Bearer two");
});

test("options are checked", () => {
  const invalid = (options: Partial<InformerOptions<Body>>) => () => informer("h:1", options);
  assert.throws(invalid({ bookmarkIntervalMs: 99 }), /invalid bookmarkIntervalMs 99: expected a number from 100 to/);
  assert.throws(invalid({ backoffMs: Number.NaN }), /invalid backoffMs NaN/);
  assert.throws(invalid({ target: "ftp://h:1" }), /invalid target "ftp:\/\/h:1": expected HOST:PORT/);
  assert.throws(invalid({ clientKey: "key" }), /belong together/);
  assert.throws(invalid({ resource: "" }), /resource is required/);
  assert.throws(invalid({ policy: "drop" as "DROP" }), /invalid policy "drop": expected DROP/);
  assert.throws(() => shardOf(2, 2), /invalid shard 2\/2/);
  assert.deepEqual(shardOf(1, 2), { key: "uid", ranges: [{ start: 1n << 63n, end: 0n }] });
});

test("a server without shards or views is an error: it would ignore them", async () => {
  let capabilities: string[] = [];
  const server = await serve({
    listResources: (_, callback) =>
      callback(null, { resources: [], server: ServerInfo.create({ version: "0.1.0", capabilities }) }),
  });
  const client = new Client({ target: server.target });
  cleanups.push(() => client.close());
  const selection = { shard: shardOf(0, 2) };
  const view = { fields: ["spec"] };
  const followed = (options: Partial<InformerOptions<Body>>) => {
    const started = informer(server.target, { ...options, onError: () => {} });
    started.start();
    return started;
  };
  for (const [missing, call] of [
    ["shards", () => followed({ selection }).waitSynced()],
    ["views", () => followed({ view }).waitSynced()],
    ["shards", () => client.list("things", selection)],
    ["views", () => client.list("things", {}, { view })],
    ["shards", () => client.byIndex("things", "app", "web", selection)],
    ["views", () => client.get("things", { name: "a" }, { view })],
    ["views", () => client.until("things", () => true, {}, { view })],
  ] as const) {
    await assert.rejects(call(), {
      reason: "NOT_IMPLEMENTED",
      message: new RegExp(`informerd at 127.*version 0.1.0.* has no ${missing}: update it, or request without`),
    });
  }
  capabilities = ["shards", "views"];
  const started = followed({ selection, view });
  const watch = (await server.watch()).send(end("1"));
  await started.waitSynced();
  // The next server may be an older one.
  capabilities = [];
  watch.fail(status.UNAVAILABLE, "DRAINING");
  await assert.rejects(started.readAfter("2"), { reason: "NOT_IMPLEMENTED" });
});

test("the check of the server and the call have one deadline", async () => {
  const deadlines: number[] = [];
  const server = await serve({
    listResources: (_, callback) => callback(null, { resources: [], server: ServerInfo.create({ capabilities: ["views"] }) }),
    list: (call) => {
      deadlines.push(Number(call.getDeadline()));
      call.write(ListResponse.create({ resourceVersion: "1" }));
      call.end();
    },
  });
  const client = new Client({ target: server.target });
  cleanups.push(() => client.close());
  const { checkCapabilities } = Endpoint.prototype;
  const { now } = Date;
  Endpoint.prototype.checkCapabilities = () => {
    // The check has taken an hour, for what runs in this turn.
    Date.now = () => now() + 3_600_000;
    queueMicrotask(() => {
      Date.now = now;
    });
  };
  try {
    await client.list("things", {}, { view: { fields: ["spec"] } });
  } finally {
    Endpoint.prototype.checkCapabilities = checkCapabilities;
    Date.now = now;
  }
  assert.ok((deadlines[0] ?? Number.POSITIVE_INFINITY) < now() + 60_000, `${deadlines}`);
});

test("plain calls select as informers do", async () => {
  const selectors: string[] = [];
  const server = await serve({
    list: (call) => {
      selectors.push(call.request.fieldSelector);
      call.write(ListResponse.create({ resourceVersion: "1" }));
      call.end();
    },
    byIndex: (call) => {
      selectors.push(call.request.fieldSelector);
      call.write(ByIndexResponse.create({ resourceVersion: "1" }));
      call.end();
    },
  });
  const client = new Client({ target: server.target });
  cleanups.push(() => client.close());
  const selection: Selection = { namespace: "shop", name: "a,b=\\c", fieldSelector: "spec.x=1" };
  await client.list("things", selection);
  await client.byIndex("things", "app", "web", { name: "web" });
  assert.deepEqual(selectors, ["spec.x=1,metadata.name=a\\,b\\=\\\\c", "metadata.name=web"]);
  const index = { index: { name: "node", values: ["n1"] } } as Selection;
  await assert.rejects(client.byIndex("things", "app", "web", index), /byIndex has an index already/);
});

test("plain calls have a deadline and a signal", async () => {
  const server = await serve({
    get: () => {},
    list: () => {},
  });
  const client = new Client({ target: server.target, requestTimeoutMs: 50 });
  cleanups.push(() => client.close());
  await assert.rejects(client.get("things", { name: "a" }), { code: "DEADLINE_EXCEEDED", reason: "" });
  await assert.rejects(client.list("things"), { code: "DEADLINE_EXCEEDED" });
  for (const call of [
    (signal: AbortSignal) => client.get("things", { name: "a" }, { timeoutMs: 60_000, signal }),
    (signal: AbortSignal) => client.list("things", {}, { timeoutMs: 60_000, signal }),
  ]) {
    const { signal } = new AbortController();
    const own = AbortSignal.timeout(20);
    await assert.rejects(call(own), { name: "TimeoutError" });
    assert.equal(getEventListeners(own, "abort").length, 0);
    await assert.rejects(client.get("things", { name: "a" }, { timeoutMs: 1, signal }), { code: "DEADLINE_EXCEEDED" });
    assert.equal(getEventListeners(signal, "abort").length, 0);
  }
});

test("the check of the server ends with the informer, and a plain call with its signal", { timeout: 10_000 }, async () => {
  const calls: { cancelled: Promise<unknown> }[] = [];
  let asked: (() => void) | undefined;
  const server = await serve({
    listResources: (call) => {
      calls.push({ cancelled: once(call, "cancelled") });
      asked?.();
    },
  });
  const view = { fields: ["spec"] };
  const isAsked = () => new Promise<void>((resolve) => (asked = resolve));
  let asking = isAsked();
  const started = informer(server.target, { view });
  started.start();
  await asking;
  await started.stop();
  await calls[0]?.cancelled;
  const client = new Client({ target: server.target });
  cleanups.push(() => client.close());
  asking = isAsked();
  const controller = new AbortController();
  const listed = client.list("things", {}, { view, signal: controller.signal });
  await asking;
  controller.abort(new Error("enough"));
  await assert.rejects(listed, /enough/);
  await calls[1]?.cancelled;
});

test("a signal between the check of the server and the call ends the call", { timeout: 10_000 }, async () => {
  const server = await serve({
    listResources: (_, callback) => callback(null, { resources: [], server: ServerInfo.create({ capabilities: ["views"] }) }),
    list: (call) => {
      call.write(ListResponse.create({ resourceVersion: "1" }));
      call.end();
    },
    get: () => {},
  });
  const client = new Client({ target: server.target });
  cleanups.push(() => client.close());
  const view = { fields: ["spec"] };
  for (const call of [
    (signal: AbortSignal) => client.list("things", {}, { view, signal }),
    (signal: AbortSignal) => client.get("things", { name: "a" }, { view, signal }),
  ]) {
    const controller = new AbortController();
    const { checkCapabilities } = Endpoint.prototype;
    Endpoint.prototype.checkCapabilities = function (...args) {
      controller.abort(new Error("enough"));
      return checkCapabilities.apply(this, args);
    };
    try {
      await assert.rejects(call(controller.signal), /enough/);
    } finally {
      Endpoint.prototype.checkCapabilities = checkCapabilities;
    }
  }
});

test("a client that is closed ends its calls with an InformerdError", { timeout: 20_000 }, async () => {
  let asked: (() => void) | undefined;
  const server = await serve({ list: () => asked?.(), get: () => asked?.() });
  for (const call of [(client: Client) => client.list("things"), (client: Client) => client.get("things", { name: "a" })]) {
    const client = new Client({ target: server.target, requestTimeoutMs: 3000 });
    const asking = new Promise<void>((resolve) => (asked = resolve));
    const called = call(client);
    called.catch(() => {});
    await asking;
    client.close();
    const closed = { name: "InformerdError", code: "CANCELLED", message: "the client has been closed" };
    await assert.rejects(called, closed);
    await assert.rejects(call(client), closed);
  }
});

test("many calls of one client are no leak of listeners", async () => {
  const warnings: Error[] = [];
  const warned = (warning: Error) => warnings.push(warning);
  process.on("warning", warned);
  cleanups.push(() => process.off("warning", warned));
  const server = await serve({ get: () => {} });
  const client = new Client({ target: server.target });
  const waits = Array.from({ length: 20 }, () => client.until("things", () => false));
  const calls = Array.from({ length: 20 }, (_, n) => client.get("things", { name: `${n}` }));
  client.close();
  const ended = await Promise.allSettled([...waits, ...calls]);
  assert.ok(ended.every((each) => each.status === "rejected" && each.reason.code === "CANCELLED"));
  // Warnings are emitted in the next turn.
  await new Promise(setImmediate);
  assert.deepEqual(
    warnings.filter(({ name }) => name === "MaxListenersExceededWarning"),
    [],
  );
});

/** Runs the driver until its standard input is closed, as soon as it has printed a line or `ready` holds. */
async function runDriver(target: string, ready: Promise<unknown>): Promise<number | null> {
  const driver = spawn(process.execPath, [DRIVER], { stdio: ["pipe", "ignore", "ignore"] });
  cleanups.push(() => driver.kill("SIGKILL"));
  driver.stdin.write(`${JSON.stringify({ do: "start", target, resource: "things", bookmark_interval_ms: 60_000 })}\n`);
  await ready;
  driver.stdin.end();
  const [code] = (await once(driver, "exit")) as [number | null];
  return code;
}

test("a stopped informer does not keep the process: live", { timeout: 30_000 }, async () => {
  const server = await serve();
  const watched = server.watch().then((watch) => watch.send(end("1")));
  assert.equal(await runDriver(server.target, watched), 0);
});

test("a stopped informer does not keep the process: a server that accepts and says nothing", { timeout: 30_000 }, async () => {
  const server = createServer((socket) => socket.on("error", () => {}));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  cleanups.push(() => server.close());
  const target = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  assert.equal(await runDriver(target, once(server, "connection")), 0);
});

test("a stopped informer does not keep the process: frozen", { timeout: 30_000 }, async () => {
  const server = await serve();
  const proxy = new TcpProxy(server.port);
  cleanups.push(() => proxy.stop());
  const watched = server.watch().then((watch) => {
    watch.send(end("1"));
    proxy.freeze();
  });
  assert.equal(await runDriver(await proxy.start(), watched), 0);
});
