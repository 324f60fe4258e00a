//! Cost of one event, stage by stage, with objects of 1 KiB.
//!
//! ```sh
//! cargo bench --bench micro            # or: cargo bench --bench micro -- selection
//! ```
//!
//! Criterion reports the changes since the last run. The summary at the end has the fastest sample of each benchmark, beside that
//! of copying 1 KiB in the same run: absolute times are valid for one machine only.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "the figures; and a run that cannot go on has failed")]

use std::{
    hint::black_box,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use bytes::Bytes;
use criterion::Criterion;
use informerd::{
    cache::{Indexer, List},
    grpc::{WireArena, WireFrame},
    model::{
        Batch, Cause, Change, Event, EventType, Expression, FieldSelector, IndexFunc, IndexMatch, Indexers,
        LabelSelector, Object, Path, ResourceVersion, Selection,
    },
    proto::PayloadFormat,
    watch::{
        Broadcaster, BroadcasterConfig, Client, Cursor, Frame, FullChannelPolicy, GroupEvent, QueueOptions, Subscribe,
        Taken,
    },
};

const OBJECTS: usize = 10_000;
const OBJECT_BYTES: usize = 1024;
const NODES: usize = 5000;
const BASELINE: &str = "copy 1 KiB";

/// Runner of benchmarks that records the fastest sample of each.
struct Micro {
    criterion: Criterion,
    /// Fastest samples, in nanoseconds.
    fastest: Vec<(&'static str, f64)>,
}

fn main() {
    let criterion =
        Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    let mut micro = Micro { criterion: criterion.configure_from_args(), fastest: Vec::new() };
    let pods: Vec<Arc<Object>> = (0..OBJECTS).map(|at| pod(at, 0)).collect();

    let mut copy = vec![0_u8; OBJECT_BYTES];
    micro.measure(BASELINE, || copy.copy_from_slice(black_box(pods[0].body())));
    ingest(&mut micro, &pods);
    selection(&mut micro, &pods);
    expressions(&mut micro, &pods);
    encoding(&mut micro, &pods);
    routing(&mut micro, &pods);

    micro.criterion.final_summary();
    micro.print();
}

fn ingest(micro: &mut Micro, pods: &[Arc<Object>]) {
    let (json, version) = (pods[0].body(), ResourceVersion::decimal(1));
    micro.measure("ingest: an object from JSON", || {
        Object::from_json(black_box(json), "unnamed", version.clone()).unwrap()
    });

    let path = |text| IndexFunc::Path(Path::parse(text).unwrap());
    let indexers = Indexers::new([
        ("app".to_owned(), IndexFunc::Label("app".to_owned())),
        ("node".to_owned(), path(".spec.nodeName")),
    ]);
    let list = List::new(pods.to_vec(), version);
    let mut indexer = Indexer::new(Arc::new(indexers.unwrap()), list);
    micro.measure("cache: a snapshot", || indexer.snapshot());

    // Each change is made while a snapshot of the previous state is held, as when clients read.
    let mut held = indexer.snapshot();
    let mut apply = |event: Event| {
        let batch = indexer.apply(event);
        held = indexer.snapshot();
        (batch, held.version().clone())
    };
    let changed: Vec<Arc<Object>> =
        pods.iter().map(|pod| Arc::new(pod.at_version(ResourceVersion::decimal(2)))).collect();
    let mut states = [&changed[..], pods].into_iter().cycle().flatten();
    micro.measure("cache: a change, its index values the same", || {
        apply(Event::Modified(Arc::clone(states.next().unwrap())))
    });
    let moved: Vec<Arc<Object>> = (0..OBJECTS).map(|at| pod(at, 1)).collect();
    let mut states = [&moved[..], pods].into_iter().cycle().flatten();
    micro.measure("cache: a change, with another value of an index", || {
        apply(Event::Modified(Arc::clone(states.next().unwrap())))
    });
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

/// Measures a publish cycle of one event, which one client takes.
fn routing(micro: &mut Micro, pods: &[Arc<Object>]) {
    let by_label = |node| {
        let labels = LabelSelector::parse(&format!("node=node-{node}")).unwrap();
        Selection { labels, ..Selection::default() }
    };
    measure_cycles(micro, "routing: to the only group", pods, (0..1).map(of_node));
    measure_cycles(micro, "routing: to one of 5,000 groups, by an index", pods, (0..NODES).map(of_node));
    measure_cycles(micro, "routing: to one of 5,000 groups, by asking each", pods, (0..NODES).map(by_label));
}

fn measure_cycles(
    micro: &mut Micro,
    name: &'static str,
    pods: &[Arc<Object>],
    selections: impl ExactSizeIterator<Item = Selection>,
) {
    let mut version = 1;
    let mut broadcaster =
        Broadcaster::<WireFrame>::new(BroadcasterConfig::default(), ResourceVersion::decimal(version));
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
    let pods: Vec<_> = (0..OBJECTS).filter(|at| at % NODES < groups).map(|at| (at % NODES, &pods[at])).collect();
    let mut pods = pods.into_iter().cycle();
    let mut context = Context::from_waker(Waker::noop());
    micro.measure(name, || {
        let (node, pod) = pods.next().unwrap();
        let before = ResourceVersion::decimal(version);
        version += 1;
        let after = ResourceVersion::decimal(version);
        let change = Change {
            old: Some(Arc::clone(pod)),
            new: Some(Arc::clone(pod)),
            version: after.clone(),
            cause: Cause::Change,
            index_values: None,
        };
        broadcaster.publish(&[Batch { before, after, changes: vec![change], is_relist: false, is_open: false }]);
        let taken = cursors[node].poll_take(&mut context, usize::MAX);
        assert!(matches!(taken, Poll::Ready(Taken::Frames(_))), "{taken:?}");
    });
}

fn of_node(node: usize) -> Selection {
    let func = IndexFunc::Path(Path::parse(".spec.nodeName").unwrap());
    let index = IndexMatch { name: "node".to_owned(), func, values: [format!("node-{node}")].into() };
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
            self.fastest.push((name, fastest));
        }
    }

    fn print(&self) {
        let baseline = self.fastest.iter().find(|(name, _)| *name == BASELINE).map(|(_, baseline)| *baseline);
        for (name, nanoseconds) in &self.fastest {
            let ratio = baseline.map(|baseline| format!("{:>9.1} x", nanoseconds / baseline)).unwrap_or_default();
            println!("{name:<50} {nanoseconds:>10.0} ns {ratio}");
        }
    }
}
