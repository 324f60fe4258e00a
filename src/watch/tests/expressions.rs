//! Cost of expressions.

use super::*;
use crate::model::{Expression, parsed};

/// However large the bodies are, and however many changes there are.
#[test]
fn bodies_are_parsed_once_for_all_expressions_that_wait() {
    const CHANGES: u128 = 8;
    let threads = BulkThreads::manual(Arc::default());
    let mut broadcaster =
        Broadcaster::<Deliveries>::new(BroadcasterConfig::default(), version(1)).deferring_to(Some(&threads));
    let selection = |n: u128| {
        let expression = Expression::parse(&format!("object.n == {n}")).unwrap();
        Arc::new(Selection { expression: Some(expression), ..Selection::default() })
    };
    let subscribe = |n| broadcaster.subscribe(live(selection(n), queue(FullChannelPolicy::Replay, 1024)));
    let mut cursors: Vec<_> = (1..=40).map(subscribe).collect();
    let filler = "x".repeat(300 << 10);
    let state = |n| {
        let body = format!(r#"{{"n":{n},"filler":"{filler}"}}"#);
        Arc::new(Object::from_json(body, "a", version(n)).unwrap())
    };
    let states: Vec<_> = (1..=CHANGES + 1).map(state).collect();
    let batch = |states: &[Arc<Object>]| {
        let (before, after) = (states[0].version().clone(), states[1].version().clone());
        let [old, new] = [0, 1].map(|at| Some(Arc::clone(&states[at])));
        let changes = vec![Change { old, new, version: after.clone(), cause: Cause::Change, index_values: None }];
        Batch { before, after, changes, is_relist: false, is_open: false }
    };
    let batches: Vec<_> = states.windows(2).map(batch).collect();
    broadcaster.publish(&batches);
    for cursor in &mut cursors {
        assert_eq!(drain(cursor), [], "a thread is to evaluate them");
    }
    let before = parsed();
    while threads.run_one() {}
    assert_eq!(parsed() - before, 2 * CHANGES as u64, "both states of each change, for all of them");
    assert_eq!(drain(&mut cursors[1]).len(), 2, "it comes and goes");
    // The values are dropped with their change.
    assert!(selection(9).matches(&states[8]));
    assert_eq!(parsed() - before, 2 * CHANGES as u64 + 1);
}
