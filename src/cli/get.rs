//! `informerd get`: objects by name, in any namespace.

use std::cell::Cell;

use clap::Args;

use super::{
    alias::of_resource,
    client_flags::{ObjectFlags, OrderFlags, ServerFlags, TimeoutFlags},
    failure::{FAILED, Failure, NOT_FOUND},
    list,
    print::{ObjectPrinter, escape, or_unread, reference, stdout, write_all, write_one},
    waiting,
    watch::{self, FollowFlags},
};
use crate::{
    client::{Client, ClientError, Query},
    proto::pb::{self, SyncState},
};

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd get deployments web
  informerd get services platform/edge -o yaml
  informerd get deployments/web
  informerd get configmaps feature-flags -n platform -o json
  informerd get deployments storefront/web -w
  informerd get deployments storefront/web --raw | jq .spec.replicas
  informerd get pods $(informerd list pods -l app=cart -o name) -o wide

A NAME without a namespace is looked up in all namespaces; if several have it, the error lists them. \
Without a NAME, get lists the resource.";

/// Flags of `informerd get`.
#[derive(Debug, Clone, Args)]
pub(super) struct GetFlags {
    /// A name from `informerd resources`; RESOURCE/NAME is kubectl's form of RESOURCE NAME
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// NAME or NAMESPACE/NAME, as `-o name` prints it; /NAME for an object without namespace
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Write the bytes of one object's body, as its source has them, and nothing else
    #[arg(
        long,
        help_heading = "Output",
        requires = "names",
        conflicts_with_all = ["output", "metadata", "watch", "sort_by", "limit", "label_columns", "show_labels"]
    )]
    raw: bool,
    #[command(flatten)]
    follow: FollowFlags,
    #[command(flatten)]
    order: OrderFlags,
    #[command(flatten)]
    objects: ObjectFlags,
    #[command(flatten)]
    timeout: TimeoutFlags,
}

of_resource!(GetFlags, objects.server);

impl GetFlags {
    /// Returns the flags with the names of RESOURCE/NAME as names of their own. Where the first argument has this form, all have, and
    /// of one resource.
    pub(super) fn split(self) -> Result<Self, Failure> {
        let Some((resource, first)) = self.resource.split_once('/') else { return Ok(self) };
        let mut names = vec![first.to_owned()];
        for name in &self.names {
            let name = name.strip_prefix(resource).and_then(|name| name.strip_prefix('/')).ok_or_else(|| {
                let message = format!(
                    "{:?} and {name:?}: write RESOURCE NAME…, or RESOURCE/NAME… with one resource",
                    self.resource
                );
                Failure::usage(escape(&message))
            })?;
            names.push(name.to_owned());
        }
        let resource = resource.to_owned();
        Ok(Self { resource, names, ..self })
    }
}

/// Meaning of a name on the command line.
#[derive(Debug, PartialEq, Eq)]
enum Target<'a> {
    /// Object with this key.
    Key { namespace: &'a str, name: &'a str },
    /// Object of this name, in any namespace.
    Anywhere { name: &'a str },
}

/// Reason why a lookup has not found one object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LookupError {
    /// Failure of this name only; others may be found.
    Name(Failure),
    /// Failure of all lookups.
    Call(Failure),
}

/// Lookup of objects of one resource.
pub(super) struct Finder<'a> {
    pub(super) client: Client,
    pub(super) resource: &'a str,
    /// Form of the objects.
    pub(super) query: Query,
    pub(super) server: &'a ServerFlags,
    /// True after the note that answers are limited to some namespaces.
    pub(super) is_noted: Cell<bool>,
}

pub(super) async fn run(flags: &GetFlags) -> Result<(), Failure> {
    let GetFlags { resource, names, follow, objects, timeout, .. } = flags;
    if !follow.watch {
        return waiting::limited(timeout, &objects.server, resource, Box::pin(get(flags))).await;
    }
    if let [_, _, ..] = &**names {
        return Err(Failure::usage("--watch: with one NAME or none; several are selected with -l or --field-selector"));
    }
    let name = names.first().map(String::as_str);
    watch::run(&follow.flags(resource, name, timeout, objects)).await
}

async fn get(flags: &GetFlags) -> Result<(), Failure> {
    let GetFlags { resource, names, raw, order, objects, .. } = flags;
    let ObjectFlags { selection, server, .. } = objects;
    if names.is_empty() {
        return list::list(resource, order, objects).await;
    }
    if selection.has_selectors() {
        return Err(Failure::usage("a name cannot be given together with selectors; leave out one of them"));
    }
    let options = objects.options();
    let client = server.connect().await?;
    let query = Query { view: objects.selection.view.view(), format: pb::PayloadFormat::Raw, ..Query::of(resource) };
    let query = objects.for_output(query, false);
    let finder = Finder { client, resource, query, server, is_noted: Cell::default() };
    if let [name] = names.as_slice() {
        let object = finder.find(name, selection.namespace()).await?;
        if *raw {
            return write_raw(&object);
        }
        return Ok(write_one(object, stdout(), &options)?);
    }
    if *raw {
        return Err(Failure::usage("--raw is the body of one object: name one"));
    }
    let mut printer = ObjectPrinter::new(stdout(), &options);
    let mut missing = Vec::new();
    for name in names {
        match finder.find(name, selection.namespace()).await {
            Ok(object) => or_unread(printer.push(object))?,
            Err(LookupError::Name(failure)) => missing.push(failure),
            Err(LookupError::Call(failure)) => return Err(failure),
        }
    }
    or_unread(printer.finish().map(drop))?;
    let last = missing.pop();
    missing.iter().for_each(Failure::print);
    last.map_or(Ok(()), Err)
}

/// Writes the bytes of a body.
fn write_raw(object: &pb::Object) -> Result<(), Failure> {
    let Some(pb::object::Body::Raw(body)) = &object.body else {
        return Err(Failure::new(FAILED, escape(&format!("{} has no body in this view", reference(object)))));
    };
    Ok(write_all(body)?)
}

// === impl Target ===

impl<'a> Target<'a> {
    fn parse(name: &'a str, namespace: Option<&'a str>) -> Self {
        match (namespace, name.split_once('/')) {
            // A name may contain a slash: only the object's own namespace is removed.
            (Some(namespace), Some((prefix, name))) if prefix == namespace => Self::Key { namespace, name },
            (Some(namespace), _) => Self::Key { namespace, name },
            (None, Some((namespace, name))) => Self::Key { namespace, name },
            (None, None) => Self::Anywhere { name },
        }
    }
}

// === impl LookupError ===

impl From<ClientError> for LookupError {
    fn from(error: ClientError) -> Self {
        let is_object = error.reason() == Some("OBJECT_NOT_FOUND");
        if is_object { Self::Name(error.into()) } else { Self::Call(error.into()) }
    }
}

impl From<LookupError> for Failure {
    fn from(miss: LookupError) -> Self {
        match miss {
            LookupError::Name(failure) | LookupError::Call(failure) => failure,
        }
    }
}

// === impl Finder ===

impl Finder<'_> {
    pub(super) async fn find(&self, text: &str, namespace: Option<&str>) -> Result<pb::Object, LookupError> {
        match Target::parse(text, namespace) {
            Target::Anywhere { name } => self.look_up(name).await,
            Target::Key { namespace: of, name } => match self.get(of, name).await {
                // A path is also a name: that of an object whose file does not name it.
                Err(miss @ LookupError::Name(_)) if namespace.is_none() => match self.look_up(text).await {
                    Err(LookupError::Name(_)) => Err(miss),
                    found => found,
                },
                found => found,
            },
        }
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<pb::Object, LookupError> {
        let got = self.client.get_as(&self.query, namespace, name).await?;
        self.note_stale(got.source, got.source_seen_at);
        Ok(got.object)
    }

    async fn look_up(&self, name: &str) -> Result<pb::Object, LookupError> {
        let query = Query { name: Some(name.to_owned()), ..self.query.clone() };
        let listed = self.client.list(&query).await?;
        if !self.is_noted.replace(!listed.namespaces.is_empty()) {
            self.server.note_limited(self.resource, &listed.namespaces);
        }
        let found = one_of(self.resource, name, listed.objects).map_err(LookupError::Name)?;
        self.note_stale(listed.source, listed.source_seen_at);
        Ok(found)
    }

    fn note_stale(&self, source: SyncState, seen_at: Option<prost_types::Timestamp>) {
        self.server.note_stale(self.resource, source, seen_at);
    }
}

/// Returns the object with a name; fails unless there is exactly one.
fn one_of(resource: &str, name: &str, mut found: Vec<pb::Object>) -> Result<pb::Object, Failure> {
    match (found.len(), found.pop()) {
        (1, Some(object)) => Ok(object),
        (_, None) => Err(Failure::new(NOT_FOUND, escape(&format!("{resource} {name:?} not found in any namespace")))),
        (count, Some(last)) => {
            let mut message = escape(&format!(
                "{resource} {name:?} is ambiguous ({count} objects): use -n NAMESPACE, or one of these:"
            ))
            .into_owned();
            for object in found.iter().chain([&last]) {
                message.push_str("\n  ");
                // Also for an object without namespace: a name alone would be searched in all namespaces again.
                let slash = if object.namespace.is_empty() && !object.name.contains('/') { "/" } else { "" };
                message.push_str(slash);
                message.push_str(&escape(&reference(object)));
            }
            Err(Failure::usage(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_namespace_is_looked_up_in_all() {
        let key = |namespace, name| Target::Key { namespace, name };
        assert_eq!(Target::parse("web", None), Target::Anywhere { name: "web" });
        assert_eq!(Target::parse("shop/web", None), key("shop", "web"));
        assert_eq!(Target::parse("/dir/flags.json", None), key("", "dir/flags.json"));
        assert_eq!(Target::parse("web", Some("shop")), key("shop", "web"));
        assert_eq!(Target::parse("shop/web", Some("shop")), key("shop", "web"));
        assert_eq!(Target::parse("a/b", Some("shop")), key("shop", "a/b"));
    }

    #[test]
    fn an_ambiguous_name_is_an_error_with_the_candidates() {
        let object = |namespace: &str| pb::Object {
            namespace: namespace.to_owned(),
            name: "web".to_owned(),
            ..Default::default()
        };
        assert_eq!(one_of("pods", "web", vec![object("shop")]), Ok(object("shop")));
        let failure = one_of("pods", "web", vec![object(""), object("orders"), object("shop")]).unwrap_err();
        let expected = "pods \"web\" is ambiguous (3 objects): use -n NAMESPACE, or one of these:\n  \
                        /web\n  orders/web\n  shop/web";
        assert_eq!(failure.message.as_deref(), Some(expected));
        let failure = one_of("pods", "web", Vec::new()).unwrap_err();
        assert_eq!(failure, Failure::new(NOT_FOUND, "pods \"web\" not found in any namespace"));
    }
}
