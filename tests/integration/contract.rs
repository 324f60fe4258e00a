//! The documented contract: every element of the proto has a comment, reflection serves the proto with google.rpc's details, and
//! `docs/` has every key of the configuration, every RPC and every reason of a problem.

use std::{collections::BTreeSet, env, fs, path::Path};

use informerd::{
    cache::ProblemReason,
    config::{Key, reference},
    proto::pb::FILE_DESCRIPTOR_SET,
};
use prost::Message;
use prost_types::{FileDescriptorProto, FileDescriptorSet};

fn files() -> Vec<FileDescriptorProto> {
    FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap().file
}

/// Checks for a comment above each element: grpcurl's `describe` shows those, and no others.
#[test]
fn every_service_method_message_field_and_enum_value_is_documented() {
    let files = files();
    let ours = files.iter().find(|file| file.package() == "informerd.v1").unwrap();
    let locations = &ours.source_code_info.as_ref().unwrap().location;
    let is_documented = |path: &[i32]| {
        let location = locations.iter().find(|location| location.path == path);
        location.is_some_and(|location| !location.leading_comments().trim().is_empty())
    };
    // Field numbers of FileDescriptorProto: 4 messages, 5 enums, 6 services; of their parts: 2.
    let mut missing = Vec::new();
    for (at, message) in (0..).zip(&ours.message_type) {
        let mut check = |path: &[i32], name: String| {
            if !is_documented(path) {
                missing.push(name);
            }
        };
        check(&[4, at], message.name().to_owned());
        for (field_at, field) in (0..).zip(&message.field) {
            check(&[4, at, 2, field_at], format!("{}.{}", message.name(), field.name()));
        }
    }
    for (at, each) in (0..).zip(&ours.enum_type) {
        let values = (0..).zip(&each.value).filter(|(value_at, _)| !is_documented(&[5, at, 2, *value_at]));
        missing.extend(values.map(|(_, value)| value.name().to_owned()));
        missing.extend((!is_documented(&[5, at])).then(|| each.name().to_owned()));
    }
    for (at, service) in (0..).zip(&ours.service) {
        let methods = (0..).zip(&service.method).filter(|(method_at, _)| !is_documented(&[6, at, 2, *method_at]));
        missing.extend(methods.map(|(_, method)| method.name().to_owned()));
        missing.extend((!is_documented(&[6, at])).then(|| service.name().to_owned()));
    }
    assert_eq!(missing, Vec::<String>::new(), "without a comment above them");
}

#[test]
fn reflection_can_resolve_what_is_in_the_details_of_a_status() {
    let files = files();
    let details = files.iter().find(|file| file.name() == "google/rpc/error_details.proto").unwrap();
    let messages: Vec<&str> = details.message_type.iter().map(prost_types::DescriptorProto::name).collect();
    assert!(messages.contains(&"ErrorInfo") && messages.contains(&"RetryInfo"), "{messages:?}");
    for file in &files {
        for dependency in &file.dependency {
            assert!(files.iter().any(|other| other.name() == dependency), "{dependency} is not in the set");
        }
    }
}

/// Returns the rows of the first table below a heading, each with the text of its first column.
pub(crate) fn table<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let section = page.split(&format!("\n{heading}\n")).nth(1).unwrap_or_else(|| panic!("no heading {heading:?}"));
    let rows = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    rows.skip(2).map(|row| row.split('|').nth(1).unwrap().trim().trim_matches('`')).collect()
}

/// Returns the row of a key, as the table of the page has it.
fn row(key: &Key) -> String {
    let Key { path, form, default, meaning, flag } = key;
    let form = form.replace('_', " ");
    let default = default.map(|default| format!("`{default}`")).unwrap_or_default();
    let flag = flag.map(|flag| format!(" (`--{}`, `{}`)", flag.name, flag.variable)).unwrap_or_default();
    format!("| `{path}` | {form} | {default} | {meaning}{flag} |\n")
}

/// Compares the page with the keys; writes it with `UPDATE_DOCS=1`.
#[test]
fn the_configuration_page_has_every_key_and_no_other() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let page = fs::read_to_string(&path).unwrap();
    let head = "\n## Keys\n\n| key | form | default | meaning |\n|---|---|---|---|\n";
    let (before, rows) = page.split_once(head).expect("the heading and the head of the table");
    let expected: String = reference().iter().map(row).collect();
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, format!("{before}{head}{expected}")).unwrap();
    } else {
        let differ = rows.lines().zip(expected.lines()).find(|(row, expected)| row != expected);
        assert!(rows == expected, "docs/configuration.md is not as the code: run with UPDATE_DOCS=1: {differ:?}");
    }
}

#[test]
fn the_api_page_has_every_rpc_and_no_other() {
    let files = files();
    let ours = files.iter().find(|file| file.package() == "informerd.v1").unwrap();
    let service = ours.service.iter().find(|service| service.name() == "InformerService").unwrap();
    let methods: BTreeSet<&str> = service.method.iter().map(prost_types::MethodDescriptorProto::name).collect();
    let rows = table(include_str!("../../docs/api.md"), "## RPCs");
    assert_eq!(rows.len(), methods.len(), "{rows:?}");
    assert_eq!(BTreeSet::from_iter(rows), methods);
}

/// Compares the reasons in the comment of `Problem.reason` with those of the page.
#[test]
fn the_api_page_has_every_reason_of_a_problem() {
    let rows = table(include_str!("../../docs/api.md"), "## Standing problems");
    let proto = include_str!("../../proto/informerd/v1/informerd.proto");
    let comment = proto.split("message Problem {").nth(1).and_then(|rest| rest.split("string reason").next()).unwrap();
    let is_reason = |word: &&str| word.len() > 6 && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    let reasons: Vec<&str> = comment.split('"').skip(1).step_by(2).filter(is_reason).collect();
    assert_eq!(rows, reasons);
    assert_eq!(reasons, ProblemReason::ALL.map(ProblemReason::as_str));
}

/// Compares the policies of the proto with those that a configuration allows by default, which it reads by their names, and with
/// the rows of the page.
#[test]
fn every_policy_can_be_configured_and_has_a_row() {
    let files = files();
    let ours = files.iter().find(|file| file.package() == "informerd.v1").unwrap();
    let policies = ours.enum_type.iter().find(|policies| policies.name() == "FullChannelPolicy").unwrap();
    let names: BTreeSet<&str> =
        policies.value[1..].iter().map(|value| value.name().strip_prefix("FULL_CHANNEL_POLICY_").unwrap()).collect();
    let keys = reference();
    let allowed = keys.iter().find(|key| key.path == "watch.allowed_policies").and_then(|key| key.default).unwrap();
    let allowed = allowed.trim_matches(['[', ']']).to_uppercase();
    assert_eq!(allowed.split(", ").collect::<BTreeSet<_>>(), names);
    let page = format!("\n{}", include_str!("../../docs/policies.md"));
    let rows = table(&page, "# Policies for slow clients");
    assert_eq!(rows.iter().map(|row| row.split('`').next().unwrap()).collect::<BTreeSet<_>>(), names);
}
