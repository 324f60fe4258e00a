//! Removal of fields from a JSON text, without changing any other byte.

use std::{borrow::Cow, ops::Range, sync::Arc};

use super::{Path, Step, after_key, scan::Scan};

/// Fields that are removed from bodies, such as `.metadata.managedFields`; by default none.
///
/// A removed field is a member of a map with its comma; the rest, including blanks and the order of the members, stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldCut {
    paths: Arc<[Path]>,
}

/// Indicates a path that cannot be removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldCutError {
    /// Path through or to one element of an array.
    #[error("cannot drop {0}: not a field; end the path with a field, and write [*] for arrays")]
    NotAField(Path),
    /// Path of a field that identifies an object.
    #[error("cannot drop {0}: it identifies the object")]
    Needed(Path),
}

/// Search for the fields to remove.
struct Cuts<'a> {
    scan: Scan<'a>,
    cuts: Vec<Range<usize>>,
}

/// Fields without which an object has no key, no type and no version.
const NEEDED: [&str; 7] = [
    ".apiVersion",
    ".kind",
    ".metadata",
    ".metadata.name",
    ".metadata.namespace",
    ".metadata.resourceVersion",
    ".metadata.uid",
];

// === impl FieldCut ===

impl FieldCut {
    /// Returns a cut of the fields at these paths.
    ///
    /// # Errors
    ///
    /// Fails at the first path that ends at or goes through one element of an array, or that leads to the key, the type or
    /// the version of an object.
    pub fn new(paths: impl IntoIterator<Item = Path>) -> Result<Self, FieldCutError> {
        let paths: Arc<[Path]> = paths.into_iter().collect();
        for path in &*paths {
            let is_single = path.steps.iter().any(|step| matches!(step, Step::Index(_)));
            if is_single || !matches!(path.steps.last(), Some(Step::Key(_))) {
                return Err(FieldCutError::NotAField(path.clone()));
            }
            if NEEDED.contains(&path.as_str()) {
                return Err(FieldCutError::Needed(path.clone()));
            }
        }
        Ok(Self { paths })
    }

    /// Returns the text without the fields; unchanged if it has none of them, or is not JSON up to there.
    pub fn apply<'a>(&self, json: &'a [u8]) -> Cow<'a, [u8]> {
        if self.paths.is_empty() {
            return json.into();
        }
        let tails: Vec<&[Step]> = self.paths.iter().map(|path| &*path.steps).collect();
        let mut cuts = Cuts { scan: Scan::new(json), cuts: Vec::new() };
        if cuts.value(&tails).is_none() || cuts.cuts.is_empty() {
            return json.into();
        }
        let mut rest = Vec::with_capacity(json.len());
        let mut from = 0;
        for Range { start, end } in cuts.cuts {
            rest.extend_from_slice(&json[from..start]);
            from = end;
        }
        rest.extend_from_slice(&json[from..]);
        rest.into()
    }
}

// === impl Cuts ===

impl Cuts<'_> {
    /// Passes a value, and removes the fields that the tails of paths lead to from here. Returns `None` where the text is
    /// not JSON.
    fn value(&mut self, tails: &[&[Step]]) -> Option<()> {
        match self.scan.next()? {
            b'{' if !tails.is_empty() => self.map(tails),
            b'[' if !tails.is_empty() => self.array(tails),
            _ => self.scan.skip(),
        }
    }

    fn map(&mut self, tails: &[&[Step]]) -> Option<()> {
        self.scan.at += 1;
        if self.scan.eat(b'}')? {
            return Some(());
        }
        // End of the last member, and true if a member stays.
        let (mut last_end, mut is_kept) = (self.scan.at, false);
        loop {
            self.scan.next()?;
            let member = self.scan.at;
            let key = self.scan.text()?;
            self.scan.eat(b':')?.then_some(())?;
            let tails: Vec<&[Step]> =
                tails.iter().filter_map(|tail| after_key(tail, &self.scan.json[key.clone()])).collect();
            let is_cut = tails.iter().any(|tail| tail.is_empty());
            self.value(if is_cut { &[] } else { &tails })?;
            let end = self.scan.at;
            let is_last = !self.scan.eat(b',')?;
            if is_last {
                self.scan.eat(b'}')?.then_some(())?;
            }
            if is_cut && is_kept {
                self.cuts.push(last_end..end);
            } else if is_cut && is_last {
                self.cuts.push(member..end);
            } else if is_cut {
                self.scan.next()?;
                self.cuts.push(member..self.scan.at);
            }
            is_kept |= !is_cut;
            last_end = end;
            if is_last {
                return Some(());
            }
        }
    }

    fn array(&mut self, tails: &[&[Step]]) -> Option<()> {
        let of_every = |tail: &&'_ [Step]| tail.first() == Some(&Step::Every);
        let tails: Vec<&[Step]> = tails.iter().filter(|tail| of_every(tail)).map(|tail| &tail[1..]).collect();
        self.scan.at += 1;
        if self.scan.eat(b']')? {
            return Some(());
        }
        loop {
            self.value(&tails)?;
            if !self.scan.eat(b',')? {
                return self.scan.eat(b']')?.then_some(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};
    use serde_json::Value;

    use super::*;

    fn cut(paths: &[&str]) -> FieldCut {
        FieldCut::new(paths.iter().map(|path| Path::parse(path).unwrap())).unwrap()
    }

    fn without(paths: &[&str], json: &str) -> String {
        String::from_utf8(cut(paths).apply(json.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn a_field_is_removed_with_its_comma_and_nothing_else() {
        for (json, rest) in [
            (r#"{"a":1,"x":{"y":[2,"}"]},"b":3}"#, r#"{"a":1,"b":3}"#),
            (r#"{"x":1,"b":3}"#, r#"{"b":3}"#),
            (r#"{"a":1,"x":1}"#, r#"{"a":1}"#),
            (r#"{"x":"\"},"}"#, "{}"),
            ("{ \"a\" : 1 ,\n \"x\" : 2 ,\n \"b\" : 3.50 }", "{ \"a\" : 1 ,\n \"b\" : 3.50 }"),
            ("{ \"x\" : 2 ,\n \"b\" : 3 }", "{ \"b\" : 3 }"),
            (r#"{"x":1,"x":2,"b":3,"\u0078":4}"#, r#"{"b":3}"#),
            (r#"{"b":{"x":1},"c":["x"]}"#, r#"{"b":{"x":1},"c":["x"]}"#),
            (r#"[{"x":1}]"#, r#"[{"x":1}]"#),
        ] {
            assert_eq!(without(&["x"], json), rest);
        }
    }

    #[test]
    fn fields_are_found_in_maps_and_in_every_element() {
        let json = r#"{"metadata":{"annotations":{"a.b/c":"{\"x\":1}","k":"v"},"managedFields":[{}],"name":"n"},"l":[{"e":1,"f":2},3]}"#;
        let paths = [".metadata.managedFields", ".metadata.annotations['a.b/c']", "l[*].e"];
        assert_eq!(without(&paths, json), r#"{"metadata":{"annotations":{"k":"v"},"name":"n"},"l":[{"f":2},3]}"#);
        assert_eq!(without(&[], json), json);
    }

    #[test]
    fn text_that_is_not_json_is_unchanged() {
        for json in
            ["", "{", r#"{"x"#, r#"{"x":1"#, r#"{"x":1,"#, r#"{"x" 1}"#, "{]}", r#"{"x":1]"#, "\"", r#"{"x":"\"#]
        {
            assert_eq!(without(&["x"], json), json);
        }
    }

    #[test]
    fn identifying_fields_cannot_be_dropped() {
        let refused = |path: &str| FieldCut::new([Path::parse(path).unwrap()]).unwrap_err().to_string();
        assert!(refused("metadata.uid").starts_with("cannot drop .metadata.uid: it identifies the object"));
        assert!(refused("a[*]").contains(": not a field"));
        assert!(refused("a[0].b").contains(": not a field"));
    }

    fn json() -> impl Strategy<Value = String> {
        let leaf =
            select(vec!["1", "-0.50", "null", "true", "\"x\"", "\"\\\"}\\\\\"", "{}", "[ ]"]).prop_map(str::to_owned);
        leaf.prop_recursive(4, 24, 4, |inner| {
            let member = (select(vec!["x", "y", "\\u0078", "z z"]), inner.clone(), select(vec!["", " ", "\n"]));
            let map = vec(member, 0..4).prop_map(|members| {
                let members =
                    members.iter().map(|(key, value, blank)| format!("{blank}\"{key}\"{blank}:{value}{blank}"));
                format!("{{{}}}", members.collect::<Vec<_>>().join(","))
            });
            prop_oneof![map, vec(inner, 0..3).prop_map(|elements| format!("[{}]", elements.join(", ")))]
        })
    }

    /// Removes the fields from serde's tree, for comparison.
    fn remove(value: &mut Value, steps: &[Step]) {
        match (value, steps) {
            (Value::Object(map), [Step::Key(key)]) => drop(map.remove(&**key)),
            (Value::Object(map), [Step::Key(key), rest @ ..]) => {
                map.get_mut(&**key).into_iter().for_each(|value| remove(value, rest));
            }
            (Value::Array(elements), [Step::Every, rest @ ..]) => {
                for value in elements {
                    remove(value, rest);
                }
            }
            _ => {}
        }
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        #[test]
        fn the_result_equals_that_of_a_json_tree(text in json(), paths in vec(select(vec!["x", "y.x", "x[*].y", "['z z']"]), 1..4)) {
            let cut = cut(&paths);
            let mut expected: Value = serde_json::from_str(&text).unwrap();
            cut.paths.iter().for_each(|path| remove(&mut expected, &path.steps));
            let rest = cut.apply(text.as_bytes());
            prop_assert_eq!(serde_json::from_slice::<Value>(&rest).unwrap(), expected);
        }

        #[test]
        fn no_bytes_panic(bytes in vec(select(b"{}[]\",:x\\1 ".to_vec()), 0..40)) {
            cut(&["x", "x.x", "x[*].x"]).apply(&bytes);
        }
    }
}
