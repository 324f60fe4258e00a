//! Properties of all responses of the listener of the Kubernetes API: TLS and the choice of HTTP, compression, counters, the audit log.

use std::{io::Read, sync::Arc};

use bytes::Bytes;
use flate2::read::GzDecoder;
use h2::client::SendRequest;
use informerd::{
    audit::AuditLog,
    config::ListenAddr,
    grpc::{KubernetesApi, MostRecent, QuotaConfig},
    model::ApiKind,
    proto::Compression,
    watch::Retention,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, ClientConfig, RootCertStore,
        pki_types::{CertificateDer, pem::PemObject},
    },
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    audit::{fields, lines},
    authority::Authority,
    kubernetes::{ask, ask_bytes, send},
    sandbox::{DEADLINE, Options, Sandbox, pod},
    server_sent_events::{Api, passes},
    tls::Secured,
};

/// Lists of the same objects as both kinds of resources.
const LISTS: [&str; 2] = ["/api/v1/pods?resourceVersion=0", "/v1/pods"];

fn options(compression: &[Compression]) -> Options {
    let most_recent = Some(MostRecent::new(|at| Box::pin(async move { Ok(at.safe().clone()) })));
    let api = KubernetesApi { kind: ApiKind::new("", "v1", "pods", "Pod"), is_discovered: false, most_recent };
    Options { kubernetes: Some(Arc::new(api)), compression: compression.to_vec(), ..Options::default() }
}

/// Starts a server of so many pods, each of which has about so many bytes.
async fn serve(compression: &[Compression], count: usize, bytes: usize) -> Api {
    let text: String = (0..bytes).map(|at| char::from(b'a' + (at * at % 23) as u8)).collect();
    let pods = (0..count).map(|at| pod("shop", &format!("p{at}"), &format!(r#""n":{at},"x":"{text}""#)));
    Api::of(Sandbox::start_with(options(compression), pods.collect()).await).await
}

/// Returns the document in a response, and true if it was compressed.
async fn read(api: &Api, target: &str, accept: Option<&str>) -> (Vec<u8>, bool) {
    let headers: Vec<_> = accept.iter().map(|accept| ("Accept-Encoding", *accept)).collect();
    let (head, bytes) = ask_bytes(api.address, "GET", target, &headers, "").await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    if !head.contains("content-encoding") {
        return (bytes, false);
    }
    assert!(head.contains("content-encoding: gzip\r\n") && head.contains("vary: accept-encoding\r\n"), "{head}");
    let (mut decoder, mut plain) = (GzDecoder::new(&*bytes), Vec::new());
    decoder.read_to_end(&mut plain).unwrap();
    assert!(decoder.into_inner().is_empty(), "one member and nothing behind it");
    assert!(bytes.len() < plain.len() / 2, "{} of {}", bytes.len(), plain.len());
    (plain, true)
}

#[tokio::test]
async fn a_large_list_is_gzip_for_whoever_accepts_it() {
    for (count, bytes) in [(100, 4000), (3, 100_000), (1, 2 << 20)] {
        let api = serve(&[Compression::Gzip], count, bytes).await;
        for target in LISTS {
            let (plain, is_gzip) = read(&api, target, None).await;
            assert!(!is_gzip && plain.len() > 128 << 10);
            for accept in ["gzip", "deflate, gzip;q=0.5, br"] {
                assert_eq!(read(&api, target, Some(accept)).await, (plain.clone(), true), "{target} {accept}");
            }
            for accept in ["identity", "gzip;q=0", "gzip; q=0.0", "x-gzip", "br"] {
                assert_eq!(read(&api, target, Some(accept)).await, (plain.clone(), false), "{target} {accept}");
            }
            let (head, body) = ask_bytes(api.address, "HEAD", target, &[("Accept-Encoding", "gzip")], "").await;
            assert!(head.contains("content-encoding: gzip") && body.is_empty(), "{head}");
        }
    }
    let small = serve(&[Compression::Gzip], 100, 1000).await;
    let off = serve(&[], 100, 4000).await;
    for target in LISTS {
        let (plain, is_gzip) = read(&small, target, Some("gzip")).await;
        assert!(!is_gzip && plain.len() < 128 << 10 && plain.len() > 64 << 10, "as by an API server");
        let objects: Value = serde_json::from_slice(&plain).unwrap();
        assert_eq!(objects.as_object().unwrap().values().filter_map(Value::as_array).map(Vec::len).sum::<usize>(), 100);
        assert!(!read(&off, target, Some("gzip")).await.1, "the server compresses nothing");
    }
    // A page ends with the token of the next one.
    let api = serve(&[Compression::Gzip], 100, 4000).await;
    let (page, is_gzip) = read(&api, "/v1/pods?limit=60", Some("gzip")).await;
    let page: Value = serde_json::from_slice(&page).unwrap();
    assert!(is_gzip && page["continue"].is_string() && page["objects"].as_array().unwrap().len() == 60);
}

/// A client that reads nothing of a compressed list is closed, and what is held for it is counted.
#[tokio::test(start_paused = true)]
async fn a_compressed_list_that_nobody_reads_is_closed() {
    // So small that what is encoded at a time is less than the compressor.
    let random = || -> String { std::iter::repeat_with(fastrand::alphanumeric).take(4000).collect() };
    let pods = (0..4000).map(|at| pod("shop", &format!("p{at}"), &format!(r#""x":"{}""#, random()))).collect();
    let api = Api::of(Sandbox::start_with(options(&[Compression::Gzip]), pods).await).await;
    let (stream, head) = send(api.address, "GET", "/v1/pods", &[("Accept-Encoding", "gzip")], "").await;
    assert!(head.contains("content-encoding: gzip"), "{head}");
    let ledger = &api.sandbox.ledger;
    passes(|| ledger.waiting().total() > 0).await;
    let waiting = ledger.waiting();
    assert!(waiting.total() < 3 << 20, "{waiting:?}");
    assert!(waiting.encoded_bytes >= 320 << 10, "the compressor, too: {waiting:?}");
    passes(|| ledger.connections() == 0).await;
    assert_eq!(ledger.waiting().total(), 0);
    drop(stream);
}

/// The end of a watch over HTTP/1.1 whose client reads nothing has its reason, as over HTTP/2: it has not left.
#[tokio::test(start_paused = true)]
async fn a_watch_that_nobody_reads_ends_as_a_stalled_connection() {
    let mut api = serve(&[], 1, 10).await;
    let (stream, _) = send(api.address, "GET", "/v1/pods/watch", &[], "").await;
    let large = format!(r#""x":"{}""#, "x".repeat(1 << 20));
    for _ in 0..20 {
        api.sandbox.put("shop", "p0", &large).await;
    }
    let ended = || api.sandbox.state.debug_watches("")["ended"][0]["endStatus"].clone();
    passes(|| ended().is_string()).await;
    assert_eq!(ended(), "connection closed: the client read nothing for watch.progress_timeout");
    drop(stream);
}

#[tokio::test]
async fn requests_and_events_are_counted_as_messages_by_protocol() {
    let mut api = serve(&[], 2, 10).await;
    let mut registry = Registry::default();
    api.sandbox.state.register(&mut registry);
    for target in LISTS.into_iter().chain(["/api/v1/namespaces/shop/pods/p0?resourceVersion=0", "/v1/pods/shop/p0"]) {
        assert_eq!(ask(api.address, "GET", target, &[], "").await.code, 200, "{target}");
    }
    for target in ["/api/v1/namespaces/shop/pods/none?resourceVersion=0", "/v1/pods/shop/none"] {
        assert_eq!(ask(api.address, "GET", target, &[], "").await.code, 404, "{target}");
    }
    let mut events = api.watch("timeoutSeconds=0").await;
    events.words(3).await;
    let watch = "/api/v1/pods?watch=1&resourceVersion=0";
    let (mut lines, _) = send(api.address, "GET", watch, &[], "").await;
    for _ in 0..3 {
        api.sandbox.put("shop", "p1", "").await;
        events.words(1).await;
    }
    let mut text = String::new();
    while text.matches("\"type\":").count() < 5 {
        let mut buffer = [0; 4096];
        let read = tokio::time::timeout(DEADLINE, lines.read(&mut buffer)).await.expect("lines in time").unwrap();
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    let mut metrics = String::new();
    encode(&mut metrics, &registry).unwrap();
    let count = |name: &str, service: &str, method: &str, more: &str| -> u64 {
        let is_it = |line: &&str| {
            let labels = [format!("grpc_service=\"{service}\""), format!("grpc_method=\"{method}\""), more.to_owned()];
            line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label))
        };
        let line = metrics.lines().find(is_it).unwrap_or_else(|| panic!("{name} {service} {method}: {metrics}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    for service in ["kubernetes", "http"] {
        for (method, received, sent) in [("Get", 2, 1), ("List", 1, 1)] {
            assert_eq!(count("grpc_server_msg_received_total", service, method, ""), received, "{service} {method}");
            assert_eq!(count("grpc_server_msg_sent_total", service, method, ""), sent, "{service} {method}");
        }
        assert_eq!(count("grpc_server_handled_total", service, "Get", "grpc_code=\"NotFound\""), 1, "{service}");
        assert_eq!(count("grpc_server_msg_received_total", service, "Watch", ""), 1, "{service}");
    }
    assert_eq!(count("grpc_server_msg_sent_total", "http", "Watch", ""), 6, "with the bookmark");
    assert_eq!(count("grpc_server_msg_sent_total", "kubernetes", "Watch", ""), 5, "{text}");
}

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Those that an API server refuses are refused with its reason, and count with it.
#[tokio::test]
async fn a_review_is_answered_or_refused_with_its_reason() {
    let api = serve(&[], 1, 10).await;
    let mut registry = Registry::default();
    api.sandbox.state.register(&mut registry);
    let of = |attributes: &str| format!(r#"{{"spec":{{{attributes}}}}}"#);
    let list = r#""resourceAttributes":{"namespace":null,"verb":"list","resource":"pods","version":"v1"}"#;
    let other = r#""nonResourceAttributes":{"path":"/metrics","verb":"get"}"#;
    for (body, allowed) in [(of(list), true), (of(&list.replace("list", "create")), false), (of(other), false)] {
        for media_type in ["application/json", "application/json; charset=utf-8"] {
            let answer = ask(api.address, "POST", REVIEWS, &[("Content-Type", media_type)], &body).await;
            assert_eq!(answer.code, 201, "{body}: {answer:?}");
            let review: Value = serde_json::from_str(&answer.text).unwrap();
            let given: Value = serde_json::from_str(&body).unwrap();
            assert_eq!((&review["spec"], &review["status"]["allowed"]), (&given["spec"], &Value::Bool(allowed)));
        }
    }
    // As kubectl 1.37 sends it: of a verb, which has four letters, and the pod b in the namespace a.
    for (verb, resource, allowed) in [("list", "pods", true), ("bind", "pods", false), ("list", "jobs", false)] {
        let body = format!(
            "k8s\0\n2\n\x17authorization.k8s.io/v1\x12\x17SelfSubjectAccessReview\x12:\n\x10\n\0\x12\0\x1a\0\"\0*\x002\08\0B\0\x12\x1c\n\x1a\n\
             \x01a\x12\x04{verb}\x1a\0\"\x02v1*\x04{resource}2\0:\x01b\x1a\x08\x08\0\x12\0\x1a\0 \0\x1a\0\"\0"
        );
        let headers = [("Content-Type", "application/vnd.kubernetes.protobuf")];
        let answer = ask(api.address, "POST", REVIEWS, &headers, &body).await;
        let review: Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!((answer.code, &review["status"]["allowed"]), (201, &Value::Bool(allowed)), "{review}");
        let attributes = ["namespace", "version", "name"].map(|name| &review["spec"]["resourceAttributes"][name]);
        assert_eq!(attributes, ["a", "v1", "b"]);
    }
    let refused = [
        ("application/vnd.kubernetes.protobuf", of(list), 400, "BadRequest"),
        ("application/vnd.kubernetes.protobuf", "k8s\0\n".to_owned(), 400, "BadRequest"),
        ("application/vnd.kubernetes.protobuf", "k8s\0".to_owned(), 400, "BadRequest"),
        ("application/yaml", of(list), 415, "UnsupportedMediaType"),
        ("text/plain", of(list), 415, "UnsupportedMediaType"),
        ("", "[".repeat(60_000), 400, "BadRequest"),
        ("", String::new(), 400, "BadRequest"),
        ("", "{}".to_owned(), 400, "BadRequest"),
        ("", r#"{"spec":null}"#.to_owned(), 400, "BadRequest"),
        ("", of(&format!("{list},{other}")), 400, "BadRequest"),
        ("application/json", of(&format!(r#""x":"{}""#, "x".repeat(65 << 10))), 413, "RequestEntityTooLarge"),
    ];
    for (media_type, body, code, reason) in &refused {
        let headers = [("Content-Type", *media_type)];
        let answer = ask(api.address, "POST", REVIEWS, &headers[usize::from(media_type.is_empty())..], body).await;
        let status: Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!((answer.code, &status["reason"]), (*code, &Value::from(*reason)), "{status}");
    }
    let mut metrics = String::new();
    encode(&mut metrics, &registry).unwrap();
    let of_reviews = |line: &&str| line.contains("grpc_method=\"Review\"") && line.contains("handled_total");
    let of_code = |code: &str| {
        let line = metrics.lines().filter(of_reviews).find(|line| line.contains(code));
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    };
    assert_eq!(["OK", "InvalidArgument", "Canceled"].map(of_code), [9, refused.len(), 0], "{metrics}");
}

/// A quarter of the smallest account is a MiB.
fn shared() -> Options {
    Options { memory: 16 << 20, peer_share: 25, ..options(&[]) }
}

async fn begin(api: &Api, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(api.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn code(stream: &mut TcpStream) -> String {
    let mut head = [0; 12];
    tokio::time::timeout(DEADLINE, stream.read_exact(&mut head)).await.expect("a head in time").unwrap();
    String::from_utf8(head[9..].to_vec()).unwrap()
}

#[tokio::test]
async fn bodies_that_never_end_hold_at_most_the_share_of_their_peer() {
    let api = Api::of(Sandbox::start_with(shared(), vec![pod("shop", "a", "")]).await).await;
    let body = format!(r#"{{"spec":{{"resourceAttributes":{{"x":"{}"}}}}}}"#, "x".repeat(60_000));
    let head = format!("POST {REVIEWS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    let (sent, rest) = body.split_at(body.len() - 10);
    let mut streams = Vec::new();
    for _ in 0..40 {
        streams.push(begin(&api, &format!("{head}{sent}")).await);
    }
    // Of 40 times 65 KB the oldest ones end.
    assert_eq!(code(&mut streams[0]).await, "429");
    let mut last = streams.pop().unwrap();
    last.write_all(rest.as_bytes()).await.unwrap();
    assert_eq!(code(&mut last).await, "201");
}

#[tokio::test]
async fn reads_that_wait_hold_at_most_the_share_of_their_peer() {
    for target in ["/api/v1/pods?resourceVersion=1000", "/v1/pods?resourceVersion=1000"] {
        let options = Options { future_wait: DEADLINE, ..shared() };
        let api = Api::of(Sandbox::start_with(options, vec![pod("shop", "a", "")]).await).await;
        let large = "x".repeat(12_000);
        let mut streams = Vec::new();
        for _ in 0..80 {
            streams.push(begin(&api, &format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nX: {large}\r\n\r\n")).await);
        }
        assert_eq!(code(&mut streams[0]).await, "429", "{target}");
    }
}

/// The requests count until their responses are sent: a client may read none of them.
#[tokio::test]
async fn unread_responses_keep_their_requests_in_the_share_of_their_peer() {
    let options = Options { peer_share: 5, ..shared() };
    let text = "x".repeat(1 << 20);
    let pods = (0..8).map(|at| pod("shop", &format!("p{at}"), &format!(r#""x":"{text}""#))).collect();
    let api = Api::of(Sandbox::start_with(options, pods).await).await;
    let mut registry = Registry::default();
    api.sandbox.state.register(&mut registry);
    let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", LISTS[0], "x".repeat(12_000));
    let mut streams = Vec::new();
    for _ in 0..16 {
        let mut stream = begin(&api, &request).await;
        assert_eq!(code(&mut stream).await, "200");
        streams.push(stream);
    }
    passes(|| {
        let mut metrics = String::new();
        encode(&mut metrics, &registry).unwrap();
        metrics.lines().any(|line| line.contains("peer_request_memory") && !line.ends_with(" 0"))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn reads_and_watches_have_lines_in_the_audit_log() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("audit.log");
    let log = AuditLog::open(&file).unwrap();
    let options = Options { audit: Some(log.clone()), ..options(&[]) };
    let sandbox = Sandbox::start_with(options, vec![pod("shop", "p0", "")]).await;
    let api = Api::of(sandbox).await;
    let list = "/api/v1/pods?resourceVersion=0&labelSelector=!x";
    let get = "/api/v1/namespaces/shop/pods";
    for target in
        [list, &format!("{get}/none?resourceVersion=0"), &format!("{get}/p0?resourceVersion=0"), &format!("{get}/p0")]
    {
        ask(api.address, "GET", target, &[], "").await;
    }
    let watch = "/api/v1/namespaces/shop/pods?watch=1&resourceVersion=0&timeoutSeconds=1";
    assert_eq!(ask(api.address, "GET", watch, &[], "").await.text.lines().count(), 1);
    let names = "event method resource namespace name selection status events";
    let found: Vec<_> = lines(&log, &file, 7).await.iter().map(|line| fields(line, names)).collect();
    assert_eq!(
        found,
        [
            "begin List pods - - labels=!x - -",
            "end List pods - - labels=!x Ok 1",
            "read Get pods shop none - NotFound 0",
            "read Get pods shop p0 - Ok 1",
            "read Get pods shop p0 - Ok 1",
            "begin Watch pods shop - namespace=shop - -",
            "end Watch pods shop - namespace=shop Ok 1",
        ]
    );
}

#[tokio::test]
async fn shards_divide_the_objects_and_their_events() {
    let namespaces: Vec<String> = ('a'..='z').map(|letter| letter.to_string().repeat(8)).collect();
    let pods = namespaces.iter().map(|namespace| pod(namespace, "web", "")).collect();
    let mut api = Api::of(Sandbox::start_with(options(&[]), pods).await).await;
    let middle = "0x8000000000000000";
    let halves = [("0x0000000000000000", middle), (middle, "0x10000000000000000")];
    let selectors = halves.map(|(start, end)| format!("shardRange(object.metadata.namespace, '{start}', '{end}')"));
    let encoded = selectors.clone().map(|text| text.replace(' ', "%20").replace('\'', "%27"));
    let (mut seen, mut sizes) = (std::collections::BTreeSet::new(), Vec::new());
    for (at, selector) in encoded.iter().enumerate() {
        let target = format!("/api/v1/pods?resourceVersion=0&shardSelector={selector}");
        let list = ask(api.address, "GET", &target, &[], "").await.json();
        assert_eq!(list["metadata"]["shardInfo"], serde_json::json!({ "selector": selectors[at] }));
        assert_eq!(list["metadata"].get("remainingItemCount"), None);
        let namespace = |object: &Value| object["namespace"].as_str().unwrap().to_owned();
        let names: Vec<_> = list["items"].as_array().unwrap().iter().map(|item| namespace(&item["metadata"])).collect();
        sizes.push(names.len());
        let own = ask(api.address, "GET", &format!("/v1/pods?shard=namespace:{at}/2"), &[], "").await.json();
        assert_eq!(own["objects"].as_array().unwrap().iter().map(namespace).collect::<Vec<_>>(), names);
        seen.extend(names);
    }
    assert_eq!((seen.len(), sizes.iter().sum::<usize>()), (26, 26), "each object once: {sizes:?}");
    assert!(sizes.iter().all(|size| *size > 5), "{sizes:?}");
    let mut own = api.watch(&format!("shard={}&initialEvents=false", encoded[0])).await;
    own.words(1).await;
    let target = format!(
        "/api/v1/pods?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&shardSelector={}",
        encoded[0]
    );
    let (mut lines, _) = send(api.address, "GET", &target, &[], "").await;
    for namespace in &namespaces {
        api.sandbox.put(namespace, "web", r#""n":1"#).await;
    }
    let words = own.words(sizes[0]).await;
    assert!(words.iter().all(|event| event.starts_with("MODIFIED web")), "{words:?}");
    let mut text = String::new();
    while text.matches("\"MODIFIED\"").count() < sizes[0] {
        let mut buffer = [0; 4096];
        let read = tokio::time::timeout(DEADLINE, lines.read(&mut buffer)).await.expect("lines in time").unwrap();
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    let of_first = |namespace: &&String| text.contains(&format!("\"namespace\":\"{namespace}\""));
    assert_eq!(namespaces.iter().filter(of_first).count(), sizes[0], "{text}");
    for wrong in ["shardSelector=0/2", "shardSelector=shardRange(object.metadata.name,%270x0%27,%270x1%27)"] {
        assert_eq!(
            ask(api.address, "GET", &format!("/api/v1/pods?{wrong}"), &[], "").await.failure().0,
            400,
            "{wrong}"
        );
    }
    for wrong in ["shard=2/2", "shard=x"] {
        assert_eq!(ask(api.address, "GET", &format!("/v1/pods?{wrong}"), &[], "").await.failure().0, 400, "{wrong}");
    }
}

/// Connects in plain text over HTTP/2, with a window of so many bytes for each stream.
async fn http2(address: std::net::SocketAddr, window: u32) -> (SendRequest<Bytes>, AbortOnDropHandle<()>) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (client, connection) = h2::client::Builder::new().initial_window_size(window).handshake(stream).await.unwrap();
    let driver = tokio::spawn(async move { drop(connection.await) });
    (client.ready().await.unwrap(), AbortOnDropHandle::new(driver))
}

/// A response to HEAD has no body, whatever it is, and a read has succeeded with its head.
#[tokio::test]
async fn a_response_to_head_has_no_body_over_http_2() {
    let api = serve(&[], 1, 10).await;
    let mut registry = Registry::default();
    api.sandbox.state.register(&mut registry);
    let (mut client, _driver) = http2(api.address, 65_535).await;
    let one = "/api/v1/namespaces/shop/pods/p0?resourceVersion=0";
    for (target, code) in [
        ("/readyz", 200),
        ("/version", 200),
        ("/api", 200),
        ("/apis/x/v1", 404),
        ("/api/v1/namespaces/shop/pods/none?resourceVersion=0", 404),
        ("/nothing", 404),
        (one, 200),
        (LISTS[0], 200),
        (LISTS[1], 200),
        ("/api/v1/pods?watch=1&resourceVersion=0", 200),
    ] {
        let request = http::Request::head(format!("http://localhost{target}")).body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        let response = response.await.unwrap();
        assert_eq!((response.status(), response.body().is_end_stream()), (code.try_into().unwrap(), true), "{target}");
    }
    let mut metrics = String::new();
    encode(&mut metrics, &registry).unwrap();
    let handled = metrics.lines().filter(|line| line.starts_with("grpc_server_handled_total") && !line.ends_with(" 0"));
    let handled: Vec<_> = handled.collect();
    let of = |code: &str| -> u64 {
        let of_code = handled.iter().filter(|line| line.contains(&format!("grpc_code=\"{code}\"")));
        of_code.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    // Discover, Get, both Lists, and Watch; the groups and the object that there are not.
    assert_eq!((of("OK"), of("NotFound"), of("Canceled")), (5, 2, 0), "{handled:#?}");
    let mut sent = metrics.lines().filter(|line| line.starts_with("grpc_server_msg_sent_total")).peekable();
    assert!(sent.peek().is_some() && sent.all(|line| line.ends_with(" 0")), "no document is sent: {metrics}");
}

/// Nobody takes what was sent of a document for all of it.
#[tokio::test]
async fn a_document_that_the_server_ends_is_reset_over_http_2() {
    let text = "x".repeat(1 << 20);
    for target in LISTS.into_iter().chain(["/v1/pods/shop/p0"]) {
        let quotas = QuotaConfig { bytes_held: Some(1 << 18), ..QuotaConfig::default() };
        let pods = (0..8).map(|at| pod("shop", &format!("p{at}"), &format!(r#""x":"{text}""#))).collect();
        let api = Api::of(Sandbox::start_with(Options { quotas, ..options(&[]) }, pods).await).await;
        // The window is that of the client, which does not enlarge it.
        let (mut client, _driver) = http2(api.address, 65_535).await;
        let request = http::Request::get(format!("http://localhost{target}")).body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        let (head, mut body) = response.await.unwrap().into_parts();
        assert_eq!(head.status, 200);
        passes(|| api.sandbox.ledger.ended() > 0).await;
        let reset = loop {
            match tokio::time::timeout(DEADLINE, body.data()).await.expect("an end in time") {
                Some(Ok(_)) => {}
                Some(Err(error)) => break error,
                None => panic!("{target}: a part of the document, as if it were all"),
            }
        };
        assert_eq!(reset.reason(), Some(h2::Reason::ENHANCE_YOUR_CALM), "{target}");
    }
}

/// A watch may end at any event. It holds the states with which it began, and has no window for the first.
#[tokio::test]
async fn a_watch_that_the_server_ends_is_not_reset_over_http_2() {
    let large = format!(r#""x":"{}""#, "x".repeat(1 << 20));
    for target in ["/v1/pods/watch", "/api/v1/pods?watch=1&resourceVersion=0"] {
        let quotas = QuotaConfig { bytes_held: Some(1 << 18), ..QuotaConfig::default() };
        let history = Retention { events: 1, ..Options::default().history };
        let pods = (0..4).map(|at| pod("shop", &format!("p{at}"), &large)).collect();
        let sandbox = Sandbox::start_with(Options { quotas, history, ..options(&[]) }, pods).await;
        let mut api = Api::of(sandbox).await;
        let (mut client, _driver) = http2(api.address, 0).await;
        let request = http::Request::get(format!("http://localhost{target}")).body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        let (head, mut body) = response.await.unwrap().into_parts();
        assert_eq!(head.status, 200);
        for at in 0..4 {
            api.sandbox.put("shop", &format!("p{at}"), "").await;
        }
        passes(|| api.sandbox.ledger.ended() > 0).await;
        let end = tokio::time::timeout(DEADLINE, body.data()).await.expect("an end in time");
        assert!(end.is_none(), "{target}: {end:?}");
    }
}

/// The objects of the version at which the history begins are sent again, as a list is.
#[tokio::test]
async fn a_watch_that_begins_with_objects_again_is_a_bulk_response() {
    let text = "x".repeat(1 << 20);
    let quotas = QuotaConfig { bulk_responses: Some(1), ..QuotaConfig::default() };
    let pods = (0..32).map(|at| pod("shop", &format!("p{at}"), &format!(r#""x":"{text}""#))).collect();
    let api = Api::of(Sandbox::start_with(Options { quotas, ..options(&[]) }, pods).await).await;
    let watch = "/api/v1/pods?watch=1&resourceVersion=1&timeoutSeconds=9";
    let (unread, head) = send(api.address, "GET", watch, &[], "").await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    let refused = ask(api.address, "GET", watch, &[], "").await;
    assert_eq!(refused.code, 429, "while the first is not read");
    drop(unread);
}

/// Opens a connection whose client offers these protocols.
async fn dial(server: &Secured, authority: &Authority, offered: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&authority.pem()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = offered.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let Some(ListenAddr::Tcp(address)) = server.kubernetes.clone() else { panic!("a TCP address") };
    let stream = TcpStream::connect(address).await.unwrap();
    TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await
}

#[tokio::test]
async fn under_tls_a_client_chooses_its_http() {
    let authority = Authority::new();
    let server = Secured::start_with(&authority, None, "kubernetes: { listen: '127.0.0.1:0' },", &[]).await;
    for offered in [&["h2"][..], &["h2", "http/1.1"], &["http/1.1", "h2"]] {
        let stream = dial(&server, &authority, offered).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]), "{offered:?}: the server prefers it");
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        let driver = tokio::spawn(connection);
        let request = http::Request::get("https://localhost/v1/pods").body(()).unwrap();
        let (response, _) = client.ready().await.unwrap().send_request(request, true).unwrap();
        let (head, mut body) = response.await.unwrap().into_parts();
        let mut text = Vec::new();
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            text.extend_from_slice(&data);
        }
        assert_eq!(head.status, 200);
        assert_eq!(serde_json::from_slice::<Value>(&text).unwrap()["objects"][0]["name"], "web");
        driver.abort();
    }
    for offered in [&["http/1.1"][..], &[], &["http/1.0", "http/1.1"]] {
        let mut stream = dial(&server, &authority, offered).await.unwrap();
        let chosen = offered.last().map(|protocol| protocol.as_bytes());
        assert_eq!(stream.get_ref().1.alpn_protocol(), chosen, "{offered:?}");
        stream.write_all(b"GET /v1/pods HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(DEADLINE, stream.read_to_string(&mut answer)).await.expect("an answer in time").unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"web\""), "{answer}");
    }
    dial(&server, &authority, &["spdy/3"]).await.expect_err("neither of both");
    server.stop().await;
}
