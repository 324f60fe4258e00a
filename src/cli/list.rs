//! `informerd list` and `informerd by-index`: the objects of one snapshot.

use std::cmp::Ordering;

use clap::Args;
use serde_json::Value;

use super::{
    alias::of_resource,
    client_flags::{ObjectFlags, OrderFlags, TimeoutFlags},
    failure::Failure,
    print::{ObjectPrinter, json::Document, jsonpath::JsonPath, stdout},
    waiting,
    watch::{self, FollowFlags},
};
use crate::{
    client::{Client, ListResult, Query},
    proto::pb::{self, explain_request},
};

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd list pods
  informerd list pods -n orders -l tier=worker -L app
  informerd list pods --field-selector status.phase!=Running
  informerd list pods --expression 'object.spec.containers.exists(c, c.name == \"web\")'
  informerd list pods --index node=node-a --index node=node-b
  informerd list deployments -o wide
  informerd list configmaps -o yaml
  informerd list pods -o jsonpath='{range .items[*]}{.metadata.name}{\"\\n\"}{end}'
  informerd list pods -o custom-columns=NAME:.metadata.name,IMAGE:.spec.containers[*].image --sort-by .spec.nodeName
  informerd list pods -n orders -w";

pub(super) const BY_INDEX_EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd by-index pods node node-a
  informerd by-index pods image docker.io/envoyproxy/envoy:v1.36.2 -o wide
  informerd by-index services port 443 -o name
  informerd by-index pods node node-a --expression 'object.spec.containers.size() == 1'
  informerd by-index pods node --like platform/auth-tpjk9wdzl9-zsg7x

`informerd resources` shows the indexes, `informerd values` their values.";

/// Largest number of objects that an expression is tried on, to find out why it selects none.
const MAX_TRIED: usize = 20;

/// Flags of `informerd list`.
#[derive(Debug, Clone, Args)]
pub(super) struct ListFlags {
    /// A name from `informerd resources`
    #[arg(value_name = "RESOURCE")]
    resource: String,
    #[command(flatten)]
    follow: FollowFlags,
    #[command(flatten)]
    order: OrderFlags,
    #[command(flatten)]
    objects: ObjectFlags,
    #[command(flatten)]
    timeout: TimeoutFlags,
}

of_resource!(ListFlags, objects.server);

/// Flags of `informerd by-index`.
#[derive(Debug, Clone, Args)]
pub(super) struct ByIndexFlags {
    /// A name from `informerd resources`
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// An index of the resource
    #[arg(value_name = "INDEX")]
    index: String,
    /// A value of the index; numbers and booleans as in JSON
    #[arg(value_name = "VALUE", allow_hyphen_values = true, required_unless_present = "like", conflicts_with = "like")]
    value: Option<String>,
    /// Instead of VALUE: the objects that share a value of the index with this one, [NAMESPACE/]NAME as `-o name` prints it
    #[arg(long, value_name = "NAME")]
    like: Option<String>,
    #[command(flatten)]
    order: OrderFlags,
    #[command(flatten)]
    objects: ObjectFlags,
    #[command(flatten)]
    timeout: TimeoutFlags,
}

of_resource!(ByIndexFlags, objects.server);

pub(super) async fn run(flags: &ListFlags) -> Result<(), Failure> {
    let ListFlags { resource, follow, order, objects, timeout } = flags;
    if follow.watch {
        return watch::run(&follow.flags(resource, None, timeout, objects)).await;
    }
    waiting::limited(timeout, &objects.server, resource, Box::pin(list(resource, order, objects))).await
}

/// Lists a resource, and prints its objects.
pub(super) async fn list(resource: &str, order: &OrderFlags, objects: &ObjectFlags) -> Result<(), Failure> {
    objects.selection.check()?;
    let (client, query) = (objects.server.connect().await?, objects.selection.query(resource));
    let listed = client.list(&query).await?;
    let is_suspect = listed.objects.is_empty() && !query.expression.is_empty();
    print_listed(resource, order, objects, listed)?;
    if is_suspect && let Some(note) = failed_evaluations(&client, query).await {
        objects.server.note(&note);
    }
    Ok(())
}

/// Returns a note if the expression of a query fails for objects that the rest of the query selects: it is not one that is false.
async fn failed_evaluations(client: &Client, query: Query) -> Option<String> {
    let watch = pb::WatchRequest { resource: query.resource.clone(), ..query.watch_request() };
    let rest = Query { expression: String::new(), format: pb::PayloadFormat::Metadata, view: None, ..query };
    let objects = client.list(&rest).await.ok()?.objects;
    let tried = objects.len().min(MAX_TRIED);
    let mut failures = Vec::new();
    for pb::Object { namespace, name, .. } in objects.into_iter().take(MAX_TRIED) {
        let selection = Some(explain_request::Selection::Watch(watch.clone()));
        let key = Some(pb::ObjectKey { namespace, name });
        let explained = client.explain(pb::ExplainRequest { selection, key }).await.ok()?;
        failures.extend(explained.terms.into_iter().find(|term| term.result() == pb::TermResult::Failed));
    }
    let first = failures.first()?;
    Some(format!("# the expression failed for {} of {tried} objects: {}", failures.len(), first.found))
}

pub(super) async fn by_index(flags: &ByIndexFlags) -> Result<(), Failure> {
    waiting::limited(&flags.timeout, &flags.objects.server, &flags.resource, Box::pin(list_by_index(flags))).await
}

async fn list_by_index(flags: &ByIndexFlags) -> Result<(), Failure> {
    let ByIndexFlags { resource, index, value, like, order, objects, .. } = flags;
    if objects.selection.has_index() {
        return Err(Failure::usage(
            "--index: by-index has an index already; use `informerd list` with several --index",
        ));
    }
    let (client, query) = (objects.server.connect().await?, objects.selection.query(resource));
    let listed = match like {
        Some(name) => {
            let namespace = objects.selection.namespace().unwrap_or_default();
            let (namespace, name) = name.split_once('/').unwrap_or((namespace, name));
            client.by_index_like(&query, index, namespace, name).await?
        }
        None => client.by_index(&query, index, value.as_deref().unwrap_or_default()).await?,
    };
    print_listed(resource, order, objects, listed)
}

/// Writes the objects of one snapshot, and prints notes about an empty or stale result.
fn print_listed(resource: &str, order: &OrderFlags, flags: &ObjectFlags, listed: ListResult) -> Result<(), Failure> {
    let (server, options) = (&flags.server, flags.options());
    server.note_stale(resource, listed.source, listed.source_seen_at);
    server.note_limited(resource, &listed.namespaces);
    let mut printer = ObjectPrinter::new(stdout(), &options);
    let (mut objects, limit) = (listed.objects, order.limit.unwrap_or(usize::MAX));
    if let Some(path) = &order.sort_by {
        sort(&mut objects, path);
    }
    let count = objects.len();
    for object in objects.into_iter().take(limit) {
        printer.push(object)?;
    }
    if printer.finish()? == 0 && !options.output.is_document() {
        server.note(&format_args!("No objects found{}.", flags.selection.suffix()));
    }
    if count > limit {
        server.note(&format_args!("# {limit} of {count} objects (--limit)"));
    }
    Ok(())
}

/// Sorts objects by the first value at a path: those without it, then numbers, then texts and whatever else.
fn sort(objects: &mut [pb::Object], path: &JsonPath) {
    objects.sort_by_cached_key(|object| SortKey::of(path.values(&Document::of(object).value()).first().copied()));
}

/// Value to sort by.
#[derive(Debug, PartialEq)]
enum SortKey {
    Missing,
    Number(f64),
    Text(String),
}

// === impl SortKey ===

impl SortKey {
    fn of(value: Option<&Value>) -> Self {
        match value {
            None | Some(Value::Null) => Self::Missing,
            Some(Value::Number(number)) => Self::Number(number.as_f64().unwrap_or_default()),
            Some(Value::String(text)) => Self::Text(text.clone()),
            Some(other) => Self::Text(other.to_string()),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Missing => 0,
            Self::Number(_) => 1,
            Self::Text(_) => 2,
        }
    }
}

impl Eq for SortKey {}

impl PartialOrd for SortKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SortKey {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(one), Self::Number(other)) => one.total_cmp(other),
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_sorted_by_a_value() {
        let object = |name: &str, body: &'static str| pb::Object {
            name: name.to_owned(),
            body: Some(pb::object::Body::Raw(bytes::Bytes::from_static(body.as_bytes()))),
            ..pb::Object::default()
        };
        let mut objects = [
            object("text", r#"{"a":"x"}"#),
            object("ten", r#"{"a":10}"#),
            object("none", "{}"),
            object("two", r#"{"a":2}"#),
            object("other", "no JSON"),
        ];
        let names = |objects: &[pb::Object]| objects.iter().map(|object| object.name.clone()).collect::<Vec<_>>();
        sort(&mut objects, &JsonPath::parse(".a").unwrap());
        assert_eq!(names(&objects), ["none", "other", "two", "ten", "text"]);
        sort(&mut objects, &JsonPath::parse("{.metadata.name}").unwrap());
        assert_eq!(names(&objects), ["other", "none", "ten", "text", "two"], "one that is not JSON has `name`");
    }
}
