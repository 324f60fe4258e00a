//! Callers: who one is, and what it may read.
//!
//! - [`Identity`] is a caller that has been authenticated.
//! - [`Token`] is a bearer token, which nothing shows.
//! - [`Reviewer`] is another authority that knows users and their rights: Kubernetes.

mod identity;
mod reviewer;
mod token;

pub use identity::{Identity, IdentityDetails};
pub use reviewer::{ReviewAttributes, ReviewError, Reviewer, TokenReviewed};
pub use token::{Token, TokenError};
