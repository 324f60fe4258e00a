//! What really happened: the script's own world, and what of it a server that makes no mistake shows.
//!
//! Written by the harness, one upstream message at a time; read by the verifier. It is a second, naive implementation of
//! what the contract says about changes, batches, relists and selections, and shares no code with the server's. It knows no
//! queue, no group and no cursor: a history is a list of batches from one state on.

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

/// A resource at one moment.
pub(crate) type State = BTreeMap<Key, Rc<Held>>;

/// One change of one object.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) old: Option<Rc<Held>>,
    pub(crate) new: Option<Rc<Held>>,
    /// For a deletion: of the deletion.
    pub(crate) version: u64,
    /// Of a deletion.
    pub(crate) cause: Cause,
}

/// Changes without a point to resume from in between.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) changes: Vec<Change>,
    pub(crate) is_relist: bool,
    /// More may come at its version, or it came at one that was complete before.
    pub(crate) is_open: bool,
    /// When each server was seen to have applied it.
    applied_at: [Option<Duration>; SERVERS],
}

/// One unbroken history. A list that is behind begins the next.
#[derive(Debug)]
pub(crate) struct Epoch {
    pub(crate) start: u64,
    pub(crate) state: State,
    pub(crate) batches: Vec<Batch>,
}

/// What the upstream says to the server.
#[derive(Debug, Clone)]
pub(crate) enum Upstream {
    Put(Rc<Held>),
    /// The last state, at the version of the deletion.
    Deleted(Rc<Held>, u64),
    /// It exists, and cannot be served.
    NotServed(Rc<Held>),
    Bookmark(u64),
    /// All at one version.
    Transaction(Vec<Self>),
    /// More may come at its version.
    Open(Box<Self>),
    /// What can be served, what cannot, and the version.
    List(Vec<Rc<Held>>, Vec<Rc<Held>>, u64),
    /// The same, after a proof that the history is another one.
    Rewritten(Vec<Rc<Held>>, Vec<Rc<Held>>, u64),
    /// The result of a list of the upstream's own, one by one: what else happened up to the last version is not known.
    Relisted(Vec<Self>),
}

/// One write of the script.
#[derive(Debug, Clone)]
pub(crate) enum Write {
    /// Creates or updates.
    Put(Key, Option<&'static str>, Option<&'static str>),
    /// Deletes, whether it exists or not.
    Delete(Key),
    /// Another object under the same key; the deletion in between is not seen.
    Recreate(Key),
    /// Other bytes at the version that the object has, as an upgraded upstream serves them. A watch does not report them.
    Convert(Key),
    /// Creates or updates, with more than can be served.
    Outgrow(Key),
    /// Nothing but a version.
    Bookmark,
    /// A bookmark at the last version: all of it has been said.
    Close,
    /// Says the last thing once more.
    Repeat,
}

/// How far a history can be resumed from is configured: by age, by events and by bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) age: Duration,
    pub(crate) events: usize,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Truth {
    /// Whether versions are `<lineage>.<n>`, with a lineage for each epoch.
    has_lineage: bool,
    pub(crate) bounds: Bounds,
    /// What servers keep for clients that lag, beside their histories.
    window: Bounds,
    /// The writers of the servers have time for every selection.
    pub(crate) has_time: bool,
    pub(crate) epochs: Vec<Epoch>,
    /// In which history, at which version and after how many of its batches each server began.
    servers: Vec<(usize, u64, usize)>,
    /// The upstream's own state; ahead of what it has said while a relist is due.
    world: State,
    version: u64,
    /// What it has said.
    seen: State,
    last: Upstream,
    /// What was said at the last version, as long as more may come at it.
    open: Vec<Upstream>,
    serial: u32,
    uid: u32,
    padding: usize,
    /// Whether the upstream is known to serve the same bytes for ever, so that nothing is converted.
    has_stable_bodies: bool,
}

/// Over the same upstream.
pub(crate) const SERVERS: usize = 2;
/// Where the first history begins: there is room to go back.
const FIRST_VERSION: u64 = 40;
/// No run is so long.
const LONG: Duration = Duration::from_secs(1000);
/// How long an age may be exceeded: expiry is looked for at intervals.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

impl Truth {
    /// A history of a resource that begins with these objects.
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

    /// The current history.
    pub(crate) fn current(&self) -> &Epoch {
        self.epochs.last().expect("there is always a history")
    }

    pub(crate) fn list(&self) -> Upstream {
        Upstream::List(self.seen.values().cloned().collect(), self.not_served(), self.version)
    }

    /// A version as it is written.
    pub(crate) fn text(&self, epoch: usize, version: u64) -> String {
        if self.has_lineage { format!("life{epoch}.{version}") } else { version.to_string() }
    }

    /// A version of an epoch; none for what is not one.
    pub(crate) fn number(&self, epoch: usize, text: &str) -> Option<u64> {
        let digits = if self.has_lineage { text.strip_prefix(&format!("life{epoch}."))? } else { text };
        digits.parse().ok()
    }

    /// Writes, and says so. Versions have holes of their own: each is `step` past the one before.
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

    /// Writes all of it at one version, and says so; of two writes to one object only the first.
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

    /// Writes, and says so at a version at which more may come: at that which is open, or else at the next. Nothing for an
    /// object that was written at it before.
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

    /// What a Reflector that reconnects at an open version is told once more: all of it, from the version before.
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

    /// Whether more may come at the last version.
    pub(crate) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Says that there is nothing more at the last version.
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

    /// What a write that was said changes.
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

    /// What exists and cannot be served.
    fn not_served(&self) -> Vec<Rc<Held>> {
        self.world.values().filter(|held| !held.is_served).cloned().collect()
    }

    /// Writes what nobody is told of.
    pub(crate) fn write(&mut self, write: &Write, step: u64) -> Upstream {
        // Who converts writes nothing.
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

    /// The version that was said last.
    pub(crate) fn seen_version(&self) -> u64 {
        let epoch = self.current();
        epoch.batches.last().map_or(epoch.start, |batch| batch.after)
    }

    /// The last version that all has been said of.
    pub(crate) fn safe_version(&self) -> u64 {
        self.current().safe_at(self.current().batches.len())
    }

    /// One more server begins here.
    pub(crate) fn begin_server(&mut self) {
        self.servers.push((self.epochs.len() - 1, self.seen_version(), self.current().batches.len()));
    }

    /// How many batches a server has applied that is at a version, with so many changes in all, and would have others resume
    /// from `safe`. Of one version, only the changes show how many.
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

    /// Takes note of how far a server has got.
    pub(crate) fn applied(&mut self, server: usize, epoch: usize, batches: usize, now: Duration) {
        for batch in &mut self.epochs[epoch].batches[..batches] {
            batch.applied_at[server].get_or_insert(now);
        }
    }

    /// Whether somebody who was told everything up to `version` may be told that it is expired, and whether it must be.
    pub(crate) fn expiry(&self, version: u64, moment: &Moment) -> (bool, bool) {
        let epoch = &self.epochs[moment.epoch];
        let (start, first) = match self.servers[moment.server] {
            (began, start, first) if began == moment.epoch => (start, first),
            _ => (epoch.start, 0),
        };
        let is_in_gap = epoch.is_in_gap(version, moment.batches);
        let is_before = |bounds| version < epoch.oldest(bounds, (start, first), moment);
        let Bounds { age, bytes, .. } = self.bounds;
        let tight = Bounds { bytes: bytes - bytes / 10, ..self.bounds };
        let lazy = Bounds { age: age + SWEEP_INTERVAL, bytes: bytes + bytes / 10, ..self.bounds };
        let (mut may_be, mut must_be) = (is_in_gap || is_before(tight), is_in_gap || is_before(lazy));
        // What came late keeps what it came after, if that was still there.
        if epoch.batches[first.min(moment.batches)..moment.batches].iter().any(Batch::is_late) {
            (may_be, must_be) = (true, is_in_gap);
        }
        (may_be, must_be)
    }

    /// Whether there is a bound to the bytes that servers keep for clients that lag.
    pub(crate) fn keeps_few_bytes(&self) -> bool {
        self.window.bytes < Bounds::ANY_BYTES
    }

    /// Whether a server may forget, or be about to, what came after so many batches: a client that merges and has not taken it
    /// is not told it one by one then.
    pub(crate) fn may_be_forgotten(&self, epoch: usize, batches: usize) -> bool {
        // What is gathered into one step of the server is kept or forgotten together.
        const GATHERED: usize = 64;
        let since: usize = self.epochs[epoch].batches.iter().skip(batches).map(|batch| batch.changes.len()).sum();
        let is_kept = |Bounds { age, events, bytes }: Bounds| {
            age >= LONG && events > 2 * (since + GATHERED) && bytes == Bounds::ANY_BYTES
        };
        !(is_kept(self.bounds) && is_kept(self.window))
    }

    /// Returns the number of batches after which a client that was told everything up to a version goes on at a server. Late
    /// changes come again, but for those that the server began with.
    pub(crate) fn passed(&self, version: u64, moment: &Moment) -> usize {
        self.never_told(version, moment).end
    }

    /// The batches that came late, and that a server does not tell after a version because it began with them: they are in its
    /// first list, which does not show them as changes. Whoever resumes from the version of that list may have it from there, with
    /// nothing to be told, or from elsewhere, from before them or after them: all send the same request, and all are joined.
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

    /// What exists and can be served.
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
    /// No bound of bytes.
    pub(crate) const ANY_BYTES: usize = 1 << 40;
}
