/** The plain calls: one request, one answer. */
import { setMaxListeners } from "node:events";
import type { ClientReadableStream, Metadata, ServiceError } from "@grpc/grpc-js";
import { type ConnectionOptions, Endpoint } from "./connection.js";
import { InformerdError } from "./core/errors.js";
import { type BodyParser, InformerObject, parseJson } from "./core/object.js";
import {
  ByIndexRequest,
  type ByIndexResponse,
  GetRequest,
  type InformerServiceClient,
  ListRequest,
  type ListResponse,
  SyncState,
  VersionFormat,
  type Resource as WireResource,
} from "./generated/informerd/v1/informerd.js";
import { Informer } from "./informer.js";
import { type Format, type Selection, toFormat, toReadSelection, toView, type View } from "./selection.js";
import { anyObject, type Condition, type UntilEvent, Waiting } from "./until.js";
import { MAX_TIMEOUT_MS } from "./waiters.js";

/** Options of every call. */
export interface CallOptions {
  /** Longest wait for the whole answer in milliseconds; by default the client's `requestTimeoutMs`. */
  timeoutMs?: number;
  /** Cancels the call. */
  signal?: AbortSignal;
}

/** Options of calls that return objects. */
export interface ReadOptions<T> extends CallOptions {
  /** By default RAW. */
  format?: Format;
  /** By default whole bodies. */
  view?: View;
  /** Read-your-writes: wait until the server has reached this version, at most 10 s. Not for until. */
  minVersion?: string;
  /** Converts bodies; by default JSON is parsed and other bodies stay bytes. */
  parseBody?: BodyParser<T>;
}

/** Pages of a list. */
export interface PageOptions {
  /** Objects per page; by default everything is one page. */
  pageSize?: number;
  /** `nextPageToken` of the page before, which the server keeps for 5 minutes. */
  pageToken?: string;
}

/** Freshness of a resource at the server; the proto's `SyncState` has the details. */
export type SourceState = "SYNCING" | "SYNCED" | "STALE" | "UNKNOWN";

/** What every answer says of the snapshot that it comes from. */
interface Snapshot {
  /** Version of the snapshot. */
  version: string;
  state: SourceState;
  /** Time of the server's last contact with its upstream. */
  sourceSeenAt: Date | undefined;
}

/** Objects of one consistent snapshot, sorted by namespace and name. */
export interface ObjectList<T> extends Snapshot {
  objects: InformerObject<T>[];
  /** Empty on the last page. */
  nextPageToken: string;
  /** Namespaces that the answer is limited to, because the caller may read no others; empty = not limited. */
  namespaces: string[];
}

/** One object. */
export interface ObjectResult<T> extends Snapshot {
  object: InformerObject<T>;
}

/** A resource of a server; the proto's `Resource` has the details. Counts of 64 bits are bigint. */
export interface Resource extends Omit<WireResource, "state" | "versionFormat"> {
  state: SourceState;
  versionFormat: "DECIMAL" | "LINEAGE" | "UNKNOWN";
}

/** The resources of a server, and the server itself. */
export interface Resources {
  resources: Resource[];
  /** Version of the server's program; empty if the server predates the field. */
  serverVersion: string;
  /** The "Since:" names of the proto that the server implements. */
  capabilities: string[];
}

/** A value of an index of the server. */
export interface IndexValue {
  value: string;
  /** Number of objects under it. */
  objects: bigint;
}

const REQUEST_TIMEOUT_MS = 30_000;

/** Calls of a server, over one connection that is made when it is needed. Failures reject with an `InformerdError`; nothing is retried. */
export class Client {
  readonly #connection: ConnectionOptions;
  readonly #endpoint: Endpoint;
  readonly #client: InformerServiceClient;
  readonly #timeoutMs: number;
  readonly #closed = new AbortController();

  /** Throws if the options are invalid or a file cannot be read. */
  constructor(options: ConnectionOptions & { requestTimeoutMs?: number }) {
    // Each open call and wait listens.
    setMaxListeners(0, this.#closed.signal);
    this.#connection = options;
    this.#endpoint = new Endpoint(options);
    this.#client = this.#endpoint.client();
    this.#timeoutMs = options.requestTimeoutMs ?? REQUEST_TIMEOUT_MS;
  }

  /** Returns the objects of a resource from one snapshot. */
  async list<T = unknown>(
    resource: string,
    selection: Selection = {},
    options: ReadOptions<T> & PageOptions = {},
  ): Promise<ObjectList<T>> {
    const request = { ...ListRequest.create(), ...toReadSelection(selection), ...toRead(options), resource };
    request.index = selection.index;
    const call = await this.#begin(request, options);
    return this.#objects(() => this.#client.list(request, ...call), options);
  }

  /** Returns the objects under a value of an index of the server, or with `like` those that share a value with that object. */
  async byIndex<T = unknown>(
    resource: string,
    index: string,
    value: string | { like: { namespace?: string; name: string } },
    selection: Omit<Selection, "index"> = {},
    options: ReadOptions<T> & PageOptions = {},
  ): Promise<ObjectList<T>> {
    if ("index" in selection && selection.index) throw new TypeError("byIndex has an index already: leave out selection.index");
    const request = { ...ByIndexRequest.create(), ...toReadSelection(selection), ...toRead(options), resource, index };
    if (typeof value === "string") request.value = value;
    else request.like = { namespace: "", ...value.like };
    const call = await this.#begin(request, options);
    return this.#objects(() => this.#client.byIndex(request, ...call), options);
  }

  /** Returns one object; rejects with NOT_FOUND / OBJECT_NOT_FOUND if there is none. */
  async get<T = unknown>(
    resource: string,
    key: { namespace?: string; name: string },
    options: ReadOptions<T> = {},
  ): Promise<ObjectResult<T>> {
    const { format, view, minResourceVersion } = toRead(options);
    const request = { ...GetRequest.create(), resource, ...key, format, view, minResourceVersion };
    const answer = await this.#unary(this.#client.get, request, options, await this.#begin(request, options));
    if (!answer.object) throw new InformerdError("invalid answer of the server: no object", { code: "INTERNAL" });
    return { ...snapshotOf(answer), object: toObject(answer.object, options) };
  }

  /**
   * Waits until conditions have been met, one after the other, and resolves with the event that met the last one. Conditions are functions
   * of an event: of each selected object as ADDED, then SYNCED, then each change; each is tested first on the event that met the one before.
   * Without conditions it waits for an object: what the server evaluates is `selection.expression`.
   *
   * It is a watch of its own, like that of an `Informer`: restarts, broken connections, idle timeouts and expired versions do not end it,
   * met conditions stay met, and what was deleted meanwhile is an event. It rejects with DEADLINE_EXCEEDED after `timeoutMs`, with what a
   * condition throws, and with the error of a watch that gives up.
   */
  until<T = unknown>(
    resource: string,
    conditions: Condition<T> | readonly Condition<T>[] = anyObject,
    selection: Selection = {},
    options: Omit<ReadOptions<T>, "minVersion"> = {},
  ): Promise<UntilEvent<T>> {
    const { timeoutMs = this.#timeoutMs, signal } = options;
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      if (this.#closed.signal.aborted) throw new InformerdError("the client has been closed", { code: "CANCELLED" });
      const waiting = new Waiting<T>(conditions);
      let failure: InformerdError | undefined;
      const settle = (settled: () => void) => {
        clearTimeout(timer);
        this.#closed.signal.removeEventListener("abort", closed);
        signal?.removeEventListener("abort", aborted);
        void informer.stop();
        settled();
      };
      const informer = new Informer<T>({ ...options, ...this.#connection, resource, selection, onError: () => {} }, (changes) => {
        try {
          const met = waiting.test(changes, informer.version);
          if (met) settle(() => resolve(met));
        } catch (error) {
          settle(() => reject(error));
        }
      });
      const late = () => {
        const last = failure && !informer.healthy() ? ` (last error: ${failure.message})` : "";
        const error = { code: "DEADLINE_EXCEEDED", cause: failure } as const;
        settle(() => reject(new InformerdError(`the conditions were not met within ${timeoutMs} ms${last}`, error)));
      };
      const closed = () => settle(() => reject(new InformerdError("the client has been closed", { code: "CANCELLED" })));
      const aborted = () => settle(() => reject(signal?.reason));
      const timer = timeoutMs <= MAX_TIMEOUT_MS ? setTimeout(late, timeoutMs) : undefined;
      this.#closed.signal.addEventListener("abort", closed);
      signal?.addEventListener("abort", aborted);
      informer.on("disconnected", (error) => {
        failure = error;
      });
      informer.on("failed", (error) => settle(() => reject(error)));
      informer.start();
    });
  }

  /** Returns the values of an index of the server, sorted, from one snapshot. */
  async indexValues(resource: string, index: string, options: CallOptions = {}): Promise<IndexValue[]> {
    const found: IndexValue[] = [];
    let pageToken = "";
    do {
      const request = { resource, index, pageSize: 0, pageToken };
      const page = await this.#unary(this.#client.listIndexValues, request, options);
      found.push(...page.values);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
    return found;
  }

  /** Returns the resources of the server that the caller may read, sorted by name. */
  async resources(options: CallOptions = {}): Promise<Resources> {
    const { resources, server } = await this.#unary(this.#client.listResources, {}, options);
    return {
      resources: resources.map((each) => ({
        ...each,
        state: sourceState(each.state),
        versionFormat: VERSION_FORMATS[each.versionFormat] ?? "UNKNOWN",
      })),
      serverVersion: server?.version ?? "",
      capabilities: server?.capabilities ?? [],
    };
  }

  /** Ends open calls and the connection. */
  close(): void {
    this.#closed.abort();
    this.#client.close();
  }

  #call({ timeoutMs, signal }: CallOptions) {
    signal?.throwIfAborted();
    return [this.#endpoint.metadata(), { deadline: Date.now() + (timeoutMs ?? this.#timeoutMs) }] as const;
  }

  /** Returns what a call needs, once the server is known to have what its request needs. */
  async #begin(request: { shard?: unknown; view?: unknown }, options: CallOptions) {
    const call = this.#call(options);
    if (request.shard || request.view) {
      const { server } = await this.#unary(this.#client.listResources, {}, options, call);
      this.#endpoint.checkCapabilities(request, server);
    }
    return call;
  }

  #unary<Q, A>(method: Unary<Q, A>, request: Q, options: CallOptions, call = this.#call(options)): Promise<A> {
    return new Promise((resolve, reject) => {
      let settled = () => {};
      try {
        const open = method.call(this.#client, request, ...call, (error, answer) => {
          settled();
          if (error || options.signal?.aborted) reject(this.#failure(error, options));
          else resolve(answer);
        });
        settled = this.#cancelling(open, options);
      } catch (error) {
        reject(this.#failure(error, options));
      }
    });
  }

  /** Reads a stream of chunks to its end. */
  async #objects<T>(
    open: () => ClientReadableStream<ListResponse | ByIndexResponse>,
    options: ReadOptions<T>,
  ): Promise<ObjectList<T>> {
    let settled = () => {};
    let list: ObjectList<T> | undefined;
    try {
      const call = open();
      settled = this.#cancelling(call, options);
      for await (const chunk of call as AsyncIterable<ListResponse>) {
        list ??= { ...snapshotOf(chunk), objects: [], nextPageToken: "", namespaces: chunk.namespaces };
        for (const object of chunk.objects) list.objects.push(toObject(object, options));
        list.nextPageToken = chunk.nextPageToken;
      }
    } catch (error) {
      throw this.#failure(error, options);
    } finally {
      settled();
    }
    if (!list) throw new InformerdError("invalid answer of the server: no chunk", { code: "INTERNAL" });
    return list;
  }

  /** Cancels a call at its signal and when the client is closed, also if that has happened before. Returns the end of this. */
  #cancelling(call: { cancel(): void }, { signal }: CallOptions): () => void {
    const cancel = () => call.cancel();
    const signals = signal ? [signal, this.#closed.signal] : [this.#closed.signal];
    for (const each of signals) each.addEventListener("abort", cancel);
    if (signals.some(({ aborted }) => aborted)) cancel();
    return () => {
      for (const each of signals) each.removeEventListener("abort", cancel);
    };
  }

  /** Returns what a failed call rejects with: the reason of its signal, or an error. */
  #failure(error: unknown, { signal }: CallOptions): unknown {
    if (signal?.aborted) return signal.reason;
    if (this.#closed.signal.aborted) return new InformerdError("the client has been closed", { code: "CANCELLED" });
    return this.#endpoint.error(error);
  }
}

type Unary<Q, A> = (
  request: Q,
  metadata: Metadata,
  options: { deadline: number },
  callback: (error: ServiceError | null, answer: A) => void,
) => { cancel(): void };

const STATES: Partial<Record<SyncState, SourceState>> = {
  [SyncState.SYNC_STATE_SYNCING]: "SYNCING",
  [SyncState.SYNC_STATE_SYNCED]: "SYNCED",
  [SyncState.SYNC_STATE_STALE]: "STALE",
};

const VERSION_FORMATS: Partial<Record<VersionFormat, Resource["versionFormat"]>> = {
  [VersionFormat.VERSION_FORMAT_DECIMAL]: "DECIMAL",
  [VersionFormat.VERSION_FORMAT_LINEAGE]: "LINEAGE",
};

function sourceState(state: SyncState): SourceState {
  return STATES[state] ?? "UNKNOWN";
}

function snapshotOf(answer: { resourceVersion: string; source: SyncState; sourceSeenAt?: Date | undefined }): Snapshot {
  return { version: answer.resourceVersion, state: sourceState(answer.source), sourceSeenAt: answer.sourceSeenAt };
}

function toRead<T>({ format, view, minVersion = "", pageSize = 0, pageToken = "" }: ReadOptions<T> & PageOptions) {
  return { format: toFormat(format), view: toView(view), minResourceVersion: minVersion, pageSize, pageToken };
}

function toObject<T>(object: ConstructorParameters<typeof InformerObject>[0], { parseBody }: ReadOptions<T>): InformerObject<T> {
  return new InformerObject(object, parseBody ?? (parseJson as BodyParser<T>));
}
