//! Connections of this process to one API server, for all resources that follow it as the same user.
//!
//! All HTTP/2 requests share one connection, and another one when the server accepts no more requests on it. Over
//! HTTP/1.1 each watch has one, and idle connections are reused. Connections run on the runtime that the client was made on, so
//! that none ends with the thread of a resource.

mod access;
mod bearer;
mod body;
mod connection;
mod exec;
mod kubeconfig;
mod pool;
mod proxy;
mod tls;
mod tunnel;

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;

pub(super) use self::{
    access::ESCAPED,
    body::{Body, TOO_LARGE},
};
use self::{
    access::{Access, Authenticator, Need},
    connection::{Contact, Link, OpenError, Sender, ping_interval},
    kubeconfig::RestConfig,
    pool::{Lease, Pool},
    tls::is_refusal,
};
use super::{KubeCluster, SingleFlight};
use crate::{cache::SourceError, net::Dialer};

/// Clients of a process, one for each cluster and context: sources of the same one share its connections and credentials.
/// Clones share them too.
#[derive(Debug, Clone, Default)]
pub struct KubeClients {
    clients: Arc<Mutex<Clients>>,
}

/// Clients by cluster and contact timeout, since the timeout belongs to a connection.
type Clients = HashMap<(KubeCluster, Duration), Weak<Client>>;

/// HTTP client of one API server.
pub(super) struct Client {
    authenticator: Authenticator,
    dialer: Dialer,
    contact_timeout: Duration,
    /// Runtime of the connections; `None` for that of the request.
    runtime: Option<Handle>,
    pool: Arc<Mutex<Pool>>,
    connecting: SingleFlight<Option<Failed>>,
    /// Number of finished attempts to connect.
    attempts: AtomicU64,
    probing: SingleFlight<()>,
    /// True once a task checks the files that connections were made from.
    is_checked: AtomicBool,
}

struct Failed {
    attempt: u64,
    error: OpenError,
}

/// Failure of a request without an answer.
pub(super) struct Failure {
    pub(super) error: SourceError,
    /// Last contact with the peer; `None` without a connection.
    pub(super) contact: Option<Instant>,
}

/// Parts of a request besides its path.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestOptions {
    pub(super) accept: &'static str,
    pub(super) may_compress: bool,
    /// Timeout of the answer's head.
    pub(super) timeout: Duration,
}

/// Liveness check of a connection.
pub(super) struct Watchdog {
    client: Arc<Client>,
    link: Arc<Link>,
    seen: Instant,
}

const MIN_CONTACT_TIMEOUT: Duration = Duration::from_millis(100);
/// Path that every user may read by default; a refusal is a sign of life too.
const PROBE: &str = "/version";
/// Interval at which the files that connections were made from are checked, as that of the configuration.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
const PROBE_DELAY: Duration = Duration::from_secs(1);
const MAX_PROBE_BYTES: usize = 64 << 10;

// === impl KubeClients ===

impl KubeClients {
    /// Returns the client of a cluster and a context.
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
            pool: Arc::new(Mutex::new(Pool::new(contact_timeout))),
            connecting: SingleFlight::default(),
            attempts: AtomicU64::new(0),
            probing: SingleFlight::default(),
            is_checked: AtomicBool::new(false),
        }
    }

    /// Sends a request for a path with its query. If the API server refuses the credentials, they are renewed and the request
    /// is repeated, once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the request.
    pub(super) async fn send(
        self: &Arc<Self>,
        target: &str,
        wish: RequestOptions,
    ) -> Result<(Arc<Access>, Response<Body>), Failure> {
        self.post(target, Bytes::new(), wish).await
    }

    /// Sends JSON in the same way. It may be sent twice: only for reviews, which change nothing.
    pub(super) async fn post(
        self: &Arc<Self>,
        target: &str,
        json: Bytes,
        wish: RequestOptions,
    ) -> Result<(Arc<Access>, Response<Body>), Failure> {
        let mut need = Need::Any;
        loop {
            let access = self.authenticator.get(need).await?;
            let sent = self.exchange(Arc::clone(&access), target, &json, wish).await;
            let refused = match &sent {
                Ok((access, answer)) if answer.status() == StatusCode::UNAUTHORIZED => access.version,
                Err(FailedRequest { is_refusal: true, access, .. }) => *access,
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
        json: &Bytes,
        wish: RequestOptions,
    ) -> Result<(Arc<Access>, Response<Body>), FailedRequest> {
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
            let mut headers = access.headers().await.map_err(|error| FailedRequest::before(&access, error))?;
            wish.write(&mut headers, &access);
            if !json.is_empty() {
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            }
            let contact = Arc::clone(&slot.0.contact);
            match timeout(wish.timeout, sender.send(&access, headers, target, json.clone())).await {
                Ok(Ok(answer)) => {
                    let answer = answer.map(|incoming| Body::new(incoming, sender, slot, Arc::clone(&self.pool)));
                    return Ok((access, answer));
                }
                // The server closed the connection while it was idle. Every request can be repeated.
                Ok(Err(error)) if is_reused && !is_again && contact.last().elapsed() < self.contact_timeout => {
                    tracing::debug!(%error, "connection lost, retrying request");
                    is_again = true;
                }
                Ok(Err(error)) => {
                    let contact = contact.last();
                    let failed =
                        SourceError::Busy(format!("{}: {}", access.url, self.pool.lock().describe(contact, &error)));
                    let failure = Failure { error: failed, contact: Some(contact) };
                    return Err(FailedRequest { access: access.version, is_refusal: is_refusal(&error), failure });
                }
                Err(_) => {
                    let error = SourceError::Busy(format!("{}: no response within {:?}", access.url, wish.timeout));
                    let failure = Failure { error, contact: Some(contact.last()) };
                    return Err(FailedRequest { access: access.version, is_refusal: false, failure });
                }
            }
        }
    }

    /// Opens a connection, or takes one that another request has opened in the meantime.
    async fn connect(self: &Arc<Self>, known: &Access) -> Result<(Arc<Access>, Lease), FailedRequest> {
        let begun = self.attempts.load(Ordering::Acquire);
        // All requests share an HTTP/2 connection: they wait for one attempt, and share its failure.
        let is_alone = self.pool.lock().is_http1 == Some(true);
        let mut connecting = if is_alone { None } else { Some(self.connecting.lock().await) };
        let access = self.authenticator.get(Need::Fresh).await.map_err(|error| FailedRequest::before(known, error))?;
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
                    // Each watch has one.
                    tracing::debug!(url = &*access.url, "connected to the API server over HTTP/1.1");
                }
                self.begin_checks();
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
                opened.unwrap_or_else(|_| Err("the process is shutting down".to_owned().into()))
            }
            None => opening.await,
        }
    }

    /// Begins to check, once, if connections are still those of the present files, and closes them if not: what a connection was made
    /// from, changed, ends it.
    fn begin_checks(self: &Arc<Self>) {
        if self.is_checked.swap(true, Ordering::Relaxed) {
            return;
        }
        let client = Arc::downgrade(self);
        let checks = async move {
            let mut seen = 1;
            loop {
                sleep(CHECK_INTERVAL).await;
                let Some(client) = client.upgrade() else { return };
                if client.authenticator.has_changed(&mut seen).await {
                    tracing::info!("kubeconfig or a file that it names has changed, reconnecting");
                    client.pool.lock().close();
                }
            }
        };
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn(checks)),
            None => drop(tokio::spawn(checks)),
        }
    }

    /// Returns the liveness check for the connection of a body.
    pub(super) fn watchdog(self: &Arc<Self>, body: &Body) -> Watchdog {
        Watchdog { client: Arc::clone(self), link: Arc::clone(body.link()), seen: Instant::now() }
    }

    /// Sends requests over another HTTP/1.1 connection until the server answers one, at most until the contact timeout
    /// is over: then all connections are closed.
    async fn probe(self: &Arc<Self>, contact: &Contact) {
        let silent_since = contact.last();
        let _only_one = self.probing.lock().await;
        if contact.last() > silent_since {
            return;
        }
        let wish = RequestOptions { accept: "application/json", may_compress: false, timeout: self.contact_timeout };
        let answered = async {
            loop {
                if let Ok((_, answer)) = self.send(PROBE, wish).await {
                    // Read to its end, so that the connection can be reused.
                    drop(Limited::new(answer.into_body(), MAX_PROBE_BYTES).collect().await);
                    return;
                }
                sleep(PROBE_DELAY).await;
            }
        };
        // At least one probe: a process that was stopped finds the timeout over, and its server alive.
        let probed_until = Instant::now() + ping_interval(self.contact_timeout);
        let ends_at = (silent_since + self.contact_timeout).max(probed_until);
        if timeout_at(ends_at, answered).await.is_err() && contact.last() == silent_since {
            tracing::warn!(contact_timeout = ?self.contact_timeout, "API server out of contact");
            self.pool.lock().close();
        }
    }
}

debug_fields!(Client { contact_timeout });

/// Failed request; `is_refusal` is true if the server refused the credentials.
struct FailedRequest {
    access: u64,
    is_refusal: bool,
    failure: Failure,
}

impl Failed {
    fn refused(&self, access: &Access) -> FailedRequest {
        let OpenError { problem, is_refusal } = &self.error;
        let error = SourceError::Busy(format!("{}: {problem}", access.url));
        FailedRequest { access: access.version, is_refusal: *is_refusal, failure: error.into() }
    }
}

impl FailedRequest {
    fn before(access: &Access, error: SourceError) -> Self {
        Self { access: access.version, is_refusal: false, failure: error.into() }
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Self { error, contact: None }
    }
}

// === impl RequestOptions ===

impl RequestOptions {
    fn write(self, headers: &mut HeaderMap, access: &Access) {
        headers.insert(header::ACCEPT, HeaderValue::from_static(self.accept));
        if self.may_compress && access.accepts_gzip {
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        }
    }
}

// === impl Watchdog ===

impl Watchdog {
    /// Returns the contact seen by the last completed [`next`](Self::next). One that ended a silence since then does not count.
    pub(super) fn seen(&self) -> Instant {
        self.seen
    }

    /// Waits for the next contact, at most once per third of the contact timeout. If the peer is not alive, the body fails within
    /// the contact timeout.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
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
                // A PING is on its way.
                sleep(interval / 10).await;
            } else {
                client.probe(&link.contact).await;
            }
        }
    }
}

/// Checks that the configuration files of a cluster are there, without a connection or a plugin.
pub(super) fn check(cluster: &KubeCluster) -> Result<(), String> {
    let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    RestConfig::load(cluster, &env).map(drop)
}

#[cfg(test)]
#[path = "tests/client.rs"]
mod tests;
