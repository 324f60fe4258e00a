//! Silence: a connection that is open and brings nothing is dead after three bookmark intervals.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::{
    call,
    driver::Outcome,
    message::{added, bookmark, modified, thing},
    scenario::Scenario,
    socket::Fault,
    watch_stream::WatchStream,
    world::World,
};

scenarios! {
    "silence", "A stream without a message for three bookmark intervals is abandoned with its connection, and freshness shows it at once.", silence;
    "black-hole", "The same for a connection whose bytes no longer arrive.", black_hole;
    "silence-after-resume", "The first message of a resumed stream may take first_message_timeout.", silence_after_resume;
    "silence-of-a-resume", "A resumed stream without a first message is abandoned after first_message_timeout.", silence_of_a_resume;
    "slow", "Messages with pauses of less than three bookmark intervals keep the stream.", slow;
}

const INTERVAL: Duration = Duration::from_millis(200);

/// Waits until the client resumes, and checks what it shows meanwhile.
async fn noticed(w: &mut World, silent: &WatchStream, since: Instant) -> Result<WatchStream, String> {
    let limit = INTERVAL * 3;
    let mut was_disconnected = false;
    let watch = loop {
        let state = w.state().await?;
        let age = state.age.unwrap_or_default();
        if state.is_healthy && age > limit + Duration::from_millis(50) {
            return Err(format!("healthy after a silence of more than three intervals: {}", state.describe()));
        }
        if !state.is_healthy
            && age < limit.saturating_sub(Duration::from_millis(20))
            && since.elapsed() < limit.saturating_sub(INTERVAL)
        {
            return Err(format!("not healthy before three intervals have passed: {}", state.describe()));
        }
        was_disconnected |= !state.is_healthy;
        if let Some(watch) = w.server.watch(Duration::from_millis(5)).await {
            break watch;
        }
        if since.elapsed() > Duration::from_secs(8) {
            return Err(format!(
                "the client keeps a stream that is silent for {:?}: {}",
                since.elapsed(),
                state.describe()
            ));
        }
    };
    if !was_disconnected && w.state().await?.is_healthy {
        return Err("healthy although the stream was abandoned".to_owned());
    }
    if watch.connection.id == silent.connection.id {
        return Err("the client resumes on the connection that is silent".to_owned());
    }
    if (watch.request.resource_version.as_str(), watch.request.history.as_str()) != ("5", "h1") {
        return Err("the client does not resume from version 5 with history h1".to_owned());
    }
    Ok(watch)
}

async fn silence(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 6));
    let mut silent = w.synced(json!({ "bookmark_interval_ms": 200 }), &[&a], ("5", "h1")).await?;
    silent.silence();
    let mut watch = noticed(w, &silent, Instant::now()).await?;
    watch.send([added(6, &b), bookmark(6, "h1")]);
    w.calls(&[call::added(&b)]).await?;
    w.finish(watch, &[&a, &b]).await
}

async fn black_hole(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 6));
    let silent = w.synced(json!({ "bookmark_interval_ms": 200 }), &[&a], ("5", "h1")).await?;
    silent.break_connection(Fault::Frozen);
    let mut watch = noticed(w, &silent, Instant::now()).await?;
    watch.send([added(6, &b), bookmark(6, "h1")]);
    w.calls(&[call::added(&b)]).await?;
    w.finish(watch, &[&a, &b]).await
}

async fn silence_after_resume(w: &mut World) -> Outcome {
    let (a, b) = (thing("a", 3), thing("b", 6));
    let options = json!({ "bookmark_interval_ms": 200, "first_message_timeout_ms": 8000 });
    let watch = w.synced(options, &[&a], ("5", "h1")).await?;
    watch.reset(h2::Reason::CANCEL);
    let mut watch = w.resume("5", "h1").await?;
    watch.send_headers();
    // Longer than three intervals: a server that waits for the version.
    let until = Instant::now() + INTERVAL * 5;
    while Instant::now() < until {
        if w.server.watch(Duration::from_millis(20)).await.is_some() {
            return Err("the client does not wait first_message_timeout for the first message".to_owned());
        }
        let state = w.state().await?;
        if state.is_healthy {
            return Err(format!("healthy before the first message of a resumed stream: {}", state.describe()));
        }
    }
    watch.send([added(6, &b), bookmark(6, "h1")]);
    w.calls(&[call::added(&b)]).await?;
    w.finish(watch, &[&a, &b]).await
}

async fn silence_of_a_resume(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let watch = w.synced(json!({ "first_message_timeout_ms": 1000 }), &[&a], ("5", "h1")).await?;
    watch.reset(h2::Reason::CANCEL);
    let silent = w.resume("5", "h1").await?;
    let mut watch = w.resume("5", "h1").await?;
    if watch.connection.id == silent.connection.id {
        return Err("the client resumes on the connection that does not answer".to_owned());
    }
    watch.send([bookmark(6, "h1")]);
    w.finish(watch, &[&a]).await
}

async fn slow(w: &mut World) -> Outcome {
    let a = thing("a", 3);
    let mut watch = w.synced(json!({ "bookmark_interval_ms": 400 }), &[&a], ("5", "h1")).await?;
    watch.silence();
    let mut last = a;
    for version in 6..10 {
        // One and a half intervals, which is a server under load.
        let pause = Instant::now() + Duration::from_millis(600);
        while Instant::now() < pause {
            if w.server.watch(Duration::from_millis(20)).await.is_some() {
                return Err("the client has left a stream that was silent for one and a half intervals".to_owned());
            }
        }
        let next = last.clone().n(version).at(version);
        watch.send([modified(version, &next)]);
        w.calls(&[call::updated(&last, &next)]).await?;
        last = next;
    }
    watch.speak();
    w.finish(watch, &[&last]).await
}
