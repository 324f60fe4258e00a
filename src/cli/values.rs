//! `informerd values`.

use clap::Args;

use super::{
    alias::of_resource,
    client_flags::{FormatFlags, ServerFlags, TimeoutFlags},
    failure::Failure,
    print::{Record, json::Document, stdout, table::Cell, write_records},
    waiting,
};
use crate::proto::pb;

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd values pods phase
  informerd values pods node -o json
  informerd values deployments image -o name";

/// Flags of `informerd values`.
#[derive(Debug, Clone, Args)]
pub(super) struct ValuesFlags {
    /// A name from `informerd resources`
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// An index of the resource
    #[arg(value_name = "INDEX")]
    index: String,
    #[command(flatten)]
    format: FormatFlags,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    timeout: TimeoutFlags,
}

of_resource!(ValuesFlags, server);

pub(super) async fn run(flags: &ValuesFlags) -> Result<(), Failure> {
    waiting::limited(&flags.timeout, &flags.server, &flags.resource, Box::pin(show(flags))).await
}

async fn show(flags: &ValuesFlags) -> Result<(), Failure> {
    let ValuesFlags { resource, index, format, server, .. } = flags;
    let pb::ListIndexValuesResponse { values, namespaces, .. } =
        server.connect().await?.values(resource, index).await?;
    server.note_limited(resource, &namespaces);
    let (is_empty, options) = (values.is_empty(), format.options());
    write_records(stdout(), &options, ("values", &["VALUE", "OBJECTS"]), values.into_iter().map(record).collect())?;
    if is_empty && !options.output.is_document() {
        server.note(&"No values found.");
    }
    Ok(())
}

fn record(pb::IndexValue { value, objects }: pb::IndexValue) -> Record {
    Record {
        cells: vec![Cell::new(&value), Cell::new(&objects.to_string())],
        document: Document::from_fields([("value", value.as_str().into()), ("objects", objects.into())]),
        name: value,
    }
}
