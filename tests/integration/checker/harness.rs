//! Harness: executes a script on the real service, without sockets. A Watch is a call of `Routes`, and its body is polled piece
//! by piece; so is a Subscribe stream, for all its clients. The clock is paused and only the script advances it; between two steps
//! all tasks become idle. So the script decides exactly how fast a client reads, when it leaves, and what the server has applied by
//! then.

mod calls;
mod delta;
mod moments;
mod retained;
mod server;
mod streams;

use std::{
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use informerd::{
    cache::{InformerHandle, InformerStats},
    proto::pb,
};
use tokio::time::Instant;

use self::{retained::Before, server::Server};
use super::{
    ask::RESOURCES,
    blocking::{Limits, Pace},
    call::Call,
    client::Client,
    record::{CallRecord, Plan, Record, Segment, Served, Start},
    script::{CALLS, Config, MAX_BOOKMARK_INTERVAL, PLACES, ResumeFrom, Script, Step},
    subscription::{StreamTally, Subscription},
    truth::{SERVERS, Truth, Upstream, Write},
};

/// Result of a run.
pub(crate) struct Run {
    /// Truth of each resource.
    pub(crate) truths: Vec<Truth>,
    pub(crate) records: Vec<Record>,
    pub(crate) calls: Vec<CallRecord>,
    pub(crate) paces: Vec<Pace>,
    pub(crate) limits: Limits,
    pub(crate) servers: u64,
    /// Number of full queues under BLOCK for which the server did not wait.
    pub(crate) denied: u64,
    pub(crate) replayed: u64,
    pub(crate) streams: StreamTally,
    /// Description of what the server did not do in time.
    pub(crate) stuck: Option<String>,
}

struct Harness {
    /// Truth of each resource.
    truths: Vec<Truth>,
    config: Config,
    /// Servers, all over the same upstreams.
    servers: Vec<Server>,
    /// Resource of upstream messages, watches and calls; from [`Config::resources`] on it is one that no server has.
    resource: usize,
    /// Index of the server for new calls.
    current: usize,
    began: Instant,
    waited: Duration,
    places: Vec<Option<Client>>,
    records: Vec<Record>,
    /// Subscribe streams, those that have ended among them.
    streams: Vec<Subscription>,
    stream_tally: StreamTally,
    paces: Vec<Pace>,
    /// Calls in the order of their requests, and the index of the call in each place.
    calls: Vec<Call>,
    asking: [Option<usize>; CALLS],
    turn: u64,
    before: Rc<Before>,
    /// Description of what the servers retained and should not have.
    leaked: Option<String>,
    /// First error of a Subscribe stream that no client's record shows.
    wrong: Option<String>,
}

/// Longest wait for a version that the server has not reached yet.
pub(crate) const FUTURE_WAIT: Duration = Duration::from_secs(5);
/// Rounds without progress of any server after which every task is idle.
const TURNS: usize = 3;
/// Step by which time advances while a server waits for clients.
const SLICE: Duration = Duration::from_millis(20);
/// Number larger than the pieces of any backlog.
const MANY: usize = 1000;

/// Runs a script.
pub(crate) fn run(script: &Script) -> Run {
    let before = Rc::new(Before::now());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let mut run = runtime.block_on(async {
        let mut harness = Harness::start(script, Rc::clone(&before)).await;
        for step in &script.steps {
            harness.step(step).await;
        }
        let mut stuck = None;
        if script.settles {
            stuck = harness.settle().await;
            harness.quiet().await;
        }
        harness.finish(stuck).await
    });
    drop(runtime);
    run.stuck = run.stuck.or_else(|| before.verify_dropped().err());
    run
}

impl Harness {
    async fn start(script: &Script, before: Rc<Before>) -> Self {
        let mut harness = Self {
            truths: (0..script.config.resources).map(|at| Truth::new(&script.config, &script.first, at)).collect(),
            config: script.config.clone(),
            servers: Vec::new(),
            resource: 0,
            current: 0,
            began: Instant::now(),
            waited: Duration::ZERO,
            places: (0..PLACES).map(|_| None).collect(),
            records: Vec::new(),
            streams: Vec::new(),
            stream_tally: StreamTally::default(),
            paces: Vec::new(),
            calls: Vec::new(),
            asking: [None; CALLS],
            turn: 0,
            before,
            leaked: None,
            wrong: None,
        };
        harness.start_server().await;
        harness
    }

    /// Starts one more server, which lists the current state and receives later messages.
    async fn start_server(&mut self) {
        let written = self.resource;
        for at in 0..self.truths.len() {
            self.resource = at;
            if self.truth().is_open() {
                // A list needs a version that is complete.
                let closed = self.truth_mut().say(&Write::Close, 0);
                self.push(closed).await;
            }
        }
        self.resource = written;
        let first_epochs: Vec<usize> = self.truths.iter().map(|truth| truth.epochs.len() - 1).collect();
        let mut server = Server::start(&self.config, &first_epochs);
        for (at, truth) in self.truths.iter_mut().enumerate() {
            server.resources[at].push(delta::delta(truth, truth.list())).await;
            truth.begin_server();
        }
        self.servers.push(server);
        self.rest().await;
    }

    /// Directs the next calls to another server, if there is one that does not drain.
    async fn go_elsewhere(&mut self) -> bool {
        if self.servers.len() < SERVERS {
            self.start_server().await;
        }
        let is_possible = !self.servers[1 - self.current].is_draining();
        if is_possible {
            self.current = 1 - self.current;
        }
        is_possible
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Say(writes) => {
                for (write, step) in writes {
                    let upstream = self.truth_mut().say(write, *step);
                    self.push(upstream).await;
                }
            }
            Step::SayAtOnce(writes, step) => {
                let upstream = self.truth_mut().say_at_once(writes, *step);
                self.push(upstream).await;
            }
            Step::SayOpen(writes, step) => {
                for write in writes {
                    if let Some(upstream) = self.truth_mut().say_open(write, *step) {
                        self.push(upstream).await;
                    }
                }
            }
            Step::Reconnect(first) => {
                for upstream in self.truth().say_again(*first) {
                    self.push(upstream).await;
                }
            }
            Step::Relist(unseen, step) => {
                self.write_unseen(unseen);
                let list = self.truth_mut().relist(*step);
                self.push(list).await;
            }
            Step::Rewind(back, keep) => {
                let list = self.truth_mut().rewrite_history(*back, *keep);
                self.push(list).await;
            }
            Step::Relisted(unseen, step) => {
                self.write_unseen(unseen);
                let told = self.truth_mut().relisted(*step);
                self.push(told).await;
            }
            Step::Rewrite(ahead, keep, is_said) => {
                let list = self.truth_mut().rewrite(*ahead, *keep, *is_said);
                self.push(list).await;
            }
            Step::Lose => {
                let written = self.written();
                self.servers.iter_mut().for_each(|server| server.resources[written].lose());
            }
            Step::Use(resource) => self.resource = *resource % self.truths.len(),
            Step::UseUnknown => self.resource = RESOURCES.len() - 1,
            Step::Beside(writes) => {
                let used = self.resource;
                self.resource = 1 - self.written();
                for (write, step) in writes {
                    let upstream = self.truth_mut().say(write, *step);
                    self.push(upstream).await;
                }
                self.resource = used;
            }
            Step::Wait(milliseconds) => self.wait(Duration::from_millis(*milliseconds)).await,
            Step::Open(place, plan) => {
                self.leave(*place, 0);
                self.rest().await;
                let plan = self.twin(plan);
                let start = first_start(&plan);
                self.open(*place, Client::new(plan, self.resource), start).await;
            }
            Step::Read(place, pieces) => self.read(*place, *pieces).await,
            Step::Leave(place, lost) => self.disconnect(*place, *lost),
            Step::Break(place, lost) => self.break_shared(*place, *lost),
            Step::HalfClose(place) => self.half_close_shared(*place).await,
            Step::BadId(place, is_zero) => self.send_bad_id(*place, *is_zero).await,
            Step::Resume(place, from) => {
                self.disconnect(*place, 0);
                self.rest().await;
                let Some(client) = self.places[*place].take() else { return };
                let start = self.resume_at(&client, from);
                self.open(*place, client, start).await;
            }
            Step::Ask(place, question) => self.ask(*place, question).await,
            Step::NextPage { place, twist, page_size, is_slow } => {
                self.next_page(*place, *twist, *page_size, *is_slow).await;
            }
            Step::Poll(place) => self.poll_place(*place).await,
            Step::Elsewhere => drop(self.go_elsewhere().await),
            Step::Drain => {
                let draining = self.current;
                if self.go_elsewhere().await {
                    self.servers[draining].lifecycle.draining.cancel();
                }
            }
        }
        self.rest().await;
        self.answer().await;
    }

    /// Returns the start of a connection: the requested version, if the client has such a one; without any version the client
    /// begins anew.
    fn resume_at(&self, client: &Client, from: &ResumeFrom) -> Start {
        let resource = client.record.resource;
        let truth = self.truth_of(resource);
        let newest = self.moment(Served { server: self.current, resource }).applied;
        let text = |version| Start::After(truth.text(truth.epochs.len() - 1, version));
        match from {
            ResumeFrom::Last => client.last_version().map_or(first_start(&client.record.plan), Start::After),
            ResumeFrom::Hole => {
                client.last_hole().map_or_else(|| self.resume_at(client, &ResumeFrom::Last), Start::After)
            }
            ResumeFrom::Old(back) => text(newest.saturating_sub(*back).max(1)),
            ResumeFrom::Batch(pick) => {
                let batches = truth.current().batches.iter();
                let batches = batches.filter(|batch| batch.is_relist || batch.changes.len() > 1);
                let inside: Vec<u64> = batches.flat_map(|batch| batch.before..=batch.after).collect();
                match inside.get(pick % inside.len().max(1)) {
                    Some(version) => text(*version),
                    None => self.resume_at(client, &ResumeFrom::Last),
                }
            }
            ResumeFrom::Future(ahead) => text(newest + ahead),
            ResumeFrom::Foreign => Start::After("elsewhere.7".to_owned()),
        }
    }

    /// Returns the latest version of the states that a client under COALESCE has received, if it resumes from a lower one: what undoes
    /// them must not merge to nothing.
    fn applied_beyond(&self, client: &Client, start: &Start) -> Option<String> {
        let Start::After(version) = start else { return None };
        let truth = self.truth_of(client.record.resource);
        let epoch = truth.epochs.len() - 1;
        let from =
            truth.number(epoch, version).filter(|_| client.record.plan.policy == pb::FullChannelPolicy::Coalesce)?;
        let of_epoch = |segment: &&Segment| segment.answered.is_some_and(|answered| answered.epoch == epoch);
        let messages = client.record.segments.iter().filter(of_epoch).flat_map(|segment| &segment.messages);
        let objects = messages.filter_map(|received| received.message.object.as_ref());
        let latest = objects.filter_map(|object| truth.number(epoch, &object.resource_version)).max()?;
        (latest > from).then(|| truth.text(epoch, latest))
    }

    async fn open(&mut self, place: usize, mut client: Client, start: Start) {
        self.servers[self.current].compile(Some(client.record.plan.selection), &[]).await;
        let served = Served { server: self.current, resource: client.record.resource };
        let min = client.record.plan.min.map(|min| self.min_version(served, min));
        let (asked, min) = (self.moment(served), self.applied_beyond(&client, &start).or(min));
        match client.record.plan.share {
            None => client.open(&mut self.servers[self.current].routes, start, min, asked),
            Some(share) => self.share(place, &mut client, share, (start, min, asked)).await,
        }
        self.places[place] = Some(client);
        self.answer().await;
    }

    /// Polls the calls that wait for an answer.
    async fn answer(&mut self) {
        self.poll_calls(false).await;
        for at in 0..self.streams.len() {
            self.answer_shared(at).await;
        }
        for place in 0..PLACES {
            for _ in 0..MANY {
                let Some(moment) = self.places[place].as_ref().map(|client| self.moment(client.served())) else {
                    break;
                };
                let Some(client) = &mut self.places[place] else { break };
                if !client.poll_answer(moment) {
                    break;
                }
                self.rest().await;
                if let Some(client) = self.places[place].as_mut().filter(|client| !client.is_woken()) {
                    client.waits(moment);
                    break;
                }
            }
        }
    }

    async fn read(&mut self, place: usize, pieces: usize) {
        if self.shared_of(place).is_some() {
            return self.read_shared(place, pieces).await;
        }
        let mut left = pieces;
        for _ in 0..MANY {
            let Some(moment) = self.places[place].as_ref().map(|client| self.moment(client.served())) else { return };
            let reads = |client: &&mut Client| left > 0 && client.is_open();
            let Some(client) = self.places[place].as_mut().filter(reads) else { return };
            let was_piece = client.poll_piece(moment);
            left -= usize::from(was_piece);
            // A client that was waited for has read, so the server continues at once.
            self.rest().await;
            if !was_piece && !self.is_woken(place) {
                if let Some(client) = &mut self.places[place] {
                    client.waits(moment);
                }
                return;
            }
        }
    }

    fn is_woken(&self, place: usize) -> bool {
        self.places[place].as_ref().is_some_and(Client::is_woken)
    }

    fn leave(&mut self, place: usize, lost: usize) {
        self.disconnect(place, lost);
        self.records.extend(self.places[place].take().map(|client| client.record));
    }

    /// Ends the connection of a client, with the loss of so many of its last messages.
    fn disconnect(&mut self, place: usize, lost: usize) {
        let Some(moment) = self.places[place].as_ref().map(|client| self.moment(client.served())) else { return };
        if self.shared_of(place).is_some() {
            self.close_shared(place, lost, moment);
        } else if let Some(client) = &mut self.places[place] {
            client.leave(lost, moment);
        }
    }

    /// Lets all clients read, until the servers send nothing but that nothing is missing.
    async fn settle(&mut self) -> Option<String> {
        // Long enough for clients that wait for a version not reached yet, and then for a bookmark.
        for time in [FUTURE_WAIT / 2, FUTURE_WAIT / 2, MAX_BOOKMARK_INTERVAL] {
            for _ in 0..3 {
                for place in 0..PLACES {
                    self.read(place, MANY).await;
                }
                self.answer().await;
            }
            self.wait(time).await;
            self.answer().await;
        }
        for place in 0..PLACES {
            self.read(place, MANY).await;
        }
        self.read_all_shared().await;
        for served in self.all() {
            let said = self.said(served.resource);
            if self.applied(served) != said {
                let moment = self.moment(served);
                return Some(format!("everybody has read everything, {said:?} was said, and {moment:?}"));
            }
        }
        for place in 0..PLACES {
            let Some(moment) = self.places[place].as_ref().map(|client| self.moment(client.served())) else { continue };
            if let Some(client) = &mut self.places[place] {
                client.settled(moment);
            }
        }
        None
    }

    async fn finish(mut self, stuck: Option<String>) -> Run {
        for server in &self.servers {
            server.lifecycle.draining.cancel();
        }
        // A client that reads learns when its stream will end.
        for time in [Duration::ZERO, self.config.drain_period] {
            self.wait(time).await;
            self.answer().await;
            self.poll_calls(true).await;
            for place in 0..PLACES {
                self.read(place, MANY).await;
            }
            self.read_all_shared().await;
        }
        self.verify_streams_ended();
        self.records.extend(self.places.iter_mut().filter_map(Option::take).map(|client| client.record));
        self.leave_behind().await;
        let stats = || self.servers.iter().flat_map(Server::informers).map(InformerHandle::stats);
        let sum = |counter: fn(&InformerStats) -> &AtomicU64| {
            stats().map(|stats| counter(stats).load(Ordering::Relaxed)).sum()
        };
        Run {
            replayed: sum(|stats| &stats.replayed),
            servers: self.servers.len() as u64,
            denied: self.servers.iter().map(Server::denied).sum(),
            paces: self.paces,
            limits: Limits { block_timeout: self.config.block_timeout },
            truths: self.truths,
            records: self.records,
            calls: self.calls.into_iter().map(|call| call.record).collect(),
            streams: self.stream_tally,
            stuck: stuck.or(self.wrong).or(self.leaked),
        }
    }

    /// Sends a message to all servers.
    async fn push(&mut self, upstream: Upstream) {
        let written = self.written();
        let truth = &self.truths[written];
        for server in &mut self.servers {
            server.resources[written].push(delta::delta(truth, upstream.clone())).await;
        }
    }

    /// Returns the resource of upstream messages.
    fn written(&self) -> usize {
        if self.resource < self.truths.len() { self.resource } else { 0 }
    }

    fn truth(&self) -> &Truth {
        &self.truths[self.written()]
    }

    /// Applies writes that the upstream does not report.
    fn write_unseen(&mut self, unseen: &[(Write, u64)]) {
        for (write, step) in unseen {
            self.truth_mut().write(write, *step);
        }
    }

    fn truth_mut(&mut self) -> &mut Truth {
        let written = self.written();
        &mut self.truths[written]
    }
}

fn first_start(plan: &Plan) -> Start {
    if plan.sends_initial_events { Start::InitialEvents } else { Start::Bookmark }
}
