//! `informerd list`.

use clap::Args;

use super::{
    client_flags::{ObjectFlags, TimeoutFlags},
    failure::Failure,
    print::ObjectPrinter,
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

pub(super) async fn run(resource: &str, objects: &ObjectFlags) -> Result<(), Failure> {
    let listed = objects.server.connect().await?.list(&objects.query(resource)).await?;
    print_listed(resource, objects, listed)
}

/// Writes the objects of one snapshot, and prints notes about an empty or stale result.
pub(super) fn print_listed(resource: &str, flags: &ObjectFlags, listed: Listed) -> Result<(), Failure> {
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
