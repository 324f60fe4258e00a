//! Changes, one at a time.

use informerd::proto::pb::Cause;
use serde_json::json;

use super::super::{
    call,
    driver::Outcome,
    message::{added, bookmark, deleted, deleted_by, modified, thing},
    scenario::Scenario,
    world::World,
};

scenarios! {
    "changes", "Each change reaches the store and the handlers once, in order, with the state before it.", changes;
    "duplicate", "A repeated event, an unknown object that is deleted and an unchanged one cause no handler call.", duplicate;
    "upsert", "ADDED of a known object is an update, MODIFIED of an unknown one an addition.", upsert;
    "labels-only", "A change of labels alone is an update, and moves the object in the index.", labels_only;
    "uid-live", "A changed uid is a deletion with cause INFERRED and an addition.", uid_live;
    "stale-delete", "A DELETED with another uid than that of the stored object is ignored.", stale_delete;
    "causes", "A DELETED carries its cause: LEFT_SELECTION, NOT_SERVED, EXPIRED.", causes;
    "delete-without-body", "A DELETED without a body hands the last known state to the handler.", delete_without_body;
    "large-object", "An object larger than gRPC's default limit of 4 MiB is received.", large_object;
    "not-json", "A body that is not JSON is kept as bytes, and a change of it is an update.", not_json;
    "bookmarks", "A BOOKMARK advances the version to resume from, and only it replaces the history.", bookmarks;
    "namespaces", "A BOOKMARK with other namespaces completes the objects that left and entered with them.", namespaces;
}

async fn changes(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 6));
    let mut watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    let (a7, a9) = (a.clone().n(2).at(7), a.clone().n(3).at(9));
    watch.send([added(6, &b), modified(7, &a7), deleted(8, &b.clone().at(8)), modified(9, &a9)]);
    w.calls(&[
        call::added(&b),
        call::updated(&a, &a7),
        call::deleted(&b.clone().at(8), "DELETED"),
        call::updated(&a7, &a9),
    ])
    .await?;
    w.finish(watch, &[&a9]).await
}

async fn duplicate(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    let a6 = a.clone().n(2).at(6);
    watch.send([modified(6, &a6), modified(7, &a6), deleted(8, &thing("unknown", 8)), added(9, &a6)]);
    w.calls(&[call::updated(&a, &a6)]).await?;
    w.finish(watch, &[&a6]).await
}

async fn upsert(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    let (a6, b) = (a.clone().n(2).at(6), thing("b", 7));
    watch.send([added(6, &a6), modified(7, &b)]);
    w.calls(&[call::updated(&a, &a6), call::added(&b)]).await?;
    w.finish(watch, &[&a6, &b]).await
}

async fn labels_only(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 4));
    let mut watch = w.synced(json!({}), &[&a, &b], ("5", "h1")).await?;
    let a6 = a.clone().app("db").at(6);
    watch.send([modified(6, &a6)]);
    w.calls(&[call::updated(&a, &a6)]).await?;
    // Checks the index.
    w.finish(watch, &[&a6, &b]).await
}

async fn uid_live(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 4));
    let mut watch = w.synced(json!({}), &[&a, &b], ("5", "h1")).await?;
    let (a6, b7) = (a.clone().uid("other-a").app("db").at(6), b.clone().uid("other-b").at(7));
    watch.send([modified(6, &a6), added(7, &b7)]);
    w.calls(&[call::inferred(&a), call::added(&a6), call::inferred(&b), call::added(&b7)]).await?;
    w.finish(watch, &[&a6, &b7]).await
}

async fn stale_delete(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    watch.send([deleted(6, &a.clone().uid("earlier").at(6))]);
    w.all_read(&mut watch).await?;
    w.store(&[&a]).await?;
    watch.send([deleted(7, &a.clone().at(7))]);
    w.calls(&[call::deleted(&a.clone().at(7), "DELETED")]).await?;
    w.finish(watch, &[]).await
}

async fn causes(w: &mut World) -> Outcome {
    let things = ["a", "b", "c", "d"].map(|name| thing(name, 3));
    let mut watch = w.synced(json!({}), &things.each_ref(), ("5", "h1")).await?;
    let mut version = 5;
    let [a6, b7, c8, d9] = things.map(|thing| {
        version += 1;
        thing.at(version)
    });
    watch.send([
        deleted_by(Cause::LeftSelection, 6, &a6),
        deleted_by(Cause::NotServed, 7, &b7),
        deleted_by(Cause::Expired, 8, &c8),
        deleted_by(Cause::Inferred, 9, &d9),
    ]);
    w.calls(&[
        call::deleted(&a6, "LEFT_SELECTION"),
        call::deleted(&b7, "NOT_SERVED"),
        call::deleted(&c8, "EXPIRED"),
        call::deleted_at_any_version(&d9, "INFERRED"),
    ])
    .await?;
    w.finish(watch, &[]).await
}

async fn delete_without_body(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    watch.send([deleted_by(Cause::LeftSelection, 6, &a.bare().at(6))]);
    w.calls(&[call::deleted_at_any_version(&a, "LEFT_SELECTION")]).await?;
    w.finish(watch, &[]).await
}

async fn large_object(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    let large = thing("large", 6).padded(5 << 20);
    watch.send([added(6, &large)]);
    w.calls(&[call::added(&large)]).await?;
    watch.send([deleted(7, &large.clone().at(7))]);
    w.calls(&[call::deleted(&large.clone().at(7), "DELETED")]).await?;
    w.finish(watch, &[&a]).await
}

async fn not_json(w: &mut World) -> Outcome {
    let a = thing("a", 3).text("hello");
    let mut watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    let a6 = a.clone().text("\u{1f980} {").at(6);
    watch.send([modified(6, &a6), modified(7, &a6)]);
    w.calls(&[call::updated(&a, &a6)]).await?;
    w.finish(watch, &[&a6]).await
}

async fn bookmarks(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    watch.send([bookmark(9, "h2")]);
    // A reset may overtake what was not read yet.
    w.all_read(&mut watch).await?;
    watch.reset(h2::Reason::CANCEL);
    let mut watch = w.resume("9", "h2").await?;
    // The history stays that of the last BOOKMARK, also for the version of an event.
    let a11 = a.clone().n(2).at(11);
    watch.send([modified(11, &a11)]);
    w.calls(&[call::updated(&a, &a11)]).await?;
    watch.reset(h2::Reason::CANCEL);
    let mut watch = w.resume("11", "h2").await?;
    watch.send([bookmark(12, "h3")]);
    let state = w.await_state("version 12", |state| state.version == "12").await?;
    if !state.is_live() {
        return Err(format!("a resumed stream is LIVE at its first BOOKMARK: {}", state.describe()));
    }
    w.finish(watch, &[&a11]).await
}

async fn namespaces(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 4).namespace("other"));
    let mut watch = w.synced(json!({}), &[&a, &b], ("5", "h1")).await?;
    let of = |namespaces: &[&str], history: &str| {
        let mut message = bookmark(5, history);
        if let Some(bookmark) = &mut message.bookmark {
            bookmark.namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        }
        message
    };
    watch.send([of(&["other", "shop"], "h1")]);
    let c = thing("c", 5).namespace("third");
    watch.send([
        of(&["other", "shop"], "unfinished"),
        deleted_by(Cause::LeftSelection, 5, &b.bare()),
        added(5, &c),
        of(&["shop", "third"], "h2"),
    ]);
    w.calls(&[call::deleted_at_any_version(&b, "LEFT_SELECTION"), call::added(&c)]).await?;
    w.all_read(&mut watch).await?;
    w.store(&[&a, &c]).await?;
    watch.reset(h2::Reason::CANCEL);
    let mut watch = w.resume("5", "h2").await?;
    watch.send([of(&["shop", "third"], "h2")]);
    w.finish(watch, &[&a, &c]).await
}
