//! Truth of a source without versions (files, stream): every state of each object, in order, computed from the script alone.
//!
//! A server may read its upstream at any moment, so it may miss states. But the states that a client observes of one object are a
//! subsequence of that object's states: a state that the object never had, or had only before an observed one, is a violation.
//! The most important one is a DELETED of an object that the script never deleted.
//!
//! An object may be in several files; the first by path is served. A server reads the files independently, at different times,
//! and never reads an older state of a file again: it serves the first of the states that it may have read of each file.

use std::collections::{BTreeMap, BTreeSet};

/// Bodies of all objects, by name.
pub(crate) type Objects = BTreeMap<String, String>;

/// File, and the body of an object in it.
pub(crate) type Claim = (String, String);

/// States of every object, in the order of the script.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timeline {
    /// States of each object by file; `None` while it is not in the file. Each differs from the one before it; the first is
    /// `None`.
    states: BTreeMap<String, BTreeMap<String, Vec<Option<String>>>>,
    current: Objects,
}

/// States of the files of one object that a server may have read, by path.
type Known = Vec<Place>;

/// State of one file that a server has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Place {
    state: usize,
    /// Set if only the body in another file shows that the object is not in this one. The server still holds one of the states
    /// from this index on, and serves it again if no other file has the object, until the deletion is certain.
    since: Option<usize>,
}

/// Observation of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// ADDED or MODIFIED: name and body of the object.
    Object(String, String),
    /// DELETED: name of the object.
    NoObject(String),
    /// All objects, from a list or initial events.
    All(Objects),
}

impl Timeline {
    /// Sets the objects, each in one place.
    pub(crate) fn becomes(&mut self, objects: Objects) {
        let claims = objects.iter().map(|(name, body)| (name.clone(), vec![(String::new(), body.clone())]));
        let claims = claims.collect();
        self.are_claimed(&claims, objects);
    }

    /// Sets the objects in each file, and the objects that are served in the end.
    pub(crate) fn are_claimed(&mut self, claims: &BTreeMap<String, Vec<Claim>>, objects: Objects) {
        for (name, bodies) in claims {
            let files = self.states.entry(name.clone()).or_default();
            for (path, _) in bodies {
                files.entry(path.clone()).or_insert_with(|| vec![None]);
            }
        }
        for (name, files) in &mut self.states {
            for (path, states) in files {
                let body = claims.get(name).and_then(|bodies| bodies.iter().find(|(file, _)| file == path));
                let body = body.map(|(_, body)| body.clone());
                if states.last() != Some(&body) {
                    states.push(body);
                }
            }
        }
        self.current = objects;
    }

    /// Returns the last state of all objects.
    pub(crate) fn current(&self) -> &Objects {
        &self.current
    }

    /// Verifies the observations of one client, in their order.
    pub(crate) fn verify(&self, observations: &[Seen]) -> Result<(), String> {
        let mut at: BTreeMap<&str, BTreeSet<Known>> = BTreeMap::new();
        for (index, seen) in observations.iter().enumerate() {
            let checked = match seen {
                Seen::Object(name, body) => self.advance(&mut at, name, Some(body)),
                Seen::NoObject(name) => self.advance(&mut at, name, None),
                Seen::All(objects) => {
                    let unknown = objects.keys().find(|name| !self.states.contains_key(*name));
                    unknown.map_or(Ok(()), |name| Err(format!("{name} never existed"))).and_then(|()| {
                        self.states.keys().try_for_each(|name| self.advance(&mut at, name, objects.get(name)))
                    })
                }
            };
            checked.map_err(|violation| {
                let last: Vec<String> = observations[index.saturating_sub(5)..=index].iter().map(Seen::text).collect();
                format!("observation {index}: {violation}; the last ones: {}", last.join(", "))
            })?;
        }
        Ok(())
    }

    /// Advances to the next states of an object's files in which the server would serve this observation.
    fn advance<'a>(
        &'a self,
        at: &mut BTreeMap<&'a str, BTreeSet<Known>>,
        name: &str,
        observed: Option<&String>,
    ) -> Result<(), String> {
        let Some((name, files)) = self.states.get_key_value(name) else {
            return Err(format!("{name} never existed, and was observed as {}", text(observed)));
        };
        let files: Vec<&[Option<String>]> = files.values().map(Vec::as_slice).collect();
        let known = at.entry(name).or_insert_with(|| BTreeSet::from([vec![Place::default(); files.len()]]));
        let next = least(&known.iter().flat_map(|known| served_as(&files, known, observed)).collect());
        if next.is_empty() {
            let rest = |(states, place): (&&[Option<String>], &Place)| {
                states[place.state..].iter().take(8).map(|state| text(state.as_ref()).to_owned()).collect::<Vec<_>>()
            };
            let rest: Vec<_> = known.iter().take(1).flat_map(|known| files.iter().zip(known).map(rest)).collect();
            return Err(format!(
                "{name} was observed as {}, and from there on its files had only {rest:?}",
                text(observed)
            ));
        }
        *known = next;
        Ok(())
    }
}

/// Returns the first states of the files, from the known ones on, in which the server would serve this observation.
fn served_as(files: &[&[Option<String>]], known: &Known, observed: Option<&String>) -> Vec<Known> {
    let from = |file: usize, state: Option<&String>| {
        let place: &Place = &known[file];
        files[file][place.state..].iter().position(|other| other.as_ref() == state).map(|steps| place.state + steps)
    };
    let without = |file: usize, is_implied: bool| {
        let (state, place) = (from(file, None)?, known[file]);
        let since = if state > place.state { Some(place.state) } else { place.since };
        Some(Place { state, since: since.filter(|_| is_implied) })
    };
    let Some(body) = observed else {
        return (0..files.len()).map(|file| without(file, false)).collect::<Option<_>>().into_iter().collect();
    };
    let all = 0..files.len();
    let in_file = all.clone().filter_map(|file| {
        let before = (0..file).map(|file| without(file, true)).collect::<Option<Vec<_>>>()?;
        let this = Place { state: from(file, Some(body))?, since: None };
        let next = before.into_iter().chain([this]).chain(known[file + 1..].iter().copied()).collect::<Known>();
        Some(next)
    });
    let in_none = all.clone().filter_map(|file| {
        let Place { state, since } = known[file];
        let since = since?;
        let was = since + files[file][since..state].iter().position(|known| known.as_ref() == Some(body))?;
        let mut next = all.clone().map(|other| without(other, true)).collect::<Option<Known>>()?;
        next[file].since = Some(was);
        Some(next)
    });
    in_file.chain(in_none).collect()
}

/// Removes states that are further than another one from which the same states follow; otherwise their number would be that of
/// all combinations of the files' states.
fn least(all: &BTreeSet<Known>) -> BTreeSet<Known> {
    let is_first = |this: &Known| !all.iter().any(|other| other != this && is_before(other, this));
    all.iter().filter(|this| is_first(this)).cloned().collect()
}

/// Returns true if all states that follow from the other one follow from this one as well.
fn is_before(this: &Known, other: &Known) -> bool {
    this.iter().zip(other).all(|(this, other)| {
        let is_since = other.since.is_none_or(|other| this.since.is_some_and(|this| this <= other));
        this.state == other.state && is_since || this.state < other.state && other.since.is_none()
    })
}

impl Seen {
    fn text(&self) -> String {
        match self {
            Self::Object(name, body) => format!("{name} {}", text(Some(body))),
            Self::NoObject(name) => format!("no {name}"),
            Self::All(objects) => {
                let objects = objects.iter().map(|(name, body)| format!("{name} {}", text(Some(body))));
                format!("all: [{}]", objects.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Returns the end of a body, which distinguishes it from others.
fn text(body: Option<&String>) -> &str {
    body.map_or("none", |body| &body[body.len().saturating_sub(24)..])
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn objects(all: &[(&str, &str)]) -> Objects {
        all.iter().map(|(name, body)| ((*name).to_owned(), (*body).to_owned())).collect()
    }

    fn is(name: &str, body: &str) -> Seen {
        Seen::Object(name.to_owned(), body.to_owned())
    }

    fn is_not(name: &str) -> Seen {
        Seen::NoObject(name.to_owned())
    }

    #[test]
    fn observations_are_a_subsequence_of_the_states() {
        let mut timeline = Timeline::default();
        for all in [&[("a", "1"), ("b", "1")][..], &[("a", "2")], &[("a", "1")], &[]] {
            timeline.becomes(objects(all));
        }
        let good = [
            vec![is("a", "1"), is("b", "1"), is("a", "2"), is_not("b"), is("a", "1"), is_not("a")],
            vec![is("a", "2"), is("a", "2"), is_not("a")],
            vec![Seen::All(objects(&[("a", "2")])), is("a", "1")],
            vec![Seen::All(objects(&[])), is("a", "2"), Seen::All(objects(&[]))],
        ];
        for observations in good {
            timeline.verify(&observations).unwrap();
        }
        let bad = [
            vec![is("a", "3")],
            vec![is("c", "1")],
            vec![is("a", "1"), is_not("a"), is("a", "1")],
            vec![is("b", "1"), is_not("b"), is("b", "1")],
            vec![is("a", "1"), is("a", "2"), is("a", "1"), is("a", "2")],
            vec![Seen::All(objects(&[("a", "2")])), is("b", "1"), is_not("b"), is("b", "1")],
            vec![is("a", "2"), Seen::All(objects(&[])), is("a", "1")],
        ];
        for observations in bad {
            timeline.verify(&observations).unwrap_err();
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

        #[test]
        fn skipped_states_make_no_difference(
            states in vec(vec(prop::option::of(0..3_u8), 1..5), 1..4),
            observations in vec(prop::option::of(0..3_u8), 1..8),
        ) {
            let text = |state: Option<u8>| state.map(|state| state.to_string());
            let states: Vec<Vec<_>> = states.into_iter().map(|of| [None].into_iter().chain(of).map(text).collect()).collect();
            let files: Vec<&[Option<String>]> = states.iter().map(Vec::as_slice).collect();
            let begin = BTreeSet::from([vec![Place::default(); files.len()]]);
            let (mut all, mut some) = (begin.clone(), begin);
            for observed in observations.into_iter().map(text) {
                let next = |known: &BTreeSet<Known>| -> BTreeSet<Known> {
                    known.iter().flat_map(|known| served_as(&files, known, observed.as_ref())).collect()
                };
                (all, some) = (next(&all), least(&next(&some)));
                prop_assert_eq!(all.is_empty(), some.is_empty());
            }
        }
    }

    #[test]
    fn objects_in_several_files_have_a_timeline_for_each() {
        let mut timeline = Timeline::default();
        for all in
            [&[("f", "1")][..], &[("f", "1"), ("g", "2"), ("h", "3")], &[("g", "2"), ("h", "3")], &[("g", "4")], &[]]
        {
            let claims = all.iter().map(|(path, body)| ((*path).to_owned(), (*body).to_owned())).collect();
            timeline.are_claimed(&BTreeMap::from([("a".to_owned(), claims)]), Objects::new());
        }
        let good = [
            vec![is("a", "1"), is("a", "3"), is("a", "2"), is("a", "4"), is_not("a")],
            vec![is("a", "3"), is("a", "2"), is("a", "1"), is_not("a")],
            // The first file was missing, and its deletion was not certain when the others were removed.
            vec![is("a", "1"), is("a", "2"), is("a", "1"), is_not("a")],
        ];
        for observations in good {
            timeline.verify(&observations).unwrap();
        }
        let mut replaced = Timeline::default();
        for all in [&[("f", "1")][..], &[("f", "1"), ("g", "2")], &[("f", "3"), ("g", "2")], &[("g", "2")], &[]] {
            let claims = all.iter().map(|(path, body)| ((*path).to_owned(), (*body).to_owned())).collect();
            replaced.are_claimed(&BTreeMap::from([("a".to_owned(), claims)]), Objects::new());
        }
        // The first file was changed, and removed before the server read it.
        replaced.verify(&[is("a", "1"), is("a", "2"), is("a", "1"), is_not("a")]).unwrap();
        replaced.verify(&[is("a", "3"), is("a", "2"), is("a", "1")]).unwrap_err();
        let bad = [
            vec![is("a", "4"), is("a", "2")],
            vec![is("a", "1"), is_not("a"), is("a", "1")],
            vec![is("a", "4"), is_not("a"), is("a", "4")],
        ];
        for observations in bad {
            timeline.verify(&observations).unwrap_err();
        }
    }
}
