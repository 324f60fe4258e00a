//! Statuses by which a server refuses a version, the credentials or the request.

use informerd::proto::pb::{EventType, WatchResponse};
use serde_json::json;
use tonic::{Code, Status};

use super::super::{
    call,
    driver::{Failure, Outcome},
    message::{Thing, added, bookmark, error, initial, initial_end, modified, status, thing},
    scenario::Scenario,
    watch_stream::WatchStream,
    world::World,
};

scenarios! {
    "expired", "After RESOURCE_VERSION_EXPIRED the client lists again, and applies the difference.", expired;
    "history-changed", "After HISTORY_CHANGED the client lists again, and applies the difference.", history_changed;
    "access-changed", "After ACCESS_CHANGED the client lists again, and applies the difference.", access_changed;
    "too-large-once", "After one RESOURCE_VERSION_TOO_LARGE the client resumes again.", too_large_once;
    "too-large-for-ever", "After the second RESOURCE_VERSION_TOO_LARGE in a row the client lists again.", too_large_for_ever;
    "unauthenticated-once", "After UNAUTHENTICATED the client reads the token again, and resumes.", unauthenticated_once;
    "unauthenticated-twice", "After the second UNAUTHENTICATED in a row the client gives up.", unauthenticated_twice;
    "permission-denied", "PERMISSION_DENIED is final.", permission_denied;
    "permission-denied-later", "PERMISSION_DENIED of a resume is final too, and the store keeps its last state.", permission_denied_later;
    "invalid-argument", "INVALID_ARGUMENT is final, in an ERROR as in a refusal.", invalid_argument;
    "unimplemented", "UNIMPLEMENTED is final.", unimplemented;
    "not-found-at-first", "NOT_FOUND is final for a resource that was never served.", not_found_at_first;
    "not-found-later", "NOT_FOUND of a resource that was served is tried again: in a rollout some servers do not have it.", not_found_later;
    "unknown-type", "A message of an unknown type is an error of the server: the client lists again.", unknown_type;
    "event-without-object", "An event without an object is an error of the server: the client lists again.", event_without_object;
    "event-without-version", "An event without a version, outside the initial events, is an error of the server: the client lists again.", event_without_version;
}

/// Refuses the resume of a client that has a, b and c, serves another list, and checks the difference.
async fn relisted(w: &mut World, reason: &str, in_stream: bool) -> Outcome {
    let (a, b, c) = (thing("a", 3), thing("b", 4), thing("c", 5));
    let watch = w.synced(json!({}), &[&a, &b, &c], ("5", "h1")).await?;
    let refusal = status(Code::OutOfRange, reason);
    if in_stream {
        watch.end_with_error("", &refusal);
    } else {
        watch.reset(h2::Reason::CANCEL);
        w.resume("5", "h1").await?.refuse(&refusal);
    }
    let watch = w.list().await?;
    difference(w, watch, (&a, &b, &c)).await
}

/// Serves a list in which a has changed, b is gone and d is new, and checks that nothing is shown before it is complete.
async fn difference(w: &mut World, mut watch: WatchStream, (a, b, c): (&Thing, &Thing, &Thing)) -> Outcome {
    let (a40, new) = (a.clone().n(2).at(40), thing("d", 41));
    watch.send([initial(c), initial(&a40)]);
    let state = w.state().await?;
    if state.is_healthy {
        return Err(format!("healthy within a list that repeats everything: {}", state.describe()));
    }
    w.store(&[a, b, c]).await?;
    w.no_calls()?;
    watch.send([initial(&new), initial_end(41, "h2")]);
    w.calls_in_any_order(&[call::updated(a, &a40), call::inferred(b), call::added(&new)]).await?;
    watch.reset(h2::Reason::CANCEL);
    let mut watch = w.resume("41", "h2").await?;
    watch.send([bookmark(41, "h2")]);
    w.finish(watch, &[&a40, c, &new]).await
}

async fn expired(w: &mut World) -> Outcome {
    relisted(w, "RESOURCE_VERSION_EXPIRED", false).await
}

async fn history_changed(w: &mut World) -> Outcome {
    relisted(w, "HISTORY_CHANGED", true).await
}

async fn access_changed(w: &mut World) -> Outcome {
    relisted(w, "ACCESS_CHANGED", true).await
}

fn too_large() -> Status {
    status(Code::Unavailable, "RESOURCE_VERSION_TOO_LARGE")
}

async fn too_large_once(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 6));
    let watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    watch.reset(h2::Reason::CANCEL);
    w.resume("5", "h1").await?.refuse(&too_large());
    let mut watch = w.resume("5", "h1").await?;
    watch.send([added(6, &b), bookmark(6, "h1")]);
    w.calls(&[call::added(&b)]).await?;
    // Not two in a row: a stream was served in between.
    watch.reset(h2::Reason::CANCEL);
    w.resume("6", "h1").await?.refuse(&too_large());
    let mut watch = w.resume("6", "h1").await?;
    watch.send([bookmark(6, "h1")]);
    w.finish(watch, &[&a, &b]).await
}

async fn too_large_for_ever(w: &mut World) -> Outcome {
    let (a, b, c) = (thing("a", 3), thing("b", 4), thing("c", 5));
    let watch = w.synced(json!({}), &[&a, &b, &c], ("5", "h1")).await?;
    watch.reset(h2::Reason::CANCEL);
    w.resume("5", "h1").await?.refuse(&too_large());
    w.resume("5", "h1").await?.end_with_error("5", &too_large());
    let watch = w.list().await?;
    // The upstream was restored to an earlier state.
    difference(w, watch, (&a, &b, &c)).await
}

fn unauthenticated() -> Status {
    status(Code::Unauthenticated, "CREDENTIALS_EXPIRED")
}

fn token(watch: &WatchStream) -> String {
    let header = watch.headers.get("authorization").and_then(|value| value.to_str().ok());
    header.unwrap_or("none").to_owned()
}

fn expect_token(watch: &WatchStream, expected: &str) -> Outcome {
    let (token, expected) = (token(watch), format!("Bearer {expected}"));
    if token == expected {
        Ok(())
    } else {
        Err(format!("expected the header authorization {expected:?}, found {token:?}"))
    }
}

/// File with a token, removed with the value.
struct TokenFile(std::path::PathBuf);

impl TokenFile {
    fn create(text: &str) -> Result<Self, Failure> {
        let name = format!("informerd-conformance-{}-{:x}", std::process::id(), rand());
        let file = Self(std::env::temp_dir().join(name));
        file.write(text)?;
        Ok(file)
    }

    fn write(&self, text: &str) -> Outcome {
        std::fs::write(&self.0, text).map_err(|error| format!("{}: {error}", self.0.display()))
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

fn rand() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

async fn unauthenticated_once(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let file = TokenFile::create("first\n")?;
    let watch = w.synced(json!({ "token_file": file.0 }), &[&a], ("5", "h1")).await?;
    expect_token(&watch, "first")?;
    file.write("second\n")?;
    watch.end_with_error("5", &unauthenticated());
    let mut watch = w.resume("5", "h1").await?;
    expect_token(&watch, "second")?;
    watch.send([bookmark(6, "h1")]);
    w.await_state("version 6", |state| state.version == "6").await?;
    // Not two in a row: a stream was served in between.
    watch.end_with_error("6", &unauthenticated());
    let mut watch = w.resume("6", "h1").await?;
    watch.send([bookmark(7, "h1")]);
    w.finish(watch, &[&a]).await
}

async fn unauthenticated_twice(w: &mut World) -> Outcome {
    w.start_with(json!({})).await?.refuse(&unauthenticated());
    w.list().await?.refuse(&unauthenticated());
    w.finish_failed("UNAUTHENTICATED", "CREDENTIALS_EXPIRED").await
}

async fn permission_denied(w: &mut World) -> Outcome {
    w.start_with(json!({})).await?.refuse(&status(Code::PermissionDenied, "ACCESS_DENIED"));
    w.finish_failed("PERMISSION_DENIED", "ACCESS_DENIED").await
}

async fn permission_denied_later(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    watch.end_with_error("5", &status(Code::PermissionDenied, "ACCESS_DENIED"));
    w.event("failed").await?;
    w.store(&[&a]).await?;
    w.no_calls()?;
    w.finish_failed("PERMISSION_DENIED", "ACCESS_DENIED").await
}

async fn invalid_argument(w: &mut World) -> Outcome {
    let refusal = status(Code::InvalidArgument, "LABEL_SELECTOR_INVALID");
    let mut watch = w.start_with(json!({})).await?;
    watch.send([error("", &refusal)]);
    watch.end(&refusal);
    w.finish_failed("INVALID_ARGUMENT", "LABEL_SELECTOR_INVALID").await
}

async fn unimplemented(w: &mut World) -> Outcome {
    w.start_with(json!({})).await?.refuse(&status(Code::Unimplemented, "NOT_IMPLEMENTED"));
    w.finish_failed("UNIMPLEMENTED", "NOT_IMPLEMENTED").await
}

async fn not_found_at_first(w: &mut World) -> Outcome {
    w.start_with(json!({})).await?.refuse(&status(Code::NotFound, "RESOURCE_NOT_FOUND"));
    w.finish_failed("NOT_FOUND", "RESOURCE_NOT_FOUND").await
}

async fn not_found_later(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    watch.reset(h2::Reason::CANCEL);
    for _ in 0..3 {
        w.resume("5", "h1").await?.refuse(&status(Code::NotFound, "RESOURCE_NOT_FOUND"));
    }
    let mut watch = w.resume("5", "h1").await?;
    watch.send([bookmark(6, "h1")]);
    w.finish(watch, &[&a]).await
}

/// Sends a message that violates the contract, and checks the list that follows.
async fn violated(w: &mut World, violation: WatchResponse) -> Outcome {
    let (a, b, c) = (thing("a", 3), thing("b", 4), thing("c", 5));
    let mut watch = w.synced(json!({}), &[&a, &b, &c], ("5", "h1")).await?;
    watch.send([violation]);
    let watch = w.list().await?;
    difference(w, watch, (&a, &b, &c)).await
}

async fn unknown_type(w: &mut World) -> Outcome {
    violated(w, WatchResponse { r#type: 99, resource_version: "6".to_owned(), ..WatchResponse::default() }).await
}

async fn event_without_object(w: &mut World) -> Outcome {
    let event_type = EventType::Modified.into();
    violated(w, WatchResponse { r#type: event_type, resource_version: "6".to_owned(), ..WatchResponse::default() })
        .await
}

async fn event_without_version(w: &mut World) -> Outcome {
    violated(w, modified("", &thing("a", 6).n(2))).await
}
