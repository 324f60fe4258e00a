//! Reason why a call takes long: a note on a terminal after a second, and a part of the error at the time limit.

use std::{
    future::pending,
    io::{IsTerminal, stderr},
    time::Duration,
};

use tokio::time::{sleep, timeout};

use super::{
    client_flags::{ServerFlags, TimeoutFlags},
    failure::{Failure, UNAVAILABLE},
    print::escape,
};
use crate::proto::pb::{self, SyncState};

/// Time limit of a response.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which a user wants to know what a command waits for.
const NOTE_AFTER: Duration = Duration::from_secs(1);
/// Time for the answer about the reason.
const REASON_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits for a call and the processing of its response, up to the timeout. After a second, a note on a terminal has the reason.
pub(super) async fn limited<T>(
    flags: &TimeoutFlags,
    server: &ServerFlags,
    resource: &str,
    call: impl Future<Output = Result<T, Failure>> + Unpin,
) -> Result<T, Failure> {
    let limit = flags.timeout.unwrap_or(DEFAULT_TIMEOUT);
    if let Ok(ended) = timeout(limit, noted(server, resource, call)).await {
        return ended;
    }
    let reason = reason(server, resource).await.map(|reason| format!(": {reason}")).unwrap_or_default();
    let message = format!("timed out after {limit:?}: no complete response (--timeout){reason}");
    Err(Failure::new(UNAVAILABLE, escape(&message)))
}

/// Waits for a call. If it takes more than a second, prints a note on a terminal.
async fn noted<T>(server: &ServerFlags, resource: &str, call: impl Future<Output = T>) -> T {
    tokio::pin!(call);
    tokio::select! {
        biased;
        done = &mut call => return done,
        note = note(server, resource) => server.note(&note),
    }
    call.await
}

/// Returns the note for a command that is still waiting after a second; never, unless a user sees it on a terminal.
pub(super) async fn note(server: &ServerFlags, resource: &str) -> String {
    if server.quiet || !stderr().is_terminal() {
        return pending().await;
    }
    sleep(NOTE_AFTER).await;
    let reason = reason(server, resource).await;
    format!("# waiting: {}", reason.unwrap_or_else(|| "the server has not answered yet".to_owned()))
}

/// Returns the reason why there is no answer about a resource (empty: about any), if the server reports one.
async fn reason(server: &ServerFlags, resource: &str) -> Option<String> {
    let resources = async { server.connect().await.ok()?.resources().await.ok() };
    let resources = timeout(REASON_TIMEOUT, resources).await.ok().flatten()?;
    resources.iter().filter(|known| resource.is_empty() || known.name == resource).find_map(unsynced)
}

fn unsynced(resource: &pb::Resource) -> Option<String> {
    let pb::Resource { name, last_error, .. } = resource;
    let error = if last_error.is_empty() { String::new() } else { format!(": {last_error}") };
    (resource.state() == SyncState::Syncing).then(|| format!("{name} has not synced yet{error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_upstreams_error() {
        let resource = |state: SyncState, last_error: &str| pb::Resource {
            name: "pods".to_owned(),
            state: state.into(),
            last_error: last_error.to_owned(),
            ..pb::Resource::default()
        };
        let expected = "pods has not synced yet: list: refused";
        assert_eq!(unsynced(&resource(SyncState::Syncing, "list: refused")).as_deref(), Some(expected));
        assert_eq!(unsynced(&resource(SyncState::Syncing, "")).as_deref(), Some("pods has not synced yet"));
        assert_eq!(unsynced(&resource(SyncState::Stale, "watch: broken")), None, "it has a state");
    }
}
