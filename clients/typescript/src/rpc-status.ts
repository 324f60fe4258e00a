/**
 * The parts of google.rpc (status.proto, error_details.proto) that informerd uses. npm has no package with stubs of google.rpc
 * for `@bufbuild/protobuf`, and stubs of this package's own could clash with such a one; so these three messages are read
 * field by field.
 */
import { BinaryReader, BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import { Any } from "./generated/google/protobuf/any.js";
import { Duration } from "./generated/google/protobuf/duration.js";

/** google.rpc.Status. */
export interface Status {
  code: number;
  message: string;
  details: Any[];
}

/** What the details of a status say: google.rpc.ErrorInfo and google.rpc.RetryInfo. */
export interface Details {
  /** Domain of the reason; empty without an ErrorInfo. */
  domain: string;
  reason: string;
  metadata: Map<string, string>;
  /** Delay of RetryInfo. */
  retryDelayMs?: number;
}

/** Codec of google.rpc.Status, in the form that the generated stubs call. */
export const Status = {
  encode(message: Status, writer: BinaryWriter = new BinaryWriter()): BinaryWriter {
    if (message.code !== 0) writer.uint32(8).int32(message.code);
    if (message.message !== "") writer.uint32(18).string(message.message);
    for (const detail of message.details) Any.encode(detail, writer.uint32(26).fork()).join();
    return writer;
  },

  decode(input: BinaryReader | Uint8Array, length?: number): Status {
    const message: Status = { code: 0, message: "", details: [] };
    eachField(input, length, (field, type, reader) => {
      if (field === 1 && type === WireType.Varint) message.code = reader.int32();
      else if (field === 2 && type === WireType.LengthDelimited) message.message = reader.string();
      else if (field === 3 && type === WireType.LengthDelimited) {
        message.details.push(Any.decode(reader, reader.uint32()));
      } else return false;
      return true;
    });
    return message;
  },

  fromPartial({ code = 0, message = "", details = [] }: Partial<Omit<Status, "details">> & { details?: Partial<Any>[] }): Status {
    return { code, message, details: details.map((each) => Any.fromPartial(each)) };
  },
};

/** Reads the details of a status. What cannot be read is left out. */
export function readDetails(details: Any[]): Details {
  const found: Details = { domain: "", reason: "", metadata: new Map() };
  for (const { typeUrl, value } of details) {
    try {
      if (typeUrl.endsWith("/google.rpc.ErrorInfo")) readErrorInfo(value, found);
      else if (typeUrl.endsWith("/google.rpc.RetryInfo")) readRetryInfo(value, found);
    } catch {
      // A detail that does not decode says nothing; the code and the message of the status remain.
    }
  }
  return found;
}

function readErrorInfo(bytes: Uint8Array, found: Details): void {
  eachField(bytes, undefined, (field, type, reader) => {
    if (type !== WireType.LengthDelimited) return false;
    if (field === 1) found.reason = reader.string();
    else if (field === 2) found.domain = reader.string();
    else if (field === 3) readEntry(reader, reader.uint32(), found.metadata);
    else return false;
    return true;
  });
}

function readEntry(reader: BinaryReader, length: number, into: Map<string, string>): void {
  let [key, value] = ["", ""];
  eachField(reader, length, (field, type) => {
    if (type !== WireType.LengthDelimited) return false;
    if (field === 1) key = reader.string();
    else if (field === 2) value = reader.string();
    else return false;
    return true;
  });
  into.set(key, value);
}

function readRetryInfo(bytes: Uint8Array, found: Details): void {
  eachField(bytes, undefined, (field, type, reader) => {
    if (field !== 1 || type !== WireType.LengthDelimited) return false;
    const { seconds, nanos } = Duration.decode(reader, reader.uint32());
    found.retryDelayMs = Number(seconds) * 1000 + nanos / 1e6;
    return true;
  });
}

/** Calls `read` for each field; what it does not read (false) is skipped. */
function eachField(
  input: BinaryReader | Uint8Array,
  length: number | undefined,
  read: (field: number, type: WireType, reader: BinaryReader) => boolean,
): void {
  const reader = input instanceof BinaryReader ? input : new BinaryReader(input);
  const end = length === undefined ? reader.len : reader.pos + length;
  while (reader.pos < end) {
    const [field, type] = reader.tag();
    if (!read(field, type, reader)) reader.skip(type, field);
  }
}
