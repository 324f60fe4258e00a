//! Messages of the watches of one stream that wait to be read, and requests that wait to be sent.
//!
//! ```text
//!   bytes of one inbox   > PAUSE_BYTES: its watch is paused, without a loss
//!   bytes of all         > MAX_HELD_BYTES: the stream is not read; after STALL_LIMIT watches whose users have not read meanwhile
//!                          are ended, the largest first, until half is free; their users resume from the versions they have
//! ```

use std::{
    collections::{HashMap, VecDeque},
    task::{Context, Poll, Waker},
};

use prost::Message;
use tokio::time::{Duration, Instant};
use tonic::{Code, Status};

use crate::proto::pb::{Delivery, OpenWatch, SubscribeRequest, SubscribeResponse, WatchRequest, WatchResponse};

/// Inboxes of one stream.
#[derive(Debug, Default)]
pub(super) struct Inboxes {
    by_id: HashMap<u32, Inbox>,
    /// Ids that the server has ended, to be used again.
    free: Vec<u32>,
    /// Watches to open.
    to_open: VecDeque<OpenWatch>,
    /// Watches to close.
    to_close: VecDeque<u32>,
    /// Watches that may have to be paused or resumed.
    to_pause: VecDeque<u32>,
    requests: Option<Waker>,
    /// Bytes in all inboxes.
    held_bytes: usize,
    reading: Option<Waker>,
    /// Number of checks for watches whose users do not read, and the time of the next one.
    checks: u64,
    check_at: Option<Instant>,
    /// Status that the stream has ended with.
    end: Option<Status>,
}

#[derive(Debug, Default)]
struct Inbox {
    /// Messages with their sizes.
    messages: VecDeque<(usize, WatchResponse)>,
    bytes: usize,
    user: User,
    /// True once the server has ended the watch. Its id is free when it has no user, either.
    is_ended: bool,
    is_paused: bool,
    /// True if it is paused as of the last request.
    was_paused: bool,
    /// Number of the check before the user has read enough, or the first message has come.
    read_at: u64,
    waker: Option<Waker>,
}

/// User of a watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum User {
    #[default]
    Present,
    /// The watch is closed because its user does not read it, which the next read reports.
    Evicted,
    /// The last read has reported it.
    Notified,
    /// The user has dropped the watch.
    Gone,
}

/// Bytes of messages in an inbox above which its watch is paused.
const PAUSE_BYTES: usize = 256 << 10;
/// Bytes in all inboxes above which nothing more is read. Until the server has paused a watch, it may send as much as the stream's
/// window has room for.
const MAX_HELD_BYTES: usize = 64 << 20;
/// Time without room after which the watches of users who do not read are ended.
const STALL_LIMIT: Duration = Duration::from_secs(1);
/// Largest part of a request that opens watches. A request above the server's limit of 64 KiB ends the stream with all its watches.
pub(super) const MAX_REQUEST_BYTES: usize = 4 << 10;
/// Largest number of watches that one request closes, pauses and resumes; an id has up to 5 bytes.
const MAX_REQUEST_IDS: usize = 4096;

// === impl Inboxes ===

impl Inboxes {
    /// Requests a watch. Returns its id.
    pub(super) fn open(&mut self, request: WatchRequest) -> u32 {
        // Ids are in use one by one, so the next one is after all of them.
        let id = self.free.pop().unwrap_or_else(|| u32::try_from(self.by_id.len()).unwrap_or(u32::MAX - 1) + 1);
        self.by_id.insert(id, Inbox::default());
        self.to_open.push_back(OpenWatch { id, watch: Some(request) });
        wake(&mut self.requests);
        id
    }

    /// Drops a watch and its messages.
    pub(super) fn close(&mut self, id: u32) {
        let Some(inbox) = self.by_id.get_mut(&id) else { return };
        self.held_bytes -= inbox.bytes;
        let before = self.to_open.len();
        self.to_open.retain(|open| open.id != id);
        if inbox.is_ended || self.to_open.len() < before {
            self.by_id.remove(&id);
            self.free.push(id);
        } else {
            let user = inbox.user;
            *inbox = Inbox { user: User::Gone, ..Inbox::default() };
            if user == User::Present {
                self.to_close.push_back(id);
                wake(&mut self.requests);
            }
        }
        self.wake_reading();
    }

    /// Returns the next message of a watch; none after its end. An end of the whole stream is that of each watch.
    pub(super) fn poll_next(&mut self, id: u32, cx: &Context<'_>) -> Poll<Option<Result<WatchResponse, Status>>> {
        let Some(inbox) = self.by_id.get_mut(&id) else { return Poll::Ready(None) };
        if let Some((bytes, message)) = inbox.messages.pop_front() {
            inbox.bytes -= bytes;
            self.held_bytes -= bytes;
            if inbox.is_paused && inbox.bytes < PAUSE_BYTES / 2 {
                inbox.is_paused = false;
                self.to_pause.push_back(id);
                wake(&mut self.requests);
            }
            if !inbox.is_paused {
                inbox.read_at = self.checks;
            }
            self.wake_reading();
            return Poll::Ready(Some(Ok(message)));
        }
        if inbox.user == User::Evicted {
            inbox.user = User::Notified;
            let problem = "the messages of this watch were dropped, because nothing has read them: resume";
            return Poll::Ready(Some(Err(Status::resource_exhausted(problem))));
        }
        if inbox.is_ended || inbox.user != User::Present {
            return Poll::Ready(None);
        }
        if let Some(end) = &self.end {
            inbox.is_ended = true;
            return Poll::Ready((end.code() != Code::Ok).then(|| Err(end.clone())));
        }
        inbox.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Puts the messages of a response into the inboxes.
    pub(super) fn deliver(&mut self, response: SubscribeResponse) {
        for Delivery { watch_ids, responses, ended } in response.deliveries {
            let sized: Vec<_> = responses.into_iter().map(|message| (message.encoded_len(), message)).collect();
            let bytes: usize = sized.iter().map(|(bytes, _)| bytes).sum();
            for id in watch_ids {
                let Some(inbox) = self.by_id.get_mut(&id) else { continue };
                inbox.is_ended |= ended;
                if inbox.user != User::Present {
                    if ended && inbox.user == User::Gone {
                        self.by_id.remove(&id);
                        self.free.push(id);
                    }
                    continue;
                }
                if inbox.messages.is_empty() {
                    inbox.read_at = self.checks;
                }
                inbox.messages.extend(sized.iter().cloned());
                inbox.bytes += bytes;
                self.held_bytes += bytes;
                if inbox.bytes > PAUSE_BYTES && !inbox.is_paused {
                    inbox.is_paused = true;
                    self.to_pause.push_back(id);
                }
                wake(&mut inbox.waker);
            }
        }
        if !self.to_pause.is_empty() {
            wake(&mut self.requests);
        }
    }

    /// Ends the stream.
    pub(super) fn end(&mut self, status: Status) {
        self.end = Some(status);
        for inbox in self.by_id.values_mut() {
            wake(&mut inbox.waker);
        }
        wake(&mut self.requests);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the next request; none after the end of the stream.
    pub(super) fn poll_request(&mut self, cx: &Context<'_>) -> Poll<Option<SubscribeRequest>> {
        if self.end.is_some() {
            return Poll::Ready(None);
        }
        let closed = self.to_close.len().min(MAX_REQUEST_IDS);
        let mut request =
            SubscribeRequest { close: self.to_close.drain(..closed).collect(), ..SubscribeRequest::default() };
        while closed + request.pause.len() + request.resume.len() < MAX_REQUEST_IDS
            && let Some(id) = self.to_pause.pop_front()
        {
            let Some(inbox) = self.by_id.get_mut(&id).filter(|inbox| inbox.is_paused != inbox.was_paused) else {
                continue;
            };
            inbox.was_paused = inbox.is_paused;
            if inbox.is_paused { &mut request.pause } else { &mut request.resume }.push(id);
        }
        let mut bytes = 0;
        while let Some(open) = self.to_open.front() {
            bytes += open.encoded_len();
            if bytes > MAX_REQUEST_BYTES && !request.open.is_empty() {
                break;
            }
            request.open.extend(self.to_open.pop_front());
        }
        if request == SubscribeRequest::default() {
            self.requests = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Some(request))
    }

    /// Returns the time of the next check while there is no room for another response. Does a check that is due.
    pub(super) fn next_check(&mut self) -> Option<Instant> {
        if self.held_bytes <= MAX_HELD_BYTES / 2 {
            self.check_at = None;
            return None;
        }
        let now = Instant::now();
        if self.check_at.is_some_and(|at| at <= now) {
            self.check_at = None;
            self.evict();
        }
        if self.held_bytes <= MAX_HELD_BYTES {
            return None;
        }
        if self.check_at.is_none() {
            self.checks += 1;
        }
        Some(*self.check_at.get_or_insert(now + STALL_LIMIT))
    }

    /// Closes the watches with the most bytes among those whose users have not read enough since the last check, until half of
    /// all is free.
    fn evict(&mut self) {
        let is_idle = |inbox: &Inbox| inbox.bytes > 0 && inbox.read_at < self.checks;
        let mut idle: Vec<_> = self.by_id.iter_mut().filter(|(_, inbox)| is_idle(inbox)).collect();
        idle.sort_unstable_by_key(|(_, inbox)| std::cmp::Reverse(inbox.bytes));
        for (id, inbox) in idle {
            if self.held_bytes <= MAX_HELD_BYTES / 2 {
                break;
            }
            self.held_bytes -= inbox.bytes;
            let is_ended = inbox.is_ended;
            *inbox = Inbox { user: User::Evicted, is_ended, ..Inbox::default() };
            if !is_ended {
                self.to_close.push_back(*id);
            }
        }
        wake(&mut self.requests);
    }

    /// Returns ready when there is room for another response.
    pub(super) fn poll_room(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.held_bytes <= MAX_HELD_BYTES {
            return Poll::Ready(());
        }
        self.reading = Some(cx.waker().clone());
        Poll::Pending
    }

    fn wake_reading(&mut self) {
        if self.held_bytes <= MAX_HELD_BYTES {
            wake(&mut self.reading);
        }
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}
