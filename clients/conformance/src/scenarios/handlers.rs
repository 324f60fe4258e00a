//! Handlers, and the end.

use serde_json::json;

use super::super::{
    call,
    driver::Outcome,
    message::{added, bookmark, modified, thing},
    scenario::Scenario,
    world::World,
};

scenarios! {
    "handler-throws", "A handler that throws is reported, and the next change is delivered.", handler_throws;
    "handler-lags", "A slow handler does not hold up the store, and receives every change later.", handler_lags;
    "stop", "No handler call begins after stop, and the stream is closed.", stop;
    "stop-disconnected", "stop ends a client that waits between two attempts.", stop_disconnected;
}

async fn handler_throws(w: &mut World) -> Outcome {
    let (a, bad) = (thing("a", 3), thing("bad", 6));
    let options = json!({ "handler": { "fail_on": "bad", "delay_on": "", "delay_ms": 0 } });
    let mut watch = w.synced(options, &[&a], ("5", "h1")).await?;
    let (bad7, b) = (bad.clone().n(2).at(7), thing("b", 8));
    watch.send([added(6, &bad), modified(7, &bad7), added(8, &b)]);
    w.calls(&[call::added(&bad), call::updated(&bad, &bad7), call::added(&b)]).await?;
    w.nth_event("handler_error", 1).await?;
    if w.count("handler_error") != 2 {
        return Err(format!("{} events \"handler_error\" in place of two", w.count("handler_error")));
    }
    w.finish(watch, &[&a, &bad7, &b]).await
}

async fn handler_lags(w: &mut World) -> Outcome {
    let (a, slow) = (thing("a", 3), thing("slow", 6));
    let options = json!({ "handler": { "fail_on": "", "delay_on": "slow", "delay_ms": 3000 } });
    let mut watch = w.synced(options, &[&a], ("5", "h1")).await?;
    let a7 = a.clone().n(2).at(7);
    watch.send([added(6, &slow), modified(7, &a7), bookmark(8, "h1")]);
    w.await_state("version 8 while the handler sleeps", |state| state.version == "8" && state.is_live()).await?;
    w.store(&[&a7, &slow]).await?;
    if !w.driver.with_events(|events| events.iter().all(|event| event["object"]["version"] != "7")) {
        return Err("the handler did not sleep: it has the change after its sleep already".to_owned());
    }
    w.calls(&[call::added(&slow), call::updated(&a, &a7)]).await?;
    w.finish(watch, &[&a7, &slow]).await
}

async fn stop(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let options = json!({ "handler": { "fail_on": "", "delay_on": "*", "delay_ms": 100 } });
    let mut watch = w.synced(options, &[&a], ("5", "h1")).await?;
    // Most of them wait when the client stops.
    watch.send((6..40).map(|version| added(version, &thing(&format!("t{version}"), version))));
    w.await_state("version 39", |state| state.version == "39").await?;
    w.stop().await?;
    w.closed(&watch).await
}

async fn stop_disconnected(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let watch = w.synced(json!({ "backoff_ms": 60_000, "max_backoff_ms": 60_000 }), &[&a], ("5", "h1")).await?;
    w.server.refuse().await;
    watch.break_connection(super::super::socket::Fault::Closed);
    w.await_state("not healthy without a connection", |state| !state.is_healthy).await?;
    w.store(&[&a]).await?;
    w.stop().await
}
