//! Cutting of fields, compared with their removal from a tree.

use serde_json::Value;

use super::{
    check_error,
    naive::{self, Step},
};
use crate::model::{FieldCut, Path};

/// Cuts the fields at these paths, one per line, or at some common ones. From JSON it removes exactly these; to anything else
/// it adds nothing.
pub(super) fn check(paths: &str, json: &[u8]) {
    let texts = if paths.is_empty() { ".metadata.managedFields\n.x\n.l[*].x" } else { paths };
    let mut paths = Vec::new();
    for text in texts.lines() {
        match Path::parse(text) {
            Ok(path) => {
                assert_eq!(Path::parse(path.as_str()).as_ref(), Ok(&path));
                paths.push(path);
            }
            Err(error) => check_error(text, &error, 512),
        }
    }
    check_values(&paths, json);
    let Ok(cut) = FieldCut::new(paths.iter().cloned()) else { return };
    let rest = cut.apply(json);
    assert_eq!(cut.apply(&rest), rest, "cut twice");
    let mut all = json.iter();
    assert!(rest.iter().all(|byte| all.any(|found| found == byte)), "nothing is added or moved");
    if let Some(mut expected) = naive::tree(json) {
        for path in &paths {
            remove(&mut expected, &naive::steps(path));
        }
        assert_eq!(serde_json::from_slice::<Value>(&rest).expect("JSON"), expected);
    }
}

/// Checks the values at the paths.
fn check_values(paths: &[Path], json: &[u8]) {
    let Ok(text) = str::from_utf8(json) else { return };
    let is_json = naive::tree(json).is_some();
    for path in paths {
        let (values, scalar) = (path.values(json), path.scalar(json));
        if !is_json {
            continue;
        }
        let found = naive::lookup(text.trim(), &naive::steps(path));
        let spread = |json: &str| match serde_json::from_str::<Vec<&serde_json::value::RawValue>>(json) {
            Ok(elements) => elements.iter().filter_map(|element| naive::scalar(element.get())).collect(),
            Err(_) => Vec::from_iter(naive::scalar(json)),
        };
        assert_eq!(values, found.iter().flat_map(|json| spread(json)).collect::<Vec<_>>(), "{path}");
        let one = if path.has_wildcard() { None } else { found.first().and_then(|json| naive::scalar(json)) };
        assert_eq!(scalar.as_deref(), one.as_deref(), "{path}");
    }
}

fn remove(value: &mut Value, steps: &[Step]) {
    match (value, steps) {
        (Value::Object(map), [Step::Key(key)]) => drop(map.remove(key)),
        (Value::Object(map), [Step::Key(key), rest @ ..]) => {
            map.get_mut(key).into_iter().for_each(|value| remove(value, rest));
        }
        (Value::Array(elements), [Step::Every, rest @ ..]) => {
            for value in elements {
                remove(value, rest);
            }
        }
        _ => {}
    }
}
