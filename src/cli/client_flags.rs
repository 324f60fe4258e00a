//! Flags that the client commands share. Their letters and meanings are kubectl's.

mod target;
#[cfg(test)]
mod tests;

use std::{
    fmt::Display,
    num::NonZeroUsize,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use clap::{Args, builder::NonEmptyStringValueParser};
use prost_types::Timestamp;

pub(super) use self::target::Contexts;
use self::target::Target;
use super::{
    failure::Failure,
    print::{self, Color, ColumnOptions, Output, OutputFlag, OutputParser, PrintOptions, jsonpath::JsonPath},
};
use crate::{
    client::{Client, ClientError, Query, ServerAddress, TlsOptions},
    config::parse_duration,
    model::Shard,
    proto::pb::{self, SyncState},
};

/// Objects of a resource: their selection, their form, and the server.
///
/// To be flattened after a command's own arguments: in the help, what follows and has no heading gets the last one of these.
#[derive(Debug, Clone, Args)]
pub(super) struct ObjectFlags {
    #[command(flatten)]
    pub(super) selection: SelectionFlags,
    /// No bodies: key, uid, version, labels and type of each object, for which a right to metadata is enough; `-o name` requests no more
    #[arg(long, help_heading = "View", conflicts_with_all = ["fields", "drop", "view_name"])]
    metadata: bool,
    #[command(flatten)]
    pub(super) format: FormatFlags,
    #[command(flatten)]
    columns: ColumnFlags,
    #[command(flatten)]
    pub(super) server: ServerFlags,
}

/// Selection of objects.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Selection")]
pub(super) struct SelectionFlags {
    /// Only this namespace [default: all]
    #[arg(short, long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    namespace: Option<String>,

    /// All namespaces, the default; overrides -n
    #[arg(short = 'A', long)]
    all_namespaces: bool,

    /// Only objects with these labels: `app=web`, `tier in (a,b)`, `!canary`, separated by commas
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,

    /// Only objects with these fields: `spec.nodeName=node-a`, `status.phase!=Running`, separated by commas
    #[arg(long, value_name = "FIELDS")]
    field_selector: Option<String>,

    /// Only objects for which this CEL expression is true: `object.spec.containers.size() > 1`
    #[arg(long, value_name = "CEL")]
    expression: Option<String>,

    /// Only objects with this value of an index, `node=node-a`; repeated for more values of the same index, of which an object needs
    /// one
    #[arg(id = "index_value", long = "index", value_name = "INDEX=VALUE", value_parser = parse_index)]
    index: Vec<(String, String)>,

    /// Only this part of the objects, by a hash of their uid: `2/8` is the third of eight, which are 0/8 to 7/8; `spec.nodeName:2/8`,
    /// `namespace:2/8`: by another value; or Kubernetes' `shardRange(object.metadata.uid, '0x0', '0x8000000000000000')`
    #[arg(long, value_name = "SHARD", visible_alias = "shard-selector")]
    shard: Option<Shard>,

    #[command(flatten)]
    pub(super) view: ViewFlags,
}

/// Part of each body that the server sends.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "View")]
pub(super) struct ViewFlags {
    /// Only these fields of each object: `metadata.labels,spec.nodeName,status.podIPs[].ip`
    #[arg(long, value_name = "PATHS", value_delimiter = ',')]
    fields: Vec<String>,

    /// Not these fields: `metadata.managedFields`
    #[arg(long, value_name = "PATHS", value_delimiter = ',')]
    drop: Vec<String>,

    /// A view by name, instead: one of the resource (`informerd resources -o wide`), `@metadata`, `@no-status` or
    /// `@no-managed-fields`
    #[arg(long = "view", value_name = "NAME", conflicts_with_all = ["fields", "drop"])]
    view_name: Option<String>,
}

/// Flag of the commands that follow changes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "View")]
pub(super) struct ChangedFlag {
    /// Only changes of these fields and of labels
    #[arg(long)]
    changed: bool,
}

/// Flags of the server to call, and of the notes beside the data.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub(super) struct ServerFlags {
    #[command(flatten)]
    target: Target,

    /// Server of the file of contexts [env: `INFORMERD_CONTEXT`] [default: its `current`]
    #[arg(long, value_name = "NAME", conflicts_with = "server")]
    context: Option<String>,

    /// Print no notes on stderr, only errors
    #[arg(short, long)]
    pub(super) quiet: bool,
}

/// Largest number of names in a note.
const MAX_NAMES: usize = 20;

/// Bound of the time for an answer.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub(super) struct TimeoutFlags {
    /// Time limit for the complete response [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(super) timeout: Option<Duration>,
}

/// Order and number of the objects of a list.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OrderFlags {
    /// Sort by the value at this path: `.metadata.creationTimestamp`; objects without it come first
    #[arg(long, value_name = "JSONPATH", value_parser = JsonPath::parse)]
    pub(super) sort_by: Option<JsonPath>,

    /// Print at most this number of objects, the first in the order
    #[arg(long, value_name = "NUMBER")]
    pub(super) limit: Option<NonZeroUsize>,
}

/// Form of the output.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct FormatFlags {
    /// Format of the output
    #[arg(short, long, value_name = "FORM", default_value = "table", value_parser = OutputParser)]
    pub(super) output: OutputFlag,

    /// Print no header line
    #[arg(long)]
    pub(super) no_headers: bool,

    /// When to use colour
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub(super) color: Color,
}

/// Columns of tables.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Output")]
struct ColumnFlags {
    /// Print these labels as columns; can be repeated, or separated by commas
    #[arg(short = 'L', long, value_name = "KEY", value_delimiter = ',')]
    label_columns: Vec<String>,

    /// Print all labels as the last column
    #[arg(long)]
    show_labels: bool,
}

// === impl ObjectFlags ===

impl ObjectFlags {
    /// Returns a query of the flags without bodies, if the output needs none. `reads_bodies`: the command does, whatever the output.
    pub(super) fn for_output(&self, query: Query, reads_bodies: bool) -> Query {
        // A view that suppresses changes needs the bodies to compare.
        let is_compared = query.view.as_ref().is_some_and(|view| view.only_if_changed);
        let is_name = self.format.options().output == Output::Name && !reads_bodies && !is_compared;
        if self.metadata || is_name {
            Query { format: pb::PayloadFormat::Metadata, view: query.view.filter(|_| is_compared), ..query }
        } else {
            query
        }
    }

    /// Returns the print options. The namespace is shown if more than one is queried.
    pub(super) fn options(&self) -> PrintOptions {
        let mut options = self.format.options();
        options.columns.namespace = self.selection.namespace().is_none();
        options.columns.labels = self.columns.label_columns.iter().filter(|key| !key.is_empty()).cloned().collect();
        options.columns.show_labels = self.columns.show_labels;
        options
    }
}

// === impl SelectionFlags ===

impl SelectionFlags {
    /// Returns the query for the selected objects, with their bodies as the source delivers them.
    pub(super) fn query(&self, resource: &str) -> Result<Query, Failure> {
        let Self { selector, field_selector, expression, shard, .. } = self.clone();
        Ok(Query {
            index: self.index()?,
            namespace: self.namespace().map(str::to_owned),
            label_selector: selector.unwrap_or_default(),
            field_selector: field_selector.unwrap_or_default(),
            expression: expression.unwrap_or_default(),
            shard,
            view: self.view.view(),
            format: pb::PayloadFormat::Raw,
            ..Query::of(resource)
        })
    }

    /// Returns the same query for the objects of one name, if there is one; NAMESPACE/NAME is one object.
    pub(super) fn query_of_name(&self, resource: &str, name: Option<&str>) -> Result<Query, Failure> {
        let mut query = self.query(resource)?;
        match name.map(|name| (name, name.split_once('/'))) {
            Some((_, Some((namespace, name)))) if query.namespace.as_deref().is_none_or(|other| other == namespace) => {
                query.name = Some(name.to_owned());
                query.namespace = Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty());
            }
            Some((name, _)) => query.name = Some(name.to_owned()),
            None => {}
        }
        Ok(query)
    }

    /// Returns the one index of `--index`, and its values.
    fn index(&self) -> Result<Option<(String, Vec<String>)>, Failure> {
        let Some((first, _)) = self.index.first() else { return Ok(None) };
        if let Some((other, _)) = self.index.iter().find(|(name, _)| name != first) {
            return Err(Failure::usage(format!(
                "--index: {first:?} and {other:?} are two indexes; select by one, and by the other with --expression"
            )));
        }
        Ok(Some((first.clone(), self.index.iter().map(|(_, value)| value.clone()).collect())))
    }

    pub(super) fn has_index(&self) -> bool {
        !self.index.is_empty()
    }

    /// Returns the one selected namespace; none for all.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref().filter(|_| !self.all_namespaces)
    }

    /// Returns the part of an empty result's message that names the namespace.
    pub(super) fn suffix(&self) -> String {
        self.namespace().map(|namespace| format!(" in namespace {namespace:?}")).unwrap_or_default()
    }

    pub(super) fn has_selectors(&self) -> bool {
        let Self { selector, field_selector, expression, index, shard, .. } = self;
        !index.is_empty() || selector.is_some() || field_selector.is_some() || expression.is_some() || shard.is_some()
    }
}

fn parse_index(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected INDEX=VALUE, such as node=node-a".to_owned()),
    }
}

// === impl ViewFlags ===

impl ViewFlags {
    /// Returns the view of a request; none if the flags name none.
    pub(super) fn view(&self) -> Option<pb::View> {
        let Self { fields, drop, view_name } = self.clone();
        let view = pb::View { fields, drop, name: view_name.unwrap_or_default(), ..pb::View::default() };
        Some(view).filter(|view| *view != pb::View::default())
    }
}

// === impl ChangedFlag ===

impl ChangedFlag {
    /// Returns a query that suppresses other changes, if the flag is given.
    pub(super) fn applied_to(&self, query: Query) -> Query {
        if !self.changed {
            return query;
        }
        Query { view: Some(pb::View { only_if_changed: true, ..query.view.unwrap_or_default() }), ..query }
    }
}

// === impl ServerFlags ===

impl ServerFlags {
    pub(super) async fn connect(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.target()?.address()?).await?)
    }

    /// Returns a client that connects when it is first used.
    pub(super) fn connect_lazy(&self) -> Result<Client, Failure> {
        Ok(Client::connect_lazy(&self.target()?.address()?)?)
    }

    /// Returns the address of the server and the files of TLS with it, for connections that read them again.
    pub(super) fn upstream(&self) -> Result<(ServerAddress, TlsOptions<PathBuf>), Failure> {
        self.target()?.upstream()
    }

    /// Returns the flags for a context, whose files they override.
    pub(super) fn of_context(&self, name: &str) -> Self {
        let target = Target { server: None, ..self.target.clone() };
        Self { target, context: Some(name.to_owned()), quiet: self.quiet }
    }

    /// Returns the address of the server, for a table.
    pub(super) fn name(&self) -> Result<String, Failure> {
        Ok(self.target()?.address()?.to_string())
    }

    /// Returns true if the flags name one server.
    pub(super) fn is_of_one(&self) -> bool {
        self.context.is_some() || self.target.has_server()
    }

    fn target(&self) -> Result<Target, Failure> {
        self.target.clone().resolve(self.context.as_deref())
    }

    /// Prints a note, which is not data, on stderr.
    pub(super) fn note(&self, note: &dyn Display) {
        if !self.quiet {
            print::write_line(&print::escape(&note.to_string()));
        }
    }

    /// Prints a note if the data is of some namespaces only, because the caller may read no others.
    pub(super) fn note_limited(&self, resource: &str, namespaces: &[String]) {
        if let Some(note) = limited(resource, namespaces) {
            self.note(&note);
        }
    }

    /// Opens a watch of a query, to find a mistake in it that a source would only repeat; prints a note if it is of some namespaces
    /// only.
    pub(super) async fn try_watch(&self, client: &Client, query: &Query) -> Result<(), ClientError> {
        let request = pb::WatchRequest { initial_events: pb::InitialEvents::None.into(), ..query.watch_request() };
        let mut opened = client.open(request).await?;
        if let Ok(Some(pb::WatchResponse { bookmark: Some(bookmark), .. })) = opened.message().await {
            self.note_limited(&query.resource, &bookmark.namespaces);
        }
        Ok(())
    }

    /// Prints a note if the data is stale.
    pub(super) fn note_stale(&self, resource: &str, source: SyncState, seen_at: Option<Timestamp>) {
        if source == SyncState::Stale {
            let age = print::age::age_of(seen_at, SystemTime::now());
            let age = age.map(|age| format!(", last contact {age} ago")).unwrap_or_default();
            self.note(&format_args!("# {resource}: upstream unreachable: last known state{age}"));
        }
    }
}

/// Returns the note about data of some namespaces only; none if there is no limit.
pub(super) fn limited(resource: &str, namespaces: &[String]) -> Option<String> {
    let note = || format!("# {resource}: limited to what you may read: namespaces {}", shown(namespaces));
    (!namespaces.is_empty()).then(note)
}

/// Describes the objects for which an expression failed: it is not one that is false for them.
pub(super) fn expression_failed(errors: &pb::ExpressionErrors) -> String {
    let pb::ExpressionErrors { failed, evaluated, first, first_reason } = errors;
    let pb::ObjectKey { namespace, name } = first.clone().unwrap_or_default();
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!(
        "the expression failed for {failed} of {evaluated} objects; the first: {namespace}{slash}{name}: {first_reason}"
    )
}

/// Returns the first of some names, and the number of the others.
fn shown(names: &[String]) -> String {
    let more = names.len().saturating_sub(MAX_NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    // The namespace of objects that have none.
    let names = names.iter().take(MAX_NAMES).map(|name| if name.is_empty() { "\"\"" } else { name });
    format!("{}{more}", names.collect::<Vec<_>>().join(", "))
}

// === impl FormatFlags ===

impl FormatFlags {
    /// Returns the print options of output other than the objects of a resource.
    pub(super) fn options(&self) -> PrintOptions {
        let OutputFlag { output, template, columns } = self.output.clone();
        PrintOptions {
            output,
            template,
            columns: ColumnOptions { wide: output == Output::Wide, custom: columns, ..ColumnOptions::default() },
            no_headers: self.no_headers,
            colors: self.color.is_on(),
            // What was requested as wide is printed whole.
            max_width: print::terminal_width().filter(|_| output == Output::Table),
        }
    }
}
