//! Server under attack: the test feeds it events all the time, and clients that do not attack watch and list its objects.

use std::{
    fmt::Display,
    fs,
    io::Write,
    path::Path,
    process::ChildStdin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use informerd::proto::pb::{self, informer_service_client::InformerServiceClient};
use tempfile::TempDir;
use tokio::{sync::watch, task::JoinHandle};
use tonic::{
    Streaming,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

use super::number;
use crate::{
    authority::Authority,
    process::{Metrics, Process},
    sandbox::{DEADLINE, raw},
    served::until,
};

/// Server with one resource, "s".
pub(super) struct AttackedServer {
    pub(super) process: Process,
    /// Number of the last event that the test has written to the server.
    fed: Arc<AtomicU64>,
    /// Number of the last event that the other client's watch has read, in order and without a gap.
    read: watch::Receiver<u64>,
    reader: JoinHandle<()>,
    base: Counts,
    /// Resident memory of the server before the attacks, in bytes.
    resident: usize,
    /// Stops the feed when it is dropped.
    _stop: mpsc::Sender<()>,
    /// Directory of its configuration.
    pub(super) directory: TempDir,
    /// Authority of its certificate, under TLS.
    authority: Option<Certificate>,
}

/// Resources that the server holds for its clients, from its metrics.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    pub(super) open_files: usize,
    pub(super) watchers: u64,
    pub(super) groups: u64,
    /// Calls that have begun and not ended.
    pub(super) calls: u64,
    /// Bytes queued for clients.
    pub(super) waiting: u64,
    /// Bytes of events that watches still have to read.
    pub(super) retained: u64,
}

/// Settings of a server that differ from the defaults.
#[derive(Debug, Default)]
pub(super) struct Setup {
    /// Lines of its configuration.
    pub(super) config: &'static str,
    pub(super) open_files: Option<usize>,
    /// Size in bytes of each of the [`LARGE`] objects, which are written first and never change.
    pub(super) large: usize,
    pub(super) is_tls: bool,
}

/// Returns the number of objects that change in turn.
pub(super) fn keys() -> u64 {
    number(50, 200)
}

/// Time between two batches of events.
const PERIOD: Duration = Duration::from_millis(10);
/// Number of label values of the changing objects.
const LABELS: u64 = 10;
/// Number of large objects, if there are any.
pub(super) const LARGE: usize = 5;
/// Returns the memory in bytes that an attack may take at most, beside the queued bytes, which are counted: about 15 KiB per
/// connection, and memory that the allocator does not return to the kernel.
fn resident() -> usize {
    number(96 << 20, 512 << 20) as usize
}

// === impl AttackedServer ===

impl AttackedServer {
    pub(super) async fn start(setup: Setup) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("informerd.yml");
        let resource =
            "resources: { s: { source: { stream: { path: '-' } }, indexes: { name: { path: .metadata.name } } } }";
        let authority = setup.is_tls.then(|| certified(directory.path()));
        let tls = if setup.is_tls { "tls: { cert: tls.crt, key: tls.key }" } else { "" };
        fs::write(&path, format!("{resource}\n{}\n{tls}\n", setup.config)).unwrap();
        let mut process = Process::start(&["--config", path.to_str().unwrap()], setup.open_files);
        let mut stdin = process.stdin.take().unwrap();
        let large = if setup.large > 0 { LARGE } else { 0 };
        for at in 0..large {
            stdin.write_all(event("ADDED", &format!("a{at}"), "none", 0, setup.large).as_bytes()).unwrap();
        }
        for at in 0..keys() {
            stdin.write_all(changed("ADDED", at, 0).as_bytes()).unwrap();
        }
        let mut client =
            InformerServiceClient::new(endpoint(process.grpc, authority.as_ref()).connect().await.unwrap());
        until(&mut client, |resource| resource.objects == keys() + large as u64).await;
        let followed = client.watch(watch()).await.unwrap().into_inner();
        let (sends, read) = watch::channel(0);
        let reader = tokio::spawn(follow(followed, sends));
        let fed = Arc::new(AtomicU64::new(0));
        let feeding = Arc::clone(&fed);
        let (stop, stopped) = mpsc::channel();
        thread::spawn(move || feed(stdin, &feeding, &stopped));
        let resident = process.resident();
        let base = Counts::of(&process, &process.metrics().await);
        let mut attacked = Self { process, fed, read, reader, base, resident, _stop: stop, directory, authority };
        attacked.serves("before").await;
        attacked.base = Counts::of(&attacked.process, &attacked.process.metrics().await);
        assert_eq!((attacked.base.watchers, attacked.base.calls), (1, 1), "{:?}", attacked.base);
        attacked
    }

    /// Checks that other clients notice nothing of the attack: their watch has every event in order, the list of a new client is
    /// complete, and probes are answered. The server has not panicked and is within its memory limit.
    pub(super) async fn serves(&self, attack: &str) {
        self.reads(attack, 1).await;
        let listed = within(attack, self.list(pb::ListRequest::default())).await;
        assert_eq!(listed, keys() / LABELS, "{attack}");
        assert!(self.process.get("/livez").await.ends_with("ok\n"), "{attack}");
        assert!(!self.process.log().contains("panicked"), "{attack}: {}", self.process.log());
        let waiting = self.counts().await.waiting as usize;
        let more = self.process.resident().saturating_sub(self.resident);
        assert!(more < resident() + waiting, "{attack}: {} MiB more, {} MiB wait", more >> 20, waiting >> 20);
    }

    /// Waits until the watch has read all events fed so far, and `events` more.
    pub(super) async fn reads(&self, attack: &str, events: u64) {
        let expected = self.fed.load(Ordering::Relaxed) + events;
        let mut read = self.read.clone();
        let reached = within(attack, read.wait_for(|read| *read >= expected)).await;
        assert!(reached.is_ok(), "{attack}: the watch of others has ended, or missed something");
    }

    /// Lists the selected objects as a new client, and returns their number.
    pub(super) async fn list(&self, request: pb::ListRequest) -> u64 {
        let mut client = self.client().await;
        let request = pb::ListRequest { resource: "s".to_owned(), label_selector: "app=a0".to_owned(), ..request };
        let mut list = client.list(request).await.unwrap().into_inner();
        let mut objects = 0;
        while let Some(chunk) = list.message().await.unwrap() {
            objects += chunk.objects.len() as u64;
        }
        objects
    }

    /// Connects a client that does not attack.
    pub(super) async fn client(&self) -> InformerServiceClient<Channel> {
        InformerServiceClient::new(self.endpoint(self.process.grpc).connect().await.unwrap())
    }

    /// Returns the endpoint of the server, as it is reached through an address.
    pub(super) fn endpoint(&self, address: impl Display) -> Endpoint {
        endpoint(address, self.authority.as_ref())
    }

    pub(super) async fn counts(&self) -> Counts {
        Counts::of(&self.process, &self.process.metrics().await)
    }

    /// Waits until the resources held by the server satisfy `is_so`.
    pub(super) async fn until(&self, attack: &str, is_so: impl Fn(&Counts) -> bool) -> Counts {
        let mut last = self.base;
        let waited = async {
            loop {
                last = self.counts().await;
                if is_so(&last) {
                    return;
                }
                tokio::time::sleep(PERIOD).await;
            }
        };
        let is_in_time = tokio::time::timeout(DEADLINE, waited).await.is_ok();
        assert!(is_in_time, "{attack}: {last:?}, before {:?}", self.base);
        last
    }

    /// Waits until the server has released everything that the attack held.
    pub(super) async fn recovers(&self, attack: &str) {
        let base = self.base;
        self.until(attack, |counts| {
            counts.open_files <= base.open_files
                && (counts.watchers, counts.calls, counts.groups) == (base.watchers, base.calls, base.groups)
                && counts.waiting == 0
        })
        .await;
        self.serves(attack).await;
    }
}

impl Drop for AttackedServer {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Writes a certificate of the server and its key, and returns that of the authority.
pub(super) fn certified(directory: &Path) -> Certificate {
    let authority = Authority::new();
    let (cert, key) = authority.sign(&["localhost"]);
    fs::write(directory.join("tls.crt"), cert).unwrap();
    fs::write(directory.join("tls.key"), key).unwrap();
    Certificate::from_pem(authority.pem())
}

fn endpoint(address: impl Display, authority: Option<&Certificate>) -> Endpoint {
    let Some(authority) = authority else { return Endpoint::from_shared(format!("http://{address}")).unwrap() };
    let tls = ClientTlsConfig::new().ca_certificate(authority.clone()).domain_name("localhost");
    Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap()
}

/// Returns a request to watch all changes from now on, RAW.
pub(super) fn watch() -> pb::WatchRequest {
    pb::WatchRequest {
        resource: "s".to_owned(),
        initial_events: pb::InitialEvents::None.into(),
        format: pb::PayloadFormat::Raw.into(),
        ..Default::default()
    }
}

/// Returns a request that opens watches under the ids from 1 on.
pub(super) fn subscribe(watches: impl IntoIterator<Item = pb::WatchRequest>) -> pb::SubscribeRequest {
    let opened = (1..).zip(watches).map(|(id, watch)| pb::OpenWatch { id, watch: Some(watch) });
    pb::SubscribeRequest { open: opened.collect(), ..Default::default() }
}

/// Waits for a result, and fails the test when it takes too long.
pub(super) async fn within<T>(attack: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, wait)
        .await
        .unwrap_or_else(|_| panic!("{attack}: others wait for longer than a minute"))
}

fn event(event_type: &str, name: &str, label: &str, number: u64, bytes: usize) -> String {
    let pad = "x".repeat(bytes);
    let metadata = format!(r#"{{"namespace":"d","name":"{name}","labels":{{"app":"{label}"}}}}"#);
    format!("{{\"type\":\"{event_type}\",\"object\":{{\"metadata\":{metadata},\"seq\":{number},\"pad\":\"{pad}\"}}}}\n")
}

/// Returns the next change; the objects change in turn and have about 1 KiB each.
fn changed(event_type: &str, at: u64, number: u64) -> String {
    event(event_type, &format!("k{at}"), &format!("a{}", at % LABELS), number, 900)
}

/// Writes numbered events to the server until it is stopped.
fn feed(mut stdin: ChildStdin, fed: &AtomicU64, stopped: &mpsc::Receiver<()>) {
    let (batch, keys) = (number(5, 20), keys());
    for from in (0..).step_by(batch as usize) {
        let events: String =
            (from + 1..=from + batch).map(|number| changed("MODIFIED", number % keys, number)).collect();
        if stdin.write_all(events.as_bytes()).is_err() {
            return;
        }
        fed.store(from + batch, Ordering::Relaxed);
        if stopped.recv_timeout(PERIOD) != Err(mpsc::RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// Reads a watch, and checks that every event comes once and in order.
async fn follow(mut watch: Streaming<pb::WatchResponse>, read: watch::Sender<u64>) {
    loop {
        let response = watch.message().await.expect("no error").expect("no end");
        let Some(object) = &response.object else { continue };
        let body = raw(object);
        let text = std::str::from_utf8(&body).unwrap();
        let digits = text.split("\"seq\":").nth(1).unwrap().split(',').next().unwrap();
        let (number, last) = (digits.parse::<u64>().unwrap(), *read.borrow());
        assert_eq!(number, last + 1, "in order, none missing, none twice");
        read.send_replace(number);
    }
}

// === impl Counts ===

impl Counts {
    fn of(process: &Process, metrics: &Metrics) -> Self {
        let sum = |name| metrics.sum(name) as u64;
        Self {
            open_files: process.open_files(),
            watchers: sum("informerd_watchers"),
            groups: sum("informerd_watch_groups"),
            calls: sum("grpc_server_started_total").saturating_sub(sum("grpc_server_handled_total")),
            waiting: sum("informerd_waiting_bytes"),
            retained: sum("informerd_watch_retained_bytes"),
        }
    }
}
