//! Connections and requests that never begin or never end, on raw sockets: they are closed, counted, and in nobody's way.

use std::{fs, time::Duration};

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

use crate::{sandbox::DEADLINE, served::Served};

/// A server over one pod, with these lines of configuration.
async fn serve(config: &str) -> Served {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("web.yaml"), "{kind: Pod, metadata: {name: web}}\n").unwrap();
    let path = directory.path().join("informerd.yml");
    fs::write(&path, config).unwrap();
    let files = vec![format!("pods={}@Pod", directory.path().display())];
    Served::start(directory, ServeFlags { files, config: Some(path), ..ServeFlags::default() }).await
}

/// A client that sends what it likes.
struct Raw {
    sends: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
}

/// The end of a call, from its trailers or its only headers.
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

    async fn to(served: &Served) -> Self {
        Self::over(TcpStream::connect(served.address.trim_start_matches("http://")).await.unwrap()).await
    }

    /// Sends bytes as the body of a call, and perhaps its end, and waits for the answer.
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

/// A value of a counter, 0 if nothing was counted.
async fn refused(served: &Served, reason: &str) -> u64 {
    let (_, metrics) = served.get("/metrics").await;
    let name = format!("informerd_refused_total{{reason=\"{reason}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |value| value.parse().unwrap())
}

/// Waits until the server has closed a connection, whatever it sends before that.
async fn closed(stream: &mut TcpStream) {
    let mut buffer = [0; 1024];
    let read = async { while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {} };
    tokio::time::timeout(DEADLINE, read).await.expect("the server closes it");
}

const CALLS: [&str; 6] = [
    "/informerd.v1.InformerService/Get",
    "/informerd.v1.InformerService/Watch",
    "/informerd.v1.InformerService/ListResources",
    "/informerd.v1.AdminService/ListWatchers",
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];

#[tokio::test]
async fn a_half_request_ends_with_its_reason_and_then_its_connection() {
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
    assert_eq!(refused(&served, "request_timeout").await, CALLS.len() as u64 * 3);
    // One that only waits for its next call is as good as new.
    let answer = raw.call(post("/grpc.health.v1.Health/Check"), &[0; 5], true).await;
    assert_eq!(answer.grpc.as_deref(), Some("0"), "{}", answer.message);
    served.stop().await;
}

#[tokio::test]
async fn a_request_is_at_most_as_large_as_allowed_whatever_the_service() {
    let served = serve("limits: { request_bytes: 1000 }").await;
    let raw = Raw::to(&served).await;
    for path in CALLS {
        // Its size is announced, and nothing of it is sent.
        let Answer { grpc, message, .. } = raw.call(post(path), b"\0\0\0\x03\xe9", false).await;
        assert_eq!(grpc.as_deref(), Some("3"), "{path}: {message}");
        assert!(message.contains("1000") && message.contains("limits.request_bytes"), "{path}: {message}");
    }
    assert_eq!(refused(&served, "request_bytes").await, CALLS.len() as u64);
    served.stop().await;
}

#[tokio::test]
async fn connections_that_send_nothing_or_half_of_a_head_are_closed() {
    let served = serve("limits: { request_timeout: 200ms }").await;
    let mut silent = TcpStream::connect(served.address.trim_start_matches("http://")).await.unwrap();
    closed(&mut silent).await;
    assert_eq!(refused(&served, "preface_timeout").await, 1);

    let mut half = TcpStream::connect(served.address.trim_start_matches("http://")).await.unwrap();
    half.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x10\x01\x04\0\0\0\x01\x82")
        .await
        .unwrap();
    closed(&mut half).await;
    assert_eq!(refused(&served, "headers_timeout").await, 1);

    for sent in ["", "GET /metrics HTTP/1.1\r\nHost: x\r\nX-A: "] {
        let mut admin = TcpStream::connect(&served.admin).await.unwrap();
        admin.write_all(sent.as_bytes()).await.unwrap();
        closed(&mut admin).await;
    }
    assert_eq!(refused(&served, "admin_timeout").await, 2);
    served.stop().await;
}

#[tokio::test]
async fn a_probe_is_answered_however_many_connections_say_nothing() {
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
    // The oldest have made room.
    for stream in &mut silent[..60] {
        closed(stream).await;
    }
    assert!(refused(&served, "admin_connections").await >= 60);
    let mut buffer = [0; 1];
    let last = tokio::time::timeout(Duration::from_millis(1), silent[99].read(&mut buffer)).await;
    assert!(last.is_err(), "it has its time");
    served.stop().await;
}
