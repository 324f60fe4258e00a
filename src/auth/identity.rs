//! Identity of a caller.

use std::{collections::BTreeMap, fmt, sync::Arc, time::SystemTime};

use serde::Deserialize;

use crate::turns::Party;

/// Authenticated caller: a user, and everything that rights may depend on. Clones share it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Identity(Arc<IdentityDetails>);

/// Parts of an [`Identity`]: those of Kubernetes' `UserInfo`, and the time at which the credentials expire.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct IdentityDetails {
    /// Name of the user; not empty.
    #[serde(rename = "username")]
    pub user: String,
    /// Groups of the user; an [`Identity`] has them in order, each once.
    pub groups: Vec<String>,
    /// Unique id of the user; empty if the authenticator has none.
    pub uid: String,
    /// Other attributes, for example the pod that a service account's token is bound to.
    pub extra: BTreeMap<String, Vec<String>>,
    /// Time at which the credentials expire, if they do.
    #[serde(skip)]
    pub expires: Option<SystemTime>,
}

/// Beginning of the names of users and groups that are Kubernetes' own, such as `system:masters`, which may do everything.
const RESERVED: &str = "system:";

/// Names of a client certificate that are its user and its groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// Name that is the user.
    pub user: CertificateUser,
    /// True if they may begin with `system:`: the authority of the certificates is that of a Kubernetes API server.
    pub has_system_names: bool,
}

/// Name of a client certificate that is its user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CertificateUser {
    /// The common name of the subject, which Kubernetes takes.
    #[default]
    CommonName,
    /// The first URI among the subject alternative names, else the first DNS name, else the first e-mail address, else the common name.
    AlternativeName,
}

// === impl Identity ===

impl Identity {
    /// Returns the identity of these details.
    pub fn new(mut details: IdentityDetails) -> Self {
        details.groups.sort_unstable();
        details.groups.dedup();
        Self(Arc::new(details))
    }

    /// Returns the user or group that only Kubernetes may vouch for, if there is one.
    pub(crate) fn reserved(&self) -> Option<&str> {
        let names = [self.user()].into_iter().chain(self.0.groups.iter().map(String::as_str));
        names.into_iter().find(|name| name.starts_with(RESERVED))
    }

    /// Returns the name of the user.
    pub fn user(&self) -> &str {
        &self.0.user
    }

    /// Returns true if the credentials have expired.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.0.expires.is_some_and(|expires| expires <= now)
    }

    /// Returns the user as the queues of reviews see it.
    pub(crate) fn party(&self) -> Party {
        Party::new(&self.user(), &())
    }

    /// Returns all parts.
    pub fn details(&self) -> &IdentityDetails {
        &self.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.user())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.user()).finish()
    }
}
