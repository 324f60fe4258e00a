//! Reviews by another authority: Kubernetes' `TokenReview` and `SubjectAccessReview`, and the upstream of a relay.

use std::fmt;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::{
    Identity, IdentityDetails, Token,
    access::{Attributes, Scope},
};

/// Authority over tokens, and over what a user may do. It fails rather than to guess: a caller is admitted only
/// by an answer.
pub trait Reviewer: fmt::Debug + Send + Sync + 'static {
    /// Requests a review of a token for these audiences: a `TokenReview`.
    fn review_token(
        &self,
        token: &Token,
        audiences: &[String],
    ) -> BoxFuture<'static, Result<TokenReviewed, ReviewError>>;

    /// Requests a review of an access on behalf of a caller: a `SubjectAccessReview`. Returns true if it is allowed.
    fn review_access(
        &self,
        identity: &Identity,
        attributes: ReviewAttributes,
    ) -> BoxFuture<'static, Result<bool, ReviewError>>;
}

/// Authority over the calls to one resource that decides them whole: the upstream of a relay. It fails rather than to guess.
pub trait CallReviewer: fmt::Debug + Send + Sync + 'static {
    /// Requests a review of a call on behalf of a caller. Returns the namespaces that it may read; `None` if the call is denied.
    fn review_call(
        &self,
        identity: &Identity,
        attributes: Attributes,
    ) -> BoxFuture<'static, Result<Option<Scope>, ReviewError>>;
}

/// Answer to the review of a token: the status of a `TokenReview`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TokenReviewed {
    /// True if the token belongs to a user.
    #[serde(rename = "authenticated")]
    pub is_authenticated: bool,
    /// User, with its groups, uid and extra; of no meaning if the token is not authenticated.
    pub user: IdentityDetails,
    /// Audiences that the token is valid for, among those of the request.
    pub audiences: Vec<String>,
}

/// Access that is reviewed: the `resourceAttributes` of a `SubjectAccessReview`. Empty texts are those of Kubernetes: all
/// namespaces, no subresource, any name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize)]
pub struct ReviewAttributes {
    /// Verb, such as `list`.
    pub verb: String,
    /// API group.
    pub group: String,
    /// Version of the group.
    pub version: String,
    /// Plural name of the kind.
    pub resource: String,
    /// Subresource.
    pub subresource: String,
    /// Namespace.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

/// Review without a usable answer: its cause, in one line, without credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReviewError(pub String);
