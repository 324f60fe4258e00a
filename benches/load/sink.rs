//! Counts of what the load client receives, in total and for each stream.

use informerd::proto::pb;
use prost::Message;

use super::{
    deliveries::{self, Part},
    error::BenchError,
    messages::{self, MessageKind, MessageReader},
    stats::Histogram,
};

/// Totals of all streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Watches that have received their first BOOKMARK: they miss nothing from then on.
    pub(super) joined: u64,
    /// Live changes.
    pub(super) changes: u64,
    /// Changes before the first BOOKMARK.
    pub(super) initial: u64,
    /// Live changes that were dropped, merged or suppressed, as the server reports.
    pub(super) missed: u64,
    /// Calls that have ended.
    pub(super) ended: u64,
    /// Objects in responses of List.
    pub(super) objects: u64,
    /// Bytes of DATA.
    pub(super) bytes: u64,
}

/// Method of a call, which gives the type of its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Watch,
    List,
}

/// Single call.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) tally: Tally,
    /// Text of its ERROR, if there was one.
    pub(super) error: Option<String>,
    /// True if its latencies are counted.
    pub(super) is_timed: bool,
    /// True if it may end without having been cancelled.
    pub(super) may_end: bool,
    /// True if every change is decoded, to count the events that it merges.
    pub(super) is_merged: bool,
    call: Call,
    received: Received,
}

/// Call of Subscribe, whose watches are streams of the client.
#[derive(Debug)]
pub(super) struct Subscribed {
    /// Id of its HTTP/2 stream.
    pub(super) stream: u32,
    /// Indexes into the client's streams: of watch 1, 2 and so on.
    pub(super) watches: Vec<usize>,
    received: Received,
}

/// Data of one HTTP/2 stream.
#[derive(Debug, Default)]
struct Received {
    messages: MessageReader,
    /// Bytes received, and not yet returned to the stream's window.
    consumed: u32,
}

/// Counters for received data.
pub(super) struct Sink<'a> {
    pub(super) streams: &'a mut [Stream],
    pub(super) tally: &'a mut Tally,
    pub(super) latencies: &'a mut Histogram,
    pub(super) every: u64,
    /// Time of the read.
    pub(super) now: u64,
    pub(super) window: u32,
    pub(super) accepted: &'a mut usize,
}

// === impl Stream ===

impl Stream {
    pub(super) fn new(call: Call) -> Self {
        Self {
            tally: Tally::default(),
            error: None,
            is_timed: true,
            may_end: call == Call::List,
            is_merged: false,
            call,
            received: Received::default(),
        }
    }
}

// === impl Subscribed ===

impl Subscribed {
    pub(super) fn new(stream: u32) -> Self {
        Self { stream, watches: Vec::new(), received: Received::default() }
    }
}

// === impl Sink ===

impl Sink<'_> {
    /// Counts the data of a stream; returns the bytes to return to its window, if it is time.
    pub(super) fn data(&mut self, at: usize, bytes: &[u8]) -> Option<u32> {
        let stream = &mut self.streams[at];
        stream.tally.bytes += bytes.len() as u64;
        let mut received = std::mem::take(&mut stream.received);
        received.messages.feed(bytes, |message| self.message(at, message));
        let more = self.returned(&mut received, bytes);
        self.streams[at].received = received;
        more
    }

    /// Counts the data of a Subscribe call; returns the bytes to return to its window, if it is time.
    pub(super) fn subscribed(&mut self, call: &mut Subscribed, bytes: &[u8]) -> Result<Option<u32>, BenchError> {
        let Subscribed { received, watches, .. } = call;
        let mut result = Ok(());
        received.messages.feed(bytes, |message| {
            if result.is_ok() {
                result = self.deliveries(watches, message);
            }
        });
        result?;
        Ok(self.returned(received, bytes))
    }

    fn deliveries(&mut self, watches: &[usize], message: &[u8]) -> Result<(), BenchError> {
        let mut result = Ok(());
        deliveries::for_each(message, |ids, part| {
            for id in ids {
                match (watches.get((*id as usize).wrapping_sub(1)), &part) {
                    (Some(at), Part::Response(message)) => self.message(*at, message),
                    (Some(at), Part::Ended) if result.is_ok() => result = self.end(*at, ""),
                    (Some(_), Part::Ended) => {}
                    (None, _) => result = Err(BenchError::Connection(format!("a message for {id}, which is no watch"))),
                }
            }
        })?;
        result
    }

    fn returned(&mut self, received: &mut Received, bytes: &[u8]) -> Option<u32> {
        self.tally.bytes += bytes.len() as u64;
        received.consumed += bytes.len() as u32;
        (received.consumed >= self.window / 2).then(|| std::mem::take(&mut received.consumed))
    }

    fn message(&mut self, at: usize, message: &[u8]) {
        let Self { streams, tally, latencies, every, now, .. } = self;
        let Stream { tally: own, error, is_timed, is_merged, call, .. } = &mut streams[at];
        let before = *own;
        match (*call, MessageKind::of(message)) {
            (Call::List, _) => own.objects += messages::count(message, messages::OBJECTS),
            (Call::Watch, MessageKind::Change) if own.joined == 0 => {
                own.initial += messages::count(message, messages::BATCH).max(1);
            }
            (Call::Watch, MessageKind::Change) => {
                own.changes += 1;
                let is_taken = *is_timed && (tally.changes + 1).is_multiple_of(*every);
                if let Some(sent) = is_taken.then(|| messages::sent(message)).flatten() {
                    latencies.add(now.saturating_sub(sent));
                }
                if *is_merged {
                    own.missed += decode(message).map_or(0, |response| response.coalesced.into());
                }
            }
            // Before the end of the initial events there is no version to resume from.
            (Call::Watch, MessageKind::Bookmark) if own.joined == 0 => {
                own.joined = decode(message).is_some_and(|response| !response.resource_version.is_empty()).into();
            }
            (Call::Watch, MessageKind::Bookmark) => {
                own.missed += decode(message).and_then(|response| response.bookmark).map_or(0, |told| told.suppressed);
            }
            (Call::Watch, MessageKind::Dropped) => {
                own.missed += decode(message).and_then(|response| response.dropped).map_or(0, |hole| hole.count);
            }
            (Call::Watch, MessageKind::Error) => {
                *error = decode(message).and_then(|response| response.error).map(|status| status.message);
            }
            (Call::Watch, MessageKind::Unknown) => *error = Some("a message that is no WatchResponse".to_owned()),
        }
        tally.joined += own.joined - before.joined;
        tally.changes += own.changes - before.changes;
        tally.initial += own.initial - before.initial;
        tally.missed += own.missed - before.missed;
        tally.objects += own.objects - before.objects;
    }

    pub(super) fn end(&mut self, at: usize, how: &str) -> Result<(), BenchError> {
        let stream = &mut self.streams[at];
        if std::mem::replace(&mut stream.tally.ended, 1) == 1 {
            return Ok(());
        }
        self.tally.ended += 1;
        if stream.may_end {
            return Ok(());
        }
        let how = stream.error.clone().unwrap_or_else(|| how.to_owned());
        Err(BenchError::Ended { stream: at, how: if how.is_empty() { "no ERROR was told".to_owned() } else { how } })
    }
}

fn decode(message: &[u8]) -> Option<pb::WatchResponse> {
    pb::WatchResponse::decode(message).ok()
}
