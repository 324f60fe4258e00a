//! Response body of a Subscribe stream: polls its requests and its watches, in turn, and hands out one response at a time.
//!
//! - A turn of a watch hands out at most 16 KiB, or one message. What does not fit into the room waits for its next turn.
//! - Requests are read until [the queue of openings is full](crate::grpc::opening), so a client cannot make the server hold more
//!   than one request beyond those.
//! - Watches that are attached (`lanes.rs`) have no body; `turns` and the ready list have the keys of the bodies of the others.
//! - A paused watch is polled without room, at least each [`PAUSE_CHECK`], since a watch with events to hand out is not woken: its
//!   queue fills, and it notices what ends it before these events.

mod attaching;
mod bounded_body;
mod open_watch;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use futures_util::{
    StreamExt,
    future::{AbortHandle, Abortable, Aborted},
    stream::FuturesUnordered,
};
use prost::Message;
use slab::Slab;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Code, Status};
use tracing::{Instrument, Span, debug_span};

use self::open_watch::{OpenWatch, Turn};
use super::{
    deliveries::Deliveries,
    lanes::{Lanes, LanesTurn},
    ready_list::ReadyList,
    requests::Requests,
};
use crate::{
    grpc::{
        audited_call::AuditedCall,
        call::{Call, Subscription},
        frame,
        opening::{Openings, QueuedOpenings},
        quotas::QuotaPermit,
        service::Service,
        status::ApiError,
        watch::{self, WatchBody},
    },
    proto::pb,
    transport::{BoundedBody, Chunk, Room},
};

/// Response body of a Subscribe stream.
pub(in crate::grpc) struct SubscribeBody {
    service: Service,
    requests: Requests,
    /// Properties of the stream, which its watches share.
    call: Call,
    /// Place under the quota of the caller.
    _permit: QuotaPermit,
    /// Span of the stream.
    span: Span,
    stream_id: u64,
    began: Instant,
    /// Watches that have not ended, by id.
    watches: HashMap<u32, Subscribed>,
    /// Open watches that are apart.
    bodies: Slab<Box<OpenWatch>>,
    /// Lanes of the attached watches, by the ids of their resources.
    lanes: BTreeMap<u64, Lanes>,
    /// First id of the resource whose lanes have the next turn.
    next_lanes: u64,
    /// True if a watch was attached, and the lanes were not polled since.
    has_attached: bool,
    /// Ids of watches that are paused.
    paused: HashSet<u32>,
    /// Next turn of the paused watches; none without any.
    pause_check: Option<Pin<Box<Sleep>>>,
    opening: FuturesUnordered<Opening>,
    openings: Arc<Openings>,
    /// Watches that are not being opened yet.
    to_open: QueuedOpenings,
    ready: Arc<ReadyList>,
    /// Keys of the bodies whose turn comes, in order, perhaps with some of bodies that are gone. A body has one turn in a response:
    /// its messages of a second one could join a delivery that comes before those of the first.
    turns: VecDeque<usize>,
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
    /// It is to be opened; its place in the queue.
    Queued(u64),
    /// Its entry in the audit log.
    Opening(AbortHandle, Option<AuditedCall>),
    /// Key of its body.
    Open(usize),
    /// Id of its resource, and key of its lane.
    Attached(u64, usize),
}

/// A watch that is being opened: its id.
type Opening = Pin<Box<dyn Future<Output = (u32, Result<Opened, Aborted>)> + Send>>;
type Opened = Result<WatchBody, ApiError>;

/// Size up to which a response is filled.
const RESPONSE_BYTES: usize = 64 << 10;
/// Least room in which it is worth to poll a watch.
const LEAST_ROOM: usize = 64;
/// Largest number of watches that get their turn before others of the server do.
const MAX_TURNS: usize = 1024;
/// Largest number of refused watches whose messages wait for the client.
const MAX_REFUSED: usize = 64;
/// Longest time after which a paused watch notices its end.
const PAUSE_CHECK: Duration = Duration::from_secs(1);
/// Largest number of requests and opened watches that are handled before the watches get their turn.
const MAX_STEPS: usize = 64;

// === impl Subscribed ===

impl Subscribed {
    /// Returns the key of the body.
    fn key(&self) -> Option<usize> {
        match self {
            Self::Queued(_) | Self::Opening(..) | Self::Attached(..) => None,
            Self::Open(key) => Some(*key),
        }
    }
}

// === impl SubscribeBody ===

impl SubscribeBody {
    pub(super) fn new(service: Service, requests: Requests, call: Call, stream_id: u64, permit: QuotaPermit) -> Self {
        Self {
            drained: Box::pin(service.draining().clone().cancelled_owned()),
            service,
            requests,
            call,
            _permit: permit,
            span: Span::current(),
            stream_id,
            began: Instant::now(),
            watches: HashMap::new(),
            bodies: Slab::new(),
            lanes: BTreeMap::new(),
            next_lanes: 0,
            has_attached: false,
            paused: HashSet::new(),
            pause_check: None,
            opening: FuturesUnordered::new(),
            openings: Arc::default(),
            to_open: QueuedOpenings::default(),
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

    /// Returns the bytes that the stream holds of its requests: they may be many times as large as these were.
    fn kept_of_requests(&self) -> usize {
        self.to_open.held() + self.ended.len() * size_of::<(u32, Chunk)>()
    }

    /// Reads requests, and opens watches, until neither can go on.
    fn poll_requests(&mut self, cx: &mut Context<'_>) {
        for _ in 0..MAX_STEPS {
            while self.openings.has_room()
                && self.ended.len() < MAX_REFUSED
                && let Some(open) = self.to_open.pop()
            {
                self.begin(open);
            }
            if let Poll::Ready(Some((id, opened))) = self.opening.poll_next_unpin(cx) {
                // Otherwise it was closed meanwhile, and the id may be in use again.
                if let Ok(opened) = opened {
                    self.has_opened(id, opened);
                }
                continue;
            }
            if self.ended.len() >= MAX_REFUSED || self.end.is_some() {
                return;
            }
            if !self.to_open.is_empty() && self.openings.has_room() {
                // Some have begun to wait just now.
                continue;
            }
            if self.to_open.is_full() {
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
            self.watches.insert(open.id, Subscribed::Queued(self.to_open.push(open)));
        }
        for id in pause {
            if self.watches.contains_key(&id) && self.paused.insert(id) {
                self.detach(id);
            }
        }
        for id in resume {
            if self.paused.remove(&id)
                && let Some(key) = self.watches.get(&id).and_then(Subscribed::key)
            {
                self.take_turn(key);
            }
        }
        Ok(())
    }

    /// Begins to open a watch.
    fn begin(&mut self, open: pb::OpenWatch) {
        let pb::OpenWatch { id: watch_id, watch: request } = open;
        let Some(subscribed) = self.watches.get_mut(&watch_id) else { return };
        let (handle, registration) = AbortHandle::new_pair();
        let (stream_id, began) = (self.stream_id, self.began);
        let opening = Arc::new(self.openings.begin(request.as_ref().map_or(0, Message::encoded_len)));
        let place = Subscription { stream_id, watch_id, began, opening };
        let (service, call) = (self.service.clone(), self.call.of_watch(place));
        *subscribed = Subscribed::Opening(handle, call.audited.clone());
        let end_reason = tracing::field::Empty;
        let span = debug_span!(parent: &self.span, "watch", stream_id, watch_id, informerd.end_reason = end_reason);
        let opened = async move {
            // The credentials with which the stream began may be no longer valid.
            let call = service.begun_on_stream(call).await?;
            watch::open(&service, request.unwrap_or_default(), call).await
        };
        let opened = Abortable::new(opened.instrument(span), registration);
        self.opening.push(Box::pin(async move { (watch_id, opened.await) }));
    }

    fn has_opened(&mut self, id: u32, opened: Opened) {
        let Some(Subscribed::Opening(_, audited)) = self.watches.remove(&id) else { return };
        match opened {
            Ok(body) => self.insert(id, body, audited),
            Err(refusal) => {
                let status = self.service.metrics().refuse(&refusal);
                if let Some(audited) = audited {
                    audited.ends(status.code());
                    audited.refuses(&status);
                }
                self.paused.remove(&id);
                self.ended.push_back((id, error(&refusal)));
            }
        }
    }

    /// Adds the body of a watch, and gives it a turn.
    fn insert(&mut self, id: u32, body: WatchBody, audited: Option<AuditedCall>) {
        let entry = self.bodies.vacant_entry();
        let key = entry.key();
        entry.insert(Box::new(OpenWatch::new(id, key, body, audited, &self.ready)));
        self.watches.insert(id, Subscribed::Open(key));
        self.take_turn(key);
    }

    /// Closes a watch; nothing if it has ended.
    fn close(&mut self, id: u32) {
        let Some(subscribed) = self.watches.remove(&id) else { return };
        self.paused.remove(&id);
        match subscribed {
            Subscribed::Queued(place) => self.to_open.remove(place),
            Subscribed::Opening(opening, audited) => {
                opening.abort();
                if let Some(audited) = audited {
                    audited.ends(Code::Ok);
                }
            }
            Subscribed::Open(key) => self.remove_body(key).ends(Code::Ok),
            Subscribed::Attached(resource, lane) => self.leave(id, resource, lane),
        }
        self.ended.push_back((id, Chunk::default()));
    }

    /// Removes a watch that has ended.
    fn remove(&mut self, key: usize) -> Box<OpenWatch> {
        let removed = self.remove_body(key);
        self.watches.remove(&removed.id);
        self.paused.remove(&removed.id);
        removed
    }

    fn remove_body(&mut self, key: usize) -> Box<OpenWatch> {
        let removed = self.bodies.remove(key);
        self.encoded_bytes -= removed.encoded_bytes;
        removed
    }

    /// Gives a body a turn.
    fn take_turn(&mut self, key: usize) {
        if let Some(watch) = self.bodies.get_mut(key)
            && !std::mem::replace(&mut watch.has_turn, true)
        {
            self.turns.push_back(key);
        }
    }

    /// Ends the stream: first its watches, then the RPC with the same status.
    fn end_with(&mut self, refusal: &ApiError) {
        self.to_open.clear();
        let status = self.service.metrics().refuse(refusal);
        let last = error(refusal);
        self.detach_all();
        let not_open = |_: &u32, subscribed: &mut Subscribed| !matches!(subscribed, Subscribed::Open(_));
        for (id, subscribed) in self.watches.extract_if(not_open) {
            if let Subscribed::Opening(_, Some(audited)) = subscribed {
                audited.ends(status.code());
            }
            self.ended.push_back((id, last.clone()));
        }
        self.end = Some(status);
        // Dropping the futures of those that are being opened cancels them.
        self.opening.clear();
        for (_, watch) in &mut self.bodies {
            watch.body.refuse(refusal);
        }
        self.take_all_turns();
    }

    /// Lets every watch notice the drain; paused ones are resumed.
    fn drain(&mut self) {
        self.is_draining = true;
        self.paused.clear();
        self.detach_all();
        self.take_all_turns();
    }

    fn take_all_turns(&mut self) {
        let keys: Vec<usize> = self.bodies.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.take_turn(key);
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
            let paused = self.paused.iter().filter_map(|id| self.watches.get(id));
            for key in paused.filter_map(Subscribed::key).collect::<Vec<_>>() {
                self.take_turn(key);
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
        for key in self.ready.take() {
            self.take_turn(key);
        }
        match self.poll_lanes(cx, most, room.is_strict) {
            LanesTurn::TooLarge(bytes) => return Some(bytes),
            // Their watches have messages in this response.
            LanesTurn::Stopped => return None,
            LanesTurn::Full if self.turns.is_empty() => return None,
            LanesTurn::Nothing | LanesTurn::Full => {}
        }
        let (mut again, mut needed) = (Vec::new(), None);
        for _ in 0..MAX_TURNS {
            let Some(key) = self.turns.pop_front() else { break };
            // Otherwise this was the turn of a body that is gone, whose key another one has by now.
            let Some(id) = self.bodies.get(key).filter(|watch| watch.has_turn).map(|watch| watch.id) else { continue };
            let used = self.deliveries.with(0);
            let left = most.saturating_sub(used);
            let is_alone = self.deliveries.is_empty();
            if left < LEAST_ROOM && !is_alone {
                self.turns.push_front(key);
                break;
            }
            match self.turn(key, Room { bytes: left, is_strict: room.is_strict || !is_alone }) {
                Turn::Nothing => self.attach(key),
                Turn::Messages(chunk) => {
                    self.deliveries.add(id, chunk, false);
                    again.push(key);
                }
                Turn::Ended(chunk) => {
                    self.remove(key);
                    self.deliveries.add(id, chunk, true);
                }
                Turn::TooLarge(bytes) => {
                    self.give_turn_back(key);
                    needed = is_alone.then(|| used.saturating_add(bytes));
                    break;
                }
            }
        }
        for key in again {
            self.take_turn(key);
        }
        if std::mem::take(&mut self.has_attached) {
            // The lanes are polled, and wait for what follows.
            cx.waker().wake_by_ref();
        }
        if self.deliveries.is_empty() && needed.is_none() && !self.turns.is_empty() {
            // Others of the server come first.
            cx.waker().wake_by_ref();
        }
        needed
    }

    fn give_turn_back(&mut self, key: usize) {
        if let Some(watch) = self.bodies.get_mut(key) {
            watch.has_turn = true;
            self.turns.push_front(key);
        }
    }

    /// Polls one body.
    fn turn(&mut self, key: usize, room: Room) -> Turn {
        let Some(watch) = self.bodies.get_mut(key) else { return Turn::Nothing };
        watch.has_turn = false;
        watch.entry.clear();
        let is_paused = self.paused.contains(&watch.id);
        let turn = watch.poll(room, is_paused);
        let encoded_bytes = watch.body.encoded_bytes();
        self.encoded_bytes = self.encoded_bytes + encoded_bytes - watch.encoded_bytes;
        watch.encoded_bytes = encoded_bytes;
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
}

/// Encodes the last message of a watch.
fn error(refusal: &ApiError) -> Chunk {
    let mut buffer = BytesMut::new();
    frame::append(&mut buffer, &frame::error(None, refusal.to_proto()));
    Chunk::from(buffer.freeze())
}

debug_fields!(SubscribeBody, this => { stream_id: this.stream_id, watches: this.watches.len() });
