/**
 * A watch that does not end: which stream to open, what its messages change in the store, and what follows its end. No IO, no
 * clock and no timer: the caller passes the time in (milliseconds of a monotonic clock), carries the effects out, and calls
 * `tick` when `nextTimer` says so.
 */
import { isDeepStrictEqual } from "node:util";
import {
  type Bookmark,
  Cause,
  EventType,
  SyncState,
  type WatchResponse,
  type Object as WireObject,
} from "../generated/informerd/v1/informerd.js";
import { ContractError, InformerdError, isAnswer, recovery, statusError } from "./errors.js";
import { type BodyParser, InformerObject } from "./object.js";
import { type Change, type DeletionCause, keyOf, type Store, type StoreEvent } from "./store.js";
import { isLower } from "./version.js";

/** Times in milliseconds. */
export interface WatchSettings {
  bookmarkIntervalMs: number;
  /** Silence allowed before the first message of a stream that resumes. */
  firstMessageTimeoutMs: number;
  connectTimeoutMs: number;
  /** First back-off; each further one is twice as long. */
  backoffMs: number;
  maxBackoffMs: number;
  /** Longest random delay before the watch moves away from a server that drains. */
  drainJitterMs: number;
}

/** Position to resume from; an empty version lists. */
export interface Position {
  version: string;
  history: string;
}

/** What the watch requests of its surroundings. */
export interface WatchEffects<T> {
  /** Open a stream from this position: over the connection of the one before unless it was closed, else over a new one. */
  open(position: Position): void;
  /** Cancel the stream, if there is one; close its connection too if `connection`. Nothing of it is passed in any more. */
  close(connection: boolean): void;
  /** The store has changed, or its version has. */
  changed(changes: Change<T>[]): void;
  /** The first list is complete. */
  synced(): void;
  /** The stream has ended; the next attempt begins after this delay. */
  disconnected(error: InformerdError, retryInMs: number): void;
  /** The server violated its contract. */
  violated(error: ContractError): void;
  /** The watch has given up. */
  failed(error: InformerdError): void;
}

/**
 * - SYNCING: the store is not known to be current: a list is coming in, a resumed stream has not caught up, or lost events are
 *   being fetched.
 * - LIVE: the store equals the server's state as of its last message, and the server reaches its upstream.
 * - STALE: the store equals the server's state, and the server does not reach its upstream.
 * - DISCONNECTED: there is no stream, or no message has come for three bookmark intervals.
 */
export type State = "SYNCING" | "LIVE" | "STALE" | "DISCONNECTED";

/** How current the store is. */
export interface Freshness {
  state: State;
  /** Time of the server's last contact with its upstream, as of its last bookmark. */
  sourceSeenAt: Date | undefined;
  /** Time since the last message of the server, in milliseconds; undefined before the first one. */
  lastMessageAge: number | undefined;
}

/** Number of bookmark intervals without a message after which a connection counts as dead. */
const SILENT_INTERVALS = 3;

/** Longest silence before the first message of a stream that lists. */
const MAX_LIST_SILENCE_MS = 30_000;

/** The open stream. */
interface Stream<T> {
  openedAt: number;
  connectedAt?: number;
  lastMessageAt?: number;
  /** Last version received; that of the position before the first one. */
  version: string;
  /** Initial events so far; undefined when they are complete, and on a stream that resumes. */
  initial: Map<string, InformerObject<T>> | undefined;
  /** Events since the last safe version: a batch whose end has not come. */
  pending: StoreEvent<T>[];
  /** True when nothing is missing: the list is complete, or the first bookmark after a resume has come. */
  isCurrent: boolean;
  /** Namespaces that the server limits the watch to, as of its last bookmark. */
  namespaces?: string[];
  /** Time at which the watch moves away from a server that drains. */
  leavesAt?: number;
}

type Phase = "new" | "waiting" | "streaming" | "failed" | "stopped";

export class Watch<T> {
  /** The first list has been applied. */
  hasSynced = false;
  #phase: Phase = "new";
  #position: Position = { version: "", history: "" };
  #stream: Stream<T> | undefined;
  /** With the phase "waiting": the time of the next attempt. */
  #nextAt = 0;
  /** Attempts in a row without progress. */
  #failures = 0;
  /** The last stream ended with a status of the server; false after progress. */
  #isAnswered = false;
  /** The watch lists in place of a resume, until there is progress. */
  #listsAgain = false;
  /** RESOURCE_VERSION_TOO_LARGE since the last message of another kind. */
  #tooLarge = 0;
  /** UNAUTHENTICATED since the last progress. */
  #unauthenticated = 0;
  /** Events reported by a DROPPED have not all been fetched. */
  #hasHole = false;
  #source = SyncState.SYNC_STATE_UNSPECIFIED;
  #sourceSeenAt: Date | undefined;
  #startedAt = 0;
  #lastMessageAt: number | undefined;

  constructor(
    readonly store: Store<T>,
    readonly settings: WatchSettings,
    readonly effects: WatchEffects<T>,
    readonly parse: BodyParser<T>,
    readonly random: () => number = Math.random,
  ) {}

  start(now: number): void {
    if (this.#phase !== "new") return;
    this.#startedAt = now;
    this.#open(now);
  }

  stop(): void {
    this.#phase = "stopped";
    this.#stream = undefined;
    this.effects.close(true);
  }

  /** The connection of the stream is established. */
  connected(now: number): void {
    if (this.#stream) this.#stream.connectedAt ??= now;
  }

  message(now: number, message: WatchResponse): void {
    const stream = this.#stream;
    if (!stream) return;
    stream.lastMessageAt = now;
    this.#lastMessageAt = now;
    try {
      this.#apply(now, stream, message);
    } catch (error) {
      if (!(error instanceof ContractError)) throw error;
      this.#violated(now, error);
    }
  }

  /** The stream has ended: with an error, or with OK if undefined. */
  ended(now: number, error?: InformerdError): void {
    const stream = this.#stream;
    if (!stream) return;
    this.#stream = undefined;
    const end = error ?? new InformerdError("the server has ended the watch", { code: "OK" });
    // The failures before were those of a server that could not be reached.
    if (isAnswer(end) && !this.#isAnswered) this.#failures = 0;
    this.#isAnswered = isAnswer(end);
    // A status without a reason comes from a broken connection, or from what lies between.
    let keepsConnection = (end.code === "OK" || isAnswer(end)) && stream.leavesAt === undefined;
    let next = recovery(end, this.hasSynced);
    if (next === "authenticate") {
      // A new connection presents the client certificate that is there now.
      keepsConnection = false;
      next = ++this.#unauthenticated > 1 ? "give-up" : "resume";
    }
    if (next === "resume-once") next = ++this.#tooLarge > 1 ? "list" : "resume";
    if (next === "give-up") return this.#fail(end);
    if (next === "list") this.#position = { version: "", history: "" };
    if (!keepsConnection || next === "drain") this.effects.close(true);
    if (stream.leavesAt !== undefined) return this.#wait(now, Math.max(stream.leavesAt - now, end.retryDelayMs), end);
    if (next === "drain") {
      const delay = this.random() * this.settings.drainJitterMs + (this.#failures > 0 ? this.#backoff() : 0);
      this.#failures++;
      return this.#wait(now, end.retryDelayMs + delay, end);
    }
    if (next === "list" && !this.#listsAgain) {
      this.#listsAgain = true;
      return this.#wait(now, end.retryDelayMs + this.random() * this.settings.drainJitterMs, end);
    }
    this.#waitBackoff(now, end);
  }

  /** Carries out what is due. */
  tick(now: number): void {
    const due = this.nextTimer();
    if (due === undefined || now < due) return;
    if (!this.#stream) return this.#open(now);
    if (this.#stream.leavesAt !== undefined && now >= this.#stream.leavesAt) {
      this.effects.close(true);
      return this.#open(now);
    }
    const { connectedAt, openedAt } = this.#stream;
    const problem =
      connectedAt === undefined
        ? `no connection within ${this.settings.connectTimeoutMs} ms`
        : `no message for ${Math.round(now - (this.#stream.lastMessageAt ?? connectedAt ?? openedAt))} ms`;
    this.#stream = undefined;
    this.#isAnswered = false;
    this.effects.close(true);
    this.#waitBackoff(now, new InformerdError(problem, { code: "UNAVAILABLE" }));
  }

  /** Returns the time of the next call of `tick`. It may be later after any input. */
  nextTimer(): number | undefined {
    if (this.#phase === "waiting") return this.#nextAt;
    if (!this.#stream) return undefined;
    const { leavesAt } = this.#stream;
    const silent = this.#silentAt(this.#stream);
    return leavesAt === undefined ? silent : Math.min(leavesAt, silent);
  }

  freshness(now: number): Freshness {
    const lastMessageAge = this.#lastMessageAt === undefined ? undefined : now - this.#lastMessageAt;
    return { state: this.#state(now), sourceSeenAt: this.#sourceSeenAt, lastMessageAge };
  }

  #state(now: number): State {
    if (this.#phase !== "waiting" && this.#phase !== "streaming") return "DISCONNECTED";
    const silence = now - (this.#lastMessageAt ?? this.#startedAt);
    if (silence >= SILENT_INTERVALS * this.settings.bookmarkIntervalMs) return "DISCONNECTED";
    if (!this.#stream) return this.#hasHole ? "SYNCING" : "DISCONNECTED";
    if (!this.#stream.isCurrent || this.#source === SyncState.SYNC_STATE_SYNCING) return "SYNCING";
    return this.#source === SyncState.SYNC_STATE_STALE ? "STALE" : "LIVE";
  }

  /** Returns the time at which the silence of a stream has lasted too long. */
  #silentAt({ openedAt, connectedAt, lastMessageAt, initial }: Stream<T>): number {
    const { bookmarkIntervalMs, firstMessageTimeoutMs, connectTimeoutMs } = this.settings;
    if (lastMessageAt !== undefined) return lastMessageAt + SILENT_INTERVALS * bookmarkIntervalMs;
    if (connectedAt === undefined) return openedAt + connectTimeoutMs;
    return connectedAt + (initial ? Math.min(firstMessageTimeoutMs, MAX_LIST_SILENCE_MS) : firstMessageTimeoutMs);
  }

  #open(now: number): void {
    const { version } = this.#position;
    this.#phase = "streaming";
    this.#stream = {
      openedAt: now,
      version,
      initial: version === "" ? new Map() : undefined,
      pending: [],
      isCurrent: false,
    };
    this.effects.open({ ...this.#position });
  }

  #apply(now: number, stream: Stream<T>, message: WatchResponse): void {
    if (message.type !== EventType.EVENT_TYPE_ERROR) this.#tooLarge = 0;
    switch (message.type) {
      case EventType.EVENT_TYPE_ADDED:
      case EventType.EVENT_TYPE_MODIFIED:
      case EventType.EVENT_TYPE_DELETED:
        return this.#events(stream, message);
      case EventType.EVENT_TYPE_BOOKMARK:
        return this.#bookmark(now, stream, message.resourceVersion, message.bookmark);
      case EventType.EVENT_TYPE_DROPPED:
        return this.#dropped(now, stream, message.dropped?.afterResourceVersion ?? "");
      case EventType.EVENT_TYPE_ERROR:
        if (!stream.initial && message.resourceVersion !== "") this.#advance(stream, message.resourceVersion);
        if (!message.error) throw new ContractError("an ERROR without its status");
        this.effects.close(false);
        return this.ended(now, statusError(message.error));
      default:
        throw new ContractError(`type ${message.type} is unknown`);
    }
  }

  /** Takes the event of a message, or the initial events of its batch. */
  #events(stream: Stream<T>, message: WatchResponse): void {
    const { batch, object } = message;
    if (batch.length === 0) {
      if (!object) throw new ContractError("an event without its object");
      return this.#event(stream, message, object);
    }
    if (!stream.initial) throw new ContractError("a batch that is not of the initial events");
    for (const wire of batch) this.#event(stream, message, wire);
  }

  #event(stream: Stream<T>, message: WatchResponse, wire: WireObject): void {
    const event = this.#storeEvent(message, wire);
    if (stream.initial) {
      const key = keyOf(event.object.namespace, event.object.name);
      if (event.deleted === undefined) stream.initial.set(key, event.object);
      else stream.initial.delete(key);
      return;
    }
    if (message.resourceVersion === "") throw new ContractError("an event without its version");
    if (message.resourceVersion === stream.version && message.open && stream.pending.length === 0) {
      this.#changed(this.store.apply([event], stream.version));
      return;
    }
    if (!message.open && isLower(message.resourceVersion, event.object.version)) {
      // The first event of a batch whose version before it this selection has not seen: what is pending is complete.
      this.#advance(stream, message.resourceVersion);
      stream.pending.push(event);
      return;
    }
    stream.pending.push(event);
    this.#advance(stream, message.resourceVersion);
  }

  #storeEvent({ type, cause }: WatchResponse, wire: WireObject): StoreEvent<T> {
    const object = new InformerObject(wire, this.parse);
    return type === EventType.EVENT_TYPE_DELETED ? { object, deleted: deletionCause(cause) } : { object };
  }

  /** Applies what is pending if this version is another one than the last: the batch is complete. */
  #advance(stream: Stream<T>, version: string): void {
    if (version !== stream.version) this.#flush(stream, version);
  }

  #flush(stream: Stream<T>, version: string): void {
    stream.version = version;
    this.#position.version = version;
    const events = stream.pending;
    stream.pending = [];
    this.#changed(this.store.apply(events, version));
  }

  #bookmark(now: number, stream: Stream<T>, version: string, bookmark: Bookmark | undefined): void {
    if (!bookmark) throw new ContractError("a BOOKMARK without its fields");
    this.#source = bookmark.source;
    this.#sourceSeenAt = bookmark.sourceSeenAt ?? this.#sourceSeenAt;
    if (stream.initial && bookmark.initialEventsEnd) this.#listed(stream, version, bookmark.history);
    else if (!stream.initial && version !== "") {
      // Objects leave and enter with the caller's namespaces at the version that the stream already has.
      const isOtherCaller = stream.namespaces !== undefined && !isDeepStrictEqual(stream.namespaces, bookmark.namespaces);
      if (isOtherCaller) this.#flush(stream, version);
      else this.#advance(stream, version);
      this.#position.history = bookmark.history;
      this.#progressed(stream);
    }
    stream.namespaces = bookmark.namespaces;
    if (bookmark.draining) stream.leavesAt ??= now + this.random() * this.settings.drainJitterMs;
  }

  #listed(stream: Stream<T>, version: string, history: string): void {
    if (version === "") throw new ContractError("the end of the initial events without a version");
    const list = stream.initial as Map<string, InformerObject<T>>;
    stream.initial = undefined;
    stream.version = version;
    this.#position = { version, history };
    const changes = this.store.replace(list, version);
    this.#progressed(stream);
    const isFirst = !this.hasSynced;
    this.hasSynced = true;
    this.#changed(changes);
    if (isFirst) this.effects.synced();
  }

  #progressed(stream: Stream<T>): void {
    stream.isCurrent = true;
    this.#hasHole = false;
    this.#failures = 0;
    this.#unauthenticated = 0;
    this.#isAnswered = this.#listsAgain = false;
  }

  /** Resumes from before the hole: the server sends the lost events then. */
  #dropped(now: number, stream: Stream<T>, after: string): void {
    if (after === "" || stream.initial) throw new ContractError("a DROPPED without the version before the hole");
    this.#advance(stream, after);
    this.#hasHole = true;
    this.#stream = undefined;
    this.effects.close(false);
    this.#waitBackoff(now, new InformerdError("events were dropped: resuming from before them", { code: "OK" }));
  }

  #violated(now: number, error: ContractError): void {
    this.#stream = undefined;
    this.#position = { version: "", history: "" };
    this.effects.close(true);
    this.effects.violated(error);
    this.#waitBackoff(now, error);
  }

  #fail(error: InformerdError): void {
    this.#phase = "failed";
    this.effects.close(true);
    this.effects.failed(error);
  }

  #changed(changes: Change<T>[]): void {
    this.effects.changed(changes);
  }

  /** Returns a delay with full jitter. */
  #backoff(): number {
    const { backoffMs, maxBackoffMs } = this.settings;
    return this.random() * Math.min(maxBackoffMs, backoffMs * 2 ** Math.min(this.#failures, 30));
  }

  #waitBackoff(now: number, error: InformerdError): void {
    const delay = error.retryDelayMs + this.#backoff();
    this.#failures++;
    this.#wait(now, delay, error);
  }

  #wait(now: number, ms: number, error: InformerdError): void {
    // An effect may have stopped the watch.
    if (this.#phase === "stopped") return;
    this.#phase = "waiting";
    this.#nextAt = now + ms;
    this.effects.disconnected(error, ms);
  }
}

function deletionCause(cause: Cause): DeletionCause {
  switch (cause) {
    case Cause.CAUSE_UNSPECIFIED:
      return "DELETED";
    case Cause.CAUSE_INFERRED:
      return "INFERRED";
    case Cause.CAUSE_LEFT_SELECTION:
      return "LEFT_SELECTION";
    case Cause.CAUSE_NOT_SERVED:
      return "NOT_SERVED";
    case Cause.CAUSE_EXPIRED:
      return "EXPIRED";
    default:
      return "UNKNOWN";
  }
}
