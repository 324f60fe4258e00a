//! Namespaces of the configuration that do not exist: the API lists nothing in them, and says nothing of it.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};

use super::super::reading::Shared;
use crate::cache::{Problem, ProblemReason};

/// Requests for different namespaces at a time.
pub(super) const CONCURRENCY: usize = 8;
/// How often all are checked, and while one does not exist.
const INTERVAL: Duration = Duration::from_secs(300);
const INTERVAL_WHILE_MISSING: Duration = Duration::from_secs(20);

/// Reports those of these namespaces that do not exist, and returns how many that are. What the API does not tell is no
/// problem. The others of the configuration exist.
pub(in crate::source::kube) async fn check(shared: &Shared, names: &[String]) -> usize {
    let found = stream::iter(names.iter().cloned())
        .map(|name| async move {
            let exists = shared.api.exists(&format!("/api/v1/namespaces/{name}")).await;
            (exists == Some(false)).then(|| {
                let message = format!("namespace {name:?} not found: create it, or remove it from the configuration");
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

/// Checks all of them again and again.
pub(in crate::source::kube) async fn keep_checking(shared: Arc<Shared>, names: Vec<String>) {
    let is_missing = |problem: &Problem| problem.reason == ProblemReason::NamespaceNotFound;
    let mut is_any_missing = shared.health.problems().iter().any(is_missing);
    while !names.is_empty() {
        tokio::time::sleep(if is_any_missing { INTERVAL_WHILE_MISSING } else { INTERVAL }).await;
        is_any_missing = check(&shared, &names).await > 0;
    }
    std::future::pending::<()>().await;
}
