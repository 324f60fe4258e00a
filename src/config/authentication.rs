//! Keys of the authenticators.

use super::{
    AuthenticationConfig, TlsConfig, TokenReviewConfig,
    section::Section,
    table::{AuthenticationKeys, JwtKeys},
};
use crate::auth::{CertificateNames, CertificateUser, JwtConfig};

const WITHOUT: &str =
    "this informerd was built without the Kubernetes API (cargo feature `kube`); write `token_file` or `jwt`";

/// Reads the section: the authenticators, `None` without one, and the names of certificates, which count without one too.
pub(super) fn resolve(
    section: &Section<'_>,
    tls: Option<&TlsConfig>,
) -> (Option<AuthenticationConfig>, CertificateNames) {
    let AuthenticationKeys { client_certificates, certificate_user, certificate_system_names, token_file } =
        AuthenticationKeys::read(section);
    if tls.is_none_or(|tls| tls.client_ca.is_none()) {
        let is_other = certificate_user != CertificateUser::default();
        let keys = [
            ("client_certificates", client_certificates),
            ("certificate_user", is_other),
            ("certificate_system_names", certificate_system_names),
        ];
        for (key, _) in keys.into_iter().filter(|(_, is_set)| *is_set) {
            section.add(key, "needs the certificates of their signers; add `tls: { client_ca: ... }`");
        }
    }
    let jwt = section.is_written("jwt").then(|| section.section("jwt")).flatten().map(|section| {
        let JwtKeys { issuer, audiences, keys, user_claim, user_prefix, groups_claim, groups_prefix } =
            JwtKeys::read(&section);
        let groups_prefix = groups_prefix.unwrap_or_else(|| format!("{issuer}:"));
        let keys = section.relative(&keys);
        JwtConfig { issuer, audiences, keys, user_claim, user_prefix, groups_claim, groups_prefix }
    });
    let token_review = section.is_written("token_review").then(|| section.section("token_review")).flatten();
    let token_review = token_review.map(|section| {
        if !cfg!(feature = "kube") {
            section.add_here(WITHOUT);
        }
        let read = TokenReviewConfig::read(&section);
        let kubeconfig = read.kubeconfig.as_deref().map(|path| section.relative(path));
        TokenReviewConfig { kubeconfig, ..read }
    });
    let config = AuthenticationConfig {
        accepts_certificates: client_certificates,
        token_file: token_file.map(|path| section.relative(&path)),
        jwt,
        token_review,
    };
    let names = CertificateNames { user: certificate_user, has_system_names: certificate_system_names };
    ((config.accepts_certificates || config.accepts_tokens()).then_some(config), names)
}

// === impl AuthenticationConfig ===

impl AuthenticationConfig {
    /// Returns true if callers may send a bearer token.
    pub fn accepts_tokens(&self) -> bool {
        self.token_file.is_some() || self.jwt.is_some() || self.token_review.is_some()
    }
}
