//! Client of both servers: HTTP/2 over TLS with the windows of client-go, and a connection for each watch.

use std::{
    io::Read,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::{
    body::Incoming,
    client::conn::http2::{Builder, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use memchr::memmem;
use rustls::{
    CipherSuite, ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde::{Deserialize, de::IgnoredAny};
use tokio::{net::TcpStream, sync::watch, task::JoinHandle};
use tokio_rustls::TlsConnector;

use super::{DEADLINE, apiserver::ADMIN};

/// Server, and how to reach it.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) pid: u32,
    pub(super) address: SocketAddr,
    pub(super) tls: Arc<ClientConfig>,
}

/// Open watches of all pods.
pub(super) struct Watches {
    tasks: Vec<JoinHandle<(Vec<u64>, usize)>>,
    delivered: Arc<AtomicUsize>,
    ends: watch::Sender<bool>,
}

/// Cost of a list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listed {
    pub(super) seconds: f64,
    pub(super) bytes: usize,
}

/// List, of which each object is read.
#[derive(Deserialize)]
struct List {
    items: Vec<IgnoredAny>,
}

/// Windows of Go's HTTP/2.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;
/// Time in which an event that was sent twice arrives.
const QUIET: Duration = Duration::from_secs(1);

/// Returns a client of servers with these certificates, with the cipher suite that Go prefers.
pub(super) fn tls(certificates: &[String]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates.iter().flat_map(|pem| CertificateDer::pem_slice_iter(pem.as_bytes())) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let mut provider = ring::default_provider();
    provider.cipher_suites.retain(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256);
    let config = ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// Returns the version in a line of a watch; none in a bookmark.
fn version(line: &[u8]) -> Option<u64> {
    if line.starts_with(br#"{"type":"BOOKMARK","#) || line.ends_with(br#","type":"BOOKMARK"}"#) {
        return None;
    }
    let text = || String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned();
    assert!(line.starts_with(br#"{"type":"MODIFIED""#), "{}", text());
    // That of the object is the first one.
    let name = br#""resourceVersion":""#;
    let at = memmem::find(line, name).unwrap_or_else(|| panic!("{}", text())) + name.len();
    let digits = line[at..].iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// Reads the events of a watch until it is ended here. Returns their versions, and the number of bytes.
async fn read(
    response: Response<Incoming>,
    delivered: Arc<AtomicUsize>,
    mut end: watch::Receiver<bool>,
) -> (Vec<u64>, usize) {
    let (mut body, mut buffer, mut versions, mut bytes) = (response.into_body(), Vec::new(), Vec::new(), 0);
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame.expect("the watch is open").unwrap(),
            _ = end.changed() => return (versions, bytes),
        };
        let Ok(data) = frame.into_data() else { continue };
        bytes += data.len();
        buffer.extend_from_slice(&data);
        let mut read = 0;
        while let Some(length) = memchr::memchr(b'\n', &buffer[read..]) {
            if let Some(version) = version(&buffer[read..read + length]) {
                versions.push(version);
                delivered.fetch_add(1, Ordering::Relaxed);
            }
            read += length + 1;
        }
        buffer.drain(..read);
    }
}

// === impl Target ===

impl Target {
    async fn connect(&self) -> SendRequest<Empty<Bytes>> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::from(self.address.ip());
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut builder = Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(STREAM_WINDOW_BYTES);
        builder.initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    async fn get(&self, sender: &mut SendRequest<Empty<Bytes>>, query: &str, encoding: &str) -> Response<Incoming> {
        let request = Request::get(format!("https://{}{query}", self.address))
            .header(header::ACCEPT, "application/json")
            .header(header::ACCEPT_ENCODING, encoding)
            .header(header::AUTHORIZATION, format!("Bearer {ADMIN}"));
        sender.send_request(request.body(Empty::new()).unwrap()).await.unwrap()
    }

    /// Waits until the server has this number of pods.
    pub(super) async fn has(&self, pods: usize) {
        let (started, mut sender) = (Instant::now(), self.connect().await);
        loop {
            let response = self.get(&mut sender, "/api/v1/pods?resourceVersion=0", "identity").await;
            let status = response.status();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            if status == StatusCode::OK && serde_json::from_slice::<List>(&body).unwrap().items.len() == pods {
                return;
            }
            assert!(
                started.elapsed() < DEADLINE,
                "{status}: {}",
                String::from_utf8_lossy(&body[..body.len().min(300)])
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Lists all pods on a new connection, and checks their number.
    pub(super) async fn list(&self, pods: usize, is_gzip: bool) -> Listed {
        let mut sender = self.connect().await;
        let encoding = if is_gzip { "gzip" } else { "identity" };
        let started = Instant::now();
        let response = self.get(&mut sender, "/api/v1/pods?resourceVersion=0", encoding).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers().contains_key(header::CONTENT_ENCODING), is_gzip);
        let mut body = response.into_body().collect().await.unwrap().to_bytes();
        let listed = Listed { seconds: started.elapsed().as_secs_f64(), bytes: body.len() };
        if is_gzip {
            let mut plain = Vec::new();
            MultiGzDecoder::new(&body[..]).read_to_end(&mut plain).unwrap();
            body = plain.into();
        }
        assert_eq!(serde_json::from_slice::<List>(&body).unwrap().items.len(), pods);
        listed
    }
}

// === impl Watches ===

impl Watches {
    /// Opens watches from a version.
    pub(super) async fn open(target: &Target, count: usize, version: u64) -> Self {
        let query = format!("/api/v1/pods?allowWatchBookmarks=true&resourceVersion={version}&watch=true");
        let (delivered, (ends, end)) = (Arc::new(AtomicUsize::new(0)), watch::channel(false));
        #[expect(clippy::async_yields_async, reason = "the watch goes on in its own task")]
        let opening = (0..count).map(async |_| {
            let mut sender = target.connect().await;
            let response = target.get(&mut sender, &query, "identity").await;
            assert_eq!(response.status(), StatusCode::OK);
            let (delivered, end) = (Arc::clone(&delivered), end.clone());
            tokio::spawn(async move {
                // The connection ends with its last sender.
                let _sender = sender;
                read(response, delivered, end).await
            })
        });
        let tasks = join_all(opening).await;
        Self { tasks, delivered, ends }
    }

    /// Waits until a number of events has arrived.
    pub(super) async fn have(&self, events: usize) {
        let started = Instant::now();
        while self.delivered.load(Ordering::Relaxed) < events {
            let delivered = self.delivered.load(Ordering::Relaxed);
            assert!(started.elapsed() < DEADLINE, "{delivered} of {events} events have arrived");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends the watches. Each must have received these versions exactly once, and in order. Returns the bytes of all.
    pub(super) async fn end(self, written: &[u64]) -> usize {
        tokio::time::sleep(QUIET).await;
        self.ends.send(true).unwrap();
        let mut bytes = 0;
        for task in self.tasks {
            let (versions, read) = task.await.unwrap();
            assert!(versions == written, "a watch has received {versions:?} in place of {written:?}");
            bytes += read;
        }
        bytes
    }
}
