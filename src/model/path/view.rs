//! Part of a JSON body: the source's text with everything else cut out.

use std::{
    borrow::Cow,
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    sync::Arc,
};

use smallvec::SmallVec;

use super::{Path, Step, after_key, find::after_index, scan::Scan};
use crate::model::{JSON, SyntaxError};

/// Part of each body that a client receives: the fields to keep, without the fields to drop.
///
/// - Without fields, everything is kept. A field is kept whole, unless a path to drop goes through it.
/// - A map or an array that a path goes through is kept with what is kept of it, which may be nothing: `{}`, `[]`. It has to
///   be what the path goes on with, a map for a key and an array for `[*]` and `[0]`; otherwise it is cut, as is a scalar there.
///   A field that is missing is left out.
/// - Keys and elements keep their order, and values that are kept whole their bytes. There are no blanks elsewhere.
/// - Numbers of elements are those of the source. Paths may overlap. Each occurrence of a repeated key counts on its own.
///
/// Equal views select the same paths in any order and spelling. A clone is a reference count.
#[derive(Clone)]
pub struct View(Arc<Paths>);

#[derive(PartialEq, Eq)]
struct Paths {
    /// Hash of the others, which is computed once.
    hash: u64,
    fields: Box<[Path]>,
    drop: Box<[Path]>,
}

/// Indicates paths that are not a view.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// Text that is not a path.
    #[error("{error}")]
    Path {
        /// List that has it: `fields` or `drop`.
        list: &'static str,
        /// Its error.
        error: SyntaxError,
    },
    /// More than [`View::MAX_PATHS`].
    #[error("{count} paths are more than {}; name a field that contains several of them", View::MAX_PATHS)]
    TooManyPaths {
        /// Their number.
        count: usize,
    },
}

/// Remaining steps of the paths that lead through a value. An empty one ends at the value.
type Tails<'a> = SmallVec<[&'a [Step]; 8]>;

/// Copy of what is kept.
struct Projection<'a> {
    scan: Scan<'a>,
    kept: Vec<u8>,
}

// === impl View ===

impl View {
    /// Maximum number of paths.
    pub const MAX_PATHS: usize = 64;

    /// Views that every server has, by name.
    pub const BUILT_IN: [&str; 3] = ["@metadata", "@no-managed-fields", "@no-status"];

    /// Parses the paths of the fields to keep, and of those to drop.
    ///
    /// # Errors
    ///
    /// Fails at the first text that is not a path, or if there are too many.
    pub fn parse<T: AsRef<str>>(fields: &[T], drop: &[T]) -> Result<Self, ViewError> {
        let count = fields.len() + drop.len();
        if count > Self::MAX_PATHS {
            return Err(ViewError::TooManyPaths { count });
        }
        let parse = |list: &'static str, texts: &[T]| {
            let paths = texts.iter().map(|text| Path::parse(text.as_ref()));
            let mut paths: Vec<Path> =
                paths.collect::<Result<_, _>>().map_err(|error| ViewError::Path { list, error })?;
            paths.sort_unstable();
            paths.dedup();
            Ok(paths.into_boxed_slice())
        };
        let (fields, drop) = (parse("fields", fields)?, parse("drop", drop)?);
        let hash = foldhash::fast::FixedState::default().hash_one((&fields, &drop));
        Ok(Self(Arc::new(Paths { hash, fields, drop })))
    }

    /// Returns one of the views that every server has.
    pub fn built_in(name: &str) -> Option<Self> {
        let (fields, drop): (&[&str], &[&str]) = match name {
            "@metadata" => (&["apiVersion", "kind", "metadata"], &[]),
            "@no-managed-fields" => (&[], &["metadata.managedFields"]),
            "@no-status" => (&[], &["status"]),
            _ => return None,
        };
        Self::parse(fields, drop).ok()
    }

    /// Returns the paths to keep, sorted; empty if everything is kept.
    pub fn fields(&self) -> &[Path] {
        &self.0.fields
    }

    /// Returns the paths to drop, sorted.
    pub fn dropped(&self) -> &[Path] {
        &self.0.drop
    }

    /// Returns true if bodies are kept whole.
    pub fn is_whole(&self) -> bool {
        self.fields().is_empty() && self.dropped().is_empty()
    }

    /// Returns what a client receives of a body. One that is not a JSON map is kept or left out as a whole.
    pub fn body<'a>(&self, body: &'a [u8], media_type: &str) -> Option<Cow<'a, [u8]>> {
        let viewed = (media_type == JSON).then(|| self.project(body)).flatten();
        viewed.map(Cow::Owned).or_else(|| self.fields().is_empty().then_some(Cow::Borrowed(body)))
    }

    /// Returns what is kept of a JSON text, without the blanks around it; `None` if it is not a JSON map.
    pub fn project(&self, json: &[u8]) -> Option<Vec<u8>> {
        let Paths { fields, drop, .. } = &*self.0;
        let mut keep: Tails<'_> = fields.iter().map(|path| &*path.steps).collect();
        let drop: Tails<'_> = drop.iter().map(|path| &*path.steps).collect();
        let mut kept = Vec::new();
        if fields.is_empty() {
            keep.push(&[]);
            kept.reserve(json.len());
        }
        let mut projection = Projection { scan: Scan::new(json), kept };
        (projection.scan.next()? == b'{').then_some(())?;
        projection.value(&keep, &drop)?;
        let Projection { mut scan, kept } = projection;
        scan.next().is_none().then_some(kept)
    }
}

impl PartialEq for View {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for View {}

impl Hash for View {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (sign, paths) in [("", self.fields()), ("-", self.dropped())] {
            for path in paths {
                write!(f, "{separator}{sign}{path}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({self})")
    }
}

// === impl Projection ===

impl Projection<'_> {
    /// Passes a value, and copies what is kept of it.
    fn value(&mut self, keep: &Tails<'_>, drop: &Tails<'_>) -> Option<()> {
        let first = self.scan.next()?;
        match first {
            b'{' if !(is_whole(keep) && drop.is_empty()) => self.map(keep, drop),
            b'[' if !(is_whole(keep) && drop.is_empty()) => self.array(keep, drop),
            _ => {
                let start = self.scan.at;
                self.scan.skip()?;
                self.kept.extend_from_slice(&self.scan.json[start..self.scan.at]);
                Some(())
            }
        }
    }

    fn map(&mut self, keep: &Tails<'_>, drop: &Tails<'_>) -> Option<()> {
        let is_whole = is_whole(keep);
        self.open(b'{');
        let mut is_empty = true;
        if self.scan.eat(b'}')? {
            self.kept.push(b'}');
            return Some(());
        }
        loop {
            self.scan.next()?;
            let key = self.scan.text()?;
            let key = &self.scan.json[key];
            self.scan.eat(b':')?.then_some(())?;
            let keep = if is_whole { keep.clone() } else { after_member(keep, key) };
            let drop = after_member(drop, key);
            if keeps(&keep, self.scan.next()?) && !self::is_whole(&drop) {
                self.separate(&mut is_empty);
                self.kept.extend_from_slice(key);
                self.kept.push(b':');
                self.value(&keep, &drop)?;
            } else {
                self.scan.skip()?;
            }
            if !self.scan.eat(b',')? {
                self.kept.push(b'}');
                return self.scan.eat(b'}')?.then_some(());
            }
        }
    }

    fn array(&mut self, keep: &Tails<'_>, drop: &Tails<'_>) -> Option<()> {
        let is_whole = is_whole(keep);
        self.open(b'[');
        let mut is_empty = true;
        if self.scan.eat(b']')? {
            self.kept.push(b']');
            return Some(());
        }
        for index in 0.. {
            let keep = if is_whole { keep.clone() } else { after_element(keep, index) };
            let drop = after_element(drop, index);
            if keeps(&keep, self.scan.next()?) && !self::is_whole(&drop) {
                self.separate(&mut is_empty);
                self.value(&keep, &drop)?;
            } else {
                self.scan.skip()?;
            }
            if !self.scan.eat(b',')? {
                break;
            }
        }
        self.kept.push(b']');
        self.scan.eat(b']')?.then_some(())
    }

    fn open(&mut self, bracket: u8) {
        self.scan.at += 1;
        self.kept.push(bracket);
    }

    fn separate(&mut self, is_empty: &mut bool) {
        if !std::mem::take(is_empty) {
            self.kept.push(b',');
        }
    }
}

/// Returns true if a path ends at the value.
fn is_whole(tails: &Tails<'_>) -> bool {
    tails.iter().any(|tail| tail.is_empty())
}

/// Returns true if something is kept of the value with this first byte.
fn keeps(tails: &Tails<'_>, first: u8) -> bool {
    tails.iter().any(|tail| match tail.first() {
        None => true,
        Some(Step::Key(_)) => first == b'{',
        Some(Step::Index(_) | Step::Every) => first == b'[',
    })
}

/// Returns the rest of the paths that begin with this key of a map, given as its JSON string.
fn after_member<'a>(tails: &Tails<'a>, key: &[u8]) -> Tails<'a> {
    tails.iter().filter_map(|tail| after_key(tail, key)).collect()
}

/// Returns the rest of the paths that begin with this element of an array.
fn after_element<'a>(tails: &Tails<'a>, index: usize) -> Tails<'a> {
    tails.iter().filter_map(|tail| after_index(tail, index)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn viewed(fields: &[&str], drop: &[&str], json: &str) -> String {
        let kept = View::parse(fields, drop).unwrap().project(json.as_bytes());
        kept.map_or_else(|| "none".to_owned(), |kept| String::from_utf8(kept).unwrap())
    }

    const POD: &str = r#"{"kind":"Pod","metadata":{"labels":{"a":"b"},"managedFields":[{}],"name":"n"},"spec":{"nodeName":"n1",
        "containers":[{"image":"i","name":"c"},{"name":"d"},5]},"status":{"phase":"Running","podIPs":[{"ip":"1"},{"ip":"2"}]}}"#;

    #[test]
    fn everything_but_the_fields_is_cut_out() {
        for (fields, expected) in [
            (&["spec.nodeName"][..], r#"{"spec":{"nodeName":"n1"}}"#),
            (&[".status.podIPs[].ip", "kind"], r#"{"kind":"Pod","status":{"podIPs":[{"ip":"1"},{"ip":"2"}]}}"#),
            (&["status.podIPs[*]"], r#"{"status":{"podIPs":[{"ip":"1"},{"ip":"2"}]}}"#),
            (&["status.podIPs[1]", "status.podIPs[1].ip"], r#"{"status":{"podIPs":[{"ip":"2"}]}}"#),
            (&["spec.containers[].image"], r#"{"spec":{"containers":[{"image":"i"},{}]}}"#),
            (&["spec.missing.deeper"], r#"{"spec":{}}"#),
            (&["missing", "kind.deeper", "spec[0]", "status.podIPs.ip"], r#"{"status":{}}"#),
            (&["metadata.labels.a", "metadata.labels"], r#"{"metadata":{"labels":{"a":"b"}}}"#),
        ] {
            assert_eq!(viewed(fields, &[], POD), expected, "{fields:?}");
        }
    }

    #[test]
    fn dropped_fields_are_cut_out_of_what_is_kept() {
        for (fields, drop, expected) in [
            (&["metadata"][..], &["metadata.managedFields"][..], r#"{"metadata":{"labels":{"a":"b"},"name":"n"}}"#),
            (&["metadata.labels"], &["metadata.labels.a", "spec"], r#"{"metadata":{"labels":{}}}"#),
            (&["status"], &["status.podIPs[0]", "status.phase"], r#"{"status":{"podIPs":[{"ip":"2"}]}}"#),
            (&["status.podIPs[0].ip"], &["status.podIPs[]"], r#"{"status":{"podIPs":[]}}"#),
            (&["kind"], &["kind"], "{}"),
            (
                &[],
                &["metadata", "spec", "status.podIPs[].ip"],
                r#"{"kind":"Pod","status":{"phase":"Running","podIPs":[{},{}]}}"#,
            ),
        ] {
            assert_eq!(viewed(fields, drop, POD), expected, "{fields:?} without {drop:?}");
        }
    }

    #[test]
    fn values_that_are_kept_whole_keep_their_bytes() {
        let json =
            "\n{ \"a\" : { \"b\" : 1.50 } , \"\\u0063\" : [ 1 , { \"d\" : \"\\u0065\" , \"f\":1 } ],\"c\":{} }\n ";
        assert_eq!(viewed(&["a"], &[], json), "{\"a\":{ \"b\" : 1.50 }}");
        assert_eq!(viewed(&["c[1].d"], &[], json), r#"{"\u0063":[{"d":"\u0065"}]}"#);
        assert_eq!(viewed(&["c"], &["c[0]"], json), r#"{"\u0063":[{ "d" : "\u0065" , "f":1 }],"c":{}}"#);
        assert_eq!(viewed(&[], &["a"], json), "{\"\\u0063\":[ 1 , { \"d\" : \"\\u0065\" , \"f\":1 } ],\"c\":{}}");
    }

    #[test]
    fn a_body_that_is_not_a_map_has_no_view() {
        for json in ["[1]", "5", "", "{", r#"{"a":1,}"#, r#"{"a":1"#, r#"{"a" 1}"#, "{} {}", r#"{"a":[1}"#] {
            assert_eq!(viewed(&["a"], &["a[1]"], json), "none", "{json}");
        }
    }

    #[test]
    fn views_of_the_same_paths_are_equal() {
        let view = |fields: &[&str], drop: &[&str]| View::parse(fields, drop).unwrap();
        assert_eq!(view(&["a[]", ".b", "b"], &["c"]), view(&["b", "{.a[*]}"], &["c"]));
        assert_ne!(view(&["a", "b"], &[]), view(&["a"], &["b"]));
        assert_eq!(view(&["a['x y']"], &["b"]).to_string(), ".a['x y'],-.b");
        for name in View::BUILT_IN {
            assert!(!View::built_in(name).unwrap().is_whole(), "{name}");
        }
        assert_eq!(View::built_in("@other"), None);
        assert!(view(&[], &[]).is_whole());
    }

    #[test]
    fn paths_are_checked_and_bounded() {
        let paths = vec!["a"; View::MAX_PATHS];
        View::parse(&paths, &[]).unwrap();
        let error = View::parse(&paths, &["b"]).unwrap_err();
        assert_eq!(error, ViewError::TooManyPaths { count: 65 });
        assert_eq!(error.to_string(), "65 paths are more than 64; name a field that contains several of them");
        assert!(matches!(View::parse(&["a"], &["b["]), Err(ViewError::Path { list: "drop", .. })));
        assert!(matches!(View::parse(&[""], &[]), Err(ViewError::Path { list: "fields", .. })));
    }
}
