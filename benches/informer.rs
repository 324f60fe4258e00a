//! Cost of an informer in a program: of 1,000 objects that it selects on a server with 100,000 of 1 KiB, and of a slow handler to
//! another one.
//!
//! ```sh
//! cargo bench --bench informer            # or, with fewer objects: cargo bench --bench informer -- 10000
//! cargo bench --bench informer -- events  # changes a second into the store
//! ```
//!
//! Starts the real server, which reads objects from a pipe. In turns, each in a process of its own, an informer and the baseline
//! read the selection: the baseline requests one List, decodes the bodies to the same type, and keeps both in a map. Prints the
//! times until the program has every decoded object, and the growth of resident memory beside the bytes of the JSON. Then an
//! informer with two handlers receives changes, at first while one handler waits for 10 s in a call, and in turns while it does
//! not.
//!
//! With `events`, a process with one informer, one index and one handler is stopped until the server has all changes, and then
//! reads them as fast as it can. Its processor time for each is the cost, and its inverse the rate of one core.
//!
//! Absolute times are valid for one machine only.

#![allow(clippy::print_stdout, reason = "the figures")]

use std::{
    collections::HashMap,
    error::Error,
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use informerd::{
    cache::{
        Decode, Deletion, Entry, HandlerOptions, InformerOptions, ResourceEventHandlerFuncs, SharedInformer,
        SourceHealth,
    },
    client::{Client, Query, UntilEvent, UntilOptions},
    model::{IndexFunc, Object, ObjectKey},
    proto::pb,
    source::relay::{RelayConfig, RelaySource},
    watch::{FullChannelPolicy, QueueOptions},
};
use serde::Deserialize;
use tokio::sync::mpsc;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const OBJECT_BYTES: usize = 1024;
const SELECTED: usize = 1000;
const REPETITIONS: usize = 11;
const CHANGES: usize = 101;
const PHASES: usize = 6;
/// Time that the slow handler takes for a call.
const SLOW: Duration = Duration::from_secs(10);
const SUBJECTS: [&str; 2] = ["informer", "list"];
/// Changes for one measurement of the rate: no more than a server's history has by default.
const EVENTS: usize = 100_000;
/// Objects that they change.
const CHANGED: usize = 10_000;
const RATE_RUNS: usize = 7;
/// Types of the informer whose rate is measured: objects as they are, and decoded.
const TYPES: [&str; 2] = ["object", "item"];
/// Processor time in `/proc/self/stat` is in this unit.
const TICK: Duration = Duration::from_millis(10);

/// Part of an object that the program reads.
#[derive(Debug, Deserialize)]
struct Item {
    spec: Spec,
}

#[derive(Debug, Deserialize)]
struct Spec {
    change: usize,
}

/// Server process, killed on drop, and the pipe that it reads.
struct Server {
    child: Child,
    stdin: ChildStdin,
    address: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, subject, address] = &arguments[..]
        && SUBJECTS.contains(&subject.as_str())
    {
        return follow(subject, address).await;
    }
    if let [_, kind, address] = &arguments[..]
        && TYPES.contains(&kind.as_str())
    {
        return if kind == "object" { take::<Object>(address).await } else { take::<Item>(address).await };
    }
    if arguments.iter().any(|argument| argument == "events") {
        return events().await;
    }
    let objects: usize = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(100_000);
    let mut server = Server::start()?;
    let all: String = (0..objects).map(|at| event(at, 0)).collect();
    server.stdin.write_all(all.as_bytes())?;
    drop(all);
    let reader = informer::<Item>(&server.address, Query::of("items"))?;
    while reader.snapshot().list_keys().len() < objects {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    reader.stop().await;
    drop(reader);
    println!("{SELECTED} of {objects} objects of {OBJECT_BYTES} bytes, {REPETITIONS} runs of each in turns, medians");

    let mut figures = SUBJECTS.map(|_| (Vec::new(), Vec::new()));
    for _ in 0..REPETITIONS {
        for (subject, (times, growths)) in SUBJECTS.iter().zip(&mut figures) {
            let output = Command::new(std::env::current_exe()?).args([subject, server.address.as_str()]).output()?;
            let text = String::from_utf8(output.stdout)?;
            let found = text.split_whitespace().map(str::parse).collect::<std::result::Result<Vec<u64>, _>>()?;
            let [time, growth] = found[..] else { return Err(String::from_utf8(output.stderr)?.into()) };
            times.push(time);
            growths.push(growth);
        }
    }
    let medians = figures.map(|(mut times, mut growths)| [median(&mut times) as f64, median(&mut growths) as f64]);
    for (subject, [time, growth]) in SUBJECTS.iter().zip(medians) {
        let json = (SELECTED * OBJECT_BYTES) as f64;
        println!("{subject:<9} complete after {:>6.1} ms, grown by {:.2} times the JSON", time / 1e3, growth / json);
    }
    let [[time, growth], [list_time, list_growth]] = medians;
    println!(
        "informer beside list: {:.2} times the time, {:.2} times the memory",
        time / list_time,
        growth / list_growth
    );
    slow_handler(&mut server).await
}

/// Prints the delay of a handler's calls with and without a handler that takes long.
async fn slow_handler(server: &mut Server) -> Result<()> {
    let informer = informer::<Item>(&server.address, selection())?;
    let (sender, mut changes) = mpsc::channel(CHANGES);
    let handler = ResourceEventHandlerFuncs::<Item>::new()
        .on_update(move |_, item| sender.try_send((item.spec.change, Instant::now())).expect("one change at a time"));
    let fast = informer.add_handler(handler, HandlerOptions::default())?;
    fast.wait_for_sync().await;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for phase in 0..PHASES {
        let slow = (phase % 2 == 0).then(|| informer.add_handler(Slow, HandlerOptions::default())).transpose()?;
        // The slow handler is in its first call, of an object that exists.
        tokio::time::sleep(Duration::from_millis(100)).await;
        for change in 1..=CHANGES {
            let change = phase * CHANGES + change;
            let start = Instant::now();
            server.stdin.write_all(event(change % SELECTED, change).as_bytes())?;
            let (received, at) = changes.recv().await.ok_or("the handler has ended")?;
            assert_eq!(received, change, "each change arrives once");
            let delays = if slow.is_some() { &mut beside } else { &mut alone };
            delays.push(at.duration_since(start));
        }
    }
    let [alone, beside] = [&mut alone, &mut beside].map(|delays| median(delays).as_secs_f64() * 1e3);
    println!(
        "saved to handled: {alone:.2} ms alone, {beside:.2} ms beside a handler that takes {SLOW:?} for a call (medians)"
    );
    println!("delay by the slow handler: {:.2} ms", beside - alone);
    Ok(())
}

/// Prints the rate at which an informer of each type takes changes.
async fn events() -> Result<()> {
    let (mut server, mut costs, mut last) = (Server::start()?, TYPES.map(|_| Vec::new()), 0);
    let client = Client::connect(&server.address.parse()?).await?;
    server
        .write(&(0..CHANGED).map(|at| event(at, 0)).collect::<String>(), &client, "object.spec.change == 0", CHANGED)
        .await?;
    for _ in 0..RATE_RUNS {
        for (kind, costs) in TYPES.iter().zip(&mut costs) {
            let mut command = Command::new(std::env::current_exe()?);
            let mut informer =
                command.args([kind, server.address.as_str()]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
            let mut lines = BufReader::new(informer.stdout.take().ok_or("no stdout")?).lines();
            lines.next().ok_or("the informer has ended")??;
            signal("-STOP", &informer)?;
            last += EVENTS;
            let changes = (last - EVENTS..last).map(|change| event(change % CHANGED, change + 1)).collect::<String>();
            let written = server.write(&changes, &client, &format!("object.spec.change == {last}"), 1).await;
            signal("-CONT", &informer)?;
            written?;
            let nanos: u64 = lines.next().ok_or("the informer has ended")??.parse()?;
            costs.push(nanos);
            informer.wait()?;
        }
    }
    println!(
        "{EVENTS} changes of {CHANGED} objects of {OBJECT_BYTES} bytes, one index, one handler; {RATE_RUNS} runs of each"
    );
    for (kind, mut costs) in TYPES.iter().zip(costs) {
        let rate = |nanos: u64| 1_000_000 / nanos.max(1);
        let (typical, lowest) = (median(&mut costs), costs[0]);
        let most = costs[costs.len() - 1];
        println!(
            "{kind:<7} {} thousand changes in a second of processor time ({} to {}), {:.2} us each",
            rate(typical),
            rate(most),
            rate(lowest),
            typical as f64 / 1e3
        );
    }
    Ok(())
}

/// Takes changes into the store of an informer of this type; prints a line when it begins, and the cost of a change in nanoseconds.
async fn take<T: Decode>(address: &str) -> Result<()> {
    let informer: SharedInformer<T> = informer(address, Query::of("items"))?;
    informer.add_indexers([("group".to_owned(), IndexFunc::Label("group".into()))]).await?;
    let (done, mut all) = mpsc::channel(1);
    let mut calls = 0;
    let handler = ResourceEventHandlerFuncs::<T>::new().on_update(move |_, _| {
        calls += 1;
        if calls == EVENTS {
            done.try_send(()).expect("sent once");
        }
    });
    // Other policies may merge changes.
    let queue = QueueOptions { policy: FullChannelPolicy::Replay, length: 512 };
    let options = HandlerOptions { queue, ..HandlerOptions::default() };
    // A registration that is dropped removes its handler.
    let registration = informer.add_handler(handler, options)?;
    registration.wait_for_sync().await;
    let before = processor_time()?;
    println!("ready");
    all.recv().await.ok_or("the handler has ended")?;
    println!("{}", processor_time()?.saturating_sub(before).as_nanos() / EVENTS as u128);
    Ok(())
}

/// Sends a signal to a process.
fn signal(name: &str, process: &Child) -> Result<()> {
    let is_sent = Command::new("kill").args([name, &process.id().to_string()]).status()?.success();
    if is_sent { Ok(()) } else { Err(format!("kill {name} failed").into()) }
}

/// Returns the processor time of this process.
fn processor_time() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(") ").next().ok_or("no figures")?.split(' ').skip(11).take(2);
    let ticks = fields.map(str::parse::<u32>).sum::<std::result::Result<u32, std::num::ParseIntError>>()?;
    Ok(TICK * ticks)
}

/// Reads the selection in this process, and prints the microseconds that took and the growth of the resident memory in bytes.
async fn follow(subject: &str, address: &str) -> Result<()> {
    let client = Client::connect(&address.parse()?).await?;
    let before = resident()?;
    let start = Instant::now();
    let (count, time, after) = if subject == "informer" {
        let informer = informer::<Item>(address, selection())?;
        let count = informer.wait_for_cache_sync().await?.list().len();
        (count, start.elapsed(), resident()?)
    } else {
        let query = Query { format: pb::PayloadFormat::Raw, ..selection() };
        let mut held = HashMap::new();
        for object in client.list(&query).await?.objects {
            let Some(pb::object::Body::Raw(body)) = object.body else { return Err("an object without a body".into()) };
            let item: Item = serde_json::from_slice(&body)?;
            held.insert(ObjectKey::new(&object.namespace, &object.name)?, (Arc::new(item), body));
        }
        (held.len(), start.elapsed(), resident()?)
    };
    if count != SELECTED {
        return Err(format!("{count} objects instead of {SELECTED}").into());
    }
    println!("{} {}", time.as_micros(), after.saturating_sub(before));
    Ok(())
}

fn selection() -> Query {
    Query { label_selector: "group=selected".to_owned(), ..Query::of("items") }
}

fn informer<T: Decode>(address: &str, query: Query) -> Result<SharedInformer<T>> {
    let config = RelayConfig { query, ..RelayConfig::new(address.parse()?, "items") };
    let health = SourceHealth::new(config.heartbeat, Duration::from_secs(15));
    let source = RelaySource::new(config, health.clone());
    Ok(SharedInformer::start(source, InformerOptions { health: Some(health), ..InformerOptions::default() }))
}

/// Returns the line that adds an object or changes it. The first [`SELECTED`] are those of the selection.
fn event(at: usize, change: usize) -> String {
    let group = if at < SELECTED { "selected" } else { "other" };
    let mut line = format!(
        r#"{{"type":"{}","object":{{"apiVersion":"v1","kind":"Item","metadata":{{"namespace":"n{}","name":"item-{at}","labels":{{"group":"{group}"}}}},"spec":{{"change":{change},"filler":""#,
        if change == 0 { "ADDED" } else { "MODIFIED" },
        at % 100,
    );
    let head = line.find(r#"{"apiVersion"#).map_or(0, |body| line.len() - body);
    let filler = OBJECT_BYTES - head - 3;
    writeln!(line, "{}\"}}}}}}", "x".repeat(filler)).expect("a string takes every text");
    line
}

/// Returns the resident memory of this process in bytes.
fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS")).ok_or("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).ok_or("no figure")?.parse::<u64>()? * 1024)
}

fn median<T: Ord + Copy>(figures: &mut [T]) -> T {
    figures.sort();
    figures[figures.len() / 2]
}

/// Handler that takes long for each call.
struct Slow;

impl informerd::cache::ResourceEventHandler<Item> for Slow {
    async fn on_add(&mut self, _: Entry<Item>, _: bool) {
        tokio::time::sleep(SLOW).await;
    }

    async fn on_update(&mut self, _: Entry<Item>, _: Entry<Item>) {
        tokio::time::sleep(SLOW).await;
    }

    async fn on_delete(&mut self, _: Entry<Item>, _: Deletion) {
        tokio::time::sleep(SLOW).await;
    }
}

// === impl Server ===

impl Server {
    fn start() -> Result<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_informerd"))
            .args(["serve", "--listen=127.0.0.1:0", "--admin-listen=none", "--stream=items=-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().ok_or("no stdin")?;
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
        Ok(Self { child, stdin, address: format!("http://127.0.0.1:{port}") })
    }
}

impl Server {
    /// Writes events, and waits until the server has this number of objects that an expression selects.
    async fn write(&mut self, events: &str, client: &Client, expression: &str, objects: usize) -> Result<()> {
        self.stdin.write_all(events.as_bytes())?;
        let query =
            Query { expression: expression.to_owned(), format: pb::PayloadFormat::Metadata, ..Query::of("items") };
        client.until(&query, [|event: &UntilEvent| event.count == objects as u64], &UntilOptions::default()).await?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
