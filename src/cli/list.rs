//! `informerd list` and `informerd by-index`: the objects of one snapshot.

use std::num::NonZeroUsize;

use clap::Args;
use serde_json::Value;

use super::{
    alias::of_resource,
    client_flags::{ObjectFlags, OrderFlags, TimeoutFlags, expression_failed},
    failure::Failure,
    print::{ObjectPrinter, json::Document, jsonpath::JsonPath, stdout},
    waiting,
    watch::{self, FollowFlags},
};
use crate::{client::ListResult, proto::pb};

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
    let query = objects.for_output(objects.selection.query(resource)?, order.sort_by.is_some());
    let client = objects.server.connect().await?;
    let listed = client.list(&query).await?;
    print_listed(resource, order, objects, listed)
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
    let query = objects.for_output(objects.selection.query(resource)?, order.sort_by.is_some());
    let client = objects.server.connect().await?;
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
    let mut printer = ObjectPrinter::new(stdout(), &options).at_version(listed.resource_version);
    let (mut objects, limit) = (listed.objects, order.limit.map_or(usize::MAX, NonZeroUsize::get));
    if let Some(path) = &order.sort_by {
        sort(&mut objects, path)?;
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
    if let Some(errors) = &listed.expression_errors {
        server.note(&format_args!("# {}", expression_failed(errors)));
    }
    Ok(())
}

/// Sorts objects by the first value at a path: those without it, then numbers, then texts and whatever else. As with kubectl, a path
/// at which no object has a value is an error.
fn sort(objects: &mut [pb::Object], path: &JsonPath) -> Result<(), Failure> {
    let key = |object: &pb::Object| SortKey::of(path.values(&Document::of(object).value()).first().copied());
    if !objects.is_empty() && objects.iter().all(|object| key(object) == SortKey::Missing) {
        return Err(Failure::usage(format!("--sort-by {path}: no object has a value there")));
    }
    objects.sort_by_cached_key(key);
    Ok(())
}

/// Value to sort by.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SortKey {
    Missing,
    /// Number, as an integer in the same order.
    Number(i64),
    Text(String),
}

// === impl SortKey ===

impl SortKey {
    fn of(value: Option<&Value>) -> Self {
        match value {
            None | Some(Value::Null) => Self::Missing,
            Some(Value::Number(number)) => {
                // As `f64::total_cmp`: the larger the bits of a negative number, the smaller is it.
                let bits = number.as_f64().unwrap_or_default().to_bits().cast_signed();
                Self::Number(bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed())
            }
            Some(Value::String(text)) => Self::Text(text.clone()),
            Some(other) => Self::Text(other.to_string()),
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
        sort(&mut objects, &JsonPath::parse(".a").unwrap()).unwrap();
        assert_eq!(names(&objects), ["none", "other", "two", "ten", "text"]);
        let failure = sort(&mut objects, &JsonPath::parse(".spec.nodeNmae").unwrap()).unwrap_err();
        assert_eq!(failure.message.as_deref(), Some("--sort-by .spec.nodeNmae: no object has a value there"));
        assert_eq!(sort(&mut [], &JsonPath::parse(".a").unwrap()), Ok(()));
        assert_eq!(sort(&mut [object("one", r#"{"a":1}"#)], &JsonPath::parse(".a").unwrap()), Ok(()));
        assert!(sort(&mut [object("one", r#"{"b":1}"#)], &JsonPath::parse(".a").unwrap()).is_err());
        sort(&mut objects, &JsonPath::parse("{.metadata.name}").unwrap()).unwrap();
        assert_eq!(names(&objects), ["other", "none", "ten", "text", "two"], "one that is not JSON has `name`");
    }
}
