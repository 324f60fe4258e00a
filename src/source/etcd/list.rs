//! List of all keys of a prefix at one revision: one stream where etcd has it (from 3.7 on), pages otherwise.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::task::spawn_blocking;
use tonic::{Code, Status};

use super::{
    connection::{Connection, is_compacted, is_too_large},
    object::Prefix,
    pb::{KeyValue, RangeRequest, ResponseHeader},
};
use crate::{
    cache::{Problem, SourceError},
    model::{Object, ParsedBody},
};

/// Result of a list.
#[derive(Debug, Default)]
pub(super) struct KeyList {
    /// Header with the revision that all keys are of.
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
/// Number of keys whose objects are made before other tasks run, about a millisecond of small ones.
const TAKEN_AT_ONCE: usize = 128;
/// Number of keys whose values a thread parses, and of the threads that parse at a time.
const PARSED_AT_ONCE: usize = 1024;
const PARSERS: usize = 2;

/// Reads the prefix. If etcd compacts the revision meanwhile, reads everything once more in a single response.
pub(super) async fn read(connection: &Connection, prefix: &Prefix) -> Result<KeyList, SourceError> {
    let read = match read_stream(connection, prefix).await {
        Err(status) if is_compacted(&status) => read_pages(connection, prefix, 0).await,
        // etcd before 3.7, or a proxy before it.
        Err(status) if status.code() == Code::Unimplemented || is_too_large(&status) => {
            read_pages(connection, prefix, FIRST_PAGE).await
        }
        read => read,
    };
    read.map_err(|status| connection.error(&status))
}

/// Reads one stream. Its flow control bounds what etcd sends while the keys before are parsed.
async fn read_stream(connection: &Connection, prefix: &Prefix) -> Result<KeyList, Status> {
    let (mut reading, mut key) = (KeyList::default(), prefix.first());
    let mut parts = connection.range_stream(key.clone(), prefix.end()).await?;
    let (mut header, mut kvs) = (None, Vec::new());
    loop {
        let (part, taken) =
            tokio::join!(connection.next_part(&mut parts), reading.take(std::mem::take(&mut kvs), prefix));
        taken?;
        let Some(part) = part? else { break };
        // Only the last part has a header. What a server before this one has cut may end like a whole stream.
        let is_empty = part.header.is_none() && part.kvs.is_empty();
        if header.is_some() || part.more || is_empty {
            return Err(undecodable("a part that is not the next one, nor the last"));
        }
        (header, kvs) = (part.header, part.kvs);
        key = key_after(&kvs, key, prefix)?;
    }
    reading.header = header.ok_or_else(|| undecodable("a stream without its last part"))?;
    Ok(reading)
}

async fn read_pages(connection: &Connection, prefix: &Prefix, first_limit: i64) -> Result<KeyList, Status> {
    let (mut reading, mut key, mut limit) = (KeyList::default(), prefix.first(), first_limit);
    let (mut kvs, mut most) = (Vec::new(), MAX_PAGE);
    loop {
        let revision = reading.header.revision;
        let request =
            RangeRequest { key: key.clone(), range_end: prefix.end(), limit, revision, ..RangeRequest::default() };
        // etcd reads a page while the one before it is parsed.
        let (page, taken) = tokio::join!(connection.range(request), reading.take(std::mem::take(&mut kvs), prefix));
        taken?;
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
            Err(status) => return Err(status),
        };
        if revision == 0 {
            reading.header = page.header.unwrap_or_default();
        }
        kvs = page.kvs;
        if page.more && kvs.is_empty() {
            return Err(undecodable("an empty page that is not the last"));
        }
        key = key_after(&kvs, key, prefix)?;
        if !page.more {
            reading.take(kvs, prefix).await?;
            return Ok(reading);
        }
        let bytes: usize = kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
        limit = next_limit(limit, i64::try_from(bytes).unwrap_or(i64::MAX)).min(most);
    }
}

/// Returns the first key after these, which have to be of the range from this key on: a server that sends other keys does not list
/// the prefix, and its pages may have no end.
fn key_after(kvs: &[KeyValue], from: Vec<u8>, prefix: &Prefix) -> Result<Vec<u8>, Status> {
    if !kvs.iter().all(|kv| kv.key >= from && prefix.has(&kv.key)) {
        return Err(undecodable("a page of other keys"));
    }
    Ok(kvs.last().map_or(from, |last| [&last.key[..], &[0]].concat()))
}

/// Returns a status that becomes [`SourceError::Undecodable`].
fn undecodable(problem: &str) -> Status {
    Status::out_of_range(problem)
}

/// Parses the values of some keys, on another thread unless they are few.
async fn parse(kvs: &Arc<Vec<KeyValue>>, first: usize) -> Result<Vec<ParsedBody>, Status> {
    let parse = |kvs: &[KeyValue]| kvs.iter().map(|kv| ParsedBody::new(&kv.value)).collect();
    if kvs.len() < TAKEN_AT_ONCE {
        return Ok(parse(kvs));
    }
    let kvs = Arc::clone(kvs);
    let parsing = spawn_blocking(move || parse(&kvs[first..kvs.len().min(first + PARSED_AT_ONCE)]));
    // A panic was reported at its origin.
    parsing.await.map_err(|error| Status::aborted(error.to_string()))
}

fn next_limit(limit: i64, bytes: i64) -> i64 {
    let fitting = limit.saturating_mul(PAGE_BYTES) / bytes.max(1);
    // One page is a weak estimate of the next: grow step by step.
    fitting.clamp(1, (limit * 4).min(MAX_PAGE))
}

// === impl KeyList ===

impl KeyList {
    /// Adds keys of a page, whose values other threads parse. This one makes the objects, since the allocator has a heap for each
    /// thread, and the cache's is that of this one; other tasks run meanwhile.
    async fn take(&mut self, kvs: Vec<KeyValue>, prefix: &Prefix) -> Result<(), Status> {
        self.note_newest(&kvs);
        let kvs = Arc::new(kvs);
        let mut parsed =
            stream::iter((0..kvs.len()).step_by(PARSED_AT_ONCE)).map(|first| parse(&kvs, first)).buffered(PARSERS);
        let mut at = 0;
        while let Some(bodies) = parsed.try_next().await? {
            for body in bodies {
                if at % TAKEN_AT_ONCE == TAKEN_AT_ONCE - 1 {
                    tokio::task::yield_now().await;
                }
                let kv = &kvs[at];
                at += 1;
                match prefix.object_of(kv, body) {
                    Ok(object) => self.objects.push(Arc::new(object)),
                    Err(problem) => {
                        self.not_served.extend(prefix.bare(kv).map(Arc::new));
                        self.problems.push(problem);
                    }
                }
            }
        }
        Ok(())
    }

    /// Keeps the keys of the latest change. Their values are copied: a value shares the memory of its page.
    fn note_newest(&mut self, kvs: &[KeyValue]) {
        let newest = |kvs: &[KeyValue]| kvs.iter().map(|kv| kv.mod_revision).max().unwrap_or(0);
        let (before, after) = (newest(&self.newest), newest(kvs));
        if after > before {
            self.newest.clear();
        }
        let of_latest = kvs.iter().filter(|kv| kv.mod_revision == after && after >= before);
        self.newest.extend(of_latest.map(|kv| KeyValue { value: Bytes::copy_from_slice(&kv.value), ..kv.clone() }));
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
