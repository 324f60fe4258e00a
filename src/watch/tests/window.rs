//! Memory that all logs of a resource take together, whatever their number and their readers.

use std::{collections::BTreeMap, time::Duration};

use smallvec::smallvec;

use super::*;
use crate::{
    model::Transition,
    watch::{
        encoding::{Encoding, Formats},
        group::{Group, Part, Wakers},
        selected::Selected,
        window::Window,
        writer_signals::WriterSignals,
    },
};

const BOUND: usize = 1 << 20;

struct Rig {
    broadcaster: Broadcaster<Text>,
    threads: BulkThreads,
    clock: Arc<crate::watch::selection_budget::Stepped>,
    world: World,
    cursors: Vec<Cursor<Text>>,
}

impl Rig {
    fn new() -> Self {
        let retention = Retention { size: BOUND, ..BroadcasterConfig::default().retention };
        let config = BroadcasterConfig { retention, ..BroadcasterConfig::default() };
        let clock: Arc<crate::watch::selection_budget::Stepped> = Arc::default();
        let threads = BulkThreads::manual(Arc::clone(&clock));
        let broadcaster = Broadcaster::new(config, version(0)).deferring_to(Some(&threads));
        Self { broadcaster, threads, clock, world: World::at(0), cursors: Vec::new() }
    }

    /// Subscribes `readers` readers that read nothing; each has its own selection, which has every object.
    fn lag(&mut self, readers: usize, policies: &[FullChannelPolicy]) {
        for number in 0..readers {
            let labels = LabelSelector::parse(&format!("app!=x{number}")).unwrap();
            let selection = Arc::new(Selection { labels, ..Selection::default() });
            let queue = queue(policies[number % policies.len()], 1000);
            self.cursors.push(self.broadcaster.subscribe(live(selection, queue)));
        }
    }

    fn publish(&mut self) {
        let batch = self.world.batch(|world| vec![world.put_sized("a", "web", 100)]);
        self.broadcaster.publish(&[batch]);
        while self.threads.run_one() {}
    }

    /// Returns the retained bytes, measured and not as they were counted.
    fn kept(&self) -> usize {
        let kept = self.cursors.iter().map(Cursor::kept);
        let (mut bytes, mut arenas) = (0, BTreeMap::new());
        for (of_log, frames) in kept {
            bytes += of_log;
            // Here each publish cycle has one arena, and every frame is all of it.
            arenas.extend(frames.iter().map(Text::place));
        }
        bytes + arenas.values().sum::<usize>()
    }

    fn counted(&self) -> usize {
        self.broadcaster.stats().retained_size.load(Ordering::Relaxed) as usize
    }
}

#[test]
fn a_thousand_lagging_readers_with_selections_of_their_own_keep_no_more_than_the_window() {
    let mut rig = Rig::new();
    rig.lag(1000, &[FullChannelPolicy::Replay, FullChannelPolicy::Block, FullChannelPolicy::Drop]);
    for _ in 0..100 {
        rig.publish();
        assert!(rig.kept() <= BOUND, "{} bytes are kept", rig.kept());
        assert!(rig.kept() <= rig.counted(), "what is kept is counted");
    }
    assert!(rig.counted() > BOUND / 2, "and the window is used: {}", rig.counted());
}

#[test]
fn events_filled_by_threads_count_against_the_window() {
    let mut rig = Rig::new();
    rig.lag(1000, &[FullChannelPolicy::Replay]);
    rig.clock.step.store(1_000_000_000, Ordering::SeqCst);
    let mut most = 0;
    for _ in 0..100 {
        rig.publish();
        let kept = rig.kept();
        assert!(kept <= BOUND, "{kept} bytes are kept");
        most = most.max(kept);
    }
    assert!(rig.broadcaster.stats().deferred.load(Ordering::Relaxed) > 900);
    // A log drops all that its readers, which lag beyond the window, cannot read, each time that it has four more runs.
    assert!(most > BOUND / 16, "and the window is used: {most}");
}

#[test]
fn a_rewritten_history_does_not_bypass_the_window() {
    let mut rig = Rig::new();
    for _ in 0..4 {
        rig.lag(300, &[FullChannelPolicy::Replay]);
        for _ in 0..20 {
            rig.publish();
        }
        rig.world.version += 10;
        rig.broadcaster.start_new_history(&End::HistoryRewritten, version(rig.world.version));
        assert!(rig.kept() <= BOUND, "{} bytes are kept", rig.kept());
    }
}

#[tokio::test(start_paused = true)]
async fn a_cycle_dropped_before_it_is_appended_is_not_retained() {
    let retention = Retention { events: 1, ..BroadcasterConfig::default().retention };
    let letter = Letter::default();
    let window = Window::<Text>::new(retention, Arc::default());
    let writer_signals = Arc::new(WriterSignals::new(Duration::ZERO, Arc::default()));
    let reached = HistoryPosition { version: version(0), offset: 0 };
    let group = Arc::new(Group::new(0, Arc::new(Selection::default()), letter, false, reached, writer_signals));
    let batches = [World::at(0).one("a", "web")];
    let mut encoding = Encoding::<Text>::new(&batches, 0, &mut None, Formats::<Text>::default());
    let added = Transition { event_type: EventType::Added, cause: Cause::Change };
    let share = encoding.share(&letter, 0, Selected { events: smallvec![(0, added)], suppressed: Vec::new() });
    let bytes = encoding.freeze();
    let now = tokio::time::Instant::now();

    let cycle = window.push(1, bytes, [(&group, &share.events[..])].into_iter(), now);
    window.push(1, 0, [].into_iter(), now);
    let (changes, arenas) = (encoding.changes(), encoding.arenas(&letter));
    let part =
        Part { cycle, at: now, changes, offset: 0, end: 1, arenas, queue_size: usize::MAX, floor: window.floor() };
    let mut log = group.log.lock();
    log.append(&part, share, &mut Vec::new(), &mut Wakers::new());
    assert_eq!((log.head, log.tail(), log.runs.len()), (1, 1, 0), "it is told from the history");
}
