//! What is promised in writing: the proto is documented to the last field, reflection serves it with google.rpc's details,
//! and the README has every key of the configuration.

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

#[test]
fn the_readme_has_every_key_of_the_configuration() {
    let readme = include_str!("../../README.md");
    for informerd::config::Key { path, default, meaning } in informerd::config::reference() {
        let default = default.map(|default| format!("`{default}`")).unwrap_or_default();
        let row = format!("| `{path}` | {default} | {meaning} |");
        assert!(readme.lines().any(|line| line == row), "not in the README: {row}");
    }
}
