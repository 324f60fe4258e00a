//! Follower of the messages of a watch, over successive streams, without I/O and clock: the position to resume from, and the part of
//! each message that the user of the watch applies to a state.
//!
//! ```text
//!             ┌───────────── begin ◀── stream opened ◀──┐
//!             ▼                                         │
//!   no position: list ── end of the initial events ──▶ position ── event, BOOKMARK ──▶ next position
//!             ▲                                         │ │
//!             └────────── expired, or DROPPED in a list ┘ └── DROPPED ──▶ position before the hole
//! ```
//!
//! While the position does not advance, a batch is open, and a resume repeats it from its beginning.

use std::time::Duration;

use super::{ClientError, Progress};
use crate::{model::ResourceVersion, proto::pb};

/// Position of a watch in the history of its resource.
#[derive(Debug)]
pub(super) struct Follower {
    /// True if the next stream fills a hole that a DROPPED reports.
    heals_drops: bool,
    /// Last version that is safe to resume after; none when the next stream has to list.
    position: Option<String>,
    /// History that the position belongs to; empty if the server has not sent it.
    history: String,
    /// True while the stream is in its initial events.
    is_listing: bool,
    /// True if the watch began at a version, without the state at it, so that no list can replace missed changes.
    is_partial: bool,
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
    pub(super) fn new(heals_drops: bool) -> Self {
        Self { heals_drops, position: None, history: String::new(), is_listing: false, is_partial: false }
    }

    /// Begins after a version, for a user who does not hold the state at it.
    pub(super) fn begin_after(&mut self, version: &str) {
        (self.position, self.is_partial) = (Some(version.to_owned()), true);
    }

    /// Returns the version to resume after; none when the next stream has to list.
    pub(super) fn position(&self) -> Option<&str> {
        self.position.as_deref()
    }

    /// Returns the history that [`Follower::position`] belongs to; empty if the server has not sent it.
    pub(super) fn history(&self) -> &str {
        &self.history
    }

    /// Returns true if no list can replace missed changes.
    pub(super) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns true while the stream is in its initial events.
    pub(super) fn is_listing(&self) -> bool {
        self.is_listing
    }

    /// Begins a stream that resumes after [`Follower::position`], or lists.
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
                if !self.is_listing {
                    before = self.advance(&version);
                }
                News::Event(FollowedEvent { event_type, cause, object, version, is_open: response.open })
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
                    before = self.advance(&progress.resource_version);
                    let is_end = std::mem::take(&mut self.is_listing);
                    if is_end { News::Synced(progress) } else { News::Bookmark(progress) }
                }
            }
            pb::EventType::Dropped => {
                let pb::Dropped { count, after_resource_version: after } = response.dropped.unwrap_or_default();
                let position = if self.heals_drops { &after } else { &version };
                if !position.is_empty() {
                    before = self.advance(position);
                } else if self.heals_drops {
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

    /// Advances the position. Returns the one before, if there is one and it is another version.
    fn advance(&mut self, version: &str) -> Option<String> {
        if self.position() == Some(version) { None } else { self.position.replace(version.to_owned()) }
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
        let version = |text: &str| text.parse::<ResourceVersion>().ok();
        let versions = version(&self.version).zip(version(&self.object.resource_version));
        !self.is_open && versions.is_some_and(|(safe, own)| safe < own)
    }
}
