//! `informerd list`.

use clap::Args;

use super::{
    client_flags::{ColumnFlags, FormatFlags, ScopeFlags, SelectorFlags, ServerFlags, TimeoutFlags},
    failure::Failure,
    print::{ObjectPrinter, PrintOptions},
    stdout,
};
use crate::client::Listed;

pub(super) const EXAMPLES: &str = super::with_exit_codes!(
    "\
Examples, with a server of examples/shop.yaml:
  informerd list pods
  informerd list pods -n orders -l tier=worker -L app
  informerd list pods --field-selector status.phase!=Running
  informerd list pods --expression 'object.spec.containers.exists(c, c.name == \"web\")'
  informerd list deployments -o wide
  informerd list configmaps -o yaml"
);

/// What to list.
#[derive(Debug, Clone, Args)]
pub(super) struct ListFlags {
    /// A name from `informerd resources`
    #[arg(value_name = "RESOURCE")]
    pub(super) resource: String,
    #[command(flatten)]
    pub(super) scope: ScopeFlags,
    #[command(flatten)]
    pub(super) selectors: SelectorFlags,
    #[command(flatten)]
    pub(super) format: FormatFlags,
    #[command(flatten)]
    pub(super) columns: ColumnFlags,
    #[command(flatten)]
    pub(super) server: ServerFlags,
    #[command(flatten)]
    pub(super) timeout: TimeoutFlags,
}

pub(super) async fn run(flags: &ListFlags) -> Result<(), Failure> {
    let ListFlags { resource, scope, selectors, format, columns, server, .. } = flags;
    let listed = server.connect().await?.list(&selectors.query(resource, scope)).await?;
    print_listed(resource, listed, &format.object_options(columns, scope), scope, server)
}

/// Writes the objects of one snapshot, and notes what they do not say.
pub(super) fn print_listed(
    resource: &str,
    listed: Listed,
    options: &PrintOptions,
    scope: &ScopeFlags,
    server: &ServerFlags,
) -> Result<(), Failure> {
    server.note_stale(resource, listed.source, listed.source_seen_at);
    let mut printer = ObjectPrinter::new(stdout(), options);
    for object in listed.objects {
        printer.push(object)?;
    }
    if printer.finish()? == 0 && !options.output.is_document() {
        server.note(&format_args!("No objects found{}.", scope.suffix()));
    }
    Ok(())
}
