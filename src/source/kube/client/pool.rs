//! Open connections of one client, and the requests they are leased to.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connection::{Contact, Http1Links, Link, Sender};
use crate::source::text::root_cause;

/// Connections of a client.
pub(super) struct Pool {
    contact_timeout: Duration,
    /// Protocol of the last connection; `None` before the first.
    pub(super) is_http1: Option<bool>,
    http2: Vec<(http2::SendRequest<Full<Bytes>>, Arc<Link>)>,
    idle: Vec<Idle>,
    pub(super) http1: Http1Links,
}

struct Idle {
    sender: Sender,
    link: Arc<Link>,
    since: Instant,
}

/// Connection leased to one request.
pub(super) struct Lease {
    pub(super) sender: Sender,
    pub(super) slot: Slot,
    pub(super) is_reused: bool,
}

/// One stream of a connection.
pub(super) struct Slot(pub(super) Arc<Link>);

/// Largest number of concurrent requests on one HTTP/2 connection, even if the server accepts more.
pub(super) const MAX_STREAMS: usize = 100;
/// Largest number of idle HTTP/1.1 connections.
const MAX_IDLE: usize = 8;
/// Longest idle time of a connection. Servers written in Go close one after 2 minutes or more.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

// === impl Pool ===

impl Pool {
    pub(super) fn new(contact_timeout: Duration) -> Self {
        let http1 = Http1Links { contact: Arc::new(Contact::new()), closed: CancellationToken::new() };
        Self { contact_timeout, is_http1: None, http2: Vec::new(), idle: Vec::new(), http1 }
    }

    /// Returns a connection of an access that accepts another request.
    pub(super) fn take(&mut self, access: u64) -> Option<Lease> {
        // Unfinished answers keep their own reference to a connection.
        self.http2.retain(|(sender, link)| !sender.is_closed() && link.access == access);
        self.idle.retain(|idle| {
            !idle.sender.is_closed() && idle.link.access == access && idle.since.elapsed() < IDLE_TIMEOUT
        });
        if let Some(Idle { sender, link, .. }) = self.idle.pop() {
            return Some(Lease { sender, slot: Slot::new(link), is_reused: true });
        }
        let (sender, link) = self.http2.iter().find(|(sender, link)| {
            let max_streams = link.max_streams.load(Ordering::Acquire).min(MAX_STREAMS);
            !sender.is_closed() && link.streams.load(Ordering::Acquire) < max_streams
        })?;
        Some(Lease { sender: Sender::Http2(sender.clone()), slot: Slot::new(Arc::clone(link)), is_reused: true })
    }

    pub(super) fn add(&mut self, sender: Sender, link: Arc<Link>) -> Lease {
        self.is_http1 = Some(!link.is_http2);
        if let Sender::Http2(sender) = &sender {
            // All unused connections but the first close.
            let mut first = true;
            self.http2.retain(|(_, link)| std::mem::take(&mut first) || link.streams.load(Ordering::Acquire) > 0);
            self.http2.push((sender.clone(), Arc::clone(&link)));
        }
        Lease { sender, slot: Slot::new(link), is_reused: false }
    }

    /// Returns an HTTP/1.1 connection to the pool, after an answer was received whole.
    pub(super) fn give_back(&mut self, sender: Sender, link: Arc<Link>) {
        if self.idle.len() < MAX_IDLE && !self.http1.closed.is_cancelled() {
            self.idle.push(Idle { sender, link, since: Instant::now() });
        }
    }

    /// Describes the loss of a connection with this last contact.
    pub(super) fn describe(&self, contact: Instant, error: &hyper::Error) -> String {
        let silence = contact.elapsed();
        if silence < self.contact_timeout {
            return root_cause(error);
        }
        format!("no response from the API server for {} s; check the network to it", silence.as_secs())
    }

    /// Closes all connections, with their unfinished answers.
    pub(super) fn close(&mut self) {
        self.http1.closed.cancel();
        let (idle, http2) = (std::mem::take(&mut self.idle), std::mem::take(&mut self.http2));
        drop((idle, http2));
        self.http1.closed = CancellationToken::new();
    }
}

// === impl Slot ===

impl Slot {
    fn new(link: Arc<Link>) -> Self {
        link.streams.fetch_add(1, Ordering::AcqRel);
        Self(link)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
    }
}
