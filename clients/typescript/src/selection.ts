/** Parts of requests that the informer and the plain calls share. */
import {
  FullChannelPolicy,
  PayloadFormat,
  type Shard as WireShard,
  type View as WireView,
} from "./generated/informerd/v1/informerd.js";

/** The objects of a resource that a request is about: those that every given field selects. */
export interface Selection {
  /** Only objects of this namespace. */
  namespace?: string;
  /** Only objects of this name. */
  name?: string;
  /** Kubernetes syntax: "app=web,tier in (a,b),!canary". */
  labelSelector?: string;
  /** "metadata.name=x,spec.nodeName!=n1": any path of scalars. */
  fieldSelector?: string;
  /** CEL over `object`, the JSON body; at most 4 KiB. */
  expression?: string;
  /** Objects under any of 1 to 256 values of an index of the server. Not for byIndex. */
  index?: { name: string; values: string[] };
  /** One part of the objects, by a hash; needs a server with the capability "shards". */
  shard?: Shard;
}

/** The objects whose hash of `key` lies in one of 1 to 64 half-open ranges. Hashes are 64-bit, hence bigint. */
export interface Shard {
  /** "uid", "namespace", "key" (namespace/name), or the path of a scalar such as "spec.nodeName". */
  key: string;
  /** `end` 0 means 2^64. */
  ranges: { start: bigint; end: bigint }[];
}

/** Returns part `index` (from 0) of `count` equal parts. */
export function shardOf(index: number, count: number, key = "uid"): Shard {
  if (!Number.isInteger(count) || count < 1 || !Number.isInteger(index) || index < 0 || index >= count) {
    throw new RangeError(`invalid shard ${index}/${count}: expected a whole number from 0 below the count`);
  }
  const bound = (i: number): bigint => BigInt.asUintN(64, (BigInt(i) << 64n) / BigInt(count));
  return { key, ranges: [{ start: bound(index), end: bound(index + 1) }] };
}

/** The part of each body that is sent; paths such as "spec.nodeName", "status.podIPs[].ip". */
export interface View {
  /** Paths to keep, at most 64 together with `drop`; none = everything. */
  fields?: string[];
  /** Paths to leave out of that. */
  drop?: string[];
  /** Report no update that leaves the rest of the body and the labels as they were. For informers. */
  onlyIfChanged?: boolean;
  /** Instead of `fields` and `drop`: "@metadata", "@no-status" or "@no-managed-fields". */
  name?: string;
}

/** RAW: whole bodies. METADATA: none. */
export type Format = "RAW" | "METADATA";

/** The server's action when a client reads too slowly; docs/policies.md compares them. */
export type Policy = "DROP" | "BLOCK" | "REPLAY" | "COALESCE";

const POLICIES: Record<Policy, FullChannelPolicy> = {
  DROP: FullChannelPolicy.FULL_CHANNEL_POLICY_DROP,
  BLOCK: FullChannelPolicy.FULL_CHANNEL_POLICY_BLOCK,
  REPLAY: FullChannelPolicy.FULL_CHANNEL_POLICY_REPLAY,
  COALESCE: FullChannelPolicy.FULL_CHANNEL_POLICY_COALESCE,
};

export function toFormat(format: Format | undefined): PayloadFormat {
  return format === "METADATA" ? PayloadFormat.PAYLOAD_FORMAT_METADATA : PayloadFormat.PAYLOAD_FORMAT_RAW;
}

export function toPolicy(policy: Policy | undefined): FullChannelPolicy {
  if (policy === undefined) return FullChannelPolicy.FULL_CHANNEL_POLICY_UNSPECIFIED;
  const found = POLICIES[policy];
  if (found === undefined) throw new TypeError(`invalid policy "${policy}": expected ${Object.keys(POLICIES).join(", ")}`);
  return found;
}

export function toView(view: View | undefined): WireView | undefined {
  if (!view) return undefined;
  const { fields = [], drop = [], onlyIfChanged = false, name = "" } = view;
  return { fields, drop, onlyIfChanged, name };
}

/** Returns the fields that every request with a selection has. */
export function toSelection(selection: Selection) {
  const { namespace = "", labelSelector = "", fieldSelector = "", expression = "", shard } = selection;
  return { namespace, labelSelector, fieldSelector, expression, shard: shard as WireShard | undefined };
}

/** Returns the same fields of a read, which has none for the name: `metadata.name` is that of the key. */
export function toReadSelection(selection: Selection) {
  const fields = toSelection(selection);
  if (!selection.name) return fields;
  const name = `metadata.name=${selection.name.replace(/[\\,=]/g, "\\$&")}`;
  return { ...fields, fieldSelector: fields.fieldSelector ? `${fields.fieldSelector},${name}` : name };
}
