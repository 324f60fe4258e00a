//! `DisconnectWatchers`: operators end watches.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{WatchAccess, Watchers, watcher::Watcher};
use crate::{
    auth::{Identity, Operation},
    grpc::{call::Call, resource::ServedResource, service::Service, status::ApiError, watch_end::WatchEnd},
    proto::pb,
};

/// Most watches of one call.
const MAX_IDS: usize = 1_000;
/// Time in which a client reads the end of its watch, before the stream is reset.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// Ends the watches that are open, and whose resources the caller may disconnect watches of.
pub(in crate::grpc) async fn disconnect(
    service: &Service,
    request: &pb::DisconnectWatchersRequest,
    call: &Call,
) -> Result<pb::DisconnectWatchersResponse, ApiError> {
    if request.ids.len() > MAX_IDS {
        return Err(ApiError::Invalid {
            reason: "REQUEST_INVALID",
            field: "ids",
            message: format!("{} watches in one call; at most {MAX_IDS}", request.ids.len()),
        });
    }
    let is_local = call.peer.is_some_and(|peer| peer.is_local());
    if !service.authorizes() && !is_local {
        let message =
            "where callers are not authorized, only those on the machine of the server may end watches of others";
        return Err(ApiError::AccessDenied { message: message.to_owned() });
    }
    let permitted = service.inspected(call, Operation::Disconnect, "").await?;
    if let Some(audited) = &call.audited {
        audited.disconnects(&request.ids);
    }
    let ended = service.watchers().end(&request.ids, &permitted);
    let ids: Vec<u64> = ended.iter().map(|(id, _)| *id).collect();
    let resources: BTreeMap<_, _> = ended.into_iter().map(|(_, resource)| (resource.name.clone(), resource)).collect();
    for resource in resources.values() {
        resource.informer.notify_watches().await;
    }
    if !ids.is_empty() {
        let user = call.identity.as_ref().map(Identity::user);
        tracing::info!(?ids, user, peer = ?call.peer, "watches disconnected");
        let (service, ids) = (service.clone(), ids.clone());
        tokio::spawn(async move {
            tokio::time::sleep(READ_WITHIN).await;
            service.watchers().reset_ended(&ids);
        });
    }
    Ok(pb::DisconnectWatchersResponse { ids })
}

// === impl Watchers ===

impl Watchers {
    /// Ends open watches of these resources, before they take another event. Returns those that were open, with their resources: the
    /// caller wakes the watches of these.
    fn end(&self, ids: &[u64], of: &BTreeSet<String>) -> Vec<(u64, Arc<ServedResource>)> {
        let open = self.open.lock();
        let found = ids.iter().filter_map(|id| Some((*id, Arc::clone(open.watchers.get(id)?)))).collect::<Vec<_>>();
        drop(open);
        let permitted = found.into_iter().filter(|(_, watcher)| of.contains(&watcher.info.resource.name));
        let ends = |(id, watcher): (u64, Arc<Watcher>)| {
            watcher.access.set(WatchAccess::Ended(ApiError::Disconnected));
            (id, Arc::clone(&watcher.info.resource))
        };
        permitted.map(ends).collect()
    }

    /// Resets the streams of disconnected watches that are still open: their clients read nothing. On a Subscribe stream others share
    /// the window.
    fn reset_ended(&self, ids: &[u64]) {
        let open = self.open.lock();
        let stuck: Vec<_> = ids.iter().filter_map(|id| open.watchers.get(id)).cloned().collect();
        drop(open);
        for watcher in stuck.iter().filter(|watcher| watcher.info.stream_id == 0) {
            let Some(stream) = &watcher.own.stream else { continue };
            watcher.end.lock().get_or_insert_with(|| Box::new(WatchEnd::from(&ApiError::Disconnected)));
            stream.reset();
        }
    }
}
