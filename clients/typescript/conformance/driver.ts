/**
 * Driver of the conformance suite: commands on stdin, events and replies on stdout, one JSON object a line. docs/clients.md
 * describes the protocol. Commands that name a client have an informer for each.
 */
import { createInterface } from "node:readline";
import { HandlerError, Informer, type InformerObject, type InformerOptions, LagError, type Policy } from "../src/index.js";

interface Named {
  client?: number;
}

interface Start {
  target: string;
  resource: string;
  namespace?: string;
  label_selector?: string;
  policy?: "" | Policy;
  bookmark_interval_ms?: number;
  first_message_timeout_ms?: number;
  connect_timeout_ms?: number;
  backoff_ms?: number;
  max_backoff_ms?: number;
  drain_jitter_ms?: number;
  request_timeout_ms?: number;
  token_file?: string;
  handler?: { fail_on?: string; delay_on?: string; delay_ms?: number };
}

type Command = Named &
  (
    | ({ do: "start" } & Start)
    | { do: "state"; id: number }
    | { do: "read_after"; id: number; version: string; timeout_ms: number }
    | { do: "stop"; id: number }
  );

interface Client {
  informer: Informer;
  /** The last call of a handler. */
  running: Promise<void>;
}

const clients = new Map<number | undefined, Client>();

/** Prints a line, for the client of a command if it names one. */
function print({ client }: Named, line: object): void {
  process.stdout.write(`${JSON.stringify({ ...line, client })}\n`);
}

function toJson({ namespace, name, uid, version, labels, raw }: InformerObject<unknown>) {
  return { namespace, name, uid, version, labels, body: typeof raw === "string" ? JSON.parse(raw) : null };
}

function started(start: Start & Named): Client {
  const options: InformerOptions<unknown> = {
    target: start.target,
    resource: start.resource,
    selection: { namespace: start.namespace ?? "", labelSelector: start.label_selector ?? "" },
    indexers: { app: ({ labels }) => labels.app },
    onError: (error) => {
      if (error instanceof HandlerError || error instanceof LagError)
        print(start, { event: "handler_error", message: error.message });
      else console.error(`# ${error.name}: ${error.message}`);
    },
  };
  const times = {
    bookmarkIntervalMs: start.bookmark_interval_ms,
    firstMessageTimeoutMs: start.first_message_timeout_ms,
    connectTimeoutMs: start.connect_timeout_ms,
    backoffMs: start.backoff_ms,
    maxBackoffMs: start.max_backoff_ms,
    drainJitterMs: start.drain_jitter_ms,
    requestTimeoutMs: start.request_timeout_ms,
  };
  for (const [name, value] of Object.entries(times)) if (value !== undefined) Object.assign(options, { [name]: value });
  if (start.policy) options.policy = start.policy;
  if (start.token_file) options.tokenFile = start.token_file;

  const { fail_on = "", delay_on = "", delay_ms = 0 } = start.handler ?? {};
  const call = async (line: object, { name }: InformerObject<unknown>): Promise<void> => {
    if (delay_on === "*" || delay_on === name) await new Promise((resolve) => setTimeout(resolve, delay_ms));
    print(start, line);
    if (fail_on === name) throw new Error(`told to fail on ${name}`);
  };
  const handle = (line: object, object: InformerObject<unknown>): Promise<void> => {
    const result = call(line, object);
    client.running = result.catch(() => {});
    return result;
  };
  const informer = new Informer(options)
    .on("added", (object) => handle({ event: "added", object: toJson(object) }, object))
    .on("updated", (old, object) => handle({ event: "updated", old: toJson(old), object: toJson(object) }, object))
    .on("deleted", (object, cause) => handle({ event: "deleted", object: toJson(object), cause }, object))
    .on("disconnected", (error, ms) => console.error(`# ${error.code} ${error.reason} ${error.message}; retry in ${ms} ms`))
    .on("failed", ({ code, reason }) => print(start, { event: "failed", code, reason }));
  const client = { informer, running: Promise.resolve() };
  informer.start();
  // A failure has an event of its own.
  informer.waitSynced().then(
    () => print(start, { event: "synced" }),
    () => {},
  );
  return client;
}

function byKey(a: InformerObject<unknown>, b: InformerObject<unknown>): number {
  return compare(a.namespace, b.namespace) || compare(a.name, b.name);
}

function compare(a: string, b: string): number {
  return Buffer.compare(Buffer.from(a), Buffer.from(b));
}

function state(informer: Informer, id: number): object {
  const { state, sourceSeenAt, lastMessageAge } = informer.freshness();
  const keys = (objects: InformerObject<unknown>[]) => {
    return objects.sort(byKey).map(({ namespace, name }) => (namespace ? `${namespace}/${name}` : name));
  };
  return {
    reply: id,
    version: informer.version,
    state,
    healthy: state === "LIVE" || state === "STALE",
    last_message_age_ms: lastMessageAge === undefined ? null : Math.round(lastMessageAge),
    source_seen_at: sourceSeenAt?.toISOString() ?? null,
    objects: informer.list().sort(byKey).map(toJson),
    by_app: Object.fromEntries(informer.indexValues("app").map((app) => [app, keys(informer.byIndex("app", app))])),
  };
}

async function run(command: Command): Promise<void> {
  if (command.do === "start") {
    clients.set(command.client, started(command));
    return;
  }
  const client = clients.get(command.client);
  if (!client) throw new Error(`"${command.do}" before "start"`);
  const { informer } = client;
  switch (command.do) {
    case "state":
      return print(command, state(informer, command.id));
    case "read_after":
      return informer.readAfter(command.version, { timeoutMs: command.timeout_ms }).then(
        () => print(command, { reply: command.id, ok: true }),
        (error: Error) => print(command, { reply: command.id, ok: false, error: error.message }),
      );
    case "stop":
      await informer.stop();
      // A handler that runs goes on to its end.
      await client.running;
      return print(command, { reply: command.id });
  }
}

const lines = createInterface({ input: process.stdin });
lines.on("line", (line) => {
  run(JSON.parse(line) as Command).catch((error) => {
    console.error(error);
    process.exit(1);
  });
});
lines.on("close", () => {
  for (const { informer } of clients.values()) void informer.stop();
});
