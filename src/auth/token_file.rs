//! Static bearer tokens: a file with a line for each, by the hash of the token.

use std::{collections::HashMap, path::Path, sync::Arc};

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

use super::{FileError, Identity, IdentityDetails, Token};
use crate::net::ReloadedFiles;

/// Static bearer tokens of a file, which is read again when it changes.
#[derive(Debug, Clone)]
pub struct TokenFile(Arc<ReloadedFiles<Users>>);

/// Users by the SHA-256 of their tokens. The file has no token, so whoever reads it cannot call; and a look-up by the hash takes
/// no time that depends on a token.
type Users = HashMap<[u8; SHA256_OUTPUT_LEN], Identity>;

// === impl TokenFile ===

impl TokenFile {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or a line has another form; the error shows nothing of the line.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        ReloadedFiles::load_one(path, parse).map(Self)
    }

    /// Returns the user of a token; `None` if the file does not have it.
    pub(super) fn user(&self, token: &Token) -> Option<Identity> {
        let digest = digest(&SHA256, token.expose().as_bytes());
        self.0.with(|users| users.get(digest.as_ref()).cloned())
    }

    /// Reads the file again whenever it changes; never returns.
    pub(super) async fn reload(&self) {
        Arc::clone(&self.0).reload(|| {}).await;
    }
}

fn parse(content: &[u8]) -> Result<Users, String> {
    let content = std::str::from_utf8(content).map_err(|_| "is not UTF-8".to_owned())?;
    let mut users = Users::new();
    for (line, number) in content.lines().zip(1..) {
        let mut fields = line.split_whitespace();
        let Some(first) = fields.next().filter(|first| !first.starts_with('#')) else { continue };
        let (user, groups, rest) = (fields.next(), fields.next(), fields.next());
        let (Some(hash), Some(user), None) = (hash_of(first), user, rest) else {
            return Err(format!(
                "line {number} has not the form `HASH USER [GROUP,GROUP…]`; HASH is what `printf %s TOKEN | sha256sum` prints"
            ));
        };
        let groups = groups.into_iter().flat_map(|groups| groups.split(',')).filter(|group| !group.is_empty());
        let details = IdentityDetails {
            user: user.to_owned(),
            groups: groups.map(str::to_owned).collect(),
            ..IdentityDetails::default()
        };
        let identity = Identity::new(details);
        if identity.reserved().is_some() {
            return Err(format!(
                "line {number} has a user or group that begins with `system:`; only Kubernetes may authenticate those (token_review)"
            ));
        }
        if users.insert(hash, identity).is_some() {
            return Err(format!("line {number} has the hash of an earlier line; remove one"));
        }
    }
    Ok(users)
}

/// Parses a SHA-256 in hexadecimal digits.
fn hash_of(hex: &str) -> Option<[u8; SHA256_OUTPUT_LEN]> {
    let mut hash = [0; SHA256_OUTPUT_LEN];
    if hex.len() != 2 * SHA256_OUTPUT_LEN || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in hash.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of `secret`.
    const HASH: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

    fn token(token: &str) -> Token {
        Token::from_headers([format!("Bearer {token}").as_bytes()]).unwrap().unwrap()
    }

    fn file(text: &str) -> Result<TokenFile, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        std::fs::write(&path, text).unwrap();
        TokenFile::load(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_is_found_by_its_hash() {
        let text = format!("# CI\n\n  {HASH}\tci  team-b,team-a,,\r\n{} other\n", "0".repeat(64));
        let users = file(&text).unwrap();
        let user = users.user(&token("secret")).unwrap();
        assert_eq!(user.user(), "ci");
        assert_eq!(user.details().groups, ["team-a", "team-b"]);
        assert_eq!(file(&text.to_uppercase()).unwrap().user(&token("secret")).unwrap().user(), "CI");
        for other in ["Secret", "secre", HASH] {
            assert!(users.user(&token(other)).is_none(), "{other}");
        }
    }

    #[test]
    fn the_error_of_a_line_has_its_number_and_not_its_content() {
        for (line, problem) in [
            ("canary ci", "line 2 has not the form `HASH USER [GROUP,GROUP…]`"),
            (HASH, "line 2 has not the form"),
            (&format!("{HASH} canary a b"), "line 2 has not the form"),
            (&format!("{HASH}0 canary"), "line 2 has not the form"),
            (&format!("é{} canary", "0".repeat(62)), "line 2 has not the form"),
            (&format!("{HASH} canary a,system:masters"), "line 2 has a user or group that begins with `system:`"),
            (&format!("{HASH} system:canary"), "line 2 has a user or group that begins with `system:`"),
            (&format!("{HASH} canary\n{HASH} other"), "line 3 has the hash of an earlier line"),
        ] {
            let problem_found = file(&format!("# tokens\n{line}")).unwrap_err();
            assert!(problem_found.contains(problem) && !problem_found.contains("canary"), "{problem_found}");
        }
    }
}
