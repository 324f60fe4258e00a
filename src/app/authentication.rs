//! Authenticators, from the configuration.

use std::sync::Arc;

use super::error::AppError;
use crate::{
    auth::{Authentication, JwtVerifier, TokenFile},
    config::{AuthenticationConfig, Config},
};

/// Loads the authenticators; `None` if none is configured.
pub(super) fn load(config: &Config) -> Result<Option<Arc<Authentication>>, AppError> {
    let Some(AuthenticationConfig { accepts_certificates, token_file, jwt }) = &config.authentication else {
        return Ok(None);
    };
    let token_file = token_file.as_deref().map(TokenFile::load).transpose()?;
    let jwt = jwt.clone().map(JwtVerifier::load).transpose()?;
    Ok(Some(Arc::new(Authentication { accepts_certificates: *accepts_certificates, token_file, jwt })))
}

/// Logs what an operator may not have meant.
pub(super) fn warn(config: &Config) {
    let accepts_tokens = config.authentication.as_ref().is_some_and(AuthenticationConfig::accepts_tokens);
    if accepts_tokens && config.tls.is_none() && !config.general.listen.is_local() {
        tracing::warn!(address = %config.general.listen, "bearer tokens pass the network in plain text; add `tls`");
    }
}
