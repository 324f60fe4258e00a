//! Catalog of the directory: the stamp and objects of each file, and the served object of each key.
//!
//! `engine` writes it with the result of each scan; `scan` reads it, and skips unchanged files. No I/O, no clock, no log.
//!
//! Invariants:
//! - Of several objects with one key, the first by path, then by position in the file, is served; the others wait.
//! - Applying the events of [`Catalog::apply`] to the objects before it gives the objects after it.
//! - The same bytes make no event and keep their version, whichever file they come from: a renamed file, or a waiting object
//!   that replaces an equal one, changes nothing.
//! - Every event is one version after the event before it; the first application is version 1 as a whole.
//! - No two served objects have one uid.
//! - An object that no file contains any more, also because its file is missing, is served until the engine deletes it. A file
//!   that contains it has precedence: an object that was moved and changed is served at once.
//! - A file with parts that cannot be read keeps its last good objects, unless they are among the readable ones.
//!
//! `scan` finds files, `read` and `decode` read them; `source::problems` reports problems.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    sync::Arc,
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{decode::Unread, root::FileId};
use crate::{
    model::{Event, Lineage, Object, ObjectKey, ResourceVersion},
    source::uids::Uids,
};

/// Catalog of one directory. A file's path is relative to the root, in UTF-8, with `/` between its parts.
#[derive(Debug)]
pub(super) struct Catalog {
    lineage: Lineage,
    /// Number of the last change; 0 before the first application.
    number: u128,
    /// Records of the files, boxed: up to half of the table is unused.
    files: HashMap<Arc<str>, Box<FileRecord>, RandomState>,
    /// Claims of files on keys, the served one of a key first.
    claims: BTreeSet<Claim>,
    /// Served objects that no file contains any more.
    unclaimed: BTreeMap<ObjectKey, Unclaimed>,
    uids: Uids,
    /// Files that could not be read completely when they were last read.
    unread: BTreeMap<Arc<str>, Unread>,
}

/// Identity and state of a file from `stat`. Two equal stamps mean the same bytes, unless the file had been changed so
/// shortly before that a later change may have the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) id: FileId,
    pub(super) size: u64,
    /// Modification time in nanoseconds since the epoch.
    pub(super) mtime: i64,
    /// Time of the last status change in nanoseconds since the epoch.
    pub(super) ctime: i64,
}

/// Result of a scan for one file.
#[derive(Debug)]
pub(super) struct FileChange {
    pub(super) path: Arc<str>,
    /// State of the file when it was read; `None` if it could not be opened.
    pub(super) stamp: Option<Stamp>,
    /// False if the next scan has to read the file again.
    pub(super) is_trusted: bool,
    pub(super) content: Content,
}

/// Content of a file.
#[derive(Debug)]
pub(super) enum Content {
    /// All of its objects. They have [`Catalog::next_version`]; the catalog replaces it where another one is due.
    Objects(Vec<Object>),
    /// Exactly its known objects, according to [`Catalog::holds`]. A scan meets a file once.
    Same,
    /// Objects of the parts that could be read, and the others: incomplete, too large or not readable. The last good objects
    /// that are not among these stay.
    Partial(Vec<Object>, Unread),
    /// The file does not exist any more.
    Absent,
}

/// Known file.
#[derive(Debug, Default)]
pub(super) struct FileRecord {
    /// State of the file when it was last opened.
    pub(super) stamp: Option<Stamp>,
    pub(super) is_trusted: bool,
    /// Objects of the file, nearly always one.
    pub(super) objects: SmallVec<[Arc<Object>; 1]>,
    /// Number of those at their end that are the last good ones, and may be in a part that cannot be read now.
    kept: u32,
}

/// Claim of a file on a key. The order of claims is their precedence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    key: ObjectKey,
    path: Arc<str>,
    position: u32,
}

/// Served object that no file contains any more.
#[derive(Debug)]
struct Unclaimed {
    object: Arc<Object>,
    /// File that had it last.
    path: Arc<str>,
    since: Instant,
}

/// Objects served before an application with their files, under the keys that it touches.
type Before = HashMap<ObjectKey, Option<(Arc<Object>, Arc<str>)>, RandomState>;

// === impl Catalog ===

impl Catalog {
    /// Returns an empty catalog before its first application.
    pub(super) fn new(lineage: Lineage) -> Self {
        Self {
            lineage,
            number: 0,
            files: HashMap::default(),
            claims: BTreeSet::new(),
            unclaimed: BTreeMap::new(),
            uids: Uids::default(),
            unread: BTreeMap::new(),
        }
    }

    /// Returns the version of the last change.
    pub(super) fn version(&self) -> ResourceVersion {
        ResourceVersion::of_lineage(self.lineage.clone(), self.number)
    }

    /// Returns the version that the next change gets.
    pub(super) fn next_version(&self) -> ResourceVersion {
        self.version().next()
    }

    /// Returns all served objects, sorted by key.
    pub(super) fn objects(&self) -> Vec<Arc<Object>> {
        let mut objects = Vec::with_capacity(self.claims.len());
        let mut last: Option<&ObjectKey> = None;
        for claim in &self.claims {
            if last != Some(&claim.key) {
                objects.extend(self.claimed(claim).cloned());
            }
            last = Some(&claim.key);
        }
        if !self.unclaimed.is_empty() {
            objects.extend(self.unclaimed.values().map(|unclaimed| unclaimed.object.clone()));
            objects.sort_unstable_by(|a, b| a.key().cmp(b.key()));
        }
        objects
    }

    /// Returns the time since which there are served objects that no file contains any more; `None` without any.
    pub(super) fn unclaimed_since(&self) -> Option<Instant> {
        self.unclaimed.values().map(|unclaimed| unclaimed.since).min()
    }

    /// Returns the known file at this path.
    pub(super) fn file(&self, path: &str) -> Option<(&Arc<str>, &FileRecord)> {
        self.files.get_key_value(path).map(|(path, record)| (path, &**record))
    }

    /// Returns true if a file at this path may have had objects: it has or had some, or nothing is known of it.
    pub(super) fn may_have_had(&self, path: &str) -> bool {
        self.number == 0
            || self.unread.contains_key(path)
            || self.files.get(path).is_some_and(|record| !record.objects.is_empty())
            || self.unclaimed.values().any(|unclaimed| *unclaimed.path == *path)
    }

    /// Returns true if these are the known objects of a file. A scan that reads all files again need not keep the unchanged ones
    /// until its end.
    pub(super) fn holds(&self, path: &str, objects: &[Object]) -> bool {
        let is_known = |(known, object): (&Arc<Object>, &Object)| known.key() == object.key() && is_same(known, object);
        let record = self.files.get(path).filter(|record| record.kept == 0);
        record
            .map(|record| &record.objects)
            .is_some_and(|known| known.len() == objects.len() && known.iter().zip(objects).all(is_known))
    }

    /// Returns all known files.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Arc<str>> {
        self.files.keys()
    }

    /// Returns true if a file has an object.
    pub(super) fn has_objects(&self) -> bool {
        !self.claims.is_empty()
    }

    /// Returns the kinds of all objects, served or waiting, except for those without a kind.
    pub(super) fn kinds(&self) -> BTreeSet<Box<str>> {
        let mut kinds = BTreeSet::new();
        for object in self.files.values().flat_map(|record| &record.objects) {
            if !object.kind().is_empty() && !kinds.contains(object.kind()) {
                kinds.insert(object.kind().into());
            }
        }
        kinds
    }

    /// Returns the files with parts that cannot be read: the path, the parts, and the number of last good objects that are kept
    /// for them.
    pub(super) fn unread(&self) -> impl Iterator<Item = (&Arc<str>, &Unread, usize)> {
        let kept = |path| self.files.get(path).map_or(0, |record| record.kept as usize);
        self.unread.iter().map(move |(path, unread)| (path, unread, kept(path)))
    }

    /// Returns the first of these that may contain any object: it has more parts than last good objects.
    pub(super) fn unknown(&self) -> Option<(&Arc<str>, &Unread)> {
        let mut unknown = self.unread().filter(|(_, unread, kept)| unread.count.is_none_or(|count| count > *kept));
        unknown.next().map(|(path, unread, _)| (path, unread))
    }

    /// Begins with the objects of an earlier run, and the keys of each file as it was read last. No file has them yet.
    pub(super) fn resume(&mut self, files: Vec<(Arc<str>, Vec<ObjectKey>)>, objects: Vec<Arc<Object>>) {
        self.number = 1;
        let objects: BTreeMap<_, _> = objects.into_iter().map(|object| (object.key().clone(), object)).collect();
        self.uids.resume(objects.values());
        for (path, keys) in files {
            let known: SmallVec<[Arc<Object>; 1]> = keys.iter().filter_map(|key| objects.get(key).cloned()).collect();
            let kept = known.len() as u32;
            let record = FileRecord { objects: known, kept, ..FileRecord::default() };
            self.claims.extend(record.claims(&path));
            self.files.insert(path, Box::new(record));
        }
        let (path, since) = (Arc::from(""), Instant::now());
        let unclaimed = objects.into_iter().filter(|(key, _)| self.claims_of(key).next().is_none());
        self.unclaimed =
            unclaimed.map(|(key, object)| (key, Unclaimed { object, path: Arc::clone(&path), since })).collect();
    }

    /// Returns the files, and the keys of their objects.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&Arc<str>, impl Iterator<Item = &ObjectKey>)> {
        self.files.iter().map(|(path, record)| (path, record.objects.iter().map(|object| object.key())))
    }

    /// Returns the objects that are not served because another one has their key: the key, the served path, the waiting
    /// path.
    pub(super) fn duplicates(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<str>, &Arc<str>)> {
        let mut first: Option<&Claim> = None;
        self.claims.iter().filter_map(move |claim| match first {
            Some(served) if served.key == claim.key => Some((&claim.key, &served.path, &claim.path)),
            _ => {
                first = Some(claim);
                None
            }
        })
    }

    /// Returns the objects with another uid than their own, with the file of each, and the object that has it.
    pub(super) fn repeated_uids(&self) -> impl Iterator<Item = (&Arc<str>, &ObjectKey, &str, Option<&ObjectKey>)> {
        let path = |key| self.claims_of(key).next().map(|claim| &claim.path);
        self.uids.repeated().filter_map(move |(key, uid, other)| Some((path(key)?, key, uid, other)))
    }

    /// Restarts the wait of the objects that no file contains any more.
    pub(super) fn hold(&mut self, now: Instant) {
        self.unclaimed.values_mut().for_each(|unclaimed| unclaimed.since = now);
    }

    /// Deletes those of the objects in no file whose deletion is certain, by the time since which they are. Returns the deletions.
    pub(super) fn delete(&mut self, is_certain: impl Fn(Instant) -> bool) -> Vec<Event> {
        let all = std::mem::take(&mut self.unclaimed).into_iter();
        let (deleted, rest): (BTreeMap<_, _>, _) = all.partition(|(_, unclaimed)| is_certain(unclaimed.since));
        self.unclaimed = rest;
        let deleted = deleted.into_values().map(|unclaimed| {
            self.uids.release(&unclaimed.object);
            self.number += 1;
            Event::Deleted(Arc::new(unclaimed.object.at_version(self.version())))
        });
        deleted.collect()
    }

    /// Applies the result of a scan, as a whole. Returns the changes, sorted by key, without deletions. The first application has
    /// no events, because there was no state before it.
    pub(super) fn apply(&mut self, changes: Vec<FileChange>, now: Instant) -> Vec<Event> {
        let mut before = Before::default();
        for change in changes {
            self.take_over(change, &mut before);
        }
        let first = self.number == 0;
        let mut touched: Vec<_> = before.into_iter().collect();
        touched.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let mut events = Vec::new();
        for (key, old) in touched {
            let winner = self.claims_of(&key).next().cloned();
            match (old, winner) {
                (Some((object, path)), None) => {
                    self.unclaimed.entry(key).or_insert(Unclaimed { object, path, since: now });
                }
                (old, Some(winner)) => {
                    self.unclaimed.remove(&key);
                    events.extend(self.serve(old.map(|(object, _)| object), &winner, first));
                }
                (None, None) => {}
            }
        }
        if first {
            self.number = 1;
            // In the order of their keys, the nodes are left half empty.
            self.claims = std::mem::take(&mut self.claims).into_iter().collect();
        }
        events
    }

    fn take_over(&mut self, change: FileChange, before: &mut Before) {
        let FileChange { path, stamp, is_trusted, content } = change;
        let record = self.files.entry(path.clone()).or_default();
        (record.stamp, record.is_trusted) = (stamp.or(record.stamp), is_trusted);
        if let Content::Partial(_, unread) = &content {
            self.unread.insert(path.clone(), unread.clone());
        } else {
            self.unread.remove(&path);
        }
        match content {
            Content::Same => {}
            Content::Objects(objects) => self.replace(&path, objects, false, before),
            Content::Partial(objects, _) => self.replace(&path, objects, true, before),
            Content::Absent => {
                self.replace(&path, Vec::new(), false, before);
                self.files.remove(&path);
            }
        }
    }

    /// Records the objects served under these keys, unless they are recorded already.
    fn remember<'k>(&self, keys: impl Iterator<Item = &'k ObjectKey>, before: &mut Before) {
        for key in keys {
            if let Entry::Vacant(entry) = before.entry(key.clone()) {
                let claim = self.claims_of(key).next();
                let claimed = claim.and_then(|claim| Some((self.claimed(claim)?.clone(), claim.path.clone())));
                let unclaimed = || self.unclaimed.get(key).map(|of| (of.object.clone(), of.path.clone()));
                entry.insert(claimed.or_else(unclaimed));
            }
        }
    }

    /// Replaces a file's objects with `new`, and records the objects served under the keys of both. With `keeps`, old ones that are
    /// not among the new ones stay behind them.
    fn replace(&mut self, path: &Arc<str>, new: Vec<Object>, keeps: bool, before: &mut Before) {
        let Some(record) = self.files.get(path) else { return };
        let (old, old_claims) = (record.objects.clone(), record.claims(path).collect::<Vec<_>>());
        let mut objects: SmallVec<[Arc<Object>; 1]> = new.into_iter().map(Arc::new).collect();
        let read = objects.len();
        if keeps {
            let keys: HashSet<ObjectKey, RandomState> = objects.iter().map(|object| object.key().clone()).collect();
            objects.extend(old.iter().filter(|object| !keys.contains(object.key())).cloned());
        }
        self.remember(old.iter().chain(&objects).map(|object| object.key()), before);
        for claim in &old_claims {
            self.claims.remove(claim);
        }
        if let Some(record) = self.files.get_mut(path) {
            record.kept = (objects.len() - read) as u32;
            record.objects = objects;
            self.claims.extend(record.claims(path));
        }
    }

    /// Serves the first claim of a key: `old` itself if it is the same, or else a change with its version, unless the state is
    /// the first one.
    fn serve(&mut self, old: Option<Arc<Object>>, winner: &Claim, first: bool) -> Option<Event> {
        let next = self.next_version();
        let slot = self.files.get_mut(&winner.path)?.objects.get_mut(winner.position as usize)?;
        let added = match old {
            Some(old) if is_same(&old, slot) => {
                *slot = old;
                return None;
            }
            old => {
                if let Some(other) = self.uids.claim(slot, old.as_deref()) {
                    *slot = Arc::new(other);
                }
                old.is_none()
            }
        };
        if *slot.version() != next {
            *slot = Arc::new(slot.at_version(next));
        }
        if first {
            return None;
        }
        let object = slot.clone();
        self.number += 1;
        Some(if added { Event::Added(object) } else { Event::Modified(object) })
    }

    /// Returns the claims on a key, the served one first.
    fn claims_of<'c>(&'c self, key: &'c ObjectKey) -> impl Iterator<Item = &'c Claim> {
        let first = Claim { key: key.clone(), path: Arc::from(""), position: 0 };
        self.claims.range(first..).take_while(move |claim| claim.key == *key)
    }

    fn claimed(&self, claim: &Claim) -> Option<&Arc<Object>> {
        self.files.get(&claim.path)?.objects.get(claim.position as usize)
    }
}

// === impl FileRecord ===

impl FileRecord {
    /// Returns the claims of the file at this path on the keys of its objects.
    fn claims(&self, path: &Arc<str>) -> impl Iterator<Item = Claim> {
        let claim =
            |(position, object): (u32, &Arc<Object>)| Claim { key: object.key().clone(), path: path.clone(), position };
        (0..).zip(&self.objects).map(claim)
    }
}

/// Returns true if two objects differ in nothing but their version. Everything else follows from the body, except for the
/// type that a list implies.
fn is_same(a: &Object, b: &Object) -> bool {
    a.body() == b.body() && a.kind() == b.kind() && a.api_version() == b.api_version()
}

#[cfg(test)]
mod tests;
