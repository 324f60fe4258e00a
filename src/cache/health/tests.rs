//! Tests of the states and of the reasons that the health of a source reports.

use super::*;

const HEARTBEAT: Duration = Duration::from_secs(5);
const STALE_AFTER: Duration = Duration::from_secs(15);

#[tokio::test(start_paused = true)]
async fn a_source_is_stale_after_a_silence_of_its_heartbeat_and_the_bound() {
    let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
    assert_eq!(health.report().state, SyncState::Stale);
    health.record_contact();
    assert_eq!(health.report().state, SyncState::Synced);

    tokio::time::advance(HEARTBEAT).await;
    assert_eq!(health.state(), SyncState::Synced);
    health.record_failure("connection refused");
    let report = health.report();
    assert_eq!((report.state, report.last_error.as_deref()), (SyncState::Synced, Some("connection refused")));
    tokio::time::advance(STALE_AFTER).await;
    assert_eq!(health.report().state, SyncState::Stale);

    health.record_contact();
    let report = health.report();
    assert_eq!((report.state, report.last_error), (SyncState::Synced, None));
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_is_stale_without_waiting_for_its_heartbeat() {
    for heartbeat in [Duration::from_secs(120), Duration::MAX] {
        let health = SourceHealth::new(heartbeat, STALE_AFTER);
        health.record_contact();
        tokio::time::advance(Duration::from_secs(60)).await;
        for _ in 0..5 {
            assert_eq!(health.state(), SyncState::Synced);
            health.record_failure("connection refused");
            tokio::time::advance(STALE_AFTER / 5).await;
        }
        assert_eq!(health.state(), SyncState::Stale);
        health.record_contact();
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(health.state(), SyncState::Synced);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_counts_from_the_last_contact() {
    let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
    health.record_contact();
    let contact = Instant::now();
    tokio::time::advance(STALE_AFTER.saturating_sub(Duration::from_secs(1))).await;
    health.record_lost_contact(contact);
    health.record_failure("no answer");
    assert_eq!(health.state(), SyncState::Synced);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(health.state(), SyncState::Stale);
    health.record_contact();
    assert_eq!(health.state(), SyncState::Synced);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_may_be_silent_is_stale_only_when_it_is_lost() {
    let health = SourceHealth::new(Duration::MAX, STALE_AFTER);
    health.record_contact();
    tokio::time::advance(Duration::from_secs(1 << 30)).await;
    assert_eq!(health.state(), SyncState::Synced);
    health.mark_lost();
    assert_eq!(health.report().state, SyncState::Stale, "at once");
    health.record_contact();
    assert_eq!(health.state(), SyncState::Synced);
}

#[tokio::test(start_paused = true)]
async fn a_relay_reports_the_state_of_its_origin() {
    let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
    let seen_at = Some(SystemTime::UNIX_EPOCH);
    health.record_contact();
    health.record_origin(SyncState::Stale, seen_at);
    health.record_contact();
    let report = health.report();
    assert_eq!((report.state, report.seen_at), (SyncState::Stale, seen_at));
    health.record_origin(SyncState::Synced, seen_at);
    assert_eq!(health.state(), SyncState::Synced);
    tokio::time::advance(HEARTBEAT + STALE_AFTER + Duration::from_millis(1)).await;
    assert_eq!(health.state(), SyncState::Stale, "the upstream itself is silent");
}

#[tokio::test(start_paused = true)]
async fn a_source_with_unconfirmed_objects_is_stale_despite_contact() {
    let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
    health.set_unconfirmed(true);
    health.record_contact();
    assert_eq!(health.state(), SyncState::Stale);
    health.set_unconfirmed(false);
    assert_eq!(health.state(), SyncState::Synced);
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_source_is_stale_until_the_version_with_all_objects_is_reached() {
    let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
    health.record_contact();
    let at = ResourceVersion::decimal;
    health.complete_at(at(1));
    health.mark_incomplete("a.yaml cannot be read", None);
    health.note_reached(&at(7));
    assert!(health.is_incomplete(), "nothing says that the version is complete");
    assert_eq!(
        (health.state(), health.report().last_error.as_deref()),
        (SyncState::Stale, Some("a.yaml cannot be read"))
    );
    health.complete_at(at(9));
    health.note_reached(&at(8));
    assert_eq!(health.state(), SyncState::Stale);
    health.note_reached(&at(9));
    assert_eq!((health.state(), health.problems()), (SyncState::Synced, Vec::new()));
}

/// Decimal versions are those of every run.
#[test]
fn an_incomplete_state_may_lack_what_is_older_than_its_first_list() {
    let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
    let at = ResourceVersion::decimal;
    let waits = |number| health.may_lack(&at(number), Some(&at(40)));
    health.mark_incomplete("unread", Some(at(20)));
    health.mark_incomplete("unread", Some(at(30)));
    assert!(waits(19) && !waits(20), "a client of the first list has a state of this run");
    health.complete_at(at(40));
    health.note_reached(&at(40));
    assert!(!waits(19));
    health.mark_incomplete("unread", None);
    assert!(!waits(19) && health.may_lack(&"abc.7".parse().unwrap(), Some(&at(40))), "of another lineage");
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_a_problem_until_contact_and_comes_first_in_last_error() {
    let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
    let invalid = |path: &str| Problem::new(ProblemReason::FileInvalid, path, "bad");
    health.replace_problems(&[ProblemReason::FileInvalid], vec![invalid("a.yaml"), invalid("b.yaml")]);
    health.record_contact();
    let report = health.report();
    assert_eq!((report.problems, report.last_error.as_deref()), (2, Some("a.yaml: bad")));
    health.record_failure("gone");
    let since = health.problems()[2].since;
    health.record_failure("gone for good");
    let report = health.report();
    assert_eq!((report.problems, report.last_error.as_deref()), (3, Some("gone for good")));
    let failure = health.problems().remove(2);
    assert_eq!((failure.reason, failure.since), (ProblemReason::UpstreamUnreachable, since), "of the first failure");
    assert!(health.replace_problems(&[ProblemReason::FileInvalid], Vec::new()).begun.is_empty());
    assert_eq!(health.report().problems, 1, "a replacement leaves other reasons alone");
    health.record_contact();
    assert_eq!((health.report().problems, health.report().last_error), (0, None));
    health.set_problem(Problem::new(ProblemReason::SnapshotNotWritten, "", "full"));
    assert_eq!(health.report().last_error.as_deref(), Some("full"));
    assert!(health.clear_problem(ProblemReason::SnapshotNotWritten, "").is_some());
    assert_eq!(health.report().last_error, None);
}

#[tokio::test(start_paused = true)]
async fn a_source_has_failed_until_contact_and_may_begin_with_the_last_contact_of_the_previous_run() {
    let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
    assert!(!health.has_failed());
    health.record_failure("gone");
    assert!(health.has_failed());
    health.record_contact();
    assert!(!health.has_failed());
    let seen_at = Some(SystemTime::UNIX_EPOCH);
    health.mark_resumed(seen_at);
    assert_eq!(health.report().seen_at, seen_at);
    assert_eq!(health.late_changes(), 0);
    health.count_late_change();
    assert_eq!(health.late_changes(), 1);
}

#[tokio::test(start_paused = true)]
async fn namespaces_are_sorted_and_problems_are_found_by_their_reasons() {
    let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
    assert!(health.namespaces().is_empty());
    health.set_namespaces(["b", "a", "b"].map(str::to_owned).to_vec());
    assert_eq!(health.namespaces(), ["a", "b"]);
    health.set_problem(Problem::new(ProblemReason::FileInvalid, "a.yaml", "bad"));
    health.set_problem(Problem::new(ProblemReason::SnapshotNotWritten, "", "full"));
    let subjects =
        |reason| -> Vec<String> { health.problems_of(&[reason]).into_iter().map(|problem| problem.subject).collect() };
    assert_eq!(subjects(ProblemReason::FileInvalid), ["a.yaml"]);
    assert_eq!(subjects(ProblemReason::UpstreamUnreachable), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_source_whose_watches_are_not_fed_is_stale_for_that_reason_until_all_are() {
    let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
    health.record_contact();
    health.set_problem(Problem::new(ProblemReason::ObjectInvalid, "a/x", "no name"));
    health.set_unfed("a", "a stands still");
    health.set_unfed("b", "b stands still");
    health.record_contact();
    assert_eq!((health.state(), health.is_unfed("a"), health.is_unfed("c")), (SyncState::Stale, true, false));
    assert_eq!(health.report().last_error.as_deref(), Some("a stands still"), "before a problem that is no reason");
    health.clear_unfed("a");
    assert_eq!((health.state(), health.report().last_error.as_deref()), (SyncState::Stale, Some("b stands still")));
    health.clear_unfed("b");
    assert_eq!((health.state(), health.report().last_error.as_deref()), (SyncState::Synced, Some("a/x: no name")));
}
