//! Part of a JSON body: the source's text with everything else cut out.

use std::{
    borrow::Cow,
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    sync::Arc,
};

use super::{
    Path,
    scan::Scan,
    set::{Bits, PathSet, Place, first},
};
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
/// Equal views select the same paths in any order and spelling. A clone is a reference count. A body is read once, at the same cost for
/// one path and for as many as a view may have.
#[derive(Clone)]
pub struct View(Arc<Paths>);

struct Paths {
    /// Hash of the paths, which is computed once.
    hash: u64,
    fields: Box<[Path]>,
    drop: Box<[Path]>,
    /// The fields to keep, and after them those to drop.
    set: PathSet,
    /// Bits of the fields to keep.
    keep: Bits,
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

/// Copy of what is kept.
struct Projection<'a> {
    scan: Scan<'a>,
    kept: Vec<u8>,
    keep: Bits,
}

/// Value of which something may be kept.
#[derive(Clone, Copy)]
struct Kept<'p> {
    place: Place<'p>,
    /// True if everything is kept that is not dropped: a field to keep ends here or above. The place then has no fields to keep.
    is_whole: bool,
}

// === impl View ===

impl View {
    /// Maximum number of paths.
    pub const MAX_PATHS: usize = PathSet::MAX;

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
        let set = PathSet::new(fields.iter().chain(&drop));
        Ok(Self(Arc::new(Paths { hash, keep: first(fields.len()), set, fields, drop })))
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
        let Paths { set, keep, .. } = &*self.0;
        let root = Kept { place: set.root(), is_whole: *keep == 0 };
        let kept = Vec::with_capacity(if root.is_whole { json.len() } else { 0 });
        let mut projection = Projection { scan: Scan::new(json), kept, keep: *keep };
        (projection.scan.next()? == b'{').then_some(())?;
        projection.value(root)?;
        let Projection { mut scan, kept, .. } = projection;
        scan.next().is_none().then_some(kept)
    }
}

impl PartialEq for View {
    fn eq(&self, other: &Self) -> bool {
        let is_same = || self.fields() == other.fields() && self.dropped() == other.dropped();
        Arc::ptr_eq(&self.0, &other.0) || self.0.hash == other.0.hash && is_same()
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
    /// Passes a value, and copies what is kept of it. Recurs at most once for each step of a path.
    fn value(&mut self, kept: Kept<'_>) -> Option<()> {
        let first = self.scan.next()?;
        match first {
            b'{' if !kept.is_unchanged() => self.map(kept),
            b'[' if !kept.is_unchanged() => self.array(kept),
            _ => {
                let start = self.scan.at;
                self.scan.skip()?;
                self.kept.extend_from_slice(&self.scan.json[start..self.scan.at]);
                Some(())
            }
        }
    }

    fn map(&mut self, kept: Kept<'_>) -> Option<()> {
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
            let first = self.scan.next()?;
            if let Some(inner) = self.inner(kept, kept.place.member(key), first) {
                self.separate(&mut is_empty);
                self.kept.extend_from_slice(key);
                self.kept.push(b':');
                self.value(inner)?;
            } else {
                self.scan.skip()?;
            }
            if !self.scan.eat(b',')? {
                self.kept.push(b'}');
                return self.scan.eat(b'}')?.then_some(());
            }
        }
    }

    fn array(&mut self, kept: Kept<'_>) -> Option<()> {
        self.open(b'[');
        let mut is_empty = true;
        if self.scan.eat(b']')? {
            self.kept.push(b']');
            return Some(());
        }
        for index in 0.. {
            let first = self.scan.next()?;
            if let Some(inner) = self.inner(kept, kept.place.element(index), first) {
                self.separate(&mut is_empty);
                self.value(inner)?;
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

    /// Returns what is kept of a value that begins with this byte, at this place in another one.
    fn inner<'p>(&self, outer: Kept<'_>, place: Place<'p>, first: u8) -> Option<Kept<'p>> {
        let (keep, ended) = (self.keep, place.ended());
        let is_whole = outer.is_whole || ended & keep != 0;
        let is_kept = is_whole || place.go_on(first) & keep != 0;
        let is_dropped = ended & !keep != 0;
        let place = if is_whole { place.only(!keep) } else { place };
        (is_kept && !is_dropped).then_some(Kept { place, is_whole })
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

// === impl Kept ===

impl Kept<'_> {
    /// Returns true if the value keeps all its bytes: no path to drop leads through it.
    fn is_unchanged(self) -> bool {
        self.is_whole && !self.place.has_paths()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::work;

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

    /// Returns the number of bytes that were read and keys that were compared for a view.
    fn work_of(fields: &[String], drop: &[String], json: &str) -> usize {
        let view = View::parse(fields, drop).unwrap();
        let before = work::done();
        view.project(json.as_bytes()).unwrap();
        work::done() - before
    }

    /// Paths that overlap, that end nearly where others do, and wildcards beside elements, at each depth.
    #[test]
    fn as_many_paths_as_there_may_be_cost_at_most_three_times_one() {
        let deep = |inner: &str| format!("{}{inner}{}", "[[".repeat(12), ",0],0]".repeat(12));
        let element = r#"{"a":{"b":{"c":1,"d":"x"},"e":[1,2,{"f":3}]},"g":"y"}"#;
        let json = format!(r#"{{"arr":[{}],"deep":[{}]}}"#, vec![element; 50].join(","), vec![deep("1"); 50].join(","));
        let paths = |path: &dyn Fn(usize) -> String| (0..View::MAX_PATHS).map(path).collect::<Vec<_>>();
        let elements =
            |n: usize| (0..24).map(|at| if n >> (at % 6) & 1 == 0 { "[*]" } else { "[0]" }).collect::<String>();
        for paths in [
            paths(&|n| if n % 2 == 0 { format!("arr[].a.b.c{n}") } else { format!("arr[].a.e[].f{n}") }),
            paths(&|n| format!("deep[*]{}[*].x{n}", elements(n))),
            paths(&|n| format!("deep{}", "[*]".repeat(n % 31 + 1))),
        ] {
            let (head, tail) = paths.split_at(32);
            for (fields, drop) in [(&*paths, &[][..]), (&[], &*paths), (head, tail)] {
                let one = work_of(&fields[..fields.len().min(1)], &drop[..drop.len().min(1)], &json);
                let many = work_of(fields, drop, &json);
                assert!(many <= 3 * one, "{many} against {one}: {paths:?}");
            }
        }
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
