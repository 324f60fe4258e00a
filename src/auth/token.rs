//! Bearer token of a call.

use std::{fmt, sync::Arc};

/// Bearer token. Neither `Debug` nor an error shows it. Clones share it.
#[derive(Clone)]
pub struct Token(Arc<str>);

/// Values of `authorization` headers that are not one bearer token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not one bearer token")]
pub struct TokenError;

/// Largest token, in bytes: that of the client library.
const MAX_BYTES: usize = 8 << 10;
const SCHEME: &str = "bearer";

// === impl Token ===

impl Token {
    /// Reads the values of all `authorization` headers of a call; `None` if there are none.
    ///
    /// # Errors
    ///
    /// If there is more than one, or if it is not `Bearer TOKEN`: which of several credentials counts must not depend on the
    /// reader.
    pub fn from_headers<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<Self>, TokenError> {
        let mut values = values.into_iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => Self::parse(value).map(Some).ok_or(TokenError),
            (Some(_), Some(_)) => Err(TokenError),
        }
    }

    /// Parses `Bearer TOKEN`; the scheme is not case-sensitive, and the token is of visible ASCII characters.
    fn parse(value: &[u8]) -> Option<Self> {
        let (scheme, token) = std::str::from_utf8(value).ok()?.trim_ascii().split_once(' ')?;
        let token = token.trim_ascii_start();
        let is_token = (1..=MAX_BYTES).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
        (scheme.eq_ignore_ascii_case(SCHEME) && is_token).then(|| Self(token.into()))
    }

    /// Returns the token itself, which must not be logged.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_well_formed_header_is_a_token() {
        let parse = |values: &[&str]| Token::from_headers(values.iter().map(|value| value.as_bytes()));
        for value in ["Bearer abc", "bearer abc", "BEARER   abc", " Bearer abc "] {
            assert_eq!(parse(&[value]).unwrap().unwrap().expose(), "abc", "{value}");
        }
        assert!(parse(&[]).unwrap().is_none());
        let long = format!("Bearer {}", "x".repeat(MAX_BYTES + 1));
        assert!(parse(&[&long[..long.len() - 1]]).is_ok());
        for values in [
            &["Bearer"][..],
            &["Bearer "],
            &["abc"],
            &["Basic abc"],
            &["Bearer a b"],
            &["Bearer a, Bearer b"],
            &["Bearer\tabc"],
            &["Bearer a\u{e9}"],
            &[""],
            &[&long],
            &["Bearer abc", "Bearer abc"],
            &["Bearer abc", ""],
        ] {
            assert_eq!(parse(values).err(), Some(TokenError), "{values:?}");
        }
        assert_eq!(Token::from_headers([&b"Bearer \xff"[..]]).err(), Some(TokenError));
    }

    #[test]
    fn a_token_is_not_shown() {
        let token = Token::from_headers([&b"Bearer canary"[..]]).unwrap();
        assert_eq!(format!("{token:?}"), "Some(Token(redacted))");
    }
}
