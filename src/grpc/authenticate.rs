//! Authentication of a call: its identity is that of its credentials, or the one on whose behalf they may make it.
//!
//! A new call, a watch that begins on an open stream, and an open stream are judged by the same function, [`Service::judge`].

use std::time::SystemTime;

use http::{Extensions, HeaderMap, HeaderValue, Request, header};

use super::{
    audited_call::AuditedCall,
    call::{Call, Caller, Impersonator},
    grant::Authenticated,
    service::Service,
    status::ApiError,
};
use crate::{
    auth::{AccessError, Authentication, Credentials, Identity, IdentityDetails, Sender, Token, impersonated},
    model::excerpt,
    transport::CertificateExpiry,
};

// === impl Service ===

impl Service {
    /// Authenticates the caller of a request, and leaves its identity and its credentials in the extensions. Without authenticators
    /// nobody can make a call on behalf of others, or with a certificate that has expired since the handshake.
    pub(super) async fn authenticate<B>(
        &self,
        authentication: Option<&Authentication>,
        request: &mut Request<B>,
    ) -> Result<(), ApiError> {
        let Some(authentication) = authentication else {
            if has_expired(request.extensions()) {
                return Err(ApiError::CredentialsExpired);
            }
            let message = "this call has no authenticated caller who could impersonate another: remove the headers `impersonate-*`";
            return Err(ApiError::ImpersonationDenied { message: message.to_owned() });
        };
        if let Some(value) = request.headers_mut().get_mut(header::AUTHORIZATION) {
            // Debug of the request does not show it, whatever a layer of the program logs.
            value.set_sensitive(true);
        }
        let credentials = credentials(request)?;
        let caller = Caller::new(request.extensions().get().copied(), None);
        let (identity, impersonator) =
            self.identity(authentication, credentials.as_ref(), request.headers(), caller).await?;
        let extensions = request.extensions_mut();
        if let Some(audited) = extensions.get::<AuditedCall>() {
            audited.is_of(&identity, impersonator.as_ref());
        }
        extensions.insert(identity);
        if let Some(impersonator) = impersonator {
            extensions.insert(Impersonator(impersonator));
        }
        if let Some(credentials) = credentials {
            extensions.insert(credentials);
        }
        Ok(())
    }

    /// Returns the identity with which a new call is made, and that of the caller if it is another one.
    pub(super) async fn identity(
        &self,
        authentication: &Authentication,
        credentials: Option<&Credentials>,
        headers: &HeaderMap,
        caller: Caller,
    ) -> Result<(Identity, Option<Identity>), ApiError> {
        let requested = || {
            let requested = impersonated(headers);
            requested.map_err(|error| ApiError::ImpersonationDenied { message: error.to_string() })
        };
        self.judge(authentication, credentials, Sender::Peer(caller.party()), requested).await
    }

    /// Authenticates the caller of an open stream again, like that of a new call. Returns the identity of its calls.
    pub(super) async fn authenticate_again(&self, caller: &Authenticated) -> Result<Identity, ApiError> {
        let Authenticated { identity, impersonator, credentials } = caller;
        let Some(authentication) = &self.config().authentication else {
            let is_valid = !identity.has_expired(SystemTime::now());
            return is_valid.then(|| identity.clone()).ok_or(ApiError::CredentialsExpired);
        };
        let sender = Sender::Stream(impersonator.as_ref().unwrap_or(identity));
        let requested = || Ok(impersonator.as_ref().map(|_| identity.clone()));
        self.judge(authentication, credentials.as_ref(), sender, requested).await.map(|(identity, _)| identity)
    }

    /// Returns a call that begins on an open stream, after its caller was authenticated again.
    pub(super) async fn begun_on_stream(&self, mut call: Call) -> Result<Call, ApiError> {
        let Some(caller) = call.authenticated() else {
            let has_expired = call.expiry.is_some_and(|expiry| expiry.has_passed(SystemTime::now()));
            return if has_expired { Err(ApiError::CredentialsExpired) } else { Ok(call) };
        };
        let identity = self.authenticate_again(&caller).await?;
        if let Some(audited) = &call.audited {
            audited.is_of(&identity, call.impersonator.as_ref());
        }
        call.identity = Some(identity);
        Ok(call)
    }

    /// Returns the identity to which these credentials belong, or the requested one and that of the credentials.
    async fn judge(
        &self,
        authentication: &Authentication,
        credentials: Option<&Credentials>,
        sender: Sender<'_>,
        requested: impl FnOnce() -> Result<Option<Identity>, ApiError>,
    ) -> Result<(Identity, Option<Identity>), ApiError> {
        let caller = authentication.authenticate(credentials, sender).await.map_err(ApiError::authentication)?;
        Ok(match requested()? {
            None => (caller, None),
            Some(requested) => {
                let is_stream = matches!(sender, Sender::Stream(_));
                (self.impersonate(&caller, &requested, is_stream).await?, Some(caller))
            }
        })
    }

    /// Returns the identity of a call that a caller makes on behalf of another: as long as the caller's own credentials are valid.
    async fn impersonate(
        &self,
        caller: &Identity,
        requested: &Identity,
        is_stream: bool,
    ) -> Result<Identity, ApiError> {
        let decision = match &self.config().access.authorizer {
            Some(authorizer) => authorizer.impersonate(caller, requested, is_stream).await,
            None => Err(AccessError::Denied),
        };
        match decision {
            Ok(()) => {
                let expires = caller.details().expires;
                Ok(Identity::new(IdentityDetails { expires, ..requested.details().clone() }))
            }
            Err(AccessError::Unavailable { problem }) => Err(ApiError::AuthorizerUnavailable { problem }),
            Err(AccessError::Denied | AccessError::TooManyNamespaces { .. }) => {
                let groups = format!("{:?}", requested.details().groups);
                let message = format!(
                    "{:?} may not impersonate {:?} with the groups {}: ask the server's operator for the right (verb impersonate)",
                    caller.user(),
                    excerpt(requested.user()),
                    excerpt(&groups)
                );
                Err(ApiError::ImpersonationDenied { message })
            }
        }
    }
}

/// Returns true if the certificate of a connection has expired since the handshake. A watch that begins on an open stream is refused
/// then, too ([`Service::authenticate_again`]).
pub(super) fn has_expired(extensions: &Extensions) -> bool {
    let now = SystemTime::now();
    extensions.get::<CertificateExpiry>().is_some_and(|expiry| expiry.has_passed(now))
        || extensions.get::<Identity>().is_some_and(|identity| identity.has_expired(now))
}

/// Returns the credentials of a request: its bearer token, otherwise the certificate that TLS has verified.
fn credentials<B>(request: &Request<B>) -> Result<Option<Credentials>, ApiError> {
    let token = token(request.headers())?;
    let certificate = || request.extensions().get::<Identity>().cloned().map(Credentials::Certificate);
    Ok(token.map(Credentials::Token).or_else(certificate))
}

/// Returns the bearer token of a request, if it has one.
pub(super) fn token(headers: &HeaderMap) -> Result<Option<Token>, ApiError> {
    let values = headers.get_all(header::AUTHORIZATION).into_iter().map(HeaderValue::as_bytes);
    Token::from_headers(values).map_err(|_| ApiError::CredentialsInvalid)
}
