//! Published event: encoded once, then only a few digits of it are overwritten.
//!
//! An object has a name, a node (to index it by) and, at its end, the publish time: one of a given size, filled up with digits, or a
//! pod of a Deployment as an API server lists it without managed fields, of which every id differs (`pod.json`). It has two forms: a
//! line of the `stream` source, and for the floor the encoded message to a client.

use bytes::Bytes;
use informerd::proto::pb;
use prost::Message;

use super::messages::{PREFIX_BYTES, SENT_DIGITS};

/// Format of the events, by their reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// For a server: `{"type":"MODIFIED","object":{…}}`, one per line.
    Lines,
    /// For the floor: the watcher ([`EVERYBODY`] for all) and the length, both in four bytes, little-endian; then a
    /// `WatchResponse` with its gRPC prefix.
    Records,
}

/// Content of the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Digits up to this many bytes.
    Size(usize),
    /// Fields and ids of a pod, which compress as those of one.
    Pod,
}

/// Event with places to be filled in.
#[derive(Debug, Clone)]
pub(super) struct Template {
    form: Form,
    bytes: Vec<u8>,
    /// Offsets of the object's number.
    objects: Vec<usize>,
    /// Offsets of eight hexadecimal digits of ids.
    ids: Vec<usize>,
    sent: usize,
}

/// Watcher number that stands for all watchers.
pub(super) const EVERYBODY: u32 = u32::MAX;

/// Placeholders for the time and the number of the object.
const SENT: &str = "TTTTTTTTTTTTTTTT";
const OBJECT: &str = "NNNNNNN";
const ID: &str = "RRRRRRRR";

/// Index of [`node`], and the path of its values.
pub(super) const INDEX: &str = "node";
pub(super) const INDEX_PATH: &str = ".spec.nodeName";

/// Returns the index value of the object with a number.
pub(super) fn node(object: u64) -> String {
    format!("node-{object:0width$}", width = OBJECT.len())
}

/// Returns an object; with a size, of so many bytes, or of slightly more if it needs them.
fn body(content: Content) -> String {
    let size = match content {
        Content::Size(size) => size,
        Content::Pod => return include_str!("pod.json").trim_end().to_owned(),
    };
    let (head, tail) = (
        format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"bench","name":"pod-{OBJECT}"}},"spec":{{"nodeName":"node-{OBJECT}","containers":[{{"name":"main","image":"registry.example/main:1","env":[{{"name":"FILLER","value":""#
        ),
        format!(r#""}}]}}]}},"status":{{"phase":"Running"}},"sent":"{SENT}"}}"#),
    );
    let filler = "0123456789abcdef".chars().cycle().take(size.saturating_sub(head.len() + tail.len()));
    head + &filler.collect::<String>() + &tail
}

// === impl Template ===

impl Template {
    /// Returns a template for objects with this content.
    pub(super) fn new(form: Form, content: Content) -> Self {
        let bytes = match form {
            Form::Lines => format!("{{\"type\":\"MODIFIED\",\"object\":{}}}\n", body(content)).into_bytes(),
            Form::Records => record(&body(content)),
        };
        let find = |what: &str| {
            let places = bytes.windows(what.len()).enumerate().filter(|(_, window)| *window == what.as_bytes());
            places.map(|(at, _)| at).collect::<Vec<_>>()
        };
        // The placeholder of the time occurs once, whatever the size.
        let (objects, sent) = (find(OBJECT), find(SENT).first().copied().unwrap_or_default());
        // Those of ids may follow each other.
        let mut ids: Vec<usize> = Vec::new();
        for at in find(ID) {
            if ids.last().is_none_or(|last| last + ID.len() <= at) {
                ids.push(at);
            }
        }
        Self { form, bytes, objects, ids, sent }
    }

    /// Appends the event of an object with this publish time, for one watcher or for all.
    pub(super) fn write(&mut self, object: u64, sent: u64, watcher: u32, out: &mut Vec<u8>) {
        for at in &self.objects {
            digits(&mut self.bytes[*at..at + OBJECT.len()], object);
        }
        for (place, at) in self.ids.iter().enumerate() {
            let id = fastrand::Rng::with_seed(object << 8 | place as u64).u32(..);
            self.bytes[*at..at + ID.len()].copy_from_slice(format!("{id:08x}").as_bytes());
        }
        digits(&mut self.bytes[self.sent..self.sent + SENT_DIGITS], sent);
        if self.form == Form::Records {
            self.bytes[..4].copy_from_slice(&watcher.to_le_bytes());
        }
        out.extend_from_slice(&self.bytes);
    }
}

/// Returns the record as a server would encode it.
fn record(body: &str) -> Vec<u8> {
    let version = "aaaaaaaaaaaa.0000000".to_owned();
    let object = pb::Object {
        namespace: "bench".to_owned(),
        name: format!("pod-{OBJECT}"),
        resource_version: version.clone(),
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        media_type: "application/json".to_owned(),
        body: Some(pb::object::Body::Raw(Bytes::copy_from_slice(body.as_bytes()))),
        ..Default::default()
    };
    let response = pb::WatchResponse {
        r#type: pb::EventType::Modified.into(),
        resource_version: version,
        object: Some(object),
        ..Default::default()
    };
    let message = response.encode_to_vec();
    let mut bytes = EVERYBODY.to_le_bytes().to_vec();
    bytes.extend(((PREFIX_BYTES + message.len()) as u32).to_le_bytes());
    bytes.push(0);
    bytes.extend((message.len() as u32).to_be_bytes());
    bytes.extend(message);
    bytes
}

fn digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use informerd::model::{Object, ResourceVersion};

    use super::{
        super::messages::{self, MessageKind},
        *,
    };

    #[test]
    fn a_line_is_an_event_of_the_stream_source() {
        let (mut template, mut line) = (Template::new(Form::Lines, Content::Size(1024)), Vec::new());
        template.write(9, 1, EVERYBODY, &mut Vec::new());
        template.write(42, 1_234_567, EVERYBODY, &mut line);
        assert_eq!(line.pop(), Some(b'\n'));
        let event: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(event["type"], "MODIFIED");
        assert_eq!(event["object"]["spec"]["nodeName"], node(42));
        assert_eq!(event["object"]["sent"], "0000000001234567");
        let body = &line[line.iter().skip(1).position(|byte| *byte == b'{').unwrap() + 1..line.len() - 1];
        assert_eq!(body.len(), 1024);
        assert_eq!(messages::sent(body), Some(1_234_567));
        let object = Object::from_json(Bytes::copy_from_slice(body), "", ResourceVersion::decimal(1)).unwrap();
        assert_eq!(object.key().to_string(), "bench/pod-0000042");
    }

    #[test]
    fn a_pod_is_an_event_of_the_stream_source_with_its_own_ids() {
        let (mut template, mut lines) = (Template::new(Form::Lines, Content::Pod), Vec::new());
        for object in [1, 2, 1] {
            template.write(object, 7, EVERYBODY, &mut lines);
        }
        let lines: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').collect();
        assert!(lines[0] == lines[2] && lines[0].len() == lines[1].len() && lines[0] != lines[1]);
        let event: serde_json::Value = serde_json::from_slice(lines[1]).unwrap();
        assert_eq!(event["object"]["spec"]["nodeName"], node(2));
        assert!(!String::from_utf8_lossy(lines[1]).contains(ID));
        assert_eq!(messages::sent(&lines[1][..lines[1].len() - 1]), Some(7));
    }

    #[test]
    fn a_record_is_the_message_of_the_same_object() {
        let (mut template, mut record) = (Template::new(Form::Records, Content::Size(1024)), Vec::new());
        template.write(42, 1_234_567, 7, &mut record);
        assert_eq!(record[..4], 7_u32.to_le_bytes());
        assert_eq!(record[4..8], (record.len() as u32 - 8).to_le_bytes());
        let mut seen = Vec::new();
        messages::MessageReader::default().feed(&record[8..], |message| seen.push(message.to_owned()));
        let [message] = &seen[..] else { panic!("{}", seen.len()) };
        assert_eq!((MessageKind::of(message), messages::sent(message)), (MessageKind::Change, Some(1_234_567)));
        let response = pb::WatchResponse::decode(&message[..]).unwrap();
        assert_eq!(response.object.unwrap().name, "pod-0000042");
    }

    #[test]
    fn a_size_that_is_too_small_is_as_small_as_can_be() {
        let mut line = Vec::new();
        Template::new(Form::Lines, Content::Size(0)).write(1, 2, EVERYBODY, &mut line);
        let event: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(event["object"]["metadata"]["name"], "pod-0000001");
    }
}
