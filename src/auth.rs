//! Callers: who one is, and what it may read.
//!
//! - [`Authentication`] finds the [`Identity`] of a caller by its [`Credentials`].
//! - [`Token`] is a bearer token, which nothing shows.
//! - [`Authorizer`] decides about the [`Attributes`] of a caller's calls, by [`Rules`] or by reviews.
//! - [`Reviewer`] is another authority over users and their rights: Kubernetes. [`CallReviewer`] is the upstream of a relay.
//! - [`impersonated`] finds the user on whose behalf a caller makes a call.

mod access;
mod access_review;
mod authentication;
mod authorizer;
mod decisions;
mod forwarded_access;
mod identity;
mod impersonation;
mod jwt;
mod reviewer;
mod rules;
mod token;
mod token_file;
mod token_review;

pub use access::{AccessError, Attributes, Format, Operation, Scope};
pub use access_review::ReviewConfig;
pub use authentication::{Authentication, AuthenticationError, Credentials, Sender};
pub use authorizer::Authorizer;
pub use identity::{CertificateNames, CertificateUser, Identity, IdentityDetails};
pub use impersonation::{
    IMPERSONATED_USER, ImpersonationError, impersonated, impersonated_user, impersonation_headers, is_impersonating,
};
pub use jwt::{JwtConfig, JwtVerifier};
pub use reviewer::{CallReviewer, ReviewAttributes, ReviewError, Reviewer, TokenReviewed};
pub use rules::{Rules, RulesError};
pub use token::{Token, TokenError};
pub use token_file::TokenFile;
pub use token_review::TokenReviews;

pub use crate::{net::FileError, turns::Party};
