//! Client that records every event, and the end of its stream.

use std::{sync::Arc, time::Duration};

use informerd::proto::pb::{self, informer_service_client::InformerServiceClient};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tonic::{Code, Status, transport::Channel};

use crate::{DEADLINE, selection::Selection};

/// Record of one stream.
#[derive(Debug, Default, Clone)]
pub(crate) struct Followed {
    pub(crate) selection: Selection,
    /// Version at which the initial events ended.
    pub(crate) synced_at: i64,
    /// True if the source leaves the version of a deletion open: the initial events may then have a part of the version after
    /// `synced_at`, and the server may repeat what they lack because of it.
    pub(crate) may_begin_open: bool,
    pub(crate) told: Vec<ReceivedEvent>,
    /// Holes, where events were dropped.
    pub(crate) holes: Vec<Hole>,
    /// Relists of the upstream, each from one version to another, as the server reports them to watches of everything.
    pub(crate) relists: Vec<(i64, i64)>,
    /// True if a bookmark has reported the last relist, which the next event reports once more.
    pub(crate) is_relist_told: bool,
    /// Version up to which nothing is missing.
    pub(crate) reached: i64,
    pub(crate) ended: Option<(Code, String)>,
}

/// One event.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedEvent {
    pub(crate) event_type: pb::EventType,
    pub(crate) cause: pb::Cause,
    pub(crate) key: String,
    /// Value of the body; none where the client requested no bodies.
    pub(crate) value: Option<String>,
    /// Version of the change.
    pub(crate) version: i64,
    /// Version to resume from; 0 during the initial events.
    pub(crate) resume: i64,
    /// Number of further events that it stands for.
    pub(crate) coalesced: u32,
}

/// DROPPED event.
#[derive(Debug, Clone)]
pub(crate) struct Hole {
    /// Number of events before it.
    pub(crate) at: usize,
    pub(crate) count: u64,
    pub(crate) after: i64,
}

/// Task that follows a stream.
pub(crate) struct Follower {
    followed: Arc<Mutex<Followed>>,
    task: JoinHandle<()>,
}

/// Longest pause of a Reflector after an outage: up to a minute (`BackoffConfig`), and once more if the missed events are
/// compacted.
const PAUSES: Duration = Duration::from_secs(2 * 60);

// === impl Follower ===

impl Follower {
    /// Follows one namespace, or all.
    pub(crate) async fn start(client: InformerServiceClient<Channel>, namespace: &str) -> Self {
        Self::of(client, Selection::namespace(namespace)).await
    }

    /// Follows a selection.
    pub(crate) async fn of(mut client: InformerServiceClient<Channel>, selection: Selection) -> Self {
        let mut request = selection.request.clone();
        request.set_initial_events(pb::InitialEvents::Send);
        let mut stream = client.watch(request).await.unwrap().into_inner();
        let pace = selection.pace;
        let followed = Arc::new(Mutex::new(Followed { selection, ..Followed::default() }));
        let notes = Arc::clone(&followed);
        let task = tokio::spawn(async move {
            loop {
                if !pace.is_zero() {
                    tokio::time::sleep(pace).await;
                }
                match stream.message().await {
                    Ok(Some(message)) => notes.lock().take(message),
                    Ok(None) => return notes.lock().end(&Status::ok("")),
                    Err(status) => return notes.lock().end(&status),
                }
            }
        });
        let this = Self { followed, task };
        this.until("it is synced", |followed| followed.synced_at > 0).await;
        this
    }

    /// Returns its record so far.
    pub(crate) fn followed(&self) -> Followed {
        self.followed.lock().clone()
    }

    /// Waits until it has everything up to a revision; it must not end before.
    pub(crate) async fn reach(&self, revision: i64) -> Followed {
        self.until(&format!("it has reached {revision}"), |followed| {
            assert_eq!(followed.ended, None, "no client is ended");
            followed.reached >= revision
        })
        .await
    }

    /// Waits for its end.
    pub(crate) async fn end(&self) -> (Code, String) {
        self.until("it ends", |followed| followed.ended.is_some()).await.ended.unwrap()
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Followed) -> bool) -> Followed {
        let said = async {
            while !is_so(&self.followed.lock()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(DEADLINE + PAUSES, said).await.is_err() {
            let followed = self.followed();
            panic!("not in time: {what}; it is at {}, with {} events", followed.reached, followed.told.len());
        }
        self.followed()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl Followed ===

impl Followed {
    pub(crate) fn take(&mut self, message: pb::WatchResponse) {
        let (event_type, cause) = (message.r#type(), message.cause());
        let resume = message.resource_version.parse().unwrap_or(0);
        let is_event = message.object.is_some();
        if message.relisted && resume > self.reached && self.synced_at > 0 && !(is_event && self.is_relist_told) {
            self.relists.push((self.reached, resume));
        }
        self.is_relist_told = !is_event && (self.is_relist_told || message.relisted);
        self.reached = self.reached.max(resume);
        if let Some(pb::Dropped { count, after_resource_version }) = message.dropped {
            self.holes.push(Hole { at: self.told.len(), count, after: after_resource_version.parse().unwrap() });
        }
        if let Some(bookmark) = message.bookmark
            && bookmark.initial_events_end
        {
            self.synced_at = resume;
        }
        let Some(object) = message.object else { return };
        let value = match &object.body {
            Some(pb::object::Body::Raw(value)) => Some(String::from_utf8(value.to_vec()).unwrap()),
            None if self.selection.request.format() == pb::PayloadFormat::Metadata => None,
            _ => panic!("a body of bytes: {object:?}"),
        };
        self.told.push(ReceivedEvent {
            event_type,
            cause,
            key: format!("{}/{}", object.namespace, object.name),
            value,
            version: object.resource_version.parse().unwrap(),
            resume,
            coalesced: message.coalesced,
        });
    }

    fn end(&mut self, status: &Status) {
        use tonic_types::StatusExt;
        let reason = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
        self.ended = Some((status.code(), reason));
    }
}
