//! Changes that a previous run may have sent ahead of the version that clients resume from.
//!
//! A change at an open version, and one of a namespace that is ahead of the others, is sent with the version before it. The
//! snapshot of the next run lacks it. A watch from that snapshot repeats the change. A list does not: an object that was
//! created ahead and has been deleted by now is in neither state, and a client that resumes there would keep it.
//!
//! No previous run can have sent a change above the cluster's version at the start of this run. A list read before the resource
//! has reached that version expires every older one ([`List::expires_older`]).
//!
//! [`List::expires_older`]: crate::cache::List::expires_older

use parking_lot::Mutex;

use crate::{cache::SourceError, model::ResourceVersion};

/// Upper bound of the changes that a previous run may have sent ahead.
#[derive(Debug, Default)]
pub(super) struct SentAhead(Mutex<Bound>);

#[derive(Debug, Default, PartialEq, Eq)]
enum Bound {
    /// No previous run.
    #[default]
    Nothing,
    Unknown,
    UpTo(ResourceVersion),
}

// === impl SentAhead ===

impl SentAhead {
    /// Records that this run resumes from the snapshot of a previous one.
    pub(super) fn resume(&self) {
        *self.0.lock() = Bound::Unknown;
    }

    /// Requests the present version of the cluster, unless the bound is known.
    ///
    /// # Errors
    ///
    /// The errors of the request that a watch would meet too.
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

    /// Returns true if there may be a change above this version.
    pub(super) fn is_above(&self, reached: &ResourceVersion) -> bool {
        match &*self.0.lock() {
            Bound::Nothing => false,
            Bound::Unknown => true,
            Bound::UpTo(version) => reached < version,
        }
    }
}
