//! Rules: subjects × verbs × resources × namespaces × formats × views. Nothing is allowed that no rule grants.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{
    access::{AccessError, Attributes, Format, Names, Operation, Scope},
    identity::Identity,
};
use crate::model::NamedViews;

/// List of rules. Empty, it denies everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    reading: Vec<Rule>,
    impersonation: Vec<ImpersonationRule>,
}

/// Error for a list of rules: the number of the rule, and its problem, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RulesError(String);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    /// Number in the list, from 1.
    number: usize,
    subjects: Vec<Subject>,
    verbs: Vec<Verb>,
    resources: Names,
    namespaces: Names,
    /// Formats besides METADATA, which each rule grants; `None` if the rule does not name any.
    formats: Option<Vec<Format>>,
    /// Names of the views that it grants in these formats; `None` for whole bodies and every part of them.
    views: Option<BTreeSet<String>>,
}

/// Part of the objects that a call needs a right to.
#[derive(Debug, Clone, Copy)]
enum Part<'a> {
    Metadata,
    /// Bodies in a format, whole or in the view of this name.
    Body(Format, Option<&'a str>),
    /// Whole bodies in any format, for a selection by them.
    Content,
}

/// Rule for calls on behalf of others.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ImpersonationRule {
    subjects: Vec<Subject>,
    users: Names,
    groups: Names,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    Anybody,
    User(String),
    Group(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Get,
    List,
    Watch,
    Admin,
    Disconnect,
}

const KEYS: [&str; 6] = ["subjects", "verbs", "resources", "namespaces", "formats", "views"];
const EXAMPLE: &str = r#"{subjects: ["group:web"], verbs: [list, watch], resources: [pods], namespaces: [shop]}"#;
const IMPERSONATION_KEYS: [&str; 4] = ["subjects", "verbs", "users", "groups"];
const IMPERSONATION_EXAMPLE: &str = r#"{subjects: ["user:relay"], verbs: [impersonate], users: ["*"], groups: [web]}"#;
/// Verb of the rules for calls on behalf of others. `"*"` does not stand for it, too: it would grant the rights of everybody.
const IMPERSONATE: &str = "impersonate";
const VERBS: [(&str, Verb); 5] = [
    ("get", Verb::Get),
    ("list", Verb::List),
    ("watch", Verb::Watch),
    ("admin", Verb::Admin),
    ("disconnect", Verb::Disconnect),
];
const FORMATS: [(&str, Format); 3] = [("METADATA", Format::Metadata), ("STRUCT", Format::Struct), ("RAW", Format::Raw)];
/// Most rules, which are all read for each call.
const MAX_RULES: usize = 10_000;
/// Most resources whose views a message lists.
const MAX_KNOWN: usize = 5;
/// Longest excerpt of a user's text that an error quotes.
const MAX_QUOTED_CHARS: usize = 60;

// === impl Rules ===

impl Rules {
    /// Reads a list of rules.
    ///
    /// # Errors
    ///
    /// The first problem.
    pub fn from_value(value: &Value) -> Result<Self, RulesError> {
        let list =
            value.as_array().ok_or_else(|| RulesError::expected(&format!("a list such as [{EXAMPLE}]"), value))?;
        if list.len() > MAX_RULES {
            return Err(RulesError(format!("has {} rules; expected at most {MAX_RULES}", list.len())));
        }
        let mut rules = Self::default();
        for (rule, number) in list.iter().zip(1..) {
            rules.add(rule, number).map_err(|RulesError(problem)| RulesError(format!("rule {number}: {problem}")))?;
        }
        Ok(rules)
    }

    fn add(&mut self, rule: &Value, number: usize) -> Result<(), RulesError> {
        let keys = rule.as_object().ok_or_else(|| RulesError::expected(&format!("a map such as {EXAMPLE}"), rule))?;
        let verbs = texts(keys, "verbs")?.unwrap_or_default();
        if verbs.contains(&IMPERSONATE) {
            self.impersonation.push(ImpersonationRule::from_keys(keys, &verbs)?);
        } else {
            self.reading.push(Rule::from_keys(keys, number)?);
        }
        Ok(())
    }

    /// Returns the resources that a rule names and this server does not have, in one line for each rule.
    pub fn unknown_resources(&self, resources: &BTreeMap<&str, &NamedViews>) -> Vec<String> {
        let problem = |rule: &Rule| {
            let Names::Only(names) = &rule.resources else { return None };
            let unknown = names.iter().filter(|name| !resources.contains_key(name.as_str()));
            let unknown: Vec<_> = unknown.take(MAX_KNOWN).map(|name| quoted(name)).collect();
            let known: Vec<&str> = resources.keys().take(MAX_KNOWN).copied().collect();
            let (number, names, known) = (rule.number, unknown.join(", "), known.join(", "));
            (!unknown.is_empty()).then(|| format!("rule {number}: resource {names} not served here (known: {known})"))
        };
        self.reading.iter().filter_map(problem).collect()
    }

    /// Returns the views that a rule names and none of its resources has, in one line for each rule: it grants no body in them. A rule
    /// without a resource of these may be for another server.
    pub fn unknown_views(&self, resources: &BTreeMap<&str, &NamedViews>) -> Vec<String> {
        let problem = |rule: &Rule| {
            let of_rule = || resources.iter().filter(|(name, _)| rule.resources.contains(name));
            let is_unknown = |view: &&String| of_rule().all(|(_, views)| views.get(view).is_none());
            let unknown: Vec<_> = rule.views.iter().flatten().filter(is_unknown).map(|view| quoted(view)).collect();
            if unknown.is_empty() || of_rule().next().is_none() {
                return None;
            }
            let known: BTreeSet<String> = of_rule().map(|(name, views)| format!("{name}: {}", views.known())).collect();
            let mut known: Vec<_> = known.into_iter().take(MAX_KNOWN + 1).collect();
            if known.len() > MAX_KNOWN {
                "…".clone_into(&mut known[MAX_KNOWN]);
            }
            let (number, views, known) = (rule.number, unknown.join(", "), known.join("; "));
            Some(format!("rule {number}: view {views} not found (known in {known}): it grants no body in that view"))
        };
        self.reading.iter().filter_map(problem).collect()
    }

    /// Decides if a caller may make calls on behalf of another: of the user and of each of its groups.
    pub(super) fn impersonate(&self, identity: &Identity, impersonated: &Identity) -> Result<(), AccessError> {
        let granting = || self.impersonation.iter().filter(|rule| rule.subjects.iter().any(|of| of.is(identity)));
        let is_user = granting().any(|rule| rule.users.contains(impersonated.user()));
        let groups = &impersonated.details().groups;
        let is_granted = is_user && groups.iter().all(|group| granting().any(|rule| rule.groups.contains(group)));
        if is_granted { Ok(()) } else { Err(AccessError::Denied) }
    }

    /// Decides a call, without regard to the resources and namespaces that exist.
    pub(super) fn authorize(&self, identity: &Identity, attributes: &Attributes) -> Result<Scope, AccessError> {
        let granting: Vec<_> = self.reading.iter().filter(|rule| rule.is_for(identity, attributes)).collect();
        // The namespaces in which a verb is granted for a part of the objects.
        let part_of = |verb, part| {
            let rules =
                granting.iter().filter(|rule| rule.verbs.contains(&verb) && rule.has(part, attributes.is_secret));
            rules.fold(Names::default(), |names, rule| names.union(&rule.namespaces))
        };
        let part = match attributes.format {
            Format::Metadata => Part::Metadata,
            format => Part::Body(format, attributes.view.as_deref()),
        };
        let of = |verb| {
            let namespaces = part_of(verb, part);
            if attributes.selects_content { namespaces.intersection(part_of(verb, Part::Content)) } else { namespaces }
        };
        let namespaces = match attributes.operation {
            Operation::Get => of(Verb::Get).union(&of(Verb::List)),
            Operation::List => of(Verb::List),
            Operation::Watch => of(Verb::List).intersection(of(Verb::Watch)),
            Operation::Inspect => of(Verb::Admin),
            Operation::Disconnect => of(Verb::Disconnect),
            Operation::See => of(Verb::Get).union(&of(Verb::List)).union(&of(Verb::Watch)),
        };
        namespaces.scope(attributes.namespace.as_deref())
    }
}

// === impl Rule ===

impl Rule {
    /// Returns true if the rule is for this caller and resource.
    fn is_for(&self, identity: &Identity, attributes: &Attributes) -> bool {
        self.subjects.iter().any(|subject| subject.is(identity)) && self.resources.contains(&attributes.resource)
    }

    /// Returns true if the rule grants a part of the objects.
    fn has(&self, part: Part<'_>, is_secret: bool) -> bool {
        let has_format = |format: &Format| match &self.formats {
            // Secrets are not granted by the way: the content needs a rule that names both the resource and the format.
            _ if is_secret && self.resources == Names::All => false,
            None => !is_secret,
            Some(formats) => formats.contains(format),
        };
        // Whole bodies have every view.
        let has_view =
            |view: Option<&str>| self.views.as_ref().is_none_or(|views| view.is_some_and(|view| views.contains(view)));
        match part {
            Part::Metadata => true,
            Part::Body(format, view) => has_format(&format) && has_view(view),
            Part::Content => has_view(None) && [Format::Struct, Format::Raw].iter().any(has_format),
        }
    }

    fn from_keys(keys: &Map<String, Value>, number: usize) -> Result<Self, RulesError> {
        check_keys(keys, &KEYS)?;
        let required = |key| required(keys, key, EXAMPLE);
        let names = |key| Ok(required(key)?.into_iter().collect());
        let formats: Option<Vec<_>> =
            texts(keys, "formats")?.map(|formats| formats.into_iter().map(format).collect()).transpose()?;
        let views = texts(keys, "views")?;
        if views.as_ref().is_some_and(|views| views.contains(&"*")) {
            return Err(RulesError(
                "`views` has \"*\": name each view, or leave the key out to grant whole bodies".to_owned(),
            ));
        }
        if views.is_some() && formats.as_ref().is_some_and(|formats| !formats.iter().any(|of| *of != Format::Metadata))
        {
            let problem =
                "`views` are parts of bodies, which `formats` excludes: add STRUCT or RAW, or remove one of the keys";
            return Err(RulesError(problem.to_owned()));
        }
        Ok(Self {
            number,
            subjects: subjects(&required("subjects")?)?,
            verbs: verbs(&required("verbs")?)?,
            resources: names("resources")?,
            namespaces: names("namespaces")?,
            formats,
            views: views.map(|views| views.into_iter().map(str::to_owned).collect()),
        })
    }
}

// === impl ImpersonationRule ===

impl ImpersonationRule {
    fn from_keys(keys: &Map<String, Value>, verbs: &[&str]) -> Result<Self, RulesError> {
        if verbs != [IMPERSONATE] {
            return Err(RulesError(format!(
                "`{IMPERSONATE}` needs a rule of its own, such as {IMPERSONATION_EXAMPLE}"
            )));
        }
        check_keys(keys, &IMPERSONATION_KEYS)?;
        let required = |key| required(keys, key, IMPERSONATION_EXAMPLE);
        Ok(Self {
            subjects: subjects(&required("subjects")?)?,
            users: required("users")?.into_iter().collect(),
            groups: texts(keys, "groups")?.unwrap_or_default().into_iter().collect(),
        })
    }
}

fn check_keys(keys: &Map<String, Value>, known: &[&str]) -> Result<(), RulesError> {
    let unknown = keys.keys().find(|key| !known.contains(&key.as_str()));
    let problem = |key: &String| format!("unknown key {}; known here: {}", quoted(key), known.join(", "));
    unknown.map_or(Ok(()), |key| Err(RulesError(problem(key))))
}

fn subjects(texts: &[&str]) -> Result<Vec<Subject>, RulesError> {
    texts.iter().map(|text| Subject::parse(text)).collect()
}

// === impl Subject ===

impl Subject {
    fn is(&self, identity: &Identity) -> bool {
        match self {
            Self::Anybody => true,
            Self::User(user) => user == identity.user(),
            Self::Group(group) => identity.details().groups.contains(group),
        }
    }

    fn parse(text: &str) -> Result<Self, RulesError> {
        // Names may have colons, as `system:serviceaccount:shop:web` has.
        match text.split_once(':') {
            None if text == "*" => Ok(Self::Anybody),
            Some(("user", name)) if !name.is_empty() => Ok(Self::User(name.to_owned())),
            Some(("group", name)) if !name.is_empty() => Ok(Self::Group(name.to_owned())),
            _ => Err(RulesError(format!("expected a subject user:NAME, group:NAME or \"*\", found {}", quoted(text)))),
        }
    }
}

fn verbs(names: &[&str]) -> Result<Vec<Verb>, RulesError> {
    let mut verbs = Vec::new();
    for name in names {
        match VERBS.iter().find(|(known, _)| known == name) {
            Some((_, verb)) => verbs.push(*verb),
            None if *name == "*" => verbs.extend(VERBS.map(|(_, verb)| verb)),
            None => {
                let found = quoted(name);
                let expected = "expected a verb get, list, watch, admin, disconnect or \"*\", or impersonate";
                return Err(RulesError(format!("{expected}, found {found}")));
            }
        }
    }
    Ok(verbs)
}

fn format(name: &str) -> Result<Format, RulesError> {
    let known = FORMATS.iter().find(|(known, _)| *known == name);
    let problem = || RulesError(format!("expected a format METADATA, STRUCT or RAW, found {}", quoted(name)));
    known.map(|(_, format)| *format).ok_or_else(problem)
}

/// Reads a list of at least one text.
fn required<'a>(keys: &'a Map<String, Value>, key: &str, example: &str) -> Result<Vec<&'a str>, RulesError> {
    texts(keys, key)?.ok_or_else(|| RulesError(format!("`{key}` is missing; a rule is such as {example}")))
}

/// Reads a list of at least one text; `None` without the key.
fn texts<'a>(keys: &'a Map<String, Value>, key: &str) -> Result<Option<Vec<&'a str>>, RulesError> {
    let Some(value) = keys.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    let list = value.as_array().filter(|list| !list.is_empty());
    let texts = list.and_then(|list| list.iter().map(Value::as_str).collect());
    let problem = || RulesError::expected(&format!("a list of at least one text for `{key}`"), value);
    texts.map(Some).ok_or_else(problem)
}

fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(MAX_QUOTED_CHARS).collect::<String>())
}

// === impl RulesError ===

impl RulesError {
    fn expected(what: &str, found: &Value) -> Self {
        let found = match found {
            Value::Null => "nothing".to_owned(),
            Value::String(text) => quoted(text),
            Value::Array(list) if list.is_empty() => "an empty list".to_owned(),
            Value::Array(_) => "a list of other values".to_owned(),
            Value::Object(_) => "a map".to_owned(),
            other => other.to_string(),
        };
        Self(format!("expected {what}, found {found}"))
    }
}

#[cfg(test)]
mod tests;
