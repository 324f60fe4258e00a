//! The body of one watch, polled by its connection.
//!
//! Order of what can be sent: what is ready already; the end, once it is known; the initial events; frames from the cursor;
//! and when the cursor is at the head, a bookmark that is due. So a bookmark never overtakes an event (invariant 3), and
//! draining and timeouts are noticed at every poll.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame as BodyFrame};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Code, Status};

use super::super::{
    frame::{self, WireFrame},
    metrics::RpcObserver,
    scan::Scan,
    status::Refusal,
};
use crate::{
    cache::{InformerHandle, Joined, Snapshot},
    model::{Cause, EventType, ObjectKey, ResourceVersion, Selection},
    proto::{self, PayloadFormat, pb},
    watch::{Cursor, Taken},
};

/// One watch.
pub(super) struct WatchBody {
    informer: InformerHandle<WireFrame>,
    cursor: Cursor<WireFrame>,
    initial: Option<InitialEvents>,
    format: PayloadFormat,
    bookmark_interval: Duration,
    bookmark_due: Pin<Box<Sleep>>,
    ends_at: Option<Pin<Box<Sleep>>>,
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Encoded, and not yet handed to the connection.
    ready: Option<Bytes>,
    end: Option<Status>,
    is_over: bool,
    observer: RpcObserver,
    _permit: OwnedSemaphorePermit,
}

/// A call that has been checked and joined.
pub(super) struct Opened {
    pub(super) begin: Begin,
    pub(super) joined: Joined<WireFrame>,
    pub(super) selection: Arc<Selection>,
    pub(super) format: PayloadFormat,
    pub(super) informer: InformerHandle<WireFrame>,
    pub(super) bookmark_interval: Duration,
    /// With a bookmark, and OK.
    pub(super) ends_at: Option<Instant>,
    pub(super) draining: CancellationToken,
    /// Held for as long as the watch lives.
    pub(super) permit: OwnedSemaphorePermit,
    pub(super) observer: RpcObserver,
}

/// How a stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// With an ADDED for each object, and a bookmark at their end.
    InitialEvents,
    /// With a bookmark at the version where it joined.
    Bookmark,
    /// With the next event.
    Live,
}

/// The objects that are still to be sent, pulled from the snapshot at the client's own pace.
#[derive(Debug)]
struct InitialEvents {
    snapshot: Snapshot,
    scan: Scan,
    selection: Arc<Selection>,
    looked_at: Option<ObjectKey>,
}

/// What one poll takes from the cursor at most: HTTP/2 writes are cheap when they are large.
const CHUNK_BYTES: usize = 64 << 10;
/// How many objects are looked at for initial events before others get their turn.
const SCAN_OBJECTS: usize = 256;

// === impl WatchBody ===

impl WatchBody {
    pub(super) fn new(opened: Opened) -> Self {
        let Opened {
            begin,
            joined,
            selection,
            format,
            informer,
            bookmark_interval,
            ends_at,
            draining,
            permit,
            observer,
        } = opened;
        let Joined { snapshot, cursor } = joined;
        let mut body = Self {
            informer,
            cursor,
            initial: None,
            format,
            bookmark_interval,
            bookmark_due: Box::pin(tokio::time::sleep(bookmark_interval)),
            ends_at: ends_at.map(|at| Box::pin(tokio::time::sleep_until(at))),
            drained: Box::pin(draining.cancelled_owned()),
            ready: None,
            end: None,
            is_over: false,
            observer,
            _permit: permit,
        };
        match begin {
            Begin::InitialEvents => {
                let scan = Scan::of(&selection);
                body.initial = Some(InitialEvents { snapshot, scan, selection, looked_at: None });
            }
            Begin::Bookmark => body.send(&[body.bookmark(pb::Bookmark::default())]),
            Begin::Live => {}
        }
        body
    }

    /// The version to resume from; none while the initial events are not complete.
    fn position(&self) -> Option<&ResourceVersion> {
        self.initial.is_none().then(|| self.cursor.version())
    }

    /// A bookmark at this client's own position, with the state of the source.
    fn bookmark(&self, bookmark: pb::Bookmark) -> pb::WatchResponse {
        let report = self.informer.health().report();
        frame::bookmark(
            self.position(),
            pb::Bookmark {
                source: proto::sync_state(report.state).into(),
                source_seen_at: report.seen_at.map(proto::timestamp),
                ..bookmark
            },
        )
    }

    fn send(&mut self, responses: &[pb::WatchResponse]) {
        let mut buffer = BytesMut::new();
        for response in responses {
            frame::append(&mut buffer, response);
        }
        self.ready = Some(buffer.freeze());
    }

    /// Ends the stream: an ERROR as the last message, and the same status for the RPC.
    fn end_with(&mut self, refusal: &Refusal, before: Option<pb::WatchResponse>) {
        let error = frame::error(self.position(), refusal.to_proto());
        self.send(&before.into_iter().chain([error]).collect::<Vec<_>>());
        self.end = Some(refusal.to_status());
        tracing::debug!(?refusal, "watch ended");
    }

    /// Whether something from outside ends the stream now.
    fn poll_end(&mut self, cx: &mut Context<'_>) {
        if self.drained.as_mut().poll(cx).is_ready() {
            let draining = pb::Bookmark { draining: true, ..Default::default() };
            let bookmark = self.bookmark(draining);
            self.end_with(&Refusal::Draining, Some(bookmark));
            return;
        }
        if let Some(ends_at) = &mut self.ends_at
            && ends_at.as_mut().poll(cx).is_ready()
        {
            let bookmark = self.bookmark(pb::Bookmark::default());
            self.send(&[bookmark]);
            self.end = Some(Status::ok(""));
        }
    }

    /// Makes the next piece ready, or parks.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_end(cx);
        if self.end.is_some() {
            return Poll::Ready(());
        }
        if self.initial.is_some() {
            return self.poll_initial(cx);
        }
        // Read before seeing the cursor at the head: it may be ahead of the head by then, never of what was published.
        let distributed = self.informer.distributed();
        match self.cursor.poll_take(cx, CHUNK_BYTES) {
            Poll::Ready(Taken::Frames(frames)) => self.ready = Some(join(&frames)),
            Poll::Ready(Taken::Dropped { count, after }) => {
                let dropped = frame::dropped(self.cursor.version(), count, &after);
                self.send(&[dropped]);
            }
            Poll::Ready(Taken::Ended(end)) => {
                let refusal = Refusal::end(end, self.cursor.version(), distributed.as_deref());
                self.end_with(&refusal, None);
            }
            Poll::Pending => {
                ready!(self.bookmark_due.as_mut().poll(cx));
                if let Some(distributed) = distributed {
                    self.cursor.advance(ResourceVersion::clone(&distributed));
                }
                let bookmark = self.bookmark(pb::Bookmark::default());
                self.send(&[bookmark]);
                self.bookmark_due.as_mut().reset(Instant::now() + self.bookmark_interval);
            }
        }
        Poll::Ready(())
    }

    fn poll_initial(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(initial) = &mut self.initial else { return Poll::Ready(()) };
        let (mut buffer, is_complete) = initial.next(self.format);
        if is_complete {
            self.initial = None;
            self.cursor.go_live();
            let end = pb::Bookmark { initial_events_end: true, ..Default::default() };
            frame::append(&mut buffer, &self.bookmark(end));
        }
        if buffer.is_empty() {
            // Looked at many objects and found none: others first.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.ready = Some(buffer.freeze());
        Poll::Ready(())
    }
}

impl Body for WatchBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<BodyFrame<Bytes>, Status>>> {
        let this = self.get_mut();
        loop {
            if let Some(bytes) = this.ready.take() {
                return Poll::Ready(Some(Ok(BodyFrame::data(bytes))));
            }
            if this.is_over {
                return Poll::Ready(None);
            }
            if let Some(status) = this.end.take() {
                this.is_over = true;
                this.observer.ends(status.code());
                return Poll::Ready(Some(Ok(BodyFrame::trailers(trailers(&status)))));
            }
            ready!(this.poll_next(cx));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }
}

impl fmt::Debug for WatchBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchBody")
            .field("cursor", &self.cursor)
            .field("initial", &self.initial)
            .finish_non_exhaustive()
    }
}

// === impl InitialEvents ===

impl InitialEvents {
    /// The next initial events, encoded, and whether they were the last.
    fn next(&mut self, format: PayloadFormat) -> (BytesMut, bool) {
        let mut buffer = BytesMut::new();
        let after = self.looked_at.take();
        let mut objects = self.scan.objects(&self.snapshot, after.as_ref());
        for _ in 0..SCAN_OBJECTS {
            let Some(object) = objects.next() else { return (buffer, true) };
            if self.selection.matches(object) {
                let response = pb::WatchResponse {
                    r#type: proto::event_type(EventType::Added).into(),
                    object: Some(proto::object(object, object.version(), format)),
                    cause: proto::cause(Cause::Initial).into(),
                    ..Default::default()
                };
                frame::append(&mut buffer, &response);
            }
            self.looked_at = Some(object.key().clone());
            if buffer.len() >= CHUNK_BYTES {
                break;
            }
        }
        (buffer, false)
    }
}

/// The bytes of several slices in one piece; of one slice without a copy.
fn join(frames: &[WireFrame]) -> Bytes {
    match frames {
        [one] => one.0.clone(),
        many => {
            let mut joined = BytesMut::with_capacity(many.iter().map(|frame| frame.0.len()).sum());
            for frame in many {
                joined.extend_from_slice(&frame.0);
            }
            joined.freeze()
        }
    }
}

fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if status.add_header(&mut trailers).is_err() {
        // The message cannot be a header; the code can.
        trailers.insert("grpc-status", http::HeaderValue::from(Code::Internal as i32));
    }
    trailers
}
