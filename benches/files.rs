//! Cost of a directory of 100,000 objects of 1 KiB, and the cost to a watcher of Lists in a loop.
//!
//! ```sh
//! cargo bench --bench files            # or: cargo bench --bench files -- 10000
//! ```
//!
//! Starts the real server as its own process over a directory that it fills. Prints the time until it is ready, its resident
//! memory, the time of a full List in each format and of a ByIndex with 10 matches, and the delay between the save of a file and
//! its event at a watcher: idle, and while another client lists everything in a loop. The baseline of the last figure is the
//! idle one of the same run, interleaved with it; absolute times are valid for one machine only.

#![allow(clippy::print_stdout, reason = "the figures")]

use std::{
    error::Error,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use informerd::proto::pb::{self, informer_service_client::InformerServiceClient};
use tonic::{Streaming, transport::Channel};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const OBJECT_BYTES: usize = 1024;
const MATCHES: usize = 10;
const REPETITIONS: usize = 7;
const EDITS: usize = 41;
const PHASES: usize = 3;

/// Server process, killed on drop.
struct Server {
    child: Child,
    address: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let objects: usize = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(100_000);
    let directory = tempfile::TempDir::new()?;
    for at in 0..objects {
        write(directory.path(), at, 0)?;
    }

    let start = Instant::now();
    let server = Server::start(directory.path())?;
    let mut client = server.client().await?;
    let listed = list(&mut client, pb::PayloadFormat::Metadata).await?;
    println!("{objects} objects of {OBJECT_BYTES} bytes");
    println!("process start to first full List   {:>10.2?}", start.elapsed());
    assert_eq!(listed.0, objects);
    println!(
        "resident memory                    {:>10.1} MiB, {:.2} KiB an object",
        server.resident_mib()?,
        server.resident_mib()? * 1024.0 / objects as f64
    );

    for format in [pb::PayloadFormat::Raw, pb::PayloadFormat::Metadata, pb::PayloadFormat::Struct] {
        let mut times = Vec::new();
        let mut bytes = 0;
        for _ in 0..REPETITIONS {
            let start = Instant::now();
            let (count, size) = list(&mut client, format).await?;
            times.push(start.elapsed());
            assert_eq!(count, objects);
            bytes = size;
        }
        let name = format.as_str_name().trim_start_matches("PAYLOAD_FORMAT_");
        println!("full List, {name:<8}                {:>10.2?}, {:.1} MB", median(&mut times), bytes as f64 / 1e6);
    }
    let mut times = Vec::new();
    for at in 0..REPETITIONS * 10 {
        let start = Instant::now();
        let request = pb::ByIndexRequest {
            resource: "items".into(),
            index: "owner".into(),
            value: format!("owner-{at}"),
            format: pb::PayloadFormat::Raw.into(),
            ..Default::default()
        };
        let mut chunks = client.by_index(request).await?.into_inner();
        let mut count = 0;
        while let Some(chunk) = chunks.message().await? {
            count += chunk.objects.len();
        }
        assert_eq!(count, MATCHES);
        times.push(start.elapsed());
    }
    println!("ByIndex, {MATCHES} matches                {:>10.2?}", median(&mut times));
    println!("resident memory after that         {:>10.1} MiB", server.resident_mib()?);

    let watch = pb::WatchRequest {
        resource: "items".into(),
        initial_events: pb::InitialEvents::None.into(),
        format: pb::PayloadFormat::Raw.into(),
        ..Default::default()
    };
    let mut watch = server.client().await?.watch(watch).await?.into_inner();
    watch.message().await?;
    let (mut idle, mut listing) = (Vec::new(), Vec::new());
    for phase in 0..PHASES {
        edit(directory.path(), phase * 2 * EDITS, objects, &mut watch, &mut idle).await?;
        let looping = Looping::start(&server).await?;
        edit(directory.path(), (phase * 2 + 1) * EDITS, objects, &mut watch, &mut listing).await?;
        println!("  while {} full Lists were answered", looping.stop().await);
    }
    let (idle, listing) = (median(&mut idle), median(&mut listing));
    println!("saved to watched, idle             {idle:>10.2?} (median of {})", EDITS * PHASES);
    println!("saved to watched, Lists in a loop  {listing:>10.2?}");
    println!("delay by the Lists                 {:>10.2} ms", (listing.as_secs_f64() - idle.as_secs_f64()) * 1e3);
    Ok(())
}

/// Writes one object as a JSON file of exactly the configured size.
fn write(directory: &Path, at: usize, version: usize) -> Result<()> {
    let head = format!(
        r#"{{"apiVersion":"v1","kind":"Item","metadata":{{"namespace":"n{}","name":"item-{at}","labels":{{"app":"a{}"}}}},"spec":{{"owner":"owner-{}","version":{version},"filler":""#,
        at % 100,
        at % 1000,
        at / MATCHES,
    );
    let filler = "x".repeat(OBJECT_BYTES - head.len() - 3);
    fs::write(directory.join(format!("item-{at}.json")), format!("{head}{filler}\"}}}}"))?;
    Ok(())
}

async fn list(client: &mut InformerServiceClient<Channel>, format: pb::PayloadFormat) -> Result<(usize, usize)> {
    let request = pb::ListRequest { resource: "items".into(), format: format.into(), ..Default::default() };
    let mut chunks = client.list(request).await?.into_inner();
    let (mut count, mut bytes) = (0, 0);
    while let Some(chunk) = chunks.message().await? {
        count += chunk.objects.len();
        bytes += prost::Message::encoded_len(&chunk);
    }
    Ok((count, bytes))
}

/// Saves files one by one, and waits for the event of each.
async fn edit(
    directory: &Path,
    first: usize,
    objects: usize,
    watch: &mut Streaming<pb::WatchResponse>,
    times: &mut Vec<Duration>,
) -> Result<()> {
    for at in first..first + EDITS {
        let start = Instant::now();
        write(directory, at * 37 % objects, at + 1)?;
        loop {
            let response = watch.message().await?.ok_or("the watch has ended")?;
            if response.r#type() == pb::EventType::Modified {
                break;
            }
        }
        times.push(start.elapsed());
    }
    Ok(())
}

/// Client that lists everything in a loop.
struct Looping {
    stop: Arc<AtomicBool>,
    lists: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl Looping {
    async fn start(server: &Server) -> Result<Self> {
        let (stop, lists) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut client = server.client().await?;
        let task = tokio::spawn({
            let (stop, lists) = (Arc::clone(&stop), Arc::clone(&lists));
            async move {
                while !stop.load(Ordering::Relaxed) {
                    list(&mut client, pb::PayloadFormat::Raw).await?;
                    lists.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
        });
        Ok(Self { stop, lists, task })
    }

    async fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.task.await);
        self.lists.load(Ordering::Relaxed)
    }
}

impl Server {
    fn start(directory: &Path) -> Result<Self> {
        let config = tempfile::NamedTempFile::with_suffix(".yaml")?;
        let text = format!(
            "listen: 127.0.0.1:0\nadmin: {{ listen: none }}\nresources:\n  items:\n    source: {{ files: {{ path: {} }} }}\n    \
             indexes: {{ owner: {{ path: .spec.owner }}, app: {{ label: app }} }}\n",
            directory.display()
        );
        fs::write(config.path(), text)?;
        let mut child = Command::new(env!("CARGO_BIN_EXE_informerd"))
            .args(["serve", "--config"])
            .arg(config.path())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut log = BufReader::new(child.stderr.take().ok_or("no stderr")?);
        let mut line = String::new();
        while !line.contains("grpc listening") {
            line.clear();
            if log.read_line(&mut line)? == 0 {
                return Err("the server has ended".into());
            }
        }
        let port = line.trim_end().rsplit(':').next().ok_or("no address")?.to_owned();
        // Drains stderr, or the server would block on the pipe.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Ok(Self { child, address: format!("http://127.0.0.1:{port}") })
    }

    async fn client(&self) -> Result<InformerServiceClient<Channel>> {
        Ok(InformerServiceClient::connect(self.address.clone()).await?)
    }

    fn resident_mib(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS")).ok_or("no VmRSS")?;
        let kib: f64 = line.split_whitespace().nth(1).ok_or("no figure")?.parse()?;
        Ok(kib / 1024.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}
