//! Random rule sets and callers, and the direct evaluation of the rules.

use fastrand::Rng;
use informerd::auth::{Identity, IdentityDetails, Rules};
use serde_json::{Value, json};

use super::oracle::NAMESPACES;

/// Caller of a test: a user with groups.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) user: &'static str,
    pub(super) groups: &'static [&'static str],
}

#[derive(Debug, Clone, Default)]
pub(super) struct RuleSet(Vec<Rule>);

#[derive(Debug, Clone)]
struct Rule {
    subjects: Vec<&'static str>,
    verbs: Vec<&'static str>,
    resources: Vec<&'static str>,
    namespaces: Vec<&'static str>,
    formats: Vec<&'static str>,
    views: Vec<&'static str>,
}

/// One right that a call may need: a verb, for a resource, in a namespace, for objects in this form.
#[derive(Debug, Clone, Copy)]
pub(super) struct Right<'a> {
    pub(super) verb: &'a str,
    pub(super) resource: &'a str,
    /// Namespace; `*` for all of them, known or not.
    pub(super) namespace: &'a str,
    pub(super) form: Form,
}

/// Form of the objects: a format, and the name of a view of their bodies; without one, whole bodies. The format "content" stands for
/// the right to read whole bodies in either format.
pub(super) type Form = (&'static str, Option<&'static str>);

pub(super) const CALLERS: [Caller; 4] = [
    Caller { user: "ann", groups: &["web", "ops"] },
    Caller { user: "bob", groups: &["web"] },
    // Its name is that of a group.
    Caller { user: "web", groups: &["ops"] },
    Caller { user: "system:serviceaccount:x:default", groups: &[] },
];
const SUBJECTS: [&str; 7] =
    ["user:ann", "user:bob", "user:system:serviceaccount:x:default", "user:web", "group:web", "group:ops", "*"];

// === impl Caller ===

impl Caller {
    pub(super) fn draw(random: &mut Rng) -> Self {
        CALLERS[random.usize(..CALLERS.len())]
    }

    pub(super) fn identity(self) -> Identity {
        let groups = self.groups.iter().map(|group| (*group).to_owned()).collect();
        Identity::new(IdentityDetails { user: self.user.to_owned(), groups, ..IdentityDetails::default() })
    }
}

// === impl RuleSet ===

impl RuleSet {
    pub(super) fn draw(random: &mut Rng) -> Self {
        Self((0..random.usize(0..9)).map(|_| Rule::draw(random)).collect())
    }

    /// Returns these rules and others.
    pub(super) fn parsed_with(&self, others: &[Value]) -> Rules {
        let rules = self.0.iter().map(Rule::value).chain(others.iter().cloned());
        Rules::from_value(&rules.collect::<Value>()).unwrap()
    }

    /// Returns true if a rule grants the right to the caller. The content of Secrets needs a rule that names the resource and the
    /// format.
    pub(super) fn allows(&self, caller: &Caller, right: Right<'_>, is_secret: bool) -> bool {
        self.0.iter().any(|rule| {
            rule.is_for(caller)
                && has(&rule.verbs, right.verb)
                && has(&rule.resources, right.resource)
                && has(&rule.namespaces, right.namespace)
                && (!is_secret
                    || right.form.0 == "METADATA"
                    || !rule.formats.is_empty() && !rule.resources.contains(&"*"))
                && match right.form {
                    // Whoever may read a body may read metadata, and a rule for METADATA alone grants that.
                    ("METADATA", _) => true,
                    ("content", _) => {
                        rule.views.is_empty()
                            && (rule.formats.is_empty() || ["RAW", "STRUCT"].iter().any(|of| rule.formats.contains(of)))
                    }
                    (format, view) => {
                        (rule.views.is_empty() || view.is_some_and(|view| rule.views.contains(&view)))
                            && (rule.formats.is_empty() || rule.formats.contains(&format))
                    }
                }
        })
    }
}

/// Returns true if a list names this, or everything.
fn has(list: &[&str], name: &str) -> bool {
    list.iter().any(|of| [name, "*"].contains(of))
}

// === impl Rule ===

impl Rule {
    fn draw(random: &mut Rng) -> Self {
        Self {
            subjects: some(random, &SUBJECTS),
            verbs: some(random, &["get", "list", "list", "watch", "admin", "disconnect", "*"]),
            resources: some(random, &["pods", "pods", "nodes", "*"]),
            namespaces: some(random, &[NAMESPACES.as_slice(), &["x", "y", "*"]].concat()),
            formats: if random.bool() { Vec::new() } else { some(random, &["METADATA", "RAW", "STRUCT"]) },
            views: if random.u8(..3) > 0 { Vec::new() } else { some(random, &["small", "small", "@metadata", "none"]) },
        }
        .without_contradiction()
    }

    /// Removes the views of a rule that grants no bodies.
    fn without_contradiction(mut self) -> Self {
        if !self.formats.is_empty() && self.formats.iter().all(|format| *format == "METADATA") {
            self.views.clear();
        }
        self
    }

    fn is_for(&self, caller: &Caller) -> bool {
        self.subjects.iter().any(|subject| match subject.split_once(':') {
            Some(("user", user)) => user == caller.user,
            Some(("group", group)) => caller.groups.contains(&group),
            _ => *subject == "*",
        })
    }

    fn value(&self) -> Value {
        let Self { subjects, verbs, resources, namespaces, formats, views } = self;
        let mut rule = json!({"subjects": subjects, "verbs": verbs, "resources": resources, "namespaces": namespaces});
        if !formats.is_empty() {
            rule["formats"] = json!(formats);
        }
        if !views.is_empty() {
            rule["views"] = json!(views);
        }
        rule
    }
}

/// Draws one to three of these, perhaps one of them twice.
fn some(random: &mut Rng, of: &[&'static str]) -> Vec<&'static str> {
    (0..random.usize(1..4)).map(|_| of[random.usize(..of.len())]).collect()
}
