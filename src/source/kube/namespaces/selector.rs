//! Namespaces selected by a label selector: a list, and a watch that shows when it is out of date.
//!
//! Namespaces are followed as any other resource, of which only the names matter. A namespace that is added or removed causes a
//! list of all namespaces, so that the resource is at one version again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    super::{KubeConfig, client::Client, known::KnownState, list, resume_check::ResumePoint, shared::KubeShared},
    member::{Member, NamespaceWatch, SavedMember, not_decimal},
};
use crate::{
    cache::{Delta, ListVersion, SourceError},
    model::{Event, ResourceVersion},
};

/// The selected namespaces.
#[derive(Debug, Clone)]
pub(super) struct Selector {
    member: Member,
    /// True from a change of the selected namespaces, or their list, until the list of their objects: the position is past the change,
    /// so nothing else shows it.
    is_outdated: Arc<AtomicBool>,
}

/// Bound of the selected namespaces, each of which has its own watch.
pub(super) const MAX_NAMESPACES: usize = 100;

/// Delay after a change of the selected namespaces, in which more may follow.
const SETTLING: Duration = Duration::from_secs(1);
const FAR: Duration = Duration::from_secs(3600);

// === impl Selector ===

impl Selector {
    /// Returns the selector of a resource.
    pub(super) fn new(whole: &KubeShared, client: Arc<Client>) -> Self {
        let KubeConfig { resource, namespace_selector, cluster, .. } = &whole.config;
        let config = KubeConfig {
            label_selector: namespace_selector.clone(),
            cluster: cluster.clone(),
            is_metadata_only: true,
            answer_timeout: whole.config.answer_timeout,
            contact_timeout: whole.config.contact_timeout,
            watch_timeout: whole.config.watch_timeout,
            ..KubeConfig::new(resource, "", "v1", "namespaces")
        };
        let shared = KubeShared::new(config, client, whole.health.clone());
        Self { member: Member { namespace: String::new(), shared: Arc::new(shared) }, is_outdated: Arc::default() }
    }

    /// Lists the selected namespaces: their names, and the version of the list.
    pub(super) async fn list(&self) -> Result<(Vec<String>, String), SourceError> {
        let shared = &self.member.shared;
        let reading = list::read(shared, &ListVersion::MostRecent).await?;
        shared.check_kind(&reading).await?;
        let version = ResourceVersion::parse_decimal(&reading.version).map_err(|_| not_decimal())?;
        let names: Vec<String> = reading.objects.iter().map(|object| object.key().name().to_owned()).collect();
        if names.len() > MAX_NAMESPACES {
            let (count, selector) = (names.len(), &shared.config.label_selector);
            let text = format!(
                "namespace selector {selector:?} selects {count} namespaces (limit: {MAX_NAMESPACES}); select fewer, or \
                 watch all namespaces"
            );
            return Err(SourceError::Unavailable(text));
        }
        self.is_outdated.store(true, Ordering::Relaxed);
        shared.known.lock().note_list(&version, ResumePoint::of_list(&reading.objects));
        Ok((names, reading.version))
    }

    /// Records the cluster of the list, unless one is known already.
    pub(super) fn check_cluster(&self, uid: &str) {
        let mut known = self.member.shared.known.lock();
        if known.cluster().is_none() {
            // Without a known cluster there is no difference to report.
            drop(known.check_cluster(uid));
        }
    }

    /// Returns true if the selected namespaces may be others than those whose objects were listed last.
    pub(super) fn is_outdated(&self) -> bool {
        self.is_outdated.load(Ordering::Relaxed)
    }

    /// Records that the objects of the selected namespaces were listed.
    pub(super) fn note_followed(&self) {
        self.is_outdated.store(false, Ordering::Relaxed);
    }

    /// Opens the watch.
    pub(super) async fn follow(&self) -> Result<NamespaceWatch, SourceError> {
        self.member.clone().follow(&ResourceVersion::decimal(u128::MAX)).await
    }

    /// Returns the state of the watch.
    pub(super) fn shared(&self) -> &Arc<KubeShared> {
        &self.member.shared
    }

    pub(super) fn keep(&self) -> Option<SavedMember> {
        self.member.keep()
    }

    pub(super) fn resume(
        &self,
        cluster: Option<String>,
        version: ResourceVersion,
        is_open: bool,
        resume_point: Option<ResumePoint>,
    ) {
        *self.member.shared.known.lock() = KnownState::resume(cluster, version, is_open, resume_point);
    }

    /// Waits until the selected namespaces differ from these for a moment, in which more changes may follow.
    pub(super) async fn changed(self, mut followed: NamespaceWatch, names: Vec<String>) -> SourceError {
        let mut until: Option<Instant> = None;
        loop {
            let deadline = until.unwrap_or_else(|| Instant::now() + FAR);
            let received = tokio::select! {
                // Cancel-safe: dropping it loses nothing of a watch.
                received = followed.next() => received,
                () = tokio::time::sleep_until(deadline), if until.is_some() => return expired(),
            };
            let delta = match received {
                Ok(delta) => delta,
                Err(error) => return error,
            };
            let Delta::Changes { events, .. } = delta else { continue };
            let is_known = |name: &str| names.iter().any(|known| known == name);
            let is_news = |event: &Event| match event {
                Event::Added(namespace) | Event::Modified(namespace) | Event::NotServed(namespace) => {
                    !is_known(namespace.key().name())
                }
                Event::Deleted(namespace) | Event::Removed(namespace, _) => is_known(namespace.key().name()),
                Event::Bookmark(_) => false,
            };
            if events.iter().any(is_news) {
                self.is_outdated.store(true, Ordering::Relaxed);
                until.get_or_insert_with(|| Instant::now() + SETTLING);
            }
        }
    }
}

/// Returns the error of a watch of other namespaces than the selected ones.
pub(super) fn expired() -> SourceError {
    SourceError::Expired("selected namespaces changed".to_owned())
}
