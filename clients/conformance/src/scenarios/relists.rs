//! Lists that repeat everything: handlers receive only what has changed.

use serde_json::json;
use tonic::Code;

use super::super::{
    call,
    driver::{Failure, Outcome},
    message::{Thing, added, bookmark, initial, initial_end, status, thing},
    scenario::Scenario,
    watch_stream::WatchStream,
    world::World,
};

scenarios! {
    "relist-unchanged", "A list with other versions of the same objects, of another lineage, causes no handler call, and renews the versions.", relist_unchanged;
    "relist-other-order", "The order of a list does not matter.", relist_other_order;
    "relist-uid", "A changed uid in a list is a deletion with cause INFERRED and an addition.", relist_uid;
    "relist-labels", "Changed labels in a list are an update, also at the same version.", relist_labels;
    "relist-empty", "A list without objects deletes all of them, with cause INFERRED.", relist_empty;
    "relist-cut", "A list that breaks off changes nothing, and the next stream lists again.", relist_cut;
    "relist-after-open", "What was applied of an open version counts in the difference.", relist_after_open;
}

/// Ends a stream so that the client lists.
async fn expire(w: &mut World, watch: WatchStream) -> Result<WatchStream, Failure> {
    watch.end_with_error("", &status(Code::OutOfRange, "RESOURCE_VERSION_EXPIRED"));
    w.list().await
}

async fn relist_unchanged(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", "l1.3"), thing("b", "l1.4"));
    let watch = w.synced(json!({}), &[&a, &b], ("l1.5", "h1")).await?;
    let mut watch = expire(w, watch).await?;
    let (a, b) = (a.at("l2.1"), b.at("l2.2"));
    watch.send_initial(&[&a, &b], "l2.2", "h2");
    w.await_state("LIVE after the list", |state| state.is_live() && state.version == "l2.2").await?;
    w.no_calls()?;
    // Compares the versions of the store, too.
    w.finish(watch, &[&a, &b]).await
}

async fn relist_other_order(w: &mut World) -> Outcome {
    let things: Vec<Thing> = (0..20).map(|n| thing(&format!("t{n:02}"), 3)).collect();
    let all: Vec<&Thing> = things.iter().collect();
    let watch = w.synced(json!({}), &all, ("5", "h1")).await?;
    let mut watch = expire(w, watch).await?;
    let reversed: Vec<&Thing> = things.iter().rev().collect();
    watch.send_initial(&reversed, 9, "h2");
    w.await_state("LIVE after the list", |state| state.is_live() && state.version == "9").await?;
    w.no_calls()?;
    w.finish(watch, &all).await
}

async fn relist_uid(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 4));
    let watch = w.synced(json!({}), &[&a, &b], ("5", "h1")).await?;
    let mut watch = expire(w, watch).await?;
    // The body has the uid too; here it is the same, so that only the uid differs.
    let mut a9 = a.clone().at(9);
    "other".clone_into(&mut a9.object.uid);
    watch.send_initial(&[&a9, &b], 9, "h2");
    w.calls(&[call::inferred(&a), call::added(&a9)]).await?;
    w.finish(watch, &[&a9, &b]).await
}

async fn relist_labels(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 4));
    let watch = w.synced(json!({}), &[&a, &b], ("5", "h1")).await?;
    let mut watch = expire(w, watch).await?;
    let a_db = a.clone().app("db");
    watch.send_initial(&[&a_db, &b], 9, "h2");
    w.calls(&[call::updated(&a, &a_db)]).await?;
    w.finish(watch, &[&a_db, &b]).await
}

async fn relist_empty(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 4));
    let watch = w.synced(json!({}), &[&a, &b], ("5", "h1")).await?;
    let mut watch = expire(w, watch).await?;
    watch.send_initial(&[], 9, "h2");
    w.calls_in_any_order(&[call::inferred(&a), call::inferred(&b)]).await?;
    w.finish(watch, &[]).await
}

async fn relist_cut(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 4));
    let watch = w.synced(json!({}), &[&a, &b], ("5", "h1")).await?;
    let mut watch = expire(w, watch).await?;
    watch.send([initial(&a.clone().n(2).at(8)), initial(&thing("c", 8))]);
    watch.reset(h2::Reason::INTERNAL_ERROR);
    let mut watch = w.list().await?;
    w.no_calls()?;
    w.store(&[&a, &b]).await?;
    let b9 = b.clone().n(2).at(9);
    watch.send([initial(&a), initial(&b9), initial_end(9, "h2")]);
    w.calls(&[call::updated(&b, &b9)]).await?;
    w.finish(watch, &[&a, &b9]).await
}

async fn relist_after_open(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    let (b8, c8) = (thing("b", 8), thing("c", 8));
    // b is applied at once; c is pending, and lost with the stream.
    watch.send([super::super::message::open(added(5, &b8)), bookmark(5, "h1"), added(5, &c8)]);
    w.calls(&[call::added(&b8)]).await?;
    w.all_read(&mut watch).await?;
    let mut watch = expire(w, watch).await?;
    watch.send_initial(&[&a], 9, "h2");
    w.calls(&[call::inferred(&b8)]).await?;
    w.finish(watch, &[&a]).await
}
