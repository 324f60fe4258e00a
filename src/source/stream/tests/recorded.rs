//! Lines of `informerd record`, read again.

use bytes::Bytes;

use super::*;
use crate::{
    client::{Update, WatchEventEncoder},
    model::{JSON, Object},
    proto::pb,
};

/// One change of a recorded watch.
#[derive(Debug, Clone)]
struct Recorded {
    is_deleted: bool,
    namespace: String,
    name: String,
    uid: String,
    body: Vec<u8>,
}

/// State of an object in a copy: uid, media type and body.
type Held = (String, &'static str, Vec<u8>);

// === impl Recorded ===

impl Recorded {
    fn line(&self) -> Vec<u8> {
        let Self { is_deleted, namespace, name, uid, body } = self.clone();
        let object = pb::Object {
            namespace,
            name,
            uid,
            body: Some(pb::object::Body::Raw(Bytes::from(body))),
            ..pb::Object::default()
        };
        let event_type = if is_deleted { pb::EventType::Deleted } else { pb::EventType::Modified };
        let cause = pb::Cause::Unspecified;
        let update = Update::Event { event_type, cause, object, resource_version: "5".to_owned() };
        let mut line = Vec::new();
        WatchEventEncoder::new().update(&update, &mut line);
        line
    }

    fn key(&self) -> (String, String) {
        (self.namespace.clone(), self.name.clone())
    }

    /// Returns the state that a copy has to have: line breaks between tokens are removed.
    fn held(&self) -> Held {
        let (media_type, _) = Object::any_envelope(&self.body);
        let in_one_line: Vec<u8> = self.body.iter().copied().filter(|byte| !b"\r\n".contains(byte)).collect();
        let is_exact = media_type != JSON || in_one_line.trim_ascii() != in_one_line;
        (self.uid.clone(), media_type, if is_exact { self.body.clone() } else { in_one_line })
    }
}

fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let part = || prop::option::of("[a-b/é]{0,2}");
    let manifest = (part(), part(), part(), any::<bool>(), "[a-z\"\\\\\n\u{2028}é]{0,4}");
    let manifest = manifest.prop_map(|(namespace, name, uid, is_pretty, text)| {
        let mut metadata = serde_json::Map::new();
        for (key, value) in [("namespace", namespace), ("name", name), ("uid", uid)] {
            metadata.extend(value.map(|value| (key.to_owned(), value.into())));
        }
        let json = serde_json::json!({ "kind": "Pod", "metadata": metadata, "x": text });
        if is_pretty { format!("{json:#}") } else { json.to_string() }.into_bytes()
    });
    let json = prop::sample::select(vec![
        "null",
        "5",
        "[1,\r\n2]\n",
        "\"\\ud83d\"",
        " {\"a\":1}",
        "{}\t",
        "{}\n ",
        r#"{"kind":5}"#,
        r#"{"metadata":{"name":[]}}"#,
        r#"{"metadata":{"name":"a"},"metadata":{"name":"b"}}"#,
        r#"{"object":{"metadata":{"name":"x"}},"name":"y"}"#,
    ]);
    prop_oneof![4 => manifest, 2 => json.prop_map(|json| json.as_bytes().to_vec()), 2 => vec(any::<u8>(), 0..40)]
}

fn any_recorded() -> impl Strategy<Value = Recorded> {
    let key = ("[ab/é]{0,2}", "[ab/é\"\n]{1,2}", "[a-b5]{0,1}");
    (prop::bool::weighted(0.2), key, any_body()).prop_map(|(is_deleted, (namespace, name, uid), body)| Recorded {
        is_deleted,
        // Of one object only.
        uid: if uid.is_empty() { uid } else { format!("{uid} {namespace:?} {name:?}") },
        namespace,
        name,
        body,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..crate::property_config() })]

    #[test]
    fn what_record_writes_is_read_as_the_same_objects(recorded in vec(any_recorded(), 0..20)) {
        let mut expected = BTreeMap::new();
        for change in &recorded {
            if change.is_deleted {
                let uid = expected.get(&change.key()).map_or("", |(uid, ..): &Held| uid);
                if uid.is_empty() || ["", uid].contains(&&*change.uid) {
                    expected.remove(&change.key());
                }
            } else {
                expected.insert(change.key(), change.held());
            }
        }
        let lines: Vec<u8> = recorded.iter().flat_map(Recorded::line).collect();
        prop_assert_eq!(memchr::memchr_iter(b'\n', &lines).count(), recorded.len(), "one line each");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (_directory, path) = file(lines);
            let mut rig = Rig::open(&path).await;
            assert_eq!(rig.all().await.len(), recorded.len());
            assert_eq!(rig.problems(), (1, "stream ended".to_owned()), "every line was applied");
            let list = rig.source.list(ListVersion::MostRecent).await.unwrap();
            let held = |object: &Object| (object.uid().to_owned(), object.media_type(), object.body().to_vec());
            let key = |object: &Object| (object.key().namespace().to_owned(), object.key().name().to_owned());
            let found: BTreeMap<_, _> = list.objects.iter().map(|object| (key(object), held(object))).collect();
            assert_eq!(found, expected);
        });
    }
}

/// Checks the size of the largest line, whose bytes are in base64.
#[tokio::test]
async fn the_largest_object_is_read_again() {
    let body = vec![0xff; MAX_OBJECT_BYTES];
    let largest = Recorded { is_deleted: false, namespace: String::new(), name: "a".into(), uid: String::new(), body };
    let (_directory, path) = file(largest.line());
    let mut rig = Rig::open(&path).await;
    assert_eq!(rig.all().await.len(), 1);
    let list = rig.source.list(ListVersion::MostRecent).await.unwrap();
    assert_eq!(list.objects[0].body().len(), MAX_OBJECT_BYTES);
}
