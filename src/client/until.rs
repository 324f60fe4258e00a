//! Waiting at the server, across what happens to the call.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Client, ClientError, Query, WatchOptions, error::Recovery, watch::MAX_RETRY_AFTER};
use crate::{
    cache::{Backoff, BackoffConfig},
    proto::pb,
};

/// How long is waited, and how it is begun again.
#[derive(Debug, Clone, PartialEq)]
pub struct UntilOptions {
    /// Give up after this, with [`ClientError::NotMet`]; none waits for as long as it takes.
    pub timeout: Option<Duration>,
    /// The delays between calls.
    pub backoff: BackoffConfig,
}

// === impl UntilOptions ===

impl Default for UntilOptions {
    /// Waits for as long as it takes; the delays are those of a watch.
    fn default() -> Self {
        Self { timeout: None, backoff: WatchOptions::default().backoff }
    }
}

// === impl Client ===

impl Client {
    /// Waits until conditions have been met, one after the other, by the events of what a query chooses; gives the event that
    /// met the last. They are CEL over `type` ("ADDED", "MODIFIED", "DELETED", and "SYNCED" at the end of the current
    /// objects), `object` (the body; null with SYNCED) and `count` (how many objects are chosen; from SYNCED on).
    ///
    /// When the call breaks in a way that can pass, it is made again after a delay. Then the server knows nothing of the call
    /// before: all conditions are to be met again. So they had better say how things are (`object.status.phase ==
    /// 'Running'`, `count == 0`) than what has happened (`type == 'DELETED'`), which may have been in between.
    ///
    /// # Errors
    ///
    /// What cannot pass; [`ClientError::NotMet`] after the timeout.
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
            if error.spoils_connection() {
                client.leave_connection();
            }
            let resource = request.watch.as_ref().map(|watch| watch.resource.as_str());
            tracing::debug!(resource, %error, ?delay, "until interrupted");
            *last = Some(error);
            tokio::time::sleep(delay).await;
        }
    }
}
