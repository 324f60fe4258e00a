//! Values that are one of a few names.

use serde_json::Value;

use super::{ValueError, found};
use crate::{auth::CertificateUser, proto::Compression, watch::FullChannelPolicy};

const POLICIES: [(&str, FullChannelPolicy); 4] = [
    ("drop", FullChannelPolicy::Drop),
    ("block", FullChannelPolicy::Block),
    ("replay", FullChannelPolicy::Replay),
    ("coalesce", FullChannelPolicy::Coalesce),
];

pub(crate) fn policy(value: &Value) -> Result<FullChannelPolicy, ValueError> {
    let named = POLICIES.iter().find(|(name, _)| value.as_str() == Some(name));
    named
        .map(|(_, policy)| *policy)
        .ok_or_else(|| ValueError::expected("drop, block, replay or coalesce", found(value)))
}

pub(crate) fn certificate_user(value: &Value) -> Result<CertificateUser, ValueError> {
    match value.as_str() {
        Some("cn") => Ok(CertificateUser::CommonName),
        Some("san") => Ok(CertificateUser::AlternativeName),
        _ => Err(ValueError::expected("cn or san", found(value))),
    }
}

/// Reads a list of at least one policy; keeps its order, and drops duplicates.
pub(crate) fn policies(value: &Value) -> Result<Vec<FullChannelPolicy>, ValueError> {
    let what = "a list with at least one of drop, block, replay and coalesce";
    let policies = distinct(value, what, policy)?;
    if policies.is_empty() { Err(ValueError::expected(what, "none".to_owned())) } else { Ok(policies) }
}

/// Reads a list of compressions; keeps its order, and drops duplicates.
pub(crate) fn compressions(value: &Value) -> Result<Vec<Compression>, ValueError> {
    let known = if Compression::ALL.len() > 1 { "zstd or gzip" } else { "gzip (zstd is not part of this build)" };
    distinct(value, "a list such as [gzip]", |value| {
        let named = Compression::ALL.iter().find(|compression| value.as_str() == Some(compression.name()));
        named.copied().ok_or_else(|| ValueError::expected(known, found(value)))
    })
}

fn distinct<T: PartialEq>(
    value: &Value,
    what: &str,
    read: impl Fn(&Value) -> Result<T, ValueError>,
) -> Result<Vec<T>, ValueError> {
    let mut values = Vec::new();
    for value in value.as_array().ok_or_else(|| ValueError::expected(what, found(value)))? {
        let value = read(value)?;
        if !values.contains(&value) {
            values.push(value);
        }
    }
    Ok(values)
}

pub(crate) fn policy_name(policy: FullChannelPolicy) -> &'static str {
    match policy {
        FullChannelPolicy::Drop => "drop",
        FullChannelPolicy::Block => "block",
        FullChannelPolicy::Replay => "replay",
        FullChannelPolicy::Coalesce => "coalesce",
    }
}
