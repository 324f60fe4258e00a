//! Scripted etcd: a store with revisions and compaction behind the real service, with the faults that a test orders.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
    time::Instant,
};
use tokio_stream::{Stream, StreamExt};
use tonic::{
    Code, Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};

use super::Gate;
use crate::source::etcd::pb::{
    AuthenticateRequest, Event, EventType, KeyValue, RangeRequest, RangeResponse, RangeStreamResponse, RequestUnion,
    ResponseHeader, StatusRequest, WatchCreateRequest, WatchRequest, WatchResponse,
    etcdserverpb::{
        AuthenticateResponse, StatusResponse,
        auth_server::{Auth, AuthServer},
        kv_server::{Kv, KvServer},
        maintenance_server::{Maintenance, MaintenanceServer},
        watch_server::{Watch, WatchServer},
    },
};

/// Cluster; clones share it.
#[derive(Clone)]
pub(super) struct FakeEtcd {
    store: Arc<Mutex<Store>>,
    /// Current revision, for watches.
    head: Arc<watch::Sender<i64>>,
}

/// Full history, and the way in which the service sends it.
pub(super) struct Store {
    transactions: Vec<(i64, Vec<Event>)>,
    revision: i64,
    compacted: i64,
    pub(super) cluster_id: u64,
    pub(super) raft_term: u64,
    pub(super) version: &'static str,
    /// Number of keys in each part of a stream of keys; `None` for an etcd that has no such streams.
    pub(super) part: Option<i64>,
    /// True if such a stream ends without its last part.
    pub(super) cuts_streams: bool,
    /// User who may connect, and the present token.
    pub(super) user: Option<(&'static str, &'static str)>,
    pub(super) token: String,
    /// Status for a request with another token.
    pub(super) rejects: (Code, &'static str),
    /// Faults of the next ranges and watches, each once.
    pub(super) ranges: VecDeque<Fault>,
    /// Answers in place of the next ones to ranges.
    pub(super) answers: VecDeque<RangeResponse>,
    pub(super) watches: VecDeque<Fault>,
    /// Limit of events in one message; more are sent as fragments.
    pub(super) fragment: usize,
    /// Time in which a watch of the past reads one revision: until it has read all of them, it sends no event, and progress
    /// requests get no response.
    pub(super) sync_delay: Duration,
    /// True if a compaction at the revision of a deletion removes it for watches too (etcd #18089, before 3.4.34 and 3.5.16).
    pub(super) drops_tombstones: bool,
    pub(super) counts: Counts,
}

/// Numbers of requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) ranges: usize,
    pub(super) pages: usize,
    pub(super) watches: usize,
    pub(super) progress: usize,
    pub(super) authentications: usize,
}

pub(super) enum Fault {
    Refuse(Status),
    /// Never answers.
    Hang,
    /// Answers once the sender is dropped.
    Hold(oneshot::Receiver<()>),
    /// Runs a function first, in the middle of the call.
    Then(Box<dyn FnOnce(&FakeEtcd) + Send>),
    /// Adds these responses to a watch, after the requested ones.
    Tell(Vec<WatchResponse>),
}

// === impl FakeEtcd ===

impl FakeEtcd {
    /// Returns a cluster without any writes.
    pub(super) fn new() -> Self {
        let store = Store {
            transactions: Vec::new(),
            revision: 1,
            compacted: 0,
            cluster_id: 7,
            raft_term: 2,
            version: "3.6.16",
            part: None,
            cuts_streams: false,
            user: None,
            token: String::new(),
            rejects: (Code::Unauthenticated, "etcdserver: invalid auth token"),
            ranges: VecDeque::new(),
            answers: VecDeque::new(),
            watches: VecDeque::new(),
            fragment: usize::MAX,
            sync_delay: Duration::ZERO,
            drops_tombstones: false,
            counts: Counts::default(),
        };
        Self { store: Arc::new(Mutex::new(store)), head: Arc::new(watch::Sender::new(1)) }
    }

    /// Returns the number of answers that are left.
    pub(super) fn answers(&self) -> usize {
        self.store.lock().answers.len()
    }

    /// Returns all keys, with the header of an answer.
    pub(super) fn all(&self) -> (ResponseHeader, Vec<KeyValue>) {
        let store = self.store.lock();
        (store.header(), store.at(store.revision).into_values().collect())
    }

    /// Starts a member of the cluster.
    pub(super) async fn member(&self) -> Gate {
        Gate::to(self.listen(Server::builder()).await).await
    }

    pub(super) async fn listen(&self, mut server: Server) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = server
            .add_service(KvServer::new(self.clone()))
            .add_service(WatchServer::new(self.clone()))
            .add_service(AuthServer::new(self.clone()))
            .add_service(MaintenanceServer::new(self.clone()))
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
        tokio::spawn(serving);
        address
    }

    /// Changes the script.
    pub(super) fn set(&self, change: impl FnOnce(&mut Store)) {
        change(&mut self.store.lock());
    }

    pub(super) fn counts(&self) -> Counts {
        self.store.lock().counts
    }

    pub(super) fn revision(&self) -> u128 {
        self.store.lock().revision as u128
    }

    /// Writes one transaction: `a=1` puts, `-a` deletes; keys below the prefix.
    pub(super) fn write(&self, changes: &str) {
        let changes = changes.split(' ').map(|change| match change.split_once('=') {
            Some((key, value)) => (format!("/s/{key}").into_bytes(), Some(value.as_bytes().to_vec())),
            None => (format!("/s/{}", change.trim_start_matches('-')).into_bytes(), None),
        });
        self.apply(changes.collect());
    }

    pub(super) fn apply(&self, changes: Vec<(Vec<u8>, Option<Vec<u8>>)>) {
        let mut store = self.store.lock();
        store.apply(changes);
        let revision = store.revision;
        drop(store);
        self.head.send_replace(revision);
    }

    pub(super) fn compact(&self, revision: i64) {
        let mut store = self.store.lock();
        store.compacted = store.compacted.max(revision);
    }

    /// Discards the revisions after one, like a cluster that is restored from an old snapshot.
    pub(super) fn restore(&self, revision: i64) {
        let mut store = self.store.lock();
        store.transactions.retain(|(at, _)| *at <= revision);
        (store.revision, store.compacted) = (revision, store.compacted.min(revision));
        drop(store);
        self.head.send_replace(revision);
    }

    /// Returns the present state below a prefix: key to uid and value.
    pub(super) fn state(&self, prefix: &str) -> BTreeMap<String, (String, String)> {
        let state = self.store.lock().at(i64::MAX);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let entry = |kv: KeyValue| {
            let key = text(kv.key.strip_prefix(prefix.as_bytes())?);
            let uid = format!("{}/{key}", kv.create_revision);
            Some((key, (uid, text(&kv.value))))
        };
        state.into_values().filter_map(entry).collect()
    }

    fn check(&self, metadata: &tonic::metadata::MetadataMap) -> Result<(), Status> {
        let store = self.store.lock();
        match (store.user, metadata.get("token")) {
            (None, _) => Ok(()),
            (Some(_), None) => Err(Status::invalid_argument("etcdserver: user name is empty")),
            (Some(_), Some(token)) if *token == *store.token => Ok(()),
            (Some(_), Some(_)) => Err(Status::new(store.rejects.0, store.rejects.1)),
        }
    }

    async fn suffer(&self, fault: Option<Fault>) -> Result<Vec<WatchResponse>, Status> {
        match fault {
            Some(Fault::Refuse(status)) => Err(status),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Hold(held)) => {
                drop(held.await);
                Ok(Vec::new())
            }
            Some(Fault::Then(somebody)) => {
                somebody(self);
                Ok(Vec::new())
            }
            Some(Fault::Tell(told)) => Ok(told),
            None => Ok(Vec::new()),
        }
    }
}

// === impl Store ===

impl Store {
    fn apply(&mut self, changes: Vec<(Vec<u8>, Option<Vec<u8>>)>) {
        let state = self.at(i64::MAX);
        let revision = self.revision + 1;
        let event = |(key, value): (Vec<u8>, Option<Vec<u8>>)| {
            let old = state.get(&key);
            let Some(value) = value else {
                old?;
                let kv = KeyValue { key, mod_revision: revision, ..KeyValue::default() };
                return Some(Event { r#type: EventType::Delete.into(), kv: Some(kv) });
            };
            let (create_revision, version) = old.map_or((revision, 1), |old| (old.create_revision, old.version + 1));
            let value = value.into();
            let kv = KeyValue { key, value, create_revision, mod_revision: revision, version };
            Some(Event { r#type: EventType::Put.into(), kv: Some(kv) })
        };
        let events: Vec<Event> = changes.into_iter().filter_map(event).collect();
        if !events.is_empty() {
            self.revision = revision;
            self.transactions.push((revision, events));
        }
    }

    fn at(&self, revision: i64) -> BTreeMap<Vec<u8>, KeyValue> {
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

    fn header(&self) -> ResponseHeader {
        let Self { cluster_id, raft_term, revision, .. } = *self;
        ResponseHeader { cluster_id, member_id: 1, revision, raft_term }
    }

    /// Returns the responses to a watch of a range from a revision on.
    fn told(&self, from: i64, range: &WatchCreateRequest) -> Vec<WatchResponse> {
        let is_watched = |event: &Event| is_in(&event.kv.as_ref().unwrap().key, &range.key, &range.range_end);
        let is_dropped = |event: &Event| {
            let at = event.kv.as_ref().map(|kv| kv.mod_revision);
            self.drops_tombstones && event.r#type() == EventType::Delete && at == Some(self.compacted)
        };
        let events = self.transactions.iter().filter(|(at, _)| *at >= from).flat_map(|(_, events)| events);
        let events = events.filter(|event| is_watched(event) && !is_dropped(event)).cloned();
        let events: Vec<Event> = events.collect();
        let mut told: Vec<_> = events
            .chunks(self.fragment)
            .map(|events| self.response(|response| (response.events, response.fragment) = (events.to_vec(), true)))
            .collect();
        if let Some(last) = told.last_mut() {
            last.fragment = false;
        }
        told
    }

    pub(super) fn response(&self, fill: impl FnOnce(&mut WatchResponse)) -> WatchResponse {
        let mut response = WatchResponse { header: Some(self.header()), ..WatchResponse::default() };
        fill(&mut response);
        response
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
impl Kv for FakeEtcd {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        self.check(request.metadata())?;
        let request = request.into_inner();
        let fault = {
            let mut store = self.store.lock();
            store.counts.pages += usize::from(!request.keys_only);
            store.counts.ranges += 1;
            store.ranges.pop_front()
        };
        self.suffer(fault).await?;
        let mut store = self.store.lock();
        if let Some(answer) = store.answers.pop_front() {
            return Ok(Response::new(answer));
        }
        let revision = if request.revision == 0 { store.revision } else { request.revision };
        if revision < store.compacted {
            return Err(Status::out_of_range("etcdserver: mvcc: required revision has been compacted"));
        }
        let mut kvs: Vec<KeyValue> = store.at(revision).into_values().collect();
        kvs.retain(|kv| is_in(&kv.key, &request.key, &request.range_end));
        let limit = if request.limit == 0 { usize::MAX } else { request.limit as usize };
        let more = kvs.len() > limit;
        kvs.truncate(limit);
        Ok(Response::new(RangeResponse { header: Some(store.header()), kvs, more }))
    }

    type RangeStreamStream = Pin<Box<dyn Stream<Item = Result<RangeStreamResponse, Status>> + Send>>;

    async fn range_stream(&self, request: Request<RangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        self.check(request.metadata())?;
        let part = self.store.lock().part.ok_or_else(|| Status::unimplemented("unknown method RangeStream"))?;
        let first = RangeRequest { limit: part, ..request.into_inner() };
        let parts = futures_util::stream::unfold((self.clone(), Some(first)), async |(fake, request)| {
            let (part, next) = fake.part(request?).await;
            let part = part?.map(|part| RangeStreamResponse { range_response: Some(part) });
            Some((part, (fake, next)))
        });
        Ok(Response::new(Box::pin(parts)))
    }
}

impl FakeEtcd {
    /// Returns the next part of a stream of keys, and the request of the one after it.
    async fn part(&self, mut request: RangeRequest) -> (Option<Result<RangeResponse, Status>>, Option<RangeRequest>) {
        let mut part = match self.range(Request::new(request.clone())).await {
            Ok(part) => part.into_inner(),
            Err(status) => return (Some(Err(status)), None),
        };
        let (header, Some(last)) = (part.header.unwrap_or_default(), part.kvs.last().filter(|_| part.more)) else {
            let is_cut = self.store.lock().cuts_streams;
            let header = part.header.map(|header| {
                let revision = if request.revision == 0 { header.revision } else { request.revision };
                ResponseHeader { revision, ..header }
            });
            return ((!is_cut).then_some(Ok(RangeResponse { header, ..part })), None);
        };
        request.key = [&last.key[..], &[0]].concat();
        request.revision = if request.revision == 0 { header.revision } else { request.revision };
        (part.header, part.more) = (None, false);
        (Some(Ok(part)), Some(request))
    }
}

#[tonic::async_trait]
impl Watch for FakeEtcd {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        self.check(request.metadata())?;
        assert_eq!(request.metadata().get("hasleader").unwrap(), "true");
        let mut requests = request.into_inner();
        let Some(Ok(WatchRequest { request_union: Some(RequestUnion::CreateRequest(range)) })) = requests.next().await
        else {
            panic!("a watch begins by being created")
        };
        assert!(range.fragment && range.progress_notify);
        let fault = {
            let mut store = self.store.lock();
            store.counts.watches += 1;
            store.watches.pop_front()
        };
        let more = self.suffer(fault).await?;
        let (sender, told) = tokio::sync::mpsc::channel(16);
        tokio::spawn(self.clone().tell(range, more, requests, sender));
        let told = tokio_stream::wrappers::ReceiverStream::new(told).map(Ok);
        Ok(Response::new(Box::pin(told)))
    }
}

impl FakeEtcd {
    async fn tell(
        self,
        range: WatchCreateRequest,
        mut more: Vec<WatchResponse>,
        mut requests: Streaming<WatchRequest>,
        sender: tokio::sync::mpsc::Sender<WatchResponse>,
    ) {
        let mut head = self.head.subscribe();
        let created = self.store.lock().response(|response| response.created = true);
        drop(sender.send(created).await);
        let mut next = range.start_revision;
        // As in etcd, a watch of the past catches up in a loop of its own.
        let synced_at = {
            let store = self.store.lock();
            let revisions = u32::try_from(store.revision + 1 - next).unwrap_or_default();
            Instant::now() + store.sync_delay * revisions
        };
        while Instant::now() < synced_at {
            tokio::select! {
                () = tokio::time::sleep_until(synced_at) => {}
                request = requests.next() => {
                    let Some(Ok(_)) = request else { return };
                    self.store.lock().counts.progress += 1;
                }
            }
        }
        loop {
            head.borrow_and_update();
            let told = {
                let store = self.store.lock();
                let gone = |response: &mut WatchResponse| {
                    (response.canceled, response.compact_revision) = (true, store.compacted);
                };
                let is_gone = next < store.compacted;
                let told = if is_gone { vec![store.response(gone)] } else { store.told(next, &range) };
                next = next.max(store.revision + 1);
                told
            };
            for response in told.into_iter().chain(std::mem::take(&mut more)) {
                drop(sender.send(response).await);
            }
            tokio::select! {
                changed = head.changed() => changed.unwrap(),
                request = requests.next() => {
                    let Some(Ok(_)) = request else { return };
                    let (progress, revision) = {
                        let mut store = self.store.lock();
                        store.counts.progress += 1;
                        (store.response(|response| response.watch_id = -1), store.revision)
                    };
                    // etcd's `progressIfSync`: no response while the watch is behind, nor before its start revision is reached.
                    if revision < next && revision >= range.start_revision {
                        drop(sender.send(progress).await);
                    }
                }
            }
        }
    }
}

#[tonic::async_trait]
impl Auth for FakeEtcd {
    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        let AuthenticateRequest { name, password } = request.into_inner();
        let mut store = self.store.lock();
        store.counts.authentications += 1;
        match store.user {
            None => Err(Status::failed_precondition("etcdserver: authentication is not enabled")),
            Some(user) if user == (&*name, &*password) => {
                Ok(Response::new(AuthenticateResponse { token: store.token.clone() }))
            }
            Some(_) => Err(Status::invalid_argument("etcdserver: authentication failed, invalid user ID or password")),
        }
    }
}

#[tonic::async_trait]
impl Maintenance for FakeEtcd {
    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.check(request.metadata())?;
        Ok(Response::new(StatusResponse { version: self.store.lock().version.to_owned() }))
    }
}
