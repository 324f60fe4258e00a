//! `informerd explain`: the reason why a watch has an object, or not.

use std::{borrow::Cow, cell, collections::BTreeMap};

use anstyle::Style;
use clap::Args;

use super::{
    alias::of_resource,
    client_flags::{FormatFlags, SelectionFlags, ServerFlags, TimeoutFlags},
    failure::{Failure, NOT_FOUND},
    get::{Finder, LookupError},
    print::{RED, Record, json::Document, or_unread, stdout, table::Cell, write_records},
    waiting,
};
use crate::{
    client::Query,
    proto::pb::{self, explain_request::Selection},
};

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd explain deployments storefront/web -l app=web --field-selector spec.replicas=2
  informerd explain deployments storefront/web -n orders
  informerd explain pods orders/checkout-nmchhpcx9g-6rxrs --watcher 7

With --watcher, the selection is that of an open watch from `informerd watchers`, and needs the right to see these.";

/// Flags of `informerd explain`.
#[derive(Debug, Clone, Args)]
pub(super) struct ExplainFlags {
    /// A name from `informerd resources`
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// NAMESPACE/NAME of the object; a NAME alone is looked up in all namespaces
    #[arg(value_name = "KEY")]
    key: String,
    /// Explain this open watch, by its id, in place of a selection
    #[arg(long, value_name = "ID", help_heading = "Selection")]
    watcher: Option<u64>,
    #[command(flatten)]
    selection: SelectionFlags,
    #[command(flatten)]
    format: FormatFlags,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    timeout: TimeoutFlags,
}

of_resource!(ExplainFlags, server);

const HEADER: &[&str] = &["FIELD", "TERM", "RESULT", "FOUND"];

pub(super) async fn run(flags: &ExplainFlags) -> Result<(), Failure> {
    waiting::limited(&flags.timeout, &flags.server, &flags.resource, Box::pin(explain(flags))).await
}

async fn explain(flags: &ExplainFlags) -> Result<(), Failure> {
    let ExplainFlags { resource, key, watcher, selection, format, server, .. } = flags;
    let query = selection.query(resource)?;
    if watcher.is_some() && (selection.has_selectors() || selection.namespace().is_some()) {
        return Err(Failure::usage("--watcher has a selection of its own; leave out the others"));
    }
    let (namespace, name) = key.split_once('/').unwrap_or(("", key));
    let request = |namespace: &str, name: &str| pb::ExplainRequest {
        selection: Some(match watcher {
            Some(id) => Selection::WatcherId(*id),
            None => Selection::Watch(query.watch_request()),
        }),
        key: Some(pb::ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() }),
    };
    let client = server.connect().await?;
    let mut explained = client.explain(request(namespace, name)).await?;
    if explained.object.is_none() && explained.problem.is_none() && !key.contains('/') {
        let query = Query { format: pb::PayloadFormat::Metadata, ..Query::of(resource) };
        let finder = Finder { client: client.clone(), resource, query, server, is_noted: cell::Cell::default() };
        match finder.find(key, None).await {
            Ok(pb::Object { namespace, name, .. }) => explained = client.explain(request(&namespace, &name)).await?,
            Err(LookupError::Name(failure)) if failure.exit_code != NOT_FOUND => return Err(failure),
            Err(_) => {}
        }
    }
    if let Some(watcher) = explained.watcher.as_ref().filter(|watcher| watcher.resource != *resource) {
        let message = format!("watch {} is of {}, not of {resource}", watcher.id, watcher.resource);
        return Err(Failure::usage(message));
    }
    let options = format.options();
    if options.output.is_document() {
        or_unread(write_records(stdout(), &options, ("explanations", HEADER), vec![whole(&explained)]))?;
    } else {
        let terms = explained.terms.iter().map(record).collect();
        or_unread(write_records(stdout(), &options, ("terms", HEADER), terms))?;
    }
    if let Some(problem) = &explained.problem {
        server.note(&format_args!("# {resource} {key}: {}: {}", problem.reason, problem.message));
    }
    if explained.object.is_none() {
        return Err(Failure::new(NOT_FOUND, format!("{resource} {key:?} not found: the cache does not hold it")));
    }
    server.note(&format_args!("# {resource} {key}: {}", summary(&explained)));
    Ok(())
}

fn summary(explained: &pb::ExplainResponse) -> Cow<'static, str> {
    let count_of = |is: fn(pb::TermResult) -> bool| explained.terms.iter().filter(|term| is(term.result())).count();
    let misses = count_of(|result| result != pb::TermResult::Match);
    let hidden = count_of(|result| result == pb::TermResult::Unspecified);
    match explained.terms.len() {
        count if hidden > 0 => {
            format!("not known: {hidden} of {count} terms depend on the object's body, which you may not read").into()
        }
        0 => "selected: everything is".into(),
        _ if explained.selected => "selected: all terms match".into(),
        count => format!("not selected: {misses} of {count} terms do not match").into(),
    }
}

fn result_name(term: &pb::SelectionTerm) -> &'static str {
    term.result().as_str_name().trim_start_matches("TERM_RESULT_")
}

fn record(term: &pb::SelectionTerm) -> Record {
    let pb::SelectionTerm { field, term: text, found, .. } = term;
    let style = if term.result() == pb::TermResult::Match { Style::new() } else { RED };
    Record {
        name: field.clone(),
        cells: vec![Cell::new(field), Cell::new(text), Cell::styled(result_name(term), style), Cell::or_none(found)],
        document: document(term),
    }
}

fn document(term: &pb::SelectionTerm) -> Document<'static> {
    Document::from_fields([
        ("field", term.field.as_str().into()),
        ("term", term.term.as_str().into()),
        ("result", result_name(term).into()),
        ("found", term.found.as_str().into()),
    ])
}

/// Returns the whole explanation, with the names of the contract's JSON.
fn whole(explained: &pb::ExplainResponse) -> Record {
    let text = |text: &str| Document::from_value(&text.into());
    let mut parts = vec![
        ("resourceVersion", text(&explained.resource_version)),
        ("selected", Document::from_value(&explained.selected.into())),
        ("terms", Document::from_items(explained.terms.iter().map(document))),
    ];
    if let Some(object) = &explained.object {
        let labels: BTreeMap<&String, &String> = object.labels.iter().collect();
        parts.push((
            "object",
            Document::from_fields([
                ("namespace", object.namespace.as_str().into()),
                ("name", object.name.as_str().into()),
                ("uid", object.uid.as_str().into()),
                ("resourceVersion", object.resource_version.as_str().into()),
                ("labels", serde_json::json!(labels)),
            ]),
        ));
    }
    if let Some(watcher) = &explained.watcher {
        parts.push((
            "watcher",
            Document::from_fields([
                ("id", watcher.id.into()),
                ("selection", watcher.selection.as_str().into()),
                ("resourceVersion", watcher.resource_version.as_str().into()),
                ("queued", watcher.queued.into()),
            ]),
        ));
    }
    Record { name: String::new(), cells: Vec::new(), document: Document::from_parts(parts) }
}
