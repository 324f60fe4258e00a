//! Table of every RPC, every field of its answer, and the right that the field needs. Whoever adds a field adds its row.

use super::leaves::Contract;

/// Right that a field of an answer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// That of the call itself.
    Call,
    /// That of the message that has the field.
    Same,
    /// The verbs of the call, for the form of the request and what it selects by, in the namespace of the object.
    Form,
    /// `get` or `list` of the object.
    Object,
    /// `get` or `list` of whole bodies, where the term depends on them.
    Term,
    /// `get`, `list` or `watch` somewhere.
    Seen,
    /// `list` in the namespace.
    Listed,
    /// `list` in all namespaces.
    ListedAll,
    /// `admin` in all namespaces.
    Admin,
}

/// Row of the table.
#[derive(Debug, Clone, Copy)]
pub(super) enum Row {
    Field(Need),
    Message(Need, Rows),
}

/// Fields of a message.
pub(super) type Rows = &'static [(&'static str, Row)];

use Need::{Admin, Call, Form, Listed, ListedAll, Object, Same, Seen, Term};
use Row::{Field, Message};

/// Answer of each RPC.
pub(super) const TABLE: [(&str, Rows); 13] = [
    ("Watch", EVENT),
    ("Subscribe", &[("deliveries", Message(Call, DELIVERY))]),
    ("List", LIST),
    ("ByIndex", LIST),
    (
        "Changes",
        &[
            ("resource_version", Field(Call)),
            ("changes", Message(Call, CHANGE)),
            ("history", Field(Call)),
            ("namespaces", Field(Call)),
        ],
    ),
    (
        "Get",
        &[
            ("resource_version", Field(Call)),
            ("object", Message(Form, OBJECT)),
            ("source", Field(Call)),
            ("source_seen_at", Field(Call)),
            ("history", Field(Call)),
        ],
    ),
    ("Until", &[("event", Message(Call, EVENT)), ("namespaces", Field(Call))]),
    (
        "Explain",
        &[
            ("resource_version", Field(Call)),
            ("object", Message(Object, OBJECT)),
            ("selected", Field(Term)),
            ("terms", Message(Object, TERM)),
            ("problem", Message(Object, PROBLEM)),
            ("watcher", Message(Admin, WATCHER)),
        ],
    ),
    (
        "ListIndexValues",
        &[
            ("resource_version", Field(Call)),
            ("values", Message(Form, &[("value", Field(Same)), ("objects", Field(Same))])),
            ("next_page_token", Field(Call)),
            ("namespaces", Field(Call)),
        ],
    ),
    ("ListResources", &[("resources", Message(Seen, RESOURCE)), ("server", Message(Call, SERVER))]),
    ("ListWatchers", &[("watchers", Message(Admin, WATCHER)), ("next_page_token", Field(Admin))]),
    ("DisconnectWatchers", &[("ids", Field(Call))]),
    ("GetStats", &[("server", Message(Admin, SERVER_STATS)), ("resources", Message(Admin, RESOURCE_STATS))]),
];

const DELIVERY: Rows = &[("watch_ids", Field(Call)), ("responses", Message(Call, EVENT)), ("ended", Field(Call))];

const CHANGE: Rows = &[("type", Field(Call)), ("old", Message(Form, OBJECT)), ("new", Message(Form, OBJECT))];

const LIST: Rows = &[
    ("resource_version", Field(Call)),
    ("objects", Message(Form, OBJECT)),
    ("next_page_token", Field(Call)),
    ("source", Field(Call)),
    ("source_seen_at", Field(Call)),
    ("history", Field(Call)),
    ("namespaces", Field(Call)),
    ("expression_errors", Message(Form, EXPRESSION_ERRORS)),
];

const EXPRESSION_ERRORS: Rows = &[
    ("failed", Field(Same)),
    ("evaluated", Field(Same)),
    ("first", Message(Same, &[("namespace", Field(Same)), ("name", Field(Same))])),
    ("first_reason", Field(Same)),
];

const EVENT: Rows = &[
    ("type", Field(Call)),
    ("resource_version", Field(Call)),
    ("object", Message(Form, OBJECT)),
    ("batch", Message(Form, OBJECT)),
    ("cause", Field(Call)),
    (
        "bookmark",
        Message(
            Call,
            &[
                ("initial_events_end", Field(Call)),
                ("draining", Field(Call)),
                ("source", Field(Call)),
                ("source_seen_at", Field(Call)),
                ("history", Field(Call)),
                ("namespaces", Field(Call)),
                ("suppressed", Field(Call)),
                ("expression_errors", Message(Form, EXPRESSION_ERRORS)),
            ],
        ),
    ),
    ("dropped", Message(Call, &[("count", Field(Call)), ("after_resource_version", Field(Call))])),
    ("error", Field(Call)),
    ("coalesced", Field(Call)),
    ("relisted", Field(Call)),
    ("open", Field(Call)),
];

const OBJECT: Rows = &[
    ("namespace", Field(Same)),
    ("name", Field(Same)),
    ("uid", Field(Same)),
    ("resource_version", Field(Same)),
    ("labels", Field(Same)),
    ("api_version", Field(Same)),
    ("kind", Field(Same)),
    ("media_type", Field(Same)),
    ("struct", Field(Same)),
    ("raw", Field(Same)),
];

const TERM: Rows = &[("field", Field(Same)), ("term", Field(Term)), ("result", Field(Term)), ("found", Field(Term))];

const PROBLEM: Rows =
    &[("reason", Field(Same)), ("message", Field(Same)), ("subject", Field(Same)), ("since", Field(Same))];

const VIEW: Rows =
    &[("fields", Field(Same)), ("drop", Field(Same)), ("only_if_changed", Field(Same)), ("name", Field(Same))];

const RESOURCE: Rows = &[
    ("name", Field(Same)),
    ("source", Field(Same)),
    ("state", Field(Same)),
    ("resource_version", Field(Same)),
    ("oldest_resource_version", Field(Same)),
    ("objects", Field(Listed)),
    ("watchers", Field(ListedAll)),
    ("indexes", Field(Same)),
    ("source_seen_at", Field(Same)),
    ("last_error", Field(ListedAll)),
    ("path", Field(Same)),
    ("problems", Message(Listed, PROBLEM)),
    ("version_format", Field(Same)),
    ("namespaces", Field(Listed)),
    ("history", Field(Same)),
    ("views", Message(Same, &[("name", Field(Same)), ("view", Message(Same, VIEW))])),
    ("view_required", Field(Same)),
    ("aliases", Field(Same)),
    ("oldest_at", Field(Same)),
];

const SERVER: Rows =
    &[("version", Field(Same)), ("commit", Field(Same)), ("capabilities", Field(Same)), ("config_error", Field(Admin))];

const WATCHER: Rows = &[
    ("id", Field(Same)),
    ("resource", Field(Same)),
    ("peer", Field(Same)),
    ("identity", Field(Same)),
    ("selection", Field(Same)),
    ("policy", Field(Same)),
    ("queue_length", Field(Same)),
    ("queued", Field(Same)),
    ("sent", Field(Same)),
    ("dropped", Field(Same)),
    ("resource_version", Field(Same)),
    ("since", Field(Same)),
    ("last_progress", Field(Same)),
    ("parked", Field(Same)),
    ("state", Field(Same)),
    ("bytes_held", Field(Same)),
    ("lag", Field(Same)),
    ("bytes_sent", Field(Same)),
    ("suppressed", Field(Same)),
    ("format", Field(Same)),
    ("view", Message(Same, VIEW)),
    ("user_agent", Field(Same)),
    ("stream_id", Field(Same)),
    ("watch_id", Field(Same)),
    ("ended_at", Field(Same)),
    ("end_status", Field(Same)),
];

const SERVER_STATS: Rows = &[
    ("started_at", Field(Same)),
    ("draining", Field(Same)),
    ("connections", Field(Same)),
    ("watchers", Field(Same)),
    ("held_bytes", Field(Same)),
    ("held_bytes_limit", Field(Same)),
    ("resident_bytes", Field(Same)),
];

const RESOURCE_STATS: Rows = &[
    ("resource", Field(Same)),
    ("changes", Field(Same)),
    ("relists", Field(Same)),
    ("events_sent", Field(Same)),
    ("bytes_sent", Field(Same)),
    ("dropped", Field(Same)),
    ("suppressed", Field(Same)),
    ("parked", Field(Same)),
    ("max_lag", Field(Same)),
    ("blocked", Field(Same)),
    ("cache_bytes", Field(Same)),
    ("history_bytes", Field(Same)),
    ("expression_errors", Field(Same)),
];

/// Returns the fields of the answer of an RPC.
pub(super) fn rows_of(method: &str) -> Rows {
    TABLE.iter().find(|(name, _)| *name == method).unwrap_or_else(|| panic!("{method} has no row")).1
}

/// Every field of every answer of the contract has a row, and every row a field.
#[test]
fn each_field_of_each_answer_has_a_row() {
    let contract = Contract::new();
    let mut missing = Vec::new();
    for method in &contract.methods {
        let rows = TABLE.iter().find(|(name, _)| *name == method.name());
        let Some((name, rows)) = rows else {
            missing.push(method.name().to_owned());
            continue;
        };
        compare(&contract, method.output_type(), rows, name, &mut missing);
    }
    assert!(missing.is_empty(), "add to the table of rights, or remove from it: {missing:#?}");
    assert_eq!(contract.methods.len(), TABLE.len());
}

fn compare(contract: &Contract, message: &str, rows: Rows, place: &str, missing: &mut Vec<String>) {
    let message = contract.message(message);
    for field in &message.field {
        let path = format!("{place}.{}", field.name());
        let inner = contract.inner(field).filter(|_| !field.type_name().ends_with("Entry"));
        match (rows.iter().find(|(name, _)| *name == field.name()), inner) {
            (Some((_, Row::Message(_, rows))), Some(_)) => compare(contract, field.type_name(), rows, &path, missing),
            (Some((_, Row::Field(_))), None) => {}
            _ => missing.push(path),
        }
    }
    let is_known = |name: &str| message.field.iter().any(|field| field.name() == name);
    missing.extend(rows.iter().filter(|(name, _)| !is_known(name)).map(|(name, _)| format!("{place}.{name}")));
}
