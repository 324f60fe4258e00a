//! Messages of one stream of a watch, whatever the RPC that they come by.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::Stream;
use tonic::{Status, Streaming};

use super::{ClientError, subscription::SubscribedWatch};
use crate::{
    net::ServerAddress,
    proto::pb::{EventType, WatchResponse},
};

/// Messages of one stream of a watch. Dropping it ends the stream.
#[derive(Debug)]
pub struct WatchMessages {
    /// Messages that were read and not handed out: the first, which shows if the watch was refused, or the rest of a batch.
    waiting: VecDeque<WatchResponse>,
    messages: Messages,
}

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
        Self { waiting: VecDeque::new(), messages: Messages::Own(Box::new(stream)) }
    }

    pub(super) fn subscribed(watch: SubscribedWatch) -> Self {
        Self { waiting: VecDeque::new(), messages: Messages::Subscribed(watch) }
    }

    /// Returns a stream that has ended.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        let codec = tonic_prost::ProstCodec::<WatchResponse, WatchResponse>::default();
        let decoder = tonic::codec::Codec::decoder(&mut { codec });
        Self::own(Streaming::new_empty(decoder, String::new()))
    }

    /// Waits for the first message.
    ///
    /// # Errors
    ///
    /// The status with which the watch is refused: that message, or that of a server that sends none.
    pub(super) async fn opened(mut self, address: &ServerAddress) -> Result<Self, ClientError> {
        let error = match self.message().await {
            Err(status) => ClientError::from_status(address, &status),
            Ok(Some(WatchResponse { r#type, error: Some(refusal), .. })) if r#type == i32::from(EventType::Error) => {
                ClientError::from_proto(&refusal)
            }
            Ok(first) => {
                if let Some(first) = first {
                    self.waiting.push_front(first);
                }
                return Ok(self);
            }
        };
        if error.invalidates_connection() {
            self.leave_connection();
        }
        Err(error)
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
        match &self.messages {
            Messages::Own(_) => {}
            Messages::Subscribed(watch) => watch.leave_connection(),
        }
    }
}

impl Stream for WatchMessages {
    type Item = Result<WatchResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(waiting) = this.waiting.pop_front() {
            return Poll::Ready(Some(Ok(waiting)));
        }
        let next = match &mut this.messages {
            Messages::Own(stream) => ready!(Pin::new(&mut **stream).poll_next(cx)),
            Messages::Subscribed(watch) => ready!(watch.poll_next(cx)),
        };
        Poll::Ready(match next {
            Some(Ok(batch)) if !batch.batch.is_empty() => {
                this.waiting.extend(events(batch));
                this.waiting.pop_front().map(Ok)
            }
            next => next,
        })
    }
}

/// Returns the events of a batch, as single messages.
fn events(batch: WatchResponse) -> impl Iterator<Item = WatchResponse> {
    let WatchResponse { r#type, cause, batch, .. } = batch;
    batch.into_iter().map(move |object| WatchResponse { r#type, cause, object: Some(object), ..Default::default() })
}
