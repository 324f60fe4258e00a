//! JSON Web Tokens of one issuer, verified with configured keys.
//!
//! A token chooses nothing but one of the configured keys, by its id: not the algorithm, which belongs to the key, and not a
//! place to read a key from (`jku`, `x5u`, `jwk`). No crate for JWTs is used: the one that is common takes its cryptography from
//! a global variable of the process, which belongs to the program that embeds this library, reads the clock itself, and accepts
//! critical extensions (`crit`) that it does not know.

mod keys;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use serde::Deserialize;
use serde_json::{Map, Value};

use self::keys::Keys;
use super::{AuthenticationError, FileError, Identity, IdentityDetails, Token};
use crate::{log_throttle::LogThrottle, net::ReloadedFiles};

/// Tokens that are accepted, and the claims that name their users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtConfig {
    /// Issuer (`iss`); tokens of other issuers are left to the next authenticator.
    pub issuer: String,
    /// Audiences, one of which a token needs (`aud`).
    pub audiences: Vec<String>,
    /// File of the keys: a JWKS document, or public keys in PEM.
    pub keys: PathBuf,
    /// Claim with the name of the user.
    pub user_claim: String,
    /// Prefix of the names of users.
    pub user_prefix: String,
    /// Claim with the groups of the user, if it has one.
    pub groups_claim: Option<String>,
    /// Prefix of the groups.
    pub groups_prefix: String,
}

/// Verifier of the tokens of one issuer.
#[derive(Debug)]
pub struct JwtVerifier {
    config: JwtConfig,
    keys: Arc<ReloadedFiles<Keys>>,
    /// Of tokens with a reserved name.
    log: LogThrottle,
}

/// Parts of a token, decoded and not verified.
struct Parts<'a> {
    header: Header,
    claims: Map<String, Value>,
    signed: &'a str,
    signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that a recipient has to understand; this one understands none.
    crit: Option<Value>,
}

/// Difference that the clocks of issuer and server may have.
const LEEWAY: Duration = Duration::from_secs(30);
/// Longest name of a user or group, in bytes.
const MAX_NAME_BYTES: usize = 1024;

// === impl JwtVerifier ===

impl JwtVerifier {
    /// Reads the keys.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or has no key that can be used.
    pub fn load(config: JwtConfig) -> Result<Self, FileError> {
        let keys = ReloadedFiles::load_one(&config.keys, keys::parse)?;
        Ok(Self { config, keys, log: LogThrottle::new() })
    }

    /// Reads the keys again whenever their file changes; never returns.
    pub(super) async fn reload(&self) {
        Arc::clone(&self.keys).reload(|| {}).await;
    }

    /// Returns the user of a token, or `None` if it is no JWT of this issuer.
    pub(super) fn user(&self, token: &Token, now: SystemTime) -> Option<Result<Identity, AuthenticationError>> {
        let parts = Parts::decode(token)?;
        if !self.is_issuer(&parts) {
            return None;
        }
        let Parts { header: Header { alg, kid, crit }, claims, signed, signature } = parts;
        let is_verified =
            crit.is_none() && self.keys.with(|keys| keys.verify(&alg, kid.as_deref(), signed.as_bytes(), &signature));
        Some(if is_verified { self.identity(&claims, now) } else { Err(AuthenticationError::Invalid) })
    }

    /// Returns true if a token is a JWT of this issuer, good or bad.
    pub(super) fn has_issued(&self, token: &Token) -> bool {
        Parts::decode(token).is_some_and(|parts| self.is_issuer(&parts))
    }

    fn is_issuer(&self, parts: &Parts<'_>) -> bool {
        parts.claims.get("iss").and_then(Value::as_str) == Some(&self.config.issuer)
    }

    /// Checks the claims of a token with a good signature.
    fn identity(&self, claims: &Map<String, Value>, now: SystemTime) -> Result<Identity, AuthenticationError> {
        let details = self.details(claims, now).ok_or(AuthenticationError::Invalid)?;
        if details.expires.is_none_or(|expires| expires <= now) {
            return Err(AuthenticationError::Expired);
        }
        let identity = Identity::new(details);
        match identity.reserved() {
            None => Ok(identity),
            Some(name) => {
                // Only Kubernetes may give it.
                if let Some(tokens) = self.log.poll() {
                    let hint = "set authentication.jwt.user_prefix and groups_prefix";
                    tracing::warn!(
                        issuer = self.config.issuer,
                        name,
                        hint,
                        tokens,
                        "token refused: reserved name of Kubernetes"
                    );
                }
                Err(AuthenticationError::Invalid)
            }
        }
    }

    /// Reads the claims; `None` if one is missing, malformed or of another audience, or if the token is not valid yet.
    fn details(&self, claims: &Map<String, Value>, now: SystemTime) -> Option<IdentityDetails> {
        let JwtConfig { audiences, user_claim, user_prefix, groups_claim, groups_prefix, .. } = &self.config;
        let is_audience = texts(claims.get("aud")?)?.iter().any(|name| audiences.contains(name));
        let starts = claims.get("nbf").map_or(Some(SystemTime::UNIX_EPOCH), time)?;
        let expires = time(claims.get("exp")?)?.checked_add(LEEWAY)?;
        // An issuer lets its users write any address, until they have proved that it is theirs.
        let is_proved = user_claim != "email" || claims.get("email_verified").is_none_or(|verified| *verified == true);
        if !is_audience || starts > now + LEEWAY || !is_proved {
            return None;
        }
        let name = claims.get(user_claim)?.as_str().filter(|name| !name.is_empty())?;
        let user = format!("{user_prefix}{name}");
        let groups = groups_claim.as_ref().and_then(|claim| claims.get(claim)).map_or(Some(Vec::new()), texts)?;
        let groups: Vec<_> = groups.into_iter().map(|group| format!("{groups_prefix}{group}")).collect();
        let is_short = [&user].into_iter().chain(&groups).all(|name| name.len() <= MAX_NAME_BYTES);
        is_short.then(|| IdentityDetails { user, groups, expires: Some(expires), ..IdentityDetails::default() })
    }
}

// === impl Parts ===

impl<'a> Parts<'a> {
    /// Decodes a token in compact form; `None` if it is none.
    fn decode(token: &'a Token) -> Option<Self> {
        let (signed, signature) = token.expose().rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).ok();
        Some(Self {
            header: serde_json::from_slice(&decode(header)?).ok()?,
            claims: serde_json::from_slice(&decode(claims)?).ok()?,
            signed,
            signature: decode(signature)?,
        })
    }
}

/// Returns the time at which a token expires that another authority has verified, if it is a JWT.
pub(super) fn expires(token: &Token) -> Option<SystemTime> {
    time(Parts::decode(token)?.claims.get("exp")?)
}

/// Reads seconds since 1970, perhaps with a fraction.
fn time(seconds: &Value) -> Option<SystemTime> {
    let since = Duration::try_from_secs_f64(seconds.as_f64()?).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// Reads a text or a list of texts.
fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(texts) => texts.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
