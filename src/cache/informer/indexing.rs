//! Indexes added to a running informer (client-go's `AddIndexers`).

use std::sync::Arc;

use super::{Command, InformerHandle, Stopped, Writer};
use crate::{
    model::{IndexFunc, IndexersError},
    watch::Frame,
};

/// Reason why indexes were not added: none of them was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddIndexersError {
    /// Name that is invalid or exists already.
    #[error(transparent)]
    Invalid(#[from] IndexersError),
    /// End of the informer.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

// === impl InformerHandle ===

impl<F: Frame> InformerHandle<F> {
    /// Adds indexes, all or none. When it returns, the present objects are in them. Meanwhile the writer applies no change;
    /// readers continue with the last snapshot.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the indexes may have been added or not.
    pub async fn add_indexers(
        &self,
        functions: impl IntoIterator<Item = (String, IndexFunc)>,
    ) -> Result<(), AddIndexersError> {
        let functions = functions.into_iter().collect();
        Ok(self.request(|reply| Command::AddIndexers { functions, reply }).await??)
    }
}

// === impl Writer ===

impl<F: Frame> Writer<F> {
    pub(super) fn add_indexers(&mut self, functions: Vec<(String, IndexFunc)>) -> Result<(), IndexersError> {
        let indexers = Arc::new(self.config.indexers.with(functions)?);
        self.config.indexers = Arc::clone(&indexers);
        if let Some(live) = &mut self.live {
            live.indexer.extend_indexers(Arc::clone(&indexers));
            self.publish(&[]);
        }
        // After the snapshot: a reader finds each of these indexes in it.
        self.shared.indexers.store(indexers);
        Ok(())
    }
}
