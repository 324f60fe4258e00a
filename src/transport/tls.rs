//! TLS for the connections of one listener, with certificates that are reloaded when their files change.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::{Registry, Unit},
};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::{net::TcpStream, sync::Notify, task::spawn_blocking};
use tokio_rustls::{Accept, TlsAcceptor, server::TlsStream};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Peer, buffered_io::Io, peer::ConnectionPeer};
use crate::{
    auth::CertificateNames,
    net::{FileError, FileKind, ReloadedFiles},
    turns::{Class, FairSemaphore, Party, QueueBounds},
};

/// Paths of certificate and key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate chain.
    pub cert: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
    /// CA certificates; if given, a client needs a certificate that one of them has signed.
    pub client_ca: Option<PathBuf>,
    /// True if a client may also have no certificate, because it may authenticate otherwise.
    pub is_certificate_optional: bool,
    /// Names of a client's certificate that are its user and groups.
    pub names: CertificateNames,
}

/// TLS configuration with which connections are accepted.
pub struct Tls {
    names: CertificateNames,
    failures: Counter,
    expiry: Gauge,
    loaded: Arc<ReloadedFiles<Loaded>>,
    /// Turns of the handshakes at the processors.
    turns: Arc<FairSemaphore>,
}

/// Configuration, and the time at which its certificate expires, in seconds since 1970.
type Loaded = (Arc<ServerConfig>, i64);

const CERTIFICATE: FileKind = FileKind {
    name: "certificate",
    interval: Duration::from_secs(10),
    read: |path| fs::read(path).map_err(|error| error.to_string()),
};
/// Handshakes that wait for a turn: each has a permit of the listener's connections, which are bounded, and ends within a timeout.
const ALL_CONNECTIONS: QueueBounds = QueueBounds { calls: usize::MAX, bytes: usize::MAX };

// === impl Tls ===

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read or is not valid, or if the key does not belong to the certificate.
    pub fn load(files: TlsFiles) -> Result<Self, FileError> {
        let (names, failures, expiry) = (files.names, Counter::default(), Gauge::default());
        let paths = [&files.cert, &files.key].into_iter().chain(&files.client_ca).cloned().collect();
        let parse = move |contents: &[Vec<u8>]| Ok((files.config(contents)?, expiry_of(&contents[0])));
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let turns = FairSemaphore::new((processors / 2).max(1), ALL_CONNECTIONS, 100);
        let tls = Self { names, failures, expiry, loaded: ReloadedFiles::load(CERTIFICATE, paths, parse)?, turns };
        tls.set_expiry();
        Ok(tls)
    }

    /// Registers the metrics of handshakes and of the certificate.
    pub fn register(&self, registry: &mut Registry) {
        let help = "TLS handshakes that failed or took longer than limits.request_timeout";
        registry.register("informerd_tls_handshake_failures", help, self.failures.clone());
        let (name, help) = ("informerd_tls_cert_expiry_timestamp", "Time at which the server's certificate expires");
        registry.register_with_unit(name, help, Unit::Seconds, self.expiry.clone());
    }

    /// Reloads the files whenever they have changed; never returns. If the new files cannot be used, it logs the error, and the
    /// server keeps using the previous ones: a renewal may be half done. Open connections keep their certificate.
    pub async fn reload(self: Arc<Self>) {
        Arc::clone(&self.loaded).reload(|| self.set_expiry()).await;
    }

    fn set_expiry(&self) {
        self.loaded.with(|(_, expiry)| self.expiry.set(*expiry));
    }

    /// Accepts a client's handshake within the timeout. It negotiates HTTP/2, or HTTP/1.1 if that is served.
    ///
    /// A signature takes up to a millisecond. So that many clients that connect at once do not delay the open watches, handshakes
    /// compute on threads for blocking work, as many at a time as half of the processors; addresses take turns.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        peer: Peer,
        timeout: Duration,
        serves_http1: bool,
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut config = self.loaded.with(|(config, _)| Arc::clone(config));
        if serves_http1 {
            Arc::make_mut(&mut config).alpn_protocols.push(b"http/1.1".to_vec());
        }
        // Clients behind a proxy that names none have a turn each.
        let party = peer.origin().map_or_else(|| Party::new(&peer, &()), |origin| Party::new(&origin, &()));
        let handshake = in_turns(&self.turns, party, TlsAcceptor::from(config).accept(stream));
        let accepted = tokio::time::timeout(timeout, handshake).await;
        let accepted = accepted.unwrap_or_else(|late| Err(late.into()));
        if accepted.is_err() {
            self.failures.inc();
        }
        accepted
    }

    /// Adds the certificate of its client, if it has one, to the peer of a connection.
    pub(super) fn identify(&self, stream: &TlsStream<TcpStream>, peer: &mut ConnectionPeer) {
        if let Some([certificate, ..]) = stream.get_ref().1.peer_certificates() {
            peer.presents(certificate, self.names);
        }
    }
}

/// Drives a handshake of which each step takes a turn, on a thread for blocking work.
async fn in_turns(
    turns: &Arc<FairSemaphore>,
    party: Party,
    mut handshake: Accept<TcpStream>,
) -> io::Result<TlsStream<TcpStream>> {
    let woken = Arc::new(Woken::default());
    loop {
        let turn = turns.acquire(party, Class::Known, 0).await.map_err(io::Error::other)?;
        let waker = Waker::from(Arc::clone(&woken));
        let step = spawn_blocking(move || {
            // Also that of a handshake that has timed out lasts until its step is over.
            let _turn = turn;
            let polled = Pin::new(&mut handshake).poll(&mut Context::from_waker(&waker));
            (handshake, polled)
        });
        let polled;
        (handshake, polled) = step.await.map_err(io::Error::other)?;
        if let Poll::Ready(accepted) = polled {
            return accepted;
        }
        woken.0.notified().await;
    }
}

/// Waker that remembers a wake-up.
#[derive(Default)]
struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Returns the time at which the first of these certificates, that of the server, expires, in seconds since 1970. The rest of the
/// chain is not read: a CA has its own monitoring.
fn expiry_of(pem: &[u8]) -> i64 {
    let certificate = CertificateDer::from_pem_slice(pem).ok();
    let parsed = certificate.as_deref().and_then(|der| X509Certificate::from_der(der).ok());
    parsed.map_or(0, |(_, certificate)| certificate.validity().not_after.timestamp())
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.loaded).finish_non_exhaustive()
    }
}

// === impl TlsFiles ===

impl TlsFiles {
    /// Builds the configuration of the contents of certificate, key and CA certificates.
    fn config(&self, contents: &[Vec<u8>]) -> Result<Arc<ServerConfig>, FileError> {
        let certs = certificates(&self.cert, &contents[0])?;
        let key = PrivateKeyDer::from_pem_slice(&contents[1])
            .map_err(|error| FileError::new(&self.key, format!("no PEM private key: {error}")))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| FileError::new(&self.cert, error.to_string()))?;
        let builder = match (&self.client_ca, contents.get(2)) {
            (Some(path), Some(pem)) => {
                let refused = |error: &dyn fmt::Display| FileError::new(path, error.to_string());
                let mut roots = RootCertStore::empty();
                for cert in certificates(path, pem)? {
                    roots.add(cert).map_err(|error| refused(&error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let optional = self.is_certificate_optional;
                let verifier = if optional { verifier.allow_unauthenticated() } else { verifier }.build();
                builder.with_client_cert_verifier(verifier.map_err(|error| refused(&error))?)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(certs, key).map_err(|error| {
            FileError::new(&self.cert, format!("cannot be used with the key {}: {error}", self.key.display()))
        })?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // Clients that come back after a break of the network resume, however many there are: rustls itself remembers 256.
        config.ticketer = ring::Ticketer::new().map_err(|error| FileError::new(&self.key, error.to_string()))?;
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let certs = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certs = certs.map_err(|error| FileError::new(path, format!("not a PEM certificate: {error}")))?;
    if certs.is_empty() {
        return Err(FileError::new(path, "no PEM certificate".to_owned()));
    }
    Ok(certs)
}

impl Io for TlsStream<TcpStream> {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self.get_ref().0)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{Receiver, channel},
        thread::ThreadId,
    };

    use futures_util::FutureExt;
    use parking_lot::Mutex;
    use rcgen::generate_simple_self_signed;
    use rustls::{
        ClientConfig, ClientConnection, HandshakeKind, ServerConnection,
        client::Resumption,
        pki_types::ServerName,
        server::{ClientHello, ResolvesServerCert},
        sign::CertifiedKey,
    };
    use tokio::{net::TcpListener, task::JoinSet};

    use super::*;
    use crate::log_throttle::test_log::TestLog;

    fn write(directory: &Path) -> TlsFiles {
        let rcgen::CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let files = TlsFiles {
            cert: directory.join("tls.crt"),
            key: directory.join("tls.key"),
            client_ca: None,
            is_certificate_optional: false,
            names: CertificateNames::default(),
        };
        fs::write(&files.cert, cert.pem()).unwrap();
        fs::write(&files.key, signing_key.serialize_pem()).unwrap();
        files
    }

    /// Shakes hands without a socket, and passes the tickets to the client.
    fn handshake(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Option<HandshakeKind> {
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
        let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
        while client.wants_write() || server.wants_write() {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            while !bytes.is_empty() {
                let read = server.read_tls(&mut &*bytes).unwrap();
                bytes.drain(..read);
                server.process_new_packets().unwrap();
            }
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            while !bytes.is_empty() {
                let read = client.read_tls(&mut &*bytes).unwrap();
                bytes.drain(..read);
                client.process_new_packets().unwrap();
            }
        }
        server.handshake_kind()
    }

    #[test]
    fn changed_certificates_are_served_once_complete() {
        let directory = tempfile::tempdir().unwrap();
        let files = write(directory.path());
        let tls = Tls::load(files.clone()).unwrap();
        let served = || tls.loaded.with(|(config, _)| Arc::clone(config));
        let first = served();
        assert_eq!(tls.loaded.reload_once(), Ok(false));
        let old_key = fs::read(&files.key).unwrap();
        write(directory.path());
        let new_key = fs::read(&files.key).unwrap();
        fs::write(&files.key, old_key).unwrap();
        let error = tls.loaded.reload_once().unwrap_err().to_string();
        assert!(error.contains("tls.crt: cannot be used with the key") && error.contains("tls.key"), "{error}");
        assert!(Arc::ptr_eq(&first, &served()), "the old one, as long as the new one is half written");
        fs::write(&files.key, new_key).unwrap();
        assert_eq!(tls.loaded.reload_once(), Ok(true));
        assert!(!Arc::ptr_eq(&first, &served()));
        assert_eq!(tls.loaded.reload_once(), Ok(false));
    }

    #[test]
    fn any_number_of_clients_resumes_until_the_certificate_changes() {
        const CLIENTS: usize = 400;
        let directory = tempfile::tempdir().unwrap();
        let files = write(directory.path());
        let tls = Tls::load(files.clone()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&files.cert).unwrap()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let client = client.with_root_certificates(roots).with_no_client_auth();
        let own_tickets = |_| {
            let mut client = ClientConfig::clone(&client);
            client.resumption = Resumption::in_memory_sessions(8);
            Arc::new(client)
        };
        let clients: Vec<_> = (0..CLIENTS).map(own_tickets).collect();
        let kinds = |tls: &Tls| {
            let server = tls.loaded.with(|(config, _)| Arc::clone(config));
            let resumed = |client: &&Arc<ClientConfig>| handshake(client, &server) == Some(HandshakeKind::Resumed);
            clients.iter().filter(resumed).count()
        };
        assert_eq!(kinds(&tls), 0);
        assert_eq!(kinds(&tls), CLIENTS);
        let other = Tls::load(files).unwrap();
        assert_eq!(kinds(&other), 0, "tickets of other keys");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_bad_certificate_is_logged() {
        let directory = tempfile::tempdir().unwrap();
        let files = write(directory.path());
        let (tls, path) = (Arc::new(Tls::load(files.clone()).unwrap()), files.cert);
        let good = fs::read(&path).unwrap();
        let _reloading = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(Arc::clone(&tls).reload()));
        let (log, _guard) = TestLog::start(tracing::Level::INFO);
        let after = async |content: &[u8]| {
            fs::write(&path, content).unwrap();
            // The time stands still while the file is read.
            tokio::time::sleep(CERTIFICATE.interval * 2).await;
            log.take()
        };
        assert_eq!(after(b"bad").await, Vec::<String>::new());
        let logged = after(&good).await;
        assert!(logged.len() == 1 && logged[0].contains("certificate valid again, unchanged"), "{logged:?}");
        assert_eq!(after(&good).await, Vec::<String>::new());
    }

    /// Records the names that clients request and the threads of their handshakes, in the order of the signatures.
    #[derive(Debug)]
    struct RecordedKey {
        handshakes: Mutex<Vec<(String, ThreadId)>>,
        /// The next signature waits until the sender is dropped.
        gate: Mutex<Option<Receiver<()>>>,
        key: Arc<CertifiedKey>,
    }

    impl ResolvesServerCert for RecordedKey {
        fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            self.handshakes.lock().push((hello.server_name()?.to_owned(), thread::current().id()));
            let gate = self.gate.lock().take();
            gate.and_then(|gate| gate.recv().ok());
            Some(Arc::clone(&self.key))
        }
    }

    impl RecordedKey {
        async fn recorded(&self, handshakes: usize) {
            while self.handshakes.lock().len() < handshakes {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Returns a configuration with this key, of which one handshake computes at a time.
    fn recorded() -> (Arc<RecordedKey>, Arc<Tls>) {
        let directory = tempfile::tempdir().unwrap();
        let files = write(directory.path());
        let certs = certificates(&files.cert, &fs::read(&files.cert).unwrap()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
        let key = Arc::new(CertifiedKey::from_der(certs, key, &provider).unwrap());
        let recorded = Arc::new(RecordedKey { handshakes: Mutex::default(), gate: Mutex::default(), key });
        let server = ServerConfig::builder_with_provider(provider);
        let server = server.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let server = Arc::new(server.with_cert_resolver(Arc::clone(&recorded) as Arc<_>));
        let mut tls = Tls::load(files.clone()).unwrap();
        let parse = move |_: &[Vec<u8>]| Ok((Arc::clone(&server), 0));
        tls.loaded = ReloadedFiles::load(CERTIFICATE, vec![files.cert], parse).unwrap();
        tls.turns = FairSemaphore::new(1, ALL_CONNECTIONS, 100);
        (recorded, Arc::new(tls))
    }

    /// Returns a connection whose client has sent its first message, and the client's end.
    async fn hello(name: &'static str, listener: &TcpListener) -> (TcpStream, std::net::TcpStream) {
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let client = client.with_safe_default_protocol_versions().unwrap();
        let client = Arc::new(client.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
        let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut hello = ClientConnection::new(client, ServerName::try_from(name).unwrap()).unwrap();
        while hello.wants_write() {
            hello.write_tls(&mut stream).unwrap();
        }
        let (accepted, _) = listener.accept().await.unwrap();
        accepted.readable().await.unwrap();
        (accepted, stream)
    }

    async fn accept(tls: Arc<Tls>, stream: TcpStream, host: u8) -> bool {
        tls.accept(stream, Peer::Tcp(([127, 0, 0, host], 1).into()), Duration::from_secs(60), false).await.is_ok()
    }

    #[tokio::test]
    async fn addresses_take_turns_at_handshakes_beside_the_runtime() {
        const CLIENTS: usize = 100;
        let (recorded, tls) = recorded();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (mut handshakes, mut clients) = (JoinSet::new(), Vec::new());
        for at in 0..CLIENTS {
            let (name, host) = if at + 1 < CLIENTS { ("many", 1) } else { ("one", 2) };
            let (stream, client) = hello(name, &listener).await;
            clients.push(client);
            handshakes.spawn(accept(Arc::clone(&tls), stream, host));
        }
        recorded.recorded(CLIENTS).await;
        drop(clients);
        while let Some(accepted) = handshakes.join_next().await {
            assert!(!accepted.unwrap(), "the clients are gone");
        }
        let recorded = recorded.handshakes.lock();
        let at = recorded.iter().position(|(name, _)| name == "one").unwrap();
        assert!(at < 10, "that of the other address was number {at} of {CLIENTS}");
        assert!(recorded.iter().all(|(_, thread)| *thread != thread::current().id()));
    }

    #[tokio::test]
    async fn a_handshake_that_is_given_up_has_its_turn_until_its_step_is_over() {
        let (recorded, tls) = recorded();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (gate, waiting) = channel();
        *recorded.gate.lock() = Some(waiting);
        let (stream, _client) = hello("a", &listener).await;
        let handshake = tokio::spawn(accept(Arc::clone(&tls), stream, 1));
        recorded.recorded(1).await;
        handshake.abort();
        assert!(handshake.await.unwrap_err().is_cancelled());
        let mut turn = Box::pin(tls.turns.acquire(Party::new(&2, &()), Class::Known, 0));
        assert!(turn.as_mut().now_or_never().is_none(), "its signature is being made");
        drop(gate);
        drop(turn.await.unwrap());
    }

    #[test]
    fn unusable_certificates_are_reported_with_their_file() {
        let directory = tempfile::tempdir().unwrap();
        let files = write(directory.path());
        let none = directory.path().join("none");
        let other = directory.path().join("other");
        fs::write(&other, "not PEM").unwrap();
        for (files, problem) in [
            (TlsFiles { cert: none.clone(), ..files.clone() }, "none: No such file"),
            (TlsFiles { cert: other.clone(), ..files.clone() }, "other: no PEM certificate"),
            (TlsFiles { key: other.clone(), ..files.clone() }, "other: no PEM private key"),
            (TlsFiles { client_ca: Some(none), ..files.clone() }, "none: No such file"),
            (TlsFiles { client_ca: Some(other), ..files.clone() }, "other: no PEM certificate"),
        ] {
            let error = Tls::load(files).unwrap_err().to_string();
            assert!(error.contains(problem) && !error.contains('\n'), "{error}");
        }
    }
}
