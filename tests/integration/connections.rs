//! Connections and requests that never begin or never end, on raw sockets: the server closes and counts them, and they delay no
//! other client.

use std::{fs, net::SocketAddr, time::Duration};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Request, StatusCode};
use informerd::config::ServeFlags;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
};

use crate::{
    authority::Authority,
    process::{Metrics, Process, connect_from},
    sandbox::DEADLINE,
    served::Served,
};

/// Starts a server over one pod, with these lines of configuration.
async fn serve(config: &str) -> Served {
    serve_in(TempDir::new().unwrap(), config).await
}

async fn serve_in(directory: TempDir, config: &str) -> Served {
    fs::write(directory.path().join("web.yaml"), "{kind: Pod, metadata: {name: web}}\n").unwrap();
    let path = directory.path().join("informerd.yml");
    fs::write(&path, config).unwrap();
    let files = vec![format!("pods={}@Pod", directory.path().display())];
    Served::start(directory, ServeFlags { files, config: Some(path), ..ServeFlags::default() }).await
}

/// Client on a raw HTTP/2 connection, which may send anything.
struct Raw {
    sends: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
}

/// End of a call, from its trailers or its only headers.
struct Answer {
    http: StatusCode,
    grpc: Option<String>,
    message: String,
}

impl Raw {
    async fn over(stream: TcpStream) -> Self {
        let (sends, connection) = h2::client::handshake(stream).await.unwrap();
        Self { sends, connection: tokio::spawn(connection) }
    }

    /// Connects from an address of its own. Returns none if the server closes the connection.
    async fn from(host: [u8; 4], server: SocketAddr) -> Option<Self> {
        let (mut sends, connection) = h2::client::handshake(connect_from(host, server).await.ok()?).await.ok()?;
        let connection = tokio::spawn(connection);
        std::future::poll_fn(|cx| sends.poll_ready(cx)).await.ok()?;
        Some(Self { sends, connection })
    }

    async fn to(served: &Served) -> Self {
        Self::over(TcpStream::connect(served.address.trim_start_matches("http://")).await.unwrap()).await
    }

    /// Sends bytes as the body of a call, and its end if `is_ended`, and waits for the answer.
    async fn call(&self, request: Request<()>, body: &[u8], is_ended: bool) -> Answer {
        let answered = async {
            let mut sends = self.sends.clone().ready().await.unwrap();
            let (response, mut stream) = sends.send_request(request, false).unwrap();
            stream.send_data(Bytes::copy_from_slice(body), is_ended).unwrap();
            let (head, mut body) = response.await.unwrap().into_parts();
            while let Some(data) = body.data().await {
                let length = data.unwrap().len();
                body.flow_control().release_capacity(length).unwrap();
            }
            let trailers = body.trailers().await.unwrap().unwrap_or_default();
            let field =
                |name| [&trailers, &head.headers].into_iter().find_map(|map: &HeaderMap| map.get(name).cloned());
            let text = |name| field(name).map(|value| value.to_str().unwrap().to_owned());
            Answer { http: head.status, grpc: text("grpc-status"), message: text("grpc-message").unwrap_or_default() }
        };
        tokio::time::timeout(DEADLINE, answered).await.expect("an answer")
    }
}

fn post(path: &str) -> Request<()> {
    let request = Request::post(format!("http://localhost{path}")).header("content-type", "application/grpc");
    request.header("te", "trailers").body(()).unwrap()
}

/// Returns the number of refusals for a reason once it is as expected: a client may see its end before the server has counted it.
async fn refused(served: &Served, reason: &str, expected: u64) -> u64 {
    let counted = async {
        loop {
            let counted = Metrics(served.get("/metrics").await.1).refused(reason);
            if counted >= expected {
                return counted;
            }
        }
    };
    tokio::time::timeout(DEADLINE, counted).await.expect("it is counted")
}

/// Waits until the server has closed a connection, whatever it sends before.
async fn closed(stream: &mut TcpStream) {
    let mut buffer = [0; 1024];
    let read = async { while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {} };
    tokio::time::timeout(DEADLINE, read).await.expect("the server closes it");
}

const CALLS: [&str; 7] = [
    "/informerd.v1.InformerService/Get",
    "/informerd.v1.InformerService/Watch",
    "/informerd.v1.InformerService/Subscribe",
    "/informerd.v1.InformerService/ListResources",
    "/informerd.v1.AdminService/ListWatchers",
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];

#[tokio::test]
async fn an_incomplete_request_ends_with_its_reason_and_then_its_connection() {
    let served = serve("limits: { request_timeout: 200ms }").await;
    let raw = Raw::to(&served).await;
    for path in CALLS {
        for half in [&b""[..], b"\0\0", b"\0\0\0\0\x20abc"] {
            let raw = Raw::to(&served).await;
            let Answer { http, grpc, message } = raw.call(post(path), half, false).await;
            assert_eq!((http, grpc.as_deref()), (StatusCode::OK, Some("4")), "{path}: {message}");
            assert!(message.contains("limits.request_timeout"), "{path}: {message}");
            tokio::time::timeout(DEADLINE, raw.connection).await.expect("the connection ends").unwrap().unwrap();
        }
    }
    let expected = CALLS.len() as u64 * 3;
    assert_eq!(refused(&served, "request_timeout", expected).await, expected);
    // A connection that only waits for its next call is kept.
    let answer = raw.call(post("/grpc.health.v1.Health/Check"), &[0; 5], true).await;
    assert_eq!(answer.grpc.as_deref(), Some("0"), "{}", answer.message);
    served.stop().await;
}

#[tokio::test]
async fn a_request_is_at_most_as_large_as_allowed_whatever_the_service() {
    let served = serve("").await;
    let raw = Raw::to(&served).await;
    for path in CALLS {
        // The head announces a size, and no byte of the body follows.
        let Answer { grpc, message, .. } = raw.call(post(path), b"\0\0\x01\0\x01", false).await;
        assert_eq!(grpc.as_deref(), Some("3"), "{path}: {message}");
        let limit = if path.starts_with("/grpc.health.") { "1024" } else { "65536" };
        assert!(message.contains(limit), "{path}: {message}");
    }
    let expected = CALLS.len() as u64;
    assert_eq!(refused(&served, "request_bytes", expected).await, expected);
    served.stop().await;
}

#[tokio::test]
async fn connections_that_send_nothing_or_half_of_a_head_are_closed() {
    let served = serve("limits: { request_timeout: 200ms }").await;
    let mut silent = TcpStream::connect(served.address.trim_start_matches("http://")).await.unwrap();
    closed(&mut silent).await;
    assert_eq!(refused(&served, "preface_timeout", 1).await, 1);

    let mut half = TcpStream::connect(served.address.trim_start_matches("http://")).await.unwrap();
    half.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x10\x01\x04\0\0\0\x01\x82")
        .await
        .unwrap();
    closed(&mut half).await;
    assert_eq!(refused(&served, "headers_timeout", 1).await, 1);

    for sent in ["", "GET /metrics HTTP/1.1\r\nHost: x\r\nX-A: "] {
        let mut admin = TcpStream::connect(&served.admin).await.unwrap();
        admin.write_all(sent.as_bytes()).await.unwrap();
        closed(&mut admin).await;
    }
    assert_eq!(refused(&served, "admin_timeout", 2).await, 2);
    served.stop().await;
}

#[tokio::test]
async fn an_incomplete_tls_handshake_is_closed() {
    let directory = TempDir::new().unwrap();
    let (cert, key) = Authority::new().sign(&["localhost"]);
    fs::write(directory.path().join("tls.crt"), cert).unwrap();
    fs::write(directory.path().join("tls.key"), key).unwrap();
    let config = "{ tls: { cert: tls.crt, key: tls.key }, limits: { request_timeout: 200ms } }";
    let served = serve_in(directory, config).await;
    // Nothing, and the head of a TLS record.
    for sent in [&b""[..], b"\x16\x03\x01\x02\0"] {
        let mut stream = TcpStream::connect(served.address.trim_start_matches("http://")).await.unwrap();
        stream.write_all(sent).await.unwrap();
        closed(&mut stream).await;
    }
    assert_eq!(refused(&served, "handshake_timeout", 2).await, 2);
    served.stop().await;
}

#[tokio::test]
async fn probes_are_answered_despite_many_silent_connections() {
    let served = serve("limits: { request_timeout: 5m }").await;
    let mut silent = Vec::new();
    for n in 0..100 {
        let mut stream = TcpStream::connect(&served.admin).await.unwrap();
        if n % 2 == 0 {
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-A: ").await.unwrap();
        }
        silent.push(stream);
    }
    let probe = tokio::time::timeout(DEADLINE, served.get("/livez")).await.expect("an answer");
    assert_eq!(probe, (200, "ok\n".to_owned()));
    // The server has closed the oldest ones for new ones.
    for stream in &mut silent[..60] {
        closed(stream).await;
    }
    assert!(refused(&served, "admin_connections", 60).await >= 60);
    let mut buffer = [0; 1];
    let last = tokio::time::timeout(Duration::from_millis(1), silent[99].read(&mut buffer)).await;
    assert!(last.is_err(), "it has its time");
    served.stop().await;
}

#[tokio::test]
async fn requests_other_than_grpc_are_answered_as_such() {
    let served = serve("{}").await;
    let raw = Raw::to(&served).await;
    let uri = "http://localhost/informerd.v1.InformerService/List";
    for path in CALLS {
        for content_type in ["", "text/plain", "application/json", "application/grpc-web", "application/grpc+json"] {
            let mut request = post(path);
            request.headers_mut().insert("content-type", content_type.parse().unwrap());
            let answer = raw.call(request, &[0; 5], true).await;
            assert_eq!((answer.http, answer.grpc), (StatusCode::UNSUPPORTED_MEDIA_TYPE, None), "{path} {content_type}");
        }
    }
    let expected = CALLS.len() as u64 * 5;
    assert_eq!(refused(&served, "content_type", expected).await, expected);
    for method in ["GET", "OPTIONS", "PUT"] {
        let request = Request::builder().method(method).uri(uri).header("content-type", "application/grpc");
        let answer = raw.call(request.body(()).unwrap(), &[0; 5], true).await;
        assert_eq!((answer.http, answer.grpc), (StatusCode::METHOD_NOT_ALLOWED, None), "{method}");
    }
    assert_eq!(refused(&served, "method", 3).await, 3);
    for content_type in ["application/grpc", "application/grpc+proto", "Application/GRPC; charset=utf-8"] {
        let mut request = post(CALLS[2]);
        request.headers_mut().insert("content-type", content_type.parse().unwrap());
        let answer = raw.call(request, &[0; 5], true).await;
        assert_eq!((answer.http, answer.grpc.as_deref()), (StatusCode::OK, Some("0")), "{content_type}");
    }
    served.stop().await;
}

/// Starts a server in a process that may have 256 open files.
fn limited(config: &str) -> (Process, TempDir) {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("web.yaml"), "{kind: Pod, metadata: {name: web}}\n").unwrap();
    let path = directory.path().join("informerd.yml");
    fs::write(&path, config).unwrap();
    let files = format!("pods={}@Pod", directory.path().display());
    (Process::start(&["--config", path.to_str().unwrap(), "--files", &files], Some(256)), directory)
}

/// Opens so many connections from an address, and sends nothing on them.
async fn silent(server: SocketAddr, host: [u8; 4], connections: usize) -> Vec<TcpStream> {
    let mut silent = Vec::new();
    for _ in 0..connections {
        silent.push(connect_from(host, server).await.unwrap());
    }
    silent
}

const SILENT: usize = 600;

/// Opens more connections than the process may have open files.
#[tokio::test]
async fn many_silent_connections_of_one_address_end_and_new_clients_are_served() {
    let (server, _directory) = limited("limits: { request_timeout: 2s }");
    let mut silent = silent(server.grpc, [127, 0, 0, 1], SILENT).await;
    assert!(server.get("/livez").await.ends_with("ok\n"));
    for stream in &mut silent {
        closed(stream).await;
    }
    let refused = server.refused(["peer_connections", "preface_timeout"], SILENT as u64).await;
    assert_eq!(refused.iter().sum::<u64>(), SILENT as u64, "each was refused, or closed: {refused:?}");
    // 256, less 64 and 8 for the resource; a quarter of that.
    assert!(refused[1] >= 46, "{refused:?}");
    let client = Raw::from([127, 0, 0, 1], server.grpc).await.expect("there is room");
    assert_eq!(client.call(post(CALLS[2]), &[0; 5], true).await.grpc.as_deref(), Some("0"));
}

#[tokio::test]
async fn many_silent_connections_of_one_address_do_not_affect_another() {
    let (server, _directory) = limited("limits: { request_timeout: 5m }");
    let _silent = silent(server.grpc, [127, 0, 0, 1], SILENT).await;
    let client = Raw::from([127, 0, 0, 2], server.grpc).await.expect("it has its share");
    assert_eq!(client.call(post(CALLS[2]), &[0; 5], true).await.grpc.as_deref(), Some("0"));
    assert!(server.get("/livez").await.ends_with("ok\n"));
    let expected = SILENT as u64 - 46;
    assert_eq!(server.refused(["peer_connections"], expected).await, [expected]);
    // With many addresses, the limit of all connections holds: the client, 46 each of 127.0.0.1, .3 and .4, and 45 of .5.
    let mut more = Vec::new();
    for host in 3..7 {
        more.extend(silent(server.grpc, [127, 0, 0, host], 100).await);
    }
    let expected = expected + 400 - 137;
    let refused = server.refused(["peer_connections", "connections"], expected).await;
    assert_eq!(refused.iter().sum::<u64>(), expected, "{refused:?}");
    assert!(server.get("/livez").await.ends_with("ok\n"));
    assert_eq!(client.call(post(CALLS[2]), &[0; 5], true).await.grpc.as_deref(), Some("0"), "it still has what it has");
}
