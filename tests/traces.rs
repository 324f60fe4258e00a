//! Traces that the program exports over OTLP, to a receiver of the generated types on loopback.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use informerd::proto::pb::{self, informer_service_client::InformerServiceClient};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::mpsc, time::timeout};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Code, Request, Response, Status, transport::Server};

const DEADLINE: Duration = Duration::from_secs(60);
/// Trace and span of a caller, sampled.
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// The same, not sampled.
const NOT_SAMPLED: &str = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

/// Receiver of traces.
struct Collector {
    sender: mpsc::Sender<(Option<String>, ExportTraceServiceRequest)>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let token = request.metadata().get("x-token").map(|token| token.to_str().unwrap().to_owned());
        // The test has ended when nobody receives it.
        drop(self.sender.send((token, request.into_inner())).await);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Program with its log, killed when this is dropped.
struct Process {
    child: Child,
    address: String,
    log: Arc<Mutex<String>>,
    logging: std::thread::JoinHandle<()>,
    _directory: TempDir,
}

impl Process {
    /// Starts a server of one object, with these variables.
    fn start(variables: &[(&str, &str)]) -> Self {
        Self::start_with(variables, &[])
    }

    /// Starts it with more flags.
    fn start_with(variables: &[(&str, &str)], more: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join("web.yaml"), "{kind: Pod, metadata: {name: web}}\n").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_informerd"));
        for (name, _) in std::env::vars() {
            if name.starts_with("INFORMERD") || name.starts_with("OTEL") {
                command.env_remove(name);
            }
        }
        let pods = format!("pods={}", directory.path().display());
        let flags = ["serve", "--files", &pods, "--listen", "127.0.0.1:0", "--admin-listen", "none"];
        command.args(flags).args(more).envs(variables.iter().copied()).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let log: Arc<Mutex<String>> = Arc::default();
        let kept = Arc::clone(&log);
        let mut lines = lines.inspect(move |line| kept.lock().extend([line, "\n"]));
        let listens = lines.by_ref().find(|line| line.contains("grpc listening")).expect("the server listens");
        let port = listens.split("127.0.0.1:").nth(1).unwrap().trim_matches(|c: char| !c.is_ascii_digit());
        let address = format!("http://127.0.0.1:{port}");
        // Reads the log, or the server would block when it writes to the pipe.
        let logging = std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, log, logging, _directory: directory }
    }

    async fn client(&self) -> InformerServiceClient<tonic::transport::Channel> {
        InformerServiceClient::connect(self.address.clone()).await.unwrap()
    }

    /// Ends the program, and returns its exit status and its log.
    async fn terminate(mut self) -> (ExitStatus, String) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let ending = tokio::task::spawn_blocking(move || {
            let ended = self.child.wait().unwrap();
            self.logging.join().unwrap();
            (ended, self.log.lock().clone())
        });
        timeout(DEADLINE, ending).await.expect("it ends in time").unwrap()
    }
}

/// Starts a receiver. Returns its address, and what it receives.
async fn collector() -> (String, mpsc::Receiver<(Option<String>, ExportTraceServiceRequest)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, received) = mpsc::channel(100);
    let service = TraceServiceServer::new(Collector { sender });
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));
    (address, received)
}

fn with_parent<T>(message: T, parent: &'static str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    request
}

/// Returns the spans that a receiver has, in the order of their begin. `check` gets the token and the attributes of each export.
fn spans(
    received: &mut mpsc::Receiver<(Option<String>, ExportTraceServiceRequest)>,
    check: impl Fn(Option<&str>, HashMap<&str, String>),
) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    while let Ok((token, request)) = received.try_recv() {
        for of_resource in request.resource_spans {
            check(token.as_deref(), attributes(&of_resource.resource.unwrap().attributes));
            spans.extend(of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans));
        }
    }
    spans.sort_by_key(|span| span.start_time_unix_nano);
    spans
}

fn attributes(attributes: &[KeyValue]) -> HashMap<&str, String> {
    let text = |value: &KeyValue| match value.value.as_ref().unwrap().value.as_ref().unwrap() {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|each| (each.key.as_str(), text(each))).collect()
}

fn get(name: &str) -> pb::GetRequest {
    pb::GetRequest { resource: "pods".into(), name: name.into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_span_of_each_call_is_exported_with_its_end_as_a_part_of_the_callers_trace() {
    let (endpoint, mut received) = collector().await;
    let process = Process::start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test"),
        ("OTEL_BSP_SCHEDULE_DELAY", "10"),
    ]);
    let mut client = process.client().await;
    client.get(with_parent(get("web"), PARENT)).await.unwrap();
    let missing = client.get(get("none")).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    client.get(with_parent(get("web"), NOT_SAMPLED)).await.unwrap();
    let request = pb::WatchRequest { resource: "pods".into(), ..Default::default() };
    let mut watch = client.watch(with_parent(request, PARENT)).await.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();
    let (ended, log) = process.terminate().await;
    assert!(ended.success(), "{log}");
    assert!(log.contains("exporting traces") && !log.contains("not exported"), "{log}");

    // The last ones were exported before the program ended, and the receiver has them.
    let spans = spans(&mut received, |token, resource| {
        assert_eq!(token, Some("secret"));
        assert_eq!((&*resource["service.name"], &*resource["deployment.environment"]), ("informerd", "test"));
        assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
    });
    let [found, missing, watch] = &spans[..] else { panic!("{spans:#?}") };
    let hex = |bytes: &[u8]| bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    for (span, method, code, has_parent) in [
        (found, "Get", Code::Ok, true),
        (missing, "Get", Code::NotFound, false),
        (watch, "Watch", Code::Unavailable, true),
    ] {
        assert_eq!(span.name, format!("informerd.v1.InformerService/{method}"));
        assert_eq!(span.kind(), SpanKind::Server);
        let of_span = attributes(&span.attributes);
        for (key, value) in
            [("rpc.system", "grpc"), ("rpc.service", "informerd.v1.InformerService"), ("rpc.method", method)]
        {
            assert_eq!(of_span[key], value);
        }
        assert_eq!(of_span["rpc.grpc.status_code"], i32::from(code).to_string());
        assert!(of_span["client.address"].starts_with("127.0.0.1:"), "{of_span:?}");
        let parent = format!("-{}-{}-", hex(&span.trace_id), hex(&span.parent_span_id));
        assert_eq!(PARENT.contains(&parent), has_parent, "{span:?}");
        let is_error = span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error);
        assert_eq!(is_error, code == Code::Unavailable, "{span:?}");
        assert!(span.events.is_empty() && span.end_time_unix_nano >= span.start_time_unix_nano, "{span:?}");
    }
    assert_eq!(attributes(&watch.attributes)["informerd.end_reason"], "DRAINING");
    assert_eq!(attributes(&found.attributes).get("informerd.end_reason"), None);
}

#[cfg(feature = "kubernetes-api")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_over_http_have_spans_too() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (endpoint, mut received) = collector().await;
    let directory = TempDir::new().unwrap();
    let (config, socket) = (directory.path().join("informerd.yaml"), directory.path().join("socket"));
    fs::write(&config, format!("kubernetes: {{ listen: 'unix:{}' }}\n", socket.display())).unwrap();
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint), ("OTEL_BSP_SCHEDULE_DELAY", "10")];
    let process = Process::start_with(&variables, &["--config", config.to_str().unwrap()]);
    let ask = async |target: &str, words: &str| {
        let mut stream = tokio::net::UnixStream::connect(&socket).await.unwrap();
        let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nTraceparent: {PARENT}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        while !text.contains(words) {
            let mut buffer = [0; 4096];
            let read = timeout(DEADLINE, stream.read(&mut buffer)).await.expect("an answer in time").unwrap();
            assert!(read > 0, "{text}");
            text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
        }
        stream
    };
    ask("/v1/pods/-/web", "\"web\"").await;
    ask("/v1/pods/-/none", "not found").await;
    ask("/apis", "APIGroupList").await;
    let watch = ask("/v1/pods/watch", "initialEventsEnd").await;
    let (ended, log) = process.terminate().await;
    assert!(ended.success(), "{log}");
    drop(watch);

    let spans = spans(&mut received, |_, _| {});
    let found: Vec<_> = spans.iter().map(|span| (&*span.name, span.kind(), attributes(&span.attributes))).collect();
    let [(get, kind, got), (_, _, missing), (discover, ..), (watch, _, watched)] = &found[..] else {
        panic!("{spans:#?}")
    };
    assert_eq!([*get, *discover, *watch], ["http/Get", "kubernetes/Discover", "http/Watch"]);
    assert_eq!((*kind, &*got["rpc.system"], &*got["rpc.grpc.status_code"]), (SpanKind::Server, "http", "0"));
    assert_eq!(missing["rpc.grpc.status_code"], "5");
    assert_eq!((&*watched["informerd.end_reason"], &*watched["rpc.grpc.status_code"]), ("DRAINING", "14"));
    assert!(spans.iter().all(|span| !span.parent_span_id.is_empty()), "parts of the caller's trace: {spans:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_watch_of_a_subscribe_stream_has_a_span_with_its_end_within_that_of_the_call() {
    let (endpoint, mut received) = collector().await;
    let process = Process::start(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint), ("OTEL_BSP_SCHEDULE_DELAY", "10")]);
    let (requests, sent) = mpsc::channel(1);
    let subscribed = process.client().await.subscribe(with_parent(ReceiverStream::new(sent), PARENT)).await;
    let mut responses = subscribed.unwrap().into_inner();
    let watch = pb::WatchRequest { resource: "pods".into(), ..Default::default() };
    for id in [1, 2] {
        let open = vec![pb::OpenWatch { id, watch: Some(watch.clone()) }];
        requests.send(pb::SubscribeRequest { open, ..Default::default() }).await.unwrap();
        responses.message().await.unwrap().unwrap();
    }
    requests.send(pb::SubscribeRequest { close: vec![1], ..Default::default() }).await.unwrap();
    let closed = |response: &pb::SubscribeResponse| response.deliveries.iter().any(|delivery| delivery.ended);
    while !closed(&responses.message().await.unwrap().unwrap()) {}
    let (ended, log) = process.terminate().await;
    assert!(ended.success(), "{log}");

    let spans = spans(&mut received, |_, _| {});
    let [call, watches @ ..] = &spans[..] else { panic!("{spans:#?}") };
    assert_eq!(call.name, "informerd.v1.InformerService/Subscribe");
    assert_eq!(attributes(&call.attributes).get("informerd.end_reason"), None, "a stream has no end of a watch");
    let ends = watches.iter().map(|span| {
        let of_span = attributes(&span.attributes);
        assert_eq!((&*span.name, &span.parent_span_id, &span.trace_id), ("watch", &call.span_id, &call.trace_id));
        [of_span["watch_id"].clone(), of_span["informerd.end_reason"].clone()]
    });
    assert_eq!(ends.collect::<Vec<_>>(), [["1", "CANCELLED"], ["2", "DRAINING"]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_does_not_answer_delays_nothing_and_is_logged_once() {
    // A socket that accepts and does not respond, and an address where nobody listens.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    for (endpoint, queue) in [(&*silent, "8"), ("http://127.0.0.1:1", "2048")] {
        let process = Process::start(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "200"),
            ("OTEL_BSP_SCHEDULE_DELAY", "10"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", queue),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8"),
        ]);
        let mut client = process.client().await;
        let calls = async {
            while !process.log.lock().contains("traces not exported") {
                client.get(get("web")).await.unwrap();
            }
            // More than the queue has room for. The last of them fail to be exported at the end of the program, at the latest.
            for _ in 0..500 {
                client.get(get("web")).await.unwrap();
            }
        };
        timeout(DEADLINE, calls).await.expect("no call waits for the collector");
        let (ended, log) = process.terminate().await;
        assert!(ended.success(), "{log}");
        let reports = log.lines().filter(|line| line.contains("traces not exported") && !line.contains("last")).count();
        assert_eq!(reports, 1, "{log}");
    }
}

#[test]
fn variables_that_cannot_be_used_are_refused_in_one_line_and_without_them_nothing_is_exported() {
    let run = |variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_informerd"));
        let output = command.args(["serve", "--files", "pods=.", "--listen", "127.0.0.1:0", "--admin-listen", "none"]);
        let output = output.envs(variables.iter().copied()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
    for (variables, expected) in [
        (
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4317")][..],
            "OTEL_EXPORTER_OTLP_ENDPOINT: expected http://HOST:PORT",
        ),
        (&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")], "OTEL_EXPORTER_OTLP_PROTOCOL: expected grpc"),
        (&[endpoint, ("OTEL_TRACES_EXPORTER", "zipkin")], "OTEL_TRACES_EXPORTER: expected otlp or none"),
        (
            &[
                ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://127.0.0.1:4317"),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file"),
            ],
            "OTEL_EXPORTER_OTLP_CERTIFICATE: /no/such/file: ",
        ),
    ] {
        let (code, error) = run(variables);
        assert_eq!((code, error.lines().count()), (Some(2), 1), "{error}");
        assert!(error.starts_with(&format!("error: {expected}")), "{error}");
    }
}
