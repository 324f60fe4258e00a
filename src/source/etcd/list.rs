//! Paged list of all keys of a prefix at one revision.

use std::sync::Arc;

use tonic::Code;

use super::{
    connection::{Connection, is_compacted, is_too_large},
    object::Prefix,
    pb::{KeyValue, RangeRequest, ResponseHeader},
};
use crate::{
    cache::{Problem, SourceError},
    model::Object,
};

/// Result of a list.
#[derive(Debug, Default)]
pub(super) struct KeyList {
    /// Header of the first page, whose revision all pages share.
    pub(super) header: ResponseHeader,
    pub(super) objects: Vec<Arc<Object>>,
    /// Problems of the keys that cannot be served.
    pub(super) problems: Vec<Problem>,
    /// Bare objects of those keys among them that are valid.
    pub(super) not_served: Vec<Arc<Object>>,
    /// Keys of the latest change, all of one revision.
    pub(super) newest: Vec<KeyValue>,
}

/// Keys on the first page: few enough for a page of the largest values to stay under the message limit.
const FIRST_PAGE: i64 = 32;
/// Most keys of a page. For each page etcd counts all keys from its first one on, so that many small pages of many keys take minutes;
/// kube-apiserver reads pages of 10,000 keys of any size.
const MAX_PAGE: i64 = 32 << 10;
/// Target size of a page. Two are in memory at a time.
const PAGE_BYTES: i64 = 32 << 20;
/// Number of keys that are parsed before other tasks run, about a millisecond of small ones.
const TAKEN_AT_ONCE: usize = 128;

/// Reads the prefix. If etcd compacts the revision meanwhile, reads everything once more in a single response.
pub(super) async fn read(connection: &Connection, prefix: &Prefix) -> Result<KeyList, SourceError> {
    let (mut reading, mut key, mut limit) = (KeyList::default(), prefix.first(), FIRST_PAGE);
    let (mut kvs, mut most) = (Vec::new(), MAX_PAGE);
    loop {
        let revision = reading.header.revision;
        let request =
            RangeRequest { key: key.clone(), range_end: prefix.end(), limit, revision, ..RangeRequest::default() };
        // etcd reads a page while the one before it is parsed.
        let (page, ()) = tokio::join!(connection.range(request), reading.take(std::mem::take(&mut kvs), prefix));
        let page = match page {
            Ok(page) => page,
            Err(status) if is_too_large(&status) && limit > 1 => {
                limit = (limit / 8).max(1);
                continue;
            }
            // A slow link, if a smaller page comes in time.
            Err(status) if status.code() == Code::DeadlineExceeded && limit > FIRST_PAGE => {
                most = (limit / 8).max(FIRST_PAGE);
                limit = FIRST_PAGE;
                continue;
            }
            Err(status) if is_compacted(&status) && limit != 0 => {
                (reading, key, limit) = (KeyList::default(), prefix.first(), 0);
                continue;
            }
            Err(status) => return Err(connection.error(&status)),
        };
        if revision == 0 {
            reading.header = page.header.unwrap_or_default();
        }
        kvs = page.kvs;
        // A server that sends other keys than the requested ones does not list the prefix, and its pages may have no end.
        let is_in_range = kvs.iter().all(|kv| kv.key >= key && prefix.has(&kv.key));
        if !is_in_range || page.more && kvs.is_empty() {
            let problem = if is_in_range { "an empty page that is not the last" } else { "a page of other keys" };
            return Err(SourceError::Undecodable(format!("{}: {problem}", connection.endpoint())));
        }
        let Some(last) = kvs.last().filter(|_| page.more) else {
            reading.take(kvs, prefix).await;
            return Ok(reading);
        };
        key.clone_from(&last.key);
        key.push(0);
        let bytes: usize = kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
        limit = next_limit(limit, i64::try_from(bytes).unwrap_or(i64::MAX)).min(most);
    }
}

fn next_limit(limit: i64, bytes: i64) -> i64 {
    let fitting = limit.saturating_mul(PAGE_BYTES) / bytes.max(1);
    // One page is a weak estimate of the next: grow step by step.
    fitting.clamp(1, (limit * 4).min(MAX_PAGE))
}

// === impl KeyList ===

impl KeyList {
    /// Adds keys of a page, and lets other tasks run meanwhile.
    async fn take(&mut self, kvs: Vec<KeyValue>, prefix: &Prefix) {
        for (at, kv) in kvs.into_iter().enumerate() {
            if at % TAKEN_AT_ONCE == TAKEN_AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            self.add(kv, prefix);
        }
    }

    fn add(&mut self, kv: KeyValue, prefix: &Prefix) {
        let newest = self.newest.first().map_or(0, |kv| kv.mod_revision);
        if kv.mod_revision > newest {
            self.newest.clear();
        }
        if kv.mod_revision >= newest {
            self.newest.push(kv.clone());
        }
        let bare = prefix.bare(&kv);
        match prefix.object(kv) {
            Ok(object) => self.objects.push(Arc::new(object)),
            Err(problem) => {
                self.not_served.extend(bare.map(Arc::new));
                self.problems.push(problem);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pages_grow_and_shrink_to_their_size() {
        assert_eq!(next_limit(32, 32 * 100), 128, "four times at most");
        assert_eq!(next_limit(128, PAGE_BYTES), 128);
        assert_eq!(next_limit(128, 2 * PAGE_BYTES), 64);
        assert_eq!(next_limit(128, 128 * PAGE_BYTES), 1);
        assert_eq!(next_limit(MAX_PAGE, 10), MAX_PAGE);
        assert_eq!(next_limit(1, 0), 4);
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        #[test]
        fn pages_of_equal_values_keep_the_size_that_they_reach(bytes in 1..2 * PAGE_BYTES) {
            let mut limit = FIRST_PAGE;
            for _ in 0..12 {
                limit = next_limit(limit, limit * bytes);
            }
            prop_assert_eq!(limit, (PAGE_BYTES / bytes).clamp(1, MAX_PAGE));
        }
    }
}
