//! Objects of one kind in a Kubernetes cluster, at every version, as a script changes them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::source_checker::upstream::{Fact, Key, Truth};

/// All changes of the objects.
#[derive(Debug, Clone)]
pub(crate) struct World {
    /// Changes of the current history, in order. Those of one lease have the same version.
    pub(crate) changes: Vec<Change>,
    pub(crate) version: u64,
    pub(crate) versions: Versions,
    /// Restores so far: the version of each, and its number. Later versions belong to another history.
    restores: Vec<(u64, u64)>,
    /// Form in which the API writes an object.
    pub(crate) form: Form,
    pub(crate) selection: Selection,
    /// True if the source follows only the metadata.
    is_partial: bool,
    pub(crate) deleted: BTreeSet<Key>,
    uids: u64,
    /// Changes that restores have undone.
    undone: Vec<Change>,
}

#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) key: Key,
    /// `None` for a deletion.
    pub(crate) state: Option<Stored>,
}

/// Object as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) uid: String,
    pub(crate) number: u32,
}

/// Result of defaults, pruning and conversion for a stored object. It changes without a new version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Form {
    /// Default for a field that is not stored.
    pub(crate) default: Option<u32>,
    /// True if a field is pruned.
    pub(crate) is_pruned: bool,
    /// True if the selectable field has another value for the same object.
    pub(crate) is_recoloured: bool,
}

/// Form of the API's versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Versions {
    Decimal,
    /// Text of an unknown form, different in each history.
    Text,
    /// Decimals in no order, different in each history.
    Unordered,
}

/// Selector with which the source is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    All,
    /// `color=red`, a label.
    Label,
    /// `spec.color=red`, a selectable field of a CRD.
    Field,
    /// `metadata.name=x`.
    Name,
}

/// Event of one change for a selection.
pub(crate) enum EventKind {
    Added(String),
    Modified(String),
    Deleted(String),
}

impl World {
    pub(crate) fn new(selection: Selection, versions: Versions, is_partial: bool) -> Self {
        Self {
            changes: Vec::new(),
            version: 10,
            versions,
            restores: Vec::new(),
            form: Form::default(),
            selection,
            is_partial,
            deleted: BTreeSet::new(),
            uids: 0,
            undone: Vec::new(),
        }
    }

    /// Creates or updates an object, at a new version.
    pub(crate) fn put(&mut self, key: &Key, number: u32) {
        self.version += 1;
        let uid = if let Some((_, stored)) = self.state(usize::MAX).get(key) {
            stored.uid.clone()
        } else {
            self.uids += 1;
            format!("u{}", self.uids)
        };
        let state = Some(Stored { uid, number });
        self.skip_repetition(key, state.as_ref());
        self.changes.push(Change { version: self.version, key: key.clone(), state });
    }

    /// Deletes objects, each at a new version, or all at one version like those of an expired lease.
    pub(crate) fn delete(&mut self, keys: &[Key], is_at_once: bool) {
        let present = self.state(usize::MAX);
        let mut keys: Vec<&Key> = keys.iter().filter(|key| present.contains_key(*key)).collect();
        keys.sort();
        keys.dedup();
        for (at, key) in keys.into_iter().enumerate() {
            self.version += u64::from(at == 0 || !is_at_once);
            if at == 0 || !is_at_once {
                self.skip_repetition(key, None);
            }
            self.deleted.insert(key.clone());
            self.changes.push(Change { version: self.version, key: key.clone(), state: None });
        }
    }

    /// Removes all changes after a version, as a restore from a backup does, and returns them.
    pub(crate) fn restore(&mut self, version: u64) -> Vec<Change> {
        let lost: Vec<Change> = self.changes.extract_if(.., |change| change.version > version).collect();
        self.undone.extend_from_slice(&lost);
        self.version = version;
        let number = self.restores.last().map_or(1, |(_, last)| last + 1);
        self.restores.retain(|(to, _)| *to < version);
        self.restores.push((version, number));
        lost
    }

    /// Writes the lost changes again, as far as possible at the same versions, and with other numbers.
    pub(crate) fn repeat(&mut self, lost: &[Change]) {
        for Change { version, key, state } in lost {
            if let Some(stored) = state {
                self.version = self.version.max(version - 1);
                self.put(key, stored.number + 1000);
            }
        }
    }

    /// Returns the API's text of a version.
    pub(crate) fn text_of(&self, version: u64) -> String {
        let restores = self.restores.iter().rev().find(|(to, _)| *to < version).map_or(0, |(_, number)| *number);
        match self.versions {
            Versions::Decimal => version.to_string(),
            Versions::Text => format!("v{restores}-{version}"),
            Versions::Unordered => (((restores << 32 | version) ^ 0x2A5) + (1 << 20)).to_string(),
        }
    }

    /// Parses a version, if it is one of the current history.
    pub(crate) fn version_of(&self, text: &str) -> Option<u64> {
        let version = match self.versions {
            Versions::Decimal => return text.parse().ok(),
            Versions::Text => text.split_once('-')?.1.parse().ok()?,
            Versions::Unordered => (text.parse::<u64>().ok()?.checked_sub(1 << 20)? ^ 0x2A5) & 0xFFFF_FFFF,
        };
        Some(version).filter(|version| self.text_of(*version) == text)
    }

    /// Skips a version at which the same change was made before a restore: a watch would show that change as the last known one,
    /// and no source could distinguish the histories.
    fn skip_repetition(&mut self, key: &Key, state: Option<&Stored>) {
        // In the metadata only the label depends on the number.
        let visible = |stored: &Stored| {
            let number = if self.is_partial { u32::from(is_blue(stored.number)) } else { stored.number };
            (stored.uid.clone(), number)
        };
        let is_selected = |state: Option<&Stored>| state.filter(|stored| self.selects(key, stored)).map(visible);
        let new = is_selected(state);
        let is_repeated = |version: u64| {
            let mut undone = self.undone.iter().filter(|undone| undone.version == version && undone.key == *key);
            undone.any(|undone| {
                let old = is_selected(undone.state.as_ref());
                old.is_none() || new.is_none() || old == new
            })
        };
        let last = self.version + self.undone.len() as u64;
        self.version = (self.version..=last).find(|version| !is_repeated(*version)).unwrap_or(last);
    }

    /// Returns every object after so many changes, and the version of its last change.
    pub(crate) fn state(&self, changes: usize) -> BTreeMap<Key, (u64, Stored)> {
        let mut state = BTreeMap::new();
        for Change { version, key, state: changed } in self.changes.iter().take(changes) {
            match changed {
                Some(stored) => drop(state.insert(key.clone(), (*version, stored.clone()))),
                None => drop(state.remove(key)),
            }
        }
        state
    }

    /// Returns the objects that match the selector.
    pub(crate) fn selected(&self, changes: usize) -> BTreeMap<Key, (u64, Stored)> {
        let mut state = self.state(changes);
        state.retain(|key, (_, stored)| self.selects(key, stored));
        state
    }

    pub(crate) fn truth(&self, changes: usize) -> Truth {
        let fact = |(key, (version, stored)): (Key, (u64, Stored))| {
            let body = self.object(&key, version, &stored, true).into_bytes();
            (key, Fact { uid: Some(stored.uid), version: Some(self.text_of(version)), body })
        };
        self.selected(changes).into_iter().map(fact).collect()
    }

    /// Returns the watch event of a change, if there is one.
    pub(crate) fn told(&self, at: usize) -> Option<EventKind> {
        let Change { version, key, state } = &self.changes[at];
        let before = self.state(at).remove(key).map(|(_, stored)| stored);
        let selected = |stored: &Option<Stored>| stored.as_ref().is_some_and(|stored| self.selects(key, stored));
        let object = |stored: &Option<Stored>| self.object(key, *version, stored.as_ref().unwrap(), true);
        match (selected(&before), selected(state)) {
            (false, false) => None,
            (false, true) => Some(EventKind::Added(object(state))),
            (true, true) => Some(EventKind::Modified(object(state))),
            (true, false) => Some(EventKind::Deleted(object(&before))),
        }
    }

    /// Returns an object as the API writes it; the items of a built-in kind's list have no type.
    pub(crate) fn object(&self, key: &Key, version: u64, stored: &Stored, is_typed: bool) -> String {
        let Stored { uid, number } = stored;
        let version = self.text_of(version);
        let labels = json!({"color": if is_blue(*number) { "blue" } else { "red" }});
        let metadata = json!({
            "name": key.1, "namespace": key.0, "uid": uid, "resourceVersion": version, "labels": labels,
        });
        let mut spec = json!({"color": self.color(*number), "number": number});
        if let Some(default) = self.form.default {
            spec["replicas"] = default.into();
        }
        if !self.form.is_pruned {
            spec["extra"] = format!("extra {number}").into();
        }
        let kind = if is_typed { r#""kind":"Widget","apiVersion":"example.com/v1","# } else { "" };
        format!(r#"{{{kind}"metadata":{metadata},"spec":{spec}}}"#)
    }

    fn color(&self, number: u32) -> &'static str {
        let is_blue = number.is_multiple_of(if self.form.is_recoloured { 2 } else { 3 });
        if is_blue { "blue" } else { "red" }
    }

    pub(crate) fn selects(&self, key: &Key, stored: &Stored) -> bool {
        match self.selection {
            Selection::All => true,
            Selection::Label => !is_blue(stored.number),
            Selection::Field => self.color(stored.number) == "red",
            Selection::Name => key.1 == "x",
        }
    }
}

/// Returns true if the label of an object with this number is blue.
fn is_blue(number: u32) -> bool {
    number.is_multiple_of(3)
}
