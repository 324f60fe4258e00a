//! Pieces of initial events.

use std::task::Waker;

use super::*;
use crate::{
    cache::{Indexer, List},
    grpc::watch::tests::World,
    model::{Expression, Indexers, Object, ResourceVersion},
};

/// An evaluation that takes longer than a slice is alone in its piece; cheap ones share a piece.
#[tokio::test]
async fn a_piece_ends_with_its_time_slice() {
    let world = World::of(Vec::new(), |_| {}).await;
    let object = |n: usize| {
        let list = vec!["1"; 2000].join(",");
        let json = format!(r#"{{"metadata":{{"name":"o{n}"}},"list":[{list}]}}"#);
        Arc::new(Object::from_json(json, "", ResourceVersion::decimal(1)).unwrap())
    };
    let list = List::new((0..20).map(object).collect(), ResourceVersion::decimal(1));
    let snapshot = Indexer::new(Arc::new(Indexers::default()), list).snapshot();
    let pieces = |expression: Option<&str>| {
        let expression = expression.map(|text| Expression::parse(text).unwrap().with_max_steps(100_000));
        let selection = Selection { expression, ..Selection::default() };
        let mut initial = InitialEvents::new(snapshot.clone(), &selection, None);
        (1..1000)
            .find(|_| {
                let room = Room { bytes: usize::MAX, is_strict: false };
                let (mut cx, service) = (Context::from_waker(Waker::noop()), (world.service(), Caller::default()));
                let format = PayloadFormat::Metadata.into();
                initial.next(&mut cx, (&selection, &format), service, room).2 == InitialProgress::Done
            })
            .unwrap()
    };
    // Runs until its steps are spent, and selects nothing.
    let costly = "object.list.all(a, object.list.all(b, a + b == 2))";
    assert_eq!(pieces(Some(costly)), 20 + 1, "the last one finds the end");
    assert!(pieces(None) < 20);
}
