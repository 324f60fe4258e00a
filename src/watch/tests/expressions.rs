//! Cost of expressions for the writer.

use super::*;
use crate::model::{Expression, parsed, sharing_bodies};

/// However large the bodies are, and however many changes a publish cycle has.
#[test]
fn bodies_are_parsed_once_per_publish_cycle_for_all_expressions() {
    const CHANGES: u128 = 8;
    let mut broadcaster = broadcaster::<Deliveries>(1);
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
    let before = parsed();
    sharing_bodies(|| broadcaster.publish(&batches));
    assert_eq!(parsed() - before, CHANGES as u64 + 1, "each state once, though two follow each other");
    assert_eq!(drain(&mut cursors[1]).len(), 2, "it comes and goes");
    // The values kept for the cycle were dropped with it.
    assert!(selection(9).matches(&states[8]));
    assert_eq!(parsed() - before, CHANGES as u64 + 2);
}
