//! Sum of the calls of a handler: the store, for every policy and time of joining.

use std::collections::BTreeSet;

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::watch::{BroadcasterConfig, Retention};

#[derive(Debug, Clone)]
enum Step {
    Put {
        name: u8,
        is_dropped: bool,
    },
    Delete {
        name: u8,
        is_dropped: bool,
    },
    CloseWatches,
    /// The watches end, and what they missed is listed.
    Relist,
    RewriteHistory,
    Wait {
        millis: u64,
    },
}

#[derive(Debug, Clone)]
struct Joining {
    /// Number of steps before the handler is added.
    at: usize,
    queue: QueueOptions,
    takes: Duration,
    resync: Duration,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..5_u8, prop::bool::weighted(0.2)).prop_map(|(name, is_dropped)| Step::Put { name, is_dropped }),
        4 => (0..5_u8, prop::bool::weighted(0.2)).prop_map(|(name, is_dropped)| Step::Delete { name, is_dropped }),
        1 => Just(Step::CloseWatches),
        1 => Just(Step::Relist),
        1 => Just(Step::RewriteHistory),
        4 => select(vec![0, 1, 400, 3000]).prop_map(|millis| Step::Wait { millis }),
    ]
}

fn joining() -> impl Strategy<Value = Joining> {
    use FullChannelPolicy::{Block, Coalesce, Drop, Replay};
    let takes = select(vec![0, 1, 700]).prop_map(Duration::from_millis);
    let resync = select(vec![0, 1, 5]).prop_map(Duration::from_secs);
    (0..40_usize, select(vec![Drop, Block, Replay, Coalesce]), 0..4_usize, takes, resync).prop_map(
        |(at, policy, length, takes, resync)| Joining { at, queue: QueueOptions { policy, length }, takes, resync },
    )
}

async fn run(script: Vec<Step>, joinings: Vec<Joining>, events: usize, stops: bool) {
    let source = FakeSource::new();
    let retention = Retention { events, ..BroadcasterConfig::default().retention };
    let broadcaster = BroadcasterConfig { retention, ..BroadcasterConfig::default() };
    let options = InformerOptions { broadcaster, history: retention, ..InformerOptions::default() };
    let informer: SharedInformer<Object> = SharedInformer::start(source.clone(), options);
    let (mut present, mut added) = (BTreeSet::new(), Vec::new());
    for (at, step) in script.iter().map(Some).chain([None]).enumerate() {
        // After the last step, the rest.
        for joining in joinings.iter().filter(|joining| joining.at == at || step.is_none() && joining.at > at) {
            let listener = TestListener::taking(joining.takes);
            let options = HandlerOptions { queue: joining.queue, resync: joining.resync, ..HandlerOptions::default() };
            added.push((informer.add_handler(listener.clone(), options).unwrap(), listener));
        }
        let Some(step) = step else { break };
        match step {
            Step::Put { name, is_dropped } => {
                let object = pod(&name.to_string(), &format!("at={at}"));
                match (present.insert(*name), is_dropped) {
                    (true, true) => source.add_drop_watch(&object),
                    (true, false) => source.add(&object),
                    (false, true) => source.modify_drop_watch(&object),
                    (false, false) => source.modify(&object),
                };
            }
            Step::Delete { name, is_dropped } if present.remove(name) => {
                let name = name.to_string();
                if *is_dropped {
                    source.delete_drop_watch("", &name)
                } else {
                    source.delete("", &name)
                };
            }
            Step::Delete { .. } => {}
            Step::CloseWatches => source.close_watches(),
            Step::Relist => {
                source.expire();
                source.close_watches();
            }
            Step::RewriteHistory => source.rewrite_history(),
            Step::Wait { millis } => tokio::time::sleep(Duration::from_millis(*millis)).await,
        }
    }
    if stops {
        informer.stop().await;
    } else {
        pass(600).await;
    }
    let stored = objects(&informer);
    for (at, (registration, listener)) in added.iter().enumerate() {
        assert_eq!(registration.has_synced(), informer.has_synced(), "handler {at}");
        let calls = listener.calls.lock();
        assert_eq!(calls.contradictions, [""; 0], "handler {at}: {:?}", calls.log);
        assert_eq!(calls.held.values().cloned().collect::<Vec<_>>(), stored, "handler {at}: {:?}", calls.log);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..crate::property_config() })]

    #[test]
    fn what_a_handler_received_adds_up_to_the_store(
        script in vec(step(), 1..40),
        joinings in vec(joining(), 1..5),
        events in select(vec![2, 1000]),
        stops: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(run(script, joinings, events, stops));
    }
}
