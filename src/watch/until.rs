//! Conditions that must be met in order: the rules of apimachinery's `watch.Until`, without its loop.
//!
//! The reader of events passes each to [`Until::see`], and stops once that returns true; deadlines and the last event are
//! left to the reader. The current condition is tested on each event. Once it is met, the next one is tested on the same
//! event, and so on: one event may meet several.

/// Conditions, and the number of those that have been met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Until<C> {
    conditions: Vec<C>,
    met: usize,
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
mod tests {
    use super::*;
    use crate::model::EventType::{self, Added, Deleted, Modified};

    type ConditionFunc = fn(EventType) -> Result<bool, &'static str>;

    const IS_ADDED: ConditionFunc = |event| Ok(event == Added);
    const IS_MODIFIED: ConditionFunc = |event| Ok(event == Modified);
    const FAILS: ConditionFunc = |_| Err("something bad");

    /// Passes events until all conditions are met, one fails, or there are no more: upstream's loop. Returns the last event
    /// seen.
    fn run(
        conditions: &[ConditionFunc],
        events: &[EventType],
    ) -> (Option<EventType>, Result<bool, &'static str>, usize) {
        let mut until = Until::new(conditions.iter().copied());
        let (mut last, mut outcome) = (None, Ok(until.is_met()));
        for event in events {
            if outcome != Ok(false) {
                break;
            }
            last = Some(*event);
            outcome = until.see(|condition| condition(*event));
        }
        (last, outcome, until.met())
    }

    /// apimachinery `TestUntil`.
    #[test]
    fn conditions_are_met_one_after_the_other() {
        assert_eq!(run(&[IS_ADDED, IS_MODIFIED], &[Added, Modified]), (Some(Modified), Ok(true), 2));
        assert_eq!(run(&[IS_ADDED, IS_MODIFIED], &[Added, Deleted, Modified, Deleted]), (Some(Modified), Ok(true), 2));
        assert_eq!(run(&[IS_ADDED, IS_MODIFIED], &[Modified, Added]), (Some(Added), Ok(false), 1), "not backwards");
    }

    /// apimachinery `TestUntilMultipleConditions`.
    #[test]
    fn one_event_meets_several() {
        assert_eq!(run(&[IS_ADDED, IS_ADDED], &[Added]), (Some(Added), Ok(true), 2));
    }

    /// apimachinery `TestUntilMultipleConditionsFail`: the last event is what the first two were met by.
    #[test]
    fn one_that_is_never_met_is_waited_for() {
        assert_eq!(run(&[IS_ADDED, IS_ADDED, IS_MODIFIED], &[Added]), (Some(Added), Ok(false), 2));
    }

    /// apimachinery `TestUntilTimeout`: without a deadline, the wait is as long as it takes.
    #[test]
    fn nothing_here_counts_time() {
        let events: Vec<EventType> = std::iter::repeat_n(Deleted, 10_000).chain([Added, Modified]).collect();
        assert_eq!(run(&[IS_ADDED, IS_MODIFIED], &events), (Some(Modified), Ok(true), 2));
        assert_eq!(run(&[], &events), (None, Ok(true), 0), "there is nothing to wait for");
    }

    /// apimachinery `TestUntilErrorCondition`.
    #[test]
    fn an_error_comes_through_with_the_event_that_caused_it() {
        assert_eq!(run(&[FAILS], &[Added]), (Some(Added), Err("something bad"), 0));
        assert_eq!(run(&[IS_ADDED, FAILS], &[Added, Modified]), (Some(Added), Err("something bad"), 1));
    }
}
