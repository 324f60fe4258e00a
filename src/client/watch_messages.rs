//! Messages of one stream of a watch, whatever the RPC that they come by.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::Stream;
use tonic::{Status, Streaming};

use super::subscription::SubscribedWatch;
use crate::proto::pb::WatchResponse;

/// Messages of one stream of a watch. Dropping it ends the stream.
#[derive(Debug)]
pub struct WatchMessages(Messages);

#[derive(Debug)]
enum Messages {
    /// Stream of its own, by Watch.
    Own(Box<Streaming<WatchResponse>>),
    /// Part of a stream of several watches, by Subscribe.
    Subscribed(SubscribedWatch),
}

// === impl WatchMessages ===

impl WatchMessages {
    pub(super) fn own(stream: Streaming<WatchResponse>) -> Self {
        Self(Messages::Own(Box::new(stream)))
    }

    pub(super) fn subscribed(watch: SubscribedWatch) -> Self {
        Self(Messages::Subscribed(watch))
    }

    /// Returns the next message; none after the end.
    ///
    /// # Errors
    ///
    /// The status that the stream ended with.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn message(&mut self) -> Result<Option<WatchResponse>, Status> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await.transpose()
    }

    /// Leaves the connection: later watches of the client take another one.
    pub(super) fn leave_connection(&self) {
        match &self.0 {
            Messages::Own(_) => {}
            Messages::Subscribed(watch) => watch.leave_connection(),
        }
    }
}

impl Stream for WatchMessages {
    type Item = Result<WatchResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut self.get_mut().0 {
            Messages::Own(stream) => Pin::new(&mut **stream).poll_next(cx),
            Messages::Subscribed(watch) => watch.poll_next(cx),
        }
    }
}
