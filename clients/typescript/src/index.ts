export {
  type CallOptions,
  Client,
  type IndexValue,
  type ObjectList,
  type ObjectResult,
  type PageOptions,
  type ReadOptions,
  type Resource,
  type Resources,
  type SourceState,
} from "./client.js";
export type { ConnectionOptions } from "./connection.js";
export { type Code, ContractError, HandlerError, InformerdError, LagError } from "./core/errors.js";
export type { BodyParser, InformerObject } from "./core/object.js";
export type { Change, DeletionCause, Indexer } from "./core/store.js";
export type { Freshness, State } from "./core/watch.js";
export { Informer, type InformerOptions } from "./informer.js";
export type { Handler, InformerEvent, InformerEvents } from "./notifications.js";
export { type Format, type Policy, type Selection, type Shard, shardOf, type View } from "./selection.js";
export type { Condition, UntilEvent } from "./until.js";
export type { WaitOptions } from "./waiters.js";
