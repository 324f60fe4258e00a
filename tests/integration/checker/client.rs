//! One logical client: it connects, reads piece by piece, leaves and resumes, and records everything that it receives. It has a Watch
//! of its own, or a watch of a Subscribe stream that it shares with others; the harness polls that stream.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body::Body as _;
use informerd::{
    grpc::{self, Routes},
    proto::pb,
    transport::{Chunk, Peer},
};
use prost::Message;
use tonic::body::Body;
use tower::Service;

use super::{
    ask::RESOURCES,
    record::{End, History, Moment, Plan, Received, Record, Segment, Served, Start, Status},
};

pub(crate) struct Client {
    pub(crate) record: Record,
    connection: Connection,
    flag: Arc<Flag>,
    /// True if it has found nothing to read, and waits.
    waits: bool,
    /// Number of messages in the last piece.
    last_piece: usize,
}

enum Connection {
    None,
    Asked(Answer),
    Open(Pin<Box<grpc::Body>>),
    Shared(Shared),
}

/// Watch of a Subscribe stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared {
    /// Index of the stream.
    pub(crate) stream: usize,
    pub(crate) id: u32,
    pub(crate) stage: Stage,
    pub(crate) is_paused: bool,
}

/// Stage of a watch of a Subscribe stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits for its join.
    Opening,
    Joined,
    /// The server has refused it, and its client has not received that.
    Refused,
}

pub(crate) type Answer = <Routes as Service<http::Request<Body>>>::Future;

/// Set once the client is woken.
#[derive(Default)]
pub(crate) struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Flag {
    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn lower(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Client {
    pub(crate) fn new(plan: Plan, resource: usize) -> Self {
        let record = Record { plan, resource, segments: Vec::new() };
        Self { record, connection: Connection::None, flag: Arc::default(), waits: false, last_piece: 0 }
    }

    pub(crate) fn open(&mut self, routes: &mut Routes, start: Start, min: Option<String>, asked: Moment) {
        let message = self.begin(start, min, asked).encode_to_vec();
        let mut request = http::Request::post("/informerd.v1.InformerService/Watch")
            .header("content-type", "application/grpc")
            .body(framed(&message))
            .unwrap();
        request.extensions_mut().insert(Peer::Tcp(([10, 0, 0, self.record.plan.peer], 40_000).into()));
        self.connection = Connection::Asked(routes.call(request));
    }

    /// Begins a watch of a Subscribe stream; returns its request.
    pub(crate) fn share(
        &mut self,
        (stream, id): (usize, u32),
        start: Start,
        min: Option<String>,
        asked: Moment,
    ) -> pb::WatchRequest {
        let request = self.begin(start, min, asked);
        self.connection = Connection::Shared(Shared { stream, id, stage: Stage::Opening, is_paused: false });
        request
    }

    /// Begins a connection; returns its request.
    fn begin(&mut self, start: Start, min: Option<String>, asked: Moment) -> pb::WatchRequest {
        let history =
            self.last_history().filter(|_| matches!(start, Start::After(_)) && self.record.plan.tells_history);
        let mut message = request(&self.record, &start, min.clone());
        message.history = history.as_ref().map(|history| history.name.clone()).unwrap_or_default();
        (self.waits, self.last_piece) = (false, 0);
        self.record.segments.push(Segment {
            start,
            min,
            history,
            asked,
            waited: None,
            answered: None,
            is_refused: false,
            has_bad_id: false,
            messages: Vec::new(),
            lost: Vec::new(),
            left: None,
            waits: Vec::new(),
            paused_waits: Vec::new(),
            polls: Vec::new(),
            end: End::Open,
            settled: None,
        });
        message
    }

    /// Returns the server and the resource of its last connection.
    pub(crate) fn served(&self) -> Served {
        let server = self.record.segments.last().map_or(0, |segment| segment.asked.server);
        Served { server, resource: self.record.resource }
    }

    /// Returns the version from which the client can resume.
    pub(crate) fn last_version(&self) -> Option<String> {
        let last = self.record.segments.last()?;
        let told = last.messages.iter().rev().map(|received| &received.message.resource_version);
        let is_lost = matches!(&last.end, End::Status(status, _) if status.code == 11);
        match &last.start {
            _ if is_lost => None,
            Start::After(version) => {
                Some(told.into_iter().find(|version| !version.is_empty()).unwrap_or(version).clone())
            }
            _ => told.into_iter().find(|version| !version.is_empty()).cloned(),
        }
    }

    /// Returns the history that the server named on the last connection.
    fn last_history(&self) -> Option<History> {
        let last = self.record.segments.last()?;
        let Moment { server, epoch, .. } = last.answered?;
        let mut told = last.messages.iter().filter_map(|received| received.message.bookmark.as_ref());
        told.next_back().map(|bookmark| History { name: bookmark.history.clone(), server, epoch })
    }

    pub(crate) fn last_hole(&self) -> Option<String> {
        let messages = self.record.segments.last()?.messages.iter().rev();
        messages
            .filter_map(|received| received.message.dropped.as_ref())
            .map(|hole| hole.after_resource_version.clone())
            .next()
    }

    /// Leaves and loses the last messages, except those that came with the end of the stream.
    pub(crate) fn leave(&mut self, lost: usize, moment: Moment) {
        if let (Connection::None, _) | (_, None) = (&self.connection, self.record.segments.last()) {
            return;
        }
        self.connection = Connection::None;
        let Some(segment) = self.record.segments.last_mut() else { return };
        (segment.end, segment.left) = (End::Left, Some(moment));
        segment.lost = segment.messages.split_off(segment.messages.len() - lost.min(self.last_piece));
        let count = segment.messages.len();
        for moments in [&mut segment.waits, &mut segment.paused_waits, &mut segment.polls] {
            moments.retain(|(before, _)| *before <= count);
        }
        if segment.is_refused {
            // It leaves before it receives the reason.
            segment.answered = None;
        }
    }

    /// Polls for the answer. Returns true if there is none yet.
    pub(crate) fn poll_answer(&mut self, moment: Moment) -> bool {
        let (Connection::Asked(answer), Some(segment)) = (&mut self.connection, self.record.segments.last_mut()) else {
            return false;
        };
        self.flag.lower();
        let waker = Waker::from(Arc::clone(&self.flag));
        let Poll::Ready(Ok(response)) = answer.as_mut().poll(&mut Context::from_waker(&waker)) else { return true };
        segment.answered = Some(moment);
        // The stream of a refused Watch is opened, and has the status as its only message (`refused_watch.rs` compares them).
        match response.extensions().get().map(status_of) {
            Some(status) => {
                segment.is_refused = true;
                segment.end = End::Status(status, moment);
                self.connection = Connection::None;
            }
            None => self.connection = Connection::Open(Box::pin(response.into_body())),
        }
        false
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.connection, Connection::Open(_))
    }

    /// Returns its watch of a Subscribe stream, if it has one.
    pub(crate) fn shared(&self) -> Option<Shared> {
        if let Connection::Shared(shared) = self.connection { Some(shared) } else { None }
    }

    pub(crate) fn set_paused(&mut self, is_paused: bool) {
        if let Connection::Shared(shared) = &mut self.connection {
            shared.is_paused = is_paused;
        }
    }

    /// Records that its watch of a Subscribe stream was joined or refused.
    pub(crate) fn is_answered(&mut self, is_refused: bool, moment: Moment) {
        let (Connection::Shared(shared), Some(segment)) = (&mut self.connection, self.record.segments.last_mut())
        else {
            return;
        };
        shared.stage = if is_refused { Stage::Refused } else { Stage::Joined };
        (segment.answered, segment.is_refused) = (Some(moment), is_refused);
    }

    /// Records that a bad id was sent on its Subscribe stream.
    pub(crate) fn has_bad_id(&mut self) {
        if let Some(segment) = self.record.segments.last_mut() {
            segment.has_bad_id = true;
        }
    }

    /// Records messages of a Subscribe stream, and the end of the watch if they are the last.
    pub(crate) fn receive(&mut self, messages: &[pb::WatchResponse], is_end: bool, moment: Moment, was_woken: bool) {
        let (Connection::Shared(shared), Some(segment)) = (&self.connection, self.record.segments.last_mut()) else {
            return;
        };
        let error = messages.last().and_then(|last| last.error.as_ref());
        let end = match (is_end, error) {
            (true, Some(error)) => Some(End::Status(Status::of(error), moment)),
            (true, None) => Some(End::Status(Status::ok(), moment)),
            (false, Some(_)) => Some(End::Broken("there is an ERROR, and the watch has not ended".to_owned())),
            (false, None) => None,
        };
        if shared.stage == Stage::Refused {
            let is_right = is_end && error.is_some() && messages.len() == 1 && messages[0].object.is_none();
            let wrong = || End::Broken(format!("it was refused, and receives {messages:?}"));
            segment.end = end.filter(|_| is_right).unwrap_or_else(wrong);
            self.connection = Connection::None;
            return;
        }
        let messages = split(&self.record.plan, messages.to_vec());
        self.last_piece = messages.len();
        let received = messages.into_iter().enumerate().map(|(at, message)| {
            let is_with_previous = at > 0;
            Received { message, moment, was_woken, is_with_previous }
        });
        segment.messages.extend(received);
        if let Some(end) = end {
            segment.end = end;
            self.connection = Connection::None;
        }
    }

    /// Records a poll of its Subscribe stream that gave it nothing. The server may have made its next messages then.
    pub(crate) fn was_polled(&mut self, moment: Moment) {
        let (Connection::Shared(_), Some(segment)) = (&self.connection, self.record.segments.last_mut()) else {
            return;
        };
        segment.polls.push((segment.messages.len(), moment));
    }

    /// Returns true if the client was woken since the last poll.
    pub(crate) fn is_woken(&self) -> bool {
        self.flag.is_raised()
    }

    /// Reads one piece. Returns true if there was one.
    pub(crate) fn poll_piece(&mut self, moment: Moment) -> bool {
        let (Connection::Open(body), Some(segment)) = (&mut self.connection, self.record.segments.last_mut()) else {
            return false;
        };
        let was_woken = !self.waits || self.flag.is_raised();
        self.flag.lower();
        let waker = Waker::from(Arc::clone(&self.flag));
        let frame = match body.as_mut().poll_frame(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                self.waits = true;
                return false;
            }
            Poll::Ready(None) => Err("the stream ended without a status".to_owned()),
            Poll::Ready(Some(Err(status))) => Err(format!("the stream broke: {status}")),
            Poll::Ready(Some(Ok(frame))) => Ok(frame),
        };
        self.waits = false;
        let read = frame.and_then(|frame| match frame.into_data() {
            Ok(data) => Ok((messages(data)?, None)),
            Err(frame) => {
                let trailers = frame.into_trailers().map_err(|_| "neither data nor trailers".to_owned())?;
                Ok((Vec::new(), Some(status(&trailers).ok_or("trailers without a status")?)))
            }
        });
        match read {
            Ok((messages, None)) => {
                let messages = split(&self.record.plan, messages);
                self.last_piece = messages.len();
                let is_last = messages.last().is_some_and(|last| last.error.is_some());
                segment.messages.extend(messages.into_iter().map(|message| Received {
                    message,
                    moment,
                    was_woken,
                    is_with_previous: false,
                }));
                if is_last {
                    return self.poll_piece(moment);
                }
            }
            Ok((_, Some(status))) => {
                segment.end = End::Status(status, moment);
                self.connection = Connection::None;
            }
            Err(how) => {
                segment.end = End::Broken(how);
                self.connection = Connection::None;
            }
        }
        true
    }

    /// Records that there is nothing to read, and that the client was not woken.
    pub(crate) fn waits(&mut self, moment: Moment) {
        let Some(segment) = self.record.segments.last_mut() else { return };
        match self.connection {
            Connection::None | Connection::Shared(Shared { stage: Stage::Refused, .. }) => {}
            Connection::Asked(_) | Connection::Shared(Shared { stage: Stage::Opening, .. }) => {
                segment.waited = Some(moment);
            }
            Connection::Open(_) => segment.waits.push((segment.messages.len(), moment)),
            Connection::Shared(Shared { is_paused: true, .. }) => {
                segment.paused_waits.push((segment.messages.len(), moment));
            }
            Connection::Shared(Shared { .. }) => {
                segment.waits.push((segment.messages.len(), moment));
                // Nothing was made before.
                segment.polls.retain(|(before, _)| *before < segment.messages.len());
            }
        }
    }

    /// Records that everything has been read.
    pub(crate) fn settled(&mut self, moment: Moment) {
        let is_joined = match &self.connection {
            Connection::None | Connection::Asked(_) => false,
            Connection::Open(_) => true,
            Connection::Shared(shared) => shared.stage == Stage::Joined,
        };
        if let (true, Some(segment)) = (is_joined, self.record.segments.last_mut()) {
            segment.settled = Some((segment.messages.len(), moment));
        }
    }
}

/// Returns the messages, with one for each object of a batch if the client reads these.
fn split(plan: &Plan, messages: Vec<pb::WatchResponse>) -> Vec<pb::WatchResponse> {
    let split = |mut message: pb::WatchResponse| match std::mem::take(&mut message.batch) {
        batch if batch.is_empty() => vec![message],
        batch if plan.has_batches && message.object.is_none() => {
            batch.into_iter().map(|object| pb::WatchResponse { object: Some(object), ..message.clone() }).collect()
        }
        batch => vec![pb::WatchResponse { batch, ..message }],
    };
    messages.into_iter().flat_map(split).collect()
}

fn request(record: &Record, start: &Start, min: Option<String>) -> pb::WatchRequest {
    let Record { plan, resource, .. } = record;
    let (version, initial_events) = match start {
        Start::InitialEvents => (String::new(), pb::InitialEvents::Send),
        Start::Bookmark => (String::new(), pb::InitialEvents::None),
        Start::After(version) => (version.clone(), pb::InitialEvents::Unspecified),
    };
    let mut request = pb::WatchRequest {
        resource: RESOURCES[*resource].to_owned(),
        resource_version: version,
        initial_events: initial_events.into(),
        batch_initial_events: plan.has_batches,
        format: plan.form.format.into(),
        view: plan.form.ask(),
        queue: Some(pb::QueueOptions { policy: plan.policy.into(), length: plan.length }),
        bookmark_interval: plan.bookmark_interval.and_then(|interval| prost_types::Duration::try_from(interval).ok()),
        min_resource_version: min.unwrap_or_default(),
        timeout: plan.timeout.and_then(|timeout| prost_types::Duration::try_from(timeout).ok()),
        ..Default::default()
    };
    plan.selection.ask(&mut request);
    request
}

fn messages(data: Chunk) -> Result<Vec<pb::WatchResponse>, String> {
    let decode = |piece: Bytes| pb::WatchResponse::decode(piece).map_err(|error| error.to_string());
    pieces(data)?.into_iter().map(decode).collect()
}

/// Returns the body of a request with one message.
pub(crate) fn framed(message: &[u8]) -> Body {
    Body::new(http_body_util::Full::new(frame(message)))
}

/// Frames one message as gRPC does.
pub(crate) fn frame(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(message);
    framed.freeze()
}

/// Splits gRPC's length-prefixed messages.
pub(crate) fn pieces(mut data: Chunk) -> Result<Vec<Bytes>, String> {
    let mut pieces = Vec::new();
    while data.has_remaining() {
        if data.remaining() < 5 || data.get_u8() != 0 {
            return Err("a piece does not end with a message".to_owned());
        }
        let length = data.get_u32() as usize;
        if data.remaining() < length {
            return Err("a piece does not end with a message".to_owned());
        }
        pieces.push(data.copy_to_bytes(length));
    }
    Ok(pieces)
}

/// Reads the status from headers or trailers.
pub(crate) fn status(headers: &http::HeaderMap) -> Option<Status> {
    tonic::Status::from_header_map(headers).as_ref().map(status_of)
}

fn status_of(status: &tonic::Status) -> Status {
    let details = tonic_types::pb::Status::decode(status.details()).unwrap_or_default();
    Status { code: status.code() as i32, message: status.message().to_owned(), ..Status::of(&details) }
}
