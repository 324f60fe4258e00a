/** Messages of a scripted server. */

import { BinaryWriter } from "@bufbuild/protobuf/wire";
import { Any } from "../src/generated/google/protobuf/any.js";
import { Duration } from "../src/generated/google/protobuf/duration.js";
import { Cause, EventType, SyncState, WatchResponse } from "../src/generated/informerd/v1/informerd.js";
import type { Status } from "../src/rpc-status.js";

type Fields = Parameters<typeof WatchResponse.fromPartial>[0];
type Event = {
  at?: string;
  v?: string;
  uid?: string;
  body?: unknown;
  labels?: Record<string, string>;
  cause?: Cause;
  open?: boolean;
};

export const SEEN = new Date("2026-01-01T00:00:00Z");

function event(type: EventType, name: string, { at = "", v = at, uid, body, labels = {}, cause, open }: Event): WatchResponse {
  const object = {
    namespace: "ns",
    name,
    uid: uid ?? `uid-${name}`,
    resourceVersion: v,
    labels: new Map(Object.entries(labels)),
    mediaType: "application/json",
    ...(body === undefined ? {} : { body: { $case: "raw", value: Buffer.from(JSON.stringify(body)) } as const }),
  };
  const fields: Fields = { type, resourceVersion: at, object, cause: cause ?? Cause.CAUSE_UNSPECIFIED, open: open ?? false };
  return WatchResponse.fromPartial(fields);
}

export function added(name: string, fields: Event): WatchResponse {
  return event(EventType.EVENT_TYPE_ADDED, name, { body: { x: 1 }, ...fields });
}

export function modified(name: string, fields: Event): WatchResponse {
  return event(EventType.EVENT_TYPE_MODIFIED, name, { body: { x: 1 }, ...fields });
}

export function deleted(name: string, fields: Event): WatchResponse {
  return event(EventType.EVENT_TYPE_DELETED, name, { body: { x: 1 }, ...fields });
}

/** One of the initial events. */
export function initial(name: string, fields: Omit<Event, "at"> = {}): WatchResponse {
  return added(name, { v: "1", cause: Cause.CAUSE_INITIAL, ...fields });
}

/** One message of initial events. */
export function batch(...events: WatchResponse[]): WatchResponse {
  const objects = events.flatMap(({ object }) => object ?? []);
  return WatchResponse.fromPartial({ type: EventType.EVENT_TYPE_ADDED, cause: Cause.CAUSE_INITIAL, batch: objects });
}

export function bookmark(version: string, fields: NonNullable<Fields["bookmark"]> = {}): WatchResponse {
  const bookmark = { source: SyncState.SYNC_STATE_SYNCED, history: "h1", sourceSeenAt: SEEN, ...fields };
  return WatchResponse.fromPartial({ type: EventType.EVENT_TYPE_BOOKMARK, resourceVersion: version, bookmark });
}

/** The end of the initial events. */
export function end(version: string, history = "h1"): WatchResponse {
  return bookmark(version, { initialEventsEnd: true, history });
}

export function dropped(after: string, version: string): WatchResponse {
  const dropped = { count: 1n, afterResourceVersion: after };
  return WatchResponse.fromPartial({ type: EventType.EVENT_TYPE_DROPPED, resourceVersion: version, dropped });
}

export function failure(
  code: number,
  reason: string,
  { at = "", retryMs }: { at?: string; retryMs?: number } = {},
): WatchResponse {
  return WatchResponse.fromPartial({
    type: EventType.EVENT_TYPE_ERROR,
    resourceVersion: at,
    error: statusOf(code, reason, retryMs),
  });
}

/** A status as informerd sends it. */
export function statusOf(code: number, reason: string, retryMs?: number): Status {
  const info = new BinaryWriter().uint32(10).string(reason).uint32(18).string("informerd");
  info.uint32(26).fork().uint32(10).string("current").uint32(18).string("7").join();
  const details = [Any.fromPartial({ typeUrl: "type.googleapis.com/google.rpc.ErrorInfo", value: Buffer.from(info.finish()) })];
  if (retryMs !== undefined) {
    const retry = new BinaryWriter().uint32(10).fork();
    Duration.encode({ seconds: BigInt(Math.floor(retryMs / 1000)), nanos: (retryMs % 1000) * 1e6 }, retry).join();
    details.push(Any.fromPartial({ typeUrl: "type.googleapis.com/google.rpc.RetryInfo", value: Buffer.from(retry.finish()) }));
  }
  return { code, message: `${reason}\nin words`, details };
}
