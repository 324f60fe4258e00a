//! The truth about a source that has no versions of its own (files, stream): every state that each object was in, in order,
//! computed from the script alone.
//!
//! A server may look at its upstream at any moment, so it may miss states. But what a client observes of one object is a
//! subsequence of that object's states: a state that the object never had, or had only before one that was observed
//! already, is a violation. A DELETED of an object that the script never deleted is the most important of these.

use std::collections::BTreeMap;

/// The bodies of all objects, by name.
pub(crate) type Objects = BTreeMap<String, String>;

/// The states of every object, in the order in which the script made them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timeline {
    /// `None` while there is no such object. Each differs from the one before it; the first is `None`.
    states: BTreeMap<String, Vec<Option<String>>>,
    current: Objects,
}

/// An observation of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// ADDED or MODIFIED: the object's name and body.
    Object(String, String),
    /// DELETED: the object's name.
    NoObject(String),
    /// All objects, by a list or by initial events.
    All(Objects),
}

impl Timeline {
    /// Makes these all the objects that there are.
    pub(crate) fn becomes(&mut self, objects: Objects) {
        let gone: Vec<String> = self.current.keys().filter(|name| !objects.contains_key(*name)).cloned().collect();
        for name in gone {
            self.push(&name, None);
        }
        for (name, body) in &objects {
            self.push(name, Some(body));
        }
        self.current = objects;
    }

    /// Allows a body of an object, from now on and until the next one that is observed.
    pub(crate) fn may_be(&mut self, name: &str, body: &String) {
        self.push(name, Some(body));
    }

    /// The last state of all objects.
    pub(crate) fn current(&self) -> &Objects {
        &self.current
    }

    fn push(&mut self, name: &str, state: Option<&String>) {
        let states = self.states.entry(name.to_owned()).or_insert_with(|| vec![None]);
        if states.last().is_none_or(|last| last.as_ref() != state) {
            states.push(state.cloned());
        }
    }

    /// Checks the observations of one client, in its order.
    pub(crate) fn verify(&self, observations: &[Seen]) -> Result<(), String> {
        let mut at: BTreeMap<&str, usize> = BTreeMap::new();
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

    /// Goes to the next of an object's states that is this one, if it is not that already.
    fn advance<'a>(
        &'a self,
        at: &mut BTreeMap<&'a str, usize>,
        name: &str,
        observed: Option<&String>,
    ) -> Result<(), String> {
        let Some((name, states)) = self.states.get_key_value(name) else {
            return Err(format!("{name} never existed, and was observed as {}", text(observed)));
        };
        let position = at.entry(name).or_default();
        if let Some(steps) = states[*position..].iter().position(|state| state.as_ref() == observed) {
            *position += steps;
            Ok(())
        } else {
            let rest: Vec<&str> = states[*position..].iter().take(8).map(|state| text(state.as_ref())).collect();
            Err(format!("{name} was observed as {}, and from there on it was only {rest:?}", text(observed)))
        }
    }
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

/// The end of a body, which tells it from others.
fn text(body: Option<&String>) -> &str {
    body.map_or("none", |body| &body[body.len().saturating_sub(24)..])
}

#[cfg(test)]
mod tests {
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
}
