//! Pagination: page tokens, and the snapshots that are kept for them.
//!
//! A token names the snapshot and the last key, and is valid in this process only. It has expired after a restart, at another
//! replica, and once its snapshot is released; the client then lists again. A seal that only this process can compute binds it
//! to the query, and so to the resource: a client may continue from another key, but in no snapshot of another query.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

use std::{
    collections::VecDeque,
    hash::{BuildHasher, Hash, RandomState},
    sync::Arc,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::status::ApiError;
use crate::{
    cache::Snapshot,
    model::{ObjectKey, random_id},
    transport::{Origin, Rejections, share_of},
};

/// Snapshots that are kept for the next pages of lists: all pages of a list come from one snapshot.
#[derive(Debug)]
pub(super) struct Pages {
    /// Random id of this process; the tokens of other processes have another one.
    process: u64,
    /// Secret key of the seals.
    seals: RandomState,
    /// Maximum number of kept snapshots, in all and for one origin.
    all: usize,
    each: usize,
    refused: Rejections,
    retained: Mutex<Retained>,
}

#[derive(Debug, Default)]
struct Retained {
    next_id: u64,
    snapshots: VecDeque<RetainedSnapshot>,
}

#[derive(Debug)]
struct RetainedSnapshot {
    id: u64,
    snapshot: Arc<Snapshot>,
    /// Peers that have tokens for the snapshot, each once; the peer with the newest token comes last.
    holders: VecDeque<Option<Origin>>,
    /// Time at which its newest token was issued; the snapshots are sorted by it, the oldest first.
    since: Instant,
}

/// Continuation of a list: the snapshot and the position in it.
#[derive(Debug)]
pub(super) struct Continued {
    pub(super) snapshot: Arc<Snapshot>,
    /// Last key or value of the previous page.
    pub(super) after: String,
}

/// Time within which a client must request the next page.
const MAX_AGE: Duration = Duration::from_secs(300);
/// Maximum size of a token, in bytes: above that of any issued token, which has a key in base64.
pub(super) const MAX_TOKEN_BYTES: usize = 2 * ObjectKey::MAX_BYTES;

// === impl Pages ===

impl Pages {
    /// Creates an empty store for at most `all` snapshots, `peer_share` percent of them for one origin.
    pub(super) fn new(all: usize, peer_share: u32, refused: Rejections) -> Self {
        let (process, seals) = (random_id(), RandomState::new());
        Self { process, seals, all, each: share_of(all, peer_share), refused, retained: Mutex::default() }
    }

    /// Hashes a query, to which its page tokens are bound: every field of the request but page size and token. Without the
    /// secret key, a client could construct two queries with the same hash.
    pub(super) fn query_hash(&self, query: &impl Hash) -> u64 {
        self.seals.hash_one(query)
    }

    /// Issues the token of the page after `after`, and keeps the snapshot for it, in the share of `origin`.
    pub(super) fn token(&self, snapshot: &Arc<Snapshot>, query: u64, after: &str, origin: Option<Origin>) -> String {
        let id = self.retain(snapshot, origin);
        URL_SAFE_NO_PAD.encode(format!("{:x}.{id:x}.{:x}.{after}", self.process, self.seals.hash_one((id, query))))
    }

    /// Returns the continuation that a token names. `query` is the hash of the request that the token came with.
    pub(super) fn resume(&self, token: &str, query: u64) -> Result<Continued, ApiError> {
        let invalid = |message: &str| ApiError::Invalid {
            reason: "PAGE_TOKEN_INVALID",
            field: "page_token",
            message: message.to_owned(),
        };
        let malformed = || invalid("not a token of this server; pass next_page_token unchanged");
        if token.len() > MAX_TOKEN_BYTES {
            return Err(malformed());
        }
        let decoded = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.ok_or_else(malformed)?;
        let mut parts = decoded.splitn(4, '.');
        let mut number = || parts.next().and_then(|text| u64::from_str_radix(text, 16).ok());
        let (Some(process), Some(id), Some(seal)) = (number(), number(), number()) else {
            return Err(malformed());
        };
        let after = parts.next().ok_or_else(malformed)?.to_owned();
        if process != self.process {
            return Err(ApiError::PageTokenExpired);
        }
        if seal != self.seals.hash_one((id, query)) {
            return Err(invalid(
                "token of another query, another caller or other rights; only page_size may change between pages, else list again",
            ));
        }
        let mut retained = self.retained.lock();
        retained.expire(Instant::now());
        let snapshot = retained.snapshots.iter().find(|retained| retained.id == id);
        let snapshot = Arc::clone(&snapshot.ok_or(ApiError::PageTokenExpired)?.snapshot);
        Ok(Continued { snapshot, after })
    }

    fn retain(&self, snapshot: &Arc<Snapshot>, origin: Option<Origin>) -> u64 {
        let now = Instant::now();
        let mut retained = self.retained.lock();
        retained.expire(now);
        let known = retained.snapshots.iter().position(|known| Arc::ptr_eq(&known.snapshot, snapshot));
        // A known snapshot moves to the end: its newest token has the full lifetime.
        let known = known.and_then(|at| retained.snapshots.remove(at));
        let (id, mut holders) = if let Some(RetainedSnapshot { id, holders, .. }) = known {
            (id, holders)
        } else {
            retained.next_id += 1;
            (retained.next_id, VecDeque::new())
        };
        holders.retain(|holder| *holder != origin);
        holders.push_back(origin);
        if holders.len() > self.all {
            // The snapshot is still kept for the other peers.
            holders.pop_front();
        }
        retained.snapshots.push_back(RetainedSnapshot { id, snapshot: Arc::clone(snapshot), holders, since: now });
        // Callers without a known peer have no share of their own.
        if origin.is_some() && retained.held_by(origin) > self.each {
            retained.let_go(origin);
            self.refused.count("peer_page_snapshots");
        }
        while retained.snapshots.len() > self.all {
            let most = retained.most();
            retained.let_go(most);
            self.refused.count("page_snapshots");
        }
        id
    }
}

// === impl Retained ===

impl Retained {
    fn expire(&mut self, now: Instant) {
        self.snapshots.retain(|retained| now.saturating_duration_since(retained.since) <= MAX_AGE);
    }

    /// Returns the number of snapshots that are kept for a peer.
    fn held_by(&self, origin: Option<Origin>) -> usize {
        self.snapshots.iter().filter(|retained| retained.holders.contains(&origin)).count()
    }

    /// Returns the peer with the most snapshots; of several, the one with the oldest snapshot.
    fn most(&self) -> Option<Origin> {
        let mut counts: Vec<(Option<Origin>, usize)> = Vec::new();
        for holder in self.snapshots.iter().flat_map(|retained| &retained.holders) {
            match counts.iter_mut().find(|(origin, _)| origin == holder) {
                Some((_, count)) => *count += 1,
                None => counts.push((*holder, 1)),
            }
        }
        let most = counts.iter().map(|(_, count)| *count).max();
        counts.into_iter().find(|(_, count)| Some(*count) == most).and_then(|(origin, _)| origin)
    }

    /// Removes a peer from its oldest snapshot, and the snapshot if no other peer has it.
    fn let_go(&mut self, origin: Option<Origin>) {
        let Some(at) = self.snapshots.iter().position(|retained| retained.holders.contains(&origin)) else { return };
        let holders = &mut self.snapshots[at].holders;
        holders.retain(|holder| *holder != origin);
        if holders.is_empty() {
            self.snapshots.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cache::{Indexer, List},
        model::{Indexers, ResourceVersion},
    };

    const MAX_SNAPSHOTS: usize = 16;

    fn new_pages() -> Pages {
        Pages::new(MAX_SNAPSHOTS, 25, Rejections::default())
    }

    fn snapshot(version: u128) -> Arc<Snapshot> {
        let list = List::new(Vec::new(), ResourceVersion::decimal(version));
        Arc::new(Indexer::new(Arc::new(Indexers::default()), list).snapshot())
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_continues_in_its_snapshot_with_its_query_only() {
        let pages = new_pages();
        let first = snapshot(1);
        let token = pages.token(&first, 7, "shop\0web.v1", None);
        let continued = pages.resume(&token, 7).unwrap();
        assert!(Arc::ptr_eq(&continued.snapshot, &first));
        assert_eq!(continued.after, "shop\0web.v1");
        let longest = "x".repeat(ObjectKey::MAX_BYTES);
        assert_eq!(pages.resume(&pages.token(&first, 7, &longest, None), 7).unwrap().after, longest);
        let reason = |refusal: ApiError| refusal.code_and_reason().1;
        assert_eq!(reason(pages.resume(&token, 8).unwrap_err()), "PAGE_TOKEN_INVALID");
        for malformed in ["", "x", "!!!!", &URL_SAFE_NO_PAD.encode("1.2.3"), &"a".repeat(MAX_TOKEN_BYTES + 1)] {
            assert_eq!(reason(pages.resume(malformed, 7).unwrap_err()), "PAGE_TOKEN_INVALID", "{malformed:.20}");
        }
        assert_eq!(reason(new_pages().resume(&token, 7).unwrap_err()), "PAGE_TOKEN_EXPIRED", "another process");

        tokio::time::advance(MAX_AGE).await;
        assert!(pages.resume(&token, 7).is_ok());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(reason(pages.resume(&token, 7).unwrap_err()), "PAGE_TOKEN_EXPIRED", "too old");
    }

    /// Regression test: the ids are consecutive numbers, so a client that put another one into its token got another resource's
    /// snapshot.
    #[tokio::test]
    async fn a_forged_token_reaches_no_other_snapshot() {
        let pages = new_pages();
        let (others, mine) = (pages.token(&snapshot(1), 7, "a", None), pages.token(&snapshot(2), 8, "a", None));
        let parts = |token: &str| {
            let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).unwrap()).unwrap();
            text.split('.').map(str::to_owned).collect::<Vec<_>>()
        };
        let (others, mine) = (parts(&others), parts(&mine));
        for at in 0..3 {
            let mut forged = mine.clone();
            forged[at].clone_from(&others[at]);
            let is_accepted = pages.resume(&URL_SAFE_NO_PAD.encode(forged.join(".")), 8).is_ok();
            assert_eq!(is_accepted, forged == mine, "{forged:?}");
        }
    }

    /// Regression test: a snapshot was kept for its first token only, so that the token of the next page could expire at once.
    #[tokio::test(start_paused = true)]
    async fn a_snapshot_is_kept_for_its_newest_token() {
        let pages = new_pages();
        let first = snapshot(0);
        let mut token = pages.token(&first, 7, "a", None);
        for _ in 0..3 {
            tokio::time::advance(MAX_AGE).await;
            assert!(pages.resume(&token, 7).is_ok());
            token = pages.token(&first, 7, "b", None);
        }
        for other in (1..MAX_SNAPSHOTS as u128).map(snapshot) {
            pages.token(&other, 7, "a", None);
        }
        token = pages.token(&first, 7, "c", None);
        pages.token(&snapshot(100), 7, "a", None);
        assert!(pages.resume(&token, 7).is_ok(), "it was used last but one");
    }

    #[tokio::test]
    async fn as_many_snapshots_are_kept_as_the_bound_and_each_once() {
        let pages = new_pages();
        let first = snapshot(0);
        let token = pages.token(&first, 7, "a", None);
        for _ in 0..100 {
            pages.token(&first, 8, "b", None);
        }
        assert_eq!(pages.retained.lock().snapshots.len(), 1);
        let others: Vec<_> = (1..=MAX_SNAPSHOTS as u128).map(snapshot).collect();
        for other in &others[1..] {
            pages.token(other, 7, "a", None);
        }
        assert!(pages.resume(&token, 7).is_ok());
        pages.token(&others[0], 7, "a", None);
        assert!(pages.resume(&token, 7).is_err(), "the oldest went first");
    }

    #[tokio::test]
    async fn a_peer_has_its_share_and_expires_no_token_of_others() {
        let pages = new_pages();
        let peer = |host: u8| Some(Origin::at([10, 0, 0, host].into()));
        let mine = pages.token(&snapshot(0), 7, "a", peer(1));
        let snapshots: Vec<_> = (1..=40).map(snapshot).collect();
        // A peer with many lists.
        let tokens: Vec<_> = snapshots.iter().map(|of| pages.token(of, 7, "a", peer(2))).collect();
        let kept: Vec<bool> = tokens.iter().map(|token| pages.resume(token, 7).is_ok()).collect();
        assert_eq!(kept.iter().filter(|is_kept| **is_kept).count(), MAX_SNAPSHOTS / 4);
        assert!(kept[36..].iter().all(|is_kept| *is_kept), "the newest");
        assert!(pages.resume(&mine, 7).is_ok());
        // Five peers with many lists.
        for host in 2..7 {
            for version in 0..20 {
                pages.token(&snapshot(u128::from(host) * 100 + version), 7, "a", peer(host));
            }
        }
        assert!(pages.resume(&mine, 7).is_ok(), "those give way who have more");
        assert_eq!(pages.retained.lock().snapshots.len(), MAX_SNAPSHOTS);
        let entries: usize = pages.retained.lock().snapshots.iter().map(|retained| retained.holders.len()).sum();
        assert!(entries <= MAX_SNAPSHOTS * MAX_SNAPSHOTS, "{entries}");
    }

    #[tokio::test]
    async fn a_snapshot_is_kept_as_long_as_one_peer_holds_it() {
        let pages = new_pages();
        let peer = |host: u8| Some(Origin::at([10, 0, 0, host].into()));
        let first = snapshot(0);
        let token = pages.token(&first, 7, "a", peer(1));
        pages.token(&first, 7, "a", peer(2));
        for of in (1..=10).map(snapshot) {
            pages.token(&of, 7, "a", peer(1));
        }
        assert!(pages.resume(&token, 7).is_ok());
        for of in (11..=20).map(snapshot) {
            pages.token(&of, 7, "a", peer(2));
        }
        assert!(pages.resume(&token, 7).is_err(), "nobody holds it");
    }
}
