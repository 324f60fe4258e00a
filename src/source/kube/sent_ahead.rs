//! Changes that an earlier start may have sent ahead of the version that clients resume from.
//!
//! A change at an open version, and one of a namespace that is ahead of the others, is sent with the version before it. The state
//! that a later start begins with lacks it. A watch from that state repeats the change. A list does not: an object that was
//! created ahead and is deleted by now is in neither state, and a client that resumes there would keep it.
//!
//! No earlier start can have sent a change above the version that the cluster has when this one begins. A list that comes
//! before the resource has reached that version expires every older one ([`List::expires_older`]).
//!
//! [`List::expires_older`]: crate::cache::List::expires_older

use parking_lot::Mutex;

use crate::{cache::SourceError, model::ResourceVersion};

/// Bound of what an earlier start may have sent ahead.
#[derive(Debug, Default)]
pub(super) struct SentAhead(Mutex<Bound>);

#[derive(Debug, Default, PartialEq, Eq)]
enum Bound {
    /// No earlier start.
    #[default]
    Nothing,
    Unknown,
    UpTo(ResourceVersion),
}

// === impl SentAhead ===

impl SentAhead {
    /// Takes note that this start resumes from the state of an earlier one.
    pub(super) fn resume(&self) {
        *self.0.lock() = Bound::Unknown;
    }

    /// Requests the present version of the cluster, unless the bound is known.
    ///
    /// # Errors
    ///
    /// Those of the request, as far as a watch would meet them too.
    pub(super) async fn find(
        &self,
        present: impl Future<Output = Result<Option<ResourceVersion>, SourceError>>,
    ) -> Result<(), SourceError> {
        if *self.0.lock() == Bound::Unknown
            && let Some(version) = present.await?
        {
            *self.0.lock() = Bound::UpTo(version);
        }
        Ok(())
    }

    /// Returns whether there may be a change above this version.
    pub(super) fn is_above(&self, reached: &ResourceVersion) -> bool {
        match &*self.0.lock() {
            Bound::Nothing => false,
            Bound::Unknown => true,
            Bound::UpTo(version) => reached < version,
        }
    }
}
