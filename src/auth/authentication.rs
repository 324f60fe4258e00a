//! Authenticators, in the order in which they are tried.

use std::{sync::Arc, time::SystemTime};

use prometheus_client::registry::Registry;

use super::{Identity, JwtVerifier, Party, Token, TokenFile, TokenReviews};

/// Authenticators of a server. A caller who sends a token is judged by the token alone, whatever certificate it presents: who
/// sends one means it.
#[derive(Debug, Default)]
pub struct Authentication {
    /// True if a client certificate that TLS has verified is enough.
    pub accepts_certificates: bool,
    /// Static tokens.
    pub token_file: Option<TokenFile>,
    /// Tokens of an issuer whose keys are known.
    pub jwt: Option<JwtVerifier>,
    /// Tokens that another authority reviews.
    pub token_reviews: Option<TokenReviews>,
}

/// Credentials with which a call was authenticated. An open stream keeps them, to be authenticated again.
#[derive(Debug, Clone)]
pub enum Credentials {
    /// Certificate that TLS has verified.
    Certificate(Identity),
    /// Bearer token.
    Token(Token),
}

/// Sender of credentials, which decides about their turn where they have to be reviewed.
#[derive(Debug, Clone, Copy)]
pub enum Sender<'a> {
    /// Peer that makes a call.
    Peer(Party),
    /// Owner of an open stream, which was authenticated when it began.
    Stream(&'a Identity),
}

/// Reason why a caller is not authenticated. None says which users exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticationError {
    /// The call has no credentials.
    #[error("credentials missing")]
    Missing,
    /// No authenticator accepts the credentials.
    #[error("credentials invalid")]
    Invalid,
    /// The credentials were valid until some time ago.
    #[error("credentials expired")]
    Expired,
    /// The credentials could not be checked.
    #[error("credentials not checked: {problem}")]
    Unavailable {
        /// Cause, in words for the caller.
        problem: String,
    },
}

// === impl Authentication ===

impl Authentication {
    /// Returns the caller to whom these credentials belong. An open stream passes the credentials of its beginning again.
    ///
    /// # Errors
    ///
    /// If they are missing, invalid or expired, or cannot be checked now.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends a review of the token, unless others wait for it.
    pub async fn authenticate(
        &self,
        credentials: Option<&Credentials>,
        sender: Sender<'_>,
    ) -> Result<Identity, AuthenticationError> {
        let identity = match credentials {
            None => return Err(AuthenticationError::Missing),
            Some(Credentials::Certificate(_)) if !self.accepts_certificates => {
                return Err(AuthenticationError::Missing);
            }
            Some(Credentials::Certificate(identity)) => identity.clone(),
            Some(Credentials::Token(token)) => self.user(token, sender).await?,
        };
        // TLS verifies the time only at the handshake, and a connection stays open for long.
        if identity.has_expired(SystemTime::now()) { Err(AuthenticationError::Expired) } else { Ok(identity) }
    }

    /// Returns true if another authority has to review these credentials, because nothing that is known here decides about them.
    pub(crate) fn needs_review(&self, credentials: Option<&Credentials>) -> bool {
        let (Some(Credentials::Token(token)), Some(reviews)) = (credentials, &self.token_reviews) else { return false };
        let is_in_file = self.token_file.as_ref().is_some_and(|tokens| tokens.user(token).is_some());
        !is_in_file && !self.jwt.as_ref().is_some_and(|jwt| jwt.has_issued(token)) && !reviews.knows(token)
    }

    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        if let Some(reviews) = &self.token_reviews {
            reviews.register(registry);
        }
    }

    /// Reads the files again whenever they change; never returns.
    pub async fn reload(self: Arc<Self>) {
        let tokens = async {
            match &self.token_file {
                Some(tokens) => tokens.reload().await,
                None => std::future::pending().await,
            }
        };
        let keys = async {
            match &self.jwt {
                Some(jwt) => jwt.reload().await,
                None => std::future::pending().await,
            }
        };
        tokio::join!(tokens, keys);
    }

    async fn user(&self, token: &Token, sender: Sender<'_>) -> Result<Identity, AuthenticationError> {
        if let Some(identity) = self.token_file.as_ref().and_then(|tokens| tokens.user(token)) {
            return Ok(identity);
        }
        if let Some(user) = self.jwt.as_ref().and_then(|jwt| jwt.user(token, SystemTime::now())) {
            return user;
        }
        match &self.token_reviews {
            Some(reviews) => reviews.user(token, sender).await,
            None => Err(AuthenticationError::Invalid),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::auth::IdentityDetails;

    #[tokio::test]
    async fn a_certificate_is_accepted_until_it_expires_and_only_where_it_is_an_authenticator() {
        let identity = |expires| {
            let details =
                IdentityDetails { user: "me".to_owned(), expires: Some(expires), ..IdentityDetails::default() };
            Credentials::Certificate(Identity::new(details))
        };
        let (past, future) =
            (SystemTime::now() - Duration::from_secs(1), SystemTime::now() + Duration::from_secs(3600));
        let authentication = Authentication { accepts_certificates: true, ..Authentication::default() };
        let peer = Sender::Peer(Party::new(&"peer", &1));
        let authenticated = authentication.authenticate(Some(&identity(future)), peer).await;
        assert_eq!(authenticated.unwrap().user(), "me");
        let expired = authentication.authenticate(Some(&identity(past)), peer).await;
        assert_eq!(expired, Err(AuthenticationError::Expired));
        let other = Authentication::default();
        for credentials in [None, Some(&identity(future)), Some(&identity(past))] {
            assert_eq!(other.authenticate(credentials, peer).await, Err(AuthenticationError::Missing));
        }
        assert_eq!(authentication.authenticate(None, peer).await, Err(AuthenticationError::Missing));
    }
}
