//! Body of an answer, read in parts or whole, and decompressed if necessary.

use std::{
    io::Write,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use flate2::write::GzDecoder;
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::Mutex;

use super::{
    connection::{Link, Sender},
    pool::{Pool, Slot},
};
use crate::{cache::SourceHealth, source::text::root_cause};

/// Unread body.
pub(in crate::source::kube) struct Body {
    incoming: Incoming,
    /// `None` after its end.
    sender: Option<Sender>,
    slot: Slot,
    pool: Arc<Mutex<Pool>>,
    health: Option<SourceHealth>,
}

/// Failure of a body.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(in crate::source::kube) struct BodyError(String);

/// Content of a body, within a bound.
struct Unpacked {
    bytes: Vec<u8>,
    max_bytes: usize,
}

/// Beginning of the problem of a body that exceeds its bound.
pub(in crate::source::kube) const TOO_LARGE: &str = "response too large";

// === impl Body ===

impl Body {
    pub(super) fn new(incoming: Incoming, sender: Sender, slot: Slot, pool: Arc<Mutex<Pool>>) -> Self {
        Self { incoming, sender: Some(sender), slot, pool, health: None }
    }

    /// Reports a failure of the connection to a resource's health, as of the last contact.
    pub(in crate::source::kube) fn reporting_to(mut self, health: SourceHealth) -> Self {
        self.health = Some(health);
        self
    }

    /// Returns the body's connection.
    pub(super) fn link(&self) -> &Arc<Link> {
        &self.slot.0
    }

    /// Reads the whole body.
    pub(in crate::source::kube) async fn read(mut self, is_gzip: bool, max_bytes: usize) -> Result<Bytes, String> {
        let unpacked = Unpacked { bytes: Vec::new(), max_bytes };
        let mut packed = if is_gzip { Ok(GzDecoder::new(unpacked)) } else { Err(unpacked) };
        while let Some(frame) = self.frame().await {
            let frame = frame.map_err(|error| root_cause(&error))?;
            let Some(data) = frame.data_ref() else { continue };
            let written = match &mut packed {
                Ok(decoder) => decoder.write_all(data),
                Err(unpacked) => unpacked.write_all(data),
            };
            written.map_err(|error| error.to_string())?;
        }
        let unpacked = match packed {
            Ok(decoder) => decoder.finish().map_err(|error| error.to_string())?,
            Err(unpacked) => unpacked,
        };
        Ok(unpacked.bytes.into())
    }

    fn lost(&mut self, error: &hyper::Error) -> BodyError {
        self.sender = None;
        let contact = self.slot.0.contact.last();
        if let Some(health) = &self.health {
            health.record_lost_contact(contact);
        }
        BodyError(self.pool.lock().describe(contact, error))
    }

    /// Returns an HTTP/1.1 connection to the pool, since the answer was received whole.
    fn ended(&mut self) {
        if let Some(sender @ Sender::Http1(_)) = self.sender.take() {
            self.pool.lock().give_back(sender, Arc::clone(&self.slot.0));
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(match ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
            Some(Ok(frame)) => Some(Ok(frame)),
            Some(Err(error)) => Some(Err(self.lost(&error))),
            None => {
                self.ended();
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.incoming.size_hint()
    }
}

// === impl Unpacked ===

impl Write for Unpacked {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > self.max_bytes - self.bytes.len() {
            return Err(std::io::Error::other(format!("{TOO_LARGE} (limit: {} bytes)", self.max_bytes)));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
