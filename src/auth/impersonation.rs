//! Impersonation: the headers of a call on behalf of another user, with the names that they have in Kubernetes.
//!
//! The headers are binary (`-bin`, base64), because the name of a user may have any character.

use std::{fmt, str};

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::identity::{Identity, IdentityDetails};

/// Reason why a call cannot be made on behalf of a user, or does not name one. In one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ImpersonationError(String);

/// Header of an answer to a call on behalf of a user: its name. It shows that nothing between the two has removed the headers
/// of the request, and that the server supports them.
pub const IMPERSONATED_USER: HeaderName = HeaderName::from_static("impersonated-user-bin");

const PREFIX: &str = "impersonate-";
const USER: HeaderName = HeaderName::from_static("impersonate-user-bin");
/// Values separated by commas: many of them, each in a header of its own, would need twice the room.
const GROUPS: HeaderName = HeaderName::from_static("impersonate-group-bin");
/// Most groups: the right to each may be reviewed.
const MAX_GROUPS: usize = 256;
/// Most bytes of the headers of a request: together with a token of 8 KiB they are less than the 16 KiB that a server accepts.
const MAX_BYTES: usize = 6 << 10;
/// Base64 without padding, and with or without it in what others send.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_encode_padding(false).with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Returns the headers of a call on behalf of a user with its groups.
///
/// # Errors
///
/// If there are too many.
pub fn impersonation_headers(identity: &Identity) -> Result<HeaderMap, ImpersonationError> {
    let groups = &identity.details().groups;
    let user = BASE64.encode(identity.user());
    let encoded = groups.iter().map(|group| BASE64.encode(group)).collect::<Vec<_>>().join(",");
    let bytes = user.len() + encoded.len();
    if groups.len() > MAX_GROUPS || bytes > MAX_BYTES {
        return Err(ImpersonationError(format!(
            "identity too large to be forwarded: {} groups and {bytes} bytes (limits: {MAX_GROUPS} and {MAX_BYTES})",
            groups.len()
        )));
    }
    let mut headers = HeaderMap::new();
    headers.insert(USER, value(user)?);
    if !groups.is_empty() {
        headers.insert(GROUPS, value(encoded)?);
    }
    Ok(headers)
}

/// Returns true if a call is on behalf of somebody, or tries to be.
pub fn is_impersonating(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with(PREFIX))
}

/// Returns the user on whose behalf a call is made, if there is one.
///
/// # Errors
///
/// If the headers do not name one user, or say more than this version understands.
pub fn impersonated(headers: &HeaderMap) -> Result<Option<Identity>, ImpersonationError> {
    let unknown = |name: &&HeaderName| name.as_str().starts_with(PREFIX) && **name != USER && **name != GROUPS;
    if let Some(name) = headers.keys().find(unknown) {
        let problem = format!("unsupported header {name}; supported: {USER} and {GROUPS}");
        return Err(ImpersonationError(problem));
    }
    let mut users = decoded(headers, &USER)?;
    let groups = decoded(headers, &GROUPS)?;
    if groups.len() > MAX_GROUPS {
        return Err(ImpersonationError(format!("{GROUPS}: more than {MAX_GROUPS} groups")));
    }
    match (users.pop(), users.is_empty()) {
        (Some(user), true) => Ok(Some(Identity::new(IdentityDetails { user, groups, ..IdentityDetails::default() }))),
        (None, _) if groups.is_empty() && !is_impersonating(headers) => Ok(None),
        (_, _) => Err(ImpersonationError(format!("{USER}: expected one user"))),
    }
}

/// Returns the header of the answer to a call on behalf of a user.
pub fn impersonated_user(identity: &Identity) -> Option<HeaderValue> {
    value(BASE64.encode(identity.user())).ok()
}

fn value(text: String) -> Result<HeaderValue, ImpersonationError> {
    HeaderValue::try_from(text).map_err(|error| ImpersonationError(error.to_string()))
}

fn decoded(headers: &HeaderMap, name: &HeaderName) -> Result<Vec<String>, ImpersonationError> {
    let problem = |problem: &dyn fmt::Display| ImpersonationError(format!("{name}: {problem}"));
    let mut names = Vec::new();
    for value in headers.get_all(name) {
        // gRPC allows a proxy to join values.
        for encoded in value.as_bytes().split(|byte| *byte == b',') {
            let bytes = BASE64.decode(encoded.trim_ascii()).map_err(|_| problem(&"not base64"))?;
            let name = String::from_utf8(bytes).map_err(|_| problem(&"a name is not UTF-8"))?;
            if name.is_empty() {
                return Err(problem(&"a name is empty"));
            }
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity(user: &str, groups: &[&str]) -> Identity {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Identity::new(IdentityDetails { user: user.to_owned(), groups, ..IdentityDetails::default() })
    }

    fn read(headers: &[(&'static str, &str)]) -> Result<Option<Identity>, String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        impersonated(&map).map_err(|error| error.to_string())
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        #[test]
        fn names_of_any_characters_are_forwarded(user in ".{1,20}", groups in prop::collection::vec(".{1,20}", 0..5)) {
            let sent = identity(&user, &groups.iter().map(String::as_str).collect::<Vec<_>>());
            let headers = impersonation_headers(&sent).unwrap();
            prop_assert!(is_impersonating(&headers));
            prop_assert_eq!(impersonated(&headers), Ok(Some(sent)));
        }
    }

    #[test]
    fn values_may_be_joined_repeated_or_padded() {
        for groups in [
            &[("impersonate-group-bin", "d2Vi, b3Bz")][..],
            &[("impersonate-group-bin", "d2Vi"), ("impersonate-group-bin", "b3Bz")],
        ] {
            let user = [("impersonate-user-bin", "YW5uYQ==")];
            assert_eq!(read(&[&user, groups].concat()), Ok(Some(identity("anna", &["ops", "web"]))));
        }
        assert_eq!(read(&[("x", "y")]), Ok(None));
    }

    #[test]
    fn headers_that_do_not_name_one_user_are_refused() {
        let user = ("impersonate-user-bin", "YW5u");
        for (headers, problem) in [
            (
                &[("impersonate-user", "ann")][..],
                "unsupported header impersonate-user; supported: impersonate-user-bin and",
            ),
            (&[user, ("impersonate-uid", "7")], "unsupported header impersonate-uid"),
            (&[user, ("impersonate-extra-x-bin", "eA")], "unsupported header impersonate-extra-x-bin"),
            (&[user, user], "impersonate-user-bin: expected one user"),
            (&[("impersonate-user-bin", "YW5u,YW5u")], "impersonate-user-bin: expected one user"),
            (&[("impersonate-group-bin", "d2Vi")], "impersonate-user-bin: expected one user"),
            (&[("impersonate-user-bin", "")], "impersonate-user-bin: a name is empty"),
            (&[user, ("impersonate-group-bin", "d2Vi,,")], "impersonate-group-bin: a name is empty"),
            (&[("impersonate-user-bin", "?")], "impersonate-user-bin: not base64"),
            (&[("impersonate-user-bin", "/w")], "impersonate-user-bin: a name is not UTF-8"),
        ] {
            let found = read(headers).unwrap_err();
            assert!(found.contains(problem), "{headers:?}: {found}");
        }
        let many = (0..257).map(|_| "eA").collect::<Vec<_>>().join(",");
        assert!(read(&[user, ("impersonate-group-bin", &many)]).unwrap_err().contains("more than 256 groups"));
    }

    #[test]
    fn an_identity_that_no_server_would_accept_is_not_sent() {
        let names = |count: usize| (0..count).map(|number| format!("group-{number}")).collect::<Vec<_>>();
        let of = |names: &[String]| identity("ann", &names.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(impersonation_headers(&of(&names(256))).is_ok());
        for identity in [of(&names(257)), identity(&"x".repeat(8000), &[])] {
            let error = impersonation_headers(&identity).unwrap_err().to_string();
            assert!(error.contains("too large to be forwarded"), "{error}");
        }
    }
}
