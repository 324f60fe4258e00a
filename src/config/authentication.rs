//! Keys of the authenticators.

use super::{
    AuthenticationConfig, TlsConfig,
    section::Section,
    table::{AuthenticationKeys, JwtKeys},
};
use crate::auth::JwtConfig;

/// Reads the section; `None` without an authenticator.
pub(super) fn resolve(section: &Section<'_>, tls: Option<&TlsConfig>) -> Option<AuthenticationConfig> {
    let AuthenticationKeys { client_certificates, token_file } = AuthenticationKeys::read(section);
    if client_certificates && tls.is_none_or(|tls| tls.client_ca.is_none()) {
        section.add("client_certificates", "needs the certificates of their signers; add `tls: { client_ca: ... }`");
    }
    let jwt = section.is_written("jwt").then(|| section.section("jwt")).flatten().map(|section| {
        let JwtKeys { issuer, audiences, keys, user_claim, user_prefix, groups_claim } = JwtKeys::read(&section);
        JwtConfig { issuer, audiences, keys: section.relative(&keys), user_claim, user_prefix, groups_claim }
    });
    let config = AuthenticationConfig {
        accepts_certificates: client_certificates,
        token_file: token_file.map(|path| section.relative(&path)),
        jwt,
    };
    (config.accepts_certificates || config.accepts_tokens()).then_some(config)
}

// === impl AuthenticationConfig ===

impl AuthenticationConfig {
    /// Returns true if callers may send a bearer token.
    pub fn accepts_tokens(&self) -> bool {
        self.token_file.is_some() || self.jwt.is_some()
    }
}
