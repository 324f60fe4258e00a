/**
 * Measures how many events a second an informer takes into its store: `npm run bench [-- EVENTS]`.
 *
 * A server in a process of its own writes a list of 20,000 objects and then EVENTS changes of them, encoded beforehand. The bodies
 * are Pods of about 1 KB; there is one indexer, and a handler that counts. Prints one JSON line. An informer uses one core, apart
 * from the collection of garbage; `events_per_cpu_second` counts both, and holds on a busy machine too.
 */
import { fork } from "node:child_process";
import { createServer, type ServerHttp2Stream } from "node:http2";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import { WatchResponse } from "../src/generated/informerd/v1/informerd.js";
import { Informer } from "../src/index.js";
import { added, end, modified } from "../test/script.js";

const OBJECTS = 20_000;
const FIRST_VERSION = 1_000_000;
/** Messages in one write. */
const CHUNK = 200;

const pod = (i: number, x: number) => ({
  apiVersion: "v1",
  kind: "Pod",
  metadata: { namespace: "ns", name: `pod-${i}`, annotations: { padding: "x".repeat(700) } },
  spec: { nodeName: `node-${i % 100}` },
  status: { phase: "Running", restarts: x },
});
const labels = (i: number) => ({ app: `app-${i % 50}` });

/** Returns messages in gRPC's framing. */
function frames(messages: WatchResponse[]): Buffer {
  return Buffer.concat(
    messages.flatMap((message) => {
      const body = WatchResponse.encode(message).finish();
      const header = Buffer.alloc(5);
      header.writeUInt32BE(body.length, 1);
      return [header, body];
    }),
  );
}

function* chunks(events: number): Generator<Buffer> {
  let messages: WatchResponse[] = [];
  const all = function* () {
    for (let i = 0; i < OBJECTS; i++) yield added(`pod-${i}`, { v: "1", body: pod(i, 0), labels: labels(i) });
    yield end(`${FIRST_VERSION}`);
    for (let n = 1; n <= events; n++) {
      const i = (n * 7919) % OBJECTS;
      yield modified(`pod-${i}`, { at: `${FIRST_VERSION + n}`, body: pod(i, n), labels: labels(i) });
    }
  };
  for (const message of all()) {
    if (messages.push(message) < CHUNK) continue;
    yield frames(messages);
    messages = [];
  }
  yield frames(messages);
}

function serve(events: number): void {
  const encoded = [...chunks(events)];
  const server = createServer();
  server.on("stream", async (stream: ServerHttp2Stream) => {
    stream.on("error", () => {});
    stream.respond({ ":status": 200, "content-type": "application/grpc" });
    for (const chunk of encoded) {
      if (!stream.write(chunk)) await new Promise((resolve) => stream.once("drain", resolve));
    }
  });
  server.listen(0, "127.0.0.1", () => process.send?.((server.address() as AddressInfo).port));
}

async function measure(events: number): Promise<void> {
  const server = fork(fileURLToPath(import.meta.url), ["serve", `${events}`]);
  const port = await new Promise<unknown>((resolve) => server.once("message", resolve));
  const indexers = { app: ({ labels }: { labels: Readonly<Record<string, string>> }) => labels.app };
  const informer = new Informer({ target: `127.0.0.1:${port}`, resource: "pods", indexers, bookmarkIntervalMs: 60_000 });
  let handled = 0;
  informer.on("added", () => handled++).on("updated", () => handled++);
  const begin = performance.now();
  informer.start();
  await informer.waitSynced();
  const [synced, cpu] = [performance.now(), process.cpuUsage()];
  await informer.readAfter(`${FIRST_VERSION + events}`, { timeoutMs: 600_000 });
  const [done, used] = [performance.now(), process.cpuUsage(cpu)];
  await informer.stop();
  server.kill();
  const perSecond = (count: number, ms: number) => Math.round((count * 1000) / ms);
  const line = {
    objects: informer.size,
    listed_per_second: perSecond(OBJECTS, synced - begin),
    events,
    events_per_second: perSecond(events, done - synced),
    events_per_cpu_second: perSecond(events, (used.user + used.system) / 1000),
    handled,
    rss_mib: Math.round(process.memoryUsage().rss / 2 ** 20),
  };
  console.log(JSON.stringify(line));
}

const [first = "200000", second] = process.argv.slice(2);
if (first === "serve") serve(Number(second));
else await measure(Number(first));
