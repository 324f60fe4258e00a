//! Configured namespaces that do not exist: the API returns an empty list for them, and no error.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};

use super::super::shared::KubeShared;
use crate::cache::{Problem, ProblemReason};

/// Number of concurrent requests for different namespaces.
pub(super) const CONCURRENCY: usize = 8;
/// Intervals of the checks of all namespaces: in general, and while one does not exist.
const INTERVAL: Duration = Duration::from_secs(300);
const INTERVAL_WHILE_MISSING: Duration = Duration::from_secs(20);

/// Reports the namespaces among these that do not exist, and returns their number. An inconclusive answer is no problem. The
/// other configured namespaces are known to exist.
pub(in crate::source::kube) async fn check(shared: &KubeShared, names: &[String]) -> usize {
    let found = stream::iter(names.iter().cloned())
        .map(|name| async move {
            let exists = shared.api.exists(&format!("/api/v1/namespaces/{name}")).await;
            (exists == Some(false)).then(|| {
                let message = format!("namespaces {name:?} not found; create it, or remove it from the configuration");
                Problem::new(ProblemReason::NamespaceNotFound, name, message)
            })
        })
        .buffered(CONCURRENCY)
        .filter_map(std::future::ready)
        .collect::<Vec<_>>()
        .await;
    let missing = found.len();
    shared.problems.replace(&[ProblemReason::NamespaceNotFound], found);
    missing
}

/// Checks all of them periodically.
pub(in crate::source::kube) async fn keep_checking(shared: Arc<KubeShared>, names: Vec<String>) {
    let is_missing = |problem: &Problem| problem.reason == ProblemReason::NamespaceNotFound;
    let mut is_any_missing = shared.health.problems().iter().any(is_missing);
    while !names.is_empty() {
        tokio::time::sleep(if is_any_missing { INTERVAL_WHILE_MISSING } else { INTERVAL }).await;
        is_any_missing = check(&shared, &names).await > 0;
    }
    std::future::pending::<()>().await;
}
