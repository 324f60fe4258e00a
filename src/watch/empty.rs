//! Watch that has ended.

use std::{
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
};

use tokio_stream::Stream;

/// Watch that has ended before its first event (apimachinery's `emptyWatch`): for an answer without events that is no error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmptyWatch<T>(PhantomData<fn() -> T>);

// === impl EmptyWatch ===

impl<T> EmptyWatch<T> {
    /// Returns the watch.
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T> Default for EmptyWatch<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Stream for EmptyWatch<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<T>> {
        Poll::Ready(None)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// apimachinery `TestEmpty`.
    #[test]
    fn an_empty_watch_has_ended_whenever_it_is_polled() {
        let mut watch = tokio_test::task::spawn(EmptyWatch::<u32>::new());
        for _ in 0..2 {
            assert_eq!(watch.poll_next(), Poll::Ready(None));
        }
    }
}
