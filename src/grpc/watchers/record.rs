//! Record of what a watch was sent, and its state for operators. The watches of a lane of a Subscribe stream share one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    grpc::{
        frame::WireFrame,
        held_snapshots::{Age, Holder, StreamCharge},
        resource::ServedResource,
    },
    model::{ResourceVersion, Selection},
    proto::pb,
    transport::StreamHandle,
    watch::{CursorGauge, CursorState, PastGauge},
};

/// Record of a body, or of a lane.
#[derive(Debug)]
pub(in crate::grpc) struct BodyRecord {
    sent: Mutex<SentEvents>,
    dropped: AtomicU64,
    suppressed: AtomicU64,
    pub(super) progress: Mutex<Progress>,
}

/// Everything that a delivery changes, side by side: an event for a thousand watches loads it into the cache a thousand times.
#[derive(Debug)]
struct SentEvents {
    count: u64,
    bytes: u64,
    /// Time of the last progress, in nanoseconds since 1970: half the size of a `SystemTime`.
    at: u64,
    version: Option<ResourceVersion>,
}

#[derive(Debug)]
pub(super) struct Progress {
    pub(super) selection: Arc<Selection>,
    pub(super) state: pb::WatcherState,
    /// Result of the last check for merged changes; none under other policies than COALESCE.
    merging: Option<Box<Merging>>,
    /// Gauge of the cursor or of the reader; a parked watch has none.
    pub(super) gauge: Option<Gauge>,
}

/// Gauge of what waits for a watch.
#[derive(Debug, Clone)]
pub(super) enum Gauge {
    Cursor(CursorGauge<WireFrame>),
    /// Of a reader, and the length of the queue.
    Reader(PastGauge, u64),
}

/// Result of a check for merged changes.
#[derive(Debug, Default)]
struct Merging {
    /// Charge of those that it found.
    charge: Option<Arc<StreamCharge>>,
    /// Age of the resource at the last check that found none.
    none_at: Option<Age>,
}

/// Numbers of what a watch was sent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) events: u64,
    pub(super) bytes: u64,
    pub(super) dropped: u64,
    pub(super) suppressed: u64,
}

// === impl BodyRecord ===

impl BodyRecord {
    /// Returns the record of a body without a cursor, whose watch was sent this much before.
    pub(super) fn new(selection: Arc<Selection>, before: Counts) -> Self {
        let Counts { events, bytes, dropped, suppressed } = before;
        Self {
            sent: Mutex::new(SentEvents { count: events, bytes, at: now(), version: None }),
            dropped: dropped.into(),
            suppressed: suppressed.into(),
            progress: Mutex::new(Progress {
                selection,
                state: pb::WatcherState::Unspecified,
                merging: None,
                gauge: None,
            }),
        }
    }

    /// Returns the record of a body of its own for a watch that shared this one.
    pub(super) fn split(&self, before: Counts) -> Self {
        let mut record = Self::new(self.selection(), before);
        let (other, sent) = (self.sent.lock(), record.sent.get_mut());
        (sent.at, sent.version) = (other.at, other.version.clone());
        drop(other);
        record
    }

    /// Counts events and bookmarks that were handed to the transport, up to this version.
    pub(in crate::grpc) fn sent(&self, events: u64, bytes: usize, version: Option<&ResourceVersion>) {
        let mut sent = self.sent.lock();
        sent.count += events;
        sent.bytes += bytes as u64;
        sent.at = now();
        if let Some(version) = version {
            match &mut sent.version {
                Some(reached) => reached.clone_from(version),
                reached => *reached = Some(version.clone()),
            }
        }
    }

    /// Counts bytes of what has no version.
    pub(super) fn sent_bytes(&self, bytes: usize) {
        self.sent.lock().bytes += bytes as u64;
    }

    /// Counts events that were lost under DROP.
    pub(super) fn dropped(&self, events: u64) {
        self.dropped.fetch_add(events, Ordering::Relaxed);
    }

    /// Counts changes that the view suppressed.
    pub(super) fn suppressed(&self, changes: u64) {
        self.suppressed.fetch_add(changes, Ordering::Relaxed);
    }

    /// Returns what was sent.
    pub(super) fn counts(&self) -> Counts {
        let (events, bytes) = {
            let SentEvents { count, bytes, .. } = &*self.sent.lock();
            (*count, *bytes)
        };
        let (dropped, suppressed) = (self.dropped.load(Ordering::Relaxed), self.suppressed.load(Ordering::Relaxed));
        Counts { events, bytes, dropped, suppressed }
    }

    /// Returns the number of events that are lost under DROP and not reported to the client yet.
    pub(super) fn unreported_losses(&self) -> u64 {
        match self.gauge() {
            Some(Gauge::Cursor(cursor)) => cursor.unreported_losses(),
            Some(Gauge::Reader(..)) | None => 0,
        }
    }

    /// Returns the time of the last progress, and the last version.
    pub(super) fn reached(&self) -> (SystemTime, Option<ResourceVersion>) {
        let SentEvents { at, version, .. } = &*self.sent.lock();
        (time_of(*at), version.clone())
    }

    /// Returns the selection of the cursor.
    pub(super) fn selection(&self) -> Arc<Selection> {
        Arc::clone(&self.progress.lock().selection)
    }

    /// Returns the gauge; none of a watch that holds only a version.
    pub(super) fn gauge(&self) -> Option<Gauge> {
        self.progress.lock().gauge.clone()
    }

    /// Returns the age of the oldest event of the resource that waits; zero if there is none.
    pub(super) fn lag(&self, resource: &ServedResource) -> Duration {
        let since = match self.gauge() {
            Some(gauge) => gauge.waiting_since(),
            None => self.reached().1.and_then(|version| resource.informer.waiting_since(&version)),
        };
        since.map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// Returns the changes that are merged for the cursor; an empty holder once after they were sent; none otherwise.
    pub(super) fn merging(&self, stream: Option<&StreamHandle>, before: Age, now: Age) -> Option<Holder> {
        let state = self.gauge().as_ref().and_then(Gauge::state);
        let mut progress = self.progress.lock();
        let merging = progress.merging.get_or_insert_default();
        if let Some(CursorState::Coalescing { entries, bodies }) = state {
            let since = merging.none_at.unwrap_or(before);
            let charge = merging.charge.get_or_insert_with(|| Arc::new(StreamCharge::new(stream.cloned())));
            return Some(Holder { charge: Arc::clone(charge), since, own: entries, bodies: bodies as u64 });
        }
        merging.none_at = Some(now);
        merging.charge.take().map(|charge| Holder { charge, since: now, own: 0, bodies: 0 })
    }

    /// Returns the state for operators, and the number of events that wait, if there is a cursor.
    pub(super) fn state(&self) -> (pb::WatcherState, Option<u64>) {
        let (state, gauge) = {
            let Progress { state, gauge, .. } = &*self.progress.lock();
            (*state, gauge.clone())
        };
        // While the watch is live, it depends on the cursor.
        let cursor = gauge.as_ref().filter(|_| state == pb::WatcherState::Live).and_then(Gauge::state);
        let state = match cursor {
            Some(CursorState::Frozen) => pb::WatcherState::Frozen,
            Some(CursorState::Blocking) => pb::WatcherState::Blocking,
            Some(CursorState::Coalescing { .. }) => pb::WatcherState::Coalescing,
            Some(CursorState::Following) | None => state,
        };
        (state, gauge.map(|gauge| gauge.lag()))
    }
}

// === impl Gauge ===

impl Gauge {
    /// Returns the number of events that wait.
    fn lag(&self) -> u64 {
        match self {
            Self::Cursor(cursor) => cursor.lag(),
            Self::Reader(reader, length) => reader.lag().min(*length),
        }
    }

    /// Returns the time at which the oldest change was published that waits.
    fn waiting_since(&self) -> Option<Instant> {
        match self {
            Self::Cursor(cursor) => cursor.waiting_since(),
            Self::Reader(reader, _) => reader.waiting_since(),
        }
    }

    fn state(&self) -> Option<CursorState> {
        match self {
            Self::Cursor(cursor) => Some(cursor.state()),
            Self::Reader(..) => None,
        }
    }

    /// Returns true if the watch was evicted under BLOCK.
    pub(super) fn is_evicted(&self) -> bool {
        matches!(self, Self::Cursor(cursor) if cursor.is_evicted())
    }
}

// === impl Counts ===

impl Counts {
    /// Returns the sums, modulo 2^64.
    pub(super) fn plus(self, other: Self) -> Self {
        self.zip(other, u64::wrapping_add)
    }

    /// Returns the differences, modulo 2^64.
    pub(super) fn minus(self, other: Self) -> Self {
        self.zip(other, u64::wrapping_sub)
    }

    fn zip(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            events: of(self.events, other.events),
            bytes: of(self.bytes, other.bytes),
            dropped: of(self.dropped, other.dropped),
            suppressed: of(self.suppressed, other.suppressed),
        }
    }
}

/// Returns the present time, in nanoseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time of so many nanoseconds since 1970.
pub(super) fn time_of(nanos: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(nanos)
}
