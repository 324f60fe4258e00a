//! Budgets of BLOCK over any time: random clients join, read, leave and rejoin, while the upstream always has more to
//! publish. The test measures the time for which the writer waited from outside, as well as the time for which each client
//! lagged.

use std::{collections::HashMap, time::Duration};

use proptest::{collection::vec, prelude::*, sample::select};
use tokio::time::Instant;

use super::*;

#[derive(Debug, Clone)]
enum Op {
    /// Watch of a client, with a queue of this length.
    Join(u8, usize),
    Leave(usize),
    /// Read of so many events at once, if there are so many.
    Take(usize, usize),
    Publish(usize),
    /// Milliseconds.
    Pass(u64),
}

/// Token bucket of time, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Bucket(i64);

struct Reader {
    cursor: Cursor<Deliveries>,
    client: u8,
    length: usize,
    /// Last version that it read, and number of events since it joined.
    version: u128,
    events: usize,
    is_ended: bool,
}

struct Model {
    world: World,
    broadcaster: Broadcaster<Deliveries>,
    pending: usize,
    readers: Vec<Reader>,
    resource: Bucket,
    clients: HashMap<u8, Bucket>,
    ended: usize,
}

const CAPACITY: Duration = Duration::from_millis(500);
/// Resolution of a timer: the writer may wait so much too long, but never twice.
const TICK: i64 = 1_000_000;
/// Loss by divisions.
const ROUNDING: i64 = 1_000;

impl Bucket {
    fn full() -> Self {
        Self(nanos(CAPACITY))
    }

    fn pass(&mut self, time: Duration, is_charged: bool, is_refilled: bool) {
        let charged = if is_charged { nanos(time) } else { 0 };
        let refilled = if is_refilled { nanos(time) / 10 } else { 0 };
        self.0 = (self.0 + refilled - charged).min(nanos(CAPACITY));
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap()
}

fn any_op() -> impl Strategy<Value = Op> {
    let time = prop_oneof![3 => 1_u64..60, 2 => 60_u64..700, 1 => 700_u64..4000];
    prop_oneof![
        3 => (0_u8..4, select(vec![0_usize, 1, 1, 2, 3, 5])).prop_map(|(client, length)| Op::Join(client, length)),
        1 => (0_usize..6).prop_map(Op::Leave),
        8 => (0_usize..6, 1_usize..5).prop_map(|(at, events)| Op::Take(at, events)),
        6 => (1_usize..6).prop_map(Op::Publish),
        6 => time.prop_map(Op::Pass),
    ]
}

impl Model {
    fn new(events: usize) -> Self {
        let retention = Retention { events, ..BroadcasterConfig::default().retention };
        let config = BroadcasterConfig { retention, block_timeout: CAPACITY, ..BroadcasterConfig::default() };
        Self {
            world: World::at(0),
            broadcaster: Broadcaster::new(config, version(0)),
            pending: 0,
            readers: Vec::new(),
            resource: Bucket::full(),
            clients: HashMap::new(),
            ended: 0,
        }
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Join(client, length) if self.readers.len() < 6 => self.join(client, length),
            Op::Leave(at) if at < self.readers.len() => drop(self.readers.remove(at)),
            Op::Take(at, events) if at < self.readers.len() => self.take(at, events),
            Op::Join(..) | Op::Leave(_) | Op::Take(..) => {}
            Op::Publish(events) => self.pending += events,
            Op::Pass(time) => return self.pass(Duration::from_millis(time)).await,
        }
        self.pass(Duration::ZERO).await;
    }

    fn join(&mut self, client: u8, length: usize) {
        let subscribe = Subscribe {
            client: Client::User(client.into()),
            ..live(everything(), queue(FullChannelPolicy::Block, length))
        };
        let cursor = self.broadcaster.subscribe(subscribe);
        let version = self.world.version;
        self.readers.push(Reader { cursor, client, length, version, events: 0, is_ended: false });
    }

    fn take(&mut self, at: usize, events: usize) {
        let reader = &mut self.readers[at];
        for item in take(&mut reader.cursor, events) {
            match item {
                Item::Event(_, _, version) => {
                    assert_eq!(version, reader.version + 1, "nothing is missing");
                    (reader.version, reader.events) = (version, reader.events + 1);
                }
                Ended(End::Expired { .. }) => {
                    assert_eq!(reader.cursor.version(), &version(reader.version));
                    let (client, length) = (reader.client, reader.length);
                    self.readers.remove(at);
                    return self.join(client, length);
                }
                Ended(End::SlowConsumer) => assert!(reader.is_ended),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Lets time pass, in which the writer publishes whenever it may.
    async fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            let began = Instant::now();
            if self.broadcaster.is_blocked() {
                drop(tokio::time::timeout_at(end, self.broadcaster.ready()).await);
                self.measure(began.elapsed(), true);
                if self.broadcaster.is_blocked() {
                    return;
                }
            } else if self.pending > 0 {
                self.pending -= 1;
                self.broadcaster.publish(&self.world.several(1));
                self.measure(Duration::ZERO, false);
            } else {
                tokio::time::sleep_until(end).await;
                return self.measure(began.elapsed(), false);
            }
        }
    }

    /// Accounts for time that has passed, in which the writer was held back or not.
    fn measure(&mut self, time: Duration, is_blocked: bool) {
        let newest = self.world.version;
        let lags = |reader: &Reader| newest - reader.version > reader.length as u128 / 2;
        if is_blocked && !time.is_zero() {
            let may_block =
                |reader: &&Reader| !reader.is_ended && lags(reader) && reader.events >= reader.length.max(1);
            assert!(self.readers.iter().any(|reader| may_block(&reader)), "it waits for nobody who may hold it back");
        }
        self.resource.pass(time, is_blocked, true);
        assert!(self.resource.0 >= -TICK - ROUNDING, "the writer waited {} ns too long", -self.resource.0);
        for client in 0..4 {
            let is_its = |reader: &&Reader| reader.client == client && !reader.is_ended && lags(reader);
            let is_charged = is_blocked && self.readers.iter().any(|reader| is_its(&reader));
            self.clients.entry(client).or_insert_with(Bucket::full).pass(time, is_charged, !is_charged);
        }
        for reader in self.readers.iter_mut().filter(|reader| !reader.is_ended) {
            reader.is_ended = reader.cursor.gauge().is_evicted();
            let left = self.clients[&reader.client].0;
            assert!(!reader.is_ended || left <= ROUNDING, "client {} is ended with {left} ns left", reader.client);
            self.ended += usize::from(reader.is_ended);
        }
    }

    /// Ends the run: a client that was not ended gets everything, or resumes from a history.
    async fn finish(mut self) -> usize {
        self.pass(Duration::from_secs(1)).await;
        for at in 0..self.readers.len() {
            while !self.readers[at].is_ended && self.readers[at].version < self.world.version {
                self.take(at, usize::MAX);
            }
        }
        self.ended
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, ..crate::property_config() })]

    #[test]
    fn the_writer_waits_at_most_a_budget_and_a_tenth_of_any_time_and_evicts_only_overspending_clients(
        ops in vec(any_op(), 1..150),
        retained in select(vec![4_usize, 30, 100_000]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut model = Model::new(retained);
            for op in ops {
                model.apply(op).await;
            }
            model.finish().await;
        });
    }
}
