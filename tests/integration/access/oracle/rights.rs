//! Rights of a caller at a server, by the rules and what the kind of the server makes of them.

use informerd::proto::pb::PayloadFormat;

use super::{
    super::rules::{Caller, Form, Right, RuleSet},
    NAMESPACES,
    request::Ask,
    world::Kind,
};

/// Rights of a caller at a server.
pub(super) struct Rights<'a> {
    pub(super) rules: &'a RuleSet,
    pub(super) caller: Caller,
    pub(super) kind: Kind,
}

/// Verbs of a call: all of them, or any.
#[derive(Clone, Copy)]
pub(super) enum Verbs {
    All(&'static [&'static str]),
    Any(&'static [&'static str]),
}

/// Rights that a request needs in a namespace: verbs, each for all of these forms.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) verbs: Verbs,
    pub(super) resource: &'static str,
    pub(super) forms: Vec<Form>,
}

/// Namespaces to which a call is limited; none if it is not.
pub(super) type Scope = Option<Vec<&'static str>>;

pub(super) const DENIED: &str = "ACCESS_DENIED";
pub(super) const METADATA: Form = ("METADATA", None);
pub(super) const CONTENT: Form = ("content", None);

// === impl Rights ===

impl Rights<'_> {
    /// Returns true if the rights are those to a namespace; `*` stands for all.
    pub(super) fn are_in(&self, wanted: &Wanted, namespace: &'static str) -> bool {
        // A name of a view means the same at the upstream of a relay only if every server has it.
        let form = |(format, view): Form| match view {
            Some(name) if self.kind == Kind::Relay && !name.starts_with('@') => (format, None),
            view => (format, view),
        };
        // A review has neither formats nor views, and the empty namespace stands for all.
        let is_reviewed = self.kind == Kind::Reviewed;
        let namespace = if is_reviewed && namespace.is_empty() { "*" } else { namespace };
        let forms = if is_reviewed { &[METADATA][..] } else { &wanted.forms };
        let may = |verb: &&'static str| {
            forms.iter().all(|of| {
                let right = Right { verb, resource: wanted.resource, namespace, form: form(*of) };
                self.rules.allows(&self.caller, right, self.kind == Kind::Secret && wanted.resource == "pods")
            })
        };
        match wanted.verbs {
            // Rules of the relay itself decide about its watches: everybody may see them.
            Verbs::All(["admin" | "disconnect"]) if self.kind == Kind::Relay => true,
            // They grant nothing else, of any other resource.
            _ if self.kind == Kind::Relay && wanted.resource != "pods" => false,
            Verbs::All(verbs) => verbs.iter().all(may),
            Verbs::Any(verbs) => verbs.iter().any(may),
        }
    }

    /// Returns the namespaces to which a request for all may be limited. Those with objects are reviewed, and that of a service account.
    pub(super) fn namespaces(&self, resource: &str) -> &'static [&'static str] {
        match (self.kind, resource) {
            (Kind::Reviewed, "pods") => &["x", "y", "z"],
            (Kind::Reviewed, _) if self.caller.user == "system:serviceaccount:x:default" => &["x"],
            (Kind::Reviewed, _) => &[],
            _ => &NAMESPACES,
        }
    }

    /// Returns the scope of a request for a namespace, or for all.
    pub(super) fn scope(&self, wanted: &Wanted, namespace: Option<&'static str>) -> Result<Scope, &'static str> {
        if self.are_in(wanted, "*") || namespace.is_some_and(|namespace| self.are_in(wanted, namespace)) {
            return Ok(None);
        }
        let of_all = self.namespaces(wanted.resource).iter().copied();
        let granted = of_all.filter(|of| namespace.is_none() && self.are_in(wanted, of));
        let granted: Vec<_> = granted.collect();
        if granted.is_empty() { Err(DENIED) } else { Ok(Some(granted)) }
    }

    /// Returns true if a watch is limited to some namespaces, perhaps to the one without a name.
    pub(super) fn is_limited(&self, ask: &Ask) -> bool {
        let format = if ask.format == PayloadFormat::Metadata { "METADATA" } else { "RAW" };
        let format = if ask.format == PayloadFormat::Struct { "STRUCT" } else { format };
        let mut forms = vec![(format, ask.view.name().filter(|_| format != "METADATA"))];
        forms.extend(ask.select.reads_body().then_some(CONTENT));
        let wanted = Wanted { verbs: Verbs::All(&["list", "watch"]), resource: ask.resource, forms };
        self.scope(&wanted, ask.namespace).is_ok_and(|scope| scope.is_some())
    }

    pub(super) fn may(&self, verbs: Verbs, form: Form, namespace: &'static str) -> bool {
        let wanted = Wanted { verbs, resource: "pods", forms: vec![form] };
        self.are_in(&wanted, "*") || self.are_in(&wanted, namespace)
    }

    pub(super) fn lists(&self, namespace: &'static str) -> bool {
        self.may(Verbs::All(&["list"]), METADATA, namespace)
    }

    pub(super) fn is_operator(&self) -> bool {
        self.may(Verbs::All(&["admin"]), METADATA, "*")
    }
}
