//! Record of all writes, by any writer and whether or not it got an answer: etcd's own watch of the keys of an API server.

use std::{sync::Arc, time::Instant};

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;

use self::etcdserverpb::{
    WatchCreateRequest, WatchRequest, WatchResponse, watch_client::WatchClient, watch_request::RequestUnion,
};
use crate::{DEADLINE, apiserver::Kind, etcd::Etcd, truth::Truth};

/// Every change of one kind, from its beginning.
pub(crate) struct Journal {
    written: Arc<Mutex<Truth>>,
    reading: JoinHandle<()>,
}

// Each package is a module, since the one names the other as a sibling.
#[allow(dead_code, unreachable_pub, missing_debug_implementations, clippy::pedantic, reason = "generated")]
mod etcdserverpb {
    include!("../../proto/generated/etcdserverpb.rs");
}

#[allow(dead_code, unreachable_pub, missing_debug_implementations, clippy::pedantic, reason = "generated")]
mod mvccpb {
    include!("../../proto/generated/mvccpb.rs");
}

/// Mark on both sides of a value, which finds it in any stored form: JSON, or the API server's protobuf.
pub(crate) const MARK: char = '#';

// === impl Journal ===

impl Journal {
    /// Watches a kind, of which nothing may have been compacted yet.
    pub(crate) async fn of(etcd: &Etcd, kind: Kind) -> Self {
        let mut end = kind.stored.as_bytes().to_vec();
        *end.last_mut().unwrap() += 1;
        let create = WatchCreateRequest {
            key: kind.stored.into(),
            range_end: end,
            start_revision: 1,
            ..WatchCreateRequest::default()
        };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // A stream of requests that ends would end the watch.
        let requests = tokio_stream::once(request).chain(tokio_stream::pending());
        let client = WatchClient::connect(etcd.url()).await.unwrap();
        let mut watch = client.max_decoding_message_size(64 << 20).watch(requests).await.unwrap().into_inner();
        let written = Arc::new(Mutex::new(Truth::new(0)));
        let notes = Arc::clone(&written);
        let reading = tokio::spawn(async move {
            while let Some(answer) = watch.message().await.unwrap() {
                note(answer, kind, &mut notes.lock());
            }
        });
        Self { written, reading }
    }

    /// Returns all changes, once the journal has reached a revision that was written.
    pub(crate) async fn up_to(&self, revision: i64) -> Truth {
        let started = Instant::now();
        while self.written.lock().revision() < revision {
            assert!(!self.reading.is_finished() && started.elapsed() < DEADLINE, "etcd does not tell of {revision}");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        self.written.lock().clone()
    }

    /// Returns its last revision.
    pub(crate) fn latest(&self) -> i64 {
        self.written.lock().revision()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

fn note(answer: WatchResponse, kind: Kind, written: &mut Truth) {
    assert!(!answer.canceled, "{}", answer.cancel_reason);
    for event in answer.events {
        let is_deletion = event.r#type() == mvccpb::event::EventType::Delete;
        let pair = event.kv.unwrap();
        let key = String::from_utf8(pair.key).unwrap();
        // Kubernetes' own objects have other names.
        let Some((namespace, name)) = key[kind.stored.len()..].split_once("/o-") else { continue };
        let value = (!is_deletion).then(|| marked(&pair.value));
        written.note(pair.mod_revision, [(format!("{namespace}/{name}"), value)].into());
    }
}

/// Returns the value in the stored bytes.
fn marked(stored: &[u8]) -> String {
    let stored = String::from_utf8_lossy(stored);
    let value = stored.split(MARK).nth(1).unwrap_or_else(|| panic!("no value in {stored}"));
    format!("{MARK}{value}{MARK}")
}
