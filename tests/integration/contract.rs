//! What is promised in writing: the proto is documented to the last field, reflection serves it with google.rpc's details,
//! and `docs/` has every key of the configuration, every RPC and every reason of a problem.

use std::collections::BTreeSet;

use informerd::proto::pb::FILE_DESCRIPTOR_SET;
use prost::Message;
use prost_types::{FileDescriptorProto, FileDescriptorSet};

fn files() -> Vec<FileDescriptorProto> {
    FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap().file
}

/// grpcurl's `describe` shows the comments above what they document, and only those.
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

/// The rows of the first table below a heading, each with the text of its first column.
fn table<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let section = page.split(&format!("\n{heading}\n")).nth(1).unwrap_or_else(|| panic!("no heading {heading:?}"));
    let rows = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    rows.skip(2).map(|row| row.split('|').nth(1).unwrap().trim().trim_matches('`')).collect()
}

#[test]
fn the_configuration_page_has_every_key_and_no_other() {
    let page = include_str!("../../docs/configuration.md");
    let reference = informerd::config::reference();
    for informerd::config::Key { path, default, meaning } in reference {
        let default = default.map(|default| format!("`{default}`")).unwrap_or_default();
        let row = format!("| `{path}` | {default} | {meaning} |");
        assert!(page.lines().any(|line| line == row), "not in docs/configuration.md: {row}");
    }
    let keys: Vec<&str> = reference.iter().map(|key| key.path).collect();
    assert_eq!(table(page, "## Keys"), keys);
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

/// The comment of `Problem.reason` and the page have the same reasons.
#[test]
fn the_api_page_has_every_reason_of_a_problem() {
    let rows = table(include_str!("../../docs/api.md"), "## Standing problems");
    let proto = include_str!("../../proto/informerd/v1/informerd.proto");
    let comment = proto.split("message Problem {").nth(1).and_then(|rest| rest.split("string reason").next()).unwrap();
    let is_reason = |word: &&str| word.len() > 6 && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    let reasons: Vec<&str> = comment.split('"').skip(1).step_by(2).filter(is_reason).collect();
    assert_eq!(rows, reasons);
}
