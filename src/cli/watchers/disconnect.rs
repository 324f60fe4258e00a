//! `informerd disconnect`.

use clap::Args;

use crate::cli::{
    client_flags::{ServerFlags, TimeoutFlags},
    failure::{Failure, NOT_FOUND},
    print::{or_unread, write_all},
    waiting,
};

pub(crate) const EXAMPLES: &str = "\
Examples:
  informerd disconnect 7
  informerd disconnect $(informerd watchers pods -o name)

The client of each resumes where it was, here or at another server, as after a drain. To keep a client out, take its right to watch. \
It needs the verb `disconnect`; where callers are not authorized, a connection from the server's machine.";

/// Flags of `informerd disconnect`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DisconnectFlags {
    /// Watches, by their ids in `informerd watchers`
    #[arg(value_name = "ID", required = true, num_args = 1..=1000)]
    ids: Vec<u64>,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    timeout: TimeoutFlags,
}

pub(crate) async fn disconnect(flags: &DisconnectFlags) -> Result<(), Failure> {
    waiting::limited(&flags.timeout, &flags.server, "", Box::pin(end(flags))).await
}

async fn end(flags: &DisconnectFlags) -> Result<(), Failure> {
    let ended = flags.server.connect().await?.disconnect_watchers(flags.ids.clone()).await?;
    let out: Vec<String> = ended.iter().map(|id| format!("watch {id} disconnected\n")).collect();
    or_unread(write_all(out.concat().as_bytes()))?;
    let missing: Vec<String> = flags.ids.iter().filter(|id| !ended.contains(id)).map(u64::to_string).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("watches not found: {}: they have ended, or are not yours to end", missing.join(", "));
    Err(Failure::new(NOT_FOUND, message))
}
