/** Delivery of changes to handlers and iterators, apart from the store. What waits is kept; that it lags is reported. */

import { HandlerError, type InformerdError, LagError } from "./core/errors.js";
import type { InformerObject } from "./core/object.js";
import type { Change, DeletionCause } from "./core/store.js";

/** Events of an informer, with the arguments of their handlers. */
export interface InformerEvents<T> {
  /** An object that is new to the store. */
  added: [object: InformerObject<T>];
  /** Another body or other labels of an object. */
  updated: [old: InformerObject<T>, object: InformerObject<T>];
  /** An object's last known state, and the reason of its deletion. Under NOT_SERVED the object still exists upstream. */
  deleted: [last: InformerObject<T>, cause: DeletionCause];
  /** The first list is complete; its `added` events came before. */
  synced: [];
  /** The stream has ended, for example because the server restarts; the informer reconnects by itself after this delay. */
  disconnected: [error: InformerdError, retryInMs: number];
  /** The informer has given up. */
  failed: [error: InformerdError];
}

/** What an iterator returns: a change, or the end of the first list. */
export type InformerEvent<T> = Change<T> | { readonly type: "synced" };

/** A handler of an event. While its promise is pending, no further handler is called. */
export type Handler<A extends unknown[]> = (...args: A) => unknown;

type Name = keyof InformerEvents<unknown>;
type Notification = { name: Name; args: unknown[] };

/** Longest time in milliseconds for which handlers are called without other work of the process in between. */
const SLICE_MS = 10;

/** Calls the handlers one after the other, in the order of the events. */
export class Dispatcher<T> {
  readonly #handlers = new Map<Name, Set<Handler<never>>>();
  readonly #queue: Queue<Notification>;
  #isRunning = false;
  #isStopped = false;

  constructor(
    maxWaiting: number,
    readonly report: (error: InformerdError) => void,
  ) {
    this.#queue = new Queue(maxWaiting, "handlers", report);
  }

  on<E extends Name>(name: E, handler: Handler<InformerEvents<T>[E]>): void {
    const handlers = this.#handlers.get(name) ?? new Set();
    this.#handlers.set(name, handlers.add(handler as Handler<never>));
  }

  off<E extends Name>(name: E, handler: Handler<InformerEvents<T>[E]>): void {
    this.#handlers.get(name)?.delete(handler as Handler<never>);
  }

  emit<E extends Name>(name: E, ...args: InformerEvents<T>[E]): void {
    if (this.#isStopped || !this.#handlers.get(name)?.size) return;
    this.#queue.push({ name, args });
    if (this.#isRunning) return;
    this.#isRunning = true;
    setImmediate(() => void this.#run());
  }

  /** No handler is called after this. */
  stop(): void {
    this.#isStopped = true;
    this.#queue.clear();
  }

  async #run(): Promise<void> {
    let yieldAt = performance.now() + SLICE_MS;
    for (let next = this.#queue.shift(); next; next = this.#queue.shift()) {
      for (const handler of [...(this.#handlers.get(next.name) ?? [])]) {
        if (this.#isStopped) return;
        try {
          const result: unknown = (handler as Handler<unknown[]>)(...next.args);
          if (isPromise(result)) await result;
        } catch (error) {
          this.report(new HandlerError(`the handler of "${next.name}" failed`, error));
        }
      }
      if (performance.now() >= yieldAt) {
        await new Promise((resolve) => setImmediate(resolve));
        yieldAt = performance.now() + SLICE_MS;
      }
    }
    this.#isRunning = false;
  }
}

function isPromise(value: unknown): value is PromiseLike<unknown> {
  return typeof (value as PromiseLike<unknown> | undefined)?.then === "function";
}

/** The changes that one iterator has not read. */
export class Subscription<T> implements AsyncIterableIterator<InformerEvent<T>> {
  readonly #queue: Queue<InformerEvent<T>>;
  #waiting: { resolve(result: IteratorResult<InformerEvent<T>>): void; reject(error: unknown): void }[] = [];
  #isDone = false;
  #error: InformerdError | undefined;

  constructor(
    maxWaiting: number,
    report: (error: InformerdError) => void,
    readonly onReturn: (subscription: Subscription<T>) => void,
  ) {
    this.#queue = new Queue(maxWaiting, "iterators", report);
  }

  push(event: InformerEvent<T>): void {
    if (this.#isDone) return;
    const waiting = this.#waiting.shift();
    if (waiting) waiting.resolve({ done: false, value: event });
    else this.#queue.push(event);
  }

  /** Ends the iteration: after an error when everything has been read, without one at once. */
  end(error?: InformerdError): void {
    if (this.#isDone) return;
    this.#isDone = true;
    this.#error = error;
    if (!error) this.#queue.clear();
    for (const { resolve, reject } of this.#waiting) {
      if (error) reject(error);
      else resolve({ done: true, value: undefined });
    }
    this.#waiting = [];
  }

  next(): Promise<IteratorResult<InformerEvent<T>>> {
    const value = this.#queue.shift();
    if (value) return Promise.resolve({ done: false, value });
    if (this.#error) return Promise.reject(this.#error);
    if (this.#isDone) return Promise.resolve({ done: true, value: undefined });
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }

  return(): Promise<IteratorResult<InformerEvent<T>>> {
    this.onReturn(this);
    this.#error = undefined;
    this.end();
    this.#queue.clear();
    return Promise.resolve({ done: true, value: undefined });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}

/** Time in milliseconds for which a queue may be longer than its bound: a large list is not a lag. */
const LAG_GRACE_MS = 1_000;

/** A queue that reports once that it stays longer than a bound, until it is empty again. */
class Queue<E> {
  #items: E[] = [];
  #head = 0;
  #isLagging = false;
  #timer: NodeJS.Timeout | undefined;

  constructor(
    readonly maxWaiting: number,
    readonly reader: string,
    readonly report: (error: InformerdError) => void,
  ) {}

  push(item: E): void {
    this.#items.push(item);
    if (this.#isLagging || this.#timer || this.#waiting <= this.maxWaiting) return;
    this.#timer = setTimeout(() => this.#check(), LAG_GRACE_MS).unref();
  }

  shift(): E | undefined {
    const item = this.#items[this.#head];
    if (item === undefined) return undefined;
    this.#items[this.#head++] = undefined as E;
    if (this.#waiting === 0) this.clear();
    else if (this.#head >= 1024 && this.#head * 2 >= this.#items.length) {
      this.#items = this.#items.slice(this.#head);
      this.#head = 0;
    }
    return item;
  }

  clear(): void {
    this.#items = [];
    this.#head = 0;
    this.#isLagging = false;
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  get #waiting(): number {
    return this.#items.length - this.#head;
  }

  #check(): void {
    this.#timer = undefined;
    if (this.#waiting <= this.maxWaiting) return;
    this.#isLagging = true;
    this.report(new LagError(`${this.reader} lag behind the store: ${this.#waiting} notifications are waiting`));
  }
}
