//! Pauses between attempts: causes that lengthen or reset them.

use super::*;

/// Each outage ends with an expired watch and a list, as a restart of an API server does; nothing else happens in between.
#[tokio::test(start_paused = true)]
async fn recovery_after_the_fourth_outage_takes_as_long_as_after_the_first() {
    let outage = [Watched(vec![secs(20)]), Refuse(busy()), Refuse(busy()), Refuse(busy()), Refuse(expired())];
    let mut answers = vec![Listed(10)];
    for _ in 0..4 {
        answers.extend(outage.clone());
        answers.push(Listed(10));
    }
    let run = run(answers).await;
    let lists: Vec<u64> =
        run.calls.iter().filter_map(|call| call.split_once(" list 10").map(|(at, _)| at.parse().unwrap())).collect();
    assert_eq!(lists, [25_600, 51_200, 76_800, 102_400], "20 s open, then 0.8 + 1.6 + 3.2 s");
}

/// A list that succeeds does not compensate for watches that never deliver anything.
#[tokio::test(start_paused = true)]
async fn a_watch_that_always_fails_is_listed_after_growing_delays() {
    let mut answers = Vec::new();
    for _ in 0..5 {
        answers.extend([Listed(10), Watched(vec![Bookmark(10), Fail(unavailable())])]);
    }
    let run = run(answers).await;
    let lists: Vec<&String> = run.calls.iter().filter(|call| call.contains("list 10")).collect();
    assert_eq!(lists, ["800 list 10", "2400 list 10", "5600 list 10", "12000 list 10", "24800 list 10"]);
}

/// An answer is no failure, however often it comes, and the upstream may be ready at any time.
#[tokio::test(start_paused = true)]
async fn an_upstream_that_is_not_ready_is_asked_again_after_a_constant_delay() {
    let not_yet = || SourceError::NotYet("at version 7".to_owned());
    let mut answers = vec![FailList(busy()), FailList(busy())];
    answers.extend((0..100).map(|_| FailList(not_yet())));
    answers.push(Listed(10));
    answers.extend((0..100).map(|_| Refuse(not_yet())));
    let run = run_for(Duration::from_secs(150), answers).await;
    let times: Vec<u64> = run.calls.iter().map(|call| call.split_once(' ').unwrap().0.parse().unwrap()).collect();
    assert_eq!(times.len(), 204, "{:?}", run.calls);
    let pauses = times[2..].windows(2).map(|pair| pair[1] - pair[0]);
    assert!(pauses.clone().all(|pause| pause <= 501), "{times:?}");
    assert!(run.health.report().last_error.unwrap().contains("at version 7"));
}

/// An upstream whose watch delivers something has recovered.
#[tokio::test(start_paused = true)]
async fn an_event_resets_the_backoff() {
    let answers = vec![
        Listed(10),
        Refuse(busy()),
        Refuse(busy()),
        Refuse(busy()),
        Watched(vec![Put(11), Fail(busy())]),
        Watched(vec![Bookmark(12), Fail(busy())]),
        Watched(vec![StayOpen]),
    ];
    let run = run(answers).await;
    assert_eq!(run.calls[4..], ["5600 watch 10", "6400 watch 11", "7200 watch 12"]);
}

/// Rights and credentials return: the watch resumes. An upstream that never serves a watch is listed.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_refused_is_opened_again_and_one_that_was_never_served_is_listed() {
    let refused = || SourceError::Refused("403".into());
    let answers =
        vec![Listed(10), Watched(vec![Put(11), Fail(refused())]), Refuse(refused()), Watched(vec![Put(12), StayOpen])];
    assert_eq!(run(answers).await.calls, ["0 list 0", "0 watch 10", "800 watch 11", "2400 watch 11"]);
    let answers = vec![Listed(10), Refuse(refused()), Listed(11), Watched(vec![Fail(refused())]), Listed(12)];
    let calls = run(answers).await.calls;
    assert_eq!(calls[..5], ["0 list 0", "0 watch 10", "800 list 10", "800 watch 11", "2400 list 11"]);
}

/// Without a list, an upstream whose versions are in no order would be watched for ever.
#[tokio::test(start_paused = true)]
async fn the_third_watch_in_a_row_that_contradicts_itself_leads_to_a_list() {
    let low = || Watched(vec![Put(3), StayOpen]);
    let answers = vec![
        Listed(10),
        low(),
        low(),
        Watched(vec![Put(11), Put(3), StayOpen]),
        low(),
        low(),
        Listed(11),
        low(),
        Watched(vec![StayOpen]),
    ];
    let run = run(answers).await;
    let calls: Vec<&str> = run.calls.iter().map(|call| call.split_once(' ').unwrap().1).collect();
    assert_eq!(
        calls,
        ["list 0", "watch 10", "watch 10", "watch 10", "watch 11", "watch 11", "list 11", "watch 11", "watch 11",]
    );
}

/// Here client-go's `TestReflectorWatchHandler` accepts the lower version, 32 after 55.
#[tokio::test(start_paused = true)]
async fn an_event_at_an_older_version_is_not_queued_and_the_watch_resumes_from_the_reached_version() {
    let answers = vec![
        Listed(10),
        Watched(vec![Put(55), Put(32), Put(60), StayOpen]),
        Watched(vec![Put(56), Bookmark(56), StayOpen]),
    ];
    let run = run(answers).await;
    assert_eq!(run.calls, ["0 list 0", "0 watch 10", "800 watch 55"]);
    assert_eq!(run.queued, ["replace 10", "put 55", "put 56", "bookmark 56"], "the same version is no step back");
    assert_eq!(run.counts, [1, 0, 2, 1, 4]);
}

#[tokio::test(start_paused = true)]
async fn the_backoff_resets_after_two_minutes_without_a_delay() {
    let fail_after = |time| Watched(vec![secs(time), Fail(busy())]);
    let answers = vec![Listed(10), fail_after(0), fail_after(0), fail_after(119), fail_after(121), fail_after(0)];
    let run = run(answers).await;
    let at = |secs: u64, ms: u64| format!("{} watch 10", secs * 1000 + ms);
    // Delays: 0.8, 1.6, (119 s) 3.2, (121 s) 0.8, 1.6.
    let expected = [at(0, 0), at(0, 800), at(2, 400), at(124, 600), at(246, 400), at(248, 0)];
    assert_eq!(run.calls[1..], expected);
}

/// `TestReflectorListAndWatchInitConnBackoff`: refusals flatten at the cap.
#[tokio::test(start_paused = true)]
async fn delays_grow_to_half_a_minute() {
    let answers = [vec![FailList(unavailable()); 10], vec![Listed(1)]].concat();
    let run = run(answers).await;
    let times: Vec<u64> = run.calls.iter().map(|call| call.split_once(' ').unwrap().0.parse().unwrap()).collect();
    let delays: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(delays, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000, 30_000, 30_000, 0]);
    assert_eq!(run.counts, [11, 10, 1, 0, 0]);
}
