//! Search for the values at some paths, in one pass through a JSON text.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use smallvec::SmallVec;

use super::{Path, Step, Values, after_key, scan::Scan, unescaped};

/// Number of a path, and those of its steps that lead on from a value.
type Tail<'p> = (usize, &'p [Step]);

type Tails<'p> = SmallVec<[Tail<'p>; 4]>;

/// Treatment of an array at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrays {
    /// Each of its scalars is a value.
    Spread,
    /// The array has no values.
    Skip,
}

/// Search in a text.
struct Finder<'a> {
    scan: Scan<'a>,
    arrays: Arrays,
    /// Values by the number of the path.
    found: SmallVec<[Values<'a>; 4]>,
}

/// Returns the values at each path in the order of the text, which is JSON; none if one of them is not UTF-8.
fn values<'a, 'p>(
    paths: impl IntoIterator<Item = &'p Path>,
    json: &'a [u8],
    arrays: Arrays,
) -> SmallVec<[Values<'a>; 4]> {
    let tails: Tails<'p> = paths.into_iter().enumerate().map(|(number, path)| (number, &*path.steps)).collect();
    let found = tails.iter().map(|_| Values::new()).collect();
    let mut finder = Finder { scan: Scan::new(json), arrays, found };
    let is_whole = tails.is_empty() || finder.value(&tails).is_some();
    if !is_whole {
        finder.found.iter_mut().for_each(SmallVec::clear);
    }
    finder.found
}

// === impl Path ===

impl Path {
    /// Returns the scalars that the path leads to, in the order of the text: strings unquoted, numbers and booleans as
    /// their JSON text (`9007199254740993`, `1.50`).
    ///
    /// An array at the end of the path yields each of its scalars. Null, missing values, maps, and arrays within an array
    /// at the end yield nothing.
    pub fn values(&self, json: &[u8]) -> Vec<String> {
        self.find(json, Arrays::Spread).into_iter().map(Cow::into_owned).collect()
    }

    /// Returns the one scalar at the path, as [`values`](Self::values) writes it; `None` for a path with `[*]` or to an
    /// array.
    pub fn scalar<'a>(&self, json: &'a [u8]) -> Option<Cow<'a, str>> {
        if self.has_wildcard() { None } else { self.find(json, Arrays::Skip).pop() }
    }

    /// Returns the values at each of some paths, in one pass through a text that is known to be JSON.
    pub(in crate::model) fn values_of_json<'a, 'p>(
        paths: impl IntoIterator<Item = &'p Self>,
        json: &'a [u8],
    ) -> SmallVec<[Values<'a>; 4]> {
        values(paths, json, Arrays::Spread)
    }

    /// Returns the [scalar](Self::scalar) of a text that is known to be JSON.
    pub(crate) fn scalar_of_json<'a>(&self, json: &'a [u8]) -> Option<Cow<'a, str>> {
        if self.has_wildcard() { None } else { Self::scalars_of_json([self], json).pop()? }
    }

    /// Returns the scalars at each of some paths without wildcards, in one pass through a text that is known to be JSON.
    pub(in crate::model) fn scalars_of_json<'a, 'p>(
        paths: impl IntoIterator<Item = &'p Self>,
        json: &'a [u8],
    ) -> SmallVec<[Option<Cow<'a, str>>; 4]> {
        values(paths, json, Arrays::Skip).into_iter().map(|mut found| found.pop()).collect()
    }

    fn find<'a>(&self, json: &'a [u8], arrays: Arrays) -> Values<'a> {
        let is_json = serde_json::from_slice::<IgnoredAny>(json).is_ok();
        is_json.then(|| values([self], json, arrays).pop()).flatten().unwrap_or_default()
    }
}

// === impl Finder ===

impl Finder<'_> {
    /// Passes a value, and takes what the paths lead to in it. Recurs at most once for each step of a path.
    fn value(&mut self, tails: &[Tail<'_>]) -> Option<()> {
        let first = self.scan.next()?;
        let start = self.scan.at;
        match first {
            b'{' if tails.iter().any(|(_, steps)| matches!(steps, [Step::Key(_), ..])) => self.map(tails)?,
            b'[' if tails.iter().any(|(_, steps)| matches!(steps, [Step::Index(_) | Step::Every, ..])) => {
                self.array(tails)?;
            }
            _ => self.scan.skip()?,
        }
        for (number, _) in tails.iter().filter(|(_, steps)| steps.is_empty()) {
            take(&self.scan.json[start..self.scan.at], self.arrays, &mut self.found[*number])?;
        }
        Some(())
    }

    fn map(&mut self, tails: &[Tail<'_>]) -> Option<()> {
        let before: SmallVec<[usize; 4]> = tails.iter().map(|(number, _)| self.found[*number].len()).collect();
        self.scan.at += 1;
        if self.scan.eat(b'}')? {
            return Some(());
        }
        loop {
            self.scan.next()?;
            let key = self.scan.text()?;
            self.scan.eat(b':')?.then_some(())?;
            let mut inner = Tails::new();
            for ((number, steps), before) in tails.iter().zip(&before) {
                if let Some(steps) = after_key(steps, &self.scan.json[key.clone()]) {
                    // The last value of a repeated key counts.
                    self.found[*number].truncate(*before);
                    inner.push((*number, steps));
                }
            }
            self.inner(&inner)?;
            if !self.scan.eat(b',')? {
                return self.scan.eat(b'}')?.then_some(());
            }
        }
    }

    fn array(&mut self, tails: &[Tail<'_>]) -> Option<()> {
        self.scan.at += 1;
        if self.scan.eat(b']')? {
            return Some(());
        }
        for index in 0.. {
            let inner: Tails<'_> =
                tails.iter().filter_map(|(number, steps)| Some((*number, after_index(steps, index)?))).collect();
            self.inner(&inner)?;
            if !self.scan.eat(b',')? {
                break;
            }
        }
        self.scan.eat(b']')?.then_some(())
    }

    fn inner(&mut self, tails: &[Tail<'_>]) -> Option<()> {
        if tails.is_empty() { self.scan.skip() } else { self.value(tails) }
    }
}

/// Adds the scalars that a value consists of. Returns `None` if they are not UTF-8.
fn take<'a>(json: &'a [u8], arrays: Arrays, values: &mut Values<'a>) -> Option<()> {
    match json {
        // A string that is JSON and not Unicode (half a surrogate pair) has no text.
        [b'"', text @ .., b'"'] => {
            str::from_utf8(text).ok()?;
            values.extend(unescaped(text));
        }
        [b'[', ..] if arrays == Arrays::Spread => {
            let mut scan = Scan { json, at: 1 };
            if scan.eat(b']')? {
                return Some(());
            }
            loop {
                scan.next()?;
                let start = scan.at;
                scan.skip()?;
                take(&json[start..scan.at], Arrays::Skip, values)?;
                if !scan.eat(b',')? {
                    break;
                }
            }
        }
        [] | [b'[' | b'{' | b'n', ..] => {}
        number_or_bool => values.extend(str::from_utf8(number_or_bool).ok().map(Cow::Borrowed)),
    }
    Some(())
}

/// Returns the rest of a path that begins with this element of an array.
pub(super) fn after_index(steps: &[Step], index: usize) -> Option<&[Step]> {
    match steps.split_first()? {
        (Step::Every, rest) => Some(rest),
        (Step::Index(wanted), rest) => (*wanted == index).then_some(rest),
        (Step::Key(_), _) => None,
    }
}
