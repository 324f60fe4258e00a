use std::{convert::Infallible, io::Write, path::PathBuf, sync::atomic::AtomicUsize};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::Request;
use http_body_util::{Full, combinators::BoxBody};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ServerConfig, pki_types::PrivateKeyDer, server::WebPkiClientVerifier};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{
    cache::{SourceHealth, SyncState},
    source::{
        kube::{KubeConfig, api::Api},
        tests::{DEADLINE, Gate},
    },
};

type Answer = Response<BoxBody<Bytes, Infallible>>;

/// API server over TLS, with answers that do not matter.
struct Server {
    address: std::net::SocketAddr,
    authority: String,
    connections: Arc<AtomicUsize>,
    /// Number of requests without a complete answer.
    open: Arc<AtomicUsize>,
    directory: tempfile::TempDir,
}

/// Returns a certificate and its key, in PEM.
fn certificate() -> (String, String) {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    (cert.pem(), signing_key.serialize_pem())
}

fn tls(alpn: &str, (cert, key): &(String, String), client: Option<&str>) -> ServerConfig {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions().unwrap();
    let builder = match client {
        Some(pem) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let certificate = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
    let mut config =
        builder.with_single_cert(vec![certificate], PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap();
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    config
}

/// Answers a request: `/hold` never ends, `/large` is 1 MiB, in gzip if the client accepts it, and any other answer ends at
/// once.
fn answer(request: &Request<Incoming>, open: &AtomicUsize) -> Answer {
    let full = |bytes: Vec<u8>| BoxBody::new(Full::new(Bytes::from(bytes)));
    if request.uri().path() == "/hold" {
        open.fetch_add(1, Ordering::SeqCst);
        let body =
            http_body_util::StreamBody::new(futures_util::stream::pending::<Result<http_body::Frame<Bytes>, _>>());
        return Response::new(BoxBody::new(body));
    }
    if request.uri().path() == "/large" {
        assert_eq!(request.headers()[header::ACCEPT_ENCODING], "gzip");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&vec![b'x'; 1 << 20]).unwrap();
        let mut answer = Response::new(full(encoder.finish().unwrap()));
        answer.headers_mut().insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
        return answer;
    }
    let path = request.uri().path().to_owned();
    Response::new(full(path.into_bytes()))
}

// === impl Server ===

impl Server {
    async fn start(alpn: &'static str, max_streams: u32) -> Self {
        let certificate = certificate();
        let config = Arc::new(tls(alpn, &certificate, None));
        Self::with(alpn, max_streams, certificate.0, move || Arc::clone(&config)).await
    }

    /// Starts a server with a separate TLS configuration for each connection.
    async fn with(
        alpn: &'static str,
        max_streams: u32,
        authority: String,
        config: impl Fn() -> Arc<ServerConfig> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (accepted, held) = (Arc::clone(&connections), Arc::clone(&open));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::SeqCst);
                let (acceptor, held) = (TlsAcceptor::from(config()), Arc::clone(&held));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(move |request| {
                        std::future::ready(Ok::<_, Infallible>(answer(&request, &held)))
                    });
                    let io = TokioIo::new(stream);
                    if alpn == "h2" {
                        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        builder.max_concurrent_streams(max_streams);
                        drop(builder.serve_connection(io, service).await);
                    } else {
                        drop(hyper::server::conn::http1::Builder::new().serve_connection(io, service).await);
                    }
                });
            }
        });
        Self { address, authority, connections, open, directory: tempfile::tempdir().unwrap() }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn kubeconfig(&self, port: u16, user: &str) -> PathBuf {
        let (path, authority) = (self.directory.path().join("config"), self.directory.path().join("ca.crt"));
        std::fs::write(&authority, &self.authority).unwrap();
        let text = format!(
            "{{current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}], users: [{{name: u, user: {{{user}}}}}], \
             clusters: [{{name: k, cluster: {{server: 'https://127.0.0.1:{port}', certificate-authority: ca.crt}}}}]}}"
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    fn api(&self) -> Api {
        self.api_over(self.address.port(), "", &SourceHealth::new(Duration::from_secs(15), Duration::from_secs(15)))
    }

    fn api_over(&self, port: u16, user: &str, health: &SourceHealth) -> Api {
        let cluster = KubeCluster { kubeconfig: Some(self.kubeconfig(port, user)), context: None };
        let client = KubeClients::default().get(&cluster, Duration::from_secs(15));
        let config = KubeConfig { answer_timeout: Duration::from_secs(10), ..KubeConfig::new("x", "", "v1", "x") };
        Api::new(client, &config, health.clone())
    }
}

/// Beyond the server's limit of concurrent requests the client opens another connection.
#[tokio::test]
async fn requests_share_an_http2_connection_up_to_its_stream_limit() {
    let server = Server::start("h2", 3).await;
    let api = server.api();
    let mut held = Vec::new();
    for _ in 0..7 {
        held.push(timeout(DEADLINE, api.open("/hold")).await.unwrap().unwrap());
    }
    assert_eq!((server.connections(), server.open.load(Ordering::SeqCst)), (3, 7));
    // Two streams are free; each request frees its stream at its end.
    for _ in 0..5 {
        assert_eq!(api.get("/x").await.unwrap(), "/x");
    }
    drop(held);
    assert_eq!(timeout(DEADLINE, api.get("/y")).await.unwrap().unwrap(), "/y");
    assert_eq!(server.connections(), 3);
}

/// Concurrent requests do not open a connection each.
#[tokio::test]
async fn requests_that_begin_together_wait_for_one_connection() {
    let server = Server::start("h2", 100).await;
    let api = server.api();
    let answers = futures_util::future::join_all((0..20).map(|_| api.get("/x"))).await;
    assert!(answers.into_iter().all(|answer| answer.unwrap() == "/x"));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_server_without_http2_gets_a_connection_for_each_watch_and_keeps_those_that_are_free() {
    let server = Server::start("http/1.1", 0).await;
    let api = server.api();
    for _ in 0..3 {
        assert_eq!(timeout(DEADLINE, api.get("/x")).await.unwrap().unwrap(), "/x");
    }
    assert_eq!(server.connections(), 1);
    let held = (api.open("/hold").await.unwrap(), api.open("/hold").await.unwrap());
    assert_eq!(api.get("/x").await.unwrap(), "/x");
    assert_eq!(server.connections(), 3);
    drop(held);
}

#[tokio::test]
async fn a_compressed_page_is_decompressed_within_a_bound() {
    let server = Server::start("h2", 100).await;
    let api = server.api();
    assert_eq!(api.get("/large").await.unwrap().len(), 1 << 20);
    let wish = RequestOptions { accept: "*/*", may_compress: true, timeout: DEADLINE };
    let client = KubeClients::default();
    let cluster = KubeCluster { kubeconfig: Some(server.directory.path().join("config")), context: None };
    let client = client.get(&cluster, Duration::from_secs(15));
    let Ok((_, answer)) = client.send("/large", wish).await else { panic!("an answer") };
    let problem = answer.into_body().read(true, (1 << 20) - 1).await.unwrap_err();
    assert_eq!(problem, "response too large (limit: 1048575 bytes)");
}

/// A PING detects it: the kernel of a frozen proxy still acknowledges every packet.
#[tokio::test]
async fn a_frozen_connection_of_http2_ends_and_is_stale_by_the_last_contact() {
    let server = Server::start("h2", 100).await;
    let gate = Gate::to(server.address).await;
    let health = SourceHealth::new(Duration::from_secs(15), Duration::from_secs(15));
    let api = server.api_over(gate.port(), "", &health);
    let mut held = api.open("/hold").await.unwrap();
    health.record_contact();
    let mut watchdog = api.watchdog(&held);
    tokio::time::pause();
    for _ in 0..20 {
        tokio::select! {
            frame = held.frame() => panic!("{frame:?}"),
            () = watchdog.next() => {}
        }
    }
    health.record_contact();
    gate.freeze(true);
    let since = Instant::now();
    let ended = tokio::select! {
        frame = held.frame() => frame,
        () = async { loop { watchdog.next().await } } => None,
    };
    let (noticed, error) = (since.elapsed(), ended.unwrap().unwrap_err());
    assert!(noticed <= Duration::from_secs(16), "{noticed:?}");
    let expected = "no response from the API server for 15 s; check the network to it";
    assert_eq!(error.to_string(), expected);
    tokio::time::sleep_until(since + Duration::from_secs(16)).await;
    assert_eq!(health.state(), SyncState::Stale);
    tokio::time::resume();
    gate.freeze(false);
    assert_eq!(timeout(DEADLINE, api.get("/x")).await.unwrap().unwrap(), "/x");
    assert_eq!(server.connections(), 2);
}

/// In TLS 1.3 a server refuses a client certificate after the handshake. The renewed certificate is in the file.
#[tokio::test]
async fn a_client_certificate_that_is_refused_is_read_again() {
    for alpn in ["h2", "http/1.1"] {
        let (own, old, renewed) = (certificate(), certificate(), certificate());
        let accepted = Arc::new(Mutex::new(old.0.clone()));
        let (known, server_certificate) = (Arc::clone(&accepted), own.clone());
        let config = move || Arc::new(tls(alpn, &server_certificate, Some(&known.lock())));
        let server = Server::with(alpn, 100, own.0, config).await;
        let file = |name: &str| server.directory.path().join(name);
        let write = |(cert, key): &(String, String)| {
            std::fs::write(file("tls.crt"), cert).unwrap();
            std::fs::write(file("tls.key"), key).unwrap();
        };
        write(&old);
        let health = SourceHealth::new(Duration::from_secs(15), Duration::from_secs(15));
        let user = "client-certificate: tls.crt, client-key: tls.key";
        let api = server.api_over(server.address.port(), user, &health);
        assert_eq!(api.get("/x").await.unwrap(), "/x");
        accepted.lock().clone_from(&renewed.0);
        write(&renewed);
        // Over the open connection.
        assert_eq!(api.get("/x").await.unwrap(), "/x");
        assert_eq!(server.connections(), 1, "{alpn}");
        let other = server.api_over(server.address.port(), user, &health);
        accepted.lock().clone_from(&old.0);
        let error = other.get("/x").await.unwrap_err().to_string();
        assert!(error.contains("alert") || error.contains("closed"), "{error}");
        write(&old);
        assert_eq!(timeout(DEADLINE, other.get("/x")).await.unwrap().unwrap(), "/x", "{alpn}");
    }
}

/// A watch would go on at the old server, with the rights of the old user.
#[tokio::test]
async fn open_answers_end_when_the_kubeconfig_changes() {
    for alpn in ["h2", "http/1.1"] {
        let server = Server::start(alpn, 100).await;
        let api = server.api();
        let mut held = api.open("/hold").await.unwrap();
        server.kubeconfig(server.address.port(), "token: another");
        tokio::time::pause();
        tokio::time::sleep(Duration::from_secs(6)).await;
        tokio::time::resume();
        let frame = timeout(DEADLINE, held.frame()).await;
        let frame = frame.unwrap_or_else(|_| panic!("{alpn}: the answer is still open"));
        assert!(frame.unwrap().is_err(), "{alpn}");
        assert_eq!(api.get("/x").await.unwrap(), "/x");
        assert_eq!(server.connections(), 2, "{alpn}");
    }
}
