//! Fuzz check of a watch's responses as a gRPC stream of bytes: complete transactions, in order, each once, wherever it is cut.
//!
//! The input begins with 0 or 1, like a gRPC message, or it is a script: a line for each response, of words.
//!
//! ```text
//!   from 7 7:a=1 7:b=2   the resource is at revision 7, and etcd has to replay the transaction (only as the first line)
//!   8:a=2 8:b- 9:c+1     a key is put, deleted, created
//!   f 10:d=1             a fragment of a response
//!   h11                  progress
//!   c                    the watch is cancelled;  k5  compacted up to 5;  o  created
//! ```

use std::{convert::Infallible, sync::LazyLock, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message;
use serde::de::IgnoredAny;
use tokio::runtime::{Builder, Runtime};
use tonic_prost::ProstDecoder;

use super::*;
use crate::{
    cache::SourceHealth,
    source::etcd::{object::Prefix, pb::KeyValue},
};

const PREFIX: &str = "/s/";
const CONNECTION: u64 = 2;
const EARLIER_CONNECTION: u64 = 1;
/// Position of the resource in a script without a `from` line.
const FROM: i64 = 5;
/// Limit of a message, larger than any input.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Connection that is never used, and its runtime.
static IDLE: LazyLock<(Runtime, Connection)> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let _entered = runtime.enter();
    let connection = Connection::idle(CONNECTION, Duration::from_secs(10));
    (runtime, connection)
});

/// Follows the responses in an input, cut into each of these sequences of pieces.
pub(crate) fn watch(data: &[u8], ways: &[Vec<&[u8]>]) {
    if data.first().is_some_and(|byte| *byte <= 1) {
        let from = Position { revision: FROM, connection: CONNECTION, resume_point: None };
        let all: Vec<_> = ways.iter().map(|pieces| follow(&from, pieces)).collect();
        for followed in &all {
            followed.check(&from);
            assert_eq!(followed.shown(), all[0].shown(), "wherever it is cut");
        }
        return;
    }
    let Some((from, responses)) = str::from_utf8(data).ok().and_then(script) else { return };
    let stream: Vec<u8> = responses.iter().flat_map(framed).collect();
    let whole = follow(&from, &[&stream]);
    assert_eq!(whole.received, responses[..whole.received.len()]);
    whole.check(&from);
    assert_eq!(whole.shown(), follow(&from, &stream.chunks(3).collect::<Vec<_>>()).shown(), "wherever it is cut");
}

/// Version of a transaction, and its changes in order; no changes for progress.
type Told = (u128, Vec<(char, String)>);

/// Result of following a stream.
struct Followed {
    /// Responses that the watch has taken.
    received: Vec<WatchResponse>,
    handed_out: Vec<Delta>,
    error: Option<SourceError>,
}

/// Follows the responses of a stream up to its end or an error.
fn follow(from: &Position, pieces: &[&[u8]]) -> Followed {
    let (_, connection) = &*IDLE;
    let health = SourceHealth::new(Duration::ZERO, Duration::ZERO);
    let shared = EtcdShared::new(EtcdConfig::new("settings", Vec::new(), PREFIX), health);
    let frames: Vec<_> =
        pieces.iter().map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece)))).collect();
    let body = StreamBody::new(stream::iter(frames));
    let decoder = ProstDecoder::<WatchResponse>::default();
    let responses = Streaming::new_response(decoder, body, http::StatusCode::OK, None, Some(MAX_MESSAGE_BYTES));
    let unconfirmed =
        from.resume_point.clone().map(|resume_point| UnconfirmedChange { resume_point, is_repeated: false });
    let mut live = EtcdWatch {
        changed: Box::pin(std::future::pending()),
        start: unconfirmed.as_ref().map_or(from.revision, |unconfirmed| unconfirmed.resume_point.revision()),
        last: Position { connection: connection.id, ..from.clone() },
        shared: Arc::new(shared),
        connection: connection.clone(),
        requests: mpsc::channel(1).0,
        responses,
        unconfirmed,
        gathered: Vec::new(),
        is_partial: false,
        ready: VecDeque::new(),
        last_message_at: Instant::now(),
        requested_at: None,
        unanswered_since: None,
        head: HeadReads::default(),
    };
    let mut followed = Followed { received: Vec::new(), handed_out: Vec::new(), error: None };
    while let Some(Ok(Some(response))) = live.responses.message().now_or_never() {
        followed.received.push(response.clone());
        if let Err(error) = live.take(Some(response)) {
            followed.error = Some(error);
            break;
        }
        followed.handed_out.extend(live.ready.drain(..).map(|(delta, _)| delta));
    }
    followed
}

// === impl Followed ===

impl Followed {
    fn shown(&self) -> String {
        format!("{:?} {:?}", self.handed_out, self.error)
    }

    /// Compares the delivered deltas with the received responses.
    fn check(&self, from: &Position) {
        self.received
            .iter()
            .flat_map(|response| &response.events)
            .filter_map(|event| event.kv.as_ref())
            .for_each(value);
        let handed_out: Vec<_> = self.handed_out.iter().map(told).collect();
        let (expected, transactions) = self.expected(from.revision);
        assert_eq!(handed_out, expected[..handed_out.len()]);
        assert!(self.error.is_some() || handed_out.len() == expected.len(), "{expected:?} instead of {handed_out:?}");
        if let (Some(resume_point), false) = (&from.resume_point, handed_out.is_empty()) {
            let mut transactions = transactions.iter();
            let repeated = transactions.find(|transaction| revision(&transaction[0]) == resume_point.revision());
            let verdict = repeated.map(|transaction| resume_point.compare(transaction));
            assert_eq!(verdict, Some(Verdict::Same), "handed out in another history");
        }
    }

    /// Returns the deltas to deliver unless there is an error before, and all transactions.
    fn expected(&self, mut last: i64) -> (Vec<Told>, Vec<Vec<PbEvent>>) {
        let (mut expected, mut transactions) = (Vec::new(), Vec::new());
        let mut complete = |transaction: &mut Vec<PbEvent>, expected: &mut Vec<Told>, last: &mut i64| {
            let Some(at) = transaction.first().map(revision) else { return };
            if at > *last {
                *last = at;
                expected.push((version(at).number(), transaction.iter().filter_map(change).collect()));
            }
            transactions.push(std::mem::take(transaction));
        };
        let mut open = Vec::new();
        for WatchResponse { header, created, canceled, compact_revision, fragment, events, .. } in &self.received {
            if *compact_revision > 0 || *canceled {
                break;
            }
            if *created {
                continue;
            }
            let head = header.as_ref().map_or(0, |header| header.revision);
            if events.is_empty() && !fragment && open.is_empty() && head >= last {
                last = head;
                expected.push((version(head).number(), Vec::new()));
            }
            for event in events {
                if open.first().is_some_and(|first| revision(first) != revision(event)) {
                    complete(&mut open, &mut expected, &mut last);
                }
                open.push(event.clone());
            }
            if !fragment {
                complete(&mut open, &mut expected, &mut last);
            }
        }
        (expected, transactions)
    }
}

/// Returns the version of a transaction, and its changes.
fn told(delta: &Delta) -> Told {
    let Delta::Changes { events, closes: true } = delta else { panic!("{delta:?} is no transaction") };
    let version = events.last().expect("an event").version();
    assert!(events.iter().all(|event| event.version() == version), "{events:?}");
    let change = |event: &Event| match event {
        Event::Added(object) => Some(('+', object.key().to_string())),
        Event::Modified(object) => Some(('=', object.key().to_string())),
        Event::Deleted(object) => Some(('-', object.key().to_string())),
        Event::NotServed(object) | Event::Removed(object, _) => panic!("{object:?} is served"),
        Event::Bookmark(_) => None,
    };
    (version.number(), events.iter().filter_map(change).collect())
}

/// Returns an event's change of an object.
fn change(event: &PbEvent) -> Option<(char, String)> {
    let kv = event.kv.as_ref()?;
    let is_new = kv.create_revision == kv.mod_revision;
    let kind = match event.r#type() {
        EventType::Delete => '-',
        EventType::Put if is_new => '+',
        EventType::Put => '=',
    };
    Some((kind, object_key(kv)?))
}

/// Returns the printed key of the object under an etcd key: the part after the prefix.
fn object_key(kv: &KeyValue) -> Option<String> {
    let rest = str::from_utf8(kv.key.strip_prefix(PREFIX.as_bytes())?).ok()?;
    let is_key = !rest.is_empty() && !rest.starts_with('/') && !rest.contains('\0');
    let has_name = rest.split_once('/').is_none_or(|(_, name)| !name.is_empty());
    (is_key && has_name).then(|| rest.to_owned())
}

/// Checks the object of a key and a value.
fn value(kv: &KeyValue) {
    let prefix = Prefix::new(PREFIX);
    let object = prefix.object(kv).ok();
    assert_eq!(object.as_ref().map(|object| object.key().to_string()), object_key(kv));
    assert_eq!(prefix.bare(kv).map(|bare| bare.key().to_string()), object_key(kv));
    let Some(object) = object else { return };
    assert_eq!((object.body(), object.uid()), (&*kv.value, &*format!("{}/{}", kv.create_revision, object.key())));
    assert_eq!(object.version().number(), u128::try_from(kv.mod_revision).unwrap_or(0));
    let is_json = str::from_utf8(&kv.value).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
    assert_eq!(object.json().is_some(), is_json, "{object:?}");
}

/// Returns a response as a message of gRPC.
fn framed(response: &WatchResponse) -> Vec<u8> {
    let message = response.encode_to_vec();
    [&[0][..], &u32::try_from(message.len()).expect("a small message").to_be_bytes(), &message].concat()
}

/// Parses a script: the position of the resource, and the responses.
fn script(text: &str) -> Option<(Position, Vec<WatchResponse>)> {
    let mut lines = text.lines().peekable();
    let mut from = Position { revision: FROM, connection: CONNECTION, resume_point: None };
    if let Some(line) = lines.next_if(|line| line.starts_with("from ")) {
        let mut words = line.split(' ').skip(1);
        from.revision = words.next()?.parse().ok()?;
        let events: Vec<_> = words.map(event).collect::<Option<_>>()?;
        from.resume_point = events.first().map(|first| ResumePoint::of_transaction(revision(first), &events));
        if from.resume_point.is_some() {
            from.connection = EARLIER_CONNECTION;
        }
    }
    Some((from, lines.map(response).collect::<Option<_>>()?))
}

fn response(line: &str) -> Option<WatchResponse> {
    let mut response = WatchResponse::default();
    for word in line.split(' ').filter(|word| !word.is_empty()) {
        match word.split_at_checked(1)? {
            ("f", "") => response.fragment = true,
            ("c", "") => response.canceled = true,
            ("o", "") => response.created = true,
            ("k", revision) => response.compact_revision = revision.parse().ok()?,
            ("h", revision) => {
                response.header = Some(ResponseHeader { revision: revision.parse().ok()?, ..Default::default() });
            }
            _ => response.events.push(event(word)?),
        }
    }
    Some(response)
}

fn event(word: &str) -> Option<PbEvent> {
    let (revision, change) = word.split_once(':')?;
    let mod_revision: i64 = revision.parse().ok()?;
    let (key, rest) = change.split_at(change.find(['=', '-', '+'])?);
    let (create_revision, event_type) = match rest.as_bytes()[0] {
        b'-' => (0, EventType::Delete),
        b'+' => (mod_revision, EventType::Put),
        _ => (1, EventType::Put),
    };
    let key = key.strip_prefix('!').map_or_else(|| format!("{PREFIX}{key}"), str::to_owned).into_bytes();
    let kv = KeyValue { key, value: rest[1..].to_owned().into(), create_revision, mod_revision, version: 2 };
    Some(PbEvent { r#type: event_type.into(), kv: Some(kv) })
}
