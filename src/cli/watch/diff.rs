//! `informerd diff`: what has changed between two versions, as a watch with `--diff` prints it.

use clap::{Args, builder::NonEmptyStringValueParser};

use crate::{
    cli::{
        alias::of_resource,
        client_flags::{ObjectFlags, TimeoutFlags},
        failure::Failure,
        print::{Event, EventPrinter, stdout},
        waiting,
    },
    proto::pb,
};

pub(crate) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd diff pods --from $(informerd list pods -o jsonpath={.metadata.resourceVersion})
  informerd diff pods -o name --from $(informerd list pods -o jsonpath={.metadata.resourceVersion})

It prints each object that differs, once, however often it has changed in between, and for a changed one the fields: `~` changed, `+` \
added, `-` removed. -o json and -o yaml have the earlier state of a changed object as `old`. The versions are those of lists and of \
watches (`informerd list -o json`, `informerd watch -o jsonl`), as far as the history of the server reaches back (`informerd resources \
-o wide`).";

/// Flags of `informerd diff`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DiffFlags {
    /// A name from `informerd resources`
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// Only the object of this name: NAME or NAMESPACE/NAME, as `-o name` prints it
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Version of the resource to compare with
    #[arg(long, value_name = "VERSION", value_parser = NonEmptyStringValueParser::new())]
    from: String,
    /// Later version [default: the newest]
    #[arg(long, value_name = "VERSION", value_parser = NonEmptyStringValueParser::new())]
    to: Option<String>,
    #[command(flatten)]
    objects: ObjectFlags,
    #[command(flatten)]
    timeout: TimeoutFlags,
}

of_resource!(DiffFlags, objects.server);

pub(crate) async fn diff(flags: &DiffFlags) -> Result<(), Failure> {
    waiting::limited(&flags.timeout, &flags.objects.server, &flags.resource, Box::pin(print_changes(flags))).await
}

async fn print_changes(flags: &DiffFlags) -> Result<(), Failure> {
    let DiffFlags { resource, name, from, to, objects, .. } = flags;
    let query = objects.for_output(objects.selection.query_of_name(resource, name.as_deref())?, false);
    let client = objects.server.connect().await?;
    let pb::ChangesResponse { changes, resource_version, namespaces, .. } =
        client.changes(&query, from, to.as_deref()).await?;
    objects.server.note_limited(resource, &namespaces);
    let options = objects.options();
    let mut printer = EventPrinter::new(stdout(), &options);
    let has_fields = options.output.is_table();
    let mut counts = [0_usize; 3];
    // There are no initial events to wait for.
    printer.synced()?;
    for change in changes {
        let event_type = change.r#type();
        counts[usize::from(change.old.is_some()) + usize::from(change.new.is_none())] += 1;
        let (old, new) = (change.old, change.new);
        let Some(object) = new.as_ref().or(old.as_ref()).cloned() else { continue };
        let changed = old.zip(new);
        let old = changed.as_ref().map(|(old, _)| old.clone()).filter(|_| !has_fields);
        let (cause, resource_version) = (pb::Cause::Unspecified, String::new());
        printer.push(Event { change: event_type, cause, resource_version, object, old, time: None, resource: None })?;
        if let Some((old, new)) = changed.filter(|_| has_fields) {
            printer.differences(&old, &new)?;
        }
    }
    printer.flush()?;
    let [added, modified, deleted] = counts;
    objects.server.note(&format_args!(
        "# {added} added, {modified} modified, {deleted} deleted from {from} to {resource_version}"
    ));
    Ok(())
}
