//! Tests of watches that are open over a live connection, and are fed or not.

use super::{fake_api::Bookmarks, *};
use crate::cache::SyncState;

const MINUTE: Duration = Duration::from_secs(60);
/// Time in which a watch that is not fed is reported: two bookmarks, a check that may just have found nothing, and `stale_after`.
const REPORTED: Duration = Duration::from_secs(2 * 120 + 30);

/// Starts a source over an API with bookmarks.
async fn listed(bookmarks: Bookmarks) -> (Fixture, Rig) {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.bookmarks = bookmarks);
    fixture.fake.write("a/x=1 b/x=1");
    let rig = fixture.listed().await;
    (fixture, rig)
}

/// Lets time pass, with something written elsewhere every 10 s, and asserts that the resource is SYNCED throughout.
async fn is_synced_for(rig: &Rig, time: Duration, elsewhere: impl Fn()) {
    let ends_at = tokio::time::Instant::now() + time;
    while tokio::time::Instant::now() < ends_at {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(rig.health.state(), SyncState::Synced, "{:?}", rig.health.report());
        if tokio::time::Instant::now().duration_since(ends_at - time).as_secs().is_multiple_of(10) {
            elsewhere();
        }
    }
}

/// Returns the reason for which it turns STALE within a time.
async fn stale_within(rig: &Rig, time: Duration) -> String {
    let stale = async {
        while rig.health.state() != SyncState::Stale {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        rig.health.report().last_error.expect("a reason")
    };
    timeout(time, stale).await.unwrap_or_else(|_| panic!("SYNCED for {time:?}"))
}

async fn synced_within(rig: &Rig, time: Duration) {
    let synced = async {
        while rig.health.state() != SyncState::Synced {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    timeout(time, synced).await.unwrap_or_else(|_| panic!("{:?}", rig.health.report()));
    assert_eq!(rig.health.report().last_error, None);
}

fn count(fixture: &Fixture, kind: &str) -> usize {
    fixture.fake.asked().iter().filter(|asked| asked.contains(kind)).count()
}

#[tokio::test(start_paused = true)]
async fn a_quiet_resource_whose_bookmarks_advance_is_never_checked() {
    let (fixture, rig) = listed(Bookmarks::All).await;
    is_synced_for(&rig, 4 * MINUTE, || fixture.fake.write_elsewhere()).await;
    assert_eq!((count(&fixture, "head"), count(&fixture, "probe")), (0, 0), "{:?}", fixture.fake.asked());
}

/// In a cluster in which nothing is written at all, and in one whose API server sends no bookmarks.
#[tokio::test(start_paused = true)]
async fn a_quiet_resource_is_synced_however_long() {
    for (bookmarks, is_live) in [(Bookmarks::All, false), (Bookmarks::None, false), (Bookmarks::None, true)] {
        let (fixture, rig) = listed(bookmarks).await;
        let elsewhere = || {
            if is_live {
                fixture.fake.write_elsewhere();
            }
        };
        is_synced_for(&rig, 30 * MINUTE, elsewhere).await;
        let (heads, probes) = (count(&fixture, "head"), count(&fixture, "probe"));
        assert!((8..=40).contains(&heads), "{bookmarks:?} {is_live}: {:?}", fixture.fake.asked());
        assert_eq!(probes > 0, is_live, "a second watch, only if there is something that the first may lack");
        assert_eq!(rig.lists(), 1);
    }
}

/// A cluster with one write in hours: the next bookmark is up to a minute away.
#[tokio::test(start_paused = true)]
async fn a_version_that_has_just_advanced_elsewhere_is_not_missing() {
    let (fixture, rig) = listed(Bookmarks::All).await;
    is_synced_for(&rig, 2 * MINUTE + Duration::from_secs(30), || ()).await;
    for _ in 0..10 {
        fixture.fake.write_elsewhere();
        is_synced_for(&rig, Duration::from_secs(217), || ()).await;
    }
    assert!(count(&fixture, "head") > 5);
}

#[tokio::test(start_paused = true)]
async fn a_watch_cache_that_stands_still_is_stale_until_it_goes_on() {
    for is_metadata_only in [false, true] {
        let fixture = Fixture::new().await;
        fixture.fake.set(|store| store.bookmarks = Bookmarks::All);
        fixture.fake.write("a/x=1");
        let mut rig = follow(KubeConfig { is_metadata_only, ..fixture.config() }, None);
        assert_eq!(rig.told().await, "list 2");
        fixture.fake.stand_still(Some(""));
        fixture.fake.write("a/x=2");
        let error = stale_within(&rig, REPORTED).await;
        assert!(error.starts_with("the watch stands still at version 2: the cluster has version 3"), "{error}");
        is_stale_for(&rig, 10 * MINUTE, || fixture.fake.write_elsewhere()).await;
        fixture.fake.stand_still(None);
        assert_eq!(rig.told().await.split(' ').next(), Some("3"));
        synced_within(&rig, 2 * MINUTE).await;
        assert_eq!(rig.lists(), 1);
    }
}

/// Asserts that it is STALE throughout, in spite of bookmarks and of the answers of the API server.
async fn is_stale_for(rig: &Rig, time: Duration, elsewhere: impl Fn()) {
    let ends_at = tokio::time::Instant::now() + time;
    while tokio::time::Instant::now() < ends_at {
        elsewhere();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let report = rig.health.report();
        assert_eq!((report.state, report.last_error.is_some()), (SyncState::Stale, true));
    }
}

/// etcd does not answer, or has an object that cannot be decoded: the API server lists with an error, and watches go on.
#[tokio::test(start_paused = true)]
async fn an_api_that_answers_no_list_is_stale_until_it_does() {
    for bookmarks in [Bookmarks::All, Bookmarks::None] {
        let (fixture, rig) = listed(bookmarks).await;
        let fails = || Fault::Refuse(500, None, r#"{"reason":"InternalError","message":"cannot decode"}"#.to_owned());
        // Once, it does not count.
        fixture.fake.set(|store| store.lists.push_back(fails()));
        is_synced_for(&rig, 4 * MINUTE, || ()).await;
        assert!(fixture.fake.set(|store| store.lists.is_empty()), "it was checked");
        fixture.fake.set(|store| store.lists.extend((0..200).map(|_| fails())));
        let error = stale_within(&rig, REPORTED).await;
        assert!(error.contains("stands still at version 3") && error.contains("cannot decode"), "{error}");
        fixture.fake.set(|store| store.lists.clear());
        synced_within(&rig, MINUTE).await;
    }
}

/// An answer that the API does not allow, or that is too large, proves nothing about the watch.
#[tokio::test(start_paused = true)]
async fn a_list_that_is_not_allowed_or_ignores_its_limit_proves_nothing() {
    let (fixture, rig) = listed(Bookmarks::All).await;
    let large = format!(r#"{{"kind":"WidgetList","metadata":{{}},"items":["{}"]}}"#, "x".repeat(9 << 20));
    fixture.fake.set(|store| {
        let forbidden = r#"{"reason":"Forbidden","message":"no"}"#;
        store.lists.extend((0..5).map(|_| Fault::Refuse(403, None, forbidden.to_owned())));
        store.lists.extend((0..5).map(|_| Fault::Answer(large.clone())));
    });
    is_synced_for(&rig, 25 * MINUTE, || ()).await;
    assert!(fixture.fake.set(|store| store.lists.is_empty()), "it was checked ten times");
}

/// A stream that a proxy holds back, of a kind without bookmarks: the API server itself answers another watch.
#[tokio::test(start_paused = true)]
async fn a_watch_that_lacks_what_another_one_has_is_opened_again() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| {
        (store.streams, store.bookmarks) = (false, Bookmarks::None);
        store.watches.extend([Fault::Then(Box::new(|_| ())), Fault::Hold(0)]);
    });
    fixture.fake.write("a/x=1");
    let mut rig = fixture.listed().await;
    until(|| fixture.fake.asked().len() == 3).await;
    fixture.fake.write("b/x=1 -a/x");
    let opened = async {
        while fixture.fake.asked().iter().filter(|asked| asked.starts_with("watch") && !asked.contains("probe")).count()
            < 2
        {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    timeout(REPORTED, opened).await.expect("another watch");
    fixture.reach(&mut rig).await;
    synced_within(&rig, MINUTE).await;
    assert_eq!((rig.lists(), rig.history_rewrites), (1, 0), "{:?}", fixture.fake.asked());
}

#[tokio::test(start_paused = true)]
async fn one_of_several_namespaces_that_stands_still_makes_the_resource_stale() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.bookmarks = Bookmarks::All);
    fixture.fake.write("a/x=1 b/x=1");
    let config = KubeConfig { namespaces: vec!["a".into(), "b".into()], ..fixture.config() };
    let mut rig = follow(config, None);
    assert_eq!(rig.told().await, "list 3");
    is_synced_for(&rig, 6 * MINUTE, || fixture.fake.write_elsewhere()).await;
    fixture.fake.stand_still(Some("b"));
    fixture.fake.write("b/x=2");
    let revision = fixture.fake.revision();
    let stale = async {
        loop {
            fixture.fake.write_elsewhere();
            tokio::time::sleep(Duration::from_secs(5)).await;
            if rig.health.state() == SyncState::Stale {
                return rig.health.report().last_error.unwrap();
            }
        }
    };
    let error = timeout(REPORTED, stale).await.unwrap();
    assert!(error.starts_with("the watch stands still at version"), "{error}");
    assert!(rig.health.is_unfed("b") && !rig.health.is_unfed("a"));
    fixture.fake.stand_still(None);
    rig.reach_state(revision, || fixture.fake.state()).await;
    synced_within(&rig, 2 * MINUTE).await;
}

/// By default etcd reports progress every ten minutes: a bookmark shows afterwards that nothing was missing.
#[tokio::test(start_paused = true)]
async fn slow_progress_of_the_api_is_learned() {
    let (fixture, rig) = listed(Bookmarks::All).await;
    fixture.fake.stand_still(Some(""));
    for round in 0..4 {
        let begun = tokio::time::Instant::now();
        while begun.elapsed() < 10 * MINUTE {
            tokio::time::sleep(Duration::from_secs(1)).await;
            fixture.fake.write_elsewhere();
            let is_stale = rig.health.state() == SyncState::Stale;
            assert!(!is_stale || round == 0, "in round {round}: {:?}", rig.health.report());
        }
        fixture.fake.stand_still(None);
        tokio::time::sleep(MINUTE + Duration::from_secs(5)).await;
        assert_eq!(rig.health.state(), SyncState::Synced);
        fixture.fake.stand_still(Some(""));
    }
    assert_eq!(rig.lists(), 1);
}
