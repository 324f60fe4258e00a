//! Rights of callers: every RPC against an oracle, and nothing about objects that a caller may not see.

mod explain;
mod forwarding;
mod impersonation;
mod interference;
mod oracle;
mod recheck;
mod reviews;
mod revocation;
mod rules;
mod streams;

use std::collections::BTreeSet;

use informerd::model::{NamedViews, View};

/// Namespaces and names of the objects.
const OBJECTS: [(&str, &str); 7] = [("", "a"), ("", "b"), ("x", "a"), ("x", "c"), ("y", "a"), ("y", "b"), ("z", "c")];

/// Returns the views of the server: one that leaves out the specs.
fn views() -> NamedViews {
    NamedViews::new([("small".to_owned(), View::parse(&["metadata.name"], &[]).unwrap())]).unwrap()
}

/// Returns the objects of these namespaces.
fn objects_in(is_in: impl Fn(&str) -> bool) -> BTreeSet<(&'static str, &'static str)> {
    OBJECTS.into_iter().filter(|(namespace, _)| is_in(namespace)).collect()
}
