//! Batches: changes at one version, which are applied whole.

use serde_json::json;

use super::super::{
    call,
    driver::Outcome,
    message::{Thing, added, bookmark, deleted, modified, open, thing},
    scenario::Scenario,
    watch_stream::WatchStream,
    world::World,
};

scenarios! {
    "batch", "Events that repeat the version are applied with the one that advances it, in one step.", batch;
    "batch-bookmark", "A BOOKMARK that advances the version completes a batch, one that repeats it does not.", batch_bookmark;
    "batch-after-a-gap", "An event whose version is lower than its object's own opens a batch, also where the version has advanced.", batch_after_a_gap;
    "batch-cut", "A batch that is cut off is discarded, and the client resumes from the version before it.", batch_cut;
    "batch-other-order", "A batch that another server repeats in another order is applied once.", batch_other_order;
    "open", "An event that is marked open is applied at once, and the version to resume from stays.", open_events;
    "multi-delete", "Deletions at one version, each marked open, reach the handlers one by one, also after a resume.", multi_delete;
    "coalesce", "A generation of merged changes is a batch.", coalesce;
}

/// Three objects at version 5, and the changes of a batch from 5 to 8.
fn three() -> (Thing, Thing, Thing) {
    (thing("a", 3), thing("b", 4), thing("c", 5))
}

async fn unchanged(w: &mut World, watch: &mut WatchStream, objects: &[&Thing], version: &str) -> Outcome {
    let state = w.all_read(watch).await?;
    if state.version != version {
        return Err(format!("expected version {version} while the batch is open: {}", state.describe()));
    }
    w.no_calls()?;
    w.store(objects).await
}

async fn batch(w: &mut World) -> Outcome {
    let (a, b, c) = three();
    let mut watch = w.synced(json!({}), &[&a, &b], ("5", "h1")).await?;
    let (a8, b8, c8) = (a.clone().n(2).at(8), b.clone().at(8), c.clone().at(8));
    watch.send([modified(5, &a8), deleted(5, &b8)]);
    unchanged(w, &mut watch, &[&a, &b], "5").await?;
    watch.send([added(8, &c8)]);
    w.calls(&[call::updated(&a, &a8), call::deleted(&b8, "DELETED"), call::added(&c8)]).await?;
    let state = w.await_state("version 8", |state| state.version == "8").await?;
    if !state.is_live() {
        return Err(format!("expected LIVE after the batch: {}", state.describe()));
    }
    w.finish(watch, &[&a8, &c8]).await
}

async fn batch_bookmark(w: &mut World) -> Outcome {
    let (a, b, _) = three();
    let mut watch = w.synced(json!({}), &[&a, &b], ("5", "h1")).await?;
    let (a8, b8) = (a.clone().n(2).at(8), b.clone().at(8));
    watch.send([modified(5, &a8), deleted(5, &b8), bookmark(5, "h1")]);
    unchanged(w, &mut watch, &[&a, &b], "5").await?;
    watch.send([bookmark(8, "h1")]);
    w.calls(&[call::updated(&a, &a8), call::deleted(&b8, "DELETED")]).await?;
    w.finish(watch, &[&a8]).await
}

async fn batch_after_a_gap(w: &mut World) -> Outcome {
    let (a, b, c) = three();
    let mut watch = w.synced(json!({}), &[&a, &b], ("5", "h1")).await?;
    // Another object of the resource, which is not selected, changed at 98; the batch goes from there to 100.
    let (a100, b100, c7) = (a.clone().n(2).at(100), b.clone().at(100), c.clone().at(7));
    watch.send([added(5, &c7), modified(98, &a100)]);
    // The version 98 completes what waited before.
    w.calls(&[call::added(&c7)]).await?;
    unchanged(w, &mut watch, &[&a, &b, &c7], "98").await?;
    watch.send([deleted(100, &b100)]);
    w.calls(&[call::updated(&a, &a100), call::deleted(&b100, "DELETED")]).await?;
    w.finish(watch, &[&a100, &c7]).await
}

async fn batch_cut(w: &mut World) -> Outcome {
    let (a, b, c) = three();
    let mut watch = w.synced(json!({}), &[&a, &b], ("5", "h1")).await?;
    let (a8, b8, c8) = (a.clone().n(2).at(8), b.clone().at(8), c.clone().at(8));
    watch.send([modified(5, &a8), deleted(5, &b8)]);
    w.all_read(&mut watch).await?;
    watch.reset(h2::Reason::INTERNAL_ERROR);
    let mut watch = w.resume("5", "h1").await?;
    w.no_calls()?;
    w.store(&[&a, &b]).await?;
    watch.send([modified(5, &a8), deleted(5, &b8), added(8, &c8), bookmark(8, "h1")]);
    w.calls(&[call::updated(&a, &a8), call::deleted(&b8, "DELETED"), call::added(&c8)]).await?;
    w.finish(watch, &[&a8, &c8]).await
}

async fn batch_other_order(w: &mut World) -> Outcome {
    let (a, b, c) = three();
    let mut watch = w.synced(json!({}), &[&a, &b], ("5", "h1")).await?;
    let (a8, b8, c8) = (a.clone().n(2).at(8), b.clone().at(8), c.clone().at(8));
    watch.send([modified(5, &a8), added(5, &c8)]);
    w.all_read(&mut watch).await?;
    watch.reset(h2::Reason::INTERNAL_ERROR);
    let mut watch = w.resume("5", "h1").await?;
    watch.send([deleted(5, &b8), added(5, &c8), modified(8, &a8), bookmark(8, "h1")]);
    w.calls(&[call::deleted(&b8, "DELETED"), call::added(&c8), call::updated(&a, &a8)]).await?;
    w.finish(watch, &[&a8, &c8]).await
}

async fn open_events(w: &mut World) -> Outcome {
    let (a, b, c) = three();
    let mut watch = w.synced(json!({}), &[&a, &b], ("5", "h1")).await?;
    let (a8, c8) = (a.clone().n(2).at(8), c.clone().at(8));
    watch.send([open(modified(5, &a8)), open(added(5, &c8))]);
    w.calls(&[call::updated(&a, &a8), call::added(&c8)]).await?;
    let state = w.all_read(&mut watch).await?;
    if state.version != "5" || !state.is_live() {
        return Err(format!("expected LIVE at version 5, before the open one: {}", state.describe()));
    }
    w.store(&[&a8, &b, &c8]).await?;
    watch.reset(h2::Reason::INTERNAL_ERROR);
    let mut watch = w.resume("5", "h1").await?;
    // The resume repeats them, now complete.
    watch.send([modified(5, &a8), added(8, &c8), bookmark(8, "h1")]);
    w.await_state("version 8", |state| state.version == "8").await?;
    w.no_calls()?;
    w.finish(watch, &[&a8, &b, &c8]).await
}

async fn multi_delete(w: &mut World) -> Outcome {
    let (a, b, c) = three();
    let mut watch = w.synced(json!({}), &[&a, &b, &c], ("5", "h1")).await?;
    let (a8, b8, c8) = (a.clone().at(8), b.clone().at(8), c.clone().at(8));
    watch.send([open(deleted(5, &a8)), open(deleted(5, &b8))]);
    w.calls(&[call::deleted(&a8, "DELETED"), call::deleted(&b8, "DELETED")]).await?;
    watch.reset(h2::Reason::INTERNAL_ERROR);
    let mut watch = w.resume("5", "h1").await?;
    watch.send([open(deleted(5, &a8)), open(deleted(5, &b8)), open(deleted(5, &c8)), bookmark(9, "h1")]);
    w.calls(&[call::deleted(&c8, "DELETED")]).await?;
    w.finish(watch, &[]).await
}

async fn coalesce(w: &mut World) -> Outcome {
    let (a, b, c) = three();
    let mut watch = w.synced(json!({ "policy": "COALESCE" }), &[&a, &b], ("5", "h1")).await?;
    let (a20, b17, c19) = (a.clone().n(9).at(20), b.clone().at(17), c.clone().n(4).at(19));
    let merged = |mut message: informerd::proto::pb::WatchResponse, count| {
        message.coalesced = count;
        message
    };
    watch.send([merged(deleted(5, &b17), 3), merged(modified(5, &a20), 6)]);
    unchanged(w, &mut watch, &[&a, &b], "5").await?;
    watch.send([merged(added(20, &c19), 2)]);
    w.calls(&[call::deleted(&b17, "DELETED"), call::updated(&a, &a20), call::added(&c19)]).await?;
    w.finish(watch, &[&a20, &c19]).await
}
