//! Start of a server with 1,000,000 objects of 1 KiB, from etcd, a stream or files, and the memory that it then has.
//!
//! ```sh
//! tests/upstreams/run --etcd cargo bench --bench start -- etcd        # or: ... -- etcd 100000
//! cargo bench --bench start -- stream
//! cargo bench --bench start -- files
//! ```
//!
//! Starts the real server as its own process, three times. Prints the time from its start until it has every object, its processor
//! time and peak memory by then, and its resident memory a second later, and after Lists by ten clients at once, as RAW and then as
//! STRUCT, whose cache is emptied a minute later: in all, and for each object, beside the bytes of their JSON. The etcd has all objects before the first start.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "the figures; and a bench that cannot go on ends, and says so"
)]

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/upstreams/etcd.rs"]
mod etcd;
#[path = "../tests/upstreams/port.rs"]
mod port;
#[allow(dead_code, reason = "the bench `kube` uses the rest")]
mod running;

use std::{
    collections::BTreeMap,
    env,
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use futures_util::{TryStreamExt, future::join_all};
use informerd::proto::pb::{self, informer_service_client::InformerServiceClient};
use tempfile::TempDir;

use crate::{
    etcd::{Etcd, Version},
    port::free_address,
    running::{Running, synced},
};

/// Upstream of the server.
enum Upstream {
    Etcd(Box<Etcd>),
    Stream(PathBuf),
    Files(PathBuf),
}

const DEADLINE: Duration = Duration::from_secs(300);
const OBJECTS: usize = 1_000_000;
const OBJECT_BYTES: usize = 1024;
/// Number of keys in a transaction, of which etcd accepts 128, and of objects in a file.
const BATCH: usize = 100;
const REPETITIONS: usize = 3;
const LISTS: usize = 10;
const PREFIX: &str = "/settings/";

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let objects = arguments.get(1).map_or(OBJECTS, |objects| objects.parse().expect("a number of objects"));
    let directory = TempDir::new().unwrap();
    let upstream = match arguments.first().map(String::as_str) {
        Some("etcd") => Upstream::etcd(objects).await,
        Some("stream") => Upstream::stream(objects, directory.path()),
        Some("files") => Upstream::files(objects, directory.path()),
        _ => panic!("name an upstream: etcd, stream or files"),
    };
    println!("{objects} objects of {OBJECT_BYTES} bytes");
    for _ in 0..REPETITIONS {
        upstream.measure(objects).await;
    }
}

/// Returns an object as a program would write it: 1 KiB of JSON, of which an id, a label and a value are its own.
fn object(at: usize) -> String {
    let team = at % 100;
    let head = format!(
        r#"{{"kind":"Setting","metadata":{{"name":"setting-{at:07}","labels":{{"team":"team-{team}"}}}},"owner":"service-{}","retries":{},"notes":""#,
        at / 20,
        at % 7
    );
    let notes: String =
        (0..).map(|word| format!("{:08x} ", (at * 31 + word) * 2_654_435_761 % (1 << 32))).take(128).collect();
    format!("{head}{}\"}}", &notes[..OBJECT_BYTES - head.len() - 2])
}

// === impl Upstream ===

impl Upstream {
    async fn etcd(objects: usize) -> Self {
        let etcd = Etcd::start(Version::Latest).await;
        let mut driver = etcd.driver();
        for first in (0..objects).step_by(BATCH) {
            let keys = first..objects.min(first + BATCH);
            let puts: BTreeMap<_, _> =
                keys.map(|at| (format!("{PREFIX}shop/setting-{at:07}"), Some(object(at)))).collect();
            driver.write(&puts);
        }
        Self::Etcd(Box::new(etcd))
    }

    fn stream(objects: usize, directory: &Path) -> Self {
        let path = directory.join("events.jsonl");
        let mut file = BufWriter::new(File::create(&path).unwrap());
        for at in 0..objects {
            writeln!(file, r#"{{"type":"ADDED","object":{}}}"#, object(at)).unwrap();
        }
        file.flush().unwrap();
        Self::Stream(path)
    }

    fn files(objects: usize, directory: &Path) -> Self {
        for first in (0..objects).step_by(BATCH) {
            let items: Vec<_> = (first..objects.min(first + BATCH)).map(object).collect();
            let list = format!(r#"{{"kind":"SettingList","apiVersion":"v1","items":[{}]}}"#, items.join(","));
            std::fs::write(directory.join(format!("{first:07}.json")), list).unwrap();
        }
        Self::Files(directory.to_owned())
    }

    async fn measure(&self, objects: usize) {
        let address = free_address().to_string();
        let resource = match self {
            Self::Etcd(etcd) => ["--etcd".to_owned(), format!("settings={}{PREFIX}", etcd.url())],
            Self::Stream(_) => ["--stream".to_owned(), "settings=-".to_owned()],
            Self::Files(path) => ["--files".to_owned(), format!("settings={}", path.display())],
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_informerd"));
        command.args(["serve", "--admin-listen", "none", "--listen", &address]).args(resource);
        let started = Instant::now();
        let mut running = Running(command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
        let mut stdin = running.0.stdin.take().unwrap();
        let path = if let Self::Stream(path) = self { Some(path.clone()) } else { None };
        // The stream does not end: then it would be stale.
        let writing = std::thread::spawn(move || {
            path.map(|path| std::io::copy(&mut File::open(path).unwrap(), &mut stdin).unwrap());
            stdin
        });
        let url = format!("http://{address}");
        while synced(&url).await < objects {
            assert!(started.elapsed() < DEADLINE, "it has everything in time");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (ready, processor, peak) = (started.elapsed(), running.processor(), running.memory("VmHWM"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let resident = running.memory("VmRSS");
        let mut listed = Vec::new();
        for format in [pb::PayloadFormat::Raw, pb::PayloadFormat::Struct] {
            let counts = join_all((0..LISTS).map(|_| list(&url, format))).await;
            assert!(counts.iter().all(|count| *count == objects), "{counts:?}");
            tokio::time::sleep(Duration::from_secs(1)).await;
            listed.push(running.memory("VmRSS"));
        }
        let of_json = |kib: f64| kib * 1024.0 / (objects * OBJECT_BYTES) as f64;
        println!(
            "ready {:>6.2} s  processor {:>5.1} µs an object  peak {:.2}  resident {:.2}  after {LISTS} Lists {:.2}, STRUCT {:.2} of the JSON",
            ready.as_secs_f64(),
            processor * 1e6 / objects as f64,
            of_json(peak),
            of_json(resident),
            of_json(listed[0]),
            of_json(listed[1]),
        );
        drop((running, writing.join()));
    }
}

/// Lists every object, and returns their number.
async fn list(url: &str, format: pb::PayloadFormat) -> usize {
    let client = InformerServiceClient::connect(url.to_owned()).await.unwrap();
    let request = pb::ListRequest { resource: "settings".to_owned(), format: format.into(), ..Default::default() };
    let answers = client.max_decoding_message_size(usize::MAX).list(request).await.unwrap().into_inner();
    answers.try_fold(0, async |count, answer| Ok(count + answer.objects.len())).await.unwrap()
}
