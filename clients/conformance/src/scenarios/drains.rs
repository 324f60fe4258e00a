//! A server that is about to end: the client moves to another connection.

use serde_json::json;
use tonic::Code;

use super::super::{
    call,
    driver::Outcome,
    message::{added, bookmark, deleted, initial, modified, status, thing},
    scenario::Scenario,
    watch_stream::WatchStream,
    world::World,
};

scenarios! {
    "drain-bookmark", "After a BOOKMARK with draining the client resumes over a new connection.", drain_bookmark;
    "drain-status", "After UNAVAILABLE / DRAINING the client resumes over a new connection.", drain_status;
    "drain-in-batch", "An open batch at the time of a drain is discarded, and repeated by the next server.", drain_in_batch;
    "drain-initial", "A drain within the initial events leads to another list, over a new connection.", drain_initial;
}

fn draining(version: &str, history: &str) -> informerd::proto::pb::WatchResponse {
    let mut message = bookmark(version, history);
    if let Some(bookmark) = &mut message.bookmark {
        bookmark.draining = true;
    }
    message
}

fn moved(old: usize, watch: &WatchStream) -> Outcome {
    if watch.connection.id == old {
        return Err("the client resumes on the connection of the server that drains".to_owned());
    }
    Ok(())
}

async fn drain_bookmark(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 7));
    let mut old = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    // The stream stays open: the client must not wait for its end.
    old.send([draining("6", "h2")]);
    old.silence();
    let mut watch = w.resume("6", "h2").await?;
    moved(old.connection.id, &watch)?;
    watch.send([added(7, &b), bookmark(7, "h3")]);
    w.calls(&[call::added(&b)]).await?;
    w.finish(watch, &[&a, &b]).await
}

async fn drain_status(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 7));
    let old = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    let id = old.connection.id;
    old.end_with_error("5", &status(Code::Unavailable, "DRAINING"));
    let watch = w.resume("5", "h1").await?;
    moved(id, &watch)?;
    // A refusal of the next server, which drains too.
    let id = watch.connection.id;
    watch.refuse(&status(Code::Unavailable, "DRAINING"));
    let mut watch = w.resume("5", "h1").await?;
    moved(id, &watch)?;
    watch.send([added(7, &b), bookmark(7, "h3")]);
    w.calls(&[call::added(&b)]).await?;
    w.finish(watch, &[&a, &b]).await
}

async fn drain_in_batch(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 4));
    let mut old = w.synced(json!({}), &[&a, &b], ("5", "h1")).await?;
    let (a8, b8) = (a.clone().n(2).at(8), b.clone().at(8));
    old.send([modified(5, &a8), draining("5", "h1")]);
    let mut watch = w.resume("5", "h1").await?;
    moved(old.connection.id, &watch)?;
    w.no_calls()?;
    watch.send([deleted(5, &b8), modified(8, &a8), bookmark(8, "h2")]);
    w.calls(&[call::deleted(&b8, "DELETED"), call::updated(&a, &a8)]).await?;
    w.finish(watch, &[&a8]).await
}

async fn drain_initial(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 4));
    let mut old = w.start_with(json!({})).await?;
    old.send([initial(&a), initial(&thing("gone", 2)), draining("", "h1")]);
    let mut watch = w.list().await?;
    moved(old.connection.id, &watch)?;
    w.no_calls()?;
    watch.send_initial(&[&a, &b], 5, "h2");
    w.calls_in_any_order(&[call::added(&a), call::added(&b)]).await?;
    w.finish(watch, &[&a, &b]).await
}
