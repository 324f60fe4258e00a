//! Blocks: who shares one, who waits for one, and for how long it is kept.

use std::time::Duration;

use FullChannelPolicy::Replay;

use super::*;

const REPLAY: QueueOptions = queue(Replay, 100);

/// Takes the lines of one poll.
fn lines(cursor: &mut Cursor<Text>) -> Vec<String> {
    match cursor.poll_take(&mut Context::from_waker(Waker::noop()), 1 << 20) {
        Poll::Ready(Taken::Frames(frames)) => frames.iter().flat_map(Text::lines).collect(),
        Poll::Ready(taken) => panic!("{taken:?}"),
        Poll::Pending => Vec::new(),
    }
}

/// Cursors of one selection at one offset, of which only one has missed a relist.
#[test]
fn a_cursor_that_reports_a_relist_shares_no_block_with_others() {
    let config = BroadcasterConfig::default();
    let past = Arc::new(Past::new(config.retention));
    let begin = HistoryPosition { version: version(0), offset: 0 };
    past.restart(History::new(config.retention, begin.clone()), || {});
    let cursors = Arc::new(Cursors::<Text>::new(past, config));
    let mut broadcaster = Broadcaster::over(Arc::clone(&cursors));
    let mut cursors = [true, false, true, false]
        .map(|is_gap| cursors.subscribe_at(live(everything(), REPLAY), begin.clone(), (true, is_gap)));
    broadcaster.publish(&World::at(0).several(1));
    let is_relisted = |cursor| lines(cursor).iter().map(|line| line.contains("relist")).collect::<Vec<_>>();
    assert_eq!(cursors.each_mut().map(is_relisted), [[true], [false], [true], [false]]);
}

/// Cursors of one selection at one offset: the second has a part of what follows from another server.
#[test]
fn cursors_that_have_reached_different_versions_share_no_block() {
    let mut broadcaster = broadcaster::<Text>(0);
    let mut world = World::at(0);
    let [mut first, mut ahead] =
        [0, 2].map(|reached| broadcaster.subscribe_after(live(everything(), REPLAY), &version(reached)));
    broadcaster.publish(&world.several(3));
    assert_eq!([lines(&mut first).len(), lines(&mut ahead).len()], [3, 1]);
}

#[test]
fn every_cursor_that_waits_for_a_block_is_woken() {
    let threads = BulkThreads::manual(Arc::default());
    let mut broadcaster =
        Broadcaster::<Text>::new(BroadcasterConfig::default(), version(0)).deferring_to(Some(&threads));
    let subscribe = || Subscribe { format: Letter('p'), ..live(everything(), REPLAY) };
    let mut cursors = [(); 3].map(|()| broadcaster.subscribe(subscribe()));
    broadcaster.publish(&World::at(0).several(1));
    let flags = [(); 3].map(|()| Arc::new(Flag::default()));
    for (cursor, flag) in cursors.iter_mut().zip(&flags) {
        let waker = Waker::from(Arc::clone(flag));
        assert!(cursor.poll_take(&mut Context::from_waker(&waker), 1 << 20).is_pending());
    }
    while threads.run_one() {}
    assert_eq!(flags.each_ref().map(|flag| flag.is_set()), [true; 3]);
    assert_eq!(cursors.each_mut().map(|cursor| lines(cursor).len()), [1; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_block_that_nobody_takes_is_dropped_after_a_second_and_made_again() {
    let mut broadcaster = broadcaster::<Text>(0);
    let [mut first, mut second, mut third] = [(); 3].map(|()| broadcaster.subscribe(live(everything(), REPLAY)));
    broadcaster.publish(&World::at(0).several(1));
    let stats = Arc::clone(broadcaster.stats());
    let counters = || [&stats.encoded, &stats.retained_size].map(|counter| counter.load(Ordering::Relaxed));
    assert_eq!(lines(&mut first).len(), 1);
    let [_, size] = counters();
    assert!(size > 0);
    broadcaster.sweep();
    assert_eq!((lines(&mut second).len(), counters()), (1, [1, size]), "the third may need it");
    tokio::time::advance(Duration::from_secs(1)).await;
    broadcaster.sweep();
    assert_eq!(counters(), [1, 0]);
    assert_eq!((lines(&mut third).len(), counters()[0]), (1, 2));
}

/// A relist that changes nothing of a selection: its cursor reports it with the next event, parked or not.
#[test]
fn a_relist_without_an_event_is_reported_with_the_next_one() {
    let cases = (0..24).map(|case| (case & 1 > 0, case & 2 > 0, case & 4 > 0, [0, 1, 5][case / 8]));
    for case @ (has_change, is_shared, is_evicted, others) in cases {
        let events = if is_evicted { 2 } else { 100 };
        let retention = Retention { events, ..BroadcasterConfig::default().retention };
        let config = BroadcasterConfig { retention, ..BroadcasterConfig::default() };
        let mut broadcaster = Broadcaster::<Text>::new(config, version(0));
        let mut world = World::at(0);
        let mut cursor = broadcaster.subscribe(live(app("web"), REPLAY));
        let _other = is_shared.then(|| broadcaster.subscribe(live(app("web"), REPLAY)));
        let other = world.batch(|world| if has_change { vec![world.put("b", "db")] } else { Vec::new() });
        world.version += 5;
        broadcaster.publish(&[Batch { after: version(world.version), is_relist: true, ..other }]);
        for _ in 0..others {
            broadcaster.publish(&[world.one("b", "db")]);
        }
        broadcaster.publish(&[world.one("a", "web")]);
        let lines = lines(&mut cursor);
        assert!(lines[0].contains("relist"), "{case:?}: {lines:?}");
    }
}

/// Changes before an event that does not fit are passed only once: the caller hears that the event is too large.
#[test]
fn an_event_after_a_relist_that_does_not_fit_is_too_large() {
    let mut broadcaster = broadcaster::<Text>(0);
    let mut world = World::at(0);
    let mut cursor = broadcaster.subscribe(live(everything(), REPLAY));
    let relist = world.batch(|_| Vec::new());
    world.version += 5;
    broadcaster.publish(&[Batch { after: version(world.version), is_relist: true, ..relist }]);
    broadcaster.publish(&world.several(1));
    for _ in 0..3 {
        let polled = cursor.poll_take_fitting(&mut Context::from_waker(Waker::noop()), 1, true);
        assert!(matches!(polled, Poll::Ready(Err(TooLarge(Some(_))))), "{polled:?}");
    }
    assert_eq!(lines(&mut cursor).len(), 1);
}

/// Selections with a single reader each share an event that they see alike, and no other.
#[test]
fn selections_share_the_event_that_they_see_alike() {
    let mut broadcaster = broadcaster::<Text>(0);
    let mut world = World::at(0);
    let mut cursors =
        [(everything(), 'a'), (app("web"), 'a'), (app("db"), 'a'), (app("web"), 'b')].map(|(selection, letter)| {
            broadcaster.subscribe(Subscribe { format: Letter(letter), ..live(selection, REPLAY) })
        });
    let mut encoded = 0;
    let mut read = |broadcaster: &Broadcaster<Text>| {
        let lines = cursors.each_mut().map(|cursor| lines(cursor).concat());
        let before = std::mem::replace(&mut encoded, broadcaster.stats().encoded.load(Ordering::Relaxed));
        (lines, encoded - before)
    };
    broadcaster.publish(&[world.one("a", "web")]);
    let ([all, web, db, other], encodings) = read(&broadcaster);
    assert_eq!((&all, db, encodings), (&web, String::new(), 2), "once in each format");
    assert_ne!(web, other);
    broadcaster.publish(&[world.one("a", "db")]);
    let ([all, web, db, _], encodings) = read(&broadcaster);
    assert!(all != web && all != db && web != db, "modified, left, entered");
    assert_eq!(encodings, 4);
    broadcaster.publish(&[world.batch(|world| vec![world.put("b", "web"), world.put("a", "web")])]);
    let ([all, web, ..], _) = read(&broadcaster);
    assert_eq!([&all, &web].map(|lines| lines.lines().count()), [2, 2]);
    assert_ne!(all, web, "several are encoded for each");
}
