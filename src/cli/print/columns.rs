//! Columns of a table of objects, and their cells.

use std::time::SystemTime;

use serde_json::Value;

use super::{
    diff::excerpt,
    json::Document,
    jsonpath::{JsonPath, shown},
    table::Cell,
};
use crate::{
    printers::{
        age::age,
        kinds::{self, KindColumn},
        values::NONE,
    },
    proto::pb,
};

/// Options of the user for the columns of objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ColumnOptions {
    /// True for more columns, as under `-o wide`.
    pub(crate) wide: bool,
    /// True for a column of namespaces: more than one is queried.
    pub(crate) namespace: bool,
    /// Labels with a column of their own.
    pub(crate) labels: Vec<String>,
    /// True for a column of all labels.
    pub(crate) show_labels: bool,
    /// Columns in place of all others.
    pub(crate) custom: Vec<CustomColumn>,
}

/// Column of `-o custom-columns`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CustomColumn {
    pub(crate) header: String,
    path: JsonPath,
}

/// Columns of one table.
pub(crate) struct Layout {
    columns: Vec<Column>,
    /// API group and kind of the objects; none for a table of several kinds.
    kind: Option<(String, String)>,
    namespace: bool,
}

enum Column {
    Namespace,
    Name,
    Kind,
    Of(&'static KindColumn),
    Age,
    Version,
    Uid,
    Label(String),
    Labels,
    /// Body of an object without kind, such as a value of etcd.
    Value,
    Custom(CustomColumn),
}

/// Largest number of characters of a body in a table.
const MAX_VALUE_CHARS: usize = 60;

// === impl CustomColumn ===

impl CustomColumn {
    /// Parses `HEADER:PATH,HEADER:PATH`, where the paths are those of [`JsonPath`].
    ///
    /// # Errors
    ///
    /// The problem, in one line.
    pub(crate) fn parse_all(text: &str) -> Result<Vec<Self>, String> {
        // A comma in brackets belongs to a path.
        let mut depth = 0_usize;
        let is_end = |c: char| {
            match c {
                '[' => depth += 1,
                ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            c == ',' && depth == 0
        };
        text.split(is_end).map(Self::parse).collect()
    }

    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some((header, path)) if !header.is_empty() => {
                Ok(Self { header: header.to_owned(), path: JsonPath::parse(path)? })
            }
            _ => Err(format!("expected HEADER:PATH such as NODE:.spec.nodeName, found {text:?}")),
        }
    }

    /// Returns the values at the path, separated by commas.
    pub(crate) fn show(&self, document: &Value) -> String {
        let values: Vec<String> = self.path.values(document).into_iter().map(shown).collect();
        let text = values.join(",");
        if text.is_empty() { NONE.to_owned() } else { text }
    }
}

// === impl Layout ===

impl Layout {
    /// Returns the columns that suit these objects. A field that none of them has gets no column.
    pub(crate) fn of(objects: &[&pb::Object], options: &ColumnOptions) -> Self {
        if !options.custom.is_empty() {
            let columns = options.custom.iter().cloned().map(Column::Custom).collect();
            return Self { columns, kind: None, namespace: true };
        }
        let kind = common_kind(objects);
        let is_mixed = kind.is_none() && !objects.is_empty();
        let of_kind = match objects.first() {
            Some(first) if !is_mixed => kinds::columns(&first.api_version, &first.kind),
            _ => &[],
        };
        let namespace = options.namespace && objects.iter().any(|object| !object.namespace.is_empty());
        let mut columns = Vec::new();
        columns.extend(namespace.then_some(Column::Namespace));
        columns.push(Column::Name);
        columns.extend(is_mixed.then_some(Column::Kind));
        columns.extend(of_kind.iter().filter(|column| !column.wide).map(Column::Of));
        let is_value = !objects.is_empty() && objects.iter().all(|object| object.kind.is_empty());
        columns.extend(is_value.then_some(Column::Value));
        columns.extend(objects.iter().any(|object| created(&body(object)).is_some()).then_some(Column::Age));
        if options.wide {
            columns.push(Column::Version);
            columns.extend(objects.iter().any(|object| !object.uid.is_empty()).then_some(Column::Uid));
            // The widest ones last: a terminal wraps them.
            columns.extend(of_kind.iter().filter(|column| column.wide).map(Column::Of));
        }
        columns.extend(options.labels.iter().cloned().map(Column::Label));
        let has_labels = || objects.iter().any(|object| !object.labels.is_empty());
        let labels = options.show_labels || (options.wide && of_kind.is_empty() && has_labels());
        columns.extend(labels.then_some(Column::Labels));
        Self { columns, kind, namespace }
    }

    /// Returns true if a later object can be a row of this table.
    pub(crate) fn suits(&self, object: &pb::Object, options: &ColumnOptions) -> bool {
        let is_kind = self.kind.as_ref().is_none_or(|kind| *kind == kind_of(object));
        is_kind && (self.namespace || !options.namespace || object.namespace.is_empty())
    }

    pub(crate) fn header(&self) -> Vec<Cell> {
        self.columns.iter().map(|column| Cell::new(&column.header())).collect()
    }

    pub(crate) fn row(&self, object: &pb::Object, now: SystemTime) -> Vec<Cell> {
        let body = body(object);
        self.columns.iter().map(|column| Cell::new(&column.show(object, &body, now))).collect()
    }
}

// === impl Column ===

impl Column {
    fn header(&self) -> String {
        match self {
            Self::Namespace => "NAMESPACE".to_owned(),
            Self::Name => "NAME".to_owned(),
            Self::Kind => "KIND".to_owned(),
            Self::Of(column) => column.header.to_owned(),
            Self::Age => "AGE".to_owned(),
            Self::Version => "VERSION".to_owned(),
            Self::Uid => "UID".to_owned(),
            Self::Label(key) => key.rsplit('/').next().unwrap_or_default().to_uppercase(),
            Self::Labels => "LABELS".to_owned(),
            Self::Value => "VALUE".to_owned(),
            Self::Custom(column) => column.header.clone(),
        }
    }

    fn show(&self, object: &pb::Object, body: &Value, now: SystemTime) -> String {
        let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
        match self {
            // Cluster-scoped objects have none, and kubectl leaves the cell empty.
            Self::Namespace => object.namespace.clone(),
            Self::Name => object.name.clone(),
            Self::Kind => or(&object.kind, NONE),
            Self::Of(column) => column.show(body, now),
            Self::Age => created(body).map_or_else(|| "<unknown>".to_owned(), |created| age(created, now)),
            Self::Version => or(&object.resource_version, NONE),
            Self::Uid => or(&object.uid, NONE),
            Self::Label(key) => or(object.labels.get(key).map_or("", String::as_str), NONE),
            Self::Labels => {
                let labels: Vec<String> = object.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
                or(&labels.join(","), NONE)
            }
            Self::Value => or(&excerpt(&value(object), MAX_VALUE_CHARS), NONE),
            Self::Custom(column) => column.show(&Document::of(object).value()),
        }
    }
}

/// Returns the body for the cells; null if it is not JSON.
fn body(object: &pb::Object) -> Value {
    match &object.body {
        Some(pb::object::Body::Raw(raw)) => serde_json::from_slice(raw).unwrap_or_default(),
        _ => Value::Null,
    }
}

/// Returns the body in one line: JSON without blanks, a text, or the number of bytes.
fn value(object: &pb::Object) -> String {
    let Some(pb::object::Body::Raw(raw)) = &object.body else { return String::new() };
    match (Document::parse(raw), std::str::from_utf8(raw)) {
        (Some(document), _) => {
            let mut text = String::new();
            document.compact(&mut text);
            text
        }
        (None, Ok(text)) => text.trim_end().to_owned(),
        (None, Err(_)) => format!("({} bytes)", raw.len()),
    }
}

fn created(body: &Value) -> Option<&str> {
    body.pointer("/metadata/creationTimestamp").and_then(Value::as_str)
}

fn kind_of(object: &pb::Object) -> (String, String) {
    let group = object.api_version.split_once('/').map_or("", |(group, _)| group);
    (group.to_owned(), object.kind.clone())
}

fn common_kind(objects: &[&pb::Object]) -> Option<(String, String)> {
    let first = kind_of(objects.first()?);
    objects.iter().all(|object| kind_of(object) == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::print::{
        table::Table,
        tests::{config_map, object},
    };

    fn table(objects: &[pb::Object], options: &ColumnOptions) -> String {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let layout = Layout::of(&Vec::from_iter(objects), options);
        let mut table = Table::default();
        table.push(layout.header());
        for object in objects {
            table.push(layout.row(object, now));
        }
        let mut out = String::new();
        table.write(&table.widths(), false, &mut out);
        out
    }

    fn everywhere() -> ColumnOptions {
        ColumnOptions { namespace: true, ..ColumnOptions::default() }
    }

    fn pods() -> Vec<pb::Object> {
        let pod = |json: &str| object(json);
        vec![
            pod(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"shop","name":"web","uid":"u-1",
                "labels":{"app":"web","example.com/tier":"front"},"creationTimestamp":"2001-09-09T01:41:35Z"},
                "spec":{"nodeName":"node-a","containers":[{"image":"web:1"}]},"status":{"phase":"Running"}}"#),
            pod(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"shop","name":"db-0"},
                "status":{"phase":"Pending"}}"#),
        ]
    }

    #[test]
    fn a_kind_has_columns_of_its_own() {
        let expected = "\
NAMESPACE   NAME   READY   STATUS    RESTARTS   NODE     AGE
shop        web    0/1     Running   0          node-a   5m5s
shop        db-0   0/0     Pending   0          <none>   <unknown>
";
        assert_eq!(table(&pods(), &everywhere()), expected);
    }

    #[test]
    fn wide_shows_more_and_labels_get_columns() {
        let options = ColumnOptions {
            wide: true,
            labels: vec!["app".to_owned(), "example.com/tier".to_owned()],
            show_labels: true,
            ..ColumnOptions::default()
        };
        let expected = "\
NAME   READY   STATUS    RESTARTS   NODE     AGE         VERSION   UID      IP       IMAGES   APP      TIER     LABELS
web    0/1     Running   0          node-a   5m5s        7         u-1      <none>   web:1    web      front    app=web,example.com/tier=front
db-0   0/0     Pending   0          <none>   <unknown>   7         <none>   <none>   <none>   <none>   <none>   <none>
";
        assert_eq!(table(&pods(), &options), expected);
    }

    #[test]
    fn several_kinds_share_the_columns_that_all_have() {
        let objects = [pods().remove(1), config_map("", "settings"), object(r#"{"a":1}"#)];
        let expected = "\
NAMESPACE   NAME       KIND
shop        db-0       Pod
            settings   ConfigMap
            unnamed    <none>
";
        assert_eq!(table(&objects, &everywhere()), expected);
    }

    #[test]
    fn there_is_no_namespace_where_nothing_has_one() {
        assert_eq!(table(&[config_map("", "settings")], &everywhere()), "NAME       DATA\nsettings   2\n");
    }

    #[test]
    fn a_kind_that_is_not_known_shows_its_labels_when_wide() {
        let widget = object(r#"{"apiVersion":"x/v1","kind":"Widget","metadata":{"name":"w","labels":{"a":"b"}}}"#);
        let wide = ColumnOptions { wide: true, ..everywhere() };
        assert_eq!(table(std::slice::from_ref(&widget), &wide), "NAME   VERSION   LABELS\nw      7         a=b\n");
        assert_eq!(table(&[widget], &everywhere()), "NAME\nw\n");
    }

    #[test]
    fn an_object_without_kind_shows_its_value() {
        let mut text = object("{}");
        text.body = Some(pb::object::Body::Raw(bytes::Bytes::from_static(b"hello\n")));
        let long = object(&format!(r#"{{ "a": "{}" }}"#, "x".repeat(100)));
        let expected = format!("NAME      VALUE\nunnamed   hello\nunnamed   {{\"a\":\"{}…\n", "x".repeat(54));
        assert_eq!(table(&[text, long], &everywhere()), expected);
    }

    #[test]
    fn columns_of_the_user_replace_all_others() {
        let columns =
            CustomColumn::parse_all("NAME:.metadata.name,IMAGES:.spec.containers[*]['image','x'],NO:.no").unwrap();
        let options = ColumnOptions { custom: columns, ..everywhere() };
        let expected = "NAME   IMAGES   NO\nweb    web:1    <none>\ndb-0   <none>   <none>\n";
        assert_eq!(table(&pods(), &options), expected);
        for (text, problem) in
            [("NAME", "HEADER:PATH"), (":.a", "HEADER:PATH"), ("A:", "missing"), ("A:.a,B", "HEADER:PATH")]
        {
            let error = CustomColumn::parse_all(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn another_kind_of_object_may_need_another_table() {
        let options = everywhere();
        let layout = Layout::of(&[&config_map("", "a")], &options);
        assert!(layout.suits(&config_map("", "b"), &options));
        assert!(!layout.suits(&config_map("shop", "b"), &options), "there is no column for its namespace");
        assert!(!layout.suits(&pods()[0], &options), "it is of another kind");
        let mixed = Layout::of(&[&config_map("shop", "a"), &pods()[0]], &options);
        assert!(mixed.suits(&object("{}"), &options));
    }
}
