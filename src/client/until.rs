//! Waiting for conditions on the events of a watch.

use std::{collections::HashSet, time::Duration};

use tokio::time::timeout;

use super::{Client, ClientError, Note, Query, Update, WatchOptions};
use crate::{cache::BackoffConfig, proto::pb, watch::Until};

/// Timeout and retry delays of [`Client::until`].
#[derive(Debug, Clone, PartialEq)]
pub struct UntilOptions {
    /// Time after which the wait fails with [`ClientError::NotMet`]; none = no limit.
    pub timeout: Option<Duration>,
    /// Delays between streams.
    pub backoff: BackoffConfig,
}

/// Event that the conditions of [`Client::until`] are tested on.
#[derive(Debug, Clone, PartialEq)]
pub struct UntilEvent {
    /// ADDED, MODIFIED, DELETED; BOOKMARK after the objects of the first list.
    pub event_type: pb::EventType,
    /// Cause of a DELETED, as [`Update::Event`] has it.
    pub cause: pb::Cause,
    /// New state; of a deleted object its last known one. None with BOOKMARK.
    pub object: Option<pb::Object>,
    /// Number of selected objects after the event; for ADDED of the first list and BOOKMARK that of the list.
    pub count: u64,
    /// Version of the state that has the event.
    pub resource_version: String,
    /// Namespaces that the selection is limited to, because the caller may read no others; empty if it is not.
    pub namespaces: Vec<String>,
}

/// Conditions of a wait, and the state that they refer to besides an event.
struct Waiting<C> {
    conditions: Until<C>,
    count: u64,
    /// Keys of objects that still exist, and can no longer be served.
    not_served: HashSet<(String, String)>,
    /// Events of a list that is not complete.
    listed: Vec<UntilEvent>,
    is_synced: bool,
    /// Namespaces of the last bookmark.
    namespaces: Vec<String>,
}

// === impl UntilOptions ===

impl Default for UntilOptions {
    /// Returns options without a timeout; the delays are those of a watch.
    fn default() -> Self {
        Self { timeout: None, backoff: WatchOptions::default().backoff }
    }
}

// === impl Client ===

impl Client {
    /// Waits until conditions have been met, one after the other, and returns the event that met the last. They are tested on each
    /// selected object as ADDED, then on BOOKMARK, then on each change; each is tested first on the event that met the one before.
    ///
    /// It is a [`Watch`](super::Watch): restarts, broken connections, idle timeouts and expired versions do not end it, met
    /// conditions stay met, and what was deleted meanwhile is an event. It holds the selected objects while it waits: those of the
    /// first list, and then the last state of each.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends its watch. The conditions that were met are forgotten.
    ///
    /// # Errors
    ///
    /// Permanent failures; [`ClientError::NotMet`] after the timeout.
    pub async fn until<C: Fn(&UntilEvent) -> bool>(
        &self,
        query: &Query,
        conditions: impl IntoIterator<Item = C>,
        options: &UntilOptions,
    ) -> Result<UntilEvent, ClientError> {
        let mut last = None;
        let met = self.until_met(query, Until::new(conditions), options.backoff, &mut last);
        let Some(after) = options.timeout else { return met.await };
        match timeout(after, met).await {
            Ok(met) => met,
            Err(_) => Err(ClientError::NotMet { after, last: last.map(Box::new) }),
        }
    }

    async fn until_met<C: Fn(&UntilEvent) -> bool>(
        &self,
        query: &Query,
        conditions: Until<C>,
        backoff: BackoffConfig,
        last: &mut Option<ClientError>,
    ) -> Result<UntilEvent, ClientError> {
        // The last state of an object whose deletion a list shows.
        let options = WatchOptions { backoff, keep_objects: true, ..WatchOptions::default() };
        let mut watch = self.watch(query, &options);
        let mut waiting = Waiting {
            conditions,
            count: 0,
            not_served: HashSet::new(),
            listed: Vec::new(),
            is_synced: false,
            namespaces: Vec::new(),
        };
        while let Some(update) = watch.next().await {
            let update = update?;
            if let Update::Synced(progress) | Update::Bookmark(progress) = &update {
                *last = None;
                waiting.namespaces.clone_from(&progress.namespaces);
            }
            let met = match update {
                Update::Event { event_type, cause, object, resource_version } => {
                    let object = Some(object);
                    let namespaces = Vec::new();
                    waiting.event(UntilEvent { event_type, cause, object, count: 0, resource_version, namespaces })
                }
                Update::Synced(progress) => waiting.listed(&progress.resource_version),
                Update::Note(Note::Reconnecting { error, .. }) => {
                    *last = Some(error);
                    None
                }
                Update::Bookmark(_) | Update::Note(_) | Update::Dropped { .. } => None,
            };
            if let Some(event) = met {
                return Ok(event);
            }
            // The deadline is checked only when this task yields.
            tokio::task::consume_budget().await;
        }
        Err(ClientError::contract("a watch that ends without an error"))
    }
}

// === impl Waiting ===

impl<C: Fn(&UntilEvent) -> bool> Waiting<C> {
    /// Returns the event if it meets the last condition. Those of a list wait until it is complete.
    fn event(&mut self, event: UntilEvent) -> Option<UntilEvent> {
        if event.resource_version.is_empty() {
            self.listed.push(event);
            return None;
        }
        if self.counts(&event) { self.meets(event) } else { None }
    }

    /// Returns the event of the complete list that meets the last condition.
    fn listed(&mut self, version: &str) -> Option<UntilEvent> {
        let events = std::mem::take(&mut self.listed);
        let is_first = !std::mem::replace(&mut self.is_synced, true);
        if is_first {
            for event in &events {
                self.counts(event);
            }
        }
        for event in events {
            let event = UntilEvent { resource_version: version.to_owned(), ..event };
            if (is_first || self.counts(&event))
                && let Some(met) = self.meets(event)
            {
                return Some(met);
            }
        }
        let synced = UntilEvent {
            event_type: pb::EventType::Bookmark,
            cause: pb::Cause::Unspecified,
            object: None,
            count: 0,
            resource_version: version.to_owned(),
            namespaces: Vec::new(),
        };
        if is_first { self.meets(synced) } else { None }
    }

    /// Counts the object of an event. Returns false for one that can no longer be served: it exists, and is not tested.
    fn counts(&mut self, event: &UntilEvent) -> bool {
        let key = || event.object.as_ref().map(|object| (object.namespace.clone(), object.name.clone()));
        match event.event_type {
            pb::EventType::Added => {
                let is_back = !self.not_served.is_empty() && key().is_some_and(|key| self.not_served.remove(&key));
                self.count += u64::from(!is_back);
            }
            pb::EventType::Deleted if event.cause == pb::Cause::NotServed => {
                self.not_served.extend(key());
                return false;
            }
            pb::EventType::Deleted => self.count = self.count.saturating_sub(1),
            _ => {}
        }
        true
    }

    fn meets(&mut self, event: UntilEvent) -> Option<UntilEvent> {
        let event = UntilEvent { count: self.count, namespaces: self.namespaces.clone(), ..event };
        let Ok(is_met) = self.conditions.see(|condition| Ok::<_, std::convert::Infallible>(condition(&event)));
        is_met.then_some(event)
    }
}
