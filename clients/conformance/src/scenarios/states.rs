//! Freshness, and reads that wait.

use informerd::proto::pb::SyncState;
use serde_json::{Value, json};

use super::super::{
    call,
    driver::{Failure, Outcome},
    message::{added, bookmark, modified, status, thing},
    scenario::Scenario,
    world::World,
};

scenarios! {
    "stale", "STALE is a state and no error: healthy, the stream continues, and SYNCED makes it LIVE again.", stale;
    "source-seen-at", "source_seen_at is that of the last BOOKMARK, and survives a break.", source_seen_at;
    "read-after", "read_after waits until the store has the version, compares decimals as numbers, and times out.", read_after;
    "long-versions", "Versions beyond 64 bits are compared as numbers, in batches and by read_after.", long_versions;
    "read-after-lineage", "read_after compares the numbers of one lineage, and reports another lineage as an error.", read_after_lineage;
}

async fn stale(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    let with = |version: i32, source: SyncState| {
        let mut message = bookmark(version, "h1");
        if let Some(bookmark) = &mut message.bookmark {
            bookmark.set_source(source);
        }
        message
    };
    watch.send([with(5, SyncState::Stale)]);
    let state = w.await_state("STALE", |state| state.freshness == "STALE").await?;
    if !state.is_healthy {
        return Err(format!("STALE is healthy: {}", state.describe()));
    }
    let a6 = a.clone().n(2).at(6);
    watch.send([modified(6, &a6)]);
    w.calls(&[call::updated(&a, &a6)]).await?;
    // A resumed stream whose server is STALE.
    watch.reset(h2::Reason::CANCEL);
    let mut watch = w.resume("6", "h1").await?;
    watch.send([with(6, SyncState::Stale)]);
    w.await_state("STALE after a resume", |state| state.freshness == "STALE").await?;
    watch.send([with(7, SyncState::Synced)]);
    w.await_state("LIVE again", |state| state.is_live() && state.version == "7").await?;
    w.finish(watch, &[&a6]).await
}

async fn source_seen_at(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    let before = w.all_read(&mut watch).await?;
    watch.reset(h2::Reason::CANCEL);
    let mut watch = w.resume("5", "h1").await?;
    let state = w.state().await?;
    if state.seen_at != before.seen_at {
        return Err(format!("expected source_seen_at {:?} during a break: {}", before.seen_at, state.describe()));
    }
    watch.send([bookmark(5, "h1")]);
    w.finish(watch, &[&a]).await
}

async fn read(w: &mut World, version: &str, timeout_ms: u64) -> Result<Value, Failure> {
    w.driver.ask(json!({ "do": "read_after", "version": version, "timeout_ms": timeout_ms })).await
}

fn expect_ok(reply: &Value, version: &str, expected: bool) -> Outcome {
    if reply["ok"] == expected {
        Ok(())
    } else {
        Err(format!("expected ok={expected} for read_after {version}: {reply}"))
    }
}

async fn read_after(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut watch = w.synced(json!({}), &[&a], ("9", "h1")).await?;
    // 10 is after 9, which text would not show.
    let id = w.driver.begin(&mut json!({ "do": "read_after", "version": "10", "timeout_ms": 10_000 }))?;
    expect_ok(&read(w, "9", 5000).await?, "9", true)?;
    expect_ok(&read(w, "11", 100).await?, "11 (which never comes)", false)?;
    let b = thing("b", 12);
    watch.send([added(12, &b)]);
    expect_ok(&w.driver.reply(id).await?, "10", true)?;
    w.calls(&[call::added(&b)]).await?;
    // Also by a BOOKMARK alone.
    let id = w.driver.begin(&mut json!({ "do": "read_after", "version": "20", "timeout_ms": 10_000 }))?;
    watch.send([bookmark(20, "h1")]);
    expect_ok(&w.driver.reply(id).await?, "20", true)?;
    w.finish(watch, &[&a, &b]).await
}

/// Checks versions of 39 digits, as a relay and a pipe have them, of which only the last digits differ.
async fn long_versions(w: &mut World) -> Outcome {
    let at = |n: u128| format!("l1.{}", (u128::from(u64::MAX) << 64) + n);
    let (a, b) = (thing("a", at(3)), thing("b", at(4)));
    let mut watch = w.synced(json!({}), &[&a, &b], (&at(9), "h1")).await?;
    let id = w.driver.begin(&mut json!({ "do": "read_after", "version": at(1_000), "timeout_ms": 10_000 }))?;
    expect_ok(&read(w, &at(9), 5000).await?, &at(9), true)?;
    expect_ok(&read(w, &at(10), 100).await?, &at(10), false)?;
    // The batch goes from 998 to 1000.
    let (a1000, b1000) = (a.clone().n(2).at(at(1_000)), b.clone().n(2).at(at(1_000)));
    watch.send([modified(at(998), &a1000)]);
    let state = w.all_read(&mut watch).await?;
    if state.version != at(998) {
        return Err(format!("expected version {} while the batch is open: {}", at(998), state.describe()));
    }
    w.no_calls()?;
    watch.send([modified(at(1_000), &b1000)]);
    w.calls(&[call::updated(&a, &a1000), call::updated(&b, &b1000)]).await?;
    expect_ok(&w.driver.reply(id).await?, &at(1_000), true)?;
    w.finish(watch, &[&a1000, &b1000]).await
}

async fn read_after_lineage(w: &mut World) -> Outcome {
    let a = thing("a", "l1.3");
    let mut watch = w.synced(json!({}), &[&a], ("l1.9", "h1")).await?;
    let id = w.driver.begin(&mut json!({ "do": "read_after", "version": "l1.10", "timeout_ms": 10_000 }))?;
    let reply = read(w, "l0.1", 5000).await?;
    expect_ok(&reply, "l0.1 (of another lineage)", false)?;
    watch.send([bookmark("l1.12", "h1")]);
    expect_ok(&w.driver.reply(id).await?, "l1.10", true)?;
    // The lineage that it waits for is over.
    let id = w.driver.begin(&mut json!({ "do": "read_after", "version": "l1.50", "timeout_ms": 10_000 }))?;
    watch.end_with_error("", &status(tonic::Code::OutOfRange, "RESOURCE_VERSION_EXPIRED"));
    let mut watch = w.list().await?;
    let a = a.at("l2.1");
    watch.send_initial(&[&a], "l2.60", "h2");
    let reply = w.driver.reply(id).await?;
    expect_ok(&reply, "l1.50 (after a new lineage)", false)?;
    w.finish(watch, &[&a]).await
}
