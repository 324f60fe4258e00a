//! Comparison of an API server's decoded answers with the trees that `serde_json` makes of them.

use std::{
    collections::{BTreeMap, HashSet},
    convert::Infallible,
    sync::LazyLock,
};

use bytes::Bytes;
use futures_util::{FutureExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use serde_json::{Map, Value};

use super::{
    KubeConfig,
    line_reader::{LineError, LineReader},
    list::decode,
    object::{Bookmark, DecodedObject, ObjectDecoder},
    shared::ObjectList,
    status::Status,
};
use crate::{
    model::{EventType, FieldCut, Object, Path, ResourceVersion},
    source::watch_event::{self, DecodedEvent, INITIAL_EVENTS_END},
};

/// Compared parts of an object.
#[derive(Debug, PartialEq, Eq)]
struct Expected {
    /// Namespace, name, uid, version, API version and kind.
    texts: [String; 6],
    labels: BTreeMap<String, String>,
    body: Value,
}

/// Reason for which there is nothing to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unlike {
    /// The input is invalid.
    Refused,
    /// The input has an array in place of an object, which serde accepts for a struct.
    NotCompared,
}

/// Largest error text.
const MAX_ERROR_BYTES: usize = 2 << 10;

static WHOLE: LazyLock<KubeConfig> = LazyLock::new(|| KubeConfig::new("pods", "", "v1", "pods"));
static CUT: LazyLock<KubeConfig> = LazyLock::new(|| {
    let managed = Path::parse(".metadata.managedFields").expect("a path");
    KubeConfig { drop_fields: FieldCut::new([managed]).expect("a field"), ..WHOLE.clone() }
});
static PARTIAL: LazyLock<KubeConfig> = LazyLock::new(|| KubeConfig { is_metadata_only: true, ..CUT.clone() });

/// Decodes one page of a list.
pub(crate) fn list(data: &[u8]) {
    let page = page(data, &WHOLE, true);
    for (config, is_decimal) in [(&CUT, true), (&PARTIAL, true), (&WHOLE, false)] {
        let other = self::page(data, config, is_decimal);
        if let (Ok((page, _)), Ok((other, _))) = (&page, &other) {
            let other: HashSet<String> = keys(other).collect();
            assert!(keys(page).all(|key| other.contains(&key)), "what is read whole is read in part");
        }
        assert!(page.is_err() || other.is_ok(), "what is read whole is read in part");
    }
    compare_page(data, false);
    if let Some(tree) = tree(data) {
        compare_page(tree.to_string().as_bytes(), true);
    }
}

/// Compares a page with its tree. If no key is repeated, the page is decoded whenever its tree can be.
fn compare_page(text: &[u8], has_each_key_once: bool) {
    let Some(expected) = tree(text).map(|tree| expected_page(&tree)) else { return };
    match (page(text, &WHOLE, true), expected) {
        (Ok((page, next)), Ok(expected)) => {
            let found: Vec<_> = page.objects.iter().map(|object| found(object)).collect();
            let (version, next_page, objects, unreadable) = expected;
            assert_eq!((page.version, next), (version, next_page));
            // A repeated key makes an item unreadable, but not its tree.
            if has_each_key_once || page.unreadable.len() == unreadable {
                assert_eq!((found, page.unreadable.len()), (objects, unreadable));
            }
        }
        (_, Err(Unlike::NotCompared)) | (Err(()), Err(Unlike::Refused)) => {}
        (Err(()), Ok(expected)) => assert!(!has_each_key_once, "refused: {expected:?}"),
        (Ok(_), Err(Unlike::Refused)) => panic!("{} is no list", text.escape_ascii()),
    }
}

/// Decodes one line: as a watch event, as the object of a bookmark and as that of an error.
pub(crate) fn line(line: &[u8]) {
    let said = read_line(line, &WHOLE);
    if let Some(rest) = line.strip_prefix(b"{") {
        let spaced = [b"{ ", rest].concat();
        assert_eq!(format!("{said:?}"), format!("{:?}", read_line(&spaced, &WHOLE)), "however it is spaced");
    }
    for config in [&CUT, &PARTIAL] {
        let other = read_line(line, config);
        if let (Ok(DecodedEvent::Change(_, item)), Ok(DecodedEvent::Change(_, other))) = (&said, &other) {
            assert_eq!(item.object.key(), other.object.key());
        }
        assert!(said.is_err() || other.is_ok(), "what is read whole is read in part");
    }
    match said {
        Ok(DecodedEvent::Change(..)) => {}
        Ok(DecodedEvent::Bookmark(object)) => bookmark(object),
        Ok(DecodedEvent::Failure(status)) => failure(status),
        Err(problem) => check_text(&problem),
    }
    compare_line(line, false);
    if let Some(tree) = tree(line) {
        compare_line(tree.to_string().as_bytes(), true);
    }
    if let Ok(text) = str::from_utf8(line) {
        bookmark(text);
        failure(text);
    }
}

/// Compares a change with its tree.
fn compare_line(line: &[u8], has_each_key_once: bool) {
    let Some(expected) = tree(line).map(|tree| expected_change(&tree)) else { return };
    match (read_line(line, &WHOLE), expected) {
        (Ok(DecodedEvent::Change(event_type, item)), Ok(expected)) => {
            assert_eq!((event_type, found(&item.object)), expected);
        }
        (Ok(DecodedEvent::Change(..)), Err(unlike)) => assert_eq!(unlike, Unlike::NotCompared),
        (said, Ok(expected)) => assert!(!has_each_key_once && said.is_err(), "{said:?} instead of {expected:?}"),
        (_, Err(_)) => {}
    }
}

/// Reads the lines of an answer that arrives in pieces, once for each division into pieces.
pub(crate) fn lines(data: &[u8], ways: &[Vec<&[u8]>]) {
    let mut expected: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
    let torn = expected.pop().unwrap_or_default();
    for pieces in ways {
        let frames: Vec<_> =
            pieces.iter().map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece)))).collect();
        let mut lines = LineReader::new(StreamBody::new(stream::iter(frames)));
        let mut next = || lines.next().now_or_never().expect("it has come");
        for line in &expected {
            assert_eq!(next(), Ok(Some(Bytes::copy_from_slice(line))));
        }
        match next() {
            Ok(end) => assert!(end.is_none() && torn.is_empty()),
            Err(no_line) => assert!(matches!(no_line, LineError::Broken(_)) && !torn.is_empty()),
        }
    }
}

fn page(data: &[u8], config: &KubeConfig, is_decimal: bool) -> Result<(ObjectList, Option<String>), ()> {
    let mut reading = ObjectList::default();
    match decode(data, ObjectDecoder::new(config, is_decimal), &mut reading) {
        Ok(next) => {
            for item in &reading.unreadable {
                check_text(&item.problem.message);
                assert!(!item.problem.subject.contains(char::is_control), "{}", item.problem.subject);
            }
            Ok((reading, next))
        }
        Err(stop) => {
            check_text(&stop.to_string());
            Err(())
        }
    }
}

fn keys(reading: &ObjectList) -> impl Iterator<Item = String> {
    reading.objects.iter().map(|object| object.key().to_string())
}

fn read_line<'a>(line: &'a [u8], config: &KubeConfig) -> Result<DecodedEvent<'a, DecodedObject>, String> {
    let reader = ObjectDecoder::new(config, true);
    watch_event::decode(line, |object, _| reader.read(object.as_bytes()))
}

fn bookmark(object: &str) {
    let Some(tree) = tree(object.as_bytes()) else { return };
    let expected = expected_bookmark(&tree);
    let read = |text: &str| Bookmark::read(text).ok().map(|read| (read.version, read.ends_initial_events));
    match expected {
        Ok(expected) => {
            assert_eq!(read(&tree.to_string()).as_ref(), Some(&expected));
            assert!(read(object).is_none_or(|read| read == expected));
        }
        Err(Unlike::Refused) => assert_eq!(read(object), None),
        Err(Unlike::NotCompared) => {}
    }
}

fn failure(text: &str) {
    let status = Status::read(text);
    for code in [status.code().unwrap_or_default(), 200, 410, 504] {
        check_text(&status.error(code, "https://api:6443/", text).to_string());
    }
    let _patience = status.retry_after();
}

/// Checks that a text is fit for one line of a log.
fn check_text(text: &str) {
    assert!(!text.contains(char::is_control) && text.len() <= MAX_ERROR_BYTES, "{text}");
}

fn found(object: &Object) -> Expected {
    assert!(object.version().lineage().is_none(), "versions of an API are decimals");
    let texts = [object.key().namespace(), object.key().name(), object.uid(), &*object.version().to_string()]
        .map(str::to_owned)
        .into_iter()
        .chain([object.api_version(), object.kind()].map(str::to_owned));
    Expected {
        texts: texts.collect::<Vec<_>>().try_into().expect("six"),
        labels: object.labels().iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        body: serde_json::from_slice(object.body()).expect("JSON"),
    }
}

/// Parses a JSON text as a tree; `None` if it contains the name under which `serde_json` hides a raw value.
fn tree(json: &[u8]) -> Option<Value> {
    let is_hidden = memchr::memmem::find(json, b"serde_json::private").is_some();
    serde_json::from_slice(json).ok().filter(|_| !is_hidden)
}

/// Version, next page, objects, and number of unreadable items.
type ExpectedPage = (String, Option<String>, Vec<Expected>, usize);

fn expected_page(tree: &Value) -> Result<ExpectedPage, Unlike> {
    let page = record(Some(tree))?;
    let (kind, api_version) = (text(page, "kind")?, text(page, "apiVersion")?);
    let metadata = record(page.get("metadata"))?;
    let (version, next) = (text(metadata, "resourceVersion")?, text(metadata, "continue")?);
    let items = match page.get("items") {
        Some(Value::Null) => &[][..],
        Some(Value::Array(items)) => items,
        None | Some(_) => return Err(Unlike::Refused),
    };
    let kind = kind.strip_suffix("List").unwrap_or_default();
    let items: Vec<_> = items.iter().map(|item| expected_item(item, Some((&*api_version, kind)))).collect();
    // An item that cannot be read is left out, and the others are not.
    let (unreadable, items): (Vec<_>, Vec<_>) =
        items.into_iter().partition(|item| matches!(item, Err(Unlike::Refused)));
    let items = items.into_iter().collect::<Result<_, _>>()?;
    Ok((version, Some(next).filter(|next| !next.is_empty()), items, unreadable.len()))
}

fn expected_change(tree: &Value) -> Result<(EventType, Expected), Unlike> {
    let event = record(Some(tree))?;
    let event_type = match &*text(event, "type")? {
        "ADDED" => EventType::Added,
        "MODIFIED" => EventType::Modified,
        "DELETED" => EventType::Deleted,
        _ => return Err(Unlike::Refused),
    };
    Ok((event_type, expected_item(event.get("object").ok_or(Unlike::Refused)?, None)?))
}

fn expected_item(item: &Value, listed: Option<(&str, &str)>) -> Result<Expected, Unlike> {
    let Value::Object(fields) = item else { return Err(Unlike::Refused) };
    let empty = Map::new();
    let metadata = match fields.get("metadata") {
        None | Some(Value::Null) => &empty,
        metadata => record(metadata)?,
    };
    let [namespace, name, uid, version] =
        ["namespace", "name", "uid", "resourceVersion"].map(|key| text(metadata, key));
    let (namespace, name, uid, version) = (namespace?, name?, uid?, version?);
    let labels = texts(metadata, "labels")?;
    let (mut api_version, mut kind, mut body) = (text(fields, "apiVersion")?, text(fields, "kind")?, item.clone());
    if name.is_empty() || name.contains('\0') || namespace.contains('\0') {
        return Err(Unlike::Refused);
    }
    if version.contains('.') || version.parse::<ResourceVersion>().is_err() {
        return Err(Unlike::Refused);
    }
    let is_typed = ["apiVersion", "kind"].iter().any(|key| fields.contains_key(*key));
    if let Some((of_list, listed)) = listed.filter(|(_, kind)| !kind.is_empty() && !is_typed) {
        (api_version, kind) = (of_list.to_owned(), listed.to_owned());
        body["apiVersion"] = api_version.clone().into();
        body["kind"] = kind.clone().into();
    }
    Ok(Expected { texts: [namespace, name, uid, version, api_version, kind], labels, body })
}

fn expected_bookmark(tree: &Value) -> Result<(String, bool), Unlike> {
    let metadata = record(record(Some(tree))?.get("metadata"))?;
    for key in ["namespace", "name", "uid"] {
        text(metadata, key)?;
    }
    let annotations = texts(metadata, "annotations")?;
    let ends = annotations.get(INITIAL_EVENTS_END).is_some_and(|value| value == "true");
    Ok((text(metadata, "resourceVersion")?, ends))
}

fn record(value: Option<&Value>) -> Result<&Map<String, Value>, Unlike> {
    match value {
        Some(Value::Object(map)) => Ok(map),
        Some(Value::Array(_)) => Err(Unlike::NotCompared),
        _ => Err(Unlike::Refused),
    }
}

/// Returns a text, which is empty if it is null or missing.
fn text(map: &Map<String, Value>, key: &str) -> Result<String, Unlike> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(Unlike::Refused),
    }
}

fn texts(map: &Map<String, Value>, key: &str) -> Result<BTreeMap<String, String>, Unlike> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(Value::Object(map)) => map
            .iter()
            .map(|(key, value)| Ok((key.clone(), value.as_str().ok_or(Unlike::Refused)?.to_owned())))
            .collect(),
        Some(_) => Err(Unlike::Refused),
    }
}
