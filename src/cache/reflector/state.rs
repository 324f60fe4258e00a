//! State machine of a Reflector: the next request as a pure function of the last outcome. No IO, no clock.

use super::ReflectorError;
use crate::{
    cache::{ListVersion, SourceError},
    model::ResourceVersion,
};

/// State of the Reflector between attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    first_list: ListVersion,
    /// Version to watch from.
    last: Option<ResourceVersion>,
    /// Version after `last` at which more changes may come: no list may be older.
    open: Option<ResourceVersion>,
    /// True if the last list at `last` failed as expired, too large or incomplete: only the most recent state is usable.
    is_last_unavailable: bool,
    /// True if a watch since the last list has delivered something or stayed open: the upstream serves watches.
    has_progressed: bool,
    /// True if an expired watch was followed by a list at once, and no watch has progressed since.
    has_listed_at_once: bool,
    /// Watches in a row from `last` that delivered nothing and contradicted themselves.
    contradictions: u32,
}

/// Number of such watches in a row that shows more than broken streams: the upstream's versions are not in order.
const MAX_CONTRADICTIONS: u32 = 3;

/// Result of the last request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Listed(ResourceVersion),
    ListFailed(SourceError),
    WatchNotOpened(SourceError),
    /// Normal close: timeout, end of stream, restart of the upstream.
    WatchClosed {
        reached: ResourceVersion,
    },
    /// Close within a second and without an event.
    WatchTooShort {
        reached: ResourceVersion,
    },
    WatchFailed {
        reached: ResourceVersion,
        error: SourceError,
    },
    /// Stream that contradicted itself.
    WatchBroken {
        reached: ResourceVersion,
        found: ResourceVersion,
        after: ResourceVersion,
    },
    /// Watch that ended because a resync of the store failed.
    ResyncFailed {
        reached: ResourceVersion,
        error: String,
    },
    /// List or event that the store rejected; an event ended its watch.
    NotStored {
        reached: Option<ResourceVersion>,
        error: String,
    },
}

/// Next request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Next {
    /// True if the Reflector waits for the backoff's next delay first.
    pub(super) delayed: bool,
    pub(super) request: Request,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    List(ListVersion),
    Watch(ResourceVersion),
}

// === impl State ===

impl State {
    pub(super) fn new(first_list: ListVersion) -> Self {
        Self {
            first_list,
            last: None,
            open: None,
            is_last_unavailable: false,
            has_progressed: true,
            has_listed_at_once: false,
            contradictions: 0,
        }
    }

    /// Records that a watch has delivered data or progress, or has stayed open.
    pub(super) fn progress(&mut self) {
        self.has_progressed = true;
        self.has_listed_at_once = false;
        self.contradictions = 0;
    }

    /// Returns true if a list that succeeds now shows that the upstream has recovered. A list after a watch that failed without
    /// delivering anything does not, or an upstream whose watches always fail would cost a whole list each time.
    pub(super) fn list_is_recovery(&self) -> bool {
        self.has_progressed
    }

    /// Resumes from the version of the previous run.
    pub(super) fn resume(&mut self, version: ResourceVersion) {
        self.last = Some(version);
    }

    /// Records a change at a version that is still open. A watch that resumes before that version repeats the change.
    pub(super) fn opened(&mut self, version: &ResourceVersion) {
        self.open = Some(version.clone());
    }

    pub(super) fn start(&self) -> Next {
        match &self.last {
            Some(_) => self.watch_again(false),
            None => Next { delayed: false, request: Request::List(self.list_version()) },
        }
    }

    /// Returns the next request after an outcome (client-go's `reflector.go`).
    pub(super) fn step(&mut self, outcome: Outcome) -> Next {
        match outcome {
            Outcome::Listed(version) => {
                self.is_last_unavailable = false;
                self.has_progressed = false;
                self.contradictions = 0;
                self.open = None;
                self.last = Some(version.clone());
                Next { delayed: false, request: Request::Watch(version) }
            }
            Outcome::ListFailed(
                SourceError::Expired(_) | SourceError::VersionTooLarge(_) | SourceError::Incomplete(_),
            ) if self.list_version() != ListVersion::MostRecent => {
                // At once, and once: the next failure is of a list at the most recent version.
                self.is_last_unavailable = true;
                Next { delayed: false, request: Request::List(ListVersion::MostRecent) }
            }
            // The known versions are void: only the most recent state is usable.
            rewritten if rewritten.is_history_rewritten() => {
                let delayed = self.list_version() == ListVersion::MostRecent;
                self.is_last_unavailable = true;
                Next { delayed, request: Request::List(ListVersion::MostRecent) }
            }
            // Never a relist for these, or an overloaded upstream would get more load (kubernetes #85342).
            Outcome::WatchNotOpened(SourceError::Busy(_) | SourceError::NotYet(_) | SourceError::Incomplete(_)) => {
                self.watch_again(true)
            }
            // The state is as good as before. Only an upstream that lists and serves no watch at all is listed.
            Outcome::WatchNotOpened(SourceError::Refused(_)) if self.has_progressed => self.watch_again(true),
            Outcome::WatchNotOpened(SourceError::Expired(_)) => self.list_expired(),
            Outcome::ListFailed(_) | Outcome::WatchNotOpened(_) => self.list_again(),
            Outcome::WatchClosed { reached } => {
                self.last = Some(reached);
                self.watch_again(false)
            }
            Outcome::WatchBroken { reached, .. } => {
                self.last = Some(reached);
                self.contradictions += 1;
                if self.contradictions < MAX_CONTRADICTIONS { self.watch_again(true) } else { self.list_again() }
            }
            Outcome::WatchFailed {
                reached,
                error:
                    SourceError::Busy(_) | SourceError::NotYet(_) | SourceError::Broken(_) | SourceError::Incomplete(_),
            } => {
                self.last = Some(reached);
                self.watch_again(true)
            }
            Outcome::WatchFailed { reached, error: SourceError::Refused(_) } if self.has_progressed => {
                self.last = Some(reached);
                self.watch_again(true)
            }
            Outcome::WatchFailed { reached, error: SourceError::Expired(_) } => {
                self.last = Some(reached);
                self.list_expired()
            }
            Outcome::WatchTooShort { reached }
            | Outcome::WatchFailed { reached, .. }
            | Outcome::ResyncFailed { reached, .. } => {
                self.last = Some(reached);
                self.list_again()
            }
            Outcome::NotStored { reached, .. } => {
                if reached.is_some() {
                    self.last = reached;
                }
                self.list_again()
            }
        }
    }

    /// Lists at once after an expired watch; after a delay if the watch from such a list expires without progress, so that an
    /// upstream whose versions expire at once is not listed in a loop.
    ///
    /// An expired watch does not make the version unavailable: the list requests "not older than", and only if that fails the
    /// most recent state (kubernetes #86430).
    fn list_expired(&mut self) -> Next {
        let delayed = std::mem::replace(&mut self.has_listed_at_once, true);
        Next { delayed, ..self.list_again() }
    }

    fn list_again(&self) -> Next {
        Next { delayed: true, request: Request::List(self.list_version()) }
    }

    fn watch_again(&self, delayed: bool) -> Next {
        match &self.last {
            Some(last) => Next { delayed, request: Request::Watch(last.clone()) },
            None => self.list_again(),
        }
    }

    fn list_version(&self) -> ListVersion {
        match &self.last {
            _ if self.is_last_unavailable => ListVersion::MostRecent,
            Some(last) => {
                let open = self.open.as_ref().filter(|open| *open > last);
                ListVersion::NotOlderThan(open.unwrap_or(last).clone())
            }
            None => self.first_list.clone(),
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// Returns true if the upstream has proved that its history was rewritten.
    pub(super) fn is_history_rewritten(&self) -> bool {
        matches!(
            self,
            Self::ListFailed(SourceError::HistoryRewritten(_))
                | Self::WatchNotOpened(SourceError::HistoryRewritten(_))
                | Self::WatchFailed { error: SourceError::HistoryRewritten(_), .. }
        )
    }

    /// Returns true if changes have been missed, so that only a list makes the state current again.
    pub(super) fn has_missed_changes(&self) -> bool {
        matches!(
            self,
            Self::WatchNotOpened(SourceError::Expired(_))
                | Self::WatchFailed { error: SourceError::Expired(_), .. }
                | Self::NotStored { .. }
        ) || self.is_history_rewritten()
    }

    /// Returns the error, if there was one.
    pub(super) fn error(&self) -> Option<ReflectorError> {
        match self {
            Self::Listed(_) | Self::WatchClosed { .. } => None,
            Self::ListFailed(error) => Some(ReflectorError::List(error.clone())),
            Self::WatchNotOpened(error) | Self::WatchFailed { error, .. } => Some(ReflectorError::Watch(error.clone())),
            Self::WatchTooShort { .. } => Some(ReflectorError::WatchTooShort),
            Self::WatchBroken { found, after, .. } => {
                Some(ReflectorError::VersionOrder { found: found.clone(), after: after.clone() })
            }
            Self::ResyncFailed { error, .. } => Some(ReflectorError::Resync(error.clone())),
            Self::NotStored { error, .. } => Some(ReflectorError::Store(error.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(number: u128) -> ResourceVersion {
        ResourceVersion::decimal(number)
    }

    fn expired() -> SourceError {
        SourceError::Expired("410".into())
    }

    fn too_large() -> SourceError {
        SourceError::VersionTooLarge("504".into())
    }

    fn busy() -> SourceError {
        SourceError::Busy("429".into())
    }

    fn incomplete() -> SourceError {
        SourceError::Incomplete("60 s".into())
    }

    fn unavailable() -> SourceError {
        SourceError::Unavailable("500".into())
    }

    fn list(at: ListVersion, delayed: bool) -> Next {
        Next { delayed, request: Request::List(at) }
    }

    fn watch(from: u128, delayed: bool) -> Next {
        Next { delayed, request: Request::Watch(version(from)) }
    }

    /// Returns the versions of the lists that follow a script of outcomes, in client-go's notation.
    fn list_versions(state: &mut State, outcomes: Vec<Outcome>) -> Vec<String> {
        let mut next = vec![state.start()];
        next.extend(outcomes.into_iter().map(|outcome| state.step(outcome)));
        let text = |next: Next| match next.request {
            Request::List(ListVersion::Any) => Some("0".to_owned()),
            Request::List(ListVersion::NotOlderThan(version)) => Some(version.to_string()),
            Request::List(ListVersion::MostRecent) => Some(String::new()),
            Request::Watch(_) => None,
        };
        next.into_iter().filter_map(text).collect()
    }

    /// `TestReflectorResyncWithResourceVersion`.
    #[test]
    fn a_relist_requests_a_state_not_older_than_the_last_version() {
        let mut state = State::new(ListVersion::Any);
        let failed = Outcome::WatchFailed { reached: version(10), error: unavailable() };
        assert_eq!(list_versions(&mut state, vec![Outcome::Listed(version(10)), failed]), ["0", "10"]);
    }

    /// `TestReflectorExpiredExactResourceVersion`, `TestReflectorFullListIfExpired`.
    #[test]
    fn an_expired_list_is_followed_at_once_by_one_of_the_most_recent_state() {
        let mut state = State::new(ListVersion::Any);
        let relist = || Outcome::WatchFailed { reached: version(10), error: unavailable() };
        let outcomes = vec![
            Outcome::Listed(version(10)),
            relist(),
            Outcome::ListFailed(expired()),
            Outcome::Listed(version(10)),
            relist(),
        ];
        assert_eq!(list_versions(&mut state, outcomes), ["0", "10", "", "10"]);
    }

    /// `TestReflectorFullListIfTooLarge`: "0","20","","30","","40","".
    #[test]
    fn a_version_that_is_too_large_is_followed_at_once_by_the_most_recent_state() {
        let mut state = State::new(ListVersion::Any);
        let mut outcomes = vec![Outcome::Listed(version(20))];
        for reached in [20, 30, 40] {
            outcomes.push(Outcome::WatchFailed { reached: version(reached), error: unavailable() });
            outcomes.push(Outcome::ListFailed(too_large()));
            outcomes.push(Outcome::Listed(version(reached + 10)));
        }
        assert_eq!(list_versions(&mut state, outcomes), ["0", "20", "", "30", "", "40", ""]);
        let next =
            State { last: Some(version(1)), ..State::new(ListVersion::Any) }.step(Outcome::ListFailed(expired()));
        assert!(!next.delayed, "without a delay");
    }

    #[test]
    fn a_failed_list_of_the_most_recent_state_is_retried_after_a_delay() {
        let mut state = State::new(ListVersion::MostRecent);
        assert_eq!(state.start(), list(ListVersion::MostRecent, false));
        for error in [expired(), too_large(), busy(), incomplete(), unavailable()] {
            assert_eq!(state.step(Outcome::ListFailed(error)), list(ListVersion::MostRecent, true));
        }
    }

    /// A list without the changes applied at an open version would revert them.
    #[test]
    fn an_open_version_is_watched_again_from_before_it_and_listed_not_older_than_it() {
        let mut state = State::new(ListVersion::Any);
        state.step(Outcome::Listed(version(5)));
        state.opened(&version(9));
        assert_eq!(state.step(Outcome::WatchClosed { reached: version(8) }), watch(8, false));
        let failed = |reached| Outcome::WatchFailed { reached: version(reached), error: unavailable() };
        assert_eq!(state.step(failed(8)), list(ListVersion::NotOlderThan(version(9)), true));
        assert_eq!(state.step(failed(12)), list(ListVersion::NotOlderThan(version(12)), true), "it was closed");
    }

    /// The versions of the new history begin anywhere.
    #[test]
    fn no_list_of_a_new_history_is_at_an_open_version_of_the_old_one() {
        let mut state = State::new(ListVersion::Any);
        state.step(Outcome::Listed(version(5)));
        state.opened(&version(9));
        let rewritten = SourceError::HistoryRewritten("another cluster".into());
        state.step(Outcome::WatchFailed { reached: version(8), error: rewritten });
        state.step(Outcome::Listed(version(3)));
        let failed = Outcome::WatchFailed { reached: version(3), error: unavailable() };
        assert_eq!(state.step(failed), list(ListVersion::NotOlderThan(version(3)), true));
    }

    /// The most recent state comes in pages.
    #[test]
    fn a_list_that_was_not_finished_is_followed_at_once_by_the_most_recent_state() {
        let mut state = State::new(ListVersion::MostRecent);
        state.step(Outcome::Listed(version(5)));
        assert_eq!(state.step(Outcome::WatchNotOpened(incomplete())), watch(5, true));
        let failed = Outcome::WatchFailed { reached: version(6), error: unavailable() };
        assert_eq!(state.step(failed), list(ListVersion::NotOlderThan(version(6)), true));
        assert_eq!(state.step(Outcome::ListFailed(incomplete())), list(ListVersion::MostRecent, false));
        assert_eq!(state.step(Outcome::ListFailed(incomplete())), list(ListVersion::MostRecent, true));
    }

    /// `TestNoRelistOnTooManyRequests`, `TestBackoffOnTooManyRequests`, `TestReflectorListAndWatchInitConnBackoff`.
    #[test]
    fn an_upstream_that_is_busy_is_watched_again_after_a_delay_and_never_listed() {
        let mut state = State::new(ListVersion::Any);
        assert_eq!(state.step(Outcome::Listed(version(5))), watch(5, false));
        for _ in 0..5 {
            assert_eq!(state.step(Outcome::WatchNotOpened(busy())), watch(5, true));
        }
        let failed = Outcome::WatchFailed { reached: version(7), error: busy() };
        assert_eq!(state.step(failed), watch(7, true));
    }

    #[test]
    fn a_watch_that_closes_normally_is_resumed_at_once_from_its_last_version() {
        let mut state = State::new(ListVersion::Any);
        state.step(Outcome::Listed(version(5)));
        assert_eq!(state.step(Outcome::WatchClosed { reached: version(9) }), watch(9, false));
    }

    #[test]
    fn every_other_end_of_a_watch_leads_to_a_relist_after_a_delay() {
        let reached = version(9);
        for outcome in [
            Outcome::WatchNotOpened(unavailable()),
            Outcome::WatchTooShort { reached: reached.clone() },
            Outcome::WatchFailed { reached: reached.clone(), error: unavailable() },
            Outcome::WatchFailed { reached: reached.clone(), error: SourceError::Undecodable("x".into()) },
        ] {
            let mut state = State::new(ListVersion::Any);
            state.step(Outcome::Listed(reached.clone()));
            assert_eq!(state.step(outcome), list(ListVersion::NotOlderThan(reached.clone()), true));
        }
    }

    /// A rewritten history is listed at once, and after a delay if that list proves another rewrite.
    #[test]
    fn a_rewritten_history_is_listed_at_its_most_recent_state() {
        let changed = || SourceError::HistoryRewritten("another cluster".into());
        for outcome in [
            Outcome::ListFailed(changed()),
            Outcome::WatchNotOpened(changed()),
            Outcome::WatchFailed { reached: version(9), error: changed() },
        ] {
            let mut state = State::new(ListVersion::Any);
            state.step(Outcome::Listed(version(5)));
            assert!(outcome.is_history_rewritten());
            assert_eq!(state.step(outcome), list(ListVersion::MostRecent, false));
            assert_eq!(state.step(Outcome::ListFailed(changed())), list(ListVersion::MostRecent, true));
            assert_eq!(state.step(Outcome::Listed(version(3))), watch(3, false));
        }
    }

    /// Here client-go accepts the lower version (`TestReflectorWatchHandler`: 55, then 32).
    #[test]
    fn a_stream_that_contradicts_itself_is_watched_again_from_the_reached_version() {
        let mut state = State::new(ListVersion::Any);
        state.step(Outcome::Listed(version(5)));
        let broken = Outcome::WatchBroken { reached: version(55), found: version(32), after: version(55) };
        assert_eq!(state.step(broken), watch(55, true));
    }
}
