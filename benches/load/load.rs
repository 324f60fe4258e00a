//! Load generator: a publisher, a load client as cheap as possible, and the cost of the server between them.
//!
//! ```text
//!                publisher ──▶ source ──▶ the server ──▶ load client ──▶ counts, latencies
//!               (one thread)            (its own process)  (one thread)
//!                                             └── /proc: processor time, memory
//! ```
//!
//! - It has its own HTTP/2 client: a complete client would add too much cost of its own. From the library it uses the messages
//!   and the shared parts of a command line.
//! - Every run checks its counts: a run with an event too many or too few for any watcher is an error, not a figure.
//! - Runs of the subjects alternate, so that other load on the machine affects all of them.
//! - Processor time is user and system time of the whole server process. On loopback it includes the receiving side of every
//!   write. A socket that is always full moves cost from the server to the client: compare the sum of both.
//!
//! Part of three programs: the benches `load` and `wire`, and the integration tests, which run it at a small scale and have its
//! unit tests. The baselines are not part of it: `main.rs` serves them.

mod client;
mod command;
mod compressed;
mod deliveries;
mod error;
mod fan_out;
mod flags;
mod frames;
mod idle;
mod messages;
mod mode;
mod print;
mod process;
mod publisher;
mod report;
mod run;
mod sink;
mod stats;
mod stopped;
mod storm;
mod subject;
mod template;
mod views;
mod witness;

pub(super) use self::command::execute;
