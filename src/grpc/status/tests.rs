//! Statuses of errors: codes, reasons and details.

use super::*;

#[test]
fn a_status_carries_its_reason_metadata_and_delay() {
    let current = ResourceVersion::decimal(9);
    let refusal = ApiError::VersionTooLarge { wanted: ResourceVersion::decimal(12), current: current.to_string() };
    let status = refusal.to_status();
    assert_eq!(status.code(), Code::Unavailable);
    let details = status.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!(
        (&*info.reason, &*info.domain, &*info.metadata["current"]),
        ("RESOURCE_VERSION_TOO_LARGE", "informerd", "9")
    );
    assert_eq!(details.retry_info().unwrap().retry_delay, Some(RETRY_SOON));
}

#[test]
fn the_last_message_of_a_watch_is_the_status_of_its_end() {
    let refusal = ApiError::SlowConsumer { after: ResourceVersion::decimal(4) };
    let message = refusal.to_proto();
    assert_eq!(message.code, Code::ResourceExhausted as i32);
    assert_eq!(message.message, refusal.to_status().message());
    assert_eq!(message.details.len(), 2, "ErrorInfo and RetryInfo");
}

#[test]
fn messages_are_one_line_with_the_next_step() {
    let refusal = ApiError::ResourceNotFound { resource: "pod".into(), known: vec!["pods".into(), "nodes".into()] };
    assert_eq!(refusal.to_status().message(), "resource \"pod\" not found; known: pods, nodes");
    let refusal = ApiError::ObjectNotFound { resource: "pods".into(), key: "shop/x".into() };
    assert_eq!(refusal.to_status().message(), "pods \"shop/x\" not found");
    let after = ResourceVersion::decimal(812);
    let expired = ApiError::end(&End::Expired { oldest: ResourceVersion::decimal(900) }, &after).to_status();
    assert!(expired.message().starts_with("resource version 812 has expired (oldest: 900, "), "{expired:?}");
    let error = crate::model::LabelSelector::parse("app in x").unwrap_err();
    let message = ApiError::selector("label_selector", &error).to_status().message().to_owned();
    assert!(message.starts_with("label_selector, character 8: ") && !message.contains('\n'), "{message}");
}
