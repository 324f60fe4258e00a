//! Publisher: a thread that writes events to a source, as fast as it reads them or at a fixed rate.

use std::{
    fmt,
    io::{self, Write},
    ops::Range,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    error::BenchError,
    template::{Content, EVERYBODY, Form, Template},
};

/// Destination and content of events.
pub(super) struct Feed {
    writer: Box<dyn Write + Send>,
    template: Template,
    pattern: Pattern,
    /// Start of the clock for publish times.
    epoch: Instant,
    /// Number of the next event.
    pub(super) next: u64,
}

/// Object that each event changes, by the number of the event. Deterministic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pattern {
    /// Number of objects.
    pub(super) objects: u64,
    /// Leading events that change each object once, in order.
    pub(super) first: u64,
    /// True if the objects follow in random order, so that neighbours are unrelated; otherwise in turn.
    pub(super) is_random: bool,
    /// Number of objects with a watcher of their own; none if everybody watches everything.
    pub(super) watched: Option<u64>,
    /// After those that create each object once, one event in so many is a new object; none if there are no new ones.
    pub(super) new_every: Option<u64>,
}

/// Running publisher.
#[derive(Debug)]
pub(super) struct Publishing {
    thread: JoinHandle<(Feed, io::Result<()>)>,
    stop: mpsc::Sender<()>,
}

/// Events in one write: about as much as a pipe holds.
const BATCH: u64 = 32;

// === impl Pattern ===

impl Pattern {
    /// Returns a pattern of this many objects in turn; everybody watches all of them.
    pub(super) fn in_turn(objects: u64) -> Self {
        Self { objects, first: 0, is_random: false, watched: None, new_every: None }
    }

    pub(super) fn object(&self, event: u64) -> u64 {
        if let Some(every) = self.new_every.filter(|every| event >= self.objects && (event + 1).is_multiple_of(*every))
        {
            return self.objects + event / every;
        }
        if self.is_random && event >= self.first { mix(event) % self.objects } else { event % self.objects }
    }

    /// Returns the watcher that an object has to itself.
    fn watcher(&self, object: u64) -> u32 {
        self.watched.map_or(EVERYBODY, |_| object as u32)
    }

    /// Returns how many of these events are new objects, after those that create each object once.
    pub(super) fn new_objects(&self, events: Range<u64>) -> u64 {
        self.new_every.map_or(0, |every| events.end / every - events.start / every)
    }

    /// Returns the number of these events for each watcher.
    pub(super) fn shares(&self, events: Range<u64>, watchers: usize) -> Vec<u64> {
        if self.watched.is_none() {
            return vec![events.end - events.start; watchers];
        }
        let mut shares = vec![0; watchers];
        for event in events {
            if let Some(share) = shares.get_mut(self.object(event) as usize) {
                *share += 1;
            }
        }
        shares
    }
}

/// Returns a pseudo-random number (splitmix64).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

// === impl Feed ===

impl Feed {
    pub(super) fn new(
        writer: Box<dyn Write + Send>,
        form: Form,
        content: Content,
        pattern: Pattern,
        epoch: Instant,
    ) -> Self {
        Self { writer, template: Template::new(form, content), pattern, epoch, next: 0 }
    }

    /// Writes the events up to `up_to`, on its own thread: singly at a fixed rate, or as fast as the source reads them.
    pub(super) fn publish(mut self, up_to: u64, rate: Option<f64>) -> Publishing {
        let events = self.next..up_to;
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let written = match rate {
                Some(rate) => self.pace(events, rate, &stopped),
                None => self.write_events(events),
            };
            (self, written)
        });
        Publishing { thread, stop }
    }

    fn write_events(&mut self, events: Range<u64>) -> io::Result<()> {
        let mut batch = Vec::new();
        while self.next < events.end {
            let end = events.end.min(self.next + BATCH);
            batch.clear();
            (self.next..end).for_each(|event| self.append(event, &mut batch));
            self.writer.write_all(&batch)?;
            self.next = end;
        }
        Ok(())
    }

    fn pace(&mut self, events: Range<u64>, rate: f64, stopped: &mpsc::Receiver<()>) -> io::Result<()> {
        let (begin, first) = (Instant::now(), events.start);
        let mut line = Vec::new();
        for event in events {
            let due = begin + Duration::from_secs_f64((event - first) as f64 / rate);
            let left = due.saturating_duration_since(Instant::now());
            // Also without a wait: it may have been stopped.
            if stopped.recv_timeout(left) == Err(mpsc::RecvTimeoutError::Disconnected) {
                return Ok(());
            }
            line.clear();
            self.append(event, &mut line);
            self.writer.write_all(&line)?;
            self.next = event + 1;
        }
        Ok(())
    }

    fn append(&mut self, event: u64, out: &mut Vec<u8>) {
        let object = self.pattern.object(event);
        let now = self.epoch.elapsed().as_nanos() as u64;
        self.template.write(object, now, self.pattern.watcher(object), out);
    }
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("pattern", &self.pattern).finish_non_exhaustive()
    }
}

// === impl Publishing ===

impl Publishing {
    /// Stops after the events written so far, if it writes at a fixed rate.
    pub(super) fn stop(self) -> Result<Feed, BenchError> {
        drop(self.stop);
        Self::join(self.thread)
    }

    /// Waits until all events are written.
    pub(super) fn finish(self) -> Result<Feed, BenchError> {
        Self::join(self.thread)
    }

    fn join(thread: JoinHandle<(Feed, io::Result<()>)>) -> Result<Feed, BenchError> {
        // The only failure is a panic, a bug that was already reported.
        let (feed, written) = thread.join().map_err(|_| BenchError::Publish("its thread has ended".to_owned()))?;
        written.map_err(|error| BenchError::Publish(error.to_string()))?;
        Ok(feed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const EVERYTHING: Pattern = Pattern { objects: 3, first: 3, is_random: false, watched: None, new_every: None };

    #[test]
    fn every_event_is_written_once_and_in_order_at_any_rate() {
        for rate in [None, Some(1e9)] {
            let written = Shared::default();
            let feed =
                Feed::new(Box::new(written.clone()), Form::Lines, Content::Size(400), EVERYTHING, Instant::now());
            let feed = feed.publish(50, rate).finish().unwrap();
            assert_eq!(feed.publish(100, rate).finish().unwrap().next, 100);
            let text = String::from_utf8(written.0.lock().clone()).unwrap();
            let names = text.lines().map(|line| {
                let event: serde_json::Value = serde_json::from_str(line).unwrap();
                event["object"]["metadata"]["name"].as_str().unwrap().to_owned()
            });
            let expected = (0..100).map(|event| format!("pod-{:07}", event % 3));
            assert!(names.eq(expected), "{rate:?}");
        }
    }

    #[test]
    fn the_shares_of_the_watchers_are_those_of_the_events() {
        assert_eq!(EVERYTHING.shares(5..15, 4), [10; 4]);
        let pattern = Pattern { first: 10, is_random: true, watched: Some(4), ..Pattern::in_turn(10) };
        assert_eq!(pattern.shares(0..10, 4), [1; 4], "first each of them");
        let shares = pattern.shares(10..100_010, 10);
        assert_eq!(shares.iter().sum::<u64>(), 100_000);
        assert!(shares.iter().all(|share| (9_000..11_000).contains(share)), "{shares:?}");
        assert_eq!(pattern.shares(10..1010, 4), pattern.shares(10..1010, 10)[..4]);
    }

    #[test]
    fn new_objects_come_among_the_others() {
        let pattern = Pattern { new_every: Some(4), ..Pattern::in_turn(6) };
        let objects: Vec<u64> = (0..16).map(|event| pattern.object(event)).collect();
        assert_eq!(objects, [0, 1, 2, 3, 4, 5, 0, 7, 2, 3, 4, 8, 0, 1, 2, 9]);
        assert_eq!(pattern.new_objects(6..16), 3);
        assert_eq!(Pattern::in_turn(6).new_objects(6..16), 0);
    }

    #[test]
    fn a_fixed_rate_can_be_stopped() {
        let written = Shared::default();
        let feed = Feed::new(Box::new(written.clone()), Form::Lines, Content::Size(400), EVERYTHING, Instant::now());
        let feed = feed.publish(u64::MAX, Some(0.01)).stop().unwrap();
        let lines = String::from_utf8(written.0.lock().clone()).unwrap().lines().count();
        assert!(feed.next <= 1 && lines as u64 == feed.next, "only the first is due at once");
    }

    #[test]
    fn a_closed_feed_is_reported() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let feed = Feed::new(Box::new(Gone), Form::Lines, Content::Size(400), EVERYTHING, Instant::now());
        assert!(matches!(feed.publish(5, None).finish(), Err(BenchError::Publish(_))));
    }
}
