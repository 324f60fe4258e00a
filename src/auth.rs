//! Callers: who one is, and what it may read.
//!
//! - [`Identity`] is a caller that has been authenticated.
//! - [`Token`] is a bearer token, which nothing shows.
//! - [`Authorizer`] decides about the [`Attributes`] of a caller's calls, by [`Rules`].
//! - [`Reviewer`] is another authority that knows users and their rights: Kubernetes.

mod access;
mod authorizer;
mod identity;
mod reviewer;
mod rules;
mod token;

pub use access::{AccessError, Attributes, Format, Operation, Scope};
pub use authorizer::Authorizer;
pub use identity::{Identity, IdentityDetails};
pub use reviewer::{ReviewAttributes, ReviewError, Reviewer, TokenReviewed};
pub use rules::{Rules, RulesError};
pub use token::{Token, TokenError};
