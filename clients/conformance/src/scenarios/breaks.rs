//! Streams and connections that break: the client resumes from its version, with its history.

use std::time::Duration;

use h2::Reason;
use http::StatusCode;
use serde_json::json;
use tonic::{Code, Status};

use super::super::{
    call,
    driver::Outcome,
    message::{added, bookmark, dropped, modified, status, status_after, thing},
    scenario::Scenario,
    socket::Fault,
    world::{State, World},
};

scenarios! {
    "end-ok", "A stream that ends with OK is resumed.", end_ok;
    "reset-stream", "A stream that is reset is resumed.", reset_stream;
    "reset-connection", "After a reset of the connection the client resumes over another.", reset_connection;
    "close-connection", "After the end of a connection the client resumes over another.", close_connection;
    "cut-message", "A message that is cut off counts as never sent.", cut_message;
    "goaway", "After GOAWAY the open stream is read to its end, and the next one comes over another connection.", goaway;
    "internal", "INTERNAL, UNKNOWN and ABORTED are resumed.", internal;
    "unavailable-retry-info", "The delay that a RetryInfo requests passes before the next attempt.", retry_info;
    "resource-exhausted", "RESOURCE_EXHAUSTED / SLOW_CONSUMER is resumed.", resource_exhausted;
    "http-503", "A page of a proxy in place of gRPC is resumed.", http_503;
    "refused-later", "A server that is gone is tried again until it is back; the store serves the old state, DISCONNECTED.", refused_later;
    "many-breaks", "Breaks after each message lose nothing, repeat nothing and do not slow the client down.", many_breaks;
    "drop-heal", "A DROPPED is healed: the client resumes from the version before the hole, and is SYNCING until then.", drop_heal;
    "drop-in-batch", "Events of an open batch before a DROPPED come again.", drop_in_batch;
}

async fn end_ok(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 6));
    let watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    watch.end(&Status::ok(""));
    let mut watch = w.resume("5", "h1").await?;
    watch.send([added(6, &b), bookmark(6, "h1")]);
    w.calls(&[call::added(&b)]).await?;
    w.finish(watch, &[&a, &b]).await
}

async fn reset_stream(w: &mut World) -> Outcome {
    let (a, b, c) = (thing("a", 3), thing("b", 6), thing("c", 7));
    let mut watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    watch.send([added(6, &b)]);
    w.calls(&[call::added(&b)]).await?;
    watch.reset(Reason::INTERNAL_ERROR);
    let mut watch = w.resume("6", "h1").await?;
    let state = w.state().await?;
    if state.is_healthy {
        return Err(format!("healthy before the first BOOKMARK of a resumed stream: {}", state.describe()));
    }
    watch.send([added(7, &c)]);
    w.calls(&[call::added(&c)]).await?;
    watch.send([bookmark(7, "h1")]);
    w.await_state("LIVE after the first BOOKMARK", State::is_live).await?;
    w.finish(watch, &[&a, &b, &c]).await
}

async fn broken_connection(w: &mut World, fault: Fault) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 6));
    let broken = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    broken.break_connection(fault);
    let mut watch = w.resume("5", "h1").await?;
    if watch.connection.id == broken.connection.id {
        return Err("the Watch came over the broken connection".to_owned());
    }
    watch.send([added(6, &b), bookmark(6, "h1")]);
    w.calls(&[call::added(&b)]).await?;
    w.finish(watch, &[&a, &b]).await
}

async fn reset_connection(w: &mut World) -> Outcome {
    broken_connection(w, Fault::Reset).await
}

async fn close_connection(w: &mut World) -> Outcome {
    broken_connection(w, Fault::Closed).await
}

async fn cut_message(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 6).padded(10_000));
    let mut broken = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    broken.send_part(&added(6, &b));
    broken.break_connection(Fault::Closed);
    let mut watch = w.resume("5", "h1").await?;
    watch.send([added(6, &b), bookmark(6, "h1")]);
    w.calls(&[call::added(&b)]).await?;
    w.finish(watch, &[&a, &b]).await
}

async fn goaway(w: &mut World) -> Outcome {
    let (a, b, c) = (thing("a", 3), thing("b", 6), thing("c", 7));
    let mut old = w.synced(json!({ "connect_timeout_ms": 1500 }), &[&a], ("5", "h1")).await?;
    old.connection.goaway();
    // The limit is one for connecting: it does not end a stream whose connection accepts no other.
    tokio::time::sleep(w.option("connect_timeout_ms")).await;
    old.send([added(6, &b)]);
    w.calls(&[call::added(&b)]).await?;
    let id = old.connection.id;
    old.end_with_error("6", &status(Code::Unavailable, "UNAVAILABLE"));
    let mut watch = w.resume("6", "h1").await?;
    if watch.connection.id == id {
        return Err("the Watch came over the connection that GOAWAY has closed".to_owned());
    }
    watch.send([added(7, &c), bookmark(7, "h1")]);
    w.calls(&[call::added(&c)]).await?;
    w.finish(watch, &[&a, &b, &c]).await
}

async fn internal(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    for code in [Code::Internal, Code::Unknown, Code::Aborted, Code::Cancelled, Code::DeadlineExceeded] {
        watch.end_with_error("5", &status(code, "INTERNAL"));
        watch = w.resume("5", "h1").await?;
        // A refusal before any message is the same.
        watch.refuse(&Status::new(code, "scripted"));
        watch = w.resume("5", "h1").await?;
    }
    watch.send([bookmark(6, "h1")]);
    w.finish(watch, &[&a]).await
}

async fn retry_info(w: &mut World) -> Outcome {
    let delay = Duration::from_millis(600);
    let a = thing("a", 3);
    let watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    let began_at = std::time::Instant::now();
    watch.end_with_error("5", &status_after(Code::Unavailable, "NOT_SYNCED", delay));
    let watch = w.resume("5", "h1").await?;
    let waited = watch.at - began_at;
    if waited < delay {
        return Err(format!("the next Watch came after {waited:?}; RetryInfo requested {delay:?}"));
    }
    // The same in the status alone, without a message.
    let began_at = std::time::Instant::now();
    watch.refuse(&status_after(Code::Unavailable, "AUTHORIZER_UNAVAILABLE", delay));
    let mut watch = w.resume("5", "h1").await?;
    let waited = watch.at - began_at;
    if waited < delay {
        return Err(format!("the next Watch came after {waited:?}; RetryInfo of a refusal requested {delay:?}"));
    }
    watch.send([bookmark(6, "h1")]);
    w.finish(watch, &[&a]).await
}

async fn resource_exhausted(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    watch.end_with_error("5", &status(Code::ResourceExhausted, "SLOW_CONSUMER"));
    let watch = w.resume("5", "h1").await?;
    watch.refuse(&status(Code::ResourceExhausted, "TOO_MANY_WATCHERS"));
    let mut watch = w.resume("5", "h1").await?;
    watch.send([bookmark(6, "h1")]);
    w.finish(watch, &[&a]).await
}

async fn http_503(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    watch.reset(Reason::CANCEL);
    for status in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::BAD_GATEWAY] {
        w.resume("5", "h1").await?.answer_http(status);
    }
    let mut watch = w.resume("5", "h1").await?;
    watch.send([bookmark(6, "h1")]);
    w.finish(watch, &[&a]).await
}

async fn refused_later(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 6));
    let watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    w.server.refuse().await;
    watch.break_connection(Fault::Closed);
    let state = w.await_state("not healthy without a connection", |state| !state.is_healthy).await?;
    if state.freshness == "SYNCING" {
        w.await_state("DISCONNECTED without a server", |state| state.freshness == "DISCONNECTED").await?;
    }
    w.store(&[&a]).await?;
    w.server.listen().await.map_err(|error| format!("cannot listen: {error}"))?;
    let mut watch = w.resume("5", "h1").await?;
    watch.send([added(6, &b), bookmark(6, "h1")]);
    w.calls(&[call::added(&b)]).await?;
    w.finish(watch, &[&a, &b]).await
}

async fn many_breaks(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    let (mut last, mut version) = (a, 5);
    for n in 0..20 {
        version += 1;
        let next = last.clone().n(100 + n).at(version);
        watch.send([modified(version, &next)]);
        w.calls(&[call::updated(&last, &next)]).await?;
        last = next;
        if n % 3 == 0 {
            watch.break_connection(Fault::Reset);
        }
        watch.reset(Reason::CANCEL);
        watch = w.resume(&version.to_string(), "h1").await?;
        watch.send([bookmark(version, "h1")]);
    }
    w.finish(watch, &[&last]).await
}

async fn drop_heal(w: &mut World) -> Outcome {
    let (a, b, c) = (thing("a", 3), thing("b", 7), thing("c", 9));
    let mut watch = w.synced(json!({ "policy": "DROP" }), &[&a], ("5", "h1")).await?;
    let a6 = a.clone().n(2).at(6);
    watch.send([modified(6, &a6), dropped(9, 3, 6)]);
    w.calls(&[call::updated(&a, &a6)]).await?;
    let mut watch = w.resume("6", "h1").await?;
    let state = w.state().await?;
    if state.freshness != "SYNCING" {
        return Err(format!("not SYNCING with a hole: {}", state.describe()));
    }
    let a8 = a6.clone().n(3).at(8);
    watch.send([added(7, &b), modified(8, &a8), added(9, &c)]);
    w.calls(&[call::added(&b), call::updated(&a6, &a8), call::added(&c)]).await?;
    watch.send([bookmark(9, "h1")]);
    w.finish(watch, &[&a8, &b, &c]).await
}

async fn drop_in_batch(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 4));
    let mut watch = w.synced(json!({ "policy": "DROP" }), &[&a, &b], ("5", "h1")).await?;
    let (a8, b8, c8) = (a.clone().n(2).at(8), b.clone().n(2).at(8), thing("c", 8));
    // The hole begins within the batch from 5 to 8.
    watch.send([modified(5, &a8), dropped(9, 2, 5)]);
    let mut watch = w.resume("5", "h1").await?;
    w.no_calls()?;
    w.store(&[&a, &b]).await?;
    watch.send([modified(5, &a8), modified(5, &b8), added(8, &c8), bookmark(9, "h1")]);
    w.calls(&[call::updated(&a, &a8), call::updated(&b, &b8), call::added(&c8)]).await?;
    w.finish(watch, &[&a8, &b8, &c8]).await
}
