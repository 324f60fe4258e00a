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
//! - An object that no file contains any more is served until the engine deletes it.
//! - A file with parts that cannot be read keeps its last good objects, unless they are among the readable ones.
//! - A missing file keeps its objects until it is deleted, but of two objects with one key that of an existing file has
//!   precedence: a file that was moved and changed is served at once. A file that reappears without any readable content stays
//!   missing, because its earlier content is older.
//!
//! `scan` finds files, `read` and `decode` read them; `source::problems` reports problems.

mod uids;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    sync::Arc,
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

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
    unclaimed: BTreeMap<ObjectKey, Arc<Object>>,
    /// Keys with more than one claim.
    contested: BTreeSet<ObjectKey>,
    /// Number of objects of each kind, served or waiting. An object without a kind is not counted.
    kinds: BTreeMap<Box<str>, usize>,
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
    pub(super) finding: Finding,
}

#[derive(Debug)]
pub(super) enum Finding {
    /// The file was read. A `None` stamp is not trusted: the next scan reads the file again.
    Read {
        /// Identity of the file; `None` if it could not be opened.
        id: Option<FileId>,
        stamp: Option<Stamp>,
        content: Content,
    },
    /// The file was not found. Its objects are served, except for those that an existing file contains as well.
    Missing,
    /// The file was missing, and exists again unchanged. Not for one that cannot be used, or is being written.
    Found,
    /// The file was deleted, and its objects with it.
    Gone,
}

/// Content of a file that was read.
#[derive(Debug)]
pub(super) enum Content {
    /// All of its objects. They have [`Catalog::next_version`]; the catalog replaces it where another one is due.
    Objects(Vec<Object>),
    /// Exactly its known objects, according to [`Catalog::holds`]. A scan meets a file once.
    Same,
    /// Objects of the parts that could be read, and the others: incomplete, too large or not readable. The last good objects
    /// that are not among these stay.
    Partial(Vec<Object>, Unread),
}

#[derive(Debug, Default)]
struct FileRecord {
    stamp: Option<Stamp>,
    /// Identity of the file that was last opened, unless the stamp has it.
    opened: Option<Box<FileId>>,
    is_missing: bool,
    /// Objects of the file, nearly always one.
    objects: SmallVec<[Arc<Object>; 1]>,
    /// Number of those at their end that are the last good ones, and may be in a part that cannot be read now.
    kept: u32,
}

/// Claim of a file on a key. The order of claims is their precedence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    key: ObjectKey,
    /// True if the file is missing.
    is_missing: bool,
    path: Arc<str>,
    position: u32,
}

/// Objects served before an application, under the keys that it touches.
type Before = HashMap<ObjectKey, Option<Arc<Object>>, RandomState>;

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
            contested: BTreeSet::new(),
            kinds: BTreeMap::new(),
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
            objects.extend(self.unclaimed.values().cloned());
            objects.sort_unstable_by(|a, b| a.key().cmp(b.key()));
        }
        objects
    }

    /// Returns the served objects that no file contains any more, by key.
    pub(super) fn unclaimed(&self) -> &BTreeMap<ObjectKey, Arc<Object>> {
        &self.unclaimed
    }

    /// Returns the known file at this path, and its stamp.
    pub(super) fn file(&self, path: &str) -> Option<(&Arc<str>, Option<&Stamp>)> {
        self.files.get_key_value(path).map(|(path, record)| (path, record.stamp.as_ref()))
    }

    /// Returns a known file's identity when it was last read, and the number of its objects.
    pub(super) fn read_as(&self, path: &str) -> Option<(FileId, usize)> {
        let record = self.files.get(path)?;
        record.id().map(|id| (id, record.objects.len()))
    }

    /// Returns true if a file at this path may have had objects: it has some, or nothing is known of it.
    pub(super) fn may_have_had(&self, path: &str) -> bool {
        self.number == 0 || self.unread.contains_key(path) || self.has_objects(path)
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

    /// Returns the number of known files.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the kinds of all objects.
    pub(super) fn kinds(&self) -> impl ExactSizeIterator<Item = &str> {
        self.kinds.keys().map(|kind| &**kind)
    }

    /// Returns the files with parts that cannot be read: the path, the parts, and the number of last good objects that are kept
    /// for them.
    pub(super) fn unread(&self) -> impl Iterator<Item = (&Arc<str>, &Unread, usize)> {
        let kept = |path| self.files.get(path).map_or(0, |record| record.kept as usize);
        self.unread.iter().map(move |(path, unread)| (path, unread, kept(path)))
    }

    /// Returns the existing ones among these that may contain any object: there are more parts than last good objects.
    pub(super) fn unknown(&self) -> impl Iterator<Item = (&Arc<str>, &Unread)> {
        let is_missing = |path| self.files.get(path).is_some_and(|record| record.is_missing);
        let unknown = self.unread().filter(move |(path, unread, kept)| unread.count > *kept && !is_missing(*path));
        unknown.map(|(path, unread, _)| (path, unread))
    }

    /// Returns true if the file at this path has objects.
    pub(super) fn has_objects(&self, path: &str) -> bool {
        self.files.get(path).is_some_and(|record| !record.objects.is_empty())
    }

    /// Begins with the objects of an earlier run, and the keys of each file as it was read last. No file has them yet.
    pub(super) fn resume(&mut self, files: Vec<(Arc<str>, Vec<ObjectKey>)>, objects: Vec<Arc<Object>>) {
        self.number = 1;
        let objects: BTreeMap<_, _> = objects.into_iter().map(|object| (object.key().clone(), object)).collect();
        self.uids.resume(objects.values());
        for (path, keys) in files {
            let known: SmallVec<[Arc<Object>; 1]> = keys.iter().filter_map(|key| objects.get(key).cloned()).collect();
            let kept = known.len() as u32;
            for object in &known {
                self.count_kind(object.kind(), true);
            }
            let record = FileRecord { objects: known, kept, ..FileRecord::default() };
            self.claims.extend(record.claims(&path));
            self.files.insert(path, Box::new(record));
        }
        let is_claimed = |key: &ObjectKey| self.claims_of(key).next().is_some();
        self.unclaimed = objects.into_iter().filter(|(key, _)| !is_claimed(key)).collect();
    }

    /// Returns the files, and the keys of their objects.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&Arc<str>, impl Iterator<Item = &ObjectKey>)> {
        self.files.iter().map(|(path, record)| (path, record.objects.iter().map(|object| object.key())))
    }

    /// Returns the objects that are not served because another one has their key: the key, the served path, the waiting
    /// path.
    pub(super) fn duplicates(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<str>, &Arc<str>)> {
        self.contested.iter().flat_map(move |key| {
            let served = self.claims_of(key).next().map(|claim| &claim.path);
            let waiting = || self.claims_of(key).skip(1).filter(|claim| !claim.is_missing);
            served.into_iter().flat_map(move |served| waiting().map(move |claim| (key, served, &claim.path)))
        })
    }

    /// Deletes these of the objects that no file contains any more. Returns the deletions.
    pub(super) fn delete(&mut self, keys: &[ObjectKey]) -> Vec<Event> {
        let deleted: Vec<_> = keys.iter().filter_map(|key| self.unclaimed.remove(key)).collect();
        let deleted = deleted.into_iter().map(|object| {
            self.uids.release(&object);
            self.number += 1;
            Event::Deleted(Arc::new(object.at_version(self.version())))
        });
        deleted.collect()
    }

    /// Applies the result of a scan, as a whole. Returns the changes, sorted by key, without deletions. The first application has
    /// no events, because there was no state before it.
    pub(super) fn apply(&mut self, changes: Vec<FileChange>) -> Vec<Event> {
        let mut before = Before::default();
        for change in changes {
            self.take_over(change, &mut before);
        }
        let first = self.number == 0;
        let mut touched: Vec<_> = before.into_iter().collect();
        touched.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let mut events = Vec::new();
        let mut present = Vec::new();
        for (key, old) in touched {
            let (winner, is_contested) = {
                let mut claims = self.claims_of(&key);
                (claims.next().cloned(), claims.next().is_some())
            };
            if is_contested {
                self.contested.insert(key.clone());
            } else {
                self.contested.remove(&key);
            }
            match (old, winner) {
                (Some(old), None) => drop(self.unclaimed.insert(key, old)),
                (old, Some(winner)) => {
                    self.unclaimed.remove(&key);
                    present.push((old, winner));
                }
                (None, None) => {}
            }
        }
        if first {
            // All at once: the objects were decoded with version 1 already.
            self.number = 1;
            // In the order of their keys, the nodes are left half empty.
            self.claims = std::mem::take(&mut self.claims).into_iter().collect();
            self.claim_uids();
            return events;
        }
        for (old, winner) in present {
            events.extend(self.serve(old, &winner));
        }
        events
    }

    fn take_over(&mut self, change: FileChange, before: &mut Before) {
        let FileChange { path, finding } = change;
        let (id, stamp, content) = match finding {
            Finding::Read { id, stamp, content } => (id, stamp, content),
            Finding::Missing => return self.set_missing(&path, true, before),
            Finding::Found => return self.set_missing(&path, false, before),
            Finding::Gone => {
                self.unread.remove(&path);
                self.replace(&path, Vec::new(), false, before);
                self.files.remove(&path);
                return;
            }
        };
        let record = self.files.entry(path.clone()).or_default();
        record.is_read(id, stamp);
        let is_readable = !matches!(&content, Content::Partial(objects, _) if objects.is_empty());
        if is_readable {
            self.set_missing(&path, false, before);
        }
        match content {
            Content::Same => drop(self.unread.remove(&path)),
            Content::Objects(objects) => {
                self.unread.remove(&path);
                self.replace(&path, objects, false, before);
            }
            Content::Partial(objects, unread) => {
                self.unread.insert(path.clone(), unread);
                self.replace(&path, objects, true, before);
            }
        }
    }

    /// Moves a file's claims behind those of existing files, or back among them.
    fn set_missing(&mut self, path: &Arc<str>, is_missing: bool, before: &mut Before) {
        let Some(record) = self.files.get_mut(path).filter(|record| record.is_missing != is_missing) else { return };
        let old: Vec<_> = record.claims(path).collect();
        record.is_missing = is_missing;
        let new: Vec<_> = record.claims(path).collect();
        self.remember(old.iter().map(|claim| &claim.key), before);
        for claim in &old {
            self.claims.remove(claim);
        }
        self.claims.extend(new);
    }

    /// Records the objects served under these keys, unless they are recorded already.
    fn remember<'k>(&self, keys: impl Iterator<Item = &'k ObjectKey>, before: &mut Before) {
        for key in keys {
            if let Entry::Vacant(entry) = before.entry(key.clone()) {
                let claimed = self.claims_of(key).next().and_then(|claim| self.claimed(claim));
                entry.insert(claimed.or_else(|| self.unclaimed.get(key)).cloned());
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
        for (claim, object) in old_claims.iter().zip(&old) {
            self.claims.remove(claim);
            self.count_kind(object.kind(), false);
        }
        for object in &objects {
            self.count_kind(object.kind(), true);
        }
        if let Some(record) = self.files.get_mut(path) {
            record.kept = (objects.len() - read) as u32;
            record.objects = objects;
            self.claims.extend(record.claims(path));
        }
    }

    /// Serves the first claim of a key: `old` itself if it is the same, or else a change with its version.
    fn serve(&mut self, old: Option<Arc<Object>>, winner: &Claim) -> Option<Event> {
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
        let object = slot.clone();
        self.number += 1;
        Some(if added { Event::Added(object) } else { Event::Modified(object) })
    }

    /// Returns the claims on a key, the served one first.
    fn claims_of<'c>(&'c self, key: &'c ObjectKey) -> impl Iterator<Item = &'c Claim> {
        let first = Claim { key: key.clone(), is_missing: false, path: Arc::from(""), position: 0 };
        self.claims.range(first..).take_while(move |claim| claim.key == *key)
    }

    fn claimed(&self, claim: &Claim) -> Option<&Arc<Object>> {
        self.files.get(&claim.path)?.objects.get(claim.position as usize)
    }

    fn count_kind(&mut self, kind: &str, more: bool) {
        if kind.is_empty() {
            return;
        }
        match self.kinds.get_mut(kind) {
            Some(count) if more => *count += 1,
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                self.kinds.remove(kind);
            }
            None => {
                self.kinds.insert(kind.into(), 1);
            }
        }
    }
}

// === impl FileRecord ===

impl FileRecord {
    /// Returns the claims of the file at this path on the keys of its objects.
    fn claims(&self, path: &Arc<str>) -> impl Iterator<Item = Claim> {
        let Self { is_missing, objects, .. } = self;
        (0..).zip(objects).map(move |(position, object)| Claim {
            key: object.key().clone(),
            is_missing: *is_missing,
            path: path.clone(),
            position,
        })
    }

    /// Returns the identity of the file when it was last opened.
    fn id(&self) -> Option<FileId> {
        self.opened.as_deref().copied().or(self.stamp.map(|stamp| stamp.id))
    }

    /// Records that the file was read; without an identity, it could not be opened.
    fn is_read(&mut self, id: Option<FileId>, stamp: Option<Stamp>) {
        let id = id.or(self.id());
        self.opened = id.filter(|id| stamp.is_none_or(|stamp| stamp.id != *id)).map(Box::new);
        self.stamp = stamp;
    }
}

/// Returns true if two objects differ in nothing but their version. Everything else follows from the body, except for the
/// type that a list implies.
fn is_same(a: &Object, b: &Object) -> bool {
    a.body() == b.body() && a.kind() == b.kind() && a.api_version() == b.api_version()
}

#[cfg(test)]
mod tests;
