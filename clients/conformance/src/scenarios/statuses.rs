//! Each code of gRPC in each form: without details, as a proxy leaves it; with a reason of a newer server; at the beginning of a Watch
//! and later.

use std::time::{Duration, Instant};

use serde_json::json;
use tonic::{Code, Status};

use super::super::{
    driver::{Failure, Outcome},
    message::{bookmark, status, thing},
    scenario::Scenario,
    socket::Fault,
    watch_stream::WatchStream,
    world::{State, World},
};

scenarios! {
    "code-ok", "A Watch that ends with OK before any message is resumed.", ok;
    "code-cancelled", "CANCELLED is resumed, whatever its reason and wherever it comes.", cancelled;
    "code-unknown", "UNKNOWN is resumed, whatever its reason and wherever it comes.", unknown;
    "code-deadline-exceeded", "DEADLINE_EXCEEDED is resumed, whatever its reason and wherever it comes.", deadline_exceeded;
    "code-resource-exhausted", "RESOURCE_EXHAUSTED is resumed, whatever its reason and wherever it comes.", resource_exhausted;
    "code-aborted", "ABORTED is resumed, whatever its reason and wherever it comes.", aborted;
    "code-internal", "INTERNAL is resumed, whatever its reason and wherever it comes.", internal;
    "code-unavailable", "UNAVAILABLE is resumed, whatever its reason and wherever it comes.", unavailable;
    "code-out-of-range", "After OUT_OF_RANGE the client lists again, whatever the reason and wherever it comes; it never gives up.", out_of_range;
    "code-not-found", "NOT_FOUND of a resource that was served is tried again, whatever its reason and wherever it comes.", not_found;
    "code-unauthenticated", "The second UNAUTHENTICATED in a row is final, whatever its reason.", unauthenticated;
    "code-invalid-argument", "INVALID_ARGUMENT without details is final.", invalid_argument;
    "code-already-exists", "ALREADY_EXISTS is final, also with an unknown reason.", already_exists;
    "code-permission-denied", "PERMISSION_DENIED without details is final.", permission_denied;
    "code-failed-precondition", "FAILED_PRECONDITION is final, also with an unknown reason.", failed_precondition;
    "code-unimplemented", "UNIMPLEMENTED without details is final, as the only message of a Watch, too.", unimplemented;
    "code-data-loss", "DATA_LOSS is final, also with an unknown reason.", data_loss;
    "list-soon", "The list after OUT_OF_RANGE begins after a jitter of at most 1 s, in place of the back-off.", list_soon;
    "answer-resets-backoff", "The first answer of a server after attempts that had none begins the back-off anew.", answer_resets_backoff;
}

/// Reason without a rule.
const NEW_REASON: &str = "A_NEW_REASON";
/// Longest time in which a busy machine does what is to be done at once.
const SOON: Duration = Duration::from_secs(1);

/// Place of a status on a Watch.
#[derive(Clone, Copy)]
enum Place {
    /// Status alone, in place of a stream: of an older server, a proxy, or a library.
    Headers,
    /// ERROR as the only message.
    Only,
    /// ERROR after a BOOKMARK.
    Later,
}

const PLACES: [Place; 3] = [Place::Headers, Place::Only, Place::Later];

impl Place {
    fn end(self, mut watch: WatchStream, status: &Status) {
        match self {
            Self::Headers => watch.refuse(status),
            Self::Only => watch.end_with_error("", status),
            Self::Later => {
                watch.send([bookmark(5, "h1")]);
                watch.end_with_error("5", status);
            }
        }
    }
}

/// Returns the forms of a status without a reason that has a rule.
fn forms(code: Code) -> [Status; 2] {
    [Status::new(code, "scripted, without details"), status(code, NEW_REASON)]
}

/// Ends streams at each place with each form, and expects a resume after each.
async fn resumed(w: &mut World, code: Code) -> Outcome {
    let a = thing("a", 3);
    let watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    watch.reset(h2::Reason::CANCEL);
    let mut watch = w.resume("5", "h1").await?;
    for status in forms(code) {
        for place in PLACES {
            place.end(watch, &status);
            watch = w.resume("5", "h1").await?;
        }
    }
    watch.send([bookmark(6, "h1")]);
    w.finish(watch, &[&a]).await
}

/// Ends the first Watch with a status, and expects no other.
async fn gives_up(w: &mut World, place: Place, status: &Status, name: &str) -> Outcome {
    let watch = w.start_with(json!({})).await?;
    place.end(watch, status);
    let reason = if status.details().is_empty() { "" } else { NEW_REASON };
    w.finish_failed(name, reason).await
}

async fn ok(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    watch.end(&Status::ok(""));
    w.resume("5", "h1").await?.refuse(&Status::ok(""));
    let mut watch = w.resume("5", "h1").await?;
    watch.send([bookmark(6, "h1")]);
    w.finish(watch, &[&a]).await
}

async fn cancelled(w: &mut World) -> Outcome {
    resumed(w, Code::Cancelled).await
}

async fn unknown(w: &mut World) -> Outcome {
    resumed(w, Code::Unknown).await
}

async fn deadline_exceeded(w: &mut World) -> Outcome {
    resumed(w, Code::DeadlineExceeded).await
}

async fn resource_exhausted(w: &mut World) -> Outcome {
    resumed(w, Code::ResourceExhausted).await
}

async fn aborted(w: &mut World) -> Outcome {
    resumed(w, Code::Aborted).await
}

async fn internal(w: &mut World) -> Outcome {
    resumed(w, Code::Internal).await
}

async fn unavailable(w: &mut World) -> Outcome {
    resumed(w, Code::Unavailable).await
}

async fn not_found(w: &mut World) -> Outcome {
    resumed(w, Code::NotFound).await
}

/// Lists again after each form of the status at each place, also where the list has it.
async fn out_of_range(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let watch = w.synced(json!({}), &[&a], ("5", "h1")).await?;
    watch.reset(h2::Reason::CANCEL);
    let mut watch = w.resume("5", "h1").await?;
    for status in forms(Code::OutOfRange) {
        for place in PLACES {
            place.end(watch, &status);
            let list = w.list().await?;
            w.store(&[&a]).await?;
            // Only a fault of the server does this; it may be over at the next attempt.
            if let Place::Later = place {
                list.end_with_error("", &status);
            } else {
                place.end(list, &status);
            }
            watch = w.list().await?;
            watch.send_initial(&[&a], 5, "h1");
            w.await_state("LIVE after the list", State::is_live).await?;
            w.no_calls()?;
            watch.reset(h2::Reason::CANCEL);
            watch = w.resume("5", "h1").await?;
        }
    }
    watch.send([bookmark(6, "h1")]);
    w.finish(watch, &[&a]).await
}

async fn unauthenticated(w: &mut World) -> Outcome {
    let status = status(Code::Unauthenticated, NEW_REASON);
    w.start_with(json!({})).await?.end_with_error("", &status);
    w.list().await?.end_with_error("", &status);
    w.finish_failed("UNAUTHENTICATED", NEW_REASON).await
}

async fn invalid_argument(w: &mut World) -> Outcome {
    gives_up(w, Place::Headers, &forms(Code::InvalidArgument)[0], "INVALID_ARGUMENT").await
}

async fn already_exists(w: &mut World) -> Outcome {
    gives_up(w, Place::Only, &forms(Code::AlreadyExists)[1], "ALREADY_EXISTS").await
}

async fn permission_denied(w: &mut World) -> Outcome {
    gives_up(w, Place::Headers, &forms(Code::PermissionDenied)[0], "PERMISSION_DENIED").await
}

async fn failed_precondition(w: &mut World) -> Outcome {
    gives_up(w, Place::Only, &forms(Code::FailedPrecondition)[1], "FAILED_PRECONDITION").await
}

async fn unimplemented(w: &mut World) -> Outcome {
    gives_up(w, Place::Only, &forms(Code::Unimplemented)[0], "UNIMPLEMENTED").await
}

async fn data_loss(w: &mut World) -> Outcome {
    gives_up(w, Place::Headers, &forms(Code::DataLoss)[1], "DATA_LOSS").await
}

/// Returns the next Watch, which has to come at once.
async fn soon(
    next: impl Future<Output = Result<WatchStream, Failure>>,
    since: Instant,
) -> Result<WatchStream, Failure> {
    let watch = next.await?;
    let waited = watch.at - since;
    if waited > SOON {
        return Err(format!("the next Watch came after {waited:?}; expected at most {SOON:?}"));
    }
    Ok(watch)
}

async fn list_soon(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut watch = w.synced(json!({ "backoff_ms": 3000, "max_backoff_ms": 3000 }), &[&a], ("5", "h1")).await?;
    // The back-off is random: often enough that it is not short by chance.
    for reason in ["RESOURCE_VERSION_EXPIRED", "HISTORY_CHANGED", NEW_REASON] {
        watch.reset(h2::Reason::CANCEL);
        let resumed = w.resume("5", "h1").await?;
        let since = Instant::now();
        resumed.refuse(&status(Code::OutOfRange, reason));
        watch = soon(w.list(), since).await?;
        watch.send_initial(&[&a], 5, "h1");
        w.await_state("LIVE after the list", State::is_live).await?;
    }
    w.finish(watch, &[&a]).await
}

async fn answer_resets_backoff(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let watch = w.synced(json!({ "backoff_ms": 50, "max_backoff_ms": 6000 }), &[&a], ("5", "h1")).await?;
    w.server.refuse().await;
    watch.break_connection(Fault::Closed);
    w.await_state("DISCONNECTED without a server", |state| state.freshness == "DISCONNECTED").await?;
    // Long enough for delays of seconds.
    tokio::time::sleep(Duration::from_secs(3)).await;
    w.server.listen().await.map_err(|error| format!("cannot listen: {error}"))?;
    let resumed = w.resume("5", "h1").await?;
    let since = Instant::now();
    resumed.refuse(&status(Code::Unavailable, "NOT_SYNCED"));
    let again = soon(w.resume("5", "h1"), since).await?;
    let since = Instant::now();
    again.refuse(&status(Code::Unavailable, "NOT_SYNCED"));
    let mut watch = soon(w.resume("5", "h1"), since).await?;
    watch.send([bookmark(6, "h1")]);
    w.finish(watch, &[&a]).await
}
