//! Response body of a Subscribe stream: polls its requests and its watches, in turn, and hands out one response at a time.
//!
//! - A turn of a watch hands out at most [`TURN_BYTES`], or one message. What does not fit into the room waits for its next turn.
//! - Requests are read while fewer than [`MAX_OPENING`] watches are being opened, so a client cannot make the server hold more
//!   than one request beyond those.
//! - A paused watch is polled without room, at least each [`PAUSE_CHECK`], since a watch with events to hand out is not woken: its
//!   queue fills, and it notices what ends it before these events.

mod bounded_body;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime},
};

use bytes::{Buf, BytesMut};
use futures_util::{
    StreamExt,
    future::{AbortHandle, Abortable, Aborted},
    stream::FuturesUnordered,
};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Code, Status};
use tracing::{Instrument, Span, debug_span};

use super::{
    deliveries::Deliveries,
    ready_list::{ReadyList, WatchWaker},
    requests::Requests,
};
use crate::{
    grpc::{
        audited_call::AuditedCall,
        call::{Call, Subscription},
        frame,
        service::Service,
        status::ApiError,
        watch::{self, WatchBody},
    },
    proto::pb,
    transport::{BoundedBody, BoundedFrame, Chunk, Room},
};

/// Response body of a Subscribe stream.
pub(in crate::grpc) struct SubscribeBody {
    service: Service,
    requests: Requests,
    /// Properties of the stream, which its watches share.
    call: Call,
    /// Span of the stream.
    span: Span,
    stream_id: u64,
    began: Instant,
    /// Watches that have not ended, by id.
    watches: HashMap<u32, Subscribed>,
    /// Ids of watches that are paused.
    paused: HashSet<u32>,
    /// Next turn of the paused watches; none without any.
    pause_check: Option<Pin<Box<Sleep>>>,
    opening: FuturesUnordered<Opening>,
    /// Watches of the last request that are not being opened yet.
    to_open: VecDeque<pb::OpenWatch>,
    ready: Arc<ReadyList>,
    /// Watches whose turn comes, in order.
    turns: VecDeque<u32>,
    /// Watches that were closed or refused, and the last messages for them.
    ended: VecDeque<(u32, Chunk)>,
    deliveries: Deliveries,
    /// Number of bytes that the watches have encoded and not handed out.
    encoded_bytes: usize,
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    is_draining: bool,
    /// Status with which the stream ends after its last watch.
    end: Option<Status>,
    is_over: bool,
}

/// Watch of a stream.
enum Subscribed {
    /// It is to be opened.
    Waiting,
    Opening(AbortHandle),
    Open(Box<OpenWatch>),
}

struct OpenWatch {
    body: WatchBody,
    entry: Arc<WatchWaker>,
    /// The same, as a waker.
    waker: Waker,
    audited: Option<AuditedCall>,
    /// True while its turn comes.
    has_turn: bool,
    /// Number of bytes that it has encoded and not handed out.
    encoded_bytes: usize,
}

/// A watch that is being opened: its id, and its entry in the audit log.
type Opening = Pin<Box<dyn Future<Output = (u32, Option<AuditedCall>, Result<Opened, Aborted>)> + Send>>;
type Opened = Result<WatchBody, ApiError>;

/// Result of one turn of a watch.
enum Turn {
    /// It has nothing for now.
    Nothing,
    /// Messages, and possibly more later.
    Messages(Chunk),
    /// Its last messages, or none.
    Ended(Chunk),
    /// Its next data needs this many bytes.
    TooLarge(usize),
}

/// Largest size of what a watch hands out in its turn, unless one message is larger.
const TURN_BYTES: usize = 16 << 10;
/// Size up to which a response is filled.
const RESPONSE_BYTES: usize = 64 << 10;
/// Least room in which it is worth to poll a watch.
const LEAST_ROOM: usize = 64;
/// Largest number of watches that get their turn before others of the server do.
const MAX_TURNS: usize = 1024;
/// Largest number of watches that are being opened at a time (those of a resource without a state wait for it), and of refused
/// ones whose messages wait for the client.
const MAX_OPENING: usize = 64;
/// Longest time after which a paused watch notices its end.
const PAUSE_CHECK: Duration = Duration::from_secs(1);
/// Largest number of requests and opened watches that are handled before the watches get their turn.
const MAX_STEPS: usize = 64;

// === impl SubscribeBody ===

impl SubscribeBody {
    pub(super) fn new(service: Service, requests: Requests, call: Call, stream_id: u64) -> Self {
        Self {
            drained: Box::pin(service.draining().clone().cancelled_owned()),
            service,
            requests,
            call,
            span: Span::current(),
            stream_id,
            began: Instant::now(),
            watches: HashMap::new(),
            paused: HashSet::new(),
            pause_check: None,
            opening: FuturesUnordered::new(),
            to_open: VecDeque::new(),
            ready: Arc::default(),
            turns: VecDeque::new(),
            ended: VecDeque::new(),
            deliveries: Deliveries::default(),
            encoded_bytes: 0,
            is_draining: false,
            end: None,
            is_over: false,
        }
    }

    /// Reads requests, and opens watches, until neither can go on.
    fn poll_requests(&mut self, cx: &mut Context<'_>) {
        for _ in 0..MAX_STEPS {
            while self.opening.len() < MAX_OPENING
                && self.ended.len() < MAX_OPENING
                && let Some(open) = self.to_open.pop_front()
            {
                self.begin(open);
            }
            if let Poll::Ready(Some((id, audited, opened))) = self.opening.poll_next_unpin(cx) {
                // Otherwise it was closed meanwhile, and the id may be in use again.
                if let Ok(opened) = opened {
                    self.has_opened(id, audited, opened);
                }
                continue;
            }
            if !self.to_open.is_empty() || self.ended.len() >= MAX_OPENING || self.end.is_some() {
                return;
            }
            let applied = match self.requests.poll_next(cx) {
                Poll::Ready(Some(request)) => request.and_then(|request| self.apply(request)),
                Poll::Ready(None) | Poll::Pending => return,
            };
            if let Err(refusal) = applied {
                self.end_with(&refusal);
            }
        }
        // There may be more.
        cx.waker().wake_by_ref();
    }

    fn apply(&mut self, request: pb::SubscribeRequest) -> Result<(), ApiError> {
        let pb::SubscribeRequest { open, close, pause, resume } = request;
        for id in close {
            self.close(id);
        }
        for open in open {
            if open.id == 0 || self.watches.contains_key(&open.id) {
                let message = format!("id {} is 0, or that of a watch that has not ended", open.id);
                return Err(ApiError::Invalid { reason: "SUBSCRIBE_INVALID", field: "open.id", message });
            }
            self.watches.insert(open.id, Subscribed::Waiting);
            self.to_open.push_back(open);
        }
        self.paused.extend(pause.into_iter().filter(|id| self.watches.contains_key(id)));
        for id in resume {
            if self.paused.remove(&id) {
                self.take_turn(id);
            }
        }
        Ok(())
    }

    /// Begins to open a watch.
    fn begin(&mut self, open: pb::OpenWatch) {
        let pb::OpenWatch { id: watch_id, watch: request } = open;
        let Some(subscribed) = self.watches.get_mut(&watch_id) else { return };
        let (handle, registration) = AbortHandle::new_pair();
        *subscribed = Subscribed::Opening(handle);
        let (stream_id, began) = (self.stream_id, self.began);
        let (service, call) = (self.service.clone(), self.call.of_watch(Subscription { stream_id, watch_id, began }));
        let audited = call.audited.clone();
        let end_reason = tracing::field::Empty;
        let span = debug_span!(parent: &self.span, "watch", stream_id, watch_id, informerd.end_reason = end_reason);
        let opened = async move {
            // The stream may be older than the credentials are valid.
            if call.identity.as_ref().is_some_and(|identity| identity.has_expired(SystemTime::now())) {
                return Err(ApiError::CredentialsExpired);
            }
            watch::open(&service, request.unwrap_or_default(), call).await
        };
        let opened = Abortable::new(opened.instrument(span), registration);
        self.opening.push(Box::pin(async move { (watch_id, audited, opened.await) }));
    }

    fn has_opened(&mut self, id: u32, audited: Option<AuditedCall>, opened: Opened) {
        match opened {
            Ok(body) => {
                let Some(subscribed) = self.watches.get_mut(&id) else { return };
                let entry = WatchWaker::new(id, &self.ready);
                let waker = Waker::from(Arc::clone(&entry));
                let open = OpenWatch { body, entry, waker, audited, has_turn: false, encoded_bytes: 0 };
                *subscribed = Subscribed::Open(Box::new(open));
                self.take_turn(id);
            }
            Err(refusal) => {
                let status = self.service.metrics().refuse(&refusal);
                if let Some(audited) = audited {
                    audited.refuses(&status);
                }
                self.remove(id);
                self.ended.push_back((id, error(&refusal)));
            }
        }
    }

    /// Closes a watch; nothing if it has ended.
    fn close(&mut self, id: u32) {
        let Some(subscribed) = self.remove(id) else { return };
        match subscribed {
            Subscribed::Waiting => self.to_open.retain(|open| open.id != id),
            Subscribed::Opening(opening) => opening.abort(),
            Subscribed::Open(watch) => watch.ends(Code::Ok),
        }
        self.ended.push_back((id, Chunk::default()));
    }

    fn remove(&mut self, id: u32) -> Option<Subscribed> {
        self.paused.remove(&id);
        let removed = self.watches.remove(&id);
        if let Some(Subscribed::Open(watch)) = &removed {
            self.encoded_bytes -= watch.encoded_bytes;
        }
        removed
    }

    /// Gives a watch a turn.
    fn take_turn(&mut self, id: u32) {
        if let Some(Subscribed::Open(watch)) = self.watches.get_mut(&id)
            && !std::mem::replace(&mut watch.has_turn, true)
        {
            self.turns.push_back(id);
        }
    }

    /// Ends the stream: first its watches, then the RPC with the same status.
    fn end_with(&mut self, refusal: &ApiError) {
        self.requests.ends();
        self.to_open.clear();
        self.end = Some(self.service.metrics().refuse(refusal));
        let last = error(refusal);
        let ids: Vec<u32> = self.watches.keys().copied().collect();
        for id in ids {
            if let Some(Subscribed::Open(watch)) = self.watches.get_mut(&id) {
                watch.body.refuse(refusal);
                self.take_turn(id);
            } else {
                // Dropping the future of one that is being opened cancels it.
                self.remove(id);
                self.ended.push_back((id, last.clone()));
            }
        }
        self.opening.clear();
    }

    /// Lets every watch notice the drain; paused ones are resumed.
    fn drain(&mut self) {
        self.is_draining = true;
        self.paused.clear();
        let ids: Vec<u32> = self.watches.keys().copied().collect();
        for id in ids {
            self.take_turn(id);
        }
    }

    /// Gives the paused watches a turn when it is time.
    fn poll_paused(&mut self, cx: &mut Context<'_>) {
        while !self.paused.is_empty() {
            let check = self.pause_check.get_or_insert_with(|| Box::pin(tokio::time::sleep(PAUSE_CHECK)));
            if check.as_mut().poll(cx).is_pending() {
                return;
            }
            self.pause_check = None;
            for id in self.paused.iter().copied().collect::<Vec<_>>() {
                self.take_turn(id);
            }
        }
        self.pause_check = None;
    }

    /// Collects what the watches hand out, up to the room. Returns the number of bytes that are needed if nothing fits.
    fn poll_turns(&mut self, cx: &mut Context<'_>, room: Room) -> Option<usize> {
        let most = room.bytes.min(RESPONSE_BYTES);
        while let Some((id, last)) = self.ended.pop_front() {
            let bytes = self.deliveries.with(last.remaining());
            if bytes > most && (room.is_strict || !self.deliveries.is_empty()) {
                self.ended.push_front((id, last));
                return self.deliveries.is_empty().then_some(bytes);
            }
            self.deliveries.add(id, last, true);
        }
        for id in self.ready.take() {
            self.take_turn(id);
        }
        let (mut again, mut needed) = (Vec::new(), None);
        for _ in 0..MAX_TURNS {
            let Some(id) = self.turns.pop_front() else { break };
            let left = most.saturating_sub(self.deliveries.with(0));
            let is_alone = self.deliveries.is_empty();
            if left < LEAST_ROOM && !is_alone {
                self.turns.push_front(id);
                break;
            }
            match self.turn(id, Room { bytes: left, is_strict: room.is_strict || !is_alone }) {
                Turn::Nothing => {}
                Turn::Messages(chunk) => {
                    self.deliveries.add(id, chunk, false);
                    again.push(id);
                }
                Turn::Ended(chunk) => self.deliveries.add(id, chunk, true),
                Turn::TooLarge(bytes) => {
                    self.give_turn_back(id);
                    needed = is_alone.then(|| self.deliveries.with(0).saturating_add(bytes));
                    break;
                }
            }
        }
        for id in again {
            self.take_turn(id);
        }
        if self.deliveries.is_empty() && needed.is_none() && !self.turns.is_empty() {
            // Others of the server come first.
            cx.waker().wake_by_ref();
        }
        needed
    }

    fn give_turn_back(&mut self, id: u32) {
        if let Some(Subscribed::Open(watch)) = self.watches.get_mut(&id) {
            watch.has_turn = true;
            self.turns.push_front(id);
        }
    }

    /// Polls one watch. If the room is not strict, its next message is handed out whatever its size.
    fn turn(&mut self, id: u32, room: Room) -> Turn {
        let Some(Subscribed::Open(watch)) = self.watches.get_mut(&id) else { return Turn::Nothing };
        watch.has_turn = false;
        watch.entry.clear();
        let turn = watch.poll(room, self.paused.contains(&id));
        let encoded_bytes = watch.body.encoded_bytes();
        self.encoded_bytes = self.encoded_bytes + encoded_bytes - watch.encoded_bytes;
        watch.encoded_bytes = encoded_bytes;
        if let Turn::Ended(_) = turn {
            self.remove(id);
        }
        turn
    }

    /// Returns the status with which the stream ends now.
    fn take_end(&mut self) -> Option<Status> {
        if !self.watches.is_empty() || !self.ended.is_empty() {
            return None;
        }
        let is_complete = self.requests.are_over() && self.end.is_none();
        let drained = || self.is_draining.then(|| self.service.metrics().refuse(&ApiError::Draining));
        self.end.take().or_else(drained).or_else(|| is_complete.then(|| Status::ok("")))
    }

    fn open_watches(&mut self) -> impl Iterator<Item = (u32, &mut OpenWatch)> {
        self.watches.iter_mut().filter_map(|(id, subscribed)| match subscribed {
            Subscribed::Open(watch) => Some((*id, &mut **watch)),
            Subscribed::Waiting | Subscribed::Opening(_) => None,
        })
    }
}

// === impl OpenWatch ===

impl OpenWatch {
    fn poll(&mut self, room: Room, is_paused: bool) -> Turn {
        if is_paused && !self.body.has_ended() {
            match self.poll_body(Room { bytes: 0, is_strict: true }) {
                // It waits until it is resumed.
                Turn::TooLarge(_) if !self.body.has_ended() => return Turn::Nothing,
                Turn::TooLarge(_) => {}
                turn => return turn,
            }
        }
        let in_turn = Room { bytes: room.bytes.min(TURN_BYTES), is_strict: true };
        match self.poll_body(in_turn) {
            Turn::TooLarge(bytes) if bytes <= room.bytes => self.poll_body(Room { is_strict: true, ..room }),
            Turn::TooLarge(_) if !room.is_strict => self.poll_body(room),
            turn => turn,
        }
    }

    fn poll_body(&mut self, room: Room) -> Turn {
        match self.next_frame(room) {
            Poll::Pending => Turn::Nothing,
            Poll::Ready(Some(Ok(BoundedFrame::TooLarge(bytes)))) => Turn::TooLarge(bytes),
            Poll::Ready(Some(Ok(BoundedFrame::Frame(frame)))) => match frame.into_data() {
                Ok(chunk) => {
                    if let Some(audited) = &self.audited {
                        audited.sends_bytes(chunk.remaining());
                    }
                    if !self.body.has_ended() {
                        return Turn::Messages(chunk);
                    }
                    // The trailers follow, and need no room.
                    if let Poll::Ready(Some(Ok(BoundedFrame::Frame(frame)))) = self.next_frame(room) {
                        self.has_trailers(&frame);
                    }
                    Turn::Ended(chunk)
                }
                Err(trailers) => {
                    self.has_trailers(&trailers);
                    Turn::Ended(Chunk::default())
                }
            },
            Poll::Ready(Some(Err(_)) | None) => Turn::Ended(Chunk::default()),
        }
    }

    fn next_frame(&mut self, room: Room) -> Poll<Option<Result<BoundedFrame, Status>>> {
        self.body.poll_bounded(&mut Context::from_waker(&self.waker), room)
    }

    fn has_trailers(&self, frame: &http_body::Frame<Chunk>) {
        let status = frame.trailers_ref().and_then(Status::from_header_map);
        self.ends(status.map_or(Code::Unknown, |status| status.code()));
    }

    /// Records the code with which the watch has ended.
    fn ends(&self, code: Code) {
        if let Some(audited) = &self.audited {
            audited.ends(code);
        }
    }
}

/// Encodes the last message of a watch.
fn error(refusal: &ApiError) -> Chunk {
    let mut buffer = BytesMut::new();
    frame::append(&mut buffer, &frame::error(None, refusal.to_proto()));
    Chunk::from(buffer.freeze())
}

impl fmt::Debug for SubscribeBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubscribeBody")
            .field("stream_id", &self.stream_id)
            .field("watches", &self.watches.len())
            .finish_non_exhaustive()
    }
}
