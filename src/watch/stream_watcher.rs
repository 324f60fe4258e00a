//! Byte stream as a watch, with one event for each that its decoder finds.
//!
//! Follows apimachinery's `StreamWatcher` over a `Decoder`. A source makes one for each stream that it reads, and hands it
//! to the reader.
//!
//! - Nothing is decoded ahead: an event is decoded when the reader polls for it, so that a slow reader holds its upstream
//!   back and there is no queue to bound.
//! - There is no task: dropping the watcher, or [`StreamWatcher::stop`], drops the decoder in any state.
//! - The end of the bytes ends the watch without an item, clean or not: the reader resumes from its last version. Only
//!   bytes that cannot be decoded are reported, once, as the last item.
//!
//! Not here: the meaning of the bytes, and the choice of a decoder to continue after bytes that it cannot read.

use std::{
    error::Error,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio_stream::Stream;
use tokio_util::sync::ReusableBoxFuture;

/// Decoder of events from a byte stream (apimachinery's `Decoder`; `Close` is dropping it).
pub trait Decoder: Send + 'static {
    /// Decoded event.
    type Event: Send + 'static;

    /// Waits for the next event.
    ///
    /// # Cancel safety
    ///
    /// Not needed: a [`StreamWatcher`] waits for the future or drops it together with the decoder.
    fn decode(&mut self) -> impl Future<Output = Result<Self::Event, DecodeError>> + Send;
}

/// Reason for the end of a stream of events.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The stream has ended between two events.
    #[error("stream ended")]
    End,
    /// The stream has ended within an event.
    #[error("the stream ended inside an event")]
    UnexpectedEnd,
    /// The stream cannot be read any more: a connection was cut, a network did not answer.
    #[error("the stream cannot be read")]
    Io(#[source] io::Error),
    /// The stream contains bytes that are no event.
    #[error("{0}")]
    Undecodable(Box<dyn Error + Send + Sync>),
}

/// Last item of a watch whose stream contains bytes that are no event.
#[derive(Debug, thiserror::Error)]
#[error("unable to decode an event from the watch stream: {0}")]
pub struct UndecodableEvent(Box<dyn Error + Send + Sync>);

/// Watch over a [`Decoder`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use informerd::watch::{DecodeError, Decoder, StreamWatcher};
/// use tokio_stream::StreamExt;
///
/// /// Decoder of a number on each line.
/// struct Numbers(&'static [u8]);
///
/// impl Decoder for Numbers {
///     type Event = u32;
///
///     async fn decode(&mut self) -> Result<u32, DecodeError> {
///         let Some(end) = self.0.iter().position(|byte| *byte == b'\n') else { return Err(DecodeError::End) };
///         let line = std::str::from_utf8(&self.0[..end]).map_err(|error| DecodeError::Undecodable(error.into()))?;
///         self.0 = &self.0[end + 1..];
///         line.parse().map_err(|error: std::num::ParseIntError| DecodeError::Undecodable(error.into()))
///     }
/// }
///
/// let mut watch = StreamWatcher::new(Numbers(b"1\n2\nthree\n"));
/// assert!(matches!(watch.next().await, Some(Ok(1))));
/// assert!(matches!(watch.next().await, Some(Ok(2))));
/// let error = watch.next().await.unwrap().unwrap_err();
/// assert_eq!(error.to_string(), "unable to decode an event from the watch stream: invalid digit found in string");
/// assert!(watch.next().await.is_none());
/// # }
/// ```
#[must_use = "a watch yields nothing unless it is read"]
pub struct StreamWatcher<D: Decoder> {
    /// Future that holds the decoder; `None` once the watch has ended.
    next: Option<ReusableBoxFuture<'static, Decoded<D>>>,
}

type Decoded<D> = (D, Result<<D as Decoder>::Event, DecodeError>);

// === impl StreamWatcher ===

impl<D: Decoder> StreamWatcher<D> {
    /// Returns a watch that has not decoded anything yet.
    pub fn new(decoder: D) -> Self {
        Self { next: Some(ReusableBoxFuture::new(decode(decoder))) }
    }

    /// Drops the decoder and ends the watch, also while it waits for an event. No item follows; stopping an ended watch
    /// does nothing.
    pub fn stop(&mut self) {
        self.next = None;
    }
}

impl<D: Decoder> Stream for StreamWatcher<D> {
    type Item = Result<D::Event, UndecodableEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let (decoder, outcome) = ready!(next.poll(cx));
        let error = match outcome {
            Ok(event) => {
                next.set(decode(decoder));
                return Poll::Ready(Some(Ok(event)));
            }
            Err(error) => error,
        };
        drop(decoder);
        self.stop();
        match error {
            DecodeError::End => {}
            DecodeError::UnexpectedEnd => tracing::info!("watch stream ended inside an event"),
            DecodeError::Io(error) => tracing::debug!(%error, "watch stream not readable"),
            DecodeError::Undecodable(error) => return Poll::Ready(Some(Err(UndecodableEvent(error)))),
        }
        Poll::Ready(None)
    }
}

debug_fields!([D: Decoder] StreamWatcher<D>, this => { has_ended: this.next.is_none() });

async fn decode<D: Decoder>(mut decoder: D) -> Decoded<D> {
    let outcome = decoder.decode().await;
    (decoder, outcome)
}

#[cfg(test)]
mod tests;
