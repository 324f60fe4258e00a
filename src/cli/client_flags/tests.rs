//! Selections that flags make.

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    flags: ObjectFlags,
}

fn parse(arguments: &[&str]) -> ObjectFlags {
    Command::try_parse_from([&["test"], arguments].concat()).unwrap().flags
}

fn columns(arguments: &[&str]) -> ColumnOptions {
    parse(arguments).options().columns
}

#[test]
fn all_namespaces_unless_one_is_named() {
    assert!(columns(&[]).namespace && columns(&["-A"]).namespace && columns(&["-n", "shop", "-A"]).namespace);
    assert!(!columns(&["-n", "shop"]).namespace);
    assert_eq!(parse(&["-n", "shop"]).selection.suffix(), " in namespace \"shop\"");
    assert_eq!(parse(&["-n", "shop", "-A"]).selection.namespace(), None);
    assert!(Command::try_parse_from(["test", "-n", ""]).is_err(), "an empty variable of a script means no namespace");
}

#[test]
fn a_view_has_paths_or_a_name() {
    let view = |arguments: &[&str]| parse(arguments).selection.query("pods").unwrap().view;
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let (fields, drop) = (texts(&["metadata.labels", "spec"]), texts(&["spec.x"]));
    let expected = pb::View { fields, drop, ..pb::View::default() };
    assert_eq!(view(&["--fields", "metadata.labels,spec", "--drop", "spec.x"]), Some(expected.clone()));
    let changed = |changed, view| ChangedFlag { changed }.applied_to(Query { view, ..Query::of("pods") }).view;
    let only_if_changed = |view| Some(pb::View { only_if_changed: true, ..view });
    assert_eq!(changed(true, Some(expected.clone())), only_if_changed(expected.clone()));
    assert_eq!(changed(true, None), only_if_changed(pb::View::default()), "of anything in the body");
    assert_eq!(changed(false, Some(expected.clone())), Some(expected));
    assert_eq!(view(&["--view", "@metadata"]), Some(pb::View { name: "@metadata".to_owned(), ..pb::View::default() }));
    assert_eq!(view(&[]), None);
    for other in ["--fields", "--drop"] {
        assert!(Command::try_parse_from(["test", "--view", "@metadata", other, "a"]).is_err());
    }
}

#[test]
fn bodies_are_not_requested_for_names() {
    let sent = |arguments: &[&str], reads_bodies: bool| {
        let flags = parse(arguments);
        let Query { format, view, .. } = flags.for_output(flags.selection.query("pods").unwrap(), reads_bodies);
        (format, view.is_some())
    };
    let (raw, metadata) = (pb::PayloadFormat::Raw, pb::PayloadFormat::Metadata);
    assert_eq!(sent(&[], false), (raw, false));
    assert_eq!(sent(&["-o", "name"], false), (metadata, false));
    assert_eq!(sent(&["-o", "name", "--view", "@no-status"], false), (metadata, false));
    assert_eq!(sent(&["-o", "name"], true), (raw, false));
    assert_eq!(sent(&["--metadata"], false), (metadata, false));
    let flags = parse(&["-o", "name"]);
    let changed = ChangedFlag { changed: true }.applied_to(flags.selection.query("pods").unwrap());
    assert_eq!(flags.for_output(changed, false).format, raw, "they are compared");
    assert!(Command::try_parse_from(["test", "--metadata", "--view", "@no-status"]).is_err());
}

#[test]
fn label_columns_repeat_and_split() {
    let ColumnOptions { labels, wide, show_labels, .. } = columns(&["-L", "app,tier", "-Lx", "-o", "wide"]);
    assert_eq!(labels, ["app", "tier", "x"]);
    assert!(wide && !show_labels);
}
