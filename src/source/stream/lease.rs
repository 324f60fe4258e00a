//! Times to live of the objects of a stream: each event of an object renews its own.
//!
//! `reader` records the events, and polls for what has expired while it reads and while it waits.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::{
    cache::{ExpirationCache, KeyFunc},
    model::{EventType, ObjectKey},
};

/// Keys of the objects, with the times of their last events.
#[derive(Debug)]
pub(super) struct Leases {
    reported: ExpirationCache<ObjectKey, ObjectKey>,
    /// Time at which the reader found that something has expired.
    noticed_at: Option<Instant>,
}

/// Time to read further events before objects are deleted: a reader that was held back may have their reports before it.
const GRACE: Duration = Duration::from_millis(250);

// === impl Leases ===

impl Leases {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { reported: ExpirationCache::new(KeyFunc::infallible(ObjectKey::clone), ttl), noticed_at: None }
    }

    /// Records an event of an object.
    pub(super) fn record(&self, event_type: EventType, key: &ObjectKey) {
        if event_type == EventType::Deleted {
            self.reported.remove(key);
        } else {
            self.reported.insert(key.clone()).expect("a key has a key");
        }
    }

    /// Removes and returns the keys that have expired; none before the time to read further events is over.
    pub(super) fn take_expired(&mut self) -> Vec<ObjectKey> {
        if self.due_at().is_none_or(|at| at > Instant::now()) {
            return Vec::new();
        }
        self.noticed_at = None;
        self.reported.expire()
    }

    /// Waits until [`Leases::take_expired`] may return keys.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub(super) async fn expired(&mut self) {
        while let Some(at) = self.due_at() {
            if at <= Instant::now() {
                return;
            }
            sleep_until(at).await;
        }
        std::future::pending::<()>().await;
    }

    /// Returns the time of the next step: that of the next expiry, or the end of the time after one.
    fn due_at(&mut self) -> Option<Instant> {
        let expiry = self.reported.next_expiry()?;
        let now = Instant::now();
        if expiry > now {
            // It was renewed meanwhile.
            self.noticed_at = None;
            return Some(expiry);
        }
        Some(*self.noticed_at.get_or_insert(now) + GRACE)
    }
}
