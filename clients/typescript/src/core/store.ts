/** The objects of an informer, and their indexes. */
import type { InformerObject } from "./object.js";

/** Returns the values under which an object is indexed. */
export type Indexer<T> = (object: InformerObject<T>) => Iterable<string> | string | undefined;

/** Reason of a deletion; the proto's `Cause` has the details. "UNKNOWN" is one that is newer than this package. */
export type DeletionCause = "DELETED" | "INFERRED" | "LEFT_SELECTION" | "NOT_SERVED" | "EXPIRED" | "UNKNOWN";

/** A change of the store. */
export type Change<T> =
  | { readonly type: "added"; readonly object: InformerObject<T> }
  | { readonly type: "updated"; readonly old: InformerObject<T>; readonly object: InformerObject<T> }
  | { readonly type: "deleted"; readonly object: InformerObject<T>; readonly cause: DeletionCause };

/** An event of the server: an upsert, or with a cause a deletion. */
export interface StoreEvent<T> {
  object: InformerObject<T>;
  deleted?: DeletionCause;
}

/** Returns the key of an object. A name may contain "/", and neither part contains NUL. */
export function keyOf(namespace: string, name: string): string {
  return `${namespace}\0${name}`;
}

export class Store<T> {
  /** Last version whose changes are all in the store; empty before the first list is complete. */
  version = "";
  readonly #objects = new Map<string, InformerObject<T>>();
  readonly #indexes = new Map<string, Index<T>>();

  constructor(indexers: Record<string, Indexer<T>>, report: (name: string, error: unknown) => void) {
    for (const [name, indexer] of Object.entries(indexers)) {
      this.#indexes.set(name, new Index(indexer, (error) => report(name, error)));
    }
  }

  get size(): number {
    return this.#objects.size;
  }

  get(namespace: string, name: string): InformerObject<T> | undefined {
    return this.#objects.get(keyOf(namespace, name));
  }

  objects(): Iterable<InformerObject<T>> {
    return this.#objects.values();
  }

  byIndex(index: string, value: string): InformerObject<T>[] {
    const keys = this.#index(index).keys(value);
    return Array.from(keys, (key) => this.#objects.get(key) as InformerObject<T>);
  }

  indexValues(index: string): string[] {
    return this.#index(index).values();
  }

  /** Applies events in their order, as one step at a version, and returns the changes. */
  apply(events: StoreEvent<T>[], version: string): Change<T>[] {
    const changes: Change<T>[] = [];
    for (const { object, deleted } of events) {
      if (deleted === undefined) this.#upsert(keyOf(object.namespace, object.name), object, changes);
      else this.#delete(object, deleted, changes);
    }
    this.version = version;
    return changes;
  }

  /** Replaces everything by a list, as one step, and returns the difference: first deletions, then the rest in the list's order. */
  replace(list: Map<string, InformerObject<T>>, version: string): Change<T>[] {
    const changes: Change<T>[] = [];
    for (const [key, object] of this.#objects) {
      if (!list.has(key)) this.#remove(key, object, "INFERRED", changes);
    }
    for (const [key, object] of list) this.#upsert(key, object, changes);
    this.version = version;
    return changes;
  }

  #upsert(key: string, object: InformerObject<T>, changes: Change<T>[]): void {
    const old = this.#objects.get(key);
    if (old?.hasSameContent(object)) {
      object.takeBody(old);
      this.#objects.set(key, object);
      return;
    }
    if (old && old.uid !== object.uid) this.#remove(key, old, "INFERRED", changes);
    this.#objects.set(key, object);
    for (const index of this.#indexes.values()) index.put(key, object);
    changes.push(old && old.uid === object.uid ? { type: "updated", old, object } : { type: "added", object });
  }

  #delete(last: InformerObject<T>, cause: DeletionCause, changes: Change<T>[]): void {
    const key = keyOf(last.namespace, last.name);
    const old = this.#objects.get(key);
    if (!old || (old.uid !== "" && last.uid !== "" && old.uid !== last.uid)) return;
    this.#remove(key, last.raw === undefined ? old : last, cause, changes);
  }

  #remove(key: string, object: InformerObject<T>, cause: DeletionCause, changes: Change<T>[]): void {
    this.#objects.delete(key);
    for (const index of this.#indexes.values()) index.delete(key);
    changes.push({ type: "deleted", object, cause });
  }

  #index(name: string): Index<T> {
    const index = this.#indexes.get(name);
    if (index) return index;
    const known = [...this.#indexes.keys()].map((each) => `"${each}"`).join(", ");
    throw new RangeError(`there is no indexer "${name}" (there are: ${known || "none"})`);
  }
}

/** Keys of the objects under each value. */
class Index<T> {
  readonly #keys = new Map<string, Set<string>>();
  /** The values of each key, as they were when it was put: an indexer may not give the same ones again. */
  readonly #values = new Map<string, ReadonlySet<string>>();

  constructor(
    readonly indexer: Indexer<T>,
    readonly report: (error: unknown) => void,
  ) {}

  keys(value: string): Iterable<string> {
    return this.#keys.get(value) ?? [];
  }

  values(): string[] {
    return [...this.#keys.keys()];
  }

  put(key: string, object: InformerObject<T>): void {
    const values = this.#valuesOf(object);
    if (haveSameValues(values, this.#values.get(key) ?? NO_VALUES)) return;
    this.delete(key);
    if (values.size === 0) return;
    this.#values.set(key, values);
    for (const value of values) {
      const keys = this.#keys.get(value);
      if (keys) keys.add(key);
      else this.#keys.set(value, new Set([key]));
    }
  }

  delete(key: string): void {
    const values = this.#values.get(key);
    if (!values) return;
    this.#values.delete(key);
    for (const value of values) {
      const keys = this.#keys.get(value);
      keys?.delete(key);
      if (keys?.size === 0) this.#keys.delete(value);
    }
  }

  /** An indexer that throws gives no values. */
  #valuesOf(object: InformerObject<T>): ReadonlySet<string> {
    try {
      const values = this.indexer(object);
      return new Set(typeof values === "string" ? [values] : values);
    } catch (error) {
      this.report(error);
      return NO_VALUES;
    }
  }
}

const NO_VALUES: ReadonlySet<string> = new Set();

function haveSameValues(a: ReadonlySet<string>, b: ReadonlySet<string>): boolean {
  if (a.size !== b.size) return false;
  for (const value of a) if (!b.has(value)) return false;
  return true;
}
