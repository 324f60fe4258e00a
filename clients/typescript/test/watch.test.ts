/** The rules of a watch, in stepped time: docs/clients.md has them in words. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { InformerdError } from "../src/core/errors.js";
import { type InformerObject, parseJson } from "../src/core/object.js";
import { type Change, Store } from "../src/core/store.js";
import { type Position, Watch } from "../src/core/watch.js";
import { Cause, EventType, SyncState, WatchResponse } from "../src/generated/informerd/v1/informerd.js";
import { added, batch, bookmark, deleted, dropped, end, failure, initial, modified } from "./script.js";

const SETTINGS = {
  bookmarkIntervalMs: 1_000,
  firstMessageTimeoutMs: 40_000,
  connectTimeoutMs: 500,
  backoffMs: 100,
  maxBackoffMs: 1_600,
  drainJitterMs: 400,
};
const UNAVAILABLE = 14;

/** A watch whose time and effects the test has in hand. Random numbers are 1: delays are the longest. */
class Bench {
  now = 1_000;
  /** Effects since the last look. */
  log: string[] = [];
  readonly store = new Store<unknown>({ x: (object) => String((object.body as { x: unknown }).x) }, () => {});
  readonly watch = new Watch<unknown>(
    this.store,
    SETTINGS,
    {
      open: ({ version, history }: Position) => this.log.push(`open ${version}/${history}`),
      close: (connection) => this.log.push(connection ? "close connection" : "close"),
      changed: (changes) => this.log.push(...changes.map(describe)),
      synced: () => this.log.push("synced"),
      disconnected: (error, ms) => this.log.push(`${error.code}${error.reason && ` ${error.reason}`} wait ${ms}`),
      violated: (error) => this.log.push(`violated: ${error.message}`),
      failed: (error) => this.log.push(`failed ${error.code} ${error.reason}`),
    },
    parseJson,
    () => 1,
  );

  send(...messages: WatchResponse[]): this {
    this.watch.connected(this.now);
    for (const message of messages) this.watch.message(this.now, message);
    return this;
  }

  /** Moves the time, and calls what is due. */
  pass(ms: number): this {
    const until = this.now + ms;
    for (let due = this.watch.nextTimer(); due !== undefined && due <= until; due = this.watch.nextTimer()) {
      this.now = Math.max(due, this.now);
      this.watch.tick(this.now);
    }
    this.now = until;
    return this;
  }

  /** Compares the effects since the last look. */
  saw(...expected: string[]): this {
    assert.deepEqual(this.log, expected);
    this.log = [];
    return this;
  }

  is(state: string, version = this.store.version): this {
    assert.equal(`${this.watch.freshness(this.now).state} ${this.store.version}`, `${state} ${version}`);
    return this;
  }

  names(): string {
    return [...this.store.objects()].map(({ name }) => name).join(" ");
  }
}

function describe(change: Change<unknown>): string {
  const show = ({ name, raw }: InformerObject<unknown>) => `${name}${raw ?? ""}`;
  if (change.type === "updated") return `updated ${show(change.old)} ${show(change.object)}`;
  return `${change.type} ${show(change.object)}${change.type === "deleted" ? ` ${change.cause}` : ""}`;
}

/** A watch that has listed a and b at version 10. */
function live(): Bench {
  const bench = new Bench();
  bench.watch.start(bench.now);
  bench.send(initial("a"), initial("b"), end("10"));
  return bench.saw("open /", 'added a{"x":1}', 'added b{"x":1}', "synced").is("LIVE", "10");
}

/** The same, after its stream has broken and been resumed. */
function resumed(): Bench {
  const bench = live();
  bench.watch.ended(bench.now, new InformerdError("cut", { code: "UNAVAILABLE" }));
  return bench.is("DISCONNECTED").pass(100).saw("close connection", "UNAVAILABLE wait 100", "open 10/h1").is("SYNCING");
}

test("the first list is applied at its end, as a whole", () => {
  const bench = new Bench();
  bench.is("DISCONNECTED", "");
  bench.watch.start(bench.now);
  bench.send(initial("a"), initial("b"), bookmark("", {}));
  bench.saw("open /").is("SYNCING", "");
  assert.equal(bench.store.size, 0);
  bench.send(end("10")).saw('added a{"x":1}', 'added b{"x":1}', "synced").is("LIVE", "10");
});

test("a batch of initial events is its events", () => {
  const bench = new Bench();
  bench.watch.start(bench.now);
  bench
    .send(batch(initial("a"), initial("b")), initial("c"), batch(initial("d")))
    .saw("open /")
    .is("SYNCING", "");
  assert.equal(bench.store.size, 0);
  bench.send(end("10"));
  bench.saw('added a{"x":1}', 'added b{"x":1}', 'added c{"x":1}', 'added d{"x":1}', "synced").is("LIVE", "10");
});

test("a list that breaks off leaves nothing of its batches", () => {
  const bench = new Bench();
  bench.watch.start(bench.now);
  bench.send(batch(initial("a"), initial("b")));
  bench.watch.ended(bench.now, new InformerdError("cut", { code: "UNAVAILABLE" }));
  bench.pass(100).saw("open /", "close connection", "UNAVAILABLE wait 100", "open /");
  bench.send(end("10")).saw("synced").is("LIVE", "10");
  assert.equal(bench.store.size, 0);
});

test("a first list that breaks off is discarded", () => {
  const bench = new Bench();
  bench.watch.start(bench.now);
  bench.send(initial("a"));
  bench.watch.ended(bench.now, new InformerdError("cut", { code: "INTERNAL" }));
  bench.pass(100).saw("open /", "close connection", "INTERNAL wait 100", "open /");
  bench.send(initial("b"), end("11")).saw('added b{"x":1}', "synced").is("LIVE", "11");
});

test("events change the store with their version", () => {
  const bench = live();
  bench.send(added("c", { at: "11" }), modified("a", { at: "12", body: { x: 2 } }), deleted("b", { at: "13", body: { x: 9 } }));
  bench.saw('added c{"x":1}', 'updated a{"x":1} a{"x":2}', 'deleted b{"x":9} DELETED').is("LIVE", "13");
  assert.deepEqual(
    bench.store.byIndex("x", "2").map(({ name }) => name),
    ["a"],
  );
  assert.deepEqual(
    bench.store.byIndex("x", "1").map(({ name }) => name),
    ["c"],
  );
  assert.deepEqual(bench.store.indexValues("x").sort(), ["1", "2"]);
});

test("a batch is applied when the version advances, as one step", () => {
  const bench = live();
  bench
    .send(added("c", { at: "10", v: "12" }), deleted("a", { at: "10", v: "12" }))
    .saw()
    .is("LIVE", "10");
  assert.equal(bench.names(), "a b");
  bench
    .send(added("d", { at: "12" }))
    .saw('added c{"x":1}', 'deleted a{"x":1} DELETED', 'added d{"x":1}')
    .is("LIVE", "12");
});

test("a bookmark with another version completes a batch, one with the same version does not", () => {
  const bench = live();
  bench
    .send(added("c", { at: "10", v: "12" }), bookmark("10"))
    .saw()
    .is("LIVE", "10");
  bench.send(bookmark("12")).saw('added c{"x":1}').is("LIVE", "12");
});

test("an event below its object's version opens a batch although the version has advanced", () => {
  const bench = live();
  bench
    .send(added("c", { at: "10", v: "12" }), added("d", { at: "14", v: "15" }))
    .saw('added c{"x":1}')
    .is("LIVE", "14");
  bench
    .send(added("e", { at: "15" }))
    .saw('added d{"x":1}', 'added e{"x":1}')
    .is("LIVE", "15");
});

test("a bookmark with other namespaces completes what is pending at its version", () => {
  const bench = live();
  bench.send(bookmark("11", { namespaces: ["ns", "x"] }), bookmark("11", { history: "none", namespaces: ["ns", "x"] })).saw();
  bench.send(deleted("a", { at: "11", v: "5", cause: Cause.CAUSE_LEFT_SELECTION })).saw();
  bench
    .send(bookmark("11", { history: "h2", namespaces: ["x"] }))
    .saw('deleted a{"x":1} LEFT_SELECTION')
    .is("LIVE", "11");
});

test("a batch that breaks off is discarded, and its repetition applied", () => {
  const bench = live();
  bench.send(added("c", { at: "10", v: "12" }));
  bench.watch.ended(bench.now, new InformerdError("cut", { code: "UNAVAILABLE" }));
  bench.pass(100).saw("close connection", "UNAVAILABLE wait 100", "open 10/h1");
  bench.send(added("c", { at: "10", v: "12" }), added("d", { at: "12" }), bookmark("12"));
  bench.saw('added c{"x":1}', 'added d{"x":1}').is("LIVE", "12");
});

test("an open event is applied at once, unless a batch is pending", () => {
  const bench = live();
  bench
    .send(modified("a", { at: "10", v: "12", body: { x: 2 }, open: true }))
    .saw('updated a{"x":1} a{"x":2}')
    .is("LIVE", "10");
  bench.send(added("c", { at: "10", v: "12" }), added("d", { at: "10", v: "12", open: true })).saw();
  bench.send(bookmark("12")).saw('added c{"x":1}', 'added d{"x":1}').is("LIVE", "12");
});

test("repeated events make no calls", () => {
  const bench = live();
  bench
    .send(modified("a", { at: "11", body: { x: 1 } }), deleted("z", { at: "12" }))
    .saw()
    .is("LIVE", "12");
  assert.equal(bench.store.get("ns", "a")?.version, "11");
});

test("labels are part of the content", () => {
  live()
    .send(modified("a", { at: "11", labels: { app: "web" } }))
    .saw('updated a{"x":1} a{"x":1}');
});

test("another uid is a deletion and an addition", () => {
  const bench = live();
  bench.send(modified("a", { at: "11", uid: "other" })).saw('deleted a{"x":1} INFERRED', 'added a{"x":1}');
  bench
    .send(deleted("a", { at: "12", uid: "uid-a" }))
    .saw()
    .is("LIVE", "12");
  bench.send(deleted("a", { at: "13", uid: "" })).saw('deleted a{"x":1} DELETED');
});

test("a deletion without a body has the stored object", () => {
  const bench = live();
  bench.send(deleted("a", { at: "11", body: undefined, cause: Cause.CAUSE_LEFT_SELECTION }));
  bench.saw('deleted a{"x":1} LEFT_SELECTION');
  bench.send(deleted("b", { at: "12", cause: Cause.CAUSE_NOT_SERVED })).saw('deleted b{"x":1} NOT_SERVED');
  bench
    .send(added("c", { at: "13" }), deleted("c", { at: "14", cause: 99 as Cause }))
    .saw('added c{"x":1}', 'deleted c{"x":1} UNKNOWN');
});

test("objects without bodies are compared by version", () => {
  const bench = live();
  bench.send(added("m", { at: "11", body: undefined })).saw("added m");
  bench.send(modified("m", { at: "12", v: "11", body: undefined })).saw();
  bench.send(modified("m", { at: "13", body: undefined })).saw("updated m m");
});

test("a resumed stream is current at its first bookmark with a version", () => {
  const bench = resumed();
  bench
    .send(modified("a", { at: "12", body: { x: 2 } }))
    .saw('updated a{"x":1} a{"x":2}')
    .is("SYNCING", "12");
  bench
    .send(bookmark(""))
    .is("SYNCING")
    .send(bookmark("12", { history: "h2" }))
    .is("LIVE", "12");
  bench.watch.ended(bench.now);
  bench.pass(100).saw("OK wait 100", "open 12/h2");
});

test("silence for three intervals ends the connection, and shows at once", () => {
  const bench = live();
  bench.pass(2_999).is("LIVE").saw();
  // The state is computed when it is read: no timer has fired yet.
  bench.now += 1;
  bench.is("DISCONNECTED");
  bench.now -= 1;
  bench.pass(1).saw("close connection", "UNAVAILABLE wait 100").is("DISCONNECTED");
  bench.pass(100).saw("open 10/h1").is("DISCONNECTED");
  bench.send(bookmark("10")).is("LIVE");
  assert.equal(bench.watch.freshness(bench.now + 7).lastMessageAge, 7);
});

test("messages keep a connection", () => {
  const bench = live();
  for (let i = 0; i < 10; i++) bench.pass(2_900).send(bookmark("10"));
  bench.saw().is("LIVE");
});

test("no connection within its time", () => {
  const bench = new Bench();
  bench.watch.start(bench.now);
  bench.pass(499).saw("open /").pass(1).saw("close connection", "UNAVAILABLE wait 100");
});

test("the first message of a stream may take longer", () => {
  const bench = resumed();
  bench.send().pass(39_999).saw().pass(1).saw("close connection", "UNAVAILABLE wait 200");
  const listing = new Bench();
  listing.watch.start(listing.now);
  listing.send().pass(29_999).saw("open /").pass(1).saw("close connection", "UNAVAILABLE wait 100");
});

test("the back-off doubles to its limit, and progress resets it", () => {
  const bench = live();
  for (const ms of [100, 200, 400, 800, 1_600, 1_600]) {
    bench.watch.ended(bench.now, new InformerdError("refused", { code: "UNAVAILABLE" }));
    bench.saw("close connection", `UNAVAILABLE wait ${ms}`).pass(ms).saw("open 10/h1");
  }
  bench.send(bookmark("10"));
  bench.watch.ended(bench.now);
  bench.saw("OK wait 100");
});

test("RetryInfo is added, at most a minute", () => {
  const bench = live();
  bench
    .send(failure(8, "QUOTA_EXCEEDED", { retryMs: 2_500 }))
    .saw("close", "RESOURCE_EXHAUSTED QUOTA_EXCEEDED wait 2600")
    .pass(2_600);
  bench.saw("open 10/h1").send(failure(8, "QUOTA_EXCEEDED", { retryMs: 1e9 }));
  bench.saw("close", "RESOURCE_EXHAUSTED QUOTA_EXCEEDED wait 60200");
});

test("an ERROR has the version to resume from", () => {
  const bench = live();
  bench.send(added("c", { at: "10", v: "12" }), failure(8, "SLOW_CONSUMER", { at: "12" }));
  bench.saw('added c{"x":1}', "close", "RESOURCE_EXHAUSTED SLOW_CONSUMER wait 100").pass(100).saw("open 12/h1");
  // The RPC ends with the same status, of a stream that is closed.
  bench.send(bookmark("12")).is("LIVE", "12");
});

for (const reason of ["RESOURCE_VERSION_EXPIRED", "HISTORY_CHANGED", "ACCESS_CHANGED"]) {
  test(`${reason} lists again, as a difference`, () => {
    const bench = live();
    bench.send(failure(11, reason)).saw("close", `OUT_OF_RANGE ${reason} wait 400`).is("DISCONNECTED", "10");
    assert.equal(bench.names(), "a b");
    bench.pass(400).saw("open /").is("SYNCING", "10");
    // Other versions, another order: only what differs is a change.
    bench.send(initial("c"), initial("a", { v: "lineage.1" }), end("lineage.1", "h9"));
    bench.saw('deleted b{"x":1} INFERRED', 'added c{"x":1}').is("LIVE", "lineage.1");
    assert.equal(bench.store.get("ns", "a")?.version, "lineage.1");
    bench.watch.ended(bench.now);
    bench.pass(100).saw("OK wait 100", "open lineage.1/h9");
  });
}

test("RESOURCE_VERSION_TOO_LARGE twice in a row lists again", () => {
  const bench = live();
  const tooLarge = failure(UNAVAILABLE, "RESOURCE_VERSION_TOO_LARGE");
  bench.send(tooLarge).pass(100).saw("close", "UNAVAILABLE RESOURCE_VERSION_TOO_LARGE wait 100", "open 10/h1");
  bench.watch.ended(bench.now, new InformerdError("cut", { code: "UNAVAILABLE" }));
  bench.pass(200).saw("close connection", "UNAVAILABLE wait 200", "open 10/h1");
  bench.send(tooLarge).pass(400).saw("close", "UNAVAILABLE RESOURCE_VERSION_TOO_LARGE wait 400", "open /");
});

test("RESOURCE_VERSION_TOO_LARGE with progress in between resumes", () => {
  const bench = live();
  for (let i = 0; i < 3; i++) {
    bench.send(failure(UNAVAILABLE, "RESOURCE_VERSION_TOO_LARGE")).pass(100);
    bench.saw("close", "UNAVAILABLE RESOURCE_VERSION_TOO_LARGE wait 100", "open 10/h1").send(bookmark("10"));
  }
});

test("RESOURCE_VERSION_TOO_LARGE with an event in between resumes", () => {
  const bench = live();
  bench.send(failure(UNAVAILABLE, "RESOURCE_VERSION_TOO_LARGE")).pass(100);
  bench.saw("close", "UNAVAILABLE RESOURCE_VERSION_TOO_LARGE wait 100", "open 10/h1").send(added("z", { at: "11" }));
  bench.watch.ended(bench.now, new InformerdError("cut", { code: "UNAVAILABLE" }));
  bench.pass(200).saw('added z{"x":1}', "close connection", "UNAVAILABLE wait 200", "open 11/h1");
  bench.send(failure(UNAVAILABLE, "RESOURCE_VERSION_TOO_LARGE")).pass(100);
  bench.saw("close", "UNAVAILABLE RESOURCE_VERSION_TOO_LARGE wait 100", "open 11/h1");
});

test("a draining server is left for another connection, after a random delay", () => {
  const bench = live();
  bench
    .send(bookmark("11", { draining: true }))
    .saw()
    .is("LIVE", "11");
  bench
    .pass(100)
    .send(added("c", { at: "12" }))
    .saw('added c{"x":1}');
  bench.pass(299).saw().pass(1).saw("close connection", "open 12/h1");
});

test("a draining server that ends the stream first is left after the same delay", () => {
  const bench = live();
  bench.send(bookmark("11", { draining: true })).pass(100);
  bench.send(failure(UNAVAILABLE, "DRAINING", { retryMs: 50 })).saw("close", "close connection", "UNAVAILABLE DRAINING wait 300");
  bench
    .pass(300)
    .saw("open 11/h1")
    .send(bookmark("11", { draining: true }));
  bench
    .send(failure(UNAVAILABLE, "DRAINING", { retryMs: 900 }))
    .saw("close", "close connection", "UNAVAILABLE DRAINING wait 900");
});

test("a draining server that ends the stream well is left, too", () => {
  const bench = live().send(bookmark("11", { draining: true }));
  bench.watch.ended(bench.now);
  bench.saw("close connection", "OK wait 400").pass(400).saw("open 11/h1");
});

test("DRAINING without a bookmark", () => {
  const bench = live();
  bench.send(failure(UNAVAILABLE, "DRAINING", { retryMs: 50 })).saw("close", "close connection", "UNAVAILABLE DRAINING wait 450");
  bench.pass(450).saw("open 10/h1").send(failure(UNAVAILABLE, "DRAINING"));
  bench.saw("close", "close connection", "UNAVAILABLE DRAINING wait 600");
});

test("dropped events are fetched again", () => {
  const bench = live();
  bench
    .send(added("c", { at: "11" }), dropped("11", "20"))
    .saw('added c{"x":1}', "close", "OK wait 100")
    .is("SYNCING", "11");
  bench.pass(100).saw("open 11/h1").is("SYNCING");
  bench
    .send(added("d", { at: "12" }), bookmark("20"))
    .saw('added d{"x":1}')
    .is("LIVE", "20");
});

test("a batch before a hole is complete only if the version had advanced", () => {
  const half = live().send(added("c", { at: "10", v: "12" }), dropped("10", "20"));
  half.saw("close", "OK wait 100").is("SYNCING", "10");
  const whole = live().send(added("c", { at: "10", v: "12" }), dropped("12", "20"));
  whole.saw('added c{"x":1}', "close", "OK wait 100").is("SYNCING", "12");
});

test("STALE is a state, not an error", () => {
  const bench = live();
  bench
    .send(bookmark("10", { source: SyncState.SYNC_STATE_STALE }))
    .is("STALE")
    .saw();
  bench
    .send(added("c", { at: "11" }))
    .is("STALE")
    .saw('added c{"x":1}');
  bench.send(bookmark("11")).is("LIVE");
});

for (const [code, name] of [
  [3, "INVALID_ARGUMENT"],
  [7, "PERMISSION_DENIED"],
  [12, "UNIMPLEMENTED"],
  [9, "FAILED_PRECONDITION"],
  [15, "DATA_LOSS"],
] as const) {
  test(`the watch gives up on ${name}`, () => {
    const bench = live().send(failure(code, "REASON")).saw("close", "close connection", `failed ${name} REASON`);
    bench.is("DISCONNECTED").pass(100_000).saw();
  });
}

test("a resource that does not exist is an error, one that did exist is awaited", () => {
  const bench = new Bench();
  bench.watch.start(bench.now);
  bench.send(failure(5, "RESOURCE_NOT_FOUND")).saw("open /", "close", "close connection", "failed NOT_FOUND RESOURCE_NOT_FOUND");
  live().send(failure(5, "RESOURCE_NOT_FOUND")).pass(100).saw("close", "NOT_FOUND RESOURCE_NOT_FOUND wait 100", "open 10/h1");
});

test("credentials are read again once", () => {
  const bench = live().send(failure(16, "CREDENTIALS_EXPIRED")).pass(100);
  bench.saw("close", "close connection", "UNAUTHENTICATED CREDENTIALS_EXPIRED wait 100", "open 10/h1");
  bench.send(bookmark("10"), failure(16, "CREDENTIALS_EXPIRED")).pass(100);
  bench.saw("close", "close connection", "UNAUTHENTICATED CREDENTIALS_EXPIRED wait 100", "open 10/h1");
  bench.send(failure(16, "CREDENTIALS_EXPIRED")).saw("close", "close connection", "failed UNAUTHENTICATED CREDENTIALS_EXPIRED");
});

const UNKNOWN_TYPE = WatchResponse.fromPartial({ type: 42 as EventType, resourceVersion: "11" });
const NO_OBJECT = WatchResponse.fromPartial({ type: EventType.EVENT_TYPE_ADDED, resourceVersion: "11" });
for (const [name, message] of [
  ["an unknown type", UNKNOWN_TYPE],
  ["no object", NO_OBJECT],
  ["no version", added("c", {})],
  ["a batch after the initial events", batch(initial("c"))],
  ["no version before the hole", dropped("", "12")],
] as const) {
  test(`a message with ${name} is reported; the watch lists again over a new connection`, () => {
    const bench = live().send(message);
    const [closed, violated, wait] = bench.log;
    assert.deepEqual([closed, wait], ["close connection", "INTERNAL wait 100"]);
    assert.match(violated ?? "", /^violated: invalid message of the server: /);
    assert.equal(bench.names(), "a b");
    bench.log = [];
    bench.pass(100).saw("open /");
  });
}

test("a DROPPED among initial events is a violation: there is no version to resume from", () => {
  const bench = new Bench();
  bench.watch.start(bench.now);
  bench.send(initial("a"), dropped("9", "10")).pass(100);
  assert.equal(bench.log.at(-1), "open /");
});

test("the end of initial events that nobody requested is a bookmark", () => {
  resumed().send(end("12", "h2")).saw().is("LIVE", "12");
});

test("an effect may stop the watch", () => {
  const bench = live();
  bench.watch.effects.violated = () => bench.watch.stop();
  bench.send(UNKNOWN_TYPE).saw("close connection", "close connection").is("DISCONNECTED");
  assert.equal(bench.watch.nextTimer(), undefined);
});

test("nothing happens after stop", () => {
  const bench = live();
  bench.watch.stop();
  bench
    .saw("close connection")
    .send(added("c", { at: "11" }), failure(3, "X"))
    .pass(100_000)
    .saw()
    .is("DISCONNECTED", "10");
  assert.equal(bench.watch.nextTimer(), undefined);
});
