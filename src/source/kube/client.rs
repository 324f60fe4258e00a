//! The connections of this process to one API server, for all resources that follow it as the same user.
//!
//! Over HTTP/2 all requests share one connection, and another one when the server takes no more requests on it. Over HTTP/1.1
//! each watch has one, and those that are free are used again. Connections are made on the runtime that the client was made
//! on, so that none ends with the thread of a resource.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http2;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    KubeCluster, SingleFlight,
    access::{Access, Authenticator, Need},
    body::Body,
    connection::{self, Contact, Http1Links, Link, OpenError, Sender, ping_interval},
    tls::is_refusal,
};
use crate::{
    cache::SourceError,
    source::{dial::Dialer, text::root_cause},
};

/// The clients of a process, one for each cluster and context: what follows the same one shares its connections and
/// credentials. Clones share them, too.
#[derive(Debug, Clone, Default)]
pub struct KubeClients {
    clients: Arc<Mutex<Clients>>,
}

/// By the contact timeout, too, since it is that of a connection.
type Clients = HashMap<(KubeCluster, Duration), Weak<Client>>;

/// Sends requests to one API server.
pub(super) struct Client {
    authenticator: Authenticator,
    dialer: Dialer,
    contact_timeout: Duration,
    /// Makes the connections; without it, the runtime of the request does.
    runtime: Option<Handle>,
    pool: Mutex<Pool>,
    connecting: SingleFlight<Option<Failed>>,
    /// Attempts to connect that are over.
    attempts: AtomicU64,
    probing: SingleFlight<()>,
}

struct Pool {
    /// Of the last connection; `None` before the first.
    is_http1: Option<bool>,
    http2: Vec<(http2::SendRequest<Empty<Bytes>>, Arc<Link>)>,
    idle: Vec<Idle>,
    http1: Http1Links,
}

struct Idle {
    sender: Sender,
    link: Arc<Link>,
    since: Instant,
}

/// A connection for one request.
struct Lease {
    sender: Sender,
    slot: Slot,
    is_reused: bool,
}

/// One of the streams of a connection.
pub(super) struct Slot(pub(super) Arc<Link>);

struct Failed {
    attempt: u64,
    error: OpenError,
}

/// A request that was not answered.
pub(super) struct Failure {
    pub(super) error: SourceError,
    /// When the peer was last heard from; `None` if there was no connection.
    pub(super) contact: Option<Instant>,
}

/// The parts of a request besides its path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) accept: &'static str,
    pub(super) may_compress: bool,
    /// For the head of the answer.
    pub(super) timeout: Duration,
}

/// Watches a connection for signs of life.
pub(super) struct Watchdog {
    client: Arc<Client>,
    link: Arc<Link>,
    seen: Instant,
}

/// The most requests at one time on one connection of HTTP/2, whatever the server takes.
pub(super) const MAX_STREAMS: usize = 100;
const MIN_CONTACT_TIMEOUT: Duration = Duration::from_millis(100);
/// Unused connections of HTTP/1.1 that are kept.
const MAX_IDLE: usize = 8;
/// Before a server closes a connection that is not used: Go's do after 2 minutes or more.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Every user may read it by default, and a refusal is an answer, too.
const PROBE: &str = "/version";
const PROBE_DELAY: Duration = Duration::from_secs(1);
const MAX_PROBE_BYTES: usize = 64 << 10;

// === impl KubeClients ===

impl KubeClients {
    /// The client of a cluster and a context.
    pub(super) fn get(&self, cluster: &KubeCluster, contact_timeout: Duration) -> Arc<Client> {
        let mut clients = self.clients.lock();
        clients.retain(|_, client| client.strong_count() > 0);
        let contact_timeout = contact_timeout.max(MIN_CONTACT_TIMEOUT);
        let key = (cluster.clone(), contact_timeout);
        if let Some(client) = clients.get(&key).and_then(Weak::upgrade) {
            return client;
        }
        let client = Arc::new(Client::new(cluster.clone(), contact_timeout));
        clients.insert(key, Arc::downgrade(&client));
        client
    }
}

// === impl Client ===

impl Client {
    fn new(cluster: KubeCluster, contact_timeout: Duration) -> Self {
        Self {
            authenticator: Authenticator::new(cluster),
            dialer: Dialer::default(),
            contact_timeout,
            runtime: Handle::try_current().ok(),
            pool: Mutex::new(Pool::new()),
            connecting: SingleFlight::default(),
            attempts: AtomicU64::new(0),
            probing: SingleFlight::default(),
        }
    }

    /// Sends a request for a path and its query. Credentials that the API server refuses are obtained again, once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the request up.
    pub(super) async fn send(
        self: &Arc<Self>,
        target: &str,
        wish: Wish,
    ) -> Result<(Arc<Access>, Response<Body>), Failure> {
        let mut need = Need::Any;
        loop {
            let access = self.authenticator.get(need).await?;
            let sent = self.exchange(Arc::clone(&access), target, wish).await;
            let refused = match &sent {
                Ok((access, answer)) if answer.status() == StatusCode::UNAUTHORIZED => access.version,
                Err(Refused { is_refusal: true, access, .. }) => *access,
                _ => return sent.map_err(|refused| refused.failure),
            };
            if matches!(need, Need::Other(_)) {
                return sent.map_err(|refused| refused.failure);
            }
            need = Need::Other(refused);
            match self.authenticator.get(need).await {
                Ok(access) if access.version != refused => {}
                // There are no other credentials.
                Ok(_) => return sent.map_err(|refused| refused.failure),
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn exchange(
        self: &Arc<Self>,
        mut access: Arc<Access>,
        target: &str,
        wish: Wish,
    ) -> Result<(Arc<Access>, Response<Body>), Refused> {
        let mut is_again = false;
        loop {
            let lease = if is_again { None } else { self.pool.lock().take(access.version) };
            let lease = if let Some(lease) = lease {
                lease
            } else {
                let made = self.connect(&access).await?;
                access = made.0;
                made.1
            };
            let Lease { mut sender, slot, is_reused } = lease;
            let mut headers = access.headers().await.map_err(|error| Refused::before(&access, error))?;
            wish.write(&mut headers, &access);
            let contact = Arc::clone(&slot.0.contact);
            match timeout(wish.timeout, sender.send(&access, headers, target)).await {
                Ok(Ok(answer)) => {
                    let answer = answer.map(|incoming| Body::new(incoming, sender, slot, Arc::clone(self)));
                    return Ok((access, answer));
                }
                // The server has closed it while it was not used. Every request can be repeated.
                Ok(Err(error)) if is_reused && !is_again && contact.last().elapsed() < self.contact_timeout => {
                    tracing::debug!(%error, "connection lost, request repeated");
                    is_again = true;
                }
                Ok(Err(error)) => {
                    let contact = contact.last();
                    let failed = SourceError::Busy(format!("{}: {}", access.url, self.describe(contact, &error)));
                    let failure = Failure { error: failed, contact: Some(contact) };
                    return Err(Refused { access: access.version, is_refusal: is_refusal(&error), failure });
                }
                Err(_) => {
                    let error = SourceError::Busy(format!("{}: no answer within {:?}", access.url, wish.timeout));
                    let failure = Failure { error, contact: Some(contact.last()) };
                    return Err(Refused { access: access.version, is_refusal: false, failure });
                }
            }
        }
    }

    /// Makes a connection, or takes one that another request has made meanwhile.
    async fn connect(self: &Arc<Self>, known: &Access) -> Result<(Arc<Access>, Lease), Refused> {
        let begun = self.attempts.load(Ordering::Acquire);
        // A connection of HTTP/2 is for all requests: they wait for one attempt, and share its failure.
        let is_alone = self.pool.lock().is_http1 == Some(true);
        let mut connecting = if is_alone { None } else { Some(self.connecting.lock().await) };
        let access = self.authenticator.get(Need::Fresh).await.map_err(|error| Refused::before(known, error))?;
        if let Some(last) = connecting.as_deref_mut() {
            if let Some(lease) = self.pool.lock().take(access.version) {
                return Ok((access, lease));
            }
            if let Some(failed) = last
                && failed.attempt > begun
            {
                return Err(failed.refused(&access));
            }
        }
        let opened = self.open(Arc::clone(&access)).await;
        let attempt = self.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        match opened {
            Ok((sender, link)) => {
                if link.is_http2 {
                    tracing::info!(url = &*access.url, "connected to the API server");
                } else {
                    // One for each watch.
                    tracing::debug!(url = &*access.url, "connected to the API server over HTTP/1.1");
                }
                Ok((access, self.pool.lock().add(sender, link)))
            }
            Err(error) => {
                let failed = Failed { attempt, error };
                let refused = failed.refused(&access);
                if let Some(mut last) = connecting {
                    *last = Some(failed);
                }
                Err(refused)
            }
        }
    }

    async fn open(self: &Arc<Self>, access: Arc<Access>) -> Result<(Sender, Arc<Link>), OpenError> {
        let this = Arc::clone(self);
        let http1 = self.pool.lock().http1.clone();
        let opening = async move { connection::open(&access, &this.dialer, this.contact_timeout, &http1).await };
        match &self.runtime {
            Some(runtime) => {
                let opened = AbortOnDropHandle::new(runtime.spawn(opening)).await;
                opened.unwrap_or_else(|_| Err("this process is ending".to_owned().into()))
            }
            None => opening.await,
        }
    }

    /// Describes the loss of a connection on which bytes came last at this time.
    pub(super) fn describe(&self, contact: Instant, error: &hyper::Error) -> String {
        let silence = contact.elapsed();
        if silence < self.contact_timeout {
            return root_cause(error);
        }
        format!("the API server has given no sign of life for {} s; check the network to it", silence.as_secs())
    }

    /// Gives a connection of HTTP/1.1 back, over which an answer has come whole.
    pub(super) fn give_back(&self, sender: Sender, link: Arc<Link>) {
        self.pool.lock().give_back(sender, link);
    }

    /// Sends requests over another connection of HTTP/1.1 until the server answers one, or until the contact timeout is over:
    /// then all connections are closed.
    async fn probe(self: &Arc<Self>, contact: &Contact) {
        let silent_since = contact.last();
        let _only_one = self.probing.lock().await;
        if contact.last() > silent_since {
            return;
        }
        let wish = Wish { accept: "application/json", may_compress: false, timeout: self.contact_timeout };
        let answered = async {
            loop {
                if let Ok((_, answer)) = self.send(PROBE, wish).await {
                    // To its end, so that the connection can be used again.
                    drop(Limited::new(answer.into_body(), MAX_PROBE_BYTES).collect().await);
                    return;
                }
                sleep(PROBE_DELAY).await;
            }
        };
        if timeout_at(silent_since + self.contact_timeout, answered).await.is_err() && contact.last() == silent_since {
            tracing::warn!(contact_timeout = ?self.contact_timeout, "API server out of contact");
            self.pool.lock().close();
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("contact_timeout", &self.contact_timeout).finish_non_exhaustive()
    }
}

/// A request that has failed, and whether because of the credentials of an access.
struct Refused {
    access: u64,
    is_refusal: bool,
    failure: Failure,
}

impl Failed {
    fn refused(&self, access: &Access) -> Refused {
        let OpenError { problem, is_refusal } = &self.error;
        let error = SourceError::Busy(format!("{}: {problem}", access.url));
        Refused { access: access.version, is_refusal: *is_refusal, failure: error.into() }
    }
}

impl Refused {
    fn before(access: &Access, error: SourceError) -> Self {
        Self { access: access.version, is_refusal: false, failure: error.into() }
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Self { error, contact: None }
    }
}

// === impl Pool ===

impl Pool {
    fn new() -> Self {
        let http1 = Http1Links { contact: Arc::new(Contact::new()), closed: CancellationToken::new() };
        Self { is_http1: None, http2: Vec::new(), idle: Vec::new(), http1 }
    }

    /// A connection with an access that takes another request.
    fn take(&mut self, access: u64) -> Option<Lease> {
        // Answers that are not over keep a connection for themselves.
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

    fn add(&mut self, sender: Sender, link: Arc<Link>) -> Lease {
        self.is_http1 = Some(!link.is_http2);
        if let Sender::Http2(sender) = &sender {
            // Beyond the first, unused connections close.
            let mut first = true;
            self.http2.retain(|(_, link)| std::mem::take(&mut first) || link.streams.load(Ordering::Acquire) > 0);
            self.http2.push((sender.clone(), Arc::clone(&link)));
        }
        Lease { sender, slot: Slot::new(link), is_reused: false }
    }

    fn give_back(&mut self, sender: Sender, link: Arc<Link>) {
        if self.idle.len() < MAX_IDLE && !self.http1.closed.is_cancelled() {
            self.idle.push(Idle { sender, link, since: Instant::now() });
        }
    }

    fn close(&mut self) {
        self.http1.closed.cancel();
        let idle = std::mem::take(&mut self.idle);
        drop(idle);
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

// === impl Wish ===

impl Wish {
    fn write(self, headers: &mut HeaderMap, access: &Access) {
        headers.insert(header::ACCEPT, HeaderValue::from_static(self.accept));
        if self.may_compress && access.accepts_gzip {
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        }
    }
}

// === impl Watchdog ===

impl Watchdog {
    pub(super) fn new(client: Arc<Client>, link: Arc<Link>) -> Self {
        Self { client, link, seen: Instant::now() }
    }

    /// Returns when the peer was last seen to be there: before what came last, if that came after a silence.
    pub(super) fn seen(&self) -> Instant {
        self.seen
    }

    /// Waits until the peer has shown again that it is there; not more often than each third of the contact timeout. Of a
    /// peer that is not there, the body of the answer fails within the contact timeout.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when it is dropped.
    pub(super) async fn next(&mut self) {
        let Self { client, link, seen } = self;
        let interval = ping_interval(client.contact_timeout);
        loop {
            sleep_until(*seen + interval).await;
            let last = link.contact.last();
            if last > *seen {
                *seen = last;
                return;
            }
            if link.is_http2 {
                // Its PING is on the way.
                sleep(interval / 10).await;
            } else {
                client.probe(&link.contact).await;
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/client.rs"]
mod tests;
