//! Callers: who one is, and what it may read.
//!
//! - [`Identity`] is a caller that has been authenticated.

mod identity;

pub use identity::{Identity, IdentityDetails};
