//! Answer that a request must have: what exists, as far as the table of rights grants it. It shares nothing with the server.

use std::collections::{BTreeMap, btree_map::Entry};

use informerd::proto::pb::PayloadFormat;

use super::{
    super::{OBJECTS, objects_in, rules::Form},
    NAMESPACES,
    request::{Ask, ENDED, Method, Select, View},
    rights::{CONTENT, DENIED, METADATA, Rights, Scope, Verbs, Wanted},
    table::{Need, Row, Rows, rows_of},
    world::{BEGIN, CONFIG_ERROR, Kind, OBJECT_PROBLEMS, OPERATOR, OTHER_PROBLEM, World, body_of, uid_of},
};

/// Fields that an answer may have: with this value, or with any and perhaps not at all.
pub(super) type Expected = BTreeMap<String, Option<String>>;

/// End of the ids that watches of callers may have, after those of the world.
const LAST_OTHER: u64 = 100;

/// Truth about one request.
struct Truth<'a> {
    ask: &'a Ask,
    rights: &'a Rights<'a>,
    world: &'a World,
    rows: Rows,
    /// True if the terms of Explain may depend on the body.
    reads_terms: bool,
    expected: Expected,
}

impl Truth<'_> {
    /// Returns true if the caller has the right that a field needs. The rights of the call itself were checked.
    fn has(&self, need: Need, namespace: &'static str) -> bool {
        match need {
            Need::Call | Need::Same | Need::Form | Need::Object | Need::Seen => true,
            Need::Term => self.reads_terms,
            Need::Listed => self.rights.lists(namespace),
            Need::ListedAll => self.rights.lists("*"),
            Need::Admin => self.rights.is_operator(),
        }
    }

    /// Adds the fields of a message at a place, each with any value, but for those of messages in it.
    fn fill(&mut self, place: &str, rows: Rows, namespace: &'static str) {
        for (name, row) in rows {
            if let Row::Field(need) = row
                && self.has(*need, namespace)
            {
                self.expected.insert(join(place, name), None);
            }
        }
    }

    /// Adds the fields of a message within the answer.
    fn fill_at(&mut self, place: &str, namespace: &'static str) {
        let mut rows = self.rows;
        for name in place.split('.') {
            let name = name.split('{').next().unwrap_or_default();
            let row = rows.iter().find(|(field, _)| *field == name).unwrap_or_else(|| panic!("{place} has no row"));
            let Row::Message(need, inner) = row.1 else { panic!("{place} is no message") };
            if !self.has(need, namespace) {
                return;
            }
            rows = inner;
        }
        self.fill(place, rows, namespace);
    }

    /// Sets the value of a field, if rights allow the field.
    fn is(&mut self, path: String, value: impl Into<String>) {
        if let Entry::Occupied(mut expected) = self.expected.entry(path) {
            expected.insert(Some(value.into()));
        }
    }

    fn object(&mut self, place: &str, (namespace, name): (&'static str, &str), format: &str) {
        let place = format!("{place}{{{namespace}/{name}}}");
        self.fill_at(&place, namespace);
        let at = |field: &str| join(&place, field);
        self.is(at("namespace"), namespace);
        self.is(at("name"), name);
        self.is(at("uid"), uid_of(namespace, name));
        self.is(at("resource_version"), self.world.object_version);
        self.is(at("labels"), format!("app={name}"));
        self.is(at("kind"), "Pod");
        let view = match self.ask.view {
            View::None => None,
            View::Named(name) => Some(name),
            View::Paths => Some("paths"),
        };
        let body = body_of(namespace, name, view);
        self.is(at("raw"), if format == "RAW" { &body } else { "" });
        self.is(at("struct"), if format == "STRUCT" { &body } else { "" });
    }

    /// Sets the namespaces to which an answer is limited.
    fn limited(&mut self, path: &str, scope: &Scope) {
        let mut namespaces = scope.clone().unwrap_or_default();
        namespaces.sort_unstable();
        self.is(path.to_owned(), namespaces.join(","));
    }

    fn resources(&mut self) {
        self.fill_at("server", "*");
        self.is("server.config_error".to_owned(), CONFIG_ERROR);
        let any = Verbs::Any(&["get", "list", "watch"]);
        let mut namespaces = self.rights.namespaces("pods").iter().copied().chain(["*"]);
        if !namespaces.any(|namespace| self.rights.may(any, METADATA, namespace)) {
            return;
        }
        let place = "resources{pods}";
        // The right to list is that of each object.
        for namespace in NAMESPACES.into_iter().chain(["*"]) {
            self.fill_at(place, namespace);
        }
        self.fill_at("resources{pods}.views{small}", "*");
        self.fill_at("resources{pods}.views{small}.view", "*");
        let count =
            objects_in(|namespace| NAMESPACES.into_iter().any(|of| of == namespace && self.rights.lists(of))).len();
        self.is(format!("{place}.objects"), if count == 0 { String::new() } else { count.to_string() });
        self.is(format!("{place}.name"), "pods");
        self.is(format!("{place}.namespaces"), "");
        if !self.world.has_others {
            self.is(format!("{place}.watchers"), self.world.watches.len().to_string());
        }
        for subject in OBJECT_PROBLEMS {
            let of = |namespace: &&&str| subject.split('/').next() == Some(**namespace);
            let namespace = NAMESPACES.iter().find(of).copied().unwrap_or_default();
            self.problem(&format!("{place}.problems"), subject, namespace);
        }
        self.problem(&format!("{place}.problems"), OTHER_PROBLEM, "*");
    }

    fn problem(&mut self, place: &str, subject: &str, namespace: &'static str) {
        let place = format!("{place}{{{subject}}}");
        self.fill_at(&place, namespace);
        self.is(format!("{place}.subject"), subject);
    }

    fn watcher(&mut self, place: &str, id: u64) {
        let place = format!("{place}{{{id}}}");
        self.fill_at(&place, "*");
        self.is(format!("{place}.id"), id.to_string());
        self.is(format!("{place}.identity"), OPERATOR);
    }

    /// Sets the terms of Explain for an object, and what is selected.
    fn terms(&mut self, select: Select, watch_namespace: Option<&'static str>, scope: &Scope) {
        let (namespace, name) = self.ask.key;
        let mut is_selected = true;
        let mut add =
            |truth: &mut Self, field: &str, reads_body: bool, is_match: bool, known: Option<(&str, String)>| {
                let place = format!("terms{{{field}}}");
                is_selected &= is_match;
                let reads = truth.reads_terms;
                truth.reads_terms |= !reads_body;
                truth.fill_at(&place, namespace);
                truth.is(join(&place, "result"), if is_match { "1" } else { "2" });
                if let Some((term, found)) = known {
                    truth.is(join(&place, "term"), term);
                    truth.is(join(&place, "found"), found);
                }
                if !truth.reads_terms {
                    // The text that stands for a term without a result.
                    truth.expected.insert(join(&place, "term"), Some("…".to_owned()));
                }
                truth.reads_terms = reads;
            };
        if let Some(of) = watch_namespace {
            add(self, "namespace", false, of == namespace, Some((of, namespace.to_owned())));
        }
        if let Some(namespaces) = scope {
            add(self, "access", false, namespaces.contains(&namespace), None);
        }
        if let Some(of) = self.ask.name {
            add(self, "name", false, of == name, Some((of, name.to_owned())));
        }
        let (is_match, name, node) = (name == "a", name.to_owned(), format!("node-{name}"));
        match select {
            Select::All => {}
            Select::Label => add(self, "label_selector", false, is_match, Some(("app=a", name))),
            Select::NameField => add(self, "field_selector", false, is_match, Some(("metadata.name=a", name))),
            Select::LabelIndex => add(self, "index", false, is_match, Some(("app in (a)", name))),
            Select::BodyField => add(self, "field_selector", true, is_match, Some(("spec.nodeName=node-a", node))),
            Select::BodyIndex => add(self, "index", true, is_match, Some(("node in (node-a)", node))),
            Select::Expression => add(self, "expression", true, is_match, None),
            Select::KeyShard => add(self, "shard", false, is_match && ["", "x", "y"].contains(&namespace), None),
            Select::BodyShard => add(self, "shard", true, is_match, None),
        }
        let is_known = self.reads_terms || !select.reads_body();
        self.expected.insert("selected".to_owned(), Some(if is_selected && is_known { "1" } else { "" }.to_owned()));
    }
}

fn join(place: &str, field: &str) -> String {
    if place.is_empty() { field.to_owned() } else { format!("{place}.{field}") }
}

/// Returns what a caller must receive; without an answer, the reason of the refusal. The number is that of the objects that an
/// Until counts.
pub(super) fn expected(ask: &Ask, rights: &Rights<'_>, world: &World) -> Result<(Expected, usize), &'static str> {
    let rows = rows_of(ask.method.rpc());
    let mut truth = Truth { ask, rights, world, rows, reads_terms: false, expected: Expected::new() };
    let count = fill(&mut truth)?;
    Ok((truth.expected, count))
}

#[expect(clippy::too_many_lines, reason = "one answer for each RPC")]
fn fill(truth: &mut Truth<'_>) -> Result<usize, &'static str> {
    let (ask, rights) = (truth.ask, truth.rights);
    let wanted = |verbs, forms: &[Form]| Wanted { verbs, resource: ask.resource, forms: forms.to_vec() };
    match ask.method {
        Method::Resources => {
            truth.resources();
            return Ok(0);
        }
        Method::Watchers | Method::Stats => {
            let resource = if ask.method == Method::Stats { "pods" } else { ask.resource };
            let admin = Wanted { verbs: Verbs::All(&["admin"]), resource, forms: vec![METADATA] };
            if !rights.are_in(&admin, "*") {
                return Err(DENIED);
            }
            if resource != "pods" {
                return Err("RESOURCE_NOT_FOUND");
            }
            truth.fill("", truth.rows, "*");
            if ask.method == Method::Stats {
                truth.fill_at("server", "*");
                truth.fill_at("resources{pods}", "*");
                truth.is("resources{pods}.resource".to_owned(), "pods");
            } else {
                let ids: Vec<_> = truth.world.watches.iter().map(|(id, _)| *id).collect();
                for id in ids {
                    truth.watcher("watchers", id);
                }
                let next = truth.world.watches.iter().map(|(id, _)| id + 1).max().unwrap_or(1);
                let others = if truth.world.has_others { next..LAST_OTHER } else { 0..0 };
                for id in others.chain(ask.include_ended.then_some(ENDED)) {
                    truth.fill_at(&format!("watchers{{{id}}}"), "*");
                    truth.fill_at(&format!("watchers{{{id}}}.view"), "*");
                }
            }
            return Ok(0);
        }
        Method::Disconnect => {
            let ends = Wanted { verbs: Verbs::All(&["disconnect"]), resource: "pods", forms: vec![METADATA] };
            return if rights.are_in(&ends, "*") { Ok(0) } else { Err(DENIED) };
        }
        Method::Explain | Method::ExplainWatch => return explain(truth).map(|()| 0),
        _ => {}
    }
    let verbs = match ask.method {
        Method::Get => Verbs::Any(&["get", "list"]),
        Method::Watch | Method::Subscribe | Method::Until => Verbs::All(&["list", "watch"]),
        _ => Verbs::All(&["list"]),
    };
    let place = match ask.method {
        Method::Get => Some(ask.key.0),
        Method::Values => None,
        _ => ask.namespace,
    };
    let (format, mut scope) = formed(truth, verbs, place)?;
    if ask.method != Method::Get && ask.select.reads_body() {
        let view = ask.view.name().filter(|_| format != "METADATA");
        scope = rights.scope(&wanted(verbs, &[(format, view), CONTENT]), place)?;
        if rights.kind == Kind::Required {
            return Err(DENIED);
        }
    }
    let is_in = |namespace: &str| {
        place.is_none_or(|place| place == namespace)
            && scope.as_ref().is_none_or(|granted| granted.contains(&namespace))
    };
    let is_selected = |name: &str| match ask.like {
        Some((_, of)) => of == name,
        None => ask.select.selects(name) && ask.name.is_none_or(|of| of == name),
    };
    if let Some(like) = ask.like {
        let view = ask.view.name().filter(|_| format != "METADATA");
        let mut forms = vec![(format, view)];
        forms.extend(ask.select.reads_body().then_some(CONTENT));
        rights.scope(&wanted(Verbs::Any(&["get", "list"]), &forms), Some(like.0))?;
        if !OBJECTS.contains(&like) || scope.as_ref().is_some_and(|granted| !granted.contains(&like.0)) {
            return Err("OBJECT_NOT_FOUND");
        }
    }
    let selected: Vec<_> = objects_in(is_in).into_iter().filter(|(_, name)| is_selected(name)).collect();
    truth.fill("", truth.rows, "*");
    match ask.method {
        Method::List | Method::ByIndex => {
            truth.limited("namespaces", &scope);
            for key in &selected {
                truth.object("objects", *key, format);
            }
        }
        Method::Changes => {
            truth.fill_at("changes", "*");
            truth.limited("namespaces", &scope);
            let state = if ask.is_of_deletions { "changes.old" } else { "changes.new" };
            for (namespace, name) in selected.iter().copied() {
                truth.object(state, (namespace, name), format);
                if ask.is_of_deletions {
                    truth.is(format!("{state}{{{namespace}/{name}}}.resource_version"), BEGIN);
                }
            }
        }
        Method::Watch | Method::Subscribe => {
            let place = if ask.method == Method::Watch { "" } else { "deliveries.responses" };
            if !place.is_empty() {
                truth.fill_at("deliveries", "*");
                truth.fill_at(place, "*");
            }
            truth.fill_at(&join(place, "bookmark"), "*");
            truth.limited(&join(place, "bookmark.namespaces"), &scope);
            let field = if ask.has_batches { "batch" } else { "object" };
            for key in &selected {
                truth.object(&join(place, field), *key, format);
            }
        }
        Method::Until => {
            truth.fill_at("event", "*");
            truth.fill_at("event.bookmark", "*");
            truth.limited("namespaces", &scope);
        }
        Method::Values => {
            truth.limited("namespaces", &scope);
            let prefix = if ask.select == Select::BodyIndex { "node-" } else { "" };
            let names: Vec<_> = objects_in(is_in).into_iter().map(|(_, name)| name).collect();
            for name in &names {
                let place = format!("values{{{prefix}{name}}}");
                truth.fill_at(&place, "*");
                truth.is(join(&place, "value"), format!("{prefix}{name}"));
                truth.is(join(&place, "objects"), names.iter().filter(|of| *of == name).count().to_string());
            }
        }
        Method::Get => {
            let key = OBJECTS.into_iter().find(|key| *key == ask.key).ok_or("OBJECT_NOT_FOUND")?;
            truth.object("object", key, format);
        }
        _ => {}
    }
    Ok(selected.len())
}

/// Returns the format of the answer, and the namespaces in which the caller may read it so.
fn formed(truth: &Truth<'_>, verbs: Verbs, place: Option<&'static str>) -> Result<(&'static str, Scope), &'static str> {
    let Truth { ask, rights, .. } = truth;
    let scope = |form: Form| rights.scope(&Wanted { verbs, resource: ask.resource, forms: vec![form] }, place);
    let is_free = ask.format == PayloadFormat::Unspecified && ask.view == View::None;
    let mut format = match (ask.method, ask.format) {
        (Method::Values, _) | (_, PayloadFormat::Metadata) => "METADATA",
        (_, PayloadFormat::Raw) => "RAW",
        (_, PayloadFormat::Struct | PayloadFormat::Unspecified) => "STRUCT",
    };
    let view = ask.view.name().filter(|_| format != "METADATA");
    let mut granted = scope((format, view));
    if is_free && granted.is_err() && format != "METADATA" {
        format = "METADATA";
        granted = scope(METADATA);
    }
    let granted = granted?;
    if ask.resource != "pods" {
        return Err("RESOURCE_NOT_FOUND");
    }
    match (format, ask.view) {
        ("METADATA", View::None) => Ok((format, granted)),
        ("METADATA", _) => Err("VIEW_INVALID"),
        (_, View::Named("small")) => Ok((format, granted)),
        _ if rights.kind == Kind::Required => Err("VIEW_NOT_ALLOWED"),
        (_, View::Named("none")) => Err("VIEW_INVALID"),
        _ => Ok((format, granted)),
    }
}

fn explain(truth: &mut Truth<'_>) -> Result<(), &'static str> {
    let (ask, rights) = (truth.ask, truth.rights);
    let read = Verbs::Any(&["get", "list"]);
    let is_watch = ask.method == Method::ExplainWatch;
    let resource = if is_watch { "pods" } else { ask.resource };
    let of_key = |form: &[Form]| {
        let wanted = Wanted { verbs: read, resource, forms: form.to_vec() };
        rights.scope(&wanted, Some(ask.key.0)).is_ok()
    };
    let is_seen = of_key(&[METADATA]);
    truth.reads_terms = of_key(&[METADATA, CONTENT]) && rights.kind != Kind::Required;
    let (select, namespace, scope) = if is_watch {
        if !rights.is_operator() {
            return Err(DENIED);
        }
        let watches = &truth.world.watches;
        let select = watches.iter().find(|(id, _)| *id == ask.watch).map_or(Select::All, |(_, select)| *select);
        (select, None, None)
    } else {
        if !is_seen {
            return Err(DENIED);
        }
        if resource != "pods" {
            return Err("RESOURCE_NOT_FOUND");
        }
        if ask.select.reads_body() && !truth.reads_terms {
            return Err(DENIED);
        }
        (ask.select, ask.namespace, watched(truth)?)
    };
    let rows: Rows = &[("resource_version", Row::Field(Need::Call))];
    truth.fill("", rows, "*");
    if is_watch {
        truth.watcher("watcher", ask.watch);
    }
    if !is_seen {
        return Ok(());
    }
    let subject = format!("{}/{}", ask.key.0, ask.key.1);
    if OBJECT_PROBLEMS.contains(&&*subject) {
        truth.problem("problem", &subject, ask.key.0);
    }
    if OBJECTS.contains(&ask.key) {
        truth.object("object", ask.key, "METADATA");
        truth.terms(select, namespace, &scope);
    }
    Ok(())
}

/// Returns the namespaces to which the watch of an Explain would be limited: none of them if it would be denied.
fn watched(truth: &Truth<'_>) -> Result<Scope, &'static str> {
    let Truth { ask, rights, .. } = truth;
    let verbs = Verbs::All(&["list", "watch"]);
    let scope =
        |forms: &[Form]| rights.scope(&Wanted { verbs, resource: ask.resource, forms: forms.to_vec() }, ask.namespace);
    let is_free = ask.format == PayloadFormat::Unspecified && ask.view == View::None;
    let (format, granted) = match formed(truth, verbs, ask.namespace) {
        Err("VIEW_NOT_ALLOWED") if is_free => ("METADATA", scope(&[METADATA])),
        Err(DENIED) => return Ok(Some(Vec::new())),
        formed => formed.map(|(format, granted)| (format, Ok(granted)))?,
    };
    let view = ask.view.name().filter(|_| format != "METADATA");
    let granted = if ask.select.reads_body() { scope(&[(format, view), CONTENT]) } else { granted };
    Ok(granted.unwrap_or(Some(Vec::new())))
}
