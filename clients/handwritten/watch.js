// A watch that does not end: R1 to R9 are the rules of docs/clients.md.
import { setTimeout as sleep } from "node:timers/promises";
import { read } from "./stream.js";

const RESUMED = "OK CANCELLED UNKNOWN DEADLINE_EXCEEDED RESOURCE_EXHAUSTED ABORTED INTERNAL UNAVAILABLE".split(" ");
const TIMES = { interval: 10_000, first: 100_000, firstList: 30_000, connect: 5_000, backoff: 200, maxBackoff: 10_000, jitter: 1_000 };

/** Above, below or equal to 0; undefined for versions without an order. */
export function compare(a, b) { // R4
  const [[, lineage, n], [, other, m]] = [a, b].map((version) => /^(?:(.+)\.)?(\d+)$/.exec(version) ?? []);
  return n && m && lineage === other ? BigInt(n) - BigInt(m) : undefined;
}

export class Watch {
  version = ""; lists = true; failures = 0; refused = 0; tooLarge = 0;
  /** `apply(changes, isList)` receives what belongs together; `options` are `request` (a WatchRequest), `tokenFile` and TIMES. */
  constructor(target, apply, options) { Object.assign(this, TIMES, { target, apply }, options); }
  get state() {
    if (!this.call || performance.now() - this.lastMessage >= 3 * this.interval) return "DISCONNECTED"; // R1
    return !this.isCurrent ? "SYNCING" : this.source === "SYNC_STATE_STALE" ? "STALE" : "LIVE"; // R9
  }
  stop() { this.isOver = true; this.call?.cancel(); }
  /** Resolves with the code and the reason with which the watch gives up; undefined after `stop`. */
  async run() {
    while (!this.isOver) {
      const bookmark_interval = { seconds: Math.floor(this.interval / 1000), nanos: (this.interval % 1000) * 1e6 };
      const from = this.lists ? {} : { resource_version: this.version, history: this.history }; // R3
      const request = { format: "PAYLOAD_FORMAT_RAW", batch_initial_events: true, ...this.request, ...from, bookmark_interval };
      const first = this.lists ? Math.min(this.first, this.firstList) : this.first, times = { ...this, silence: 3 * this.interval };
      const started = (call) => Object.assign(this, { call, isList: this.lists, pending: [] });
      const { code, reason, requested } = await read(times, request, first, started, (message) => this.receive(message));
      this.call = this.isCurrent = undefined;
      const expired = code === "OUT_OF_RANGE" || (reason === "RESOURCE_VERSION_TOO_LARGE" && ++this.tooLarge > 1); // R8
      const resumed = RESUMED.includes(code) || (code === "NOT_FOUND" && this.version) || (code === "UNAUTHENTICATED" && !this.refused++);
      if (this.isOver || !(expired || resumed)) return this.isOver ? undefined : { code, reason };
      if ((reason || expired) && !this.wasAnswer) this.failures = 0; // R3
      const limit = (expired && !this.relists) || reason === "DRAINING" ? this.jitter // R7, R8
        : Math.min(this.maxBackoff, this.backoff * 2 ** this.failures++);
      Object.assign(this, { wasAnswer: reason || expired, lists: this.lists || expired, relists: this.relists || expired });
      await sleep(Math.random() * limit + Math.min(requested, 60_000));
    }
  }
  /** Applies a message. Returns the status that ends the stream, if it does. */
  receive({ type, object, batch, cause, open, resource_version: version, bookmark, dropped, error }) {
    this.lastMessage = performance.now();
    if (!error) this.refused = this.tooLarge = 0;
    if (bookmark) {
      const isOther = version !== this.version || `${bookmark.namespaces}` !== this.namespaces;
      if (this.isList ? bookmark.initial_events_end : version && isOther) this.advance(version);
      const current = { isCurrent: true, history: bookmark.history, namespaces: `${bookmark.namespaces}`, failures: 0, relists: false };
      if (!this.isList && version) Object.assign(this, current);
      Object.assign(this, { source: bookmark.source, sourceSeenAt: bookmark.source_seen_at ?? this.sourceSeenAt });
      return bookmark.draining ? { code: 14, details: [{ reason: "DRAINING" }] } : undefined; // R7
    }
    if (dropped || error) {
      const safe = dropped?.after_resource_version ?? version; // R6
      if (!this.isList && safe && safe !== this.version) this.advance(safe);
      return error ?? { code: 0 };
    }
    if (this.isList && batch.length) return void this.pending.push(...batch); // Initial events, many in a message.
    if (!object || !(version || this.isList)) { // No server of the contract sends it.
      this.lists = true;
      return { code: 13 };
    }
    const opensBatch = !open && version !== this.version && compare(object.resource_version, version) > 0; // R4
    if (!this.isList && opensBatch) this.advance(version);
    const isComplete = !this.isList && (version !== this.version || (open && !this.pending.length));
    this.pending.push({ ...object, cause: type === "EVENT_TYPE_DELETED" ? cause.slice("CAUSE_".length) : undefined });
    if (isComplete) this.advance(version);
  }
  advance(version) {
    this.apply(this.pending, this.isList);
    Object.assign(this, { version, pending: [] }, this.isList && { isList: false, lists: false });
  }
}
