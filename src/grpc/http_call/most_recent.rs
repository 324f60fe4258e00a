//! Reads of the most recent state: the upstream confirms that the state is as recent as the request. One request to the upstream is
//! for all callers that wait, and there are at most ten in a second.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use crate::{
    grpc::resource::{Confirmed, ServedResource},
    model::{AppliedVersion, ResourceVersion},
};

/// Shortest time between two requests to the upstream.
const INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for a confirmation by the upstream, above that of a short watch.
const MAX_CONFIRMATION: Duration = Duration::from_secs(8);

/// Returns the version that the present state needs to be as recent as this call.
pub(super) async fn of(resource: &ServedResource, wait: Duration) -> Result<Option<ResourceVersion>, String> {
    let asked = Instant::now();
    let wait = wait.min(MAX_CONFIRMATION);
    let late = || format!("the upstream has not confirmed its version within {wait:?}");
    let Some(request) = resource.kubernetes.as_ref().and_then(|api| api.most_recent.as_ref()) else {
        // The source reports the version that the upstream has reached, once a caller waits for it.
        return if resource.informer.catch_up(wait).await { Ok(None) } else { Err(late()) };
    };
    let snapshot = timeout(wait, resource.informer.wait_for(0, |_| true)).await.map_err(|_| late())?;
    let confirm = async {
        let mut last = request.last.lock().await;
        match &*last {
            Some(Confirmed { requested, version }) if *requested >= asked => return version.clone(),
            Some(Confirmed { requested, .. }) => sleep_until(*requested + INTERVAL).await,
            None => {}
        }
        let requested = Instant::now();
        let state = resource.informer.snapshot().unwrap_or(snapshot);
        let mut at = AppliedVersion::closed(state.safe_version().clone());
        at.advance(state.version(), false);
        let version = (request.request)(at).await;
        *last = Some(Confirmed { requested, version: version.clone() });
        version
    };
    timeout(wait, confirm).await.unwrap_or_else(|_| Err(late())).map(Some)
}
