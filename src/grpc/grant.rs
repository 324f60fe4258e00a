//! The grant of a call: its caller and the rights that it was given.

use crate::auth::{Attributes, Credentials, Identity, Party};

/// Rights that a call was granted. Those of an open stream are checked again and again.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) caller: Authenticated,
    pub(super) attributes: Attributes,
}

/// Caller of an open stream, with everything by which it is authenticated again.
#[derive(Debug, Clone)]
pub(super) struct Authenticated {
    pub(super) identity: Identity,
    /// Caller whose credentials these are, if it makes the call on behalf of another.
    pub(super) impersonator: Option<Identity>,
    pub(super) credentials: Option<Credentials>,
}

// === impl Authenticated ===

impl Authenticated {
    /// Returns the owner of the credentials as the queues see it.
    pub(super) fn party(&self) -> Party {
        self.impersonator.as_ref().unwrap_or(&self.identity).party()
    }
}
