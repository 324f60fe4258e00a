//! One Watch of a client: its request, and the messages that the script sends.

#![allow(clippy::needless_pass_by_value, reason = "a version is a number or a text")]

use std::{
    future::poll_fn,
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use bytes::{BufMut, Bytes, BytesMut};
use h2::{Reason, SendStream, server::SendResponse};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use informerd::proto::{
    self,
    pb::{self, EventType, WatchResponse},
};
use parking_lot::Mutex;
use prost::Message;
use tokio::task::JoinHandle;
use tonic::Status;

use super::{
    message::{self, Thing},
    socket::{Connection, Fault},
};

/// Watch of a client. After its first BOOKMARK it repeats the last one often enough to stay alive, until it is silenced.
pub(crate) struct WatchStream {
    pub(crate) request: pb::WatchRequest,
    pub(crate) headers: HeaderMap,
    pub(crate) connection: Connection,
    /// Time at which the request arrived.
    pub(crate) at: Instant,
    out: Arc<Mutex<Out>>,
    heartbeat: JoinHandle<()>,
}

struct Out {
    respond: SendResponse<Bytes>,
    stream: Option<SendStream<Bytes>>,
    /// Last BOOKMARK, at the version of the last message; none until there was one, and while the stream is silent.
    bookmark: Option<WatchResponse>,
    is_silent: bool,
}

// === impl WatchStream ===

impl WatchStream {
    pub(crate) fn new(
        request: pb::WatchRequest,
        headers: HeaderMap,
        connection: Connection,
        respond: SendResponse<Bytes>,
    ) -> Self {
        let out = Arc::new(Mutex::new(Out { respond, stream: None, bookmark: None, is_silent: false }));
        let interval = request.bookmark_interval.and_then(proto::duration);
        // A quarter, for a machine that is busy.
        let interval = (interval.unwrap_or(Duration::from_secs(30)) / 4).max(Duration::from_millis(20));
        let beating = Arc::clone(&out);
        let heartbeat = tokio::spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                let mut out = beating.lock();
                if let Some(bookmark) = out.bookmark.clone().filter(|_| !out.is_silent) {
                    out.send(&bookmark);
                }
            }
        });
        Self { request, headers, connection, at: Instant::now(), out, heartbeat }
    }

    /// Returns the version of the last message.
    pub(crate) fn version(&self) -> String {
        self.out.lock().bookmark.as_ref().map(|bookmark| bookmark.resource_version.clone()).unwrap_or_default()
    }

    /// Sends the headers of the response alone.
    pub(crate) fn send_headers(&mut self) {
        self.out.lock().stream();
    }

    /// Sends messages.
    pub(crate) fn send(&mut self, messages: impl IntoIterator<Item = WatchResponse>) {
        let mut out = self.out.lock();
        for message in messages {
            out.send(&message);
            out.follow(message);
        }
    }

    /// Sends initial events and their end.
    pub(crate) fn send_initial(&mut self, objects: &[&Thing], version: impl ToString, history: &str) {
        self.send(
            objects.iter().map(|object| message::initial(object)).chain([message::initial_end(version, history)]),
        );
    }

    /// Sends initial events without their end, in one message if the client reads batches.
    pub(crate) fn send_batch(&mut self, objects: &[&Thing]) {
        self.send(self.initial_events(objects));
    }

    /// Returns the messages of initial events: one if the client reads batches, otherwise one for each.
    pub(crate) fn initial_events(&self, objects: &[&Thing]) -> Vec<WatchResponse> {
        if self.request.batch_initial_events {
            vec![message::initial_batch(objects)]
        } else {
            objects.iter().map(|object| message::initial(object)).collect()
        }
    }

    /// Sends the last BOOKMARK again, at the version of the last message, with another time of contact.
    pub(crate) fn send_seen_at(&mut self, seconds: i64) {
        let bookmark = self.out.lock().bookmark.clone();
        if let Some(mut message) = bookmark {
            if let Some(bookmark) = &mut message.bookmark {
                bookmark.source_seen_at = Some(message::seen_at(seconds));
            }
            self.send([message]);
        }
    }

    /// Stops the BOOKMARKs that come by themselves.
    pub(crate) fn silence(&mut self) {
        self.out.lock().is_silent = true;
    }

    /// Continues the BOOKMARKs that come by themselves.
    pub(crate) fn speak(&mut self) {
        self.out.lock().is_silent = false;
    }

    /// Sends a part of a message, so that more of it is to come.
    pub(crate) fn send_part(&mut self, message: &WatchResponse) {
        let frame = frame(message);
        let mut out = self.out.lock();
        out.is_silent = true;
        if let Some(stream) = out.stream() {
            drop(stream.send_data(frame.slice(..frame.len() / 2), false));
        }
    }

    /// Ends the stream with a status, in the trailers.
    pub(crate) fn end(self, status: &Status) {
        if let Some(stream) = self.out.lock().stream() {
            drop(stream.send_trailers(trailers(status)));
        }
    }

    /// Ends the stream as a server does: with an ERROR, and then with the same status.
    pub(crate) fn end_with_error(mut self, version: &str, status: &Status) {
        self.send([message::error(version, status)]);
        self.end(status);
    }

    /// Refuses the Watch before any message, with the status in the headers (Trailers-Only).
    pub(crate) fn refuse(self, status: &Status) {
        let mut response = Response::new(());
        *response.headers_mut() = trailers(status);
        response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        drop(self.out.lock().respond.send_response(response, true));
    }

    /// Answers with a page of HTTP in place of gRPC.
    pub(crate) fn answer_http(self, status: StatusCode) {
        http_answer(&mut self.out.lock().respond, status);
    }

    /// Ends the stream with `RST_STREAM`.
    pub(crate) fn reset(self, reason: Reason) {
        if let Some(stream) = self.out.lock().stream() {
            stream.send_reset(reason);
        }
    }

    /// Begins a fault of the connection.
    pub(crate) fn break_connection(&self, fault: Fault) {
        self.connection.begin(fault);
    }

    /// Waits until the client has cancelled the stream or closed the connection.
    pub(crate) async fn cancelled(&self) {
        let reset = |out: &mut Out, cx: &mut std::task::Context<'_>| match &mut out.stream {
            Some(stream) => stream.poll_reset(cx).map(drop),
            None => out.respond.poll_reset(cx).map(drop),
        };
        poll_fn(|cx| reset(&mut self.out.lock(), cx)).await;
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

// === impl Out ===

impl Out {
    /// Returns the stream of the response, whose headers are sent first. An error shows up as a client that does not react.
    fn stream(&mut self) -> Option<&mut SendStream<Bytes>> {
        if self.stream.is_none() {
            let mut response = Response::new(());
            response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
            self.stream = self.respond.send_response(response, false).ok();
        }
        self.stream.as_mut()
    }

    fn send(&mut self, message: &WatchResponse) {
        if let Some(stream) = self.stream() {
            drop(stream.send_data(frame(message), false));
        }
    }

    /// Keeps what the next BOOKMARK repeats.
    fn follow(&mut self, message: WatchResponse) {
        let version = message.resource_version.clone();
        match (message.r#type(), &mut self.bookmark) {
            (EventType::Bookmark, bookmark) if !version.is_empty() => *bookmark = Some(message),
            (_, Some(bookmark)) if !version.is_empty() => bookmark.resource_version = version,
            _ => {}
        }
        // Neither is repeated.
        if let Some(bookmark) = self.bookmark.as_mut().and_then(|bookmark| bookmark.bookmark.as_mut()) {
            (bookmark.initial_events_end, bookmark.draining) = (false, false);
        }
    }
}

/// Returns a message in the frame of gRPC.
pub(crate) fn frame(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::with_capacity(5 + message.encoded_len());
    bytes.put_u8(0);
    bytes.put_u32(message.encoded_len() as u32);
    bytes.extend_from_slice(&message.encode_to_vec());
    bytes.freeze()
}

/// Returns the trailers of a status.
pub(crate) fn trailers(status: &Status) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", HeaderValue::from(status.code() as i32));
    if let Ok(text) = HeaderValue::from_str(status.message()) {
        headers.insert("grpc-message", text);
    }
    if let (false, Ok(details)) =
        (status.details().is_empty(), HeaderValue::from_str(&STANDARD_NO_PAD.encode(status.details())))
    {
        headers.insert("grpc-status-details-bin", details);
    }
    headers
}

/// Answers a call with a page of HTTP in place of gRPC, as a proxy does whose server is down.
fn http_answer(respond: &mut SendResponse<Bytes>, status: StatusCode) {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("text/html"));
    let mut response = Response::new(());
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    if let Ok(mut stream) = respond.send_response(response, false) {
        drop(stream.send_data(Bytes::from_static(b"<html>upstream connect error</html>"), true));
    }
}
