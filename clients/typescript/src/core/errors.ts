/** Errors of this package, and the next step of a watch after each. */

import { readDetails, type Status } from "../rpc-status.js";

/** Codes of gRPC, by number. */
const CODES = [
  "OK",
  "CANCELLED",
  "UNKNOWN",
  "INVALID_ARGUMENT",
  "DEADLINE_EXCEEDED",
  "NOT_FOUND",
  "ALREADY_EXISTS",
  "PERMISSION_DENIED",
  "RESOURCE_EXHAUSTED",
  "FAILED_PRECONDITION",
  "ABORTED",
  "OUT_OF_RANGE",
  "UNIMPLEMENTED",
  "INTERNAL",
  "UNAVAILABLE",
  "DATA_LOSS",
  "UNAUTHENTICATED",
] as const;

/** Name of a gRPC code. */
export type Code = (typeof CODES)[number];

/** Domain of informerd's reasons in google.rpc.ErrorInfo. */
const DOMAIN = "informerd";

/** Longest delay of a RetryInfo that is honoured, in milliseconds. */
const MAX_RETRY_DELAY_MS = 60_000;

/** What is known of a failure besides its message. */
export interface ErrorFields {
  code?: Code;
  reason?: string;
  metadata?: Record<string, string>;
  retryDelayMs?: number;
  cause?: unknown;
}

/** A call or a watch failed. The message is one line. */
export class InformerdError extends Error {
  override readonly name: string = "InformerdError";
  /** Code of the gRPC status. */
  readonly code: Code;
  /** Reason of informerd, for example "RESOURCE_NOT_FOUND"; empty when the status comes from the gRPC library, a proxy or the network. */
  readonly reason: string;
  /** Metadata of the reason, for example the oldest version that can be resumed from. */
  readonly metadata: Readonly<Record<string, string>>;
  /** Delay before the next attempt that the server requests, in milliseconds, at most 60,000; 0 if it requests none. */
  readonly retryDelayMs: number;

  constructor(message: string, fields: ErrorFields = {}) {
    super(message, fields.cause === undefined ? undefined : { cause: fields.cause });
    this.code = fields.code ?? "UNKNOWN";
    this.reason = fields.reason ?? "";
    this.metadata = fields.metadata ?? {};
    this.retryDelayMs = Math.min(Math.max(fields.retryDelayMs ?? 0, 0), MAX_RETRY_DELAY_MS);
  }
}

/** Translates a status. A reason of another domain than informerd's is left out. */
export function statusError({ code, message, details }: Status): InformerdError {
  const { domain, reason, metadata, retryDelayMs } = readDetails(details);
  const isOurs = domain === DOMAIN;
  return new InformerdError(message.replace(/\s*\n\s*/g, " "), {
    code: CODES[code] ?? "UNKNOWN",
    reason: isOurs ? reason : "",
    metadata: isOurs ? Object.fromEntries(metadata) : {},
    retryDelayMs: retryDelayMs ?? 0,
  });
}

/** The server violated the contract of the proto. The informer reports it, reconnects and lists. */
export class ContractError extends InformerdError {
  override readonly name = "ContractError";
  constructor(problem: string) {
    super(`invalid message of the server: ${problem}`, { code: "INTERNAL" });
  }
}

/** A handler or an indexer threw, or its promise was rejected; `cause` has what it threw. */
export class HandlerError extends InformerdError {
  override readonly name = "HandlerError";
  constructor(message: string, cause: unknown) {
    super(`${message}: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
  }
}

/** More notifications wait for the handlers or for an iterator than `maxWaiting`; reported once until they have caught up. */
export class LagError extends InformerdError {
  override readonly name = "LagError";
}

/** Returns true for a status of the server itself: those of libraries, proxies and the network have no reason, and not this code. */
export function isAnswer({ code, reason }: InformerdError): boolean {
  return reason !== "" || code === "OUT_OF_RANGE";
}

/** Next step of a watch after an error; see the table at `rpc Watch` in the proto. */
export type Recovery = "resume" | "drain" | "resume-once" | "authenticate" | "list" | "give-up";

/**
 * Returns the next step of a watch. It depends on the code where the reason is not known: something on the way may have removed it,
 * and a newer server has others.
 */
export function recovery({ code, reason }: InformerdError, hasSynced: boolean): Recovery {
  switch (code) {
    case "UNAVAILABLE":
      if (reason === "DRAINING") return "drain";
      return reason === "RESOURCE_VERSION_TOO_LARGE" ? "resume-once" : "resume";
    case "OK":
    case "INTERNAL":
    case "UNKNOWN":
    case "ABORTED":
    case "CANCELLED":
    case "DEADLINE_EXCEEDED":
    case "RESOURCE_EXHAUSTED":
      return "resume";
    case "OUT_OF_RANGE":
      return "list";
    case "UNAUTHENTICATED":
      return "authenticate";
    case "NOT_FOUND":
      return hasSynced ? "resume" : "give-up";
    default:
      return "give-up";
  }
}
