//! Tests of the views of a resource.

use super::*;
use crate::model::{NamedViews, View};

fn views(written: &str) -> NamedViews {
    let yaml = format!("resources: {{ a: {{ source: {{ files: {{ path: /x }} }}, {written} }} }}");
    NamedViews::clone(&load(&yaml, &[]).unwrap().resources["a"].views)
}

#[test]
fn views_are_read_and_some_of_them_may_be_required() {
    let small = View::parse(&["spec.nodeName", ".status.podIPs[*].ip"], &["spec.x"]).unwrap();
    let written =
        "views: { small: { fields: [spec.nodeName, 'status.podIPs[].ip'], drop: [spec.x] }, lean: { drop: [status] } }";
    let all =
        NamedViews::new([("small".to_owned(), small), ("lean".to_owned(), View::parse(&[], &["status"]).unwrap())]);
    let all = all.unwrap();
    assert_eq!(views(written), all);
    let required = views(&format!("{written}, allowed_views: [small, '@metadata']"));
    assert_eq!(required, all.required(&["small".to_owned(), "@metadata".to_owned()]).unwrap());
    assert!(views("allowed_views: ['@no-status']").is_required(), "also without views of its own");
    assert_eq!(views("optional: true"), NamedViews::default());
}

#[test]
fn a_bad_view_is_reported_with_its_key() {
    let many: Vec<String> = (0..33).map(|number| format!("v{number}: {{ fields: [a] }}")).collect();
    let paths: Vec<String> = (0..65).map(|number| format!("f{number}")).collect();
    let paths = format!("views: {{ small: {{ fields: [{}] }} }}", paths.join(", "));
    let many = format!("views: {{ {} }}", many.join(", "));
    for (written, problem) in [
        ("views: [small]", "views: expected a map of keys, found a list"),
        ("views: { small: { } }", "views.small: view \"small\" has no paths; write `fields`, `drop` or both"),
        ("views: { '@small': { fields: [a] } }", "views.\"@small\": invalid view name \"@small\": expected at most 63"),
        ("views: { small: { fields: [] } }", "views.small.fields: expected a list of paths such as [spec.nodeName, "),
        (
            "views: { small: { fields: ['a['] } }",
            "views.small.fields: character 3: expected '*', an index or a quoted key",
        ),
        ("views: { small: { drop: [a, ''] } }", "views.small.drop: character 1: expected a key"),
        ("views: { small: { field: [a] } }", "views.small.field: unknown key; did you mean `fields`?"),
        (&paths, "views.small: 65 paths are more than 64;"),
        (&many, "views: 33 views are more than 32"),
        ("allowed_views: []", "allowed_views: expected a list of 1 to 32 names such as [small], found 0"),
        (
            "views: { small: { fields: [a] } }, allowed_views: [smal]",
            "allowed_views: view \"smal\" not found; known: @metadata, @no-managed-fields, @no-status, small",
        ),
    ] {
        let yaml = format!("resources: {{ a: {{ source: {{ files: {{ path: /x }} }}, {written} }} }}");
        let found = load(&yaml, &[]).unwrap_err().to_string();
        assert!(found.contains(&format!("resources.a.{problem}")), "{written}: {found}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
}
