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
//! - An object that no file contains any more is served until the engine deletes it.
//! - An unusable file changes nothing but the list of unusable files.
//! - A missing file keeps its objects until it is deleted, but of two objects with one key that of an existing file has
//!   precedence: a file that was moved and changed is served at once. A file that reappears without usable content stays
//!   missing, because its earlier content is older.
//!
//! `scan` finds files, `read` and `decode` read them; `source::problems` reports problems.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    sync::Arc,
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::root::FileId;
use crate::model::{Event, Lineage, Object, ObjectKey, ResourceVersion};

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
    /// Files whose content could not be used when it was last read, with the reason.
    unusable: BTreeMap<Arc<str>, String>,
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
    /// White space only.
    Blank,
    /// Unusable: incomplete, too large or not readable. The last good objects stay.
    Unusable(String),
}

#[derive(Debug, Default)]
struct FileRecord {
    stamp: Option<Stamp>,
    /// Identity of the file that was last opened, unless the stamp has it.
    opened: Option<Box<FileId>>,
    is_missing: bool,
    /// Objects of the file, nearly always one.
    objects: SmallVec<[Arc<Object>; 1]>,
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

/// Reason for a file that has become empty.
const BLANK: &str = "file is empty; delete it to delete its objects";

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
            unusable: BTreeMap::new(),
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

    /// Returns true if these are the known objects of a file. A scan that reads all files again need not keep the unchanged ones
    /// until its end.
    pub(super) fn holds(&self, path: &str, objects: &[Object]) -> bool {
        let is_known = |(known, object): (&Arc<Object>, &Object)| known.key() == object.key() && is_same(known, object);
        self.files
            .get(path)
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

    /// Returns the unusable files: the path, the reason, and true if the file keeps good objects.
    pub(super) fn unusable(&self) -> impl Iterator<Item = (&Arc<str>, &str, bool)> {
        let has_objects = |path| self.files.get(path).is_some_and(|record| !record.objects.is_empty());
        self.unusable.iter().map(move |(path, reason)| (path, reason.as_str(), has_objects(path)))
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
                self.unusable.remove(&path);
                self.replace(&path, Vec::new(), before);
                self.files.remove(&path);
                return;
            }
        };
        let has_objects = self.files.get(&path).is_some_and(|record| !record.objects.is_empty());
        let objects = match content {
            Content::Objects(objects) => Ok(Some(objects)),
            Content::Same => Ok(None),
            Content::Blank if has_objects => Err(BLANK.to_owned()),
            Content::Blank => Ok(Some(Vec::new())),
            Content::Unusable(reason) => Err(reason),
        };
        let record = self.files.entry(path.clone()).or_default();
        record.is_read(id, stamp);
        match objects {
            Ok(objects) => {
                self.set_missing(&path, false, before);
                self.unusable.remove(&path);
                if let Some(objects) = objects {
                    self.replace(&path, objects, before);
                }
            }
            Err(reason) => {
                self.unusable.insert(path, reason);
            }
        }
    }

    /// Moves a file's claims behind those of existing files, or back among them.
    fn set_missing(&mut self, path: &Arc<str>, is_missing: bool, before: &mut Before) {
        let Some(record) = self.files.get_mut(path).filter(|record| record.is_missing != is_missing) else { return };
        record.is_missing = is_missing;
        let objects = record.objects.clone();
        self.remember(objects.iter().map(|object| object.key()), before);
        for (position, object) in (0..).zip(&objects) {
            let claim = |is_missing| Claim { key: object.key().clone(), is_missing, path: path.clone(), position };
            self.claims.remove(&claim(!is_missing));
            self.claims.insert(claim(is_missing));
        }
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

    /// Replaces a file's objects with `new`, and records the objects served under the keys of both.
    fn replace(&mut self, path: &Arc<str>, new: Vec<Object>, before: &mut Before) {
        let (old, is_missing) = match self.files.get(path) {
            Some(record) => (record.objects.clone(), record.is_missing),
            None => (SmallVec::new(), false),
        };
        self.remember(old.iter().map(|object| object.key()).chain(new.iter().map(Object::key)), before);
        let claim =
            |position, object: &Object| Claim { key: object.key().clone(), is_missing, path: path.clone(), position };
        for (position, object) in (0..).zip(&old) {
            self.claims.remove(&claim(position, object));
            self.count_kind(object.kind(), false);
        }
        for (position, object) in (0..).zip(&new) {
            self.claims.insert(claim(position, object));
            self.count_kind(object.kind(), true);
        }
        if let Some(record) = self.files.get_mut(path) {
            record.objects = new.into_iter().map(Arc::new).collect();
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
            old => old.is_none(),
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
