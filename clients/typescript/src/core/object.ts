/** Objects of the store. */
import type { Object as WireObject } from "../generated/informerd/v1/informerd.js";

/** Converts the raw body of an object: text for JSON media types, bytes for all others. */
export type BodyParser<T> = (raw: string | Uint8Array, object: InformerObject<unknown>) => T;

/**
 * One object at one version. Its body is parsed when it is first read, and then kept.
 *
 * The store, every handler and every iterator share it: do not change it, nor its body.
 */
export class InformerObject<T> {
  /** Empty when the object has none. */
  readonly namespace: string;
  readonly name: string;
  /** Empty when the source has none. */
  readonly uid: string;
  /** The object's own version; not a point to resume from. */
  readonly version: string;
  readonly labels: Readonly<Record<string, string>>;
  /** For example "apps/v1"; empty when the body has none. */
  readonly apiVersion: string;
  /** For example "Deployment"; empty when the body has none. */
  readonly kind: string;
  /** Media type of the body, for example "application/json". */
  readonly mediaType: string;
  /** The source's own body: text for JSON, bytes for other media types, undefined without one: under METADATA, and where a view leaves it out. */
  readonly raw: string | Uint8Array | undefined;

  readonly #parse: BodyParser<T>;
  #body: T | undefined;
  #isParsed = false;

  /** @internal */
  constructor(wire: WireObject, parse: BodyParser<T>) {
    this.namespace = wire.namespace;
    this.name = wire.name;
    this.uid = wire.uid;
    this.version = wire.resourceVersion;
    this.labels = wire.labels.size === 0 ? NO_LABELS : Object.fromEntries(wire.labels);
    this.apiVersion = wire.apiVersion;
    this.kind = wire.kind;
    this.mediaType = wire.mediaType;
    this.raw = rawBody(wire);
    this.#parse = parse;
  }

  /**
   * The body: parsed JSON (integers above 2^53 are rounded, as by JSON.parse; `raw` has them exactly), bytes when the media type
   * is not JSON, undefined without `raw`. Throws when the body is not valid.
   */
  get body(): T {
    if (!this.#isParsed) {
      if (this.raw !== undefined) this.#body = this.#parse(this.raw, this);
      this.#isParsed = true;
    }
    return this.#body as T;
  }

  /**
   * Returns true if uid, labels and body are equal; the versions, where there is no body to compare.
   * @internal
   */
  hasSameContent(other: InformerObject<T>): boolean {
    if (this.uid !== other.uid || !haveSameEntries(this.labels, other.labels)) return false;
    if (this.raw === undefined && other.raw === undefined) return this.version === other.version;
    if (typeof this.raw === "string" || typeof other.raw === "string") return this.raw === other.raw;
    return this.raw !== undefined && other.raw !== undefined && Buffer.compare(this.raw, other.raw) === 0;
  }

  /**
   * Takes over the parsed body of an object with the same content.
   * @internal
   */
  takeBody(other: InformerObject<T>): void {
    this.#body = other.#body;
    this.#isParsed = other.#isParsed;
  }
}

const NO_LABELS: Readonly<Record<string, string>> = Object.freeze({});

/** Parses JSON, and leaves bytes as they are. */
export function parseJson(raw: string | Uint8Array, { namespace, name }: InformerObject<unknown>): unknown {
  if (typeof raw !== "string") return raw;
  try {
    return JSON.parse(raw);
  } catch (error) {
    throw new SyntaxError(
      `the body of ${namespace ? `${namespace}/` : ""}${name} is not valid JSON: ${(error as Error).message}`,
    );
  }
}

/**
 * Returns the body apart from the message that it came in: JSON as text, which JSON.parse needs, and which is compared fastest.
 */
function rawBody({ body, mediaType }: WireObject): string | Uint8Array | undefined {
  if (body === undefined) return undefined;
  if (body.$case === "struct") return JSON.stringify(body.value ?? {});
  return isJson(mediaType) ? body.value.toString("utf8") : body.value;
}

function isJson(mediaType: string): boolean {
  return mediaType === "application/json" || /^(application|text)\/([^;]+\+)?json\s*(;|$)/i.test(mediaType);
}

function haveSameEntries(a: Readonly<Record<string, string>>, b: Readonly<Record<string, string>>): boolean {
  if (a === b) return true;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && a[key] === b[key]);
}
