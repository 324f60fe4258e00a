/** The informer: a local copy of one resource, kept current by a watch. */
import type { ClientReadableStream } from "@grpc/grpc-js";
import { type ConnectionOptions, Endpoint, whenConnected } from "./connection.js";
import { HandlerError, InformerdError } from "./core/errors.js";
import { type BodyParser, type InformerObject, parseJson } from "./core/object.js";
import { type Change, type Indexer, Store } from "./core/store.js";
import { checkVersion, hasReached } from "./core/version.js";
import { type Freshness, type Position, Watch } from "./core/watch.js";
import type { InformerServiceClient, ServerInfo, WatchRequest, WatchResponse } from "./generated/informerd/v1/informerd.js";
import { InitialEvents, ListResourcesRequest, WatchRequest as WatchRequests } from "./generated/informerd/v1/informerd.js";
import { Dispatcher, type Handler, type InformerEvent, type InformerEvents, Subscription } from "./notifications.js";
import { type Format, type Policy, type Selection, toFormat, toPolicy, toSelection, toView, type View } from "./selection.js";
import { Waiters, type WaitOptions } from "./waiters.js";

/** What to keep, and how. Times are in milliseconds. */
export interface InformerOptions<T> extends ConnectionOptions {
  /** A name from `Client.resources`, for example "pods". */
  resource: string;
  /** By default every object. */
  selection?: Selection;
  /** By default whole bodies. */
  view?: View;
  /** Functions that return the values under which `byIndex` finds an object. One that throws is reported; the object has no values then. */
  indexers?: Record<string, Indexer<T>>;
  /** By default RAW. */
  format?: Format;
  /** By default the server's. Lost events of DROP are fetched again. */
  policy?: Policy;
  /** Length of the server's queue for this watch, in events; by default the server's. */
  queueLength?: number;
  /** Converts bodies, for example with a validation; by default JSON is parsed and other bodies stay bytes. */
  parseBody?: BodyParser<T>;
  /** Receives failed handlers and indexers, handlers that lag, and servers that violate the contract; by default they are written to stderr. */
  onError?: (error: InformerdError) => void;
  /** Number of waiting notifications above which handlers or an iterator are reported as lagging; by default 10,000. */
  maxWaiting?: number;
  /** Longest time without a message, at least 100; by default 10,000. After three of them the connection counts as dead. */
  bookmarkIntervalMs?: number;
  /** Silence allowed before the first message of a stream that resumes, by default 100,000; 30,000 at most for one that lists. */
  firstMessageTimeoutMs?: number;
  /** By default 5,000. */
  connectTimeoutMs?: number;
  /** First back-off, by default 200; each further one is twice as long. Delays are random below it. */
  backoffMs?: number;
  /** Longest back-off, by default 10,000. */
  maxBackoffMs?: number;
  /** Longest random delay before the informer moves away from a server that drains, by default 1,000. */
  drainJitterMs?: number;
  /** Deadline of calls beside the watch, by default 30,000. */
  requestTimeoutMs?: number;
}

const MIN_BOOKMARK_INTERVAL_MS = 100;
const DEFAULTS = {
  bookmarkIntervalMs: 10_000,
  firstMessageTimeoutMs: 100_000,
  connectTimeoutMs: 5_000,
  backoffMs: 200,
  maxBackoffMs: 10_000,
  drainJitterMs: 1_000,
  requestTimeoutMs: 30_000,
  maxWaiting: 10_000,
};

/**
 * A local copy of one resource. `T` is the type of the bodies.
 *
 * Reads never wait: they return the state as of the last complete change. Handlers and iterators receive every difference between
 * what they have seen and the store, and nothing that did not change. Objects are shared: do not change them.
 */
export class Informer<T = unknown> implements AsyncIterable<InformerEvent<T>> {
  readonly #options: InformerOptions<T>;
  readonly #settings: typeof DEFAULTS;
  readonly #endpoint: Endpoint;
  readonly #request: WatchRequest;
  readonly #store: Store<T>;
  readonly #watch: Watch<T>;
  readonly #observe: (changes: readonly Change<T>[]) => void;
  readonly #dispatcher: Dispatcher<T>;
  readonly #subscriptions = new Set<Subscription<T>>();
  readonly #syncWaiters = new Waiters<undefined>();
  readonly #versionWaiters = new Waiters<string>();
  #end: InformerdError | undefined;
  #hasFailed = false;
  #client: InformerServiceClient | undefined;
  #call: { cancel(): void } | undefined;
  #timer: { at: number; handle: NodeJS.Timeout } | undefined;

  /**
   * Throws if the options are invalid or a file cannot be read; connects to nothing yet. `observe` is for this package: it is called
   * with each step of the store, at first with the first list.
   */
  constructor(options: InformerOptions<T>, observe: (changes: readonly Change<T>[]) => void = () => {}) {
    this.#observe = observe;
    this.#options = options;
    this.#settings = settingsOf(options);
    this.#endpoint = new Endpoint(options);
    this.#request = requestOf(options, this.#settings.bookmarkIntervalMs);
    const report = (error: InformerdError) => this.#report(error);
    this.#dispatcher = new Dispatcher(this.#settings.maxWaiting, report);
    this.#store = new Store(options.indexers ?? {}, (name, error) => {
      report(new HandlerError(`the indexer "${name}" failed`, error));
    });
    const parse = options.parseBody ?? (parseJson as BodyParser<T>);
    this.#watch = new Watch(this.#store, this.#settings, this.#effects(), parse);
  }

  /** Connects, and keeps the store current until `stop`. A second call does nothing. */
  start(): void {
    if (this.#end) throw this.#end;
    this.#watch.start(now());
    this.#schedule();
  }

  /** Waits until the first list is complete. Rejects if the informer gives up or is stopped, or the time is over. */
  waitSynced(options: WaitOptions = {}): Promise<void> {
    if (this.#end) return Promise.reject(this.#end);
    if (this.#watch.hasSynced) return Promise.resolve();
    return this.#syncWaiters.wait(undefined, "the first list is not complete", options);
  }

  /** Ends the watch and its connection. No handler is called any more; the store stays readable. */
  async stop(): Promise<void> {
    if (this.#end && !this.#hasFailed) return;
    this.#dispatcher.stop();
    this.#close(new InformerdError("the informer has been stopped", { code: "CANCELLED" }));
    for (const subscription of this.#subscriptions) subscription.end();
    this.#subscriptions.clear();
    this.#watch.stop();
    this.#schedule();
  }

  /** Returns an object; without a namespace: `get(name)`. */
  get(name: string): InformerObject<T> | undefined;
  get(namespace: string, name: string): InformerObject<T> | undefined;
  get(first: string, second?: string): InformerObject<T> | undefined {
    return second === undefined ? this.#store.get("", first) : this.#store.get(first, second);
  }

  /** Returns all objects, in no particular order; of one namespace if it is given. */
  list(namespace?: string): InformerObject<T>[] {
    const objects = [...this.#store.objects()];
    return namespace === undefined ? objects : objects.filter((object) => object.namespace === namespace);
  }

  /** Returns the objects under a value of one of `indexers`, in no particular order. */
  byIndex(index: string, value: string): InformerObject<T>[] {
    return this.#store.byIndex(index, value);
  }

  /** Returns the values under which one of `indexers` has objects. */
  indexValues(index: string): string[] {
    return this.#store.indexValues(index);
  }

  /** Number of objects. */
  get size(): number {
    return this.#store.size;
  }

  /** Last version whose changes are all in the store; empty before the first list is complete. */
  get version(): string {
    return this.#store.version;
  }

  /**
   * Waits until the store has reached a version, for example that of one's own write. Rejects if its order with the store's version is
   * unknown (another lineage), if the informer gives up or is stopped, or the time (by default 30 s) is over.
   */
  async readAfter(version: string, options: WaitOptions = {}): Promise<void> {
    checkVersion(version);
    if (this.#end) throw this.#end;
    if (this.version !== "" && hasReached(this.version, version)) return;
    const timeoutMs = options.timeoutMs ?? this.#settings.requestTimeoutMs;
    return this.#versionWaiters.wait(version, `version ${version} has not been reached`, { ...options, timeoutMs });
  }

  /** Returns how current the store is, as of now. */
  freshness(): Freshness {
    return this.#watch.freshness(now());
  }

  /** True if the store equals the server's state as of its last message (LIVE or STALE). */
  healthy(): boolean {
    const { state } = this.freshness();
    return state === "LIVE" || state === "STALE";
  }

  /**
   * Adds a handler of later events: add handlers before `start` to receive everything. Handlers are called one after the other, in
   * the order of the events. One that throws, or whose promise is rejected, is reported to `onError`, and the next call follows.
   */
  on<E extends keyof InformerEvents<T>>(event: E, handler: Handler<InformerEvents<T>[E]>): this {
    this.#dispatcher.on(event, handler);
    return this;
  }

  /** Removes a handler. */
  off<E extends keyof InformerEvents<T>>(event: E, handler: Handler<InformerEvents<T>[E]>): this {
    this.#dispatcher.off(event, handler);
    return this;
  }

  /** Iterates over the present objects, as added, and all later changes. Ends with `stop`; throws if the informer gives up. */
  [Symbol.asyncIterator](): Subscription<T> {
    const report = (error: InformerdError) => this.#report(error);
    const subscription = new Subscription<T>(this.#settings.maxWaiting, report, (ended) => this.#subscriptions.delete(ended));
    for (const object of this.#store.objects()) subscription.push({ type: "added", object });
    if (this.#watch.hasSynced) subscription.push({ type: "synced" });
    if (this.#end) subscription.end(this.#hasFailed ? this.#end : undefined);
    else this.#subscriptions.add(subscription);
    return subscription;
  }

  #effects(): Watch<T>["effects"] {
    return {
      open: (position) => this.#open(position),
      close: (connection) => {
        this.#call?.cancel();
        this.#call = undefined;
        if (!connection) return;
        this.#client?.close();
        this.#client = undefined;
      },
      changed: (changes) => {
        for (const change of changes) {
          if (change.type === "added") this.#dispatcher.emit("added", change.object);
          else if (change.type === "updated") this.#dispatcher.emit("updated", change.old, change.object);
          else this.#dispatcher.emit("deleted", change.object, change.cause);
          for (const subscription of this.#subscriptions) subscription.push(change);
        }
        this.#versionWaiters.check((version) => hasReached(this.version, version));
        this.#observe(changes);
      },
      synced: () => {
        this.#dispatcher.emit("synced");
        for (const subscription of this.#subscriptions) subscription.push({ type: "synced" });
        this.#syncWaiters.check(() => true);
      },
      disconnected: (error, retryInMs) => this.#dispatcher.emit("disconnected", error, Math.round(retryInMs)),
      violated: (error) => this.#report(error),
      failed: (error) => {
        this.#hasFailed = true;
        this.#dispatcher.emit("failed", error);
        this.#close(error);
        for (const subscription of this.#subscriptions) subscription.end(error);
        this.#subscriptions.clear();
        this.#report(error);
      },
    };
  }

  #close(error: InformerdError): void {
    this.#end ??= error;
    this.#syncWaiters.reject(error);
    this.#versionWaiters.reject(error);
  }

  #open(position: Position): void {
    // What arrives of an earlier stream is ignored.
    const attempt = { cancel: () => {} };
    this.#call = attempt;
    const input = (take: () => void) => {
      if (this.#call !== attempt) return;
      take();
      this.#schedule();
    };
    const ended = (error?: unknown) => {
      input(() => {
        this.#call = undefined;
        this.#watch.ended(now(), error === undefined ? undefined : this.#endpoint.error(error));
      });
    };
    try {
      this.#client ??= this.#endpoint.client();
      whenConnected(this.#client, () => input(() => this.#watch.connected(now())));
    } catch (error) {
      // Not now: the watch is still opening the stream.
      setImmediate(() => ended(error));
      return;
    }
    const client = this.#client;
    const watch = () => {
      const request = { ...this.#request, resourceVersion: position.version, history: position.history };
      const call = client.watch(request, this.#endpoint.metadata());
      attempt.cancel = () => call.cancel();
      this.#listen(call, (message) => input(() => this.#watch.message(now(), message)), ended);
    };
    this.#checkServer(client, attempt)
      .then(() => input(watch))
      .catch(ended);
  }

  /** Checks that the server has what the request needs. */
  async #checkServer(client: InformerServiceClient, attempt: { cancel: () => void }): Promise<void> {
    if (!this.#request.shard && !this.#request.view) return;
    const server = await new Promise<ServerInfo | undefined>((resolve, reject) => {
      const deadline = Date.now() + this.#settings.requestTimeoutMs;
      const metadata = this.#endpoint.metadata();
      const call = client.listResources(ListResourcesRequest.create(), metadata, { deadline }, (error, response) => {
        if (error) reject(error);
        else resolve(response.server);
      });
      attempt.cancel = () => call.cancel();
    });
    this.#endpoint.checkCapabilities(this.#request, server);
  }

  /** The status may be reported before the messages that came before it: both have to be there. */
  #listen(
    call: ClientReadableStream<WatchResponse>,
    message: (m: WatchResponse) => void,
    ended: (error?: unknown) => void,
  ): void {
    let error: unknown;
    call.on("data", message);
    call.on("error", (failure) => {
      error = failure;
    });
    call.on("status", () => {
      if (call.readableEnded || call.destroyed) ended(error);
      else call.once("end", () => ended(error));
    });
  }

  /** Sets the timer of the watch. One that is early is left: it sets the next one. */
  #schedule(): void {
    const at = this.#watch.nextTimer();
    if (this.#timer && (at === undefined || at < this.#timer.at)) {
      clearTimeout(this.#timer.handle);
      this.#timer = undefined;
    }
    if (at === undefined || this.#timer) return;
    const fire = () => {
      if (this.#timer !== timer) return;
      this.#timer = undefined;
      this.#watch.tick(now());
      this.#schedule();
    };
    // What has arrived while the process did not run comes first.
    const handle = setTimeout(() => setImmediate(fire), Math.max(Math.ceil(at - now()), 0));
    const timer = { at, handle };
    this.#timer = timer;
  }

  #report(error: InformerdError): void {
    try {
      if (this.#options.onError) this.#options.onError(error);
      else console.error(`informerd: ${this.#options.resource}: ${error.message}`);
    } catch (failure) {
      console.error("informerd: onError failed:", failure);
    }
  }
}

function now(): number {
  return performance.now();
}

function settingsOf(options: Partial<typeof DEFAULTS>): typeof DEFAULTS {
  const settings = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS) as (keyof typeof DEFAULTS)[]) {
    const value = options[name];
    if (value === undefined) continue;
    const least = name === "bookmarkIntervalMs" ? MIN_BOOKMARK_INTERVAL_MS : 0;
    if (!(value >= least && value <= 0x7fff_ffff)) {
      throw new RangeError(`invalid ${name} ${value}: expected a number from ${least} to ${0x7fff_ffff}`);
    }
    settings[name] = value;
  }
  return settings;
}

function requestOf<T>(options: InformerOptions<T>, bookmarkIntervalMs: number): WatchRequest {
  const { resource, selection = {}, view, format, policy, queueLength: length = 0 } = options;
  if (!resource) throw new TypeError("resource is required");
  return {
    ...WatchRequests.create(),
    ...toSelection(selection),
    resource,
    name: selection.name ?? "",
    index: selection.index,
    initialEvents: InitialEvents.INITIAL_EVENTS_UNSPECIFIED,
    format: toFormat(format),
    queue: policy === undefined && length === 0 ? undefined : { policy: toPolicy(policy), length },
    bookmarkInterval: toDuration(bookmarkIntervalMs),
    view: toView(view),
    // A server that has no batches ignores it.
    batchInitialEvents: true,
  };
}

function toDuration(ms: number): { seconds: bigint; nanos: number } {
  const whole = Math.floor(ms / 1000);
  return { seconds: BigInt(whole), nanos: Math.round((ms - whole * 1000) * 1e6) };
}
