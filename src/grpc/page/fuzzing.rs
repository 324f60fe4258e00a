//! Fuzz target of page tokens: an issued token resumes at its position, and any other one at most at some position of a snapshot.

use std::sync::LazyLock;

use super::*;
use crate::{
    cache::{Indexer, List, Scan},
    model::{IndexFunc, IndexMatch, Indexers, Object, ObjectKey, ResourceVersion, Selection},
};

const QUERY: u64 = 7;
const PROCESS: u64 = 0x5a;
/// Maximum size of the numbers in a token, in bytes.
const HEAD_BYTES: usize = 3 * 17;

static SNAPSHOT: LazyLock<Arc<Snapshot>> = LazyLock::new(|| {
    let version = ResourceVersion::decimal(1);
    let object = |key: &str| {
        let (namespace, name) = key.split_once('/').expect("a key");
        let json = format!(r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","labels":{{"n":"{name}"}}}}}}"#);
        Arc::new(Object::from_json(json, "", version.clone()).expect("an object"))
    };
    let objects = ["/x", "/z", "a/x", "a/y", "a-b/x", "b/x", "b/y"].map(object);
    let indexers = Indexers::new([("n".to_owned(), IndexFunc::Label("n".to_owned()))]).expect("an index");
    Arc::new(Indexer::new(Arc::new(indexers), List::new(objects.into(), version.clone())).snapshot())
});

/// Parses the data as a token, as the text of one, and as the position that one contains.
pub(crate) fn page_token(data: &[u8]) {
    let pages = Pages { process: PROCESS, ..Pages::new(4, 100, Rejections::default()) };
    let text = str::from_utf8(data).unwrap_or_default();
    let given = pages.token(&SNAPSHOT, QUERY, text, None);
    assert!(given.len() <= (data.len() + HEAD_BYTES).div_ceil(3) * 4);
    match pages.resume(&given, QUERY) {
        Ok(Continued { snapshot, after }) => assert!(Arc::ptr_eq(&snapshot, &SNAPSHOT) && after == text),
        Err(_) => assert!(given.len() > MAX_TOKEN_BYTES),
    }
    assert!(pages.resume(&given, QUERY + 1).is_err(), "another query");
    let of_another_process = Pages { process: PROCESS + 1, ..Pages::new(4, 100, Rejections::default()) };
    assert!(of_another_process.resume(&given, QUERY).is_err(), "another process");
    for token in [text.to_owned(), URL_SAFE_NO_PAD.encode(data), given] {
        let Ok(Continued { after, .. }) = pages.resume(&token, QUERY) else { continue };
        let again = pages.token(&SNAPSHOT, QUERY, &after, None);
        assert_eq!(pages.resume(&again, QUERY).expect("a token").after, after);
        go_on(&after);
    }
}

/// Lists the objects and values after a position that a client may have changed.
fn go_on(after: &str) {
    let values: Vec<&str> =
        SNAPSHOT.index_values("n", Some(after)).expect("an index").map(|(value, _)| value).collect();
    assert!(values.is_sorted() && values.iter().all(|value| *value > after));
    let Some((namespace, name)) = after.split_once('\0') else { return };
    let Ok(after) = ObjectKey::new(namespace, name) else { return };
    let of_namespace = |namespace: &str| Selection { namespace: Some(namespace.to_owned()), ..Selection::default() };
    let index = IndexMatch {
        name: "n".to_owned(),
        func: IndexFunc::Label("n".to_owned()),
        values: ["x", "y"].map(str::to_owned).into(),
    };
    let by_name = Selection { name: Some("x".to_owned()), ..of_namespace("a") };
    let by_index = Selection { index: Some(index), ..Selection::default() };
    for selection in [Selection::default(), of_namespace("a"), of_namespace(""), by_name, by_index] {
        let scan = Scan::of(&selection);
        let found = scan.objects(&SNAPSHOT, Some(&after)).filter(|object| selection.matches(object));
        let all = SNAPSHOT.objects(None, None).filter(|object| *object.key() > after && selection.matches(object));
        assert!(found.eq(all), "{selection:?} after {after}");
    }
}
