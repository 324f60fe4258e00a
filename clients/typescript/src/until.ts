/** Conditions on the events of an informer, which are met one after the other. */
import type { InformerObject } from "./core/object.js";
import { type Change, type DeletionCause, keyOf } from "./core/store.js";

/** An event that a condition is tested on. */
export interface UntilEvent<T> {
  /** SYNCED comes after the objects of the first list. */
  type: "ADDED" | "MODIFIED" | "DELETED" | "SYNCED";
  /** The new state; of a deleted object its last known one. Undefined with SYNCED. */
  object: InformerObject<T> | undefined;
  /** With DELETED. */
  cause: DeletionCause | undefined;
  /** Number of selected objects after the event; for ADDED of the first list and SYNCED that of the list. */
  count: number;
  /** Version of the store that has the event. */
  version: string;
}

/** Returns something true if the event meets the condition. */
export type Condition<T> = (event: UntilEvent<T>) => unknown;

/** The condition that an object is selected. */
export function anyObject({ count }: UntilEvent<unknown>): boolean {
  return count > 0;
}

const TYPES = { added: "ADDED", updated: "MODIFIED", deleted: "DELETED" } as const;

/** The conditions of one until. */
export class Waiting<T> {
  readonly #conditions: readonly Condition<T>[];
  #met = 0;
  #count = 0;
  #isFirstList = true;
  /** Keys of objects that exist, and can no longer be served. */
  readonly #notServed = new Set<string>();

  constructor(conditions: Condition<T> | readonly Condition<T>[]) {
    this.#conditions = typeof conditions === "function" ? [conditions] : [...conditions];
    // A text has elements, too.
    if (this.#conditions.length === 0 || !this.#conditions.every((condition) => typeof condition === "function")) {
      throw new TypeError("a condition is a function of an UntilEvent; what the server evaluates is selection.expression");
    }
  }

  /** Takes what an informer has applied in one step, at first its first list. Returns the event that has met the last condition. */
  test(changes: readonly Change<T>[], version: string): UntilEvent<T> | undefined {
    const isFirstList = this.#isFirstList;
    this.#isFirstList = false;
    if (isFirstList) this.#count = changes.length;
    for (const change of changes) {
      if (!isFirstList && !this.#counts(change)) continue;
      const cause = change.type === "deleted" ? change.cause : undefined;
      const event = { type: TYPES[change.type], object: change.object, cause, count: this.#count, version };
      if (this.#meets(event)) return event;
    }
    const synced: UntilEvent<T> = { type: "SYNCED", object: undefined, cause: undefined, count: this.#count, version };
    return isFirstList && this.#meets(synced) ? synced : undefined;
  }

  /** Counts an object. Returns false for one that can no longer be served: it exists, and is not tested. */
  #counts(change: Change<T>): boolean {
    const key = keyOf(change.object.namespace, change.object.name);
    if (change.type === "added" && !this.#notServed.delete(key)) this.#count++;
    if (change.type !== "deleted") return true;
    if (change.cause === "NOT_SERVED") {
      this.#notServed.add(key);
      return false;
    }
    this.#count--;
    return true;
  }

  #meets(event: UntilEvent<T>): boolean {
    while (this.#conditions[this.#met]?.(event)) {
      if (++this.#met === this.#conditions.length) return true;
    }
    return false;
  }
}
