//! Comparison of two sets of objects that change while they are read.
//!
//! It keeps digests of the objects that differ, at most as many as its bound, and nothing of the others.

use std::{cmp::Ordering, collections::BTreeMap, iter::Peekable, time::Duration};

use bytes::Bytes;
use ring::digest::{Context, SHA256};
use serde_json::Value;
use tokio::time::Instant;

use crate::model::{Object, ObjectKey};

/// State of one object on one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) body: Bytes,
}

/// Difference of one object, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) what: &'static str,
    /// Value that differs, on each side; empty for bodies, and where the object is missing.
    pub(crate) served: String,
    pub(crate) upstream: String,
}

/// Comparison in rounds.
#[derive(Debug)]
pub(crate) struct Comparison {
    compares_versions: bool,
    settle: Duration,
    max_held: usize,
    differing: BTreeMap<ObjectKey, Differing>,
    omitted: usize,
}

/// Object that differed in the last round.
#[derive(Debug)]
struct Differing {
    upstream: Option<Digest>,
    served: Option<Digest>,
    /// Time of the first round in which the upstream had this state, and the server another one.
    since: Instant,
    is_settled: bool,
    difference: Difference,
}

/// Digest of a state: of two equal ones it is the same.
type Digest = [u8; 32];

// === impl Comparison ===

impl Comparison {
    /// Returns a comparison in which an object counts that has differed for the time `settle`, without a change in the upstream. It
    /// holds at most `max_held` objects that differ.
    pub(crate) fn new(settle: Duration, max_held: usize) -> Self {
        Self { compares_versions: true, settle, max_held, differing: BTreeMap::new(), omitted: 0 }
    }

    /// Compares the objects of both sides, which are sorted by their keys, and their versions, if the upstream assigns them. Those of
    /// the server were read later.
    pub(crate) fn compare<'a>(
        &mut self,
        compares_versions: bool,
        upstream: impl IntoIterator<Item = (&'a ObjectKey, State)>,
        served: impl IntoIterator<Item = (&'a ObjectKey, State)>,
        now: Instant,
    ) {
        let mut before = std::mem::take(&mut self.differing);
        (self.compares_versions, self.omitted) = (compares_versions, 0);
        let (mut upstream, mut served) = (upstream.into_iter().peekable(), served.into_iter().peekable());
        while let Some((key, listed, served)) = next_pair(&mut upstream, &mut served) {
            let Some(difference) = self.difference(listed.as_ref(), served.as_ref()) else { continue };
            if self.differing.len() >= self.max_held {
                self.omitted += 1;
                continue;
            }
            let (upstream, served) = (listed.map(|state| self.digest(&state)), served.map(|state| self.digest(&state)));
            let since = match before.remove(key) {
                Some(other) if other.upstream == upstream => other.since,
                _ => now,
            };
            let is_settled = now - since >= self.settle;
            self.differing.insert(key.clone(), Differing { upstream, served, since, is_settled, difference });
        }
    }

    /// Leaves out the objects that the server has another state of now: those that have arrived, and those that change.
    pub(crate) fn leave_out_changed(&mut self, served: impl Fn(&ObjectKey) -> Option<State>) {
        let mut differing = std::mem::take(&mut self.differing);
        differing.retain(|key, differing| served(key).map(|state| self.digest(&state)) == differing.served);
        self.differing = differing;
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

    /// Returns the digest of a state. A version counts only if it is compared: each list of a directory has others.
    fn digest(&self, state: &State) -> Digest {
        let State { uid, version, body } = state;
        let version = if self.compares_versions { version.as_str() } else { "" };
        let body = match serde_json::from_slice::<Value>(body) {
            Ok(json) => json.to_string().into(),
            Err(_) => body.clone(),
        };
        let mut digest = Context::new(&SHA256);
        for part in [uid.as_bytes(), version.as_bytes(), &body[..]] {
            digest.update(&part.len().to_le_bytes());
            digest.update(part);
        }
        *digest.finish().as_ref().first_chunk().expect("32 bytes")
    }

    /// Returns true if no object differed in the last round.
    pub(crate) fn is_equal(&self) -> bool {
        self.differing.is_empty()
    }

    /// Returns the number of objects that have to be compared again.
    pub(crate) fn open(&self) -> usize {
        self.differing.values().filter(|differing| !differing.is_settled).count()
    }

    /// Returns the number of objects that differed in the last round and are not held.
    pub(crate) fn omitted(&self) -> usize {
        self.omitted
    }

    /// Returns the objects that differ, without those that have to be compared again.
    pub(crate) fn differences(&self) -> Vec<(&ObjectKey, &Difference)> {
        let settled = self.differing.iter().filter(|(_, differing)| differing.is_settled);
        settled.map(|(key, differing)| (key, &differing.difference)).collect()
    }
}

// === impl State ===

impl State {
    /// Returns the state of an object.
    pub(crate) fn of(object: &Object) -> Self {
        Self { uid: object.uid().to_owned(), version: object.version().to_string(), body: object.shared_body() }
    }
}

/// Returns the next key of either side, with the states that the sides have for it.
fn next_pair<'a>(
    upstream: &mut Peekable<impl Iterator<Item = (&'a ObjectKey, State)>>,
    served: &mut Peekable<impl Iterator<Item = (&'a ObjectKey, State)>>,
) -> Option<(&'a ObjectKey, Option<State>, Option<State>)> {
    let order = match (upstream.peek(), served.peek()) {
        (Some((left, _)), Some((right, _))) => left.cmp(right),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => return None,
    };
    let left = if order.is_le() { upstream.next() } else { None };
    let right = if order.is_ge() { served.next() } else { None };
    let key = left.as_ref().or(right.as_ref()).map(|(key, _)| *key)?;
    Some((key, left.map(|(_, state)| state), right.map(|(_, state)| state)))
}

/// Returns true if two bodies are the same JSON, or the same bytes: an upstream may write equal fields in another order.
fn is_same_body(left: &[u8], right: &[u8]) -> bool {
    let json = |body| serde_json::from_slice::<Value>(body).ok();
    left == right || json(left).is_some_and(|left| json(right) == Some(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    type States = BTreeMap<ObjectKey, State>;

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

    fn compare(comparison: &mut Comparison, upstream: &States, served: &States, now: Instant) {
        comparison.compare(true, sorted(upstream), sorted(served), now);
    }

    fn sorted(states: &States) -> impl Iterator<Item = (&ObjectKey, State)> {
        states.iter().map(|(key, state)| (key, state.clone()))
    }

    fn comparison() -> Comparison {
        Comparison::new(SETTLE, usize::MAX)
    }

    fn found(comparison: &Comparison) -> Vec<(String, &'static str)> {
        comparison.differences().into_iter().map(|(key, difference)| (key.to_string(), difference.what)).collect()
    }

    const SETTLE: Duration = Duration::from_secs(10);

    #[test]
    fn equal_objects_settle_at_once() {
        let mut comparison = comparison();
        let upstream = states(&[("a", 1, r#"{"x":1,"y":2}"#)]);
        compare(&mut comparison, &upstream, &states(&[("a", 1, r#"{"y":2,"x":1}"#)]), Instant::now());
        assert_eq!((found(&comparison), comparison.open(), comparison.is_equal()), (vec![], 0, true));
    }

    #[test]
    fn each_kind_of_difference_counts_once_it_has_settled() {
        let mut comparison = comparison();
        let upstream = states(&[("body", 1, "{}"), ("missing", 2, "{}"), ("version", 3, "{}")]);
        let served = states(&[("body", 1, "[]"), ("extra", 2, "{}"), ("version", 4, "{}")]);
        let start = Instant::now();
        compare(&mut comparison, &upstream, &served, start);
        assert_eq!((found(&comparison), comparison.open()), (vec![], 4));
        compare(&mut comparison, &upstream, &served, start + SETTLE);
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
        let mut comparison = comparison();
        let start = Instant::now();
        compare(&mut comparison, &states(&[("a", 2, "{}")]), &states(&[("a", 1, "{}")]), start);
        compare(&mut comparison, &states(&[("a", 3, "{}")]), &states(&[("a", 2, "{}")]), start + SETTLE);
        assert_eq!((found(&comparison), comparison.open()), (vec![], 1), "its upstream state is new");
        compare(&mut comparison, &states(&[("a", 3, "{}")]), &states(&[("a", 3, "{}")]), start + 2 * SETTLE);
        assert_eq!((found(&comparison), comparison.open()), (vec![], 0));
    }

    #[test]
    fn versions_count_only_if_the_upstream_assigns_them() {
        let mut comparison = comparison();
        let (start, mut round) = (Instant::now(), |upstream, served, now| {
            comparison.compare(false, sorted(&states(&[upstream])), sorted(&states(&[served])), now);
            (comparison.is_equal(), found(&comparison))
        });
        assert_eq!(round(("a", 2, "{}"), ("a", 1, "{}"), start), (true, vec![]));

        // Each list of a directory has other versions: an object with the same content is settled nevertheless.
        assert_eq!(round(("a", 2, "{}"), ("a", 1, "[]"), start), (false, vec![]));
        let settled = (false, vec![("shop/a".to_owned(), "body")]);
        assert_eq!(round(("a", 3, "{}"), ("a", 1, "[]"), start + SETTLE), settled);
    }

    #[test]
    fn objects_that_the_server_has_another_state_of_are_left_out() {
        let mut comparison = comparison();
        let upstream = states(&[("arrived", 2, "{}"), ("changed", 2, "{}"), ("deleted", 2, "{}"), ("same", 2, "{}")]);
        let served = states(&[("arrived", 1, "{}"), ("changed", 1, "{}"), ("deleted", 1, "{}"), ("same", 1, "{}")]);
        let start = Instant::now();
        compare(&mut comparison, &upstream, &served, start);
        let now = states(&[("arrived", 2, "{}"), ("changed", 3, "{}"), ("same", 1, "{}")]);
        comparison.leave_out_changed(|key| now.get(key).cloned());
        assert_eq!(comparison.open(), 1);
        compare(&mut comparison, &upstream, &now, start + SETTLE);
        assert_eq!(found(&comparison), [("shop/same".to_owned(), "version")], "the others are new differences");
        assert_eq!(comparison.open(), 2);
    }

    #[test]
    fn the_objects_held_are_bounded_and_the_others_are_counted() {
        let mut comparison = Comparison::new(Duration::ZERO, 2);
        let upstream = states(&[("a", 1, "{}"), ("b", 1, "{}"), ("c", 1, "{}"), ("d", 1, "{}")]);
        compare(&mut comparison, &upstream, &states(&[("b", 1, "{}")]), Instant::now());
        assert_eq!((found(&comparison).len(), comparison.omitted()), (2, 1));
        compare(&mut comparison, &upstream, &upstream, Instant::now());
        assert_eq!((comparison.is_equal(), comparison.omitted()), (true, 0));
    }
}
