//! Check that etcd continues the history that the source has seen, without I/O.
//!
//! The revisions of a restored cluster may continue from anywhere: they show a rewritten history only if they are lower. Two
//! more signs show it:
//!
//! - [`Identity`]: the cluster id is different. A restored cluster can have the same one.
//! - [`ResumePoint`]: after a break etcd has to replay the last known transaction, byte for byte, and nothing between it and the
//!   position of the resource. Another history does so only if the same keys got the same values at the same revision.
//!
//! A resume point is no evidence once etcd has compacted it, nor if it is of a list and a change between it and the list is missing
//! from the list. Then the Reflector relists, and the cache compares the list with its own state.
//!
//! The snapshot of the resource stores both, so that the next run makes the same check.

use std::collections::BTreeSet;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use super::pb::{Event, EventType, KeyValue, ResponseHeader};

/// Cluster id and raft term of the last linearizable response.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity(Option<(u64, u64)>);

/// Last known transaction of the resource, by which its history is recognised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ResumePoint {
    revision: i64,
    /// Hash of key, value and counters of each put.
    puts: BTreeSet<u64>,
    /// Hash of the key of each deletion.
    deletes: BTreeSet<u64>,
    /// Revision of the list, if a list showed the transaction as its newest. Deletions up to that revision are not known.
    listed_at: Option<i64>,
}

/// Result of a comparison with a resume point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The history is the same.
    Same,
    /// The history was rewritten.
    Other,
    /// The events do not decide it.
    Unknown,
}

// === impl Identity ===

impl Identity {
    /// Compares a response with the identity, and stores its own. A lower raft term proves nothing: it is that of the last entry
    /// that a member has applied, and a member that has caught up by a snapshot answers with an earlier one.
    ///
    /// # Errors
    ///
    /// The change of the cluster id, reported once: the new identity replaces the old one.
    pub(super) fn check(&mut self, header: &ResponseHeader) -> Result<(), String> {
        let ResponseHeader { cluster_id, raft_term, .. } = *header;
        match self.0.replace((cluster_id, raft_term)) {
            Some((known, _)) if known != cluster_id => {
                Err(format!("cluster id changed from {known:x} to {cluster_id:x}"))
            }
            Some((_, known)) if known > raft_term => {
                tracing::info!(known, raft_term, "etcd raft term lower");
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

// === impl ResumePoint ===

impl ResumePoint {
    /// Returns the resume point of the last transaction, given all of its events.
    pub(super) fn of_transaction(revision: i64, events: &[Event]) -> Self {
        let (mut puts, mut deletes) = (BTreeSet::new(), BTreeSet::new());
        for (is_put, print) in events.iter().filter_map(print) {
            if is_put {
                puts.insert(print)
            } else {
                deletes.insert(print)
            };
        }
        Self { revision, puts, deletes, listed_at: None }
    }

    /// Returns the resume point of a list at a revision, given its newest keys, all changed at one revision; `None` if it is empty.
    pub(super) fn of_list(listed_at: i64, newest: &[KeyValue]) -> Option<Self> {
        let revision = newest.first()?.mod_revision;
        let puts = newest.iter().map(print_of_put).collect();
        Some(Self { revision, puts, deletes: BTreeSet::new(), listed_at: Some(listed_at) })
    }

    /// Compares the events of the resume point's revision with those that the resume point was made of.
    pub(super) fn compare(&self, events: &[Event]) -> Verdict {
        let told = Self::of_transaction(self.revision, events);
        if self.listed_at.is_some() {
            return if told.puts.is_superset(&self.puts) { Verdict::Same } else { Verdict::Other };
        }
        if told.puts != self.puts || !told.deletes.is_subset(&self.deletes) {
            return Verdict::Other;
        }
        // A deletion may be compacted away at its own revision (etcd #18089). The remaining ones prove nothing by themselves.
        if told.deletes == self.deletes || !told.puts.is_empty() { Verdict::Same } else { Verdict::Unknown }
    }

    /// Returns the revision of the transaction.
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the verdict if etcd did not replay the resume point, but did send later revisions.
    pub(super) fn missed(&self) -> Verdict {
        if self.puts.is_empty() { Verdict::Unknown } else { Verdict::Other }
    }

    /// Returns the verdict if etcd replayed a change after the resume point, up to the position of the resource. If a list came after the
    /// change, its object may have been deleted before the list, which only another list can show.
    pub(super) fn followed_at(&self, revision: i64) -> Verdict {
        if self.listed_at.is_some_and(|listed_at| revision <= listed_at) { Verdict::Unknown } else { Verdict::Other }
    }
}

/// Returns the hash of an event, with true if it is a put.
fn print(event: &Event) -> Option<(bool, u64)> {
    let kv = event.kv.as_ref()?;
    let is_put = event.r#type() == EventType::Put;
    Some((is_put, if is_put { print_of_put(kv) } else { print_of(&[&kv.key]) }))
}

fn print_of_put(kv: &KeyValue) -> u64 {
    let numbers = [kv.create_revision, kv.mod_revision, kv.version].map(i64::to_le_bytes);
    print_of(&[&kv.key, numbers.as_flattened(), &kv.value])
}

/// Hashes with SHA-256, the same in every version and on every machine: later versions compare stored hashes.
fn print_of(parts: &[&[u8]]) -> u64 {
    let mut sum = Context::new(&SHA256);
    for part in parts {
        sum.update(&(part.len() as u64).to_le_bytes());
        sum.update(part);
    }
    sum.finish().as_ref().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(cluster_id: u64, raft_term: u64) -> ResponseHeader {
        ResponseHeader { cluster_id, raft_term, ..ResponseHeader::default() }
    }

    fn kv(key: &str, value: &str) -> KeyValue {
        let (key, value) = (key.as_bytes().to_vec(), value.to_owned().into());
        KeyValue { key, value, create_revision: 5, mod_revision: 7, version: 2 }
    }

    fn event(event_type: EventType, key: &str, value: &str) -> Event {
        Event { r#type: event_type.into(), kv: Some(kv(key, value)) }
    }

    #[test]
    fn another_cluster_is_an_error_once_and_a_lower_term_is_none() {
        let mut identity = Identity::default();
        assert_eq!(identity.check(&header(1, 2)), Ok(()));
        assert_eq!(identity.check(&header(1, 3)), Ok(()), "an election");
        assert_eq!(identity.check(&header(1, 2)), Ok(()), "a member that has caught up by a snapshot");
        assert_eq!(identity.check(&header(0xab, 9)), Err("cluster id changed from 1 to ab".into()));
        assert_eq!(identity.check(&header(0xab, 9)), Ok(()));
    }

    #[test]
    fn a_transaction_is_recognised_byte_for_byte() {
        use EventType::{Delete, Put};
        let told = [event(Put, "a", "1"), event(Delete, "b", "")];
        let resume_point = ResumePoint::of_transaction(7, &told);
        assert_eq!(resume_point.compare(&told), Verdict::Same);
        assert_eq!(resume_point.compare(&told[..1]), Verdict::Same, "a deletion that was compacted away");
        for other in [
            vec![event(Put, "a", "2"), event(Delete, "b", "")],
            vec![event(Put, "b", "1"), event(Delete, "b", "")],
            vec![event(Put, "a", "1"), event(Delete, "c", "")],
            vec![event(Put, "a", "1"), event(Put, "c", "1")],
            vec![event(Delete, "b", "")],
        ] {
            assert_eq!(resume_point.compare(&other), Verdict::Other, "{other:?}");
        }
        assert_eq!((resume_point.missed(), resume_point.followed_at(8)), (Verdict::Other, Verdict::Other));
        assert_eq!(ResumePoint::of_transaction(7, &told[1..]).missed(), Verdict::Unknown);
        let deleted = [event(Delete, "a", ""), event(Delete, "b", "")];
        let resume_point = ResumePoint::of_transaction(7, &deleted);
        assert_eq!(resume_point.compare(&deleted), Verdict::Same);
        assert_eq!(resume_point.compare(&deleted[1..]), Verdict::Unknown, "compacted away, or another transaction");
    }

    #[test]
    fn a_list_is_recognised_by_its_newest_keys() {
        use EventType::{Delete, Put};
        let resume_point = ResumePoint::of_list(10, &[kv("a", "1"), kv("b", "2")]).unwrap();
        assert_eq!(resume_point.revision(), 7);
        let told = [event(Put, "a", "1"), event(Put, "b", "2"), event(Delete, "c", ""), event(Put, "d", "1")];
        assert_eq!(resume_point.compare(&told), Verdict::Same, "d may have been deleted before the list");
        assert_eq!(resume_point.compare(&told[1..]), Verdict::Other);
        assert_eq!(resume_point.missed(), Verdict::Other);
        assert_eq!((resume_point.followed_at(10), resume_point.followed_at(11)), (Verdict::Unknown, Verdict::Other));
        assert_eq!(ResumePoint::of_list(10, &[]), None);
    }

    /// A version has to recognise what an earlier one stored: these numbers never change.
    #[test]
    fn a_resume_point_is_the_same_in_every_version() {
        let resume_point =
            ResumePoint::of_transaction(7, &[event(EventType::Put, "a", "1"), event(EventType::Delete, "b", "")]);
        let text = serde_json::to_string(&resume_point).unwrap();
        let puts = "12179729075883433244";
        let expected = format!(r#"{{"revision":7,"puts":[{puts}],"deletes":[15258579376835720218],"listed_at":null}}"#);
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<ResumePoint>(&text).unwrap(), resume_point);
    }
}
