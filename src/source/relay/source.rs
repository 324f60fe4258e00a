//! The source as the Reflector and the snapshot file use it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    RelayClients, RelayConfig,
    live::RelayWatch,
    resume_check::{ResumePoint, SavedResumePoint},
    state::{Position, RelayShared, State},
    upstream,
};
use crate::{
    cache::{
        List, ListVersion, ListerWatcher, ProgressDemand, Provenance, RewriteEvidence, SourceError, SourceHealth,
        WarmStart, Watch,
    },
    client::Query,
    model::{ResourceVersion, Shard},
};

/// A resource of another informerd as an upstream.
#[derive(Debug)]
pub struct RelaySource {
    shared: Arc<RelayShared>,
}

/// Position as the snapshot of the resource stores it for the next run.
#[derive(Serialize, Deserialize)]
struct SavedPosition {
    version: String,
    history: String,
    #[serde(default)]
    #[serde(rename = "mark")]
    resume_point: Option<SavedResumePoint>,
    #[serde(default)]
    has_sent_ahead: bool,
    /// Namespaces to which the upstream limits this relay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespaces: Option<Vec<String>>,
    /// Paths of the view of the upstream's configuration, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    view: Option<String>,
}

// === impl RelaySource ===

impl RelaySource {
    /// Returns a source that has not connected yet. It reports the sync state of the upstream's own source to `health`.
    pub fn new(config: RelayConfig, health: SourceHealth) -> Self {
        Self::with_clients(config, health, &RelayClients::default())
    }

    /// Returns a source that shares the connection to its upstream with others. The connection belongs to the current runtime.
    pub fn with_clients(config: RelayConfig, health: SourceHealth, clients: &RelayClients) -> Self {
        Self { shared: Arc::new(RelayShared::new(config, health, clients)) }
    }

    /// Checks that the files that a configuration names can be read now. Makes no connection.
    ///
    /// # Errors
    ///
    /// The problem, in one line.
    pub fn check(config: &RelayConfig) -> Result<(), String> {
        upstream::secured(config).map(drop)
    }

    /// Connects, and reads the state of the resource, without its objects.
    ///
    /// # Errors
    ///
    /// If the server does not respond, or has no such resource or view.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn probe(&self) -> Result<(), SourceError> {
        let upstream = &self.shared.upstream;
        let resource = upstream.check_path().await?;
        upstream.named_view(&resource).map(drop)
    }
}

impl ListerWatcher for RelaySource {
    /// Lists the upstream's state, which is never older than the position. Inside an open version, the upstream has to have
    /// reached that version; the list is at the version before it, and the upstream's changes at the open one follow.
    async fn list(&self, at: ListVersion) -> Result<List, SourceError> {
        self.shared.list(at).await.map_err(|error| self.shared.failed(error))
    }

    async fn watch(&self, from: ResourceVersion) -> Result<Watch, SourceError> {
        let shared = &self.shared;
        let listed = shared.state.lock().listed.take();
        let position = shared.position(&from);
        let live = match listed.zip(position) {
            Some((messages, position)) => RelayWatch::new(Arc::clone(shared), messages, position),
            None => RelayWatch::resume(Arc::clone(shared), from).await.map_err(|error| shared.failed(error))?,
        };
        Ok(Box::pin(futures_util::stream::try_unfold(live, |mut live| async move {
            match live.next().await {
                Ok(delta) => Ok(Some((delta, live))),
                Err(error) => Err(live.fail(error)),
            }
        })))
    }

    fn heartbeat(&self) -> Duration {
        self.shared.config.heartbeat
    }

    fn rewrite_evidence(&self) -> RewriteEvidence {
        // Another replica may have other bytes for the same version of an object, and thus select it or not.
        let Query { field_selector, expression, index, shard, .. } = &self.shared.config.query;
        let is_by_body = !field_selector.is_empty()
            || !expression.is_empty()
            || index.is_some()
            || shard.as_ref().is_some_and(Shard::reads_body);
        if is_by_body { RewriteEvidence::Held } else { RewriteEvidence::Listed }
    }

    fn demand(&self) -> ProgressDemand {
        self.shared.demand.clone()
    }

    fn provenance(&self) -> Provenance {
        self.shared.upstream.provenance().clone()
    }

    fn warm_start(&self) -> Option<&dyn WarmStart> {
        Some(self)
    }
}

impl WarmStart for RelaySource {
    fn identity(&self) -> String {
        let RelayConfig { endpoint, query, .. } = &self.shared.config;
        let Query { resource, namespace, name, label_selector, field_selector, expression, index, shard, format, view } =
            query;
        let is_whole = *query == Query { format: *format, view: view.clone(), ..Query::of(resource) };
        let selection = (namespace, name, label_selector, field_selector, expression, index);
        let selection = if is_whole { String::new() } else { format!(" by {selection:?}") };
        // As it was before there were shards, for a snapshot of that time.
        let shard = shard.as_ref().map(|shard| format!(" in {shard}")).unwrap_or_default();
        let view = view.as_ref().map(|view| format!(" in {view:?}")).unwrap_or_default();
        format!("{resource:?} of informerd at {}{selection}{shard}{view}", endpoint.uri())
    }

    fn proof(&self) -> Option<Bytes> {
        let (position, has_sent_ahead, view) = {
            let state = self.shared.state.lock();
            (state.position.clone()?, state.has_sent_ahead, state.view.clone())
        };
        let Position { version, history, resume_point, namespaces } = position;
        let resume_point = resume_point.as_ref().map(ResumePoint::keep);
        let kept = SavedPosition {
            version: version.to_string(),
            history: history.to_string(),
            resume_point,
            has_sent_ahead,
            namespaces: namespaces.map(|namespaces| namespaces.to_vec()),
            view,
        };
        serde_json::to_vec(&kept).ok().map(Bytes::from)
    }

    fn resume(&self, at: &ResourceVersion, proof: &[u8]) -> Result<(), String> {
        let kept: SavedPosition =
            serde_json::from_slice(proof).map_err(|error| format!("invalid resume proof: {error}"))?;
        if kept.version != at.to_string() {
            return Err(format!("resume proof of version {} for a snapshot at {at}", kept.version));
        }
        let resume_point = kept.resume_point.and_then(ResumePoint::resume);
        let (history, namespaces) = (kept.history.into(), kept.namespaces.map(Into::into));
        let position = Position { version: at.clone(), history, resume_point, namespaces };
        let (has_sent_ahead, may_hide_ahead) = (kept.has_sent_ahead, kept.has_sent_ahead);
        *self.shared.state.lock() =
            State { position: Some(position), has_sent_ahead, may_hide_ahead, view: kept.view, ..State::default() };
        Ok(())
    }
}
