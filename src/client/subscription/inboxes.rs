//! Messages of the watches of one stream that wait to be read, and requests that wait to be sent.

use std::{
    collections::{HashMap, VecDeque},
    task::{Context, Poll, Waker},
};

use prost::Message;
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
    to_close: Vec<u32>,
    /// Watches that may have to be paused or resumed.
    to_pause: Vec<u32>,
    requests: Option<Waker>,
    /// Bytes in all inboxes.
    held_bytes: usize,
    reading: Option<Waker>,
    /// Status that the stream has ended with.
    end: Option<Status>,
}

#[derive(Debug, Default)]
struct Inbox {
    /// Messages with their sizes.
    messages: VecDeque<(usize, WatchResponse)>,
    bytes: usize,
    stage: Stage,
    is_paused: bool,
    /// True if it is paused as of the last request.
    was_paused: bool,
    waker: Option<Waker>,
}

/// Stage of a watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Open,
    /// The server has ended it.
    Ended,
    /// Nobody reads it any more. Its id is in use until the server has ended it.
    Closed,
}

/// Bytes of messages in an inbox above which its watch is paused.
const PAUSE_BYTES: usize = 256 << 10;
/// Bytes in all inboxes above which nothing more is read. Until the server has paused a watch, it may send as much as the stream's
/// window has room for.
const MAX_HELD_BYTES: usize = 64 << 20;
/// Largest request that opens watches. A larger one ends the stream with all its watches if it is above the server's limit.
pub(super) const MAX_REQUEST_BYTES: usize = 4 << 10;

// === impl Inboxes ===

impl Inboxes {
    /// Requests a watch. Returns its id.
    pub(super) fn open(&mut self, request: WatchRequest) -> u32 {
        // Ids are in use one by one, so the next one is after all of them.
        let id = self.free.pop().unwrap_or_else(|| u32::try_from(self.by_id.len()).unwrap_or(u32::MAX - 1) + 1);
        self.by_id.insert(id, Inbox::default());
        self.to_open.push_back(OpenWatch { id, watch: Some(request) });
        self.wake_requests();
        id
    }

    /// Drops a watch and its messages.
    pub(super) fn close(&mut self, id: u32) {
        let Some(inbox) = self.by_id.get_mut(&id) else { return };
        self.held_bytes -= inbox.bytes;
        let before = self.to_open.len();
        self.to_open.retain(|open| open.id != id);
        if inbox.stage == Stage::Ended || self.to_open.len() < before {
            self.by_id.remove(&id);
            self.free.push(id);
        } else {
            *inbox = Inbox { stage: Stage::Closed, ..Inbox::default() };
            self.to_close.push(id);
            self.wake_requests();
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
                self.to_pause.push(id);
                self.wake_requests();
            }
            self.wake_reading();
            return Poll::Ready(Some(Ok(message)));
        }
        if inbox.stage == Stage::Ended {
            return Poll::Ready(None);
        }
        if let Some(end) = &self.end {
            inbox.stage = Stage::Ended;
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
                if inbox.stage == Stage::Closed {
                    if ended {
                        self.by_id.remove(&id);
                        self.free.push(id);
                    }
                    continue;
                }
                inbox.messages.extend(sized.iter().cloned());
                if ended {
                    inbox.stage = Stage::Ended;
                }
                inbox.bytes += bytes;
                self.held_bytes += bytes;
                if inbox.bytes > PAUSE_BYTES && !inbox.is_paused {
                    inbox.is_paused = true;
                    self.to_pause.push(id);
                }
                if let Some(waker) = inbox.waker.take() {
                    waker.wake();
                }
            }
        }
        if !self.to_pause.is_empty() {
            self.wake_requests();
        }
    }

    /// Ends the stream.
    pub(super) fn end(&mut self, status: Status) {
        self.end = Some(status);
        for inbox in self.by_id.values_mut() {
            if let Some(waker) = inbox.waker.take() {
                waker.wake();
            }
        }
        self.wake_requests();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the next request; none after the end of the stream.
    pub(super) fn poll_request(&mut self, cx: &Context<'_>) -> Poll<Option<SubscribeRequest>> {
        if self.end.is_some() {
            return Poll::Ready(None);
        }
        let mut request = SubscribeRequest { close: std::mem::take(&mut self.to_close), ..SubscribeRequest::default() };
        for id in std::mem::take(&mut self.to_pause) {
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

    /// Returns ready when there is room for another response.
    pub(super) fn poll_room(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.held_bytes <= MAX_HELD_BYTES {
            return Poll::Ready(());
        }
        self.reading = Some(cx.waker().clone());
        Poll::Pending
    }

    fn wake_requests(&mut self) {
        if let Some(waker) = self.requests.take() {
            waker.wake();
        }
    }

    fn wake_reading(&mut self) {
        if self.held_bytes <= MAX_HELD_BYTES
            && let Some(waker) = self.reading.take()
        {
            waker.wake();
        }
    }
}
