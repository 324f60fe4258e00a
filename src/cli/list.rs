//! `informerd list` and `informerd by-index`: the objects of one snapshot.

use clap::Args;

use super::{
    client_flags::{ObjectFlags, TimeoutFlags},
    failure::Failure,
    print::{ObjectPrinter, stdout},
};
use crate::client::ListResult;

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd list pods
  informerd list pods -n orders -l tier=worker -L app
  informerd list pods --field-selector status.phase!=Running
  informerd list pods --expression 'object.spec.containers.exists(c, c.name == \"web\")'
  informerd list deployments -o wide
  informerd list configmaps -o yaml";

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
    pub(super) resource: String,
    #[command(flatten)]
    pub(super) objects: ObjectFlags,
    #[command(flatten)]
    pub(super) timeout: TimeoutFlags,
}

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
    objects: ObjectFlags,
    #[command(flatten)]
    pub(super) timeout: TimeoutFlags,
}

pub(super) async fn run(resource: &str, objects: &ObjectFlags) -> Result<(), Failure> {
    let listed = objects.server.connect().await?.list(&objects.selection.query(resource)).await?;
    print_listed(resource, objects, listed)
}

pub(super) async fn by_index(flags: &ByIndexFlags) -> Result<(), Failure> {
    let ByIndexFlags { resource, index, value, like, objects, .. } = flags;
    let (client, query) = (objects.server.connect().await?, objects.selection.query(resource));
    let listed = match like {
        Some(name) => {
            let namespace = objects.selection.namespace().unwrap_or_default();
            let (namespace, name) = name.split_once('/').unwrap_or((namespace, name));
            client.by_index_like(&query, index, namespace, name).await?
        }
        None => client.by_index(&query, index, value.as_deref().unwrap_or_default()).await?,
    };
    print_listed(resource, objects, listed)
}

/// Writes the objects of one snapshot, and prints notes about an empty or stale result.
fn print_listed(resource: &str, flags: &ObjectFlags, listed: ListResult) -> Result<(), Failure> {
    let (server, options) = (&flags.server, flags.options());
    server.note_stale(resource, listed.source, listed.source_seen_at);
    let mut printer = ObjectPrinter::new(stdout(), &options);
    for object in listed.objects {
        printer.push(object)?;
    }
    if printer.finish()? == 0 && !options.output.is_document() {
        server.note(&format_args!("No objects found{}.", flags.selection.suffix()));
    }
    Ok(())
}
