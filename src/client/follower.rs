//! Follower of the messages of a watch, over successive streams, without I/O and clock: the position to resume from, and the part of
//! each message that the user of the watch applies to a state.
//!
//! ```text
//!                                             ┌─ event, BOOKMARK: a later version; DROPPED: the one before the hole
//!                                             ▼ │
//!   no position ── end of the initial events ──▶ position
//!        ▲                                       │
//!        └── expired, or a hole without a version ┘
//! ```
//!
//! Each stream resumes after the position; without one, it lists. While the position does not advance, a batch is open, and a resume
//! repeats it from its beginning.

use std::time::Duration;

use bytes::Bytes;

use super::{ClientError, Progress};
use crate::{model::ResourceVersion, proto::pb};

/// Position of a watch in the history of its resource.
#[derive(Debug)]
pub(super) struct Follower {
    /// True if the next stream fills a hole that a DROPPED reports.
    heals_drops: bool,
    /// Last version that is safe to resume after; none when the next stream has to list.
    pub(super) position: Option<String>,
    /// History that the position belongs to; empty if the server has not sent it.
    history: String,
    /// True while the stream is in its initial events.
    pub(super) is_listing: bool,
    /// True if the watch began at a version, without the state at it, so that no list can replace missed changes.
    pub(super) is_partial: bool,
    /// Latest version of an object in the batch that is open.
    ahead: Option<ResourceVersion>,
}

/// Message of a stream, as its user applies it.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) news: News,
    /// Position before this message, if it has advanced it: the batch that was open is complete.
    pub(super) before: Option<String>,
    /// True if the server drains: the stream ends with this message.
    pub(super) is_last: bool,
}

/// Content of a message.
#[derive(Debug)]
pub(super) enum News {
    Event(FollowedEvent),
    /// BOOKMARK within the initial events.
    Listing(Progress),
    /// End of the initial events.
    Synced(Progress),
    /// BOOKMARK after the initial events.
    Bookmark(Progress),
    Dropped {
        count: u64,
        /// Last version before the hole.
        after: String,
        /// Delay before the stream that fills the hole, if one does; the streams set it.
        healing: Option<Duration>,
    },
}

/// ADDED, MODIFIED or DELETED.
#[derive(Debug)]
pub(super) struct FollowedEvent {
    pub(super) event_type: pb::EventType,
    pub(super) cause: pb::Cause,
    pub(super) object: pb::Object,
    /// Version that is safe to resume after; empty in a list, where none is.
    pub(super) version: String,
    /// True if the server sends the events of its batch as they come.
    pub(super) is_open: bool,
}

// === impl Follower ===

impl Follower {
    /// Returns the follower of a watch that begins with a list, or after a version, without the state at it.
    pub(super) fn new(heals_drops: bool, since: Option<&str>) -> Self {
        let (position, is_partial) = (since.map(str::to_owned), since.is_some());
        Self { heals_drops, position, history: String::new(), is_listing: false, is_partial, ahead: None }
    }

    /// Completes the request of the next stream, which resumes or lists.
    pub(super) fn complete(&self, request: &mut pb::WatchRequest) {
        if let Some(version) = &self.position {
            request.resource_version.clone_from(version);
            request.history.clone_from(&self.history);
            // A server that has not reached the states of a generation could merge what undoes them to nothing.
            let is_merged = request.queue.is_some_and(|queue| queue.policy() == pb::FullChannelPolicy::Coalesce);
            if let Some(ahead) = self.ahead.as_ref().filter(|_| is_merged) {
                request.min_resource_version = ahead.to_string();
            }
        } else {
            request.initial_events = pb::InitialEvents::Send.into();
        }
    }

    /// Begins a stream that resumes after the position, or lists.
    pub(super) fn begin(&mut self) {
        self.is_listing = self.position.is_none();
    }

    /// Discards the position, which cannot be resumed from: the next stream lists.
    pub(super) fn expire(&mut self) {
        self.position = None;
    }

    /// Follows a message of the stream.
    ///
    /// # Errors
    ///
    /// The status of an ERROR; [`ClientError::Contract`] for a message that no server sends: to ignore it could skip data.
    pub(super) fn follow(&mut self, response: pb::WatchResponse) -> Result<Followed, ClientError> {
        let (event_type, cause, version) = (response.r#type(), response.cause(), response.resource_version);
        let (mut before, mut is_last) = (None, false);
        let news = match event_type {
            pb::EventType::Added | pb::EventType::Modified | pb::EventType::Deleted => {
                let object = response.object.ok_or_else(|| ClientError::contract("event without an object"))?;
                if version.is_empty() && !self.is_listing {
                    return Err(ClientError::contract("event without a version to resume from"));
                }
                let version = if self.is_listing { String::new() } else { version };
                before = self.advance(&version)?;
                let event = FollowedEvent { event_type, cause, object, version, is_open: response.open };
                let own = parse(&event.object.resource_version).filter(|_| event.is_in_batch());
                if self.ahead < own {
                    self.ahead = own;
                }
                News::Event(event)
            }
            pb::EventType::Bookmark => {
                let bookmark = response.bookmark.unwrap_or_default();
                let is_within_list = self.is_listing && !bookmark.initial_events_end;
                if version.is_empty() && !is_within_list {
                    return Err(ClientError::contract("BOOKMARK without a version"));
                }
                let source = bookmark.source();
                is_last = bookmark.draining;
                let progress = Progress {
                    resource_version: version,
                    source,
                    source_seen_at: bookmark.source_seen_at,
                    namespaces: bookmark.namespaces,
                    expression_errors: bookmark.expression_errors,
                };
                self.history = bookmark.history;
                if is_within_list {
                    News::Listing(progress)
                } else {
                    before = self.advance(&progress.resource_version)?;
                    let is_end = std::mem::take(&mut self.is_listing);
                    if is_end { News::Synced(progress) } else { News::Bookmark(progress) }
                }
            }
            pb::EventType::Dropped => {
                let pb::Dropped { count, after_resource_version: after } = response.dropped.unwrap_or_default();
                before = self.advance(if self.heals_drops { &after } else { &version })?;
                if self.heals_drops && after.is_empty() {
                    self.expire();
                }
                News::Dropped { count, after, healing: self.heals_drops.then_some(Duration::ZERO) }
            }
            pb::EventType::Error => {
                let error = response.error.ok_or_else(|| ClientError::contract("ERROR without a status"))?;
                return Err(ClientError::from_proto(&error));
            }
            pb::EventType::Unspecified => {
                return Err(ClientError::contract(format!("event of unknown type {}", response.r#type)));
            }
        };
        Ok(Followed { news, before, is_last })
    }

    /// Advances the position to a version, unless that is empty. Returns the position before, if there is one and it is another.
    fn advance(&mut self, version: &str) -> Result<Option<String>, ClientError> {
        if version.is_empty() || self.position.as_deref() == Some(version) {
            return Ok(None);
        }
        parse(version).ok_or_else(|| ClientError::contract(format!("invalid resource version {version:?}")))?;
        self.ahead = None;
        Ok(self.position.replace(version.to_owned()))
    }
}

// === impl FollowedEvent ===

impl FollowedEvent {
    /// Returns true for an event of a list.
    pub(super) fn is_listed(&self) -> bool {
        self.version.is_empty()
    }

    /// Returns true if the event is of a batch that goes on: its object is at a later version than its message.
    pub(super) fn is_in_batch(&self) -> bool {
        let versions = parse(&self.version).zip(parse(&self.object.resource_version));
        !self.is_open && versions.is_some_and(|(safe, own)| safe < own)
    }
}

/// Copies the body of an object that is kept: the received one may be a slice of something larger.
pub(super) fn own_body(object: &mut pb::Object) {
    if let Some(pb::object::Body::Raw(body)) = &mut object.body {
        *body = Bytes::copy_from_slice(body);
    }
}

/// Returns true if a deleted object is not the one that has its key already: an earlier stream was ahead of this one.
pub(super) fn is_another(known: &pb::Object, deleted: &pb::Object) -> bool {
    known.uid != deleted.uid && !known.uid.is_empty() && !deleted.uid.is_empty()
}

/// Returns true if the versions of two states of an object are of the same lineage.
pub(super) fn is_same_lineage(one: &pb::Object, other: &pb::Object) -> bool {
    let versions = parse(&one.resource_version).zip(parse(&other.resource_version));
    versions.is_some_and(|(one, other)| one.same_lineage(&other))
}

fn parse(version: &str) -> Option<ResourceVersion> {
    version.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bookmark(version: &str, bookmark: pb::Bookmark) -> pb::WatchResponse {
        pb::WatchResponse {
            r#type: pb::EventType::Bookmark.into(),
            resource_version: version.to_owned(),
            bookmark: Some(bookmark),
            ..Default::default()
        }
    }

    fn end_of_list() -> pb::Bookmark {
        pb::Bookmark { initial_events_end: true, history: "server.1".to_owned(), ..Default::default() }
    }

    fn event(version: &str, own: &str) -> pb::WatchResponse {
        let object = pb::Object { name: "a".to_owned(), resource_version: own.to_owned(), ..Default::default() };
        pb::WatchResponse {
            r#type: pb::EventType::Modified.into(),
            resource_version: version.to_owned(),
            object: Some(object),
            ..Default::default()
        }
    }

    fn dropped(version: &str, after: &str) -> pb::WatchResponse {
        let dropped = pb::Dropped { count: 3, after_resource_version: after.to_owned() };
        pb::WatchResponse {
            r#type: pb::EventType::Dropped.into(),
            resource_version: version.to_owned(),
            dropped: Some(dropped),
            ..Default::default()
        }
    }

    /// Returns the version, the history and the initial events that the next stream requests.
    fn requested(follower: &Follower) -> (String, String, bool) {
        let mut request = pb::WatchRequest::default();
        follower.complete(&mut request);
        let lists = request.initial_events() == pb::InitialEvents::Send;
        (request.resource_version, request.history, lists)
    }

    fn resume(version: &str, history: &str) -> (String, String, bool) {
        (version.to_owned(), history.to_owned(), false)
    }

    const LIST: (String, String, bool) = (String::new(), String::new(), true);

    /// Returns a follower at version 5.
    fn synced(heals_drops: bool) -> Follower {
        let mut follower = Follower::new(heals_drops, None);
        follower.begin();
        follower.follow(bookmark("5", end_of_list())).unwrap();
        follower
    }

    fn before(follower: &mut Follower, message: pb::WatchResponse) -> Option<String> {
        follower.follow(message).unwrap().before
    }

    #[test]
    fn nothing_within_a_list_can_be_resumed_from() {
        let mut follower = Follower::new(true, None);
        assert_eq!(requested(&follower), LIST);
        follower.begin();
        let message = follower.follow(event("4", "4")).unwrap();
        assert!(matches!(&message.news, News::Event(event) if event.is_listed() && event.version.is_empty()));
        let news = follower.follow(bookmark("4", pb::Bookmark::default())).unwrap().news;
        assert!(matches!(news, News::Listing(_)) && follower.is_listing);
        assert_eq!(requested(&follower), LIST);
        let message = follower.follow(bookmark("5", end_of_list())).unwrap();
        assert!(matches!(&message.news, News::Synced(progress) if progress.resource_version == "5"));
        assert!(message.before.is_none() && !follower.is_listing);
        assert_eq!(requested(&follower), resume("5", "server.1"));
        follower.begin();
        let news = follower.follow(bookmark("6", end_of_list())).unwrap().news;
        assert!(matches!(news, News::Bookmark(_)), "a stream that resumes has no list");
        follower.expire();
        assert_eq!(requested(&follower), LIST);
        follower.begin();
        assert!(follower.is_listing);
    }

    #[test]
    fn a_message_that_advances_the_version_ends_the_batch_before() {
        let mut follower = synced(true);
        assert_eq!(before(&mut follower, event("5", "6")), None);
        assert_eq!(before(&mut follower, event("7", "7")), Some("5".to_owned()));
        assert_eq!(before(&mut follower, bookmark("7", pb::Bookmark::default())), None);
        assert_eq!(before(&mut follower, bookmark("9", pb::Bookmark::default())), Some("7".to_owned()));
        assert_eq!(requested(&follower), resume("9", ""), "of a server that sends no history");
        let is_in_batch = |message: pb::WatchResponse| match synced(true).follow(message).unwrap().news {
            News::Event(event) => event.is_in_batch(),
            news => panic!("{news:?}"),
        };
        assert!(is_in_batch(event("9", "10")) && !is_in_batch(event("10", "10")) && !is_in_batch(event("x.9", "10")));
        assert!(!is_in_batch(pb::WatchResponse { open: true, ..event("9", "10") }));
    }

    #[test]
    fn a_resume_within_a_generation_is_at_a_server_that_has_reached_its_states() {
        let min = |follower: &Follower, policy: pb::FullChannelPolicy| {
            let queue = Some(pb::QueueOptions { policy: policy.into(), ..Default::default() });
            let mut request = pb::WatchRequest { queue, ..Default::default() };
            follower.complete(&mut request);
            request.min_resource_version
        };
        let mut follower = synced(true);
        assert_eq!(min(&follower, pb::FullChannelPolicy::Coalesce), "");
        follower.follow(event("5", "10")).unwrap();
        follower.follow(event("5", "9")).unwrap();
        assert_eq!(min(&follower, pb::FullChannelPolicy::Coalesce), "10");
        assert_eq!(min(&follower, pb::FullChannelPolicy::Replay), "", "it is sent every event again");
        follower.follow(event("11", "11")).unwrap();
        assert_eq!(min(&follower, pb::FullChannelPolicy::Coalesce), "", "the generation is complete");
        follower.follow(event("11", "12")).unwrap();
        follower.expire();
        assert_eq!(min(&follower, pb::FullChannelPolicy::Coalesce), "", "it lists");
    }

    #[test]
    fn a_hole_is_filled_from_the_version_before_it_or_by_a_list() {
        let mut follower = synced(true);
        let message = follower.follow(dropped("9", "7")).unwrap();
        assert!(matches!(message.news, News::Dropped { count: 3, healing: Some(_), .. }));
        assert_eq!((message.before, requested(&follower)), (Some("5".to_owned()), resume("7", "server.1")));
        follower.follow(dropped("9", "")).unwrap();
        assert_eq!(requested(&follower), LIST);

        let mut follower = synced(false);
        let message = follower.follow(dropped("9", "7")).unwrap();
        assert!(matches!(&message.news, News::Dropped { after, healing: None, .. } if after == "7"));
        assert_eq!((message.before, requested(&follower)), (Some("5".to_owned()), resume("9", "server.1")));
        follower.follow(dropped("", "")).unwrap();
        assert_eq!(requested(&follower), resume("9", "server.1"));
    }

    #[test]
    fn a_server_that_drains_ends_the_stream_with_a_version_to_resume_from() {
        let mut follower = synced(true);
        let message = follower.follow(bookmark("8", pb::Bookmark { draining: true, ..end_of_list() })).unwrap();
        assert!(message.is_last && matches!(message.news, News::Bookmark(_)));
        assert_eq!(requested(&follower), resume("8", "server.1"));
        assert!(!follower.follow(event("9", "9")).unwrap().is_last);
    }

    #[test]
    fn a_watch_from_a_version_is_partial_and_has_no_list() {
        let follower = Follower::new(true, Some("3"));
        assert!(follower.is_partial && !synced(true).is_partial);
        assert_eq!(requested(&follower), resume("3", ""));
    }

    #[test]
    fn messages_that_violate_the_contract_are_rejected() {
        let mut follower = Follower::new(true, None);
        follower.begin();
        let mut rejected = |message| matches!(follower.follow(message), Err(ClientError::Contract { .. }));
        assert!(rejected(pb::WatchResponse { r#type: 77, ..Default::default() }));
        assert!(rejected(pb::WatchResponse { object: None, ..event("5", "5") }));
        assert!(rejected(bookmark("", end_of_list())));
        assert!(rejected(pb::WatchResponse { r#type: pb::EventType::Error.into(), ..Default::default() }));
        assert!(!rejected(event("", "5")) && !rejected(bookmark("", pb::Bookmark::default())));
        assert!(!rejected(bookmark("5", end_of_list())));
        assert!(rejected(event("", "6")), "an event after the list without a version");
        assert!(rejected(bookmark("", pb::Bookmark::default())));
    }
}
