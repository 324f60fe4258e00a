//! Opening of one stream of a watch.

use std::time::Duration;

use super::Client;
use crate::{
    client::{ClientError, WatchMessages, subscription::SharedConnection},
    proto::pb,
};

impl Client {
    /// Opens one stream of a watch without resuming it, for callers that need every message, and waits for the first.
    /// [`Self::watch`] resumes.
    ///
    /// # Errors
    ///
    /// The status with which the watch is refused.
    pub async fn open(&self, request: pb::WatchRequest) -> Result<WatchMessages, ClientError> {
        self.open_over(request, &mut None).await
    }

    /// Opens one stream of a watch, whose first message has to come in time. Later watches take another connection than one that
    /// is silent.
    pub(in crate::client) async fn open_within(
        &self,
        request: pb::WatchRequest,
        after: Duration,
    ) -> Result<WatchMessages, ClientError> {
        let mut shared = None;
        let opened = tokio::time::timeout(after, self.open_over(request, &mut shared)).await;
        opened.unwrap_or_else(|_| {
            if let Some(connection) = &shared {
                connection.leave();
            }
            Err(ClientError::Silent { address: self.address.clone(), after })
        })
    }

    /// Opens one stream of a watch. Returns the connection as soon as it is chosen, if other watches share it.
    async fn open_over(
        &self,
        request: pb::WatchRequest,
        shared: &mut Option<SharedConnection>,
    ) -> Result<WatchMessages, ClientError> {
        self.require(request.shard.is_some(), request.view.is_some()).await?;
        // A server that has no batches ignores this.
        let request = pb::WatchRequest { batch_initial_events: true, ..request };
        if let Some(subscriptions) = &self.subscriptions
            && let Some(watch) = subscriptions.open(&request, shared).await?
        {
            return WatchMessages::subscribed(watch).opened(&self.address).await;
        }
        let answer = self.service.clone().watch(request).await;
        WatchMessages::own(answer.map_err(|status| self.error(&status))?.into_inner()).opened(&self.address).await
    }
}
