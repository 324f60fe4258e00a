/** `until` over scripted servers: what ends a stream does not end the wait. */
import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { Cause } from "../src/generated/informerd/v1/informerd.js";
import { Client, type UntilEvent } from "../src/index.js";
import { added, deleted, end, failure, initial, modified } from "./script.js";
import { ScriptedServer } from "./server.js";

interface Body {
  x: number;
}

const cleanups: (() => unknown)[] = [];
afterEach(() => {
  for (const cleanup of cleanups.splice(0).reverse()) cleanup();
});

async function serve(): Promise<{ server: ScriptedServer; client: Client }> {
  const server = await ScriptedServer.start();
  const client = new Client({ target: server.target });
  cleanups.push(
    () => server.stop(),
    () => client.close(),
  );
  return { server, client };
}

/** Returns conditions that are met by events as `log` has them, one after the other. */
function conditions(log: string[], ...events: string[]) {
  return events.map((wanted) => ({ type, object, count, cause }: UntilEvent<Body>) => {
    const shown = [type, ...(object ? [`${object.name}=${object.body.x}`] : []), count, ...(cause ? [cause] : [])].join(" ");
    log.push(shown);
    return shown.startsWith(wanted);
  });
}

test("a stream that ends", async () => {
  for (const [code, reason] of [
    [undefined, ""],
    [14, ""],
    [14, "DRAINING"],
  ] as const) {
    const { server, client } = await serve();
    const log: string[] = [];
    const met = client.until<Body>("things", conditions(log, "ADDED a=1", "DELETED a"), { expression: "object.x > 0" });
    let watch = await server.watch();
    assert.equal(watch.request.expression, "object.x > 0");
    watch.send(initial("a"), end("10"));
    if (code === undefined) watch.end();
    else watch.fail(code, reason);
    // The first condition stays met, and what happened between the streams is an event.
    watch = await server.watch();
    assert.deepEqual([watch.request.resourceVersion, watch.request.history], ["10", "h1"]);
    watch.send(modified("a", { at: "11", body: { x: 2 } }), deleted("a", { at: "12", body: { x: 2 } }));
    assert.equal((await met).version, "12");
    assert.deepEqual(log, ["ADDED a=1 1", "ADDED a=1 1", "SYNCED 1", "MODIFIED a=2 1", "DELETED a=2 0 DELETED"]);
    await watch.cancelled;
  }
});

test("an expired version", async () => {
  for (const reason of ["RESOURCE_VERSION_EXPIRED", ""]) {
    const { server, client } = await serve();
    const log: string[] = [];
    const met = client.until<Body>("things", conditions(log, "ADDED a", "DELETED a"));
    (await server.watch()).send(initial("a"), initial("b"), end("10"), failure(11, reason));
    const watch = await server.watch();
    assert.equal(watch.request.resourceVersion, "");
    watch.send(initial("b", { body: { x: 3 } }), end("x.1"));
    const { type, cause, count, version } = await met;
    assert.deepEqual([type, cause, count, version], ["DELETED", "INFERRED", 1, "x.1"]);
  }
});

test("what can no longer be served counts, and is not tested", async () => {
  const { server, client } = await serve();
  const log: string[] = [];
  const met = client.until<Body>("things", conditions(log, "DELETED"));
  (await server.watch()).send(
    end("10"),
    added("a", { at: "11" }),
    deleted("a", { at: "12", cause: Cause.CAUSE_NOT_SERVED }),
    added("b", { at: "13", body: { x: 2 } }),
    added("a", { at: "14", body: { x: 3 } }),
    deleted("b", { at: "15", body: { x: 2 }, cause: Cause.CAUSE_LEFT_SELECTION }),
  );
  assert.equal((await met).count, 1);
  assert.deepEqual(log, ["SYNCED 0", "ADDED a=1 1", "ADDED b=2 2", "ADDED a=3 2", "DELETED b=2 1 LEFT_SELECTION"]);
});

const never = () => false;

test("what is final", async () => {
  const { server, client } = await serve();
  const refused = client.until("things", never);
  (await server.watch()).fail(7, "ACCESS_DENIED");
  await assert.rejects(refused, { code: "PERMISSION_DENIED", reason: "ACCESS_DENIED" });
  const thrown = client.until("things", () => assert.fail("broken"));
  (await server.watch()).send(end("10"));
  await assert.rejects(thrown, /broken/);
  await assert.rejects(client.until("things", "count == 0" as never), /selection\.expression/);
  const any = client.until("things");
  (await server.watch()).send(end("10"), added("a", { at: "11" }));
  assert.equal((await any).object?.name, "a");
  const closed = client.until("things", never);
  await server.watch();
  client.close();
  await assert.rejects(closed, { code: "CANCELLED" });
});

test("a timeout and a signal", async () => {
  const { server, client } = await serve();
  const signal = AbortSignal.timeout(200);
  const aborted = client.until("things", never, {}, { signal });
  const watch = await server.watch();
  await assert.rejects(aborted, { name: "TimeoutError" });
  await assert.rejects(client.until("things", never, {}, { signal }), { name: "TimeoutError" });
  await watch.cancelled;
  const late = client.until("things", never, {}, { timeoutMs: 300 });
  (await server.watch()).fail(14, "NOT_SYNCED");
  await assert.rejects(late, { code: "DEADLINE_EXCEEDED", message: /not met within 300 ms \(last error: NOT_SYNCED/ });
});
