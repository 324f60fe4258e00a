/** A scripted server, and a TCP proxy whose connections can be frozen. Both listen on a free port of loopback. */
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { Metadata, Server, ServerCredentials, type ServerWritableStream, type ServiceError } from "@grpc/grpc-js";
import {
  type InformerServiceServer,
  InformerServiceService,
  type WatchRequest,
  type WatchResponse,
} from "../src/generated/informerd/v1/informerd.js";
import { Status } from "../src/rpc-status.js";
import { statusOf } from "./script.js";

/** One Watch as the server sees it. */
export class ServedWatch {
  readonly peer: string;
  readonly request: WatchRequest;
  readonly authorization: string | undefined;
  readonly cancelled: Promise<void>;

  constructor(readonly call: ServerWritableStream<WatchRequest, WatchResponse>) {
    this.peer = call.getPeer();
    this.request = call.request;
    this.authorization = call.metadata.get("authorization")[0]?.toString();
    this.cancelled = new Promise((resolve) => call.once("cancelled", resolve));
    call.on("error", () => {});
  }

  send(...messages: WatchResponse[]): this {
    for (const message of messages) this.call.write(message);
    return this;
  }

  end(): void {
    this.call.end();
  }

  fail(code: number, reason: string): void {
    this.call.emit("error", serviceError(code, reason));
  }
}

/** An error whose details are in the trailer, as informerd sends it. */
export function serviceError(code: number, reason: string): ServiceError {
  const status = statusOf(code, reason);
  const metadata = new Metadata();
  metadata.set("grpc-status-details-bin", Buffer.from(Status.encode(status).finish()));
  return Object.assign(new Error(reason), { code, details: status.message, metadata });
}

export class ScriptedServer {
  readonly #server = new Server({ "grpc.max_connection_age_ms": 1 << 30 });
  readonly #watches: ServedWatch[] = [];
  readonly #waiting: ((watch: ServedWatch) => void)[] = [];
  port = 0;

  static async start(others: Partial<InformerServiceServer> = {}, port = 0): Promise<ScriptedServer> {
    const server = new ScriptedServer();
    const watch = (call: ServerWritableStream<WatchRequest, WatchResponse>) => {
      const served = new ServedWatch(call);
      const waiting = server.#waiting.shift();
      if (waiting) waiting(served);
      else server.#watches.push(served);
    };
    server.#server.addService(InformerServiceService, { watch, ...others } as InformerServiceServer);
    server.port = await new Promise<number>((resolve, reject) => {
      server.#server.bindAsync(`127.0.0.1:${port}`, ServerCredentials.createInsecure(), (error, port) => {
        if (error) reject(error);
        else resolve(port);
      });
    });
    return server;
  }

  get target(): string {
    return `127.0.0.1:${this.port}`;
  }

  /** Returns the next Watch that a client opens. */
  async watch(): Promise<ServedWatch> {
    return this.#watches.shift() ?? new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Breaks all connections. */
  stop(): void {
    this.#server.forceShutdown();
  }
}

export class TcpProxy {
  readonly #sockets: Socket[] = [];
  readonly #server = createServer((client) => {
    const server = connect(this.port, "127.0.0.1");
    for (const socket of [client, server]) socket.on("error", () => {});
    if (this.idleMs) {
      server.setTimeout(this.idleMs, () => {
        client.destroy();
        server.destroy();
      });
    }
    client.pipe(server).pipe(client);
    this.#sockets.push(client, server);
  });
  connections = 0;

  /** With `idleMs` it ends connections on which nothing comes for that time. */
  constructor(
    readonly port: number,
    readonly idleMs?: number,
  ) {
    this.#server.on("connection", () => this.connections++);
  }

  async start(): Promise<string> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** The connections so far forward nothing any more, and stay open. */
  freeze(): void {
    for (const socket of this.#sockets) socket.unpipe().pause();
  }

  stop(): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }
}
