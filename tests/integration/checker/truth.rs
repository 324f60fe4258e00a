//! Model of the truth: the upstream's own state, and the part of it that a correct server shows.
//!
//! The harness writes it, one upstream message at a time; the verifier reads it. It is a second, naive implementation of the
//! contract on changes, batches, relists and selections, and shares no code with the server's. It has no queue, group or cursor:
//! a history is a list of batches that begins with one state.

mod epoch;
mod lists;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    rc::Rc,
    time::Duration,
};

use informerd::proto::pb::Cause;

use super::{
    pod::{Held, Key, Pod},
    record::Moment,
    script::{Config, Reconnected},
    selection::Selection,
};

/// State of a resource at one moment.
pub(crate) type State = BTreeMap<Key, Rc<Held>>;

/// One change of one object.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) old: Option<Rc<Held>>,
    pub(crate) new: Option<Rc<Held>>,
    /// Version of the change; of a deletion, that of the deletion itself.
    pub(crate) version: u64,
    /// Cause of a deletion.
    pub(crate) cause: Cause,
}

/// Changes between which no version can be resumed from.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) changes: Vec<Change>,
    pub(crate) is_relist: bool,
    /// True if more changes may come at its version, or if it came at a version that was already complete.
    pub(crate) is_open: bool,
    /// Time at which each server was first seen to have applied it, and the number of batches that it had applied before.
    applied_at: [Option<(Duration, usize)>; SERVERS],
}

/// One continuous history. A list with an older version begins the next.
#[derive(Debug)]
pub(crate) struct Epoch {
    pub(crate) start: u64,
    pub(crate) state: State,
    pub(crate) batches: Vec<Batch>,
}

/// Message of the upstream to the server.
#[derive(Debug, Clone)]
pub(crate) enum Upstream {
    Put(Rc<Held>),
    /// Deletion, with the last state and the version of the deletion.
    Deleted(Rc<Held>, u64),
    /// Object that exists and is too large to be served.
    NotServed(Rc<Held>),
    Bookmark(u64),
    /// Changes that are all at one version.
    Transaction(Vec<Self>),
    /// Change at a version that may still get more.
    Open(Box<Self>),
    /// Objects that can be served, objects that cannot, and the version of the list.
    List(Vec<Rc<Held>>, Vec<Rc<Held>>, u64),
    /// The same list, after a proof that the history was rewritten.
    Rewritten(Vec<Rc<Held>>, Vec<Rc<Held>>, u64),
    /// Result of the upstream's own relist, change by change; other changes up to the last version are unknown.
    Relisted(Vec<Self>),
}

/// One write of the script.
#[derive(Debug, Clone)]
pub(crate) enum Write {
    /// Creation or update of an object.
    Put(Key, Option<&'static str>, Option<&'static str>),
    /// Deletion of an object, even if it does not exist.
    Delete(Key),
    /// Replacement of an object under the same key; the deletion in between is not visible.
    Recreate(Key),
    /// New bytes at the object's version, as an upgraded upstream serves them. A watch does not report this.
    Convert(Key),
    /// Creation or update of an object with more bytes than can be served.
    Outgrow(Key),
    /// New version without a change.
    Bookmark,
    /// Bookmark at the last version, which completes it.
    Close,
    /// Repetition of the last message.
    Repeat,
}

/// Configured bounds of a history: age, events and bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) age: Duration,
    pub(crate) events: usize,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Truth {
    /// True if versions are `<lineage>.<n>`, with a lineage for each epoch.
    has_lineage: bool,
    pub(crate) bounds: Bounds,
    /// Bounds of what servers retain for clients that lag, beside their histories.
    window: Bounds,
    /// True if the servers' writers have time for every selection, so that no group is filled by threads.
    pub(crate) has_time: bool,
    pub(crate) epochs: Vec<Epoch>,
    /// Start of each server: its history, its version, and the number of batches up to then.
    servers: Vec<(usize, u64, usize)>,
    /// State of the upstream; newer than `seen` while a relist is due.
    world: State,
    version: u64,
    /// State that the upstream has reported.
    seen: State,
    last: Upstream,
    /// Messages at the last version, as long as more may come at it.
    open: Vec<Upstream>,
    serial: u32,
    uid: u32,
    padding: usize,
    /// True if the upstream always serves the same bytes at one version, so that nothing is converted.
    has_stable_bodies: bool,
}

/// Largest number of servers, all over the same upstream.
pub(crate) const SERVERS: usize = 2;
/// Version at which the first history begins; older ones are left for rewinds.
const FIRST_VERSION: u64 = 40;
/// Duration longer than any run.
const LONG: Duration = Duration::from_secs(100_000);
/// Time by which an age may be exceeded: servers remove expired events at intervals.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

impl Truth {
    /// Returns the truth of a resource that begins with these objects.
    pub(crate) fn new(config: &Config, first: &[Write], resource: usize) -> Self {
        let Config { has_lineage, has_stable_bodies, history: bounds, retention: window, has_time, padding, .. } =
            *config;
        let mut truth = Self {
            has_lineage,
            bounds,
            window,
            has_time,
            epochs: Vec::new(),
            servers: Vec::new(),
            world: State::new(),
            version: 1,
            seen: State::new(),
            last: Upstream::Bookmark(FIRST_VERSION),
            open: Vec::new(),
            // No two objects are the same, whatever their resources; their versions may be.
            serial: resource as u32 * 1_000_000,
            uid: resource as u32 * 1_000_000,
            padding,
            has_stable_bodies,
        };
        for write in first {
            truth.write(write, 1);
        }
        truth.version = truth.version.max(FIRST_VERSION);
        truth.begin();
        truth
    }

    /// Returns the current history.
    pub(crate) fn current(&self) -> &Epoch {
        self.epochs.last().expect("there is always a history")
    }

    pub(crate) fn list(&self) -> Upstream {
        Upstream::List(self.seen.values().cloned().collect(), self.not_served(), self.version)
    }

    /// Formats a version.
    pub(crate) fn text(&self, epoch: usize, version: u64) -> String {
        if self.has_lineage { format!("life{epoch}.{version}") } else { version.to_string() }
    }

    /// Parses a version of an epoch; None if it is not one.
    pub(crate) fn number(&self, epoch: usize, text: &str) -> Option<u64> {
        let digits = if self.has_lineage { text.strip_prefix(&format!("life{epoch}."))? } else { text };
        digits.parse().ok()
    }

    /// Writes, and reports the write. Versions are not contiguous: each is `step` past the one before.
    pub(crate) fn say(&mut self, write: &Write, step: u64) -> Upstream {
        match write {
            Write::Repeat => return self.last.clone(),
            Write::Convert(_) => return self.say(&Write::Bookmark, step),
            Write::Close => return self.close(),
            _ => {}
        }
        let before = self.seen_version();
        let upstream = self.write(write, step);
        let changes = self.see(&upstream);
        self.tell(before, changes, upstream)
    }

    /// Writes all at one version, and reports it; of two writes to one object only the first.
    pub(crate) fn say_at_once(&mut self, writes: &[Write], step: u64) -> Upstream {
        let before = self.seen_version();
        let (mut keys, mut told, mut changes) = (BTreeSet::new(), Vec::new(), Vec::new());
        for write in writes {
            let (Write::Put(key, ..) | Write::Delete(key) | Write::Recreate(key) | Write::Outgrow(key)) = write else {
                continue;
            };
            if keys.insert(*key) {
                let upstream = self.write(write, if told.is_empty() { step } else { 0 });
                changes.extend(self.see(&upstream));
                told.push(upstream);
            }
        }
        if told.is_empty() {
            return self.say(&Write::Bookmark, step);
        }
        self.tell(before, changes, Upstream::Transaction(told))
    }

    /// Writes, and reports it at a version that may still get more: at the open one, or else at the next. Returns None if the
    /// object was written at that version before.
    pub(crate) fn say_open(&mut self, write: &Write, step: u64) -> Option<Upstream> {
        let (Write::Put(key, ..) | Write::Delete(key) | Write::Recreate(key)) = write else { return None };
        let key_of = |said: &Upstream| match said {
            Upstream::Open(said) => match &**said {
                Upstream::Put(held) | Upstream::Deleted(held, _) => Some(held.pod.key),
                _ => None,
            },
            _ => None,
        };
        if self.open.iter().any(|said| key_of(said) == Some(*key)) {
            return None;
        }
        let step = if self.open.is_empty() { step.max(1) } else { 0 };
        let upstream = self.write(write, step);
        let changes = self.see(&upstream);
        let (before, said) = (self.version - 1, Upstream::Open(Box::new(upstream)));
        self.push(Batch { is_open: true, ..Batch::new(before, self.version, changes) });
        self.open.push(said.clone());
        self.last = said.clone();
        Some(said)
    }

    /// Returns the messages that a Reflector receives when it reconnects at an open version: all changes since the version
    /// before.
    pub(crate) fn say_again(&self, first: Reconnected) -> Vec<Upstream> {
        let (epoch, version) = (self.current(), self.safe_version());
        let complete = epoch.batches.iter().take_while(|batch| batch.after <= version).count();
        let state = || epoch.state_at(complete, Selection::All).into_values().collect();
        let first = match first {
            _ if self.open.is_empty() => None,
            Reconnected::Again => None,
            Reconnected::Bookmark => Some(Upstream::Bookmark(version)),
            Reconnected::List => Some(Upstream::List(state(), self.not_served(), version)),
        };
        first.into_iter().chain(self.open.iter().cloned()).collect()
    }

    /// Returns true if more changes may come at the last version.
    pub(crate) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Reports that the last version is complete.
    fn close(&mut self) -> Upstream {
        let before = self.safe_version();
        self.tell(before, Vec::new(), Upstream::Bookmark(self.seen_version()))
    }

    fn tell(&mut self, before: u64, changes: Vec<Change>, upstream: Upstream) -> Upstream {
        self.push(Batch::new(before, self.version, changes));
        self.last = upstream.clone();
        self.open.clear();
        upstream
    }

    /// Applies a reported write to `seen`, and returns its changes.
    fn see(&mut self, upstream: &Upstream) -> Vec<Change> {
        let change = |old, new, version| Change { old, new, version, cause: Cause::Unspecified };
        match upstream {
            Upstream::Put(new) => match self.seen.insert(new.pod.key, Rc::clone(new)) {
                Some(old) if old.pod.uid != new.pod.uid => {
                    vec![change(Some(old), None, new.version), change(None, Some(Rc::clone(new)), new.version)]
                }
                old => vec![change(old, Some(Rc::clone(new)), new.version)],
            },
            Upstream::Deleted(last, version) => {
                let old = self.seen.remove(&last.pod.key);
                old.map(|old| change(Some(old), None, *version)).into_iter().collect()
            }
            Upstream::NotServed(new) => {
                let old = self.seen.remove(&new.pod.key);
                let cause = |old: &Held| if old.pod.uid == new.pod.uid { Cause::NotServed } else { Cause::Unspecified };
                let gone = |old: Rc<Held>| Change { cause: cause(&old), ..change(Some(old), None, new.version) };
                old.map(gone).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the objects that exist and cannot be served.
    fn not_served(&self) -> Vec<Rc<Held>> {
        self.world.values().filter(|held| !held.is_served).cloned().collect()
    }

    /// Writes without a report.
    pub(crate) fn write(&mut self, write: &Write, step: u64) -> Upstream {
        // A conversion does not change the version.
        self.version += if matches!(write, Write::Convert(_)) { 0 } else { step };
        self.serial += 1;
        match write {
            Write::Put(key, app, node) => {
                let uid = self.world.get(key).map(|held| held.pod.uid);
                self.put(*key, uid, *app, *node)
            }
            Write::Recreate(key) => {
                let held = self.world.get(key).cloned();
                let (app, node) = held.map_or((None, None), |held| (held.pod.app, held.pod.node));
                self.put(*key, None, app, node)
            }
            Write::Outgrow(key) => {
                let uid = self.world.get(key).map(|held| held.pod.uid);
                let Upstream::Put(mut held) = self.put(*key, uid, None, None) else { unreachable!("it puts") };
                Rc::make_mut(&mut held).is_served = false;
                self.world.insert(*key, Rc::clone(&held));
                Upstream::NotServed(held)
            }
            Write::Delete(key) => match self.world.remove(key) {
                Some(last) => Upstream::Deleted(last, self.version),
                None => Upstream::Deleted(self.held(*key, 0, None, None), self.version),
            },
            Write::Convert(key) => {
                let held = self.world.get(key).filter(|held| held.is_served && !self.has_stable_bodies).cloned();
                if let Some(Pod { uid, app, node, .. }) = held.as_ref().map(|held| held.pod.clone()) {
                    let converted = self.held(*key, uid, app, node);
                    let (pod, body) = (converted.pod.clone(), converted.body.clone());
                    let version = held.map_or(self.version, |held| held.version);
                    self.world.insert(*key, Rc::new(Held { pod, version, body, is_served: true }));
                }
                Upstream::Bookmark(self.version)
            }
            Write::Bookmark | Write::Close | Write::Repeat => Upstream::Bookmark(self.version),
        }
    }

    /// Returns the last version that was reported.
    pub(crate) fn seen_version(&self) -> u64 {
        let epoch = self.current();
        epoch.batches.last().map_or(epoch.start, |batch| batch.after)
    }

    /// Returns the last version that is complete.
    pub(crate) fn safe_version(&self) -> u64 {
        self.current().safe_at(self.current().batches.len())
    }

    /// Adds a server that begins at the current state.
    pub(crate) fn begin_server(&mut self) {
        self.servers.push((self.epochs.len() - 1, self.seen_version(), self.current().batches.len()));
    }

    /// Returns the number of batches that a server has applied, from its version, the version from which its clients resume
    /// (`safe`), and its number of changes. Batches at the same version differ only in the number of changes.
    pub(crate) fn batches_at(&self, server: usize, epoch: usize, (version, safe, changes): (u64, u64, u64)) -> usize {
        let (began, _, first) = self.servers[server];
        let count = |batches: &[Batch]| batches.iter().map(|batch| batch.changes.len() as u64).sum::<u64>();
        let first_of = |at: usize| if at == began { first } else { 0 };
        let mut total: u64 = (began..epoch).map(|at| count(&self.epochs[at].batches[first_of(at)..])).sum();
        let batches = &self.epochs[epoch].batches;
        let mut applied = 0;
        for (at, batch) in batches.iter().enumerate() {
            let is_known = at < first_of(epoch);
            total += if is_known { 0 } else { batch.changes.len() as u64 };
            let is_beside = |at: usize| batches.get(at).is_some_and(|other| other.after == batch.after);
            let is_one_of_several = is_beside(at + 1) || at.checked_sub(1).is_some_and(is_beside);
            let is_missing = is_one_of_several && !is_known && (total > changes || batch.safe() > safe);
            if batch.after > version || is_missing {
                break;
            }
            applied = at + 1;
        }
        applied
    }

    /// Records how far a server has got.
    pub(crate) fn applied(&mut self, server: usize, epoch: usize, batches: usize, now: Duration) {
        self.epochs[epoch].applied(server, batches, now);
    }

    /// Returns for a client that has everything up to `version`: true if the server may expire it, and true if it must.
    pub(crate) fn expiry(&self, version: u64, moment: &Moment) -> (bool, bool) {
        let epoch = &self.epochs[moment.epoch];
        let (start, first) = match self.servers[moment.server] {
            (began, start, first) if began == moment.epoch => (start, first),
            _ => (epoch.start, 0),
        };
        let is_in_gap = epoch.is_in_gap(version, moment.batches);
        let is_before = |bounds, sweep| version < epoch.oldest(bounds, sweep, self.has_lineage, (start, first), moment);
        let Bounds { bytes, .. } = self.bounds;
        let tight = Bounds { bytes: bytes - bytes / 10, ..self.bounds };
        let lazy = Bounds { bytes: bytes + bytes / 10, ..self.bounds };
        let (mut may_be, mut must_be) =
            (is_in_gap || is_before(tight, Duration::ZERO), is_in_gap || is_before(lazy, SWEEP_INTERVAL));
        // A late batch keeps the batches before it, if they were still there.
        if epoch.batches[first.min(moment.batches)..moment.batches].iter().any(Batch::is_late) {
            (may_be, must_be) = (true, is_in_gap);
        }
        (may_be, must_be)
    }

    /// Returns true if the bytes that servers retain for lagging clients are bounded.
    pub(crate) fn keeps_few_bytes(&self) -> bool {
        self.window.bytes.min(self.bounds.bytes) < Bounds::ANY_BYTES
    }

    /// Returns true if a server may have discarded changes after so many batches because of their bytes. A merging client that had not
    /// read them receives them from the history.
    pub(crate) fn may_exceed_bytes(&self, epoch: usize, batches: usize, moment: &Moment) -> bool {
        let Self { epochs, window: Bounds { bytes, .. }, .. } = self;
        let end = if epoch == moment.epoch { moment.batches } else { epochs[epoch].batches.len() };
        epochs[epoch].bytes_between(moment.server, batches, end) > bytes - bytes / 10
    }

    /// Returns true if a server may discard the changes after so many batches, now or soon. A merging client that has not read
    /// them does not receive them one by one then.
    pub(crate) fn may_be_forgotten(&self, epoch: usize, batches: usize) -> bool {
        // The server keeps or discards together the changes that it gathers in one step.
        const GATHERED: usize = 64;
        let since: usize = self.epochs[epoch].batches.iter().skip(batches).map(|batch| batch.changes.len()).sum();
        let is_kept = |Bounds { age, events, bytes }: Bounds| {
            age >= LONG && events > 2 * (since + GATHERED) && bytes == Bounds::ANY_BYTES
        };
        !(is_kept(self.bounds) && is_kept(self.window))
    }

    /// Returns the number of batches after which a client that has everything up to a version resumes at a server. The server
    /// replays late changes, except those that it began with.
    pub(crate) fn passed(&self, version: u64, moment: &Moment) -> usize {
        self.never_told(version, moment).end
    }

    /// Returns the late batches that a server does not replay after a version because its first list contained them, so that it
    /// has them not as changes. A client that resumes from the version of that list may have them or not: the request is the
    /// same, and the server accepts it.
    pub(crate) fn never_told(&self, version: u64, moment: &Moment) -> Range<usize> {
        let passed = self.epochs[moment.epoch].passed(version);
        match self.servers[moment.server] {
            (epoch, start, first) if (epoch, start) == (moment.epoch, version) => passed..passed.max(first),
            _ => passed..passed,
        }
    }

    fn begin(&mut self) {
        self.open.clear();
        self.seen = self.served();
        self.last = Upstream::Bookmark(self.version);
        self.epochs.push(Epoch { start: self.version, state: self.seen.clone(), batches: Vec::new() });
    }

    /// Returns the objects that exist and can be served.
    fn served(&self) -> State {
        self.world.iter().filter(|(_, held)| held.is_served).map(|(key, held)| (*key, Rc::clone(held))).collect()
    }

    fn push(&mut self, batch: Batch) {
        self.epochs.last_mut().expect("there is always a history").batches.push(batch);
    }

    fn put(&mut self, key: Key, uid: Option<u32>, app: Option<&'static str>, node: Option<&'static str>) -> Upstream {
        let uid = uid.unwrap_or_else(|| {
            self.uid += 1;
            self.uid
        });
        let held = self.held(key, uid, app, node);
        self.world.insert(key, Rc::clone(&held));
        Upstream::Put(held)
    }

    fn held(&self, key: Key, uid: u32, app: Option<&'static str>, node: Option<&'static str>) -> Rc<Held> {
        let pod = Pod { key, uid, app, node, serial: self.serial, padding: self.padding };
        Rc::new(Held { version: self.version, body: pod.body(), pod, is_served: true })
    }
}

impl Bounds {
    /// Bound that is never reached.
    pub(crate) const ANY_BYTES: usize = 1 << 40;
}
