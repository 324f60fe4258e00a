//! Conditions that must be met in order: apimachinery's `watch.Until`.
//!
//! The current condition is tested on each event. Once it is met, the next one is tested on the same event, and so on: one
//! event may meet several. Prefer conditions on a state ("is ready") to those on a change ("became ready").
//!
//! [`until()`] reads a watch. A reader of its own passes each event to [`Until::see`], and stops once that returns true.

use std::{pin::pin, time::Duration};

use tokio::time;
use tokio_stream::{Stream, StreamExt};

/// Conditions, and the number of those that have been met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Until<C> {
    conditions: Vec<C>,
    met: usize,
}

/// Reason why [`until()`] has not seen all conditions met, with the last event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UntilError<T, E> {
    /// A condition has failed.
    #[error("condition failed: {error}")]
    Condition {
        /// Error of the condition.
        error: E,
        /// Event that it failed on.
        last: T,
    },
    /// The watch has ended (upstream's `ErrWatchClosed`).
    #[error("watch closed before all conditions were met")]
    Closed {
        /// Last event; `None` if there was none.
        last: Option<T>,
    },
    /// The time is over (upstream's `ErrWaitTimeout`).
    #[error("conditions not met within {after:?}")]
    TimedOut {
        /// Timeout of the wait.
        after: Duration,
        /// Last event; `None` if there was none.
        last: Option<T>,
    },
}

/// Reads a watch until conditions have been met, one after the other, and returns the last event. Without conditions it returns
/// `None` at once. It drops the watch in every case.
///
/// A timeout of zero means none.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::{convert::Infallible, time::Duration};
///
/// use informerd::watch::{UntilError, until};
///
/// let replicas = || tokio_stream::iter([1, 2, 3, 2]);
/// let is_scaled = |replicas: &i32| Ok::<_, Infallible>(*replicas >= 3);
/// assert_eq!(until(Duration::from_secs(30), replicas(), [is_scaled]).await, Ok(Some(3)));
///
/// let never = |_: &i32| Ok::<_, Infallible>(false);
/// let closed = until(Duration::ZERO, replicas(), [never]).await;
/// assert_eq!(closed, Err(UntilError::Closed { last: Some(2) }));
/// # }
/// ```
///
/// # Errors
///
/// If a condition fails, the watch ends, or the timeout is over.
///
/// # Cancel safety
///
/// Dropping the future drops the watch, and the events read so far.
pub async fn until<S, C, E>(
    timeout: Duration,
    watch: S,
    conditions: impl IntoIterator<Item = C>,
) -> Result<Option<S::Item>, UntilError<S::Item, E>>
where
    S: Stream,
    C: Fn(&S::Item) -> Result<bool, E>,
{
    let mut until = Until::new(conditions);
    let mut last = None;
    let met = async {
        let mut watch = pin!(watch);
        while !until.is_met() {
            let Some(event) = watch.next().await else { return Err(UntilError::Closed { last: last.take() }) };
            if let Err(error) = until.see(|condition| condition(&event)) {
                return Err(UntilError::Condition { error, last: event });
            }
            last = Some(event);
            // The deadline is checked only when this task yields.
            tokio::task::consume_budget().await;
        }
        Ok(())
    };
    let met = if timeout.is_zero() { Ok(met.await) } else { time::timeout(timeout, met).await };
    match met {
        Ok(met) => met.map(|()| last),
        Err(_) => Err(UntilError::TimedOut { after: timeout, last }),
    }
}

// === impl Until ===

impl<C> Until<C> {
    /// Returns conditions that must be met in this order. Without any, the wait is over at once.
    pub fn new(conditions: impl IntoIterator<Item = C>) -> Self {
        Self { conditions: conditions.into_iter().collect(), met: 0 }
    }

    /// Returns the number of conditions that have been met.
    pub fn met(&self) -> usize {
        self.met
    }

    /// Returns true if all of them have been met.
    pub fn is_met(&self) -> bool {
        self.met == self.conditions.len()
    }

    /// Takes the next event; returns true if all conditions have been met. `test` is upstream's `ConditionFunc` for this
    /// event.
    ///
    /// # Errors
    ///
    /// The error of `test`. Upstream, the wait then ends.
    pub fn see<E>(&mut self, mut test: impl FnMut(&C) -> Result<bool, E>) -> Result<bool, E> {
        while let Some(condition) = self.conditions.get(self.met) {
            if !test(condition)? {
                return Ok(false);
            }
            self.met += 1;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
