//! Changes of the rights of open watches. Whatever the policy, the changes of the objects and the pace of the client: its fold is
//! that of its present namespaces at each complete bookmark, it receives nothing of others, and it can resume in no state between.

mod reader;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{Extensions, HeaderMap};
use proptest::{collection::vec, prelude::*, sample::select};
use tonic::Status;
use tonic_types::StatusExt;

use self::reader::Reader;
use super::{access, body::WatchBody, open_with};
use crate::{
    cache::{Delta, FifoBounds, Informer, InformerConfig, List, RealFifo, SourceHealth},
    grpc::{
        Lifecycle, ResourceCalls, ResourceViews, RpcMetrics, ServedResource, Service, ServiceConfig, call::Call,
        status::ApiError, watchers::WatchAccess,
    },
    model::{Event, Namespaces, Object, ObjectKey, ResourceVersion},
    proto::pb,
    transport::{BoundedBody, BoundedFrame, Exceeded, Room},
    watch::{BroadcasterConfig, FullChannelPolicy, QueueOptions, Retention},
};

/// Number of a namespace, of a name and of a label; without a label the object is deleted.
type Put = (usize, usize, Option<usize>);

#[derive(Debug, Clone)]
enum Op {
    /// One transaction.
    Change(Vec<Put>),
    /// Changes at a version that stays open.
    Open(Put),
    /// A list with these changes, which the watch has missed.
    Relist(Vec<Put>),
    /// A new watch: selection, policy, length of the queue, and namespaces.
    Watch(usize, FullChannelPolicy, usize, Option<usize>),
    /// The watch at this index may read other namespaces: the bits of a number, or all.
    Access(usize, Option<usize>),
    Revoke(usize),
    /// Up to so many polls of the watch at this index, with this much room.
    Read(usize, usize, Room),
    /// A new watch with the present rights continues where the watch at this index was, if that has a version.
    Resume(usize),
    Settle,
    /// Time passes: budgets are spent, and bookmarks are due.
    Wait,
}

const NAMESPACES: [&str; 4] = ["", "a", "a-b", "c"];
const NAMES: [&str; 2] = ["x", "y"];
const APPS: [&str; 2] = ["web", "db"];
const EVERY_ROOM: Room = Room { bytes: usize::MAX, is_strict: false };

fn any_op() -> impl Strategy<Value = Op> {
    use FullChannelPolicy::{Block, Coalesce, Drop, Replay};
    let put = || (0..NAMESPACES.len(), 0..NAMES.len(), proptest::option::weighted(0.7, 0..APPS.len()));
    let room = (select(vec![0_usize, 150, 300, 1000, 100_000]), any::<bool>())
        .prop_map(|(bytes, is_strict)| Room { bytes, is_strict });
    // An empty set is no right at all.
    let access = |share| proptest::option::weighted(share, 1_usize..1 << NAMESPACES.len());
    prop_oneof![
        12 => vec(put(), 1..4).prop_map(Op::Change),
        2 => put().prop_map(Op::Open),
        1 => vec(put(), 0..4).prop_map(Op::Relist),
        4 => (0..3_usize, select(vec![Block, Coalesce, Drop, Replay]), 0_usize..5, access(0.5))
            .prop_map(|(selection, policy, length, access)| Op::Watch(selection, policy, length, access)),
        6 => (0..6_usize, access(0.8)).prop_map(|(at, access)| Op::Access(at, access)),
        1 => (0..6_usize).prop_map(Op::Revoke),
        16 => (0..6_usize, select(vec![1_usize, 2, 5, 100]), room)
            .prop_map(|(at, polls, room)| Op::Read(at, polls, room)),
        2 => (0..6_usize).prop_map(Op::Resume),
        8 => Just(Op::Settle),
        1 => Just(Op::Wait),
    ]
}

fn set(bits: Option<usize>) -> Option<Namespaces> {
    let chosen = |bits: usize| (0..NAMESPACES.len()).filter(move |at| bits >> at & 1 == 1).map(|at| NAMESPACES[at]);
    bits.map(|bits| chosen(bits).collect())
}

fn is_selected(selection: usize, object: &Object) -> bool {
    match selection {
        0 => true,
        1 => object.labels().get("app") == Some("web"),
        _ => object.key().name() == "x",
    }
}

/// Upstream, the server, and its watches.
pub(in crate::grpc) struct World {
    fifo: Arc<RealFifo>,
    service: Service,
    resource: Arc<ServedResource>,
    health: SourceHealth,
    is_history_long: bool,
    number: u128,
    objects: BTreeMap<(usize, usize), Arc<Object>>,
    readers: Vec<Reader>,
}

// === impl World ===

impl World {
    fn new(retained: usize, history: usize) -> Self {
        Self::with(retained, history, |_| {})
    }

    fn with(retained: usize, history: usize, configure: impl FnOnce(&mut ServiceConfig)) -> Self {
        let retention = Retention { events: retained, age: Duration::MAX, ..BroadcasterConfig::default().retention };
        let broadcaster = BroadcasterConfig { retention, ..BroadcasterConfig::default() };
        let config = InformerConfig {
            broadcaster,
            history: Retention { events: history, ..retention },
            ..InformerConfig::default()
        };
        let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
        let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(5));
        let (informer, handle) = Informer::new(Arc::clone(&fifo), health.clone(), config);
        tokio::spawn(informer.run());
        let resource = ServedResource {
            name: "pods".to_owned(),
            source: "test",
            optional: false,
            is_secret: false,
            queue: QueueOptions { policy: FullChannelPolicy::Replay, length: 10 },
            views: ResourceViews::default(),
            calls: ResourceCalls::default(),
            kubernetes: None,
            informer: handle,
        };
        let mut config = ServiceConfig {
            allowed_policies: vec![FullChannelPolicy::Replay],
            future_wait: Duration::from_secs(1),
            drain_period: Duration::from_secs(1),
            peer_share: 100,
            bulk_streams: 100,
            ..ServiceConfig::default()
        };
        configure(&mut config);
        let service = Service::new([resource], config, Lifecycle::default(), Arc::new(RpcMetrics::default()));
        let resource = service.resource("pods").unwrap();
        let (objects, readers) = (BTreeMap::new(), Vec::new());
        Self { fifo, service, resource, health, is_history_long: history > 1000, number: 1, objects, readers }
    }

    /// Returns a world with these objects.
    pub(in crate::grpc) async fn of(objects: Vec<Arc<Object>>, configure: impl FnOnce(&mut ServiceConfig)) -> Self {
        let world = Self::with(100, 100, configure);
        world.fifo.push(Delta::Replace(List::new(objects, ResourceVersion::decimal(world.number)))).await;
        Self::settle().await;
        world
    }

    pub(in crate::grpc) fn service(&self) -> &Service {
        &self.service
    }

    pub(in crate::grpc) fn health(&self) -> &SourceHealth {
        &self.health
    }

    /// Changes the upstream, in one transaction or in a list, and lets the server apply that.
    pub(in crate::grpc) async fn put(&mut self, puts: &[Put], is_relist: bool) {
        self.apply(if is_relist { Op::Relist(puts.to_vec()) } else { Op::Change(puts.to_vec()) }).await;
        Self::settle().await;
    }

    /// Changes the upstream, and returns the events.
    fn change(&mut self, puts: &[Put]) -> Vec<Event> {
        let mut events = Vec::new();
        for &(namespace, name, app) in puts {
            self.number += 1;
            let version = ResourceVersion::decimal(self.number);
            let old = self.objects.remove(&(namespace, name));
            if let Some(app) = app {
                let key = ObjectKey::new(NAMESPACES[namespace], NAMES[name]).unwrap();
                let body = format!(r#"{{"kind":"Pod","metadata":{{"uid":"uid","labels":{{"app":"{}"}}}}}}"#, APPS[app]);
                let new = Arc::new(Object::from_json_of(key, "uid", Bytes::from(body), version).unwrap());
                self.objects.insert((namespace, name), Arc::clone(&new));
                events.push(Event::Modified(new));
            } else if let Some(old) = old {
                events.push(Event::Deleted(Arc::new(old.at_version(version))));
            }
        }
        events
    }

    fn list(&self) -> List {
        List::new(self.objects.values().cloned().collect(), ResourceVersion::decimal(self.number))
    }

    /// Opens a watch of everything, and reads what there is.
    pub(in crate::grpc) async fn live_watch(&mut self) -> WatchBody {
        self.watch(0, QueueOptions { policy: FullChannelPolicy::Replay, length: 10 }, None).await;
        self.drain().await;
        self.readers.pop().and_then(|reader| reader.body).unwrap()
    }

    /// Lets every task run until it waits.
    pub(in crate::grpc) async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    async fn watch(&mut self, selection: usize, queue: QueueOptions, namespaces: Option<Namespaces>) {
        self.open(selection, queue, namespaces, None).await;
    }

    /// Opens a watch, from the beginning or where another one was.
    async fn open(
        &mut self,
        selection: usize,
        queue: QueueOptions,
        namespaces: Option<Namespaces>,
        from: Option<Reader>,
    ) {
        let (label_selector, name) = match selection {
            0 => ("", ""),
            1 => ("app=web", ""),
            _ => ("", "x"),
        };
        let request = pb::WatchRequest {
            resource: "pods".to_owned(),
            label_selector: label_selector.to_owned(),
            name: name.to_owned(),
            format: pb::PayloadFormat::Raw.into(),
            resource_version: from.as_ref().map(|from| from.version.clone()).unwrap_or_default(),
            history: from.as_ref().map(|from| from.history.clone()).unwrap_or_default(),
            ..Default::default()
        };
        let call = Call::new(&HeaderMap::new(), &Extensions::new());
        let mut access = access(&self.service, &request, &call).await.unwrap();
        access.namespaces.clone_from(&namespaces);
        let has_state_of = |from: &Reader| !from.is_between && from.reported == namespaces;
        let body = match open_with(access, &request, queue, call).await {
            Ok(body) => {
                assert!(from.as_ref().is_none_or(has_state_of), "it would keep or lack objects");
                body
            }
            Err(ApiError::VersionExpired { .. }) if from.is_some() && !self.is_history_long => return,
            Err(ApiError::AccessChanged) if from.as_ref().is_some_and(|from| !has_state_of(from)) => return,
            Err(refusal) => panic!("{refusal:?}"),
        };
        let is_lenient = from.is_some();
        let (fold, is_synced, version, history) = match from {
            Some(Reader { fold, is_synced, version, history, .. }) => (fold, is_synced, version, history),
            None => Default::default(),
        };
        self.readers.push(Reader {
            id: body.id(),
            body: Some(body),
            selection,
            queue,
            reported: namespaces.clone(),
            namespaces,
            fold,
            version,
            history,
            is_synced,
            is_changing: false,
            is_between: false,
            is_idle: false,
            has_no_room: false,
            may_end: false,
            is_lenient,
            is_resuming: is_lenient,
            has_gap: false,
            is_revoked: false,
            must_end: false,
            end: None,
        });
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Change(puts) => {
                let events = self.change(&puts);
                if !events.is_empty() {
                    self.fifo.push(Delta::transaction(events)).await;
                }
            }
            Op::Open(put) => {
                let events = self.change(&[put]);
                if !events.is_empty() {
                    self.fifo.push(Delta::Changes { events: events.into_iter().collect(), closes: false }).await;
                }
            }
            Op::Relist(puts) => {
                self.change(&puts);
                self.number += 1;
                self.fifo.push(Delta::Replace(self.list())).await;
            }
            Op::Watch(selection, policy, length, bits) => {
                self.watch(selection, QueueOptions { policy, length }, set(bits)).await;
            }
            Op::Access(at, bits) => self.set_access(at, set(bits)).await,
            Op::Revoke(at) => {
                let Some(reader) = self.readers.get_mut(at) else { return };
                let refusal = ApiError::RequestTooLarge { limit: 7 };
                reader.is_revoked = true;
                self.service.watchers().set_access(reader.id, WatchAccess::Ended(refusal));
            }
            Op::Read(at, polls, room) => {
                for _ in 0..polls {
                    let Some(reader) = self.readers.get_mut(at) else { return };
                    if !reader.read(room) {
                        // Joining needs the informer.
                        Self::settle().await;
                        if !self.readers[at].read(room) {
                            break;
                        }
                    }
                }
            }
            Op::Resume(at) => {
                let has_version = |reader: &Reader| !reader.version.is_empty() && !reader.has_gap && !reader.is_revoked;
                if self.readers.get(at).is_some_and(has_version) {
                    let reader = self.readers.remove(at);
                    self.open(reader.selection, reader.queue, reader.namespaces.clone(), Some(reader)).await;
                }
            }
            Op::Settle => Self::settle().await,
            Op::Wait => tokio::time::advance(Duration::from_secs(60)).await,
        }
    }

    async fn set_access(&mut self, at: usize, namespaces: Option<Namespaces>) {
        let Some(reader) = self.readers.get_mut(at) else { return };
        let id = reader.id;
        if self.service.watchers().set_access(id, WatchAccess::Namespaces(namespaces.clone())) {
            assert!(reader.end.is_some() || reader.namespaces != namespaces && !reader.is_revoked);
            let may_be_merging = reader.queue.policy == FullChannelPolicy::Coalesce && !reader.is_idle;
            // A message that is encoded, and was not sent, is dropped.
            // A client that resumes may have a part of what it receives again.
            reader.may_end |= !reader.is_synced || reader.is_changing || may_be_merging || reader.has_no_room;
            reader.may_end |= reader.is_resuming;
            (reader.namespaces, reader.is_changing) = (namespaces, true);
            self.resource.informer.notify_watches().await;
        }
    }

    /// Reads everything that there is, of every watch.
    async fn drain(&mut self) {
        let mut quiet = 0;
        while quiet < 3 {
            Self::settle().await;
            let mut is_busy = false;
            for reader in &mut self.readers {
                is_busy |= reader.read(EVERY_ROOM);
            }
            quiet = if is_busy { 0 } else { quiet + 1 };
        }
    }

    /// Compares each fold with the store.
    async fn finish(mut self) {
        self.drain().await;
        // Closes the version that is open.
        self.apply(Op::Change(vec![(0, 0, Some(0))])).await;
        self.drain().await;
        let applied = self.resource.informer.snapshot().unwrap().version().clone();
        assert_eq!(applied, ResourceVersion::decimal(self.number), "nothing holds the informer back");
        for reader in &self.readers {
            let name = format!("{:?} {}", reader.queue.policy, reader.id);
            if let Some(end) = &reader.end {
                let is_possible = match end.as_str() {
                    "ACCESS_CHANGED" => reader.may_end || !self.is_history_long,
                    "RESOURCE_VERSION_EXPIRED" => !self.is_history_long,
                    "SLOW_CONSUMER" => reader.queue.policy == FullChannelPolicy::Block,
                    "REQUEST_INVALID" => reader.is_revoked,
                    _ => false,
                };
                assert!(is_possible, "{end} {name}");
                continue;
            }
            assert!(reader.is_synced && !reader.is_between && !reader.is_revoked, "{name}");
            let is_readable = |object: &&Arc<Object>| {
                let namespace = object.key().namespace();
                reader.namespaces.as_ref().is_none_or(|namespaces| namespaces.contains(namespace))
            };
            let selected = self.objects.values().filter(is_readable).filter(|o| is_selected(reader.selection, o));
            let selected: BTreeMap<_, _> = selected
                .map(|object| {
                    let key = object.key();
                    ((key.namespace().to_owned(), key.name().to_owned()), object.version().to_string())
                })
                .collect();
            assert!(reader.has_gap || reader.fold == selected, "{name}: {:?} {selected:?}", reader.fold);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..crate::property_config() })]

    #[test]
    fn the_fold_is_that_of_the_present_namespaces(
        ops in vec(any_op(), 1..100),
        retained in select(vec![1_usize, 5, 100_000]),
        history in select(vec![8_usize, 100_000]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::new(retained, history);
            world.fifo.push(Delta::Replace(world.list())).await;
            for op in ops {
                world.apply(op).await;
            }
            world.finish().await;
        });
    }
}

/// The notification would not wake a watch that has seen it, and waits now.
#[tokio::test(start_paused = true)]
async fn a_change_of_rights_after_a_poll_has_looked_for_one_is_found_by_it() {
    for refusal in [None, Some(ApiError::RequestTooLarge { limit: 7 })] {
        let mut world = World::new(100, 100);
        world.change(&[(1, 0, Some(0)), (2, 0, Some(0))]);
        world.fifo.push(Delta::Replace(world.list())).await;
        world.watch(0, QueueOptions { policy: FullChannelPolicy::Replay, length: 10 }, None).await;
        world.drain().await;
        let Reader { id, body, .. } = world.readers.last_mut().unwrap();
        let body = body.as_mut().unwrap();
        let access = refusal.map_or(WatchAccess::Namespaces(set(Some(2))), WatchAccess::Ended);
        assert!(world.service.watchers().set_access(*id, access));
        world.resource.informer.notify_watches().await;
        World::settle().await;
        let polled = body.poll_next_frame(&mut Context::from_waker(Waker::noop()), EVERY_ROOM);
        assert!(matches!(polled, Poll::Ready(Some(Ok(BoundedFrame::Frame(_))))), "{polled:?}");
    }
}

/// It has only its last message to send.
#[tokio::test(start_paused = true)]
async fn a_watch_that_has_ended_holds_nobody_back() {
    let mut world = World::new(100, 100);
    world.fifo.push(Delta::Replace(world.list())).await;
    world.watch(0, QueueOptions { policy: FullChannelPolicy::Block, length: 1 }, None).await;
    world.drain().await;
    world.put(&[(1, 0, Some(0))], false).await;
    world.drain().await;
    for ends in 0..2 {
        world.put(&[(1, 0, Some(1))], false).await;
        world.put(&[(1, 0, Some(0))], false).await;
        let applied = world.resource.informer.snapshot().unwrap().version().clone();
        assert_eq!(applied == ResourceVersion::decimal(world.number), ends == 1, "{applied}");
        world.readers[0].body.as_mut().unwrap().refuse(&ApiError::Draining);
        World::settle().await;
    }
}

/// Under each policy, and with changes that the client has not received yet.
#[tokio::test(start_paused = true)]
async fn namespaces_leave_and_enter_at_the_version_of_the_client() {
    let mut world = World::new(100_000, 100_000);
    world.change(&[(1, 0, Some(0)), (2, 0, Some(0)), (3, 0, Some(0)), (3, 1, Some(0))]);
    world.fifo.push(Delta::Replace(world.list())).await;
    for policy in
        [FullChannelPolicy::Block, FullChannelPolicy::Coalesce, FullChannelPolicy::Drop, FullChannelPolicy::Replay]
    {
        world.watch(0, QueueOptions { policy, length: 10 }, None).await;
    }
    world.drain().await;
    let names = |reader: &Reader| reader.fold.keys().map(|(namespace, _)| namespace.clone()).collect::<BTreeSet<_>>();
    for (bits, expected) in [(Some(2), vec!["a"]), (Some(12), vec!["a-b", "c"]), (None, vec!["a", "a-b", "c"])] {
        for at in 0..world.readers.len() {
            world.set_access(at, set(bits)).await;
        }
        world.apply(Op::Change(vec![(3, 1, Some(1)), (2, 1, Some(1)), (2, 1, None)])).await;
        world.drain().await;
        for reader in &world.readers {
            assert_eq!(names(reader).into_iter().collect::<Vec<_>>(), expected, "{:?}", reader.queue.policy);
            assert_eq!((reader.end.as_deref(), reader.is_changing), (None, false), "{:?}", reader.queue.policy);
        }
    }
    // Initial events that are not complete are of no use.
    world.watch(0, QueueOptions { policy: FullChannelPolicy::Replay, length: 10 }, None).await;
    world.set_access(4, set(Some(2))).await;
    world.drain().await;
    assert_eq!(world.readers[4].end.as_deref(), Some("ACCESS_CHANGED"));
    assert!(world.readers[4].fold.is_empty());
    world.finish().await;
}

/// Its client would not learn of the relist before that version.
#[tokio::test(start_paused = true)]
async fn a_watch_ended_for_memory_names_no_version_of_a_bookmark_that_it_drops() {
    for (room, after) in [(EVERY_ROOM, Some("2")), (Room { bytes: 1, is_strict: true }, None)] {
        let mut world = World::of(Vec::new(), |_| ()).await;
        let mut body = world.live_watch().await;
        world.put(&[], true).await;
        tokio::time::advance(Duration::from_secs(60)).await;
        let polled = body.poll_bounded(&mut Context::from_waker(Waker::noop()), room);
        let Poll::Ready(Some(Ok(polled))) = polled else { panic!("the bookmark is due: {polled:?}") };
        assert_eq!(matches!(polled, BoundedFrame::Frame(_)), after.is_some(), "{polled:?}");
        let end = body.exhausted(usize::MAX, Exceeded::All(7));
        let details = Status::from_header_map(&end.trailers.unwrap()).unwrap().get_error_details();
        assert_eq!(details.error_info().unwrap().metadata.get("after").map(String::as_str), after);
    }
}

#[tokio::test(start_paused = true)]
async fn each_piece_of_initial_events_waits_for_a_turn() {
    let object = |n: usize| {
        let json = format!(r#"{{"metadata":{{"name":"o{n}"}},"x":"{}"}}"#, "x".repeat(40_000));
        Arc::new(Object::from_json(json, "", ResourceVersion::decimal(1)).unwrap())
    };
    let mut world = World::of((0..4).map(object).collect(), |config| config.bulk_streams = 1).await;
    tokio::spawn(world.service.clone().run());
    for _ in 0..2 {
        world.watch(0, QueueOptions { policy: FullChannelPolicy::Replay, length: 10 }, None).await;
    }
    for _ in 0..2 {
        assert!(!world.readers[0].read(EVERY_ROOM), "it waits for its turn");
        World::settle().await;
        assert!(world.readers[0].read(EVERY_ROOM));
    }
}

#[tokio::test(start_paused = true)]
async fn a_state_of_the_source_that_changes_with_an_event_is_sent_after_it() {
    let mut world = World::of(Vec::new(), |_| ()).await;
    world.health.record_contact();
    world.watch(0, QueueOptions { policy: FullChannelPolicy::Replay, length: 10 }, None).await;
    world.drain().await;
    world.put(&[(1, 0, Some(0))], false).await;
    world.health.set_unconfirmed(true);
    world.resource.informer.notify_watches().await;
    World::settle().await;
    let [event, bookmark, more] = std::array::from_fn(|_| world.readers[0].read(EVERY_ROOM));
    assert!(event && bookmark && !more, "not at the interval: {event} {bookmark} {more}");
}
