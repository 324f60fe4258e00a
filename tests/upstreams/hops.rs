//! Clients that move between two replicas and a chain of three relays, over one etcd, and resume at each.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use informerd::proto::pb::{self, informer_service_client::InformerServiceClient};
use tokio::task::JoinSet;
use tonic::{Status, transport::Channel};
use tonic_types::StatusExt;

use crate::{
    DEADLINE,
    etcd::{Etcd, Version},
    faults::write,
    follow::{Followed, Follower},
    selection::Selection,
    served::{Served, counter},
    truth::Truth,
};

const CLIENTS: u64 = 200;
/// Length of the test; `INFORMERD_HOPS_SECONDS` overrides it, for minutes.
const SECONDS: u64 = 10;
/// Pause between two transactions: some hundred events a second for each client.
const PACE: Duration = Duration::from_millis(25);

/// Client, and the sum of its streams.
pub(crate) struct SwitchingClient {
    servers: Vec<InformerServiceClient<Channel>>,
    shared: Arc<Shared>,
    followed: Followed,
    /// Version up to which nothing is missing; none before the initial events are complete.
    position: Option<i64>,
    /// Events of an open batch: a client that leaves discards them, and receives them again.
    open: Vec<pb::WatchResponse>,
    /// Number of events in the open batch when the client left.
    cut: u64,
    random: u64,
}

/// State shared by the test and its clients.
#[derive(Default)]
pub(crate) struct Shared {
    /// Last revision, once it has been written.
    pub(crate) last: AtomicI64,
    pub(crate) hops: AtomicU64,
    cut_batches: AtomicU64,
    broken: AtomicU64,
}

/// Checks that each client's joined streams are the history, each change once, and that etcd and every upstream serve one stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_switch_between_replicas_and_relays_and_miss_nothing() {
    let seconds = env::var("INFORMERD_HOPS_SECONDS").map_or(SECONDS, |text| text.parse().expect("a number of seconds"));
    let etcd = Etcd::start(Version::Latest).await;
    let (mut driver, mut truth) = (etcd.driver(), Truth::new(seconds));
    write(&mut truth, &mut driver, 20);
    let mut servers = vec![Served::start(&etcd, None).await, Served::start(&etcd, None).await];
    for upstream in [1, 2, 3] {
        servers.push(Served::relay(&servers[upstream]).await);
    }
    let (shared, mut clients) = (Arc::new(Shared::default()), JoinSet::new());
    let mut connections = Vec::new();
    for server in &servers {
        // The history begins with the first list: no client may have a version from before it.
        Follower::start(server.client().await, "").await;
        connections.push(server.client().await);
    }
    for seed in 1..=CLIENTS {
        let hopper = SwitchingClient::new(&connections, &shared, Selection::default(), seed * 7919 + seconds);
        clients.spawn(hopper.run());
    }
    let clock = tokio::runtime::Handle::current();
    let writing = tokio::task::spawn_blocking(move || {
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            truth.write(&mut driver);
            clock.block_on(tokio::time::sleep(PACE));
        }
        truth
    });
    // The clients' own connections stay; those of the relays are cut, one after the other.
    let mut cuts = 0;
    while !writing.is_finished() {
        tokio::time::sleep(Duration::from_millis(700)).await;
        servers[2 + cuts % 3].cut();
        cuts += 1;
    }
    let truth = writing.await.unwrap();
    shared.last.store(truth.revision(), Ordering::SeqCst);
    let mut events = 0;
    while let Some(followed) = tokio::time::timeout(DEADLINE, clients.join_next()).await.expect("all get there in time")
    {
        let followed = followed.unwrap();
        events += followed.told.len();
        truth.check(&followed, true);
    }

    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    let (hops, cut_batches, broken) = (count(&shared.hops), count(&shared.cut_batches), count(&shared.broken));
    println!(
        "{CLIENTS} clients, {hops} hops, {events} events, {cut_batches} batches left open, {broken} streams broken, \
         {cuts} cuts of relays, up to revision {}, in {seconds} s",
        truth.revision()
    );
    assert!(hops > CLIENTS * 10 && cut_batches > 0 && cuts > 9, "it was about something");
    let started = "grpc_server_started_total grpc_method=";
    let lists = counter(etcd.address(), &format!("{started}\"Range\"")).await;
    let watches = counter(etcd.address(), &format!("{started}\"Watch\"")).await;
    let ranges = counter(etcd.address(), "etcd_debugging_mvcc_watcher_total").await;
    assert_eq!((lists, watches, ranges), (2, 2, 2), "one list and one watch of each replica");
    for (at, server) in servers.iter().enumerate() {
        assert_eq!(server.count("reflector_lists_total").await, 1, "server {at}");
        assert_eq!(server.count("cache_rewinds_total").await, 0, "server {at}");
    }
    // One stream from each relay, and no other.
    drop(connections);
    for (at, streams) in [0, 1, 1, 1, 0].into_iter().enumerate() {
        let waited = Instant::now();
        while servers[at].count("watchers").await != streams {
            assert!(waited.elapsed() < DEADLINE, "server {at} has other streams than that of its relay");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Returns the version of the change of a message.
fn changed_at(message: &pb::WatchResponse) -> Option<i64> {
    Some(message.object.as_ref()?.resource_version.parse().unwrap())
}

// === impl SwitchingClient ===

impl SwitchingClient {
    /// Creates a client of one selection, which uses any of some servers.
    pub(crate) fn new(
        servers: &[InformerServiceClient<Channel>],
        shared: &Arc<Shared>,
        selection: Selection,
        seed: u64,
    ) -> Self {
        let followed = Followed { selection, ..Followed::default() };
        let (servers, shared) = (servers.to_vec(), Arc::clone(shared));
        Self { servers, shared, followed, position: None, open: Vec::new(), cut: 0, random: seed }
    }

    /// Runs until it has received everything.
    pub(crate) async fn run(mut self) -> Followed {
        let mut server = self.below(self.servers.len() as u64) as usize;
        loop {
            let last = self.shared.last.load(Ordering::SeqCst);
            if last > 0 && self.position >= Some(last) {
                return self.followed;
            }
            if let Err(status) = self.stay(server).await {
                // Not by informerd: HTTP/2's own limits on streams that were reset end a connection now and then.
                assert!(status.get_details_error_info().is_none(), "{status}");
                self.shared.broken.fetch_add(1, Ordering::SeqCst);
            }
            self.shared.hops.fetch_add(1, Ordering::SeqCst);
            self.cut = self.open.len() as u64;
            self.shared.cut_batches.fetch_add(u64::from(self.cut > 0), Ordering::SeqCst);
            self.open.clear();
            server = self.below(self.servers.len() as u64) as usize;
        }
    }

    /// Reads one stream for a while.
    async fn stay(&mut self, server: usize) -> Result<(), Status> {
        let interval = if self.below(4) == 0 { 100_000_000 } else { 900_000_000 };
        let selection = self.followed.selection.clone();
        let mut request = selection.request.clone();
        request.bookmark_interval = Some(prost_types::Duration { seconds: 0, nanos: interval });
        match self.position {
            Some(position) => request.resource_version = position.to_string(),
            None => self.followed = Followed { selection, ..Followed::default() },
        }
        let opening = self.servers[server].watch(request);
        let mut stream = tokio::time::timeout(DEADLINE, opening).await.expect("an answer")?.into_inner();
        let stay = Duration::from_millis(10 + self.below(700));
        let leaves_at = tokio::time::Instant::now() + stay;
        // The server repeats an open batch: a client must read more than the last time to get all of a large one.
        let mut messages = 1 + self.below(60) + self.cut;
        // The client stays until the initial events are complete: there is one list.
        while self.position.is_none() || messages > 0 {
            let leaves = async {
                match self.position {
                    Some(_) => tokio::time::sleep_until(leaves_at).await,
                    None => std::future::pending().await,
                }
            };
            let message = tokio::select! {
                message = stream.message() => message?,
                () = leaves => return Ok(()),
            };
            self.take(message.expect("no end without a status"));
            messages = messages.saturating_sub(1);
        }
        Ok(())
    }

    fn take(&mut self, message: pb::WatchResponse) {
        let Ok(version) = message.resource_version.parse::<i64>() else {
            // An initial event.
            return self.followed.take(message);
        };
        let position = self.position.replace(version).unwrap_or_default();
        assert!(version >= position, "{message:?} after {position}");
        // Each deletion of an API server is a batch of its own, so that the next one may be open when this is complete.
        for told in self.open.extract_if(.., |told| changed_at(told) <= Some(version)) {
            self.followed.take(told);
        }
        let changed_at = changed_at(&message);
        assert!(changed_at.is_none_or(|at| at > position), "{message:?}, and nothing was missing up to {position}");
        if changed_at > Some(version) {
            return self.open.push(message);
        }
        self.followed.take(message);
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % bound
    }
}
