/** Delivery to handlers and iterators, in stepped time. */
import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { InformerdError, LagError } from "../src/core/errors.js";
import { Dispatcher, type InformerEvent, Subscription } from "../src/notifications.js";

const SYNCED = { type: "synced" } as const;

/** Collects reports, in stepped time. */
function reports(): { errors: InformerdError[]; report(error: InformerdError): void } {
  mock.timers.enable({ apis: ["setTimeout"] });
  const errors: InformerdError[] = [];
  return { errors, report: (error) => errors.push(error) };
}

test("a lag is reported once, until the handlers have caught up", async (t) => {
  t.after(() => mock.timers.reset());
  const { errors, report } = reports();
  const dispatcher = new Dispatcher<unknown>(3, report);
  let release: (value?: unknown) => void = () => {};
  dispatcher.on("synced", () => new Promise((resolve) => (release = resolve)));
  const emit = (count: number) => {
    for (let i = 0; i < count; i++) dispatcher.emit("synced");
  };
  const step = async () => {
    release();
    await new Promise((resolve) => setImmediate(resolve));
  };
  emit(4);
  mock.timers.tick(999);
  assert.equal(errors.length, 0, "it may be a long list");
  mock.timers.tick(1);
  assert.deepEqual(
    errors.map((error) => [error instanceof LagError, error.message]),
    [[true, "handlers lag behind the store: 4 notifications are waiting"]],
  );
  emit(10);
  mock.timers.tick(5_000);
  assert.equal(errors.length, 1);
  for (let i = 0; i < 15; i++) await step();
  emit(5);
  mock.timers.tick(1_000);
  assert.equal(errors.length, 2);
});

test("handlers that catch up in time are not reported", async (t) => {
  t.after(() => mock.timers.reset());
  const { errors, report } = reports();
  const dispatcher = new Dispatcher<unknown>(3, report);
  let calls = 0;
  dispatcher.on("synced", () => calls++);
  for (let i = 0; i < 5_000; i++) dispatcher.emit("synced");
  while (calls < 5_000) await new Promise((resolve) => setImmediate(resolve));
  mock.timers.tick(5_000);
  assert.equal(errors.length, 0);
});

test("a handler can be removed", async () => {
  const dispatcher = new Dispatcher<unknown>(3, () => {});
  let calls = 0;
  const handler = () => calls++;
  dispatcher.on("synced", handler);
  dispatcher.on("synced", () => dispatcher.off("synced", handler));
  for (let i = 0; i < 3; i++) dispatcher.emit("synced");
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(calls, 1);
});

test("an iterator ends after what it has not read with an error, and at once without one", async () => {
  const ended: Subscription<unknown>[] = [];
  const subscribe = () =>
    new Subscription<unknown>(
      3,
      () => {},
      (each) => ended.push(each),
    );
  const failing = subscribe();
  failing.push(SYNCED);
  failing.end(new InformerdError("gave up"));
  failing.push(SYNCED);
  assert.deepEqual(await failing.next(), { done: false, value: SYNCED });
  await assert.rejects(failing.next(), /gave up/);

  const stopping = subscribe();
  stopping.push(SYNCED);
  stopping.end();
  assert.equal((await stopping.next()).done, true);

  const waiting = subscribe();
  const results = Promise.all([waiting.next(), waiting.next()]);
  waiting.push(SYNCED);
  await waiting.return();
  const expected: IteratorResult<InformerEvent<unknown>>[] = [
    { done: false, value: SYNCED },
    { done: true, value: undefined },
  ];
  assert.deepEqual(await results, expected);
  assert.deepEqual(ended, [waiting]);
});
