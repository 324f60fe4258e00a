//! Views, compared with a definition value by value over a tree.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{
    check_error,
    naive::{self, Step},
};
use crate::model::{JSON, Path, View, ViewError};

/// Members of a map in the order of the text, each key as its JSON string.
struct Members<'a>(Vec<(&'a RawValue, &'a RawValue)>);

struct MembersVisitor;

/// Paths of a view.
struct Paths {
    keep: Vec<Vec<Step>>,
    drop: Vec<Vec<Step>>,
}

/// Checks the part of the JSON that a view keeps: each line is a path, of a field to drop after `-`, else of one to keep; or the only
/// line is the name of a view that every server has.
pub(super) fn check(paths: &str, json: &[u8]) {
    let (keep, drop): (&[&str], &[&str]) = match paths {
        "@metadata" => (&["apiVersion", "kind", "metadata"], &[]),
        "@no-managed-fields" => (&[], &["metadata.managedFields"]),
        "@no-status" => (&[], &["status"]),
        _ => return check_paths(paths, json),
    };
    let view = View::built_in(paths).expect("a view that every server has");
    assert_eq!(view, View::parse(keep, drop).expect("its paths"), "{paths}");
    check_view(&view, json);
}

fn check_paths(paths: &str, json: &[u8]) {
    let (drop, keep): (Vec<&str>, Vec<&str>) = paths.lines().partition(|line| line.starts_with('-'));
    let drop: Vec<&str> = drop.iter().map(|line| &line[1..]).collect();
    let view = match View::parse(&keep, &drop) {
        Ok(view) => view,
        Err(ViewError::Path { error, .. }) => {
            let fails = |text: &&&str| Path::parse(text).as_ref() == Err(&error);
            let text = keep.iter().chain(&drop).find(fails).expect("the text of the error");
            return check_error(text, &error, 512);
        }
        Err(ViewError::TooManyPaths { count }) => return assert_eq!(count, keep.len() + drop.len()),
    };
    check_view(&view, json);
}

fn check_view(view: &View, json: &[u8]) {
    let viewed = view.project(json);
    // What has no part is kept or left out as a whole.
    let rest = view.fields().is_empty().then_some(json);
    assert_eq!(view.body(json, JSON).as_deref(), viewed.as_deref().or(rest), "{view}");
    assert_eq!(view.body(json, "application/octet-stream").as_deref(), rest, "{view}");
    let Some(text) = str::from_utf8(json).ok().filter(|_| naive::tree(json).is_some()) else { return };
    let steps = |paths: &[Path]| paths.iter().map(naive::steps).collect::<Vec<_>>();
    let mut paths = Paths { keep: steps(view.fields()), drop: steps(view.dropped()) };
    if paths.keep.is_empty() {
        paths.keep.push(Vec::new());
    }
    let is_map = text.trim_start().starts_with('{');
    let expected = is_map.then(|| paths.print(text.trim(), &mut Vec::new()));
    assert_eq!(viewed.as_deref().map(String::from_utf8_lossy), expected.as_deref().map(Into::into), "{view}");
    if let Some(viewed) = viewed {
        serde_json::from_slice::<&RawValue>(&viewed).expect("JSON");
    }
}

// === impl Paths ===

impl Paths {
    /// Returns what is kept of a value that is kept, in part at least.
    fn print(&self, json: &str, place: &mut Vec<Step>) -> String {
        let is_changed = self.drop.iter().any(|path| leads_through(path, place).is_some());
        let is_whole = self.keep.iter().any(|path| is_at_or_above(path, place));
        if is_whole && !is_changed {
            return json.to_owned();
        }
        if let Ok(Members(members)) = serde_json::from_str(json) {
            let mut kept = Vec::new();
            for (key, value) in members {
                place.push(Step::Key(serde_json::from_str(key.get()).unwrap_or_default()));
                if self.keeps(value.get(), place) {
                    kept.push(format!("{}:{}", key.get(), self.print(value.get(), place)));
                }
                place.pop();
            }
            return format!("{{{}}}", kept.join(","));
        }
        let Ok(elements) = serde_json::from_str::<Vec<&RawValue>>(json) else { return json.to_owned() };
        let mut kept = Vec::new();
        for (index, value) in elements.iter().enumerate() {
            place.push(Step::Index(index));
            if self.keeps(value.get(), place) {
                kept.push(self.print(value.get(), place));
            }
            place.pop();
        }
        format!("[{}]", kept.join(","))
    }

    /// Returns true if a value is kept, in part at least, where all that contain it are.
    fn keeps(&self, json: &str, place: &[Step]) -> bool {
        let goes_on = |path: &Vec<Step>| match leads_through(path, place) {
            Some(Step::Key(_)) => json.starts_with('{'),
            Some(Step::Index(_) | Step::Every) => json.starts_with('['),
            None => false,
        };
        let is_dropped = self.drop.iter().any(|path| is_at_or_above(path, place));
        !is_dropped && self.keep.iter().any(|path| is_at_or_above(path, place) || goes_on(path))
    }
}

/// Returns true if a path leads to a place or to what contains it.
fn is_at_or_above(path: &[Step], place: &[Step]) -> bool {
    path.len() <= place.len() && path.iter().zip(place).all(|(step, at)| is_step(step, at))
}

/// Returns the next step of a path that leads through a place.
fn leads_through<'a>(path: &'a [Step], place: &[Step]) -> Option<&'a Step> {
    let next = path.get(place.len())?;
    path.iter().zip(place).all(|(step, at)| is_step(step, at)).then_some(next)
}

fn is_step(step: &Step, at: &Step) -> bool {
    step == at || matches!((step, at), (Step::Every, Step::Index(_)))
}

// === impl Members ===

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(MembersVisitor)
    }
}

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use crate::model::View;

    fn json() -> impl Strategy<Value = String> {
        let leaf =
            select(vec!["1", "-0.50", "null", "true", "\"x\"", "\"\\\"}\\\\\"", "{}", "[ ]"]).prop_map(str::to_owned);
        leaf.prop_recursive(4, 32, 4, |inner| {
            let blank = || select(vec!["", " ", "\n"]);
            let keys =
                vec!["x", "y", "\\u0078", "z z", "q\\\"]", "\\ud83d\\ude00", "status", "metadata", "managedFields"];
            let member = (select(keys), inner.clone(), blank());
            let map = vec(member, 0..4).prop_map(|members| {
                let members =
                    members.iter().map(|(key, value, blank)| format!("{blank}\"{key}\"{blank}:{value}{blank}"));
                format!("{{{}}}", members.collect::<Vec<_>>().join(","))
            });
            let array = (vec(inner, 0..4), blank())
                .prop_map(|(elements, blank)| format!("[{blank}{}]", elements.join(&format!("{blank}, "))));
            prop_oneof![map, array]
        })
    }

    /// Arrays in arrays, with maps at their ends.
    fn nested() -> impl Strategy<Value = String> {
        let leaf = select(vec!["1", "{\"x\":[[1,2],[{\"y\":3}]],\"y\":1}", "[]", "{}"]).prop_map(str::to_owned);
        leaf.prop_recursive(8, 48, 3, |inner| {
            let array = vec(inner.clone(), 1..4).prop_map(|elements| format!("[{}]", elements.join(",")));
            prop_oneof![4 => array, 1 => inner.prop_map(|inner| format!("{{\"x\":{inner},\"y\":{inner}}}"))]
        })
    }

    /// Paths into these, most of which overlap.
    fn nested_path() -> impl Strategy<Value = String> {
        let step = select(vec!["[*]", "[0]", "[1]", "[*]", "[2]", ".x", ".y"]);
        (prop_oneof![3 => Just(""), 1 => Just("-")], vec(step, 0..9))
            .prop_map(|(sign, steps)| format!("{sign}x{}", steps.concat()))
    }

    fn path() -> impl Strategy<Value = String> {
        let step = select(vec![".x", ".y", "['z z']", "['q\\\"]']", "[\"😀\"]", "[]", "[*]", "[0]", "[1]"]);
        (any::<bool>(), select(vec![".x", ".y", "['z z']", "x", "['😀']"]), vec(step, 0..4)).prop_map(
            |(drops, first, steps)| {
                let sign = if drops { "-" } else { "" };
                format!("{sign}{first}{}", steps.concat())
            },
        )
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        #[test]
        fn a_view_equals_its_definition_over_a_tree(paths in vec(path(), 0..5), json in json()) {
            super::check(&paths.join("\n"), json.as_bytes());
            super::check(&paths.join("\n"), format!("{{\"x\":{json},\"y\":[{json}, {{\"x\" :{json}}}]}}").as_bytes());
        }

        #[test]
        fn a_view_of_many_paths_equals_its_definition(paths in vec(nested_path(), 0..=View::MAX_PATHS), json in nested()) {
            super::check(&paths.join("\n"), format!("{{\"x\":{json}}}").as_bytes());
        }

        #[test]
        fn a_view_that_every_server_has_is_one_of_paths(name in select(View::BUILT_IN.to_vec()), json in json()) {
            super::check(name, json.as_bytes());
            super::check(name, format!("{{\"kind\":{json},\"metadata\":{json}, \"status\":{json}}}").as_bytes());
        }

        #[test]
        fn no_bytes_panic(paths in vec(path(), 0..3), bytes in vec(select(b"{}[]\",:x\\1 ".to_vec()), 0..40)) {
            super::check(&paths.join("\n"), &bytes);
        }
    }
}
