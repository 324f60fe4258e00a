// Driver of the conformance suite: docs/clients.md describes its protocol.
import { createInterface } from "node:readline";
import { keyOf, Store } from "./store.js";
import { compare, Watch } from "./watch.js";

const clients = new Map();
const toJson = ({ namespace, name, uid, resource_version: version, labels, raw, media_type: type, hasBody }) => ({
  namespace, name, uid, version, labels: labelsOf(labels), body: hasBody && type === "application/json" ? JSON.parse(raw) : null,
});
const labelsOf = (labels) => Object.fromEntries(labels.map(({ key, value }) => [key, value]));
const compareBytes = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));
const byKey = (a, b) => compareBytes(a.namespace, b.namespace) || compareBytes(a.name, b.name);

function start(command) {
  const print = (line) => process.stdout.write(`${JSON.stringify({ ...line, client: command.client })}\n`);
  const { fail_on, delay_on = "", delay_ms } = command.handler ?? {};
  const handle = async (event, object, old, cause) => {
    if (delay_on === "*" || delay_on === object.name) await new Promise((resolve) => setTimeout(resolve, delay_ms));
    print({ event, object: toJson(object), old: old && toJson(old), cause });
    if (fail_on === object.name) throw new Error(`told to fail on ${object.name}`);
  };
  const store = new Store(handle, ({ message }) => print({ event: "handler_error", message }));
  const waiters = new Set();
  let isSynced = false;
  const apply = (changes, isList) => {
    store.apply(changes, isList);
    if (!isSynced) print({ event: "synced" });
    isSynced = true;
    setImmediate(() => waiters.forEach((check) => check()));
  };
  const { namespace, label_selector, resource, policy } = command;
  const request = { resource, namespace, label_selector, ...(policy && { queue: { policy: `FULL_CHANNEL_POLICY_${policy}` } }) };
  const options = { request, tokenFile: command.token_file };
  const times = { interval: "bookmark_interval", first: "first_message_timeout", connect: "connect_timeout", backoff: "backoff",
    maxBackoff: "max_backoff", jitter: "drain_jitter" };
  for (const [name, key] of Object.entries(times)) if (command[`${key}_ms`] !== undefined) options[name] = command[`${key}_ms`];
  const watch = new Watch(command.target, apply, options);
  watch.run().then((end) => end && print({ event: "failed", ...end }));
  return { watch, store, waiters, print };
}

function state({ watch, store }) {
  const objects = [...store.objects.values()].sort(byKey), by_app = {};
  for (const object of objects) {
    const { app } = labelsOf(object.labels);
    if (app) (by_app[app] ??= []).push(keyOf(object));
  }
  const { seconds, nanos } = watch.sourceSeenAt ?? {};
  return {
    version: watch.version, state: watch.state, healthy: ["LIVE", "STALE"].includes(watch.state), objects: objects.map(toJson), by_app,
    last_message_age_ms: watch.lastMessage === undefined ? null : Math.round(performance.now() - watch.lastMessage),
    source_seen_at: seconds === undefined ? null : new Date(Number(seconds) * 1e3 + nanos / 1e6).toISOString(),
  };
}

/** Waits until the store has reached a version; resolves with the error, if there is one. */
function readAfter({ watch, waiters }, { version, timeout_ms }) {
  return new Promise((resolve) => {
    const check = () => {
      const order = watch.version && compare(watch.version, version);
      if (watch.version && order === undefined) end(`${version} and ${watch.version} have no order`);
      else if (watch.version && order >= 0) end();
    };
    const timer = setTimeout(() => end("timed out"), timeout_ms);
    const end = (error) => {
      waiters.delete(check);
      clearTimeout(timer);
      resolve(error);
    };
    waiters.add(check);
    check();
  });
}

const lines = createInterface({ input: process.stdin });
lines.on("line", async (line) => {
  const command = JSON.parse(line), { id } = command;
  if (command.do === "start") return clients.set(command.client, start(command));
  const client = clients.get(command.client);
  if (command.do === "state") client.print({ reply: id, ...state(client) });
  else if (command.do === "read_after") {
    const error = await readAfter(client, command);
    client.print({ reply: id, ok: error === undefined, error });
  } else {
    client.watch.stop();
    client.store.isStopped = true;
    await client.store.last;
    client.print({ reply: id });
  }
});
lines.on("close", () => process.exit(0));
