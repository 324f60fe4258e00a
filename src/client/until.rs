//! Waiting at the server, with retries when the call breaks.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Client, ClientError, Query, WatchOptions, error::Recovery, streams::MAX_RETRY_AFTER};
use crate::{
    cache::{Backoff, BackoffConfig},
    proto::pb,
};

/// Timeout and retry delays of [`Client::until`].
#[derive(Debug, Clone, PartialEq)]
pub struct UntilOptions {
    /// Time after which the wait fails with [`ClientError::NotMet`]; none = no limit.
    pub timeout: Option<Duration>,
    /// Delays between calls.
    pub backoff: BackoffConfig,
}

// === impl UntilOptions ===

impl Default for UntilOptions {
    /// Returns options without a timeout; the delays are those of a watch.
    fn default() -> Self {
        Self { timeout: None, backoff: WatchOptions::default().backoff }
    }
}

// === impl Client ===

impl Client {
    /// Waits until conditions have been met, one after the other, by the events of the selected objects; returns the event that
    /// met the last. Conditions are CEL over `type` ("ADDED", "MODIFIED", "DELETED", and "SYNCED" at the end of the current
    /// objects), `object` (the body; null with SYNCED) and `count` (the number of selected objects; from SYNCED on).
    ///
    /// After a temporary failure the client calls again after a delay. The server has no memory of the earlier call, so all
    /// conditions must be met again. Prefer conditions on the state (`object.status.phase == 'Running'`, `count == 0`) to those
    /// on an event (`type == 'DELETED'`), which may have happened between the calls.
    ///
    /// # Errors
    ///
    /// Permanent failures; [`ClientError::NotMet`] after the timeout.
    pub async fn until(
        &self,
        query: &Query,
        conditions: &[String],
        options: &UntilOptions,
    ) -> Result<pb::WatchResponse, ClientError> {
        let request = pb::UntilRequest { watch: Some(query.watch_request()), conditions: conditions.to_vec() };
        let mut last = None;
        let met = self.until_met(&request, options.backoff, &mut last);
        let Some(after) = options.timeout else { return met.await };
        match timeout(after, met).await {
            Ok(met) => met,
            Err(_) => Err(ClientError::NotMet { after, last: last.map(Box::new) }),
        }
    }

    async fn until_met(
        &self,
        request: &pb::UntilRequest,
        backoff: BackoffConfig,
        last: &mut Option<ClientError>,
    ) -> Result<pb::WatchResponse, ClientError> {
        let (mut client, mut backoff) = (self.clone(), Backoff::new(backoff));
        loop {
            let error = match client.until_once(request.clone()).await {
                Ok(event) => return Ok(event),
                Err(error) if error.recovery() == Recovery::GiveUp => return Err(error),
                Err(error) => error,
            };
            let asked = error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER);
            let delay = asked + backoff.next_delay(Instant::now());
            if error.invalidates_connection() {
                client.drop_connection();
            }
            let resource = request.watch.as_ref().map(|watch| watch.resource.as_str());
            tracing::debug!(resource, %error, ?delay, "until interrupted");
            *last = Some(error);
            tokio::time::sleep(delay).await;
        }
    }
}
