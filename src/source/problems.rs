//! What cannot be served of an upstream whose keys can be mended: told to the resource's health and to the log, for as long as
//! it is so.

use std::collections::BTreeMap;

use super::text::escaped;
use crate::cache::SourceHealth;

/// The keys that cannot be served, and why.
#[derive(Debug)]
pub(super) struct Problems {
    /// The kind of the source, for the log.
    source: &'static str,
    resource: String,
    health: SourceHealth,
    by_key: BTreeMap<Vec<u8>, String>,
    /// More of them, at the last list.
    omitted: usize,
}

/// The keys that are remembered, to be forgotten when they are mended.
const MAX_PROBLEMS: usize = 100;

// === impl Problems ===

impl Problems {
    /// None yet.
    pub(super) fn new(source: &'static str, resource: String, health: SourceHealth) -> Self {
        Self { source, resource, health, by_key: BTreeMap::new(), omitted: 0 }
    }

    /// To be kept: keys and problems, and how many more there are.
    pub(super) fn standing(&self) -> (Vec<(Vec<u8>, String)>, usize) {
        (self.by_key.iter().map(|(key, problem)| (key.clone(), problem.clone())).collect(), self.omitted)
    }

    /// They stand still.
    pub(super) fn resume(&mut self, (by_key, omitted): (Vec<(Vec<u8>, String)>, usize)) {
        self.replace(by_key);
        self.omitted = omitted;
        self.tell();
    }

    /// What a list has found is all there is.
    pub(super) fn replace(&mut self, found: Vec<(Vec<u8>, String)>) {
        if found.is_empty() && self.by_key.is_empty() {
            return;
        }
        self.omitted = found.len().saturating_sub(MAX_PROBLEMS);
        self.by_key = found.into_iter().take(MAX_PROBLEMS).collect();
        for (key, problem) in &self.by_key {
            self.warn(key, problem);
        }
        self.tell();
    }

    /// A key cannot be served.
    pub(super) fn add(&mut self, key: &[u8], problem: String) {
        if self.by_key.get(key) == Some(&problem) {
            return;
        }
        self.warn(key, &problem);
        if self.by_key.len() < MAX_PROBLEMS || self.by_key.contains_key(key) {
            self.by_key.insert(key.to_vec(), problem);
        } else {
            self.omitted += 1;
        }
        self.tell();
    }

    /// A key can be served, or is gone.
    pub(super) fn remove(&mut self, key: &[u8]) {
        if self.by_key.remove(key).is_some() {
            self.tell();
        }
    }

    fn warn(&self, key: &[u8], problem: &str) {
        let Self { source, resource, .. } = self;
        tracing::warn!(source, resource, key = shown(key), problem, "a key is not served");
    }

    fn tell(&self) {
        let rest = (self.omitted > 0).then(|| format!("and {} more", self.omitted));
        let problems = self.by_key.iter().map(|(key, problem)| format!("{}: {problem}", shown(key)));
        self.health.set_problems(problems.chain(rest).collect());
    }
}

fn shown(key: &[u8]) -> String {
    escaped(&String::from_utf8_lossy(key)).into_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn problems_last_until_they_are_mended() {
        let health = SourceHealth::new(Duration::ZERO, Duration::ZERO);
        let mut problems = Problems::new("etcd", "r".into(), health.clone());
        problems.replace((0..MAX_PROBLEMS + 5).map(|n| (vec![n as u8], format!("{n}"))).collect());
        assert_eq!(health.report().problems, MAX_PROBLEMS + 1, "the last one counts the rest");
        problems.replace(vec![(b"a\n".to_vec(), "bad".into())]);
        problems.add(b"b", "worse".into());
        assert_eq!(health.report().last_error.as_deref(), Some("a\\n: bad"));
        problems.remove(b"a\n");
        problems.remove(b"c");
        assert_eq!(health.report().last_error.as_deref(), Some("b: worse"));
        problems.remove(b"b");
        assert_eq!(health.report().problems, 0);
    }
}
