//! Deltas for the cache of an informer, from the messages of successive streams.
//!
//! - The initial events are collected apart, and replace the state at their end.
//! - A batch is open while the version does not advance, or is lower than the object's own: its events wait, and are applied in one
//!   step with the message that advances it. An event that the server marks `open` is applied at once, unless others wait.
//! - A stream that breaks off discards what waits: the resume repeats it.

use std::{future::poll_fn, sync::Arc};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::freshness::Connection;
use crate::{
    cache::{Delta, List, RealFifo, UnreadableItem},
    client::{
        OpenBatch, Progress,
        follower::{Followed, FollowedEvent, News},
        streams::{Step, Streams},
    },
    model::{Event, Object, ObjectKey, ResourceVersion},
    proto::{self, pb},
};

/// Deltas of the streams of one watch.
#[derive(Debug, Default)]
struct Deltas {
    /// Version up to which everything is in deltas; none before the first list.
    version: Option<ResourceVersion>,
    /// Namespaces of the last bookmark of the stream; none before it.
    namespaces: Option<Vec<String>>,
    /// Initial events, while the stream is in them.
    listed: Option<(Vec<Arc<Object>>, Vec<UnreadableItem>)>,
    batch: OpenBatch,
    /// Deltas that the last message completes.
    ready: Vec<Delta>,
}

/// Feeds the queue of a cache until the watch fails for good.
pub(super) async fn feed(mut streams: Streams, connection: Arc<Connection>, fifo: Arc<RealFifo>) {
    let mut deltas = Deltas::default();
    while let Some(step) = poll_fn(|cx| streams.poll_next(cx)).await {
        match step {
            Step::Opened => {
                deltas.begin(streams.follower().is_listing);
                connection.set_open(true);
            }
            Step::Message(followed) => {
                connection.received();
                if let News::Dropped { count, after, .. } = &followed.news {
                    tracing::info!(count, after, "dropped events are requested again");
                    // The server has just answered, and a stream that fills the hole follows.
                    connection.set_open(true);
                }
                let progress = deltas.take(*followed, streams.follower().position.as_deref());
                for delta in deltas.ready.drain(..) {
                    fifo.push(delta).await;
                }
                if let Some((progress, is_current)) = progress {
                    if deltas.listed.is_none() {
                        applied(&fifo).await;
                    }
                    connection.bookmark(&progress, is_current);
                }
            }
            Step::Interrupted { error, lists, delay } => {
                connection.set_open(false);
                tracing::info!(%error, ?delay, lists, "watch of an informer interrupted");
            }
            Step::Failed(error) => connection.fail(error),
        }
    }
}

/// Waits until readers see everything that was queued.
async fn applied(fifo: &RealFifo) {
    let (reply, replied) = oneshot::channel();
    fifo.push(Delta::Checkpoint { proof: Bytes::new(), reply }).await;
    // An error is the end of the informer.
    drop(replied.await);
}

// === impl Deltas ===

impl Deltas {
    /// Begins a stream that resumes, or lists.
    fn begin(&mut self, is_listing: bool) {
        self.batch.discard();
        self.namespaces = None;
        self.listed = is_listing.then(Default::default);
    }

    /// Takes one message of the stream, which leads to a position. Returns the content of a bookmark, and true if nothing is missing
    /// up to it.
    fn take(
        &mut self,
        Followed { news, before, is_last }: Followed,
        position: Option<&str>,
    ) -> Option<(Progress, bool)> {
        let is_listed = self.listed.is_some();
        if let Some(version) = position.filter(|_| !is_listed || matches!(news, News::Synced(_))) {
            self.version = version.parse().ok();
        }
        let has_advanced = before.is_some();
        match news {
            News::Event(event) => self.event(event, has_advanced),
            News::Listing(progress) => return Some((progress, false)),
            News::Synced(progress) | News::Bookmark(progress) => {
                // Objects leave and enter with the caller's namespaces at the version that the stream has already.
                let is_moved = self.namespaces.as_ref().is_some_and(|namespaces| *namespaces != progress.namespaces);
                if let Some((objects, unreadable)) = self.listed.take() {
                    let list = |version| Delta::Replace(List { unreadable, ..List::new(objects, version) });
                    self.ready.extend(self.version.clone().map(list));
                } else if has_advanced || is_moved {
                    self.complete();
                }
                self.namespaces = Some(progress.namespaces.clone());
                return Some((progress, !is_last));
            }
            News::Dropped { .. } if has_advanced => self.complete(),
            News::Dropped { .. } => {}
        }
        None
    }

    fn event(&mut self, event: FollowedEvent, has_advanced: bool) {
        let (is_in_batch, is_open) = (event.is_in_batch(), event.is_open);
        let FollowedEvent { event_type, cause, mut object, .. } = event;
        if event_type == pb::EventType::Deleted {
            // The cache has the last state.
            object.body = None;
        }
        let unreadable =
            UnreadableItem { key: ObjectKey::new(&object.namespace, &object.name).ok(), uid: object.uid.clone() };
        let object = proto::model_object(object).map(Arc::new);
        let object = object.inspect_err(|error| tracing::error!(key = ?unreadable.key, error, "object left out")).ok();
        if let Some((objects, items)) = &mut self.listed {
            items.extend(object.is_none().then_some(unreadable));
            objects.extend(object);
            return;
        }
        let event = object.map(|object| match (event_type, proto::deletion_cause(cause)) {
            (pb::EventType::Deleted, cause) => Event::Removed(object, cause),
            (pb::EventType::Added, _) => Event::Added(object),
            _ => Event::Modified(object),
        });
        let is_alone = self.batch.is_empty();
        // The batch of another version that waits is complete, and this event belongs to one that is open: a selection does not see
        // every version, and the version before a batch may be new to it.
        if has_advanced && (is_in_batch || (is_open && is_alone)) {
            self.complete();
        }
        if is_open && is_alone {
            let delta = self.version.as_ref().zip(event).map(|(version, event)| {
                let events = self.batch.send(version, event);
                Delta::Changes { events, closes: false }
            });
            self.ready.extend(delta);
            return;
        }
        if let Some(event) = event {
            self.batch.push(event);
        }
        if has_advanced && !is_in_batch {
            self.complete();
        }
    }

    /// Ends the batch that waits, if there is one, at the present version.
    fn complete(&mut self) {
        let Some(version) = &self.version else { return };
        self.ready.push(Delta::transaction(self.batch.complete(version)));
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;
    use crate::{
        cache::{HandlerOptions, SharedInformer, WatchItem},
        client::follower::Follower,
        model::{Cause, EventType, Selection},
    };

    /// Informer without I/O.
    struct Following {
        follower: Follower,
        deltas: Deltas,
        fifo: Arc<RealFifo>,
        shared: SharedInformer<Object>,
    }

    impl Following {
        fn new() -> Self {
            let mut queue = None;
            let shared = SharedInformer::start_fed(Arc::default(), |fifo| {
                queue = Some(fifo);
                std::future::pending()
            });
            let follower = Follower::new(true, None);
            let mut following = Self { follower, deltas: Deltas::default(), fifo: queue.unwrap(), shared };
            following.begin();
            following
        }

        fn begin(&mut self) {
            self.follower.begin();
            self.deltas.begin(self.follower.is_listing);
        }

        /// Takes a message. Returns true for a bookmark that shows that nothing is missing.
        fn take(&mut self, message: pb::WatchResponse) -> Option<bool> {
            let followed = self.follower.follow(message).unwrap();
            self.deltas.take(followed, self.follower.position.as_deref()).map(|(_, is_current)| is_current)
        }

        /// Applies a message; returns the state that readers see: its version, and the objects with theirs.
        async fn shown(&mut self, message: pb::WatchResponse) -> String {
            self.take(message);
            for delta in self.deltas.ready.drain(..) {
                self.fifo.push(delta).await;
            }
            applied(&self.fifo).await;
            let snapshot = self.shared.snapshot();
            let objects: Vec<_> =
                snapshot.list().iter().map(|object| format!(" {}@{}", object.key().name(), object.version())).collect();
            let version = snapshot.safe_version().map(ToString::to_string).unwrap_or_default();
            format!("{version}:{}", objects.concat())
        }
    }

    fn message(r#type: pb::EventType, version: &str) -> pb::WatchResponse {
        pb::WatchResponse { r#type: r#type.into(), resource_version: version.to_owned(), ..Default::default() }
    }

    fn event(r#type: pb::EventType, name: &str, own: &str, version: &str) -> pb::WatchResponse {
        let object = pb::Object {
            name: name.to_owned(),
            resource_version: own.to_owned(),
            uid: "u".to_owned(),
            media_type: "application/json".to_owned(),
            ..Default::default()
        };
        pb::WatchResponse { object: Some(object), ..message(r#type, version) }
    }

    fn put(name: &str, own: &str, version: &str) -> pb::WatchResponse {
        event(pb::EventType::Modified, name, own, version)
    }

    fn bookmark(version: &str, initial_events_end: bool, namespaces: &[&str]) -> pb::WatchResponse {
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        let bookmark = pb::Bookmark { initial_events_end, namespaces, ..Default::default() };
        pb::WatchResponse { bookmark: Some(bookmark), ..message(pb::EventType::Bookmark, version) }
    }

    fn dropped(after: &str) -> pb::WatchResponse {
        let dropped = pb::Dropped { count: 1, after_resource_version: after.to_owned() };
        pb::WatchResponse { dropped: Some(dropped), ..message(pb::EventType::Dropped, "99") }
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_and_a_batch_are_shown_whole() {
        let mut informer = Following::new();
        assert_eq!(informer.shown(put("a", "3", "")).await, ":");
        assert_eq!(informer.shown(put("b", "4", "")).await, ":");
        assert_eq!(informer.shown(bookmark("5", true, &[])).await, "5: a@3 b@4");
        assert_eq!(informer.shown(put("c", "7", "5")).await, "5: a@3 b@4");
        assert_eq!(informer.shown(event(pb::EventType::Deleted, "a", "7", "7")).await, "7: b@4 c@7");
        assert_eq!(informer.shown(put("d", "8", "7")).await, "7: b@4 c@7");
        assert_eq!(informer.shown(put("e", "12", "9")).await, "9: b@4 c@7 d@8", "the begin of the batch after it");
        assert_eq!(informer.shown(bookmark("12", false, &[])).await, "12: b@4 c@7 d@8 e@12");
        informer.follower.expire();
        informer.begin();
        assert_eq!(informer.shown(put("b", "4", "")).await, "12: b@4 c@7 d@8 e@12");
        assert_eq!(informer.shown(bookmark("2", true, &[])).await, "2: b@4", "of another history");
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_event_is_shown_at_once_unless_others_wait() {
        let mut informer = Following::new();
        informer.shown(bookmark("5", true, &[])).await;
        let open = |message: pb::WatchResponse| pb::WatchResponse { open: true, ..message };
        assert_eq!(informer.shown(open(put("a", "7", "5"))).await, "5: a@7");
        assert_eq!(informer.shown(put("b", "8", "5")).await, "5: a@7");
        assert_eq!(informer.shown(open(put("c", "9", "5"))).await, "5: a@7");
        assert_eq!(informer.shown(open(put("d", "9", "6"))).await, "6: a@7 b@8 c@9 d@9");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_ends_discards_the_batch_that_waits() {
        let mut informer = Following::new();
        informer.shown(bookmark("5", true, &[])).await;
        informer.shown(put("a", "7", "5")).await;
        informer.begin();
        assert_eq!(informer.shown(bookmark("6", false, &[])).await, "6:");
        informer.shown(put("a", "7", "6")).await;
        assert_eq!(informer.shown(dropped("6")).await, "6:", "the hole is within the batch");
        informer.begin();
        informer.shown(put("b", "8", "6")).await;
        assert_eq!(informer.shown(dropped("8")).await, "8: b@8");
        assert_eq!(informer.shown(dropped("")).await, "8: b@8");
        assert!(informer.follower.position.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn other_namespaces_at_the_same_version_complete_their_batch() {
        let mut informer = Following::new();
        informer.shown(bookmark("5", true, &["x"])).await;
        informer.shown(put("a", "7", "5")).await;
        assert_eq!(informer.shown(bookmark("5", false, &["x"])).await, "5:");
        assert_eq!(informer.shown(bookmark("5", false, &["x", "y"])).await, "5: a@7");
    }

    #[tokio::test(start_paused = true)]
    async fn a_bookmark_shows_that_nothing_is_missing_unless_it_is_within_a_list_or_the_last() {
        let mut informer = Following::new();
        assert_eq!(informer.take(bookmark("", false, &[])), Some(false));
        assert_eq!(informer.take(bookmark("5", true, &[])), Some(true));
        assert_eq!(informer.take(put("a", "6", "6")), None);
        assert_eq!(informer.take(bookmark("6", false, &[])), Some(true));
        let mut draining = bookmark("7", false, &[]);
        draining.bookmark.as_mut().unwrap().draining = true;
        assert_eq!(informer.take(draining), Some(false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_has_its_cause_whatever_can_be_read_of_its_object() {
        let mut informer = Following::new();
        informer.shown(put("a", "3", "")).await;
        informer.shown(bookmark("5", true, &[])).await;
        let by = |cause: pb::Cause, mut message: pb::WatchResponse| {
            message.cause = cause.into();
            message.object.as_mut().unwrap().media_type = "text/x-newer".to_owned();
            message.object.as_mut().unwrap().body = Some(pb::object::Body::Raw(Bytes::new()));
            message
        };
        informer.take(by(pb::Cause::LeftSelection, event(pb::EventType::Deleted, "a", "7", "7")));
        let [Delta::Changes { events, closes: true }] = &informer.deltas.ready[..] else { panic!("one delta") };
        assert!(matches!(&events[..], [Event::Removed(_, Cause::LeftSelection)]), "{events:?}");
        assert_eq!(informer.shown(bookmark("7", false, &[])).await, "7:");
    }

    /// The cache keeps its last state, and reaches its version.
    #[tokio::test(start_paused = true)]
    async fn an_object_that_cannot_be_read_is_left_out() {
        let mut informer = Following::new();
        let newer = |mut message: pb::WatchResponse| {
            message.object.as_mut().unwrap().media_type = "text/x-newer".to_owned();
            message.object.as_mut().unwrap().body = Some(pb::object::Body::Raw(Bytes::new()));
            message
        };
        informer.shown(put("a", "3", "")).await;
        informer.shown(newer(put("b", "4", ""))).await;
        assert_eq!(informer.shown(bookmark("5", true, &[])).await, "5: a@3");
        assert_eq!(informer.shown(newer(put("a", "6", "6"))).await, "6: a@3");
        informer.follower.expire();
        informer.begin();
        informer.shown(newer(put("a", "6", ""))).await;
        assert_eq!(informer.shown(bookmark("8", true, &[])).await, "8: a@3");
        informer.follower.expire();
        informer.begin();
        assert_eq!(informer.shown(bookmark("9", true, &[])).await, "9:");
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_of_another_uid_is_an_inferred_deletion_and_an_addition() {
        let mut informer = Following::new();
        informer.shown(put("a", "3", "")).await;
        informer.shown(bookmark("5", true, &[])).await;
        let mut watch = informer.shared.handle().watch(Selection::default(), HandlerOptions::default().queue);
        let initial = [watch.next().await, watch.next().await];
        assert!(matches!(initial, [Some(WatchItem::Initial(_)), Some(WatchItem::Synced(_))]));
        let mut other = put("a", "6", "6");
        other.object.as_mut().unwrap().uid = "another".to_owned();
        assert_eq!(informer.shown(other).await, "6: a@6");
        for expected in [(EventType::Deleted, Cause::Inferred), (EventType::Added, Cause::Change)] {
            let Some(WatchItem::Event(event)) = watch.next().await else { panic!("no event") };
            assert_eq!((event.event_type, event.cause), expected);
        }
    }
}
