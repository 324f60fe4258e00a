/** Connections to a server: target, TLS, token, channel options; errors of calls. */
import { readFileSync } from "node:fs";
import { ChannelCredentials, connectivityState, Metadata, type ServiceError, status } from "@grpc/grpc-js";
import { InformerdError, statusError } from "./core/errors.js";
import { InformerServiceClient, type ServerInfo } from "./generated/informerd/v1/informerd.js";
import { Status } from "./rpc-status.js";

/** A server, and how to connect to it. Files are read again: the token at every call, certificates for every connection. */
export interface ConnectionOptions {
  /**
   * "HOST:PORT", "https://HOST:PORT", "http://HOST:PORT" or "unix:/PATH". Plaintext, unless it is https or
   * `certificateAuthority` or `clientCertificate` is given.
   */
  target: string;
  /** PEM file with the authorities that may have signed the server's certificate; by default those that Node trusts. */
  certificateAuthority?: string;
  /** PEM file with the client's certificate; together with `clientKey`. */
  clientCertificate?: string;
  /** PEM file with the key of `clientCertificate`. */
  clientKey?: string;
  /** File with a bearer token. It is sent only over TLS, to a Unix socket or to this host. */
  tokenFile?: string;
  /** Name that the server's certificate must have, if it is another one than the target's host. */
  serverName?: string;
}

const MAX_MESSAGE_BYTES = 64 << 20;
/** HTTP/2's default of 64 KiB makes a list slow where the server is far away. */
const FLOW_CONTROL_WINDOW_BYTES = 1 << 20;
const KEEPALIVE_MS = 15_000;
const KEEPALIVE_TIMEOUT_MS = 10_000;
const MAX_TOKEN_LENGTH = 8 << 10;

/** A checked target. */
export class Endpoint {
  readonly #options: ConnectionOptions;
  /** In gRPC's syntax. */
  readonly #address: string;
  readonly #usesTls: boolean;
  readonly #isLocal: boolean;

  /** Throws if the options contradict each other, or a file cannot be read. */
  constructor(options: ConnectionOptions) {
    const { target, certificateAuthority, clientCertificate, clientKey, tokenFile } = options;
    this.#options = options;
    const url = /^(https?):\/\/([^/]+)\/?$/.exec(target);
    if (!url && (target === "" || target.includes("://"))) {
      throw new TypeError(`invalid target "${target}": expected HOST:PORT, https://HOST:PORT or unix:/PATH`);
    }
    if ((clientCertificate === undefined) !== (clientKey === undefined)) {
      throw new TypeError("clientCertificate and clientKey belong together: give both or none");
    }
    this.#address = url?.[2] ?? target;
    const hasFiles = certificateAuthority !== undefined || clientCertificate !== undefined;
    if (hasFiles && url?.[1] === "http") {
      throw new TypeError(`certificates are of no use for the plaintext target "${target}": write https://`);
    }
    this.#usesTls = url?.[1] === "https" || hasFiles;
    this.#isLocal = /^(unix:.*|(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?)$/.test(this.#address);
    if (tokenFile !== undefined && !this.#usesTls && !this.#isLocal) {
      throw new TypeError(`tokenFile is refused for the plaintext target "${target}": the token could be read on the way`);
    }
    this.credentials();
    this.metadata();
  }

  toString(): string {
    return this.#address;
  }

  credentials(): ChannelCredentials {
    if (!this.#usesTls) return ChannelCredentials.createInsecure();
    const { certificateAuthority, clientCertificate, clientKey } = this.#options;
    return ChannelCredentials.createSsl(read(certificateAuthority), read(clientKey), read(clientCertificate));
  }

  /** Returns the headers of a call. */
  metadata(): Metadata {
    const metadata = new Metadata();
    const token = read(this.#options.tokenFile)?.toString("utf8").trim();
    if (token === undefined) return metadata;
    const problem = tokenProblem(token);
    if (problem) throw unreadable(this.#options.tokenFile as string, problem);
    metadata.set("authorization", `Bearer ${token}`);
    return metadata;
  }

  /** Returns a client with connections of its own: grpc-js otherwise shares them between clients of one target. */
  client(): InformerServiceClient {
    const { serverName } = this.#options;
    return new InformerServiceClient(this.#address, this.credentials(), {
      "grpc.use_local_subchannel_pool": 1,
      "grpc.keepalive_time_ms": KEEPALIVE_MS,
      "grpc.keepalive_timeout_ms": KEEPALIVE_TIMEOUT_MS,
      "grpc.keepalive_permit_without_calls": 1,
      "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
      "grpc-node.flow_control_window": FLOW_CONTROL_WINDOW_BYTES,
      "grpc.enable_retries": 0,
      "grpc.enable_channelz": 0,
      "grpc.service_config_disable_resolution": 1,
      "grpc.enable_http_proxy": this.#isLocal ? 0 : 1,
      "grpc.primary_user_agent": "informerd-typescript",
      ...(serverName === undefined ? {} : { "grpc.ssl_target_name_override": serverName, "grpc.default_authority": serverName }),
    });
  }

  /** Throws if the server lacks what the request needs: it would ignore that part. Each call checks: another server may have replaced it. */
  checkCapabilities({ shard, view }: { shard?: unknown; view?: unknown }, server: ServerInfo | undefined): void {
    const has = (capability: string) => server?.capabilities.includes(capability);
    const missing = shard && !has("shards") ? "shards" : view && !has("views") ? "views" : undefined;
    if (!missing) return;
    const version = server?.version ? ` (version ${server.version})` : "";
    throw new InformerdError(`informerd at ${this}${version} has no ${missing}: update it, or request without`, {
      code: "UNIMPLEMENTED",
      reason: "NOT_IMPLEMENTED",
    });
  }

  /** Translates the failure of a call. */
  error(error: unknown): InformerdError {
    if (error instanceof InformerdError) return error;
    const { code = status.UNKNOWN, details: text = String(error), metadata } = error as Partial<ServiceError>;
    const bytes = metadata?.get("grpc-status-details-bin")[0];
    const details = (bytes instanceof Uint8Array ? tryStatus(bytes) : undefined)?.details ?? [];
    const answer = statusError({ code, message: text, details });
    return answer.reason === "" ? statusError({ code, message: `${this.#address}: ${text}`, details: [] }) : answer;
  }
}

/** Calls back when the client's connection is established, unless the client is closed before. */
export function whenConnected(client: InformerServiceClient, connected: () => void): void {
  const channel = client.getChannel();
  const check = (error?: Error): void => {
    if (error) return;
    let state: connectivityState;
    try {
      state = channel.getConnectivityState(true);
    } catch {
      return; // The channel has been closed.
    }
    if (state === connectivityState.READY) connected();
    else if (state !== connectivityState.SHUTDOWN) channel.watchConnectivityState(state, Number.POSITIVE_INFINITY, check);
  };
  check();
}

function tryStatus(bytes: Uint8Array): Status | undefined {
  try {
    return Status.decode(bytes);
  } catch {
    return undefined; // The code and the message of the status remain.
  }
}

function read(file: string | undefined): Buffer | null {
  if (file === undefined) return null;
  try {
    return readFileSync(file);
  } catch (error) {
    throw unreadable(file, (error as Error).message);
  }
}

/** gRPC's own error would have the token. */
function tokenProblem(token: string): string | undefined {
  if (token === "") return "the file is empty";
  if (token.length > MAX_TOKEN_LENGTH) return `the token has more than ${MAX_TOKEN_LENGTH} characters`;
  return /^[!-~]+$/.test(token) ? undefined : "the token has characters that no header may have";
}

function unreadable(file: string, problem: string): InformerdError {
  return new InformerdError(`cannot read credentials from "${file}": ${problem}`, { code: "UNAVAILABLE" });
}
