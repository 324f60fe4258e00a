//! Comparison of two sets of objects that change while they are read.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use serde_json::Value;
use tokio::time::Instant;

use crate::model::ObjectKey;

/// Objects of one side.
pub(super) type States = BTreeMap<ObjectKey, State>;

/// State of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub(super) uid: String,
    pub(super) version: String,
    pub(super) body: Bytes,
}

/// Difference of one object, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) what: &'static str,
    /// Value that differs, on each side; empty for bodies, and where the object is missing.
    pub(super) served: String,
    pub(super) upstream: String,
}

/// Comparison in rounds.
#[derive(Debug)]
pub(super) struct Comparison {
    compares_versions: bool,
    settle: Duration,
    differing: BTreeMap<ObjectKey, Differing>,
}

/// Object that differed in the last round.
#[derive(Debug)]
struct Differing {
    upstream: Option<State>,
    /// Time of the first round in which the upstream had this state, and the server another one.
    since: Instant,
    is_settled: bool,
    difference: Difference,
}

// === impl Comparison ===

impl Comparison {
    /// Returns a comparison in which an object counts that has differed for the time `settle`, without a change in the upstream.
    pub(super) fn new(compares_versions: bool, settle: Duration) -> Self {
        Self { compares_versions, settle, differing: BTreeMap::new() }
    }

    /// Compares the objects of both sides. Those of the server were read later.
    pub(super) fn compare(&mut self, upstream: &States, served: &States, now: Instant) {
        let mut before = std::mem::take(&mut self.differing);
        let keys = upstream.keys().chain(served.keys().filter(|key| !upstream.contains_key(*key)));
        for key in keys {
            let has = upstream.get(key);
            let Some(difference) = self.difference(has, served.get(key)) else { continue };
            let since = match before.remove(key) {
                Some(other) if other.upstream.as_ref() == has => other.since,
                _ => now,
            };
            let is_settled = now - since >= self.settle;
            self.differing.insert(key.clone(), Differing { upstream: has.cloned(), since, is_settled, difference });
        }
    }

    fn difference(&self, upstream: Option<&State>, served: Option<&State>) -> Option<Difference> {
        let of = |what, served: &str, upstream: &str| {
            Some(Difference { what, served: served.to_owned(), upstream: upstream.to_owned() })
        };
        match (upstream, served) {
            (None, Some(served)) => of("not in the upstream", &served.version, ""),
            (Some(upstream), None) => of("not served", "", &upstream.version),
            (Some(upstream), Some(served)) if upstream.uid != served.uid => of("uid", &served.uid, &upstream.uid),
            (Some(upstream), Some(served)) if self.compares_versions && upstream.version != served.version => {
                of("version", &served.version, &upstream.version)
            }
            (Some(upstream), Some(served)) if !is_same_body(&upstream.body, &served.body) => of("body", "", ""),
            (None, None) | (Some(_), Some(_)) => None,
        }
    }

    /// Returns the number of objects that have to be compared again.
    pub(super) fn open(&self) -> usize {
        self.differing.values().filter(|differing| !differing.is_settled).count()
    }

    /// Returns the objects that differ, without those that have to be compared again.
    pub(super) fn differences(&self) -> Vec<(&ObjectKey, &Difference)> {
        let settled = self.differing.iter().filter(|(_, differing)| differing.is_settled);
        settled.map(|(key, differing)| (key, &differing.difference)).collect()
    }
}

/// Returns true if two bodies are the same JSON, or the same bytes: an upstream may write equal fields in another order.
fn is_same_body(left: &[u8], right: &[u8]) -> bool {
    let json = |body| serde_json::from_slice::<Value>(body).ok();
    left == right || json(left).is_some_and(|left| json(right) == Some(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("shop", name).unwrap()
    }

    fn states(objects: &[(&str, u32, &'static str)]) -> States {
        let state = |version: u32, body: &'static str| State {
            uid: "u1".to_owned(),
            version: version.to_string(),
            body: Bytes::from_static(body.as_bytes()),
        };
        objects.iter().map(|(name, version, body)| (key(name), state(*version, body))).collect()
    }

    fn found(comparison: &Comparison) -> Vec<(String, &'static str)> {
        comparison.differences().into_iter().map(|(key, difference)| (key.to_string(), difference.what)).collect()
    }

    const SETTLE: Duration = Duration::from_secs(10);

    #[test]
    fn equal_objects_settle_at_once() {
        let mut comparison = Comparison::new(true, SETTLE);
        let upstream = states(&[("a", 1, r#"{"x":1,"y":2}"#)]);
        comparison.compare(&upstream, &states(&[("a", 1, r#"{"y":2,"x":1}"#)]), Instant::now());
        assert_eq!((found(&comparison), comparison.open()), (vec![], 0));
    }

    #[test]
    fn each_kind_of_difference_counts_once_it_has_settled() {
        let mut comparison = Comparison::new(true, SETTLE);
        let upstream = states(&[("body", 1, "{}"), ("missing", 2, "{}"), ("version", 3, "{}")]);
        let served = states(&[("body", 1, "[]"), ("extra", 2, "{}"), ("version", 4, "{}")]);
        let start = Instant::now();
        comparison.compare(&upstream, &served, start);
        assert_eq!((found(&comparison), comparison.open()), (vec![], 4));
        comparison.compare(&upstream, &served, start + SETTLE);
        assert_eq!(comparison.open(), 0);
        let all = [
            ("shop/body", "body"),
            ("shop/extra", "not in the upstream"),
            ("shop/missing", "not served"),
            ("shop/version", "version"),
        ];
        assert_eq!(found(&comparison), all.map(|(key, what)| (key.to_owned(), what)));
    }

    #[test]
    fn an_object_that_changes_in_the_upstream_is_compared_again() {
        let mut comparison = Comparison::new(true, SETTLE);
        let start = Instant::now();
        comparison.compare(&states(&[("a", 2, "{}")]), &states(&[("a", 1, "{}")]), start);
        comparison.compare(&states(&[("a", 3, "{}")]), &states(&[("a", 2, "{}")]), start + SETTLE);
        assert_eq!((found(&comparison), comparison.open()), (vec![], 1), "its upstream state is new");
        comparison.compare(&states(&[("a", 3, "{}")]), &states(&[("a", 3, "{}")]), start + 2 * SETTLE);
        assert_eq!((found(&comparison), comparison.open()), (vec![], 0));
    }

    #[test]
    fn versions_count_only_if_the_upstream_assigns_them() {
        let mut comparison = Comparison::new(false, SETTLE);
        comparison.compare(&states(&[("a", 2, "{}")]), &states(&[("a", 1, "{}")]), Instant::now());
        assert_eq!((found(&comparison), comparison.open()), (vec![], 0));
    }
}
