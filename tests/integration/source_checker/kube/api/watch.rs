//! Watches of the scripted API.

use std::{io, time::Duration};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use serde_json::json;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

use super::{
    super::world::EventKind,
    Api, EarlyEnd, InitialEvents, Query, RetryAfter,
    answer::{bookmark, event, failure, success, too_large},
    target::Target,
};

const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// Time of the last bookmark before the end of a watch.
const BEFORE_THE_END: Duration = Duration::from_secs(2);
/// Parameters of a watch request.
struct Asked {
    from: u64,
    is_initial: bool,
    /// Set if it begins with the state, with or without the bookmark that ends it.
    is_state: bool,
    bookmarks: bool,
    end: Instant,
}

impl Asked {
    /// Returns the time of the next bookmark: each minute, and two seconds before the end.
    fn next_mark(&self) -> Instant {
        let (now, last) = (Instant::now(), self.end - BEFORE_THE_END);
        let next = now + BOOKMARK_INTERVAL;
        if last > now { next.min(last) } else { next }
    }
}

/// Beginning of a watch.
struct Begun {
    /// Index of the next change; the largest number if it is not known yet.
    next: usize,
    version: u64,
    generation: u64,
    kills: u64,
    first: String,
    is_expired: bool,
}

impl Api {
    pub(super) async fn watch(&self, query: Query, target: Target) -> Response {
        let text = query.get("resourceVersion").map_or("", String::as_str);
        let is_any = matches!(text, "" | "0");
        // A version of another history is older than all known ones.
        let asked = if is_any { 0 } else { self.state.lock().world.version_of(text).unwrap_or_default() };
        let wants_initial = query.get("sendInitialEvents").is_some_and(|value| value == "true");
        let mode = self.state.lock().initial_events;
        let is_initial = match (wants_initial, mode) {
            (true, InitialEvents::Forbidden) => {
                return failure(422, RetryAfter::None, "Invalid", "sendInitialEvents is forbidden for watch");
            }
            (true, InitialEvents::Served) => true,
            _ => false,
        };
        if wants_initial {
            let mut state = self.state.lock();
            state.counts.lists += 1;
            state.is_listed_since = true;
            state.counts.ignored_initial_events += u64::from(!is_initial);
        } else {
            self.state.lock().counts.watches += 1;
        }
        if is_initial {
            // Without a version it is the most recent state, for which the replica waits.
            let version = if text.is_empty() { self.state.lock().world.version } else { asked };
            if !self.reach(version, &target).await {
                return too_large();
            }
        }
        let early_end = {
            let mut state = self.state.lock();
            let early_end = if is_initial { state.early_end.take() } else { None };
            state.counts.early_ends += u64::from(early_end.is_some());
            early_end
        };
        if let Some(end) = early_end {
            let status = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "drawn"});
            return match end {
                EarlyEnd::Closed => success(String::new()),
                EarlyEnd::Error => success(event("ERROR", &status.to_string())),
                EarlyEnd::Garbage => success("<html>\n".to_owned()),
                EarlyEnd::Torn => success(r#"{"type":"ADDED","object":{"#.to_owned()),
                EarlyEnd::Refused => failure(500, RetryAfter::None, "InternalError", "drawn"),
            };
        }
        let (sender, lines) = mpsc::channel::<io::Result<String>>(64);
        let is_stalled = {
            let mut state = self.state.lock();
            let is_stalled = is_initial && std::mem::take(&mut state.stalls);
            state.counts.initial_events_after_a_stall +=
                u64::from(is_initial && !is_stalled && state.counts.stalls > 0);
            state.counts.stalls += u64::from(is_stalled);
            is_stalled
        };
        let seconds = query.get("timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(1800);
        let bookmarks = query.get("allowWatchBookmarks").is_some_and(|value| value == "true" || value == "1");
        let end = Instant::now() + Duration::from_secs(seconds);
        let asked = Asked { from: asked, is_initial, is_state: is_initial || is_any, bookmarks, end };
        let watching = self.clone().tell(asked, target, sender);
        tokio::spawn(tokio::time::timeout_at(end, async move {
            if is_stalled {
                std::future::pending::<()>().await;
            }
            watching.await;
        }));
        let lines = ReceiverStream::new(lines).map(|lines| lines.map(Bytes::from));
        Response::builder().header("content-type", "application/json").body(Body::from_stream(lines)).unwrap()
    }

    /// Returns the first lines of a watch, and the index from which it continues.
    fn begin(&self, asked: &Asked, target: &Target) -> Begun {
        let mut state = self.state.lock();
        let (known, reached, generation) = (state.known(target), state.reached(target), state.generation(target));
        let kills = state.kills;
        let (mut first, from) = (String::new(), asked.from);
        if asked.is_state {
            for (key, (version, stored)) in state.world.selected(known) {
                if target.is_of(&key) {
                    first += &event("ADDED", &target.shape(state.world.object(&key, version, &stored, true)));
                }
            }
            if asked.is_initial {
                first += &bookmark(&state.world.text_of(reached), true);
            }
            return Begun { next: known, version: reached, generation, kills, first, is_expired: false };
        }
        let cache_start = state.cache_start(target);
        let is_expired = from < cache_start;
        if is_expired {
            state.counts.expired_watches += 1;
            let text = format!("too old resource version: {from} ({cache_start})");
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": text,
                "reason": "Expired", "code": 410,
            });
            first = event("ERROR", &status.to_string());
        }
        let next = state.world.changes.iter().position(|change| change.version > from).unwrap_or(usize::MAX);
        Begun { next, version: from, generation, kills, first, is_expired }
    }

    async fn tell(self, asked: Asked, target: Target, sender: mpsc::Sender<io::Result<String>>) {
        let (mut changes, from) = (self.changed.subscribe(), asked.from);
        let begun = self.begin(&asked, &target);
        let Begun { mut next, mut version, generation, kills, first, is_expired } = begun;
        if !first.is_empty() && sender.send(Ok(first)).await.is_err() || is_expired {
            return;
        }
        let mut next_mark = asked.next_mark();
        loop {
            changes.borrow_and_update();
            if self.state.lock().kills != kills {
                drop(sender.try_send(Err(io::Error::other("the process was killed"))));
                return;
            }
            let (lines, is_over) = {
                let mut state = self.state.lock();
                if state.generation(&target) != generation {
                    return;
                }
                let known = state.known(&target);
                if next == usize::MAX {
                    next = state.world.changes.iter().position(|change| change.version > from).unwrap_or(usize::MAX);
                }
                let (mut lines, mut is_closed) = (String::new(), false);
                while next < known {
                    let before = lines.len();
                    if target.is_of(&state.world.changes[next].key) {
                        lines += &match state.world.told(next) {
                            None => String::new(),
                            Some(EventKind::Added(object)) => event("ADDED", &target.shape(object)),
                            Some(EventKind::Modified(object)) => event("MODIFIED", &target.shape(object)),
                            Some(EventKind::Deleted(object)) => event("DELETED", &target.shape(object)),
                        };
                    }
                    version = version.max(state.world.changes[next].version);
                    next += 1;
                    // A bookmark that is due may come between two changes of a version, and so may the end.
                    let is_next_at_version = next < known && state.world.changes[next].version == version;
                    if !is_next_at_version || lines.len() == before || state.has_opaque_versions {
                        continue;
                    }
                    if asked.bookmarks && state.sends_bookmarks && version.is_multiple_of(2) {
                        lines += &bookmark(&state.world.text_of(version), false);
                    }
                    is_closed = std::mem::take(&mut state.closes_inside);
                    if is_closed {
                        state.counts.closed_inside += 1;
                        break;
                    }
                }
                let in_band = if is_closed { None } else { state.in_band.pop() };
                if let Some((code, reason)) = in_band {
                    state.counts.in_band += 1;
                    let status = json!({"kind": "Status", "code": code, "reason": reason, "message": "drawn"});
                    lines += &event("ERROR", &status.to_string());
                }
                (lines, is_closed || in_band.is_some() || !state.is_served)
            };
            if !lines.is_empty() && sender.send(Ok(lines)).await.is_err() || is_over {
                return;
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = sender.closed() => return,
                () = tokio::time::sleep_until(next_mark) => {
                    next_mark = asked.next_mark();
                    let mark = {
                        let mut state = self.state.lock();
                        let (known, reached) = (state.known(&target), state.reached(&target));
                        let is_told = next >= known
                            && state.generation(&target) == generation
                            && (next != usize::MAX || state.world.changes.iter().all(|change| change.version <= from));
                        let is_sent = is_told && asked.bookmarks && state.sends_bookmarks && reached >= version;
                        state.counts.bookmarks += u64::from(is_sent);
                        is_sent.then(|| bookmark(&state.world.text_of(reached), false))
                    };
                    if let Some(mark) = mark && sender.send(Ok(mark)).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}
