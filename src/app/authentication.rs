//! Authenticators, from the configuration.

use std::{sync::Arc, time::Duration};

use super::error::AppError;
use crate::{
    auth::{Authentication, JwtVerifier, TokenFile, TokenReviews},
    config::{AuthenticationConfig, Config, TokenReviewConfig},
    source::kube::{KubeClients, KubeCluster, KubeReviewer},
};

/// Time for which a token that was authenticated is not reviewed again: that of an API server for its own webhook.
const REVIEWED_TTL: Duration = Duration::from_secs(120);

/// Loads the authenticators; `None` if none is configured.
pub(super) fn load(config: &Config, clients: &KubeClients) -> Result<Option<Arc<Authentication>>, AppError> {
    let Some(AuthenticationConfig { accepts_certificates, token_file, jwt, token_review, .. }) =
        config.authentication.clone()
    else {
        return Ok(None);
    };
    let authentication = Authentication {
        accepts_certificates,
        token_file: token_file.as_deref().map(TokenFile::load).transpose().map_err(AppError::authentication)?,
        jwt: jwt.map(JwtVerifier::load).transpose().map_err(AppError::authentication)?,
        token_reviews: token_review.map(|review| reviews(review, config.limits.peer_share, clients)).transpose()?,
    };
    Ok(Some(Arc::new(authentication)))
}

fn reviews(config: TokenReviewConfig, peer_share: u32, clients: &KubeClients) -> Result<TokenReviews, AppError> {
    let TokenReviewConfig { audiences, kubeconfig } = config;
    let cluster = KubeCluster { kubeconfig, context: None };
    KubeReviewer::check(&cluster).map_err(AppError::authentication)?;
    Ok(TokenReviews::new(Arc::new(KubeReviewer::new(&cluster, clients)), audiences, REVIEWED_TTL, peer_share))
}

/// Logs what an operator may not have meant.
pub(super) fn warn(config: &Config) {
    let accepts_tokens = config.authentication.as_ref().is_some_and(AuthenticationConfig::accepts_tokens);
    if accepts_tokens && config.tls.is_none() && !config.general.listen.is_local() {
        tracing::warn!(address = %config.general.listen, "bearer tokens pass the network in plain text; add `tls`");
    }
}
