//! Beginning: the initial events, and servers that are not there yet.

use serde_json::json;
use tonic::Code;

use super::super::{
    call,
    driver::Outcome,
    message::{Thing, bookmark, initial, initial_end, status, thing},
    scenario::Scenario,
    socket::Fault,
    world::{State, World},
};

scenarios! {
    "initial-events", "The initial events are applied at initial_events_end, and only then is the informer synced and LIVE.", initial_events;
    "initial-empty", "A resource without objects is synced.", initial_empty;
    "initial-cut", "A stream that breaks within the initial events has changed nothing, and the next one lists again.", initial_cut;
    "initial-batches", "Initial events that come many in a message, where the client asks for it, are applied like single ones.", initial_batches;
    "initial-batches-cut", "A stream that breaks between batches of initial events, or within one, has changed nothing; the next one lists again.", initial_batches_cut;
    "selection", "namespace, label_selector and policy are those of the user, in every Watch.", selection;
    "server-later", "A server that does not listen yet is tried again, with back-off, until it is there.", server_later;
    "accepts-late", "A connection without an answer to its first bytes is given up after connect_timeout.", accepts_late;
    "freeze", "A Watch without any answer is given up after first_message_timeout, with its connection.", freeze;
    "freeze-after-headers", "The headers of a response are no message: first_message_timeout counts to the first message.", freeze_after_headers;
}

async fn initial_events(w: &mut World) -> Outcome {
    let (a, b, c) = (thing("a", 3), thing("b", 5), thing("c", 1).app("db").namespace(""));
    let mut watch = w.start_with(json!({})).await?;
    if watch.request.initial_events().as_str_name() == "INITIAL_EVENTS_NONE" {
        return Err("the first Watch has INITIAL_EVENTS_NONE".to_owned());
    }
    watch.send([initial(&a), initial(&b)]);
    let state = w.state().await?;
    if !state.objects.is_empty() || state.is_healthy || w.count("synced") > 0 {
        return Err(format!("within the initial events the store is empty, and not healthy: {}", state.describe()));
    }
    w.no_calls()?;
    watch.send([initial(&c), initial_end(5, "h1")]);
    w.calls_in_any_order(&[call::added(&a), call::added(&b), call::added(&c)]).await?;
    w.event("synced").await?;
    let state = w.await_state("LIVE after the initial events", State::is_live).await?;
    if state.version != "5" {
        return Err(format!("expected version 5: {}", state.describe()));
    }
    w.finish(watch, &[&a, &b, &c]).await
}

async fn initial_empty(w: &mut World) -> Outcome {
    let watch = w.synced(json!({}), &[], ("7", "h1")).await?;
    w.event("synced").await?;
    w.finish(watch, &[]).await
}

async fn initial_cut(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 5));
    let mut watch = w.start_with(json!({})).await?;
    watch.send([initial(&a), initial(&thing("gone", 2))]);
    watch.reset(h2::Reason::INTERNAL_ERROR);
    let mut watch = w.list().await?;
    w.no_calls()?;
    w.store(&[]).await?;
    watch.send_initial(&[&a, &b], 6, "h1");
    w.calls_in_any_order(&[call::added(&a), call::added(&b)]).await?;
    w.finish(watch, &[&a, &b]).await
}

/// Objects of several batches; the last one is large, and comes alone.
fn batched() -> [Thing; 6] {
    let large = thing("large", 4).padded(400_000);
    [thing("a", 3), thing("b", 5), thing("c", 1).app("db"), thing("d", 2), thing("e", 5), large]
}

#[expect(clippy::many_single_char_names, reason = "an object each")]
async fn initial_batches(w: &mut World) -> Outcome {
    let [a, b, c, d, e, large] = batched();
    let mut watch = w.start_with(json!({})).await?;
    watch.send_batch(&[&a, &b]);
    watch.send_batch(&[&c, &d]);
    watch.send([initial(&large)]);
    let state = w.state().await?;
    if !state.objects.is_empty() || state.is_healthy || w.count("synced") > 0 {
        return Err(format!("within the initial events the store is empty, and not healthy: {}", state.describe()));
    }
    w.no_calls()?;
    watch.send_batch(&[&e]);
    watch.send([initial_end(5, "h1")]);
    w.calls_in_any_order(&[&a, &b, &c, &d, &e, &large].map(call::added)).await?;
    w.event("synced").await?;
    watch.end_with_error("", &status(Code::OutOfRange, "RESOURCE_VERSION_EXPIRED"));
    let mut watch = w.list().await?;
    let (b9, f9) = (b.clone().at(9).n(2), thing("f", 9));
    watch.send_batch(&[&f9, &a, &b9]);
    watch.send([initial(&large)]);
    watch.send_batch(&[&d, &e]);
    watch.send([initial_end(9, "h1")]);
    w.calls_in_any_order(&[call::updated(&b, &b9), call::added(&f9), call::inferred(&c)]).await?;
    w.finish(watch, &[&a, &b9, &d, &e, &f9, &large]).await
}

#[expect(clippy::many_single_char_names, reason = "an object each")]
async fn initial_batches_cut(w: &mut World) -> Outcome {
    let [a, b, c, d, e, large] = batched();
    let gone = thing("gone", 2);
    let mut watch = w.start_with(json!({})).await?;
    watch.send_batch(&[&a, &gone]);
    watch.send([initial(&large)]);
    watch.send_batch(&[&b, &c]);
    watch.reset(h2::Reason::INTERNAL_ERROR);
    let mut watch = w.list().await?;
    watch.send_batch(&[&gone, &a]);
    watch.send_part(&watch.initial_events(&[&b, &c])[0]);
    watch.break_connection(Fault::Reset);
    let mut watch = w.list().await?;
    w.no_calls()?;
    w.store(&[]).await?;
    watch.send_batch(&[&a, &b]);
    watch.send([initial(&large)]);
    watch.send_batch(&[&c, &d, &e]);
    watch.send([initial_end(6, "h1")]);
    w.calls_in_any_order(&[&a, &b, &c, &d, &e, &large].map(call::added)).await?;
    w.finish(watch, &[&a, &b, &c, &d, &e, &large]).await
}

async fn selection(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let options = json!({ "namespace": "shop", "label_selector": "app in (web)", "policy": "COALESCE" });
    // Each Watch is compared with these options.
    let watch = w.synced(options, &[&a], ("5", "h1")).await?;
    watch.break_connection(Fault::Reset);
    let mut watch = w.resume("5", "h1").await?;
    watch.send([bookmark(5, "h1")]);
    w.finish(watch, &[&a]).await
}

async fn server_later(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    w.server.refuse().await;
    w.start()?;
    let state = w.state().await?;
    if state.is_healthy {
        return Err(format!("healthy without a server: {}", state.describe()));
    }
    w.server.listen().await.map_err(|error| format!("cannot listen: {error}"))?;
    let mut watch = w.list().await?;
    watch.send_initial(&[&a], 5, "h1");
    w.calls(&[call::added(&a)]).await?;
    w.finish(watch, &[&a]).await
}

async fn accepts_late(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    w.set(&json!({ "connect_timeout_ms": 300, "first_message_timeout_ms": 1000 }));
    w.server.freeze_new(true);
    w.start()?;
    while w.server.connections() == 0 {
        w.state().await?;
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    w.server.freeze_new(false);
    let mut watch = w.list().await?;
    if watch.connection.id < 2 {
        return Err("the Watch came over the connection that is frozen".to_owned());
    }
    watch.send_initial(&[&a], 5, "h1");
    w.calls(&[call::added(&a)]).await?;
    w.finish(watch, &[&a]).await
}

async fn freeze(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let frozen = w.start_with(json!({ "first_message_timeout_ms": 1000 })).await?;
    let mut watch = w.list().await?;
    if frozen.connection.id == watch.connection.id {
        return Err("the client opened the next Watch on the connection that did not answer".to_owned());
    }
    watch.send_initial(&[&a], 5, "h1");
    w.calls(&[call::added(&a)]).await?;
    w.finish(watch, &[&a]).await
}

async fn freeze_after_headers(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut frozen = w.start_with(json!({ "first_message_timeout_ms": 1000 })).await?;
    frozen.send_headers();
    let mut watch = w.list().await?;
    watch.send_initial(&[&a], 5, "h1");
    w.calls(&[call::added(&a)]).await?;
    w.finish(watch, &[&a]).await
}
