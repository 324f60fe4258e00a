//! Keys of the authenticators.

use super::{AuthenticationConfig, TlsConfig, section::Section, table::AuthenticationKeys};

/// Reads the section; `None` without an authenticator.
pub(super) fn resolve(section: &Section<'_>, tls: Option<&TlsConfig>) -> Option<AuthenticationConfig> {
    let AuthenticationKeys { client_certificates, token_file } = AuthenticationKeys::read(section);
    if client_certificates && tls.is_none_or(|tls| tls.client_ca.is_none()) {
        section.add("client_certificates", "needs the certificates of their signers; add `tls: { client_ca: ... }`");
    }
    let token_file = token_file.map(|path| section.relative(&path));
    (client_certificates || token_file.is_some())
        .then_some(AuthenticationConfig { accepts_certificates: client_certificates, token_file })
}

// === impl AuthenticationConfig ===

impl AuthenticationConfig {
    /// Returns true if callers may send a bearer token.
    pub fn accepts_tokens(&self) -> bool {
        self.token_file.is_some()
    }
}
