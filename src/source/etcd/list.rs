//! Paged list of all keys of a prefix at one revision.

use std::sync::Arc;

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
const MAX_PAGE: i64 = 16 << 10;
/// Target size of a page: large enough to be worth a call, small enough to be no burden.
const PAGE_BYTES: usize = 1 << 20;

/// Reads the prefix. If etcd compacts the revision meanwhile, reads everything once more in a single response.
pub(super) async fn read(connection: &Connection, prefix: &Prefix) -> Result<KeyList, SourceError> {
    let (mut reading, mut key, mut limit) = (KeyList::default(), prefix.first(), FIRST_PAGE);
    loop {
        let revision = reading.header.revision;
        let request =
            RangeRequest { key: key.clone(), range_end: prefix.end(), limit, revision, ..RangeRequest::default() };
        let page = match connection.range(request).await {
            Ok(page) => page,
            Err(status) if is_too_large(&status) && limit > 1 => {
                limit = (limit / 8).max(1);
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
        let bytes: usize = page.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
        let last = page.kvs.last().map(|kv| kv.key.clone());
        for kv in page.kvs {
            reading.take(kv, prefix);
        }
        let Some(last) = last.filter(|_| page.more) else {
            return Ok(reading);
        };
        key = last;
        key.push(0);
        limit = next_limit(limit, bytes);
    }
}

fn next_limit(limit: i64, bytes: usize) -> i64 {
    let fitting = i64::try_from(PAGE_BYTES / bytes.max(1)).unwrap_or(MAX_PAGE).saturating_mul(limit);
    // One page is a weak estimate of the next: grow step by step.
    fitting.clamp(1, (limit * 4).min(MAX_PAGE))
}

// === impl KeyList ===

impl KeyList {
    fn take(&mut self, kv: KeyValue, prefix: &Prefix) {
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
    use super::*;

    #[test]
    fn pages_grow_and_shrink_to_their_size() {
        assert_eq!(next_limit(32, 32 * 100), 128, "four times at most");
        assert_eq!(next_limit(128, PAGE_BYTES), 128);
        assert_eq!(next_limit(128, 64 * PAGE_BYTES), 1);
        assert_eq!(next_limit(MAX_PAGE, 10), MAX_PAGE);
        assert_eq!(next_limit(1, 0), 4);
    }
}
