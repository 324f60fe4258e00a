//! One Subscribe stream: its requests, its ids, and its responses, piece by piece.
//!
//! Every request is read by the server at the next poll, which may be one without room: such a poll hands out nothing. The clients
//! of the stream record what they receive; the harness has the client of each id.

use std::{
    collections::BTreeMap,
    ops::AddAssign,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::StreamBody;
use informerd::{
    grpc::{self, Routes},
    proto::pb,
    transport::{BoundedBody, BoundedFrame, Peer, Room},
};
use prost::Message;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tower::Service as _;

use super::{
    client::{Flag, frame, pieces, status},
    record::Status,
};

/// Subscribe stream of a host to a server.
pub(crate) struct Subscription {
    pub(crate) server: usize,
    pub(crate) peer: u8,
    /// Port of the client; another one for each stream of a run.
    pub(crate) port: u16,
    /// Ids in use, and for whom. An id is free again when the client has received its `ended`.
    pub(crate) ids: BTreeMap<u32, User>,
    /// Largest id that was ever in use.
    last_id: u32,
    /// True if a bad id was sent: the server ends the stream, and reads no more requests.
    pub(crate) has_bad_id: bool,
    /// Sender of requests; none once the client has closed its half of the stream.
    requests: Option<mpsc::Sender<Bytes>>,
    /// Response; none after its end.
    body: Option<Pin<Box<grpc::Body>>>,
    flag: Arc<Flag>,
    /// True if the last poll has found nothing.
    waits: bool,
}

/// Largest number of requests that wait for the next poll.
const MAX_REQUESTS: usize = 64;

/// User of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Client in this place.
    Client(usize),
    /// Nobody: the client has closed the watch. True if the server had refused it before, and has sent no `ended` for that.
    Closed { was_refused: bool },
}

/// Result of a poll.
pub(crate) enum Piece {
    /// There is nothing to read.
    Nothing,
    /// The next response does not fit into the room.
    TooLarge,
    Deliveries(Vec<pb::Delivery>),
    Over(Result<Status, String>),
}

/// Counts over all streams.
#[derive(Debug, Default, Clone)]
pub(crate) struct StreamTally {
    pub(crate) streams: u64,
    pub(crate) watches: u64,
    /// Deliveries for several watches: with events, and with bookmarks only.
    pub(crate) shared_events: u64,
    pub(crate) shared_bookmarks: u64,
    pub(crate) pauses: u64,
    /// Closed watches whose `ended` has arrived.
    pub(crate) closes: u64,
    pub(crate) refusals: u64,
    /// Watches that the server has ended: paused ones, and those that left others open.
    pub(crate) paused_ends: u64,
    pub(crate) single_ends: u64,
    pub(crate) reused_ids: u64,
    /// Streams that broke with several watches.
    pub(crate) breaks: u64,
    /// Streams that the server has ended.
    pub(crate) drains: u64,
    /// Streams that were half closed with watches, and those of them that ended after the last watch.
    pub(crate) half_closed: u64,
    pub(crate) completed: u64,
    /// Streams that a bad id has ended.
    pub(crate) bad_ids: u64,
    /// Watches of several resources on one stream.
    pub(crate) mixed: u64,
    /// Times that a server served several watches as one.
    pub(crate) served_as_one: u64,
}

impl AddAssign<&Self> for StreamTally {
    fn add_assign(&mut self, other: &Self) {
        self.streams += other.streams;
        self.watches += other.watches;
        self.shared_events += other.shared_events;
        self.shared_bookmarks += other.shared_bookmarks;
        self.pauses += other.pauses;
        self.closes += other.closes;
        self.refusals += other.refusals;
        self.paused_ends += other.paused_ends;
        self.single_ends += other.single_ends;
        self.reused_ids += other.reused_ids;
        self.breaks += other.breaks;
        self.drains += other.drains;
        self.half_closed += other.half_closed;
        self.completed += other.completed;
        self.bad_ids += other.bad_ids;
        self.mixed += other.mixed;
        self.served_as_one += other.served_as_one;
    }
}

impl Subscription {
    pub(crate) async fn open(routes: &mut Routes, server: usize, peer: u8, port: u16) -> Self {
        let (requests, sent) = mpsc::channel::<Bytes>(MAX_REQUESTS);
        let sent = ReceiverStream::new(sent).map(|data| Ok::<_, std::io::Error>(http_body::Frame::data(data)));
        let mut request = http::Request::post("/informerd.v1.InformerService/Subscribe")
            .header("content-type", "application/grpc")
            .body(Body::new(StreamBody::new(sent)))
            .unwrap();
        request.extensions_mut().insert(Peer::Tcp(([10, 0, 0, peer], port).into()));
        let Ok(response) = routes.call(request).await;
        assert_eq!(status(response.headers()), None, "a stream without watches is not refused");
        let (ids, body, requests) = (BTreeMap::new(), Some(Box::pin(response.into_body())), Some(requests));
        let (last_id, has_bad_id, flag, waits) = (0, false, Arc::default(), false);
        Self { server, peer, port, ids, last_id, has_bad_id, requests, body, flag, waits }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.body.is_none()
    }

    /// Sends no more requests: the stream ends after its last watch.
    pub(crate) fn half_closes(&mut self) {
        self.requests = None;
    }

    pub(crate) fn is_half_closed(&self) -> bool {
        self.requests.is_none()
    }

    /// Breaks the stream.
    pub(crate) fn breaks(&mut self) {
        self.body = None;
        self.ids.clear();
    }

    /// Sends a request, which the server reads at the next poll.
    pub(crate) fn send(&self, request: &pb::SubscribeRequest) {
        let requests = self.requests.as_ref().expect("nothing is sent on a stream that is half closed");
        let sent = requests.try_send(frame(&request.encode_to_vec()));
        // It is closed once the server has ended the stream.
        assert!(!matches!(sent, Err(TrySendError::Full(_))), "the server reads all requests at a poll");
    }

    /// Returns an id that is not in use: the smallest, or one that was never in use. True if it was in use before.
    pub(crate) fn take_id(&mut self, place: usize, is_new: bool) -> (u32, bool) {
        let first = if is_new { self.last_id + 1 } else { 1 };
        let id = (first..=u32::MAX).find(|id| !self.ids.contains_key(id)).expect("there are more ids than watches");
        let was_in_use = id <= self.last_id;
        self.last_id = self.last_id.max(id);
        self.ids.insert(id, User::Client(place));
        (id, was_in_use)
    }

    /// Returns true if the stream was woken since the last poll.
    pub(crate) fn is_woken(&self) -> bool {
        self.flag.is_raised()
    }

    /// Polls for the next response; returns it, and true unless the stream waited for it and was not woken.
    pub(crate) fn poll(&mut self, room: Room) -> (Piece, bool) {
        let Some(body) = &mut self.body else { return (Piece::Nothing, true) };
        let was_woken = !self.waits || self.flag.is_raised();
        self.flag.lower();
        let waker = Waker::from(Arc::clone(&self.flag));
        let polled = body.poll_bounded(&mut Context::from_waker(&waker), room);
        self.waits = polled.is_pending();
        let piece = match polled {
            Poll::Pending => Piece::Nothing,
            Poll::Ready(None) => Piece::Over(Err("the stream ended without a status".to_owned())),
            Poll::Ready(Some(Err(status))) => Piece::Over(Err(format!("the stream broke: {status}"))),
            Poll::Ready(Some(Ok(BoundedFrame::TooLarge(_)))) => Piece::TooLarge,
            Poll::Ready(Some(Ok(BoundedFrame::Frame(frame)))) => match frame.into_data() {
                Ok(data) => match deliveries(data) {
                    Ok(deliveries) => Piece::Deliveries(deliveries),
                    Err(how) => Piece::Over(Err(how)),
                },
                Err(frame) => {
                    let status = frame.trailers_ref().and_then(status);
                    Piece::Over(status.ok_or_else(|| "trailers without a status".to_owned()))
                }
            },
        };
        if matches!(piece, Piece::Over(_)) {
            self.body = None;
        }
        (piece, was_woken)
    }
}

fn deliveries(data: informerd::transport::Chunk) -> Result<Vec<pb::Delivery>, String> {
    let decode = |piece: Bytes| pb::SubscribeResponse::decode(piece).map_err(|error| error.to_string());
    let responses: Result<Vec<_>, _> = pieces(data)?.into_iter().map(decode).collect();
    Ok(responses?.into_iter().flat_map(|response| response.deliveries).collect())
}
