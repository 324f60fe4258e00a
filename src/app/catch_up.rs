//! Progress of the upstreams when the server shuts down.
//!
//! The version of a quiet resource advances only with the reports of its upstream, every few seconds. A server that has listed since
//! the last one begins its history at a later version: there, a client could not resume from the earlier one, and would list again.
//! In a rolling restart that would be every client. So the server requests such a report before it ends the watches, which have
//! the version of the report.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;

use crate::{
    cache::ProgressGuard,
    grpc::{ServedResource, Service},
};

/// Time for an upstream to respond.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Requests reports of all upstreams again and again, until the guards are dropped.
pub(super) fn demand(service: &Service) -> Vec<ProgressGuard> {
    service.resources().map(|resource| resource.informer.demand().wait()).collect()
}

/// Waits until each resource that is watched has caught up with its upstream, for a short time.
pub(super) async fn catch_up(service: &Service) {
    let loads = service.watch_loads();
    let is_watched = |resource: &&Arc<ServedResource>| loads.of(resource).watchers > 0;
    let resources: Vec<_> = service.resources().collect();
    let watched = resources.iter().filter(is_watched);
    join_all(watched.map(|resource| resource.informer.catch_up(TIMEOUT))).await;
}
