/** Promises that wait for a condition, a time and a signal. */
import { InformerdError } from "./core/errors.js";

/** End of a wait. */
export interface WaitOptions {
  /** Longest wait in milliseconds; more than 24 days are no limit. */
  timeoutMs?: number;
  /** Aborts the wait; the promise rejects with its reason. */
  signal?: AbortSignal;
}

/** Longest time of a timer. */
export const MAX_TIMEOUT_MS = 0x7fff_ffff;

interface Waiter<C> {
  condition: C;
  settle(error?: unknown): void;
}

export class Waiters<C> {
  readonly #waiters = new Set<Waiter<C>>();

  wait(condition: C, problem: string, { timeoutMs, signal }: WaitOptions): Promise<void> {
    if (signal?.aborted) return Promise.reject(signal.reason);
    return new Promise((resolve, reject) => {
      const aborted = () => waiter.settle(signal?.reason);
      const late = () => {
        waiter.settle(new InformerdError(`${problem} after ${timeoutMs} ms`, { code: "DEADLINE_EXCEEDED" }));
      };
      const timer = timeoutMs !== undefined && timeoutMs <= MAX_TIMEOUT_MS ? setTimeout(late, timeoutMs) : undefined;
      const waiter: Waiter<C> = {
        condition,
        settle: (error) => {
          this.#waiters.delete(waiter);
          clearTimeout(timer);
          signal?.removeEventListener("abort", aborted);
          if (error === undefined) resolve();
          else reject(error);
        },
      };
      signal?.addEventListener("abort", aborted);
      this.#waiters.add(waiter);
    });
  }

  /** Settles the waits whose condition holds, or cannot be evaluated. */
  check(holds: (condition: C) => boolean): void {
    for (const waiter of this.#waiters) {
      try {
        if (holds(waiter.condition)) waiter.settle();
      } catch (error) {
        waiter.settle(error);
      }
    }
  }

  reject(error: InformerdError): void {
    for (const waiter of this.#waiters) waiter.settle(error);
  }
}
