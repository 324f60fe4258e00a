//! Cost of one event, stage by stage, with objects of 1 KiB.
//!
//! ```sh
//! cargo bench --bench micro            # or: cargo bench --bench micro -- selection
//! ```
//!
//! Criterion reports the changes since the last run. The summary at the end has the fastest sample of each benchmark, beside that
//! of copying 1 KiB in the same run: absolute times are valid for one machine only. Beside it are the allocations of the thread,
//! a mean of many calls, and their bytes.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "the figures; and a run that cannot go on has failed")]

use std::{
    collections::{HashSet, VecDeque},
    hint::black_box,
    io::Write,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use allocation_counter::AllocationInfo;

use bytes::Bytes;
use criterion::Criterion;
use futures_util::FutureExt;
use informerd::{
    cache::{AddOptions, Delta, Indexer, List, ListVersion, ListerWatcher, SourceHealth, Watch, WorkQueue},
    grpc::{WireArena, WireFrame},
    model::{
        Cause, Event, EventType, Expression, FieldSelector, IndexFunc, IndexMatch, Indexers, LabelSelector, Object,
        ObjectKey, Path, ResourceVersion, Selection,
    },
    proto::PayloadFormat,
    source::stream::{StreamConfig, StreamPath, StreamSource},
    watch::{
        Broadcaster, BroadcasterConfig, Client, Cursor, Frame, FullChannelPolicy, GroupEvent, QueueOptions, Subscribe,
        Taken,
    },
};
use tokio_stream::StreamExt;

const OBJECTS: usize = 10_000;
const OBJECT_BYTES: usize = 1024;
const NODES: usize = 5000;
/// Keys in the work queue.
const KEYS: u64 = 1_000_000;
/// Calls whose allocations are counted, after as many that are not.
const COUNTED: u64 = 1000;
const BASELINE: &str = "copy 1 KiB";

/// Runner of benchmarks that records the fastest sample of each, and its allocations.
struct Micro {
    criterion: Criterion,
    rows: Vec<Row>,
}

/// Figures of one benchmark.
struct Row {
    name: &'static str,
    /// Fastest sample, in nanoseconds.
    fastest: f64,
    /// Allocations of [`COUNTED`] calls.
    allocations: AllocationInfo,
}

/// Events of a stream, read from a file as often as needed.
struct Lines {
    runtime: tokio::runtime::Runtime,
    path: StreamPath,
    watch: Option<Watch>,
    /// Number of events that the watch still has.
    left: usize,
}

fn main() {
    let criterion =
        Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    let mut micro = Micro { criterion: criterion.configure_from_args(), rows: Vec::new() };
    let pods: Vec<Arc<Object>> = (0..OBJECTS).map(|at| pod(at, 0)).collect();

    let mut copy = vec![0_u8; OBJECT_BYTES];
    micro.measure(BASELINE, || copy.copy_from_slice(black_box(pods[0].body())));
    reading(&mut micro, &pods);
    applying(&mut micro, &pods);
    selection(&mut micro, &pods);
    expressions(&mut micro, &pods);
    encoding(&mut micro, &pods);
    routing(&mut micro, &pods);
    queueing(&mut micro);

    micro.criterion.final_summary();
    micro.print();
}

fn reading(micro: &mut Micro, pods: &[Arc<Object>]) {
    let (json, version) = (pods[0].body(), ResourceVersion::decimal(1));
    micro.measure("reading: an object from JSON", || {
        Object::from_json(black_box(json), "unnamed", version.clone()).unwrap()
    });
    let path = Path::parse(".spec.nodeName").unwrap();
    micro.measure("reading: the value at a path", || path.values(black_box(json)));
    let path = Path::parse(".metadata.annotations.none").unwrap();
    micro.measure("reading: no value at a path", || path.values(black_box(json)));

    let mut file = tempfile::NamedTempFile::new().unwrap();
    for pod in pods.iter().chain(pods) {
        file.write_all(&[b"{\"type\":\"MODIFIED\",\"object\":", pod.body(), b"}\n"].concat()).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut lines = Lines { runtime, path: StreamPath::Path(file.path().to_owned()), watch: None, left: 0 };
    micro.measure("reading: an event of a stream, from a file", || lines.next(2 * pods.len()));
}

/// Measures changes of objects in the cache, each while a snapshot of the previous state is held, as when clients read.
fn applying(micro: &mut Micro, pods: &[Arc<Object>]) {
    let path = |text| IndexFunc::Path(Path::parse(text).unwrap());
    let one = || {
        Indexers::new([
            ("app".to_owned(), IndexFunc::Label("app".to_owned())),
            ("node".to_owned(), path(".spec.nodeName")),
        ])
    };
    let four = one().unwrap().with([
        ("image".to_owned(), path(".spec.containers[*].image")),
        ("phase".to_owned(), path(".status.phase")),
        ("ready".to_owned(), path(".status.conditions[0].status")),
    ]);
    let changed: Vec<Arc<Object>> =
        pods.iter().map(|pod| Arc::new(pod.at_version(ResourceVersion::decimal(2)))).collect();
    let moved: Vec<Arc<Object>> = (0..OBJECTS).map(|at| pod(at, 1)).collect();
    for (name, indexers, changed) in [
        ("cache: a change, without an index", Ok(Indexers::default()), &changed),
        ("cache: a change, its index values the same", one(), &changed),
        ("cache: a change, with another value of an index", one(), &moved),
        ("cache: a change, the values of four paths the same", four, &changed),
    ] {
        let list = List::new(pods.to_vec(), ResourceVersion::decimal(1));
        let mut indexer = Indexer::new(Arc::new(indexers.unwrap()), list);
        let mut held = indexer.snapshot();
        let mut states = [&changed[..], pods].into_iter().cycle().flatten();
        micro.measure(name, || {
            let batch = indexer.apply(Event::Modified(Arc::clone(states.next().unwrap())));
            held = indexer.snapshot();
            (batch, held.version().clone())
        });
    }
    let indexer = Indexer::new(Arc::default(), List::new(pods.to_vec(), ResourceVersion::decimal(1)));
    micro.measure("cache: a snapshot", || indexer.snapshot());
}

fn selection(micro: &mut Micro, pods: &[Arc<Object>]) {
    let labels = LabelSelector::parse("app=app-3,tier in (front,back),!canary").unwrap();
    let fields = FieldSelector::parse("spec.nodeName=node-3,status.phase!=Failed").unwrap();
    let by_labels = Selection { labels, ..Selection::default() };
    let by_fields = Selection { fields, ..Selection::default() };
    for (name, selection) in [
        ("selection: three labels", by_labels),
        ("selection: two fields", by_fields),
        ("selection: a value of an index", of_node(3)),
    ] {
        let mut pods = pods.iter().cycle();
        micro.measure(name, || selection.matches(pods.next().unwrap()));
    }
}

fn expressions(micro: &mut Micro, pods: &[Arc<Object>]) {
    if !Expression::IS_SUPPORTED {
        return;
    }
    let small = "object.spec.nodeName == 'node-3'";
    let medium = "object.spec.containers.exists(c, c.image.startsWith('registry.example.com/') && c.name != 'proxy')";
    let large = [
        "object.status.phase == 'Running' && object.metadata.labels['tier'] in ['front', 'back']",
        "object.spec.containers.all(c, c.ports.exists(p, p.containerPort >= 80 && p.containerPort < 65536))",
        "object.spec.containers.map(c, c.image.size()).filter(n, n > 20).size() == object.spec.containers.size()",
        "(has(object.spec.nodeSelector) || object.spec.containers.exists_one(c, c.name.contains('proxy')))",
    ];
    let large = large.join(" && ");
    for (text, of_new, of_known) in [
        (small, "expression: small, of a new object", "expression: small, of one seen before"),
        (medium, "expression: medium, of a new object", "expression: medium, of one seen before"),
        (&large, "expression: large, of a new object", "expression: large, of one seen before"),
    ] {
        let expression = Expression::parse(text).unwrap();
        // More objects than a thread caches index values of.
        let mut pods = pods.iter().cycle();
        micro.measure(of_new, || expression.matches(pods.next().unwrap()));
        let pod = pods.next().unwrap();
        micro.measure(of_known, || expression.matches(pod));
        assert_eq!(expression.errors(), 0, "{text}");
    }
}

fn encoding(micro: &mut Micro, pods: &[Arc<Object>]) {
    for (name, format) in [
        ("encoding: a frame, RAW", PayloadFormat::Raw),
        ("encoding: a frame, STRUCT", PayloadFormat::Struct),
        ("encoding: a frame, METADATA", PayloadFormat::Metadata),
    ] {
        let (mut pods, mut arena) = (pods.iter().cycle(), WireArena::default());
        micro.measure(name, || {
            let object = pods.next().unwrap();
            let notice = GroupEvent {
                event_type: EventType::Modified,
                cause: Cause::Change,
                object,
                previous: None,
                object_version: object.version(),
                version: object.version(),
                coalesced: 0,
                relisted: false,
                open: false,
            };
            WireFrame::encode(&mut arena, &format.into(), &notice);
            if WireFrame::size(&arena) > 64 << 10 {
                drop(WireFrame::freeze(std::mem::take(&mut arena)));
            }
        });
    }
}

/// Measures changes that are applied, published in a cycle of one event, and taken by one client.
fn routing(micro: &mut Micro, pods: &[Arc<Object>]) {
    let by_label = |node| {
        let labels = LabelSelector::parse(&format!("node=node-{node}")).unwrap();
        Selection { labels, ..Selection::default() }
    };
    measure_cycles(micro, "cycle: a change to the only group", pods, (0..1).map(of_node));
    measure_cycles(micro, "cycle: a change to one of 5,000 groups, by an index", pods, (0..NODES).map(of_node));
    measure_cycles(micro, "cycle: a change to one of 5,000 groups, by a label", pods, (0..NODES).map(by_label));
}

fn measure_cycles(
    micro: &mut Micro,
    name: &'static str,
    pods: &[Arc<Object>],
    selections: impl ExactSizeIterator<Item = Selection>,
) {
    let first = ResourceVersion::decimal(1);
    let mut broadcaster = Broadcaster::<WireFrame>::new(BroadcasterConfig::default(), first.clone());
    let groups = selections.len();
    let mut cursors: Vec<Cursor<WireFrame>> = selections
        .map(|selection| {
            broadcaster.subscribe(Subscribe {
                selection: Arc::new(selection),
                format: PayloadFormat::Raw.into(),
                queue: QueueOptions { policy: FullChannelPolicy::Replay, length: 1024 },
                client: Client::Watch,
                initial_events: false,
            })
        })
        .collect();
    let indexers = Indexers::new([("node".to_owned(), by_node())]).unwrap();
    let mut indexer = Indexer::new(Arc::new(indexers), List::new(pods.to_vec(), first));
    let mut held = indexer.snapshot();
    let pods: Vec<_> = (0..OBJECTS).filter(|at| at % NODES < groups).map(|at| (at % NODES, &pods[at])).collect();
    let (mut pods, mut version) = (pods.into_iter().cycle(), 1);
    let mut context = Context::from_waker(Waker::noop());
    micro.measure(name, || {
        let (node, pod) = pods.next().unwrap();
        version += 1;
        let changed = Arc::new(pod.at_version(ResourceVersion::decimal(version)));
        let batch = Arc::new(indexer.apply(Event::Modified(changed)));
        held = indexer.snapshot();
        broadcaster.publish(&[batch]);
        let taken = cursors[node].poll_take(&mut context, usize::MAX);
        assert!(matches!(taken, Poll::Ready(Taken::Frames(_))), "{taken:?}");
    });
    assert_eq!(held.len(), OBJECTS);
}

fn by_node() -> IndexFunc {
    IndexFunc::Path(Path::parse(".spec.nodeName").unwrap())
}

fn of_node(node: usize) -> Selection {
    let index = IndexMatch { name: "node".to_owned(), func: by_node(), values: [format!("node-{node}")].into() };
    Selection { index: Some(index), ..Selection::default() }
}

/// Returns one of many pods; `moved` shifts it by that many nodes.
fn pod(at: usize, moved: usize) -> Arc<Object> {
    let (node, app) = ((at + moved) % NODES, at % 100);
    let json = |filler: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"shop","name":"pod-{at}","uid":"uid-{at}","labels":{{"app":"app-{app}","tier":"front","node":"node-{node}"}},"annotations":{{"filler":"{filler}"}}}},"spec":{{"nodeName":"node-{node}","containers":[{{"name":"main","image":"registry.example.com/shop/app-{app}:1.27","ports":[{{"containerPort":8080,"protocol":"TCP"}}],"resources":{{"requests":{{"cpu":"100m","memory":"128Mi"}}}}}},{{"name":"proxy","image":"docker.io/envoyproxy/envoy:v1.36.2","ports":[{{"containerPort":15001}}]}}]}},"status":{{"phase":"Running","podIP":"10.0.0.1","conditions":[{{"type":"Ready","status":"True"}}]}}}}"#
        )
    };
    let body = json(&"x".repeat(OBJECT_BYTES - json("").len()));
    Arc::new(Object::from_json(Bytes::from(body), "unnamed", ResourceVersion::decimal(1 + 2 * moved as u128)).unwrap())
}

// === impl Lines ===

impl Lines {
    /// Returns the next event; the file has `count`.
    fn next(&mut self, count: usize) -> Delta {
        let Self { runtime, path, watch, left } = self;
        if *left == 0 {
            *left = count;
            let source = StreamSource::new(
                StreamConfig::new(path.clone(), "micro"),
                SourceHealth::new(Duration::MAX, Duration::MAX),
            );
            let opened = async { source.watch(source.list(ListVersion::Any).await?.version).await };
            *watch = Some(runtime.block_on(opened).unwrap());
        }
        *left -= 1;
        runtime.block_on(watch.as_mut().unwrap().next()).unwrap().unwrap()
    }
}

/// Measures a work queue of a million keys beside what it could not do without: a set of the keys, and a list of their order.
fn queueing(micro: &mut Micro) {
    let keys =
        || (0..KEYS).map(|at| ObjectKey::new(&format!("namespace-{}", at % 1000), &format!("name-{at}")).unwrap());
    let of_keys = allocation_counter::measure(|| drop(black_box(keys().collect::<Vec<_>>()))).bytes_max;
    let mut queue = WorkQueue::default();
    let add = |queue: &WorkQueue<ObjectKey>, key| queue.try_add(key, AddOptions::default()).unwrap();
    let of_queue = allocation_counter::measure(|| {
        queue = WorkQueue::default();
        keys().for_each(|key| add(&queue, key));
    });
    let (mut set, mut order) = (HashSet::new(), VecDeque::new());
    let of_both = allocation_counter::measure(|| {
        for key in keys() {
            set.insert(key.clone());
            order.push_back(key);
        }
    });
    let each = |bytes: u64| bytes.saturating_sub(of_keys) / KEYS;
    println!(
        "a key of a million: {} bytes in a WorkQueue, {} in a HashSet and a VecDeque, beside {} of its own",
        each(of_queue.bytes_max),
        each(of_both.bytes_max),
        of_keys / KEYS,
    );
    micro.measure("queue: a key of a million: taken, done, added", || {
        let item = queue.get().now_or_never().unwrap().unwrap();
        let key = item.key().clone();
        item.done();
        add(&queue, key);
    });
    micro.measure("queue: the same in a HashSet and a VecDeque", || {
        let key = order.pop_front().unwrap();
        set.remove(&key);
        set.insert(key.clone());
        order.push_back(key);
    });
}

// === impl Micro ===

impl Micro {
    fn measure<T>(&mut self, name: &'static str, mut work: impl FnMut() -> T) {
        let mut fastest = f64::INFINITY;
        self.criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                let start = Instant::now();
                for _ in 0..iterations {
                    black_box(work());
                }
                let took = start.elapsed();
                fastest = fastest.min(took.as_nanos() as f64 / iterations as f64);
                took
            });
        });
        // Benchmarks that the filter left out have not run.
        if fastest.is_finite() {
            let mut calls = || (0..COUNTED).for_each(|_| drop(black_box(work())));
            calls();
            self.rows.push(Row { name, fastest, allocations: allocation_counter::measure(calls) });
        }
    }

    fn print(&self) {
        let baseline = self.rows.iter().find(|row| row.name == BASELINE).map(|row| row.fastest);
        for Row { name, fastest, allocations } in &self.rows {
            let ratio = baseline.map(|baseline| format!("{:>9.1} x", fastest / baseline)).unwrap_or_default();
            let each = |count: u64| count as f64 / COUNTED as f64;
            let (count, bytes) = (each(allocations.count_total), each(allocations.bytes_total));
            println!("{name:<54} {fastest:>8.0} ns {ratio} {count:>7.1} allocations {bytes:>7.0} bytes");
        }
    }
}
