//! The server under attack: it is fed without end, and others watch and list what the attacks must not touch.

use std::{
    fs,
    io::Write,
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
use tonic::{Streaming, transport::Channel};

use super::number;
use crate::{
    process::{Metrics, Process},
    sandbox::{DEADLINE, raw},
    served::until,
};

/// A server with one resource, "s".
pub(super) struct Bed {
    pub(super) process: Process,
    /// The number of the last event that was fed.
    fed: Arc<AtomicU64>,
    /// The number of the last event that the watch of another client has read, in order and without a gap.
    read: watch::Receiver<u64>,
    reader: JoinHandle<()>,
    base: Counts,
    /// Bytes of its memory before the attacks.
    resident: usize,
    /// Stops the feed when it is dropped.
    _stop: mpsc::Sender<()>,
    _directory: TempDir,
}

/// What a server holds for its clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    pub(super) open_files: usize,
    pub(super) watchers: u64,
    pub(super) groups: u64,
    /// Calls that have begun and not ended.
    pub(super) calls: u64,
    /// Bytes that wait for clients.
    pub(super) waiting: u64,
    /// Bytes of events that watches still have to read.
    pub(super) retained: u64,
}

/// How a server differs from the defaults.
#[derive(Debug, Default)]
pub(super) struct Setup {
    /// Lines of its configuration.
    pub(super) config: &'static str,
    pub(super) open_files: Option<usize>,
    /// Bytes of each of [`LARGE`] objects that never change, and are the first of all.
    pub(super) large: usize,
}

/// Objects of which one changes at a time.
pub(super) fn keys() -> u64 {
    number(50, 200)
}

/// Time between two batches of events.
const PERIOD: Duration = Duration::from_millis(10);
/// Values of the label of the objects that change.
const LABELS: u64 = 10;
/// Objects that are large, if there are any.
pub(super) const LARGE: usize = 5;
/// More memory than any attack takes beside what waits for clients, which is counted: some 15 KiB for each connection, and what
/// the allocator does not give back.
fn resident() -> usize {
    number(96 << 20, 512 << 20) as usize
}

// === impl Bed ===

impl Bed {
    pub(super) async fn start(setup: Setup) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("informerd.yml");
        let resource =
            "resources: { s: { source: { stream: { path: '-' } }, indexes: { name: { path: .metadata.name } } } }";
        fs::write(&path, format!("{resource}\n{}\n", setup.config)).unwrap();
        let mut process = Process::start(&["--config", path.to_str().unwrap()], setup.open_files);
        let mut stdin = process.stdin.take().unwrap();
        let large = if setup.large > 0 { LARGE } else { 0 };
        for at in 0..large {
            stdin.write_all(event("ADDED", &format!("a{at}"), "none", 0, setup.large).as_bytes()).unwrap();
        }
        for at in 0..keys() {
            stdin.write_all(changed("ADDED", at, 0).as_bytes()).unwrap();
        }
        let mut client = InformerServiceClient::connect(process.address()).await.unwrap();
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
        let mut bed = Self { process, fed, read, reader, base, resident, _stop: stop, _directory: directory };
        bed.serves("before").await;
        bed.base = Counts::of(&bed.process, &bed.process.metrics().await);
        assert_eq!((bed.base.watchers, bed.base.calls), (1, 1), "{:?}", bed.base);
        bed
    }

    /// Checks that the server is as good as without the attack, for others: their watch has every event in order, the list of
    /// a new client is whole, and probes are answered. It has not panicked, and takes no more memory than it may.
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

    /// Waits until the watch has read everything, and so many events more.
    pub(super) async fn reads(&self, attack: &str, events: u64) {
        let expected = self.fed.load(Ordering::Relaxed) + events;
        let mut read = self.read.clone();
        let reached = within(attack, read.wait_for(|read| *read >= expected)).await;
        assert!(reached.is_ok(), "{attack}: the watch of others has ended, or missed something");
    }

    /// Lists the objects of one label as a new client, and returns their number.
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

    /// Connects a client that is none of those who attack.
    pub(super) async fn client(&self) -> InformerServiceClient<Channel> {
        InformerServiceClient::connect(self.process.address()).await.unwrap()
    }

    pub(super) async fn counts(&self) -> Counts {
        Counts::of(&self.process, &self.process.metrics().await)
    }

    /// Waits until the server holds so much.
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

    /// Waits until nothing is left of an attack.
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

impl Drop for Bed {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// A request to watch everything that happens from now on, RAW.
pub(super) fn watch() -> pb::WatchRequest {
    pb::WatchRequest {
        resource: "s".to_owned(),
        initial_events: pb::InitialEvents::None.into(),
        format: pb::PayloadFormat::Raw.into(),
        ..Default::default()
    }
}

/// Waits for what must come.
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

/// Each object in turn, of about 1 KiB.
fn changed(event_type: &str, at: u64, number: u64) -> String {
    event(event_type, &format!("k{at}"), &format!("a{}", at % LABELS), number, 900)
}

/// Writes events, each with its number, until it is stopped.
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

/// Reads a watch, which has every event once and in order.
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
