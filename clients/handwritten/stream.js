// One Watch of informerd over gRPC, without generated code: a connection, its timeouts, and the status with its details.
import { readFileSync } from "node:fs";
import { credentials, loadPackageDefinition, Metadata, status as CODES } from "@grpc/grpc-js";
import { loadFileDescriptorSetFromBuffer } from "@grpc/proto-loader";

// The descriptor set has google.rpc too; "json" decodes the details of a status.
const proto = readFileSync(new URL("../../proto/generated/descriptors.bin", import.meta.url));
const types = loadFileDescriptorSetFromBuffer(proto, { longs: String, enums: String, defaults: true, oneofs: true, json: true });
const { InformerService } = loadPackageDefinition(types).informerd.v1;
const READY = 2;
const OPTIONS = {
  "grpc.keepalive_time_ms": 15_000, // R2
  "grpc.keepalive_timeout_ms": 10_000,
  "grpc.keepalive_permit_without_calls": 1,
  "grpc.max_receive_message_length": 64 << 20,
  "grpc.use_local_subchannel_pool": 1, // Without it, clients of one target share a connection: also one that is dead, or drains.
};

/**
 * Reads one stream over a connection of its own. `started` receives the call; `receive` is called with each message, and ends the stream
 * with the status that it returns. Resolves with the status: the name of its code, its reason, and the requested delay.
 */
export async function read({ target, tokenFile, connect, silence }, request, first, started, receive) {
  const client = new InformerService(target, credentials.createInsecure(), OPTIONS), metadata = new Metadata();
  if (tokenFile) metadata.set("authorization", `Bearer ${readFileSync(tokenFile, "utf8").trim()}`);
  const call = client.watch(request, metadata);
  let timer = setTimeout(() => call.cancel(), first); // R1
  const connecting = setTimeout(() => client.getChannel().getConnectivityState(false) === READY || call.cancel(), connect);
  let status = { code: CODES.OK };
  started(call);
  try {
    for await (const message of call) {
      [timer, connecting].forEach(clearTimeout);
      timer = setTimeout(() => call.cancel(), silence); // R1
      const end = receive(message);
      if (end) {
        status = end;
        break;
      }
    }
  } catch ({ code, metadata: trailers }) {
    const [bytes] = trailers?.get("grpc-status-details-bin") ?? [];
    status = { code, details: bytes && types["google.rpc.Status"].deserialize(bytes).details };
  }
  [timer, connecting].forEach(clearTimeout);
  client.close();
  const { reason = "" } = status.details?.find((detail) => "reason" in detail) ?? {};
  const { retry_delay } = status.details?.find((detail) => "retry_delay" in detail) ?? {};
  const requested = retry_delay ? Number(retry_delay.seconds) * 1000 + retry_delay.nanos / 1e6 : 0;
  return { code: CODES[status.code], reason, requested };
}
