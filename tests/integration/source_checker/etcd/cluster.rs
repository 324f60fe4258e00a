//! Scripted etcd cluster: its keys at every revision, and its API with the answers of etcd.
//!
//! Its rules are those of etcd's source: a watch from a revision below the compaction is cancelled with `compact_revision`;
//! progress is sent only on a stream whose watches have all received everything, and none of which begins after the head
//! (`progressIfSync`); a member without a leader cancels a watch that has the metadata `hasleader`; a read that the leader cannot
//! confirm times out; `raft_term` is that of the last entry that the member has applied.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{net::TcpListener, sync::watch};
use tokio_stream::{Stream, StreamExt};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};

use super::pb::{
    etcdserverpb::{
        AuthenticateRequest, AuthenticateResponse, RangeRequest, RangeResponse, RangeStreamResponse, ResponseHeader,
        StatusRequest, StatusResponse, WatchCreateRequest, WatchRequest, WatchResponse,
        auth_server::{Auth, AuthServer},
        kv_server::{Kv, KvServer},
        maintenance_server::{Maintenance, MaintenanceServer},
        watch_request::RequestUnion,
        watch_server::{Watch, WatchServer},
    },
    mvccpb::{Event, KeyValue, event::EventType},
};

/// Cluster; clones share it.
#[derive(Clone)]
pub(crate) struct Cluster {
    store: Arc<Mutex<Store>>,
    /// Index of the member that answers.
    member: usize,
    /// Raised with every change that a watch may have to send.
    changed: Arc<watch::Sender<u64>>,
}

/// Everything that has happened, and the faults of the API.
#[derive(Clone)]
pub(crate) struct Store {
    /// Transactions of the current history, by revision.
    transactions: Vec<(i64, Vec<Event>)>,
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    pub(crate) cluster_id: u64,
    pub(crate) raft_term: u64,
    /// Last revision that a lagging member has applied; its reads that need the leader time out, and its watches send nothing.
    pub(crate) lagging_at: Option<i64>,
    /// Index of the lagging member; `None` for all of them.
    pub(crate) lagging_member: Option<usize>,
    /// False if there is no leader: watches are cancelled, and reads fail.
    pub(crate) has_leader: bool,
    /// True if calls are accepted and never answered.
    pub(crate) hangs: bool,
    /// Errors of the next reads, each used once.
    pub(crate) refusals: Vec<Status>,
    /// Error of every read, while it is set.
    pub(crate) refusal: Option<Status>,
    /// Number of events in one message; more are sent in fragments.
    pub(crate) fragment: usize,
    /// Version of etcd. Below 3.4.31 and 3.5.13 progress may be sent ahead of events, and informerd does not request it.
    pub(crate) version: &'static str,
    /// Password of the user, and the current token.
    pub(crate) password: Option<String>,
    pub(crate) token: u64,
    /// Keys that were ever deleted.
    pub(crate) deleted: BTreeSet<Vec<u8>>,
    pub(crate) counts: Counts,
}

/// Counts of requests.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Lists, counted by their first page.
    pub(crate) lists: u64,
    pub(crate) watches: u64,
    /// Progress requests without an answer, because the head was below the start of the watch.
    pub(crate) unanswered_progress: u64,
    pub(crate) compacted_watches: u64,
    pub(crate) refused: u64,
    /// Failed reads that were drawn for one read.
    pub(crate) refused_once: u64,
}

/// Default of etcd.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(600);
/// Time after which a read fails that the leader does not confirm.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(7);
/// Time after which a member without contact to a leader has none.
const NO_LEADER_AFTER: Duration = Duration::from_secs(3);

// === impl Cluster ===

impl Cluster {
    pub(crate) fn new(version: &'static str, fragment: usize, password: Option<String>) -> Self {
        let store = Store {
            transactions: Vec::new(),
            revision: 1,
            compacted: 0,
            cluster_id: 7,
            raft_term: 5,
            lagging_at: None,
            lagging_member: None,
            has_leader: true,
            hangs: false,
            refusals: Vec::new(),
            refusal: None,
            fragment,
            version,
            password,
            token: 1,
            deleted: BTreeSet::new(),
            counts: Counts::default(),
        };
        Self { store: Arc::new(Mutex::new(store)), member: 0, changed: Arc::new(watch::Sender::new(0)) }
    }

    /// Returns another member of the same cluster.
    pub(crate) fn member(&self, member: usize) -> Self {
        Self { member, ..self.clone() }
    }

    pub(crate) async fn listen(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Server::builder()
            .add_service(KvServer::new(self.clone()).max_encoding_message_size(64 << 20))
            .add_service(WatchServer::new(self.clone()).max_encoding_message_size(64 << 20))
            .add_service(AuthServer::new(self.clone()))
            .add_service(MaintenanceServer::new(self.clone()))
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
        tokio::spawn(serving);
        address
    }

    /// Changes the store.
    pub(crate) fn set<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let changed = change(&mut self.store.lock());
        self.changed.send_modify(|changes| *changes += 1);
        changed
    }

    /// Waits while calls hang, and returns the current error of the cluster.
    async fn enter(&self, metadata: &tonic::metadata::MetadataMap) -> Result<(), Status> {
        self.changes_until(|store| !store.hangs).await;
        let store = self.store.lock();
        match (&store.password, metadata.get("token")) {
            (None, _) => Ok(()),
            (Some(_), None) => Err(Status::invalid_argument("etcdserver: user name is empty")),
            (Some(_), Some(token)) if *token == *store.token.to_string() => Ok(()),
            (Some(_), Some(_)) => Err(Status::unauthenticated("etcdserver: invalid auth token")),
        }
    }

    async fn changes_until(&self, is_so: impl Fn(&Store) -> bool) {
        let mut changes = self.changed.subscribe();
        while !is_so(&self.store.lock()) {
            changes.changed().await.unwrap();
        }
    }
}

// === impl Store ===

impl Store {
    /// Applies one transaction: puts, and deletions as `None`. Has no effect if it only deletes missing keys.
    pub(crate) fn apply(&mut self, changes: Vec<(Vec<u8>, Option<Vec<u8>>)>) {
        let state = self.at(i64::MAX);
        let revision = self.revision + 1;
        let mut events: Vec<Event> = Vec::new();
        for (key, value) in changes {
            if events.iter().any(|event| event.kv.as_ref().is_some_and(|kv| kv.key == key)) {
                // etcd rejects two puts of one key in a transaction.
                continue;
            }
            let old = state.get(&key);
            let event = match (value, old) {
                (None, None) => continue,
                (None, Some(_)) => {
                    self.deleted.insert(key.clone());
                    let kv = KeyValue { key, mod_revision: revision, ..KeyValue::default() };
                    Event { r#type: EventType::Delete.into(), kv: Some(kv) }
                }
                (Some(value), old) => {
                    let (create_revision, version) =
                        old.map_or((revision, 1), |old| (old.create_revision, old.version + 1));
                    let value = value.into();
                    let kv = KeyValue { key, value, create_revision, mod_revision: revision, version };
                    Event { r#type: EventType::Put.into(), kv: Some(kv) }
                }
            };
            events.push(event);
        }
        if !events.is_empty() {
            self.revision = revision;
            self.transactions.push((revision, events));
        }
    }

    /// Deletes all keys of a prefix, in one transaction.
    pub(crate) fn delete_all(&mut self, prefix: &[u8]) {
        let keys = self.at(i64::MAX).into_keys().filter(|key| key.starts_with(prefix));
        self.apply(keys.map(|key| (key, None)).collect());
    }

    /// Returns the first key of each transaction after a revision.
    pub(crate) fn keys_after(&self, revision: i64) -> Vec<Vec<u8>> {
        let after = self.transactions.iter().filter(|(at, _)| *at > revision);
        after.filter_map(|(_, events)| Some(events.first()?.kv.as_ref()?.key.clone())).collect()
    }

    /// Removes all transactions after a revision, as a restore from a backup does. The next revision may be raised
    /// (`--bump-revision`).
    pub(crate) fn restore(&mut self, revision: i64, bump: i64) {
        self.transactions.retain(|(at, _)| *at <= revision);
        self.revision = revision + bump;
        self.compacted = if bump > 0 { self.revision } else { self.compacted.min(revision) };
        self.lagging_at = None;
        // The index and term of the log begin anew.
        self.raft_term = 2;
    }

    /// Returns every key at a revision.
    pub(crate) fn at(&self, revision: i64) -> BTreeMap<Vec<u8>, KeyValue> {
        let mut state = BTreeMap::new();
        for (_, events) in self.transactions.iter().filter(|(at, _)| *at <= revision) {
            for event in events {
                let kv = event.kv.clone().unwrap();
                match event.r#type() {
                    EventType::Put => state.insert(kv.key.clone(), kv),
                    EventType::Delete => state.remove(&kv.key),
                };
            }
        }
        state
    }

    /// Returns true if a member has not applied everything.
    fn is_lagging(&self, member: usize) -> bool {
        self.lagging_at.is_some() && self.lagging_member.is_none_or(|lagging| lagging == member)
    }

    /// Returns the revision that a member has applied.
    fn applied(&self, member: usize) -> i64 {
        self.lagging_at.filter(|_| self.is_lagging(member)).unwrap_or(self.revision)
    }

    fn header(&self, member: usize) -> ResponseHeader {
        let (cluster_id, raft_term, revision) = (self.cluster_id, self.raft_term, self.applied(member));
        ResponseHeader { cluster_id, member_id: 1, revision, raft_term }
    }

    /// Returns the messages of a watch for the revisions from `from` on, up to the applied one.
    fn told(&self, from: i64, range: &WatchCreateRequest, member: usize) -> Vec<WatchResponse> {
        let is_watched = |event: &Event| is_in(&event.kv.as_ref().unwrap().key, &range.key, &range.range_end);
        let applied = self.applied(member);
        let events = self.transactions.iter().filter(|(at, _)| (from..=applied).contains(at));
        let events: Vec<Event> =
            events.flat_map(|(_, events)| events).filter(|event| is_watched(event)).cloned().collect();
        let mut told: Vec<_> = events
            .chunks(self.fragment)
            .map(|events| WatchResponse {
                header: Some(self.header(member)),
                events: events.to_vec(),
                fragment: true,
                ..WatchResponse::default()
            })
            .collect();
        if let Some(last) = told.last_mut() {
            last.fragment = false;
        }
        told
    }
}

fn is_in(key: &[u8], first: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == first,
        [0] => key >= first,
        _ => key >= first && key < end,
    }
}

#[tonic::async_trait]
impl Kv for Cluster {
    type RangeStreamStream = tokio_stream::Empty<Result<RangeStreamResponse, Status>>;

    async fn range_stream(&self, _: Request<RangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        Err(Status::unimplemented("unknown method RangeStream"))
    }

    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let metadata = request.metadata().clone();
        let request = request.into_inner();
        {
            let mut store = self.store.lock();
            store.counts.lists += u64::from(!request.keys_only && request.revision == 0);
        }
        self.enter(&metadata).await?;
        let refusal = {
            let mut store = self.store.lock();
            let once = store.refusals.pop();
            store.counts.refused_once += u64::from(once.is_some());
            once.or_else(|| store.refusal.clone())
        };
        if let Some(refusal) = refusal {
            self.store.lock().counts.refused += 1;
            return Err(refusal);
        }
        let (has_leader, is_lagging) = {
            let store = self.store.lock();
            (store.has_leader, store.is_lagging(self.member))
        };
        if !has_leader {
            return Err(Status::unavailable("etcdserver: no leader"));
        }
        if is_lagging {
            tokio::time::sleep(REQUEST_TIMEOUT).await;
            if self.store.lock().is_lagging(self.member) {
                return Err(Status::unavailable("etcdserver: request timed out"));
            }
        }
        let store = self.store.lock();
        let revision = if request.revision == 0 { store.revision } else { request.revision };
        if revision > store.revision {
            return Err(Status::out_of_range("etcdserver: mvcc: required revision is a future revision"));
        }
        if revision < store.compacted {
            return Err(Status::out_of_range("etcdserver: mvcc: required revision has been compacted"));
        }
        let mut kvs: Vec<KeyValue> = store.at(revision).into_values().collect();
        kvs.retain(|kv| is_in(&kv.key, &request.key, &request.range_end));
        if request.keys_only {
            for kv in &mut kvs {
                kv.value.clear();
            }
        }
        let limit = if request.limit == 0 { usize::MAX } else { request.limit as usize };
        let more = kvs.len() > limit;
        kvs.truncate(limit);
        Ok(Response::new(RangeResponse { header: Some(store.header(self.member)), kvs, more }))
    }
}

#[tonic::async_trait]
impl Watch for Cluster {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        self.enter(request.metadata()).await?;
        let has_leader_only = request.metadata().get("hasleader").is_some();
        let (sender, told) = tokio::sync::mpsc::channel(16);
        tokio::spawn(self.clone().tell(request.into_inner(), has_leader_only, sender));
        let told = tokio_stream::wrappers::ReceiverStream::new(told);
        Ok(Response::new(Box::pin(told)))
    }
}

type Sender = tokio::sync::mpsc::Sender<Result<WatchResponse, Status>>;

impl Cluster {
    async fn tell(self, mut requests: Streaming<WatchRequest>, needs_leader: bool, sender: Sender) {
        let Some(Ok(WatchRequest { request_union: Some(RequestUnion::CreateRequest(range)) })) = requests.next().await
        else {
            return;
        };
        let mut changes = self.changed.subscribe();
        let (created, start) = {
            let mut store = self.store.lock();
            store.counts.watches += 1;
            let start = if range.start_revision == 0 { store.applied(self.member) + 1 } else { range.start_revision };
            (
                WatchResponse { header: Some(store.header(self.member)), created: true, ..WatchResponse::default() },
                start,
            )
        };
        if sender.send(Ok(created)).await.is_err() {
            return;
        }
        let (mut next, mut is_synced) = (start, false);
        let mut progress = tokio::time::interval(PROGRESS_INTERVAL);
        progress.reset();
        loop {
            changes.borrow_and_update();
            let (told, is_compacted) = {
                let mut store = self.store.lock();
                // A watch that has received everything gets each write at once, before any later compaction.
                if !is_synced && next < store.compacted {
                    store.counts.compacted_watches += 1;
                    let (header, compact_revision) = (Some(store.header(self.member)), store.compacted);
                    let gone = WatchResponse { header, canceled: true, compact_revision, ..WatchResponse::default() };
                    (vec![gone], true)
                } else {
                    let told = store.told(next, &range, self.member);
                    next = next.max(store.applied(self.member) + 1);
                    is_synced = true;
                    (told, false)
                }
            };
            for response in told {
                if sender.send(Ok(response)).await.is_err() {
                    return;
                }
            }
            if is_compacted {
                // The stream stays open for other watches.
                while let Some(Ok(_)) = requests.next().await {}
                return;
            }
            if needs_leader && !self.store.lock().has_leader {
                tokio::time::sleep(NO_LEADER_AFTER).await;
                if !self.store.lock().has_leader {
                    drop(sender.send(Err(Status::unavailable("etcdserver: no leader"))).await);
                    return;
                }
            }
            tokio::select! {
                _ = changes.changed() => {}
                request = requests.next() => {
                    let Some(Ok(_)) = request else { return };
                    if !self.progress(&sender, -1, next, start).await {
                        return;
                    }
                }
                _ = progress.tick() => {
                    if range.progress_notify && !self.progress(&sender, 0, next, start).await {
                        return;
                    }
                }
            }
        }
    }

    /// Sends the revision of the store as progress, if the watch has received everything up to it. Returns false if the receiver
    /// is closed.
    async fn progress(&self, sender: &Sender, watch_id: i64, next: i64, start: i64) -> bool {
        let progress = {
            let mut store = self.store.lock();
            let is_told = next > store.applied(self.member) && store.applied(self.member) >= start && !store.hangs;
            store.counts.unanswered_progress += u64::from(!is_told);
            let header = Some(store.header(self.member));
            is_told.then(|| WatchResponse { header, watch_id, ..WatchResponse::default() })
        };
        match progress {
            Some(progress) => sender.send(Ok(progress)).await.is_ok(),
            None => true,
        }
    }
}

#[tonic::async_trait]
impl Auth for Cluster {
    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        self.changes_until(|store| !store.hangs).await;
        let AuthenticateRequest { password, .. } = request.into_inner();
        let store = self.store.lock();
        match &store.password {
            None => Err(Status::failed_precondition("etcdserver: authentication is not enabled")),
            Some(right) if *right == password => {
                Ok(Response::new(AuthenticateResponse { token: store.token.to_string() }))
            }
            Some(_) => Err(Status::invalid_argument("etcdserver: authentication failed, invalid user ID or password")),
        }
    }
}

#[tonic::async_trait]
impl Maintenance for Cluster {
    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.enter(request.metadata()).await?;
        Ok(Response::new(StatusResponse { version: self.store.lock().version.to_owned() }))
    }
}
