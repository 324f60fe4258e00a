//! One server and one driver, and the steps of which a script consists.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use informerd::proto::{self, pb};
use serde_json::{Value, json};

use super::{
    call,
    driver::{Driver, Failure, Launcher, Outcome},
    message::{self, RESOURCE, Thing, thing},
    server::Server,
    watch_stream::WatchStream,
};

/// Server and driver of one scenario.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) driver: Driver,
    /// Fields of the command `start`.
    options: Value,
    /// Number of handler calls that the script has checked.
    checked: usize,
    /// Seconds of the last time of contact.
    seen_at: i64,
}

/// Reply to the command `state`.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) version: String,
    /// LIVE, STALE, SYNCING or DISCONNECTED.
    pub(crate) freshness: String,
    pub(crate) is_healthy: bool,
    pub(crate) age: Option<Duration>,
    pub(crate) seen_at: String,
    pub(crate) objects: Vec<Value>,
    pub(crate) by_app: Value,
}

// === impl World ===

impl World {
    pub(crate) async fn begin(launcher: &Launcher, patience: Duration) -> Result<Self, Failure> {
        let server = Server::start().await.map_err(|error| format!("cannot listen: {error}"))?;
        let options = json!({
            "do": "start",
            "target": server.address().to_string(),
            "resource": RESOURCE,
            "namespace": "",
            "label_selector": "",
            "policy": "",
            // Three of them are longer than any pause of a busy machine; what is about silence has its own.
            "bookmark_interval_ms": 2000,
            "first_message_timeout_ms": 10_000,
            "connect_timeout_ms": 3000,
            "backoff_ms": 20,
            "max_backoff_ms": 100,
            "drain_jitter_ms": 50,
            "request_timeout_ms": 2000,
            "token_file": "",
            "handler": { "fail_on": "", "delay_on": "", "delay_ms": 0 },
        });
        Ok(Self { server, driver: Driver::start(launcher, patience)?, options, checked: 0, seen_at: 0 })
    }

    /// Ends the driver and the server. Returns the event lines of the one, what arrived at the other, and stderr.
    pub(crate) async fn end(mut self) -> (Vec<String>, Vec<String>, String) {
        drop(self.driver.end().await);
        let events = self.driver.with_events(|events| events.iter().map(call::describe).collect());
        (events, self.server.received(), self.driver.stderr())
    }

    /// Sets options of the command `start`.
    pub(crate) fn set(&mut self, options: &Value) {
        for (name, value) in options.as_object().into_iter().flatten() {
            self.options[name] = value.clone();
        }
    }

    /// Returns an option that is a time.
    pub(crate) fn option(&self, name: &str) -> Duration {
        Duration::from_millis(self.options[name].as_u64().unwrap_or_default())
    }

    /// Starts the client.
    pub(crate) fn start(&mut self) -> Outcome {
        let command = self.options.clone();
        self.driver.send(&command)
    }

    /// Starts the client with options, and waits for its first Watch, which has to list.
    pub(crate) async fn start_with(&mut self, options: Value) -> Result<WatchStream, Failure> {
        self.set(&options);
        self.start()?;
        self.list().await
    }

    /// Starts the client, serves the initial events, and waits until they have been handled.
    pub(crate) async fn synced(
        &mut self,
        options: Value,
        objects: &[&Thing],
        (version, history): (&str, &str),
    ) -> Result<WatchStream, Failure> {
        let mut watch = self.start_with(options).await?;
        watch.send_initial(objects, version, history);
        self.calls_in_any_order(&objects.iter().map(|object| call::added(object)).collect::<Vec<_>>()).await?;
        self.await_state("LIVE after the initial events", State::is_live).await?;
        Ok(watch)
    }

    /// Waits for the next Watch, of any kind.
    pub(crate) async fn watch(&mut self) -> Result<WatchStream, Failure> {
        let patience = self.driver.patience;
        let watch = tokio::select! {
            biased;
            watch = self.server.watch(patience) => watch.ok_or_else(|| format!("no Watch arrived within {patience:?}")),
            failure = self.driver.broken() => Err(failure),
        }?;
        let (request, options) = (&watch.request, &self.options);
        let interval = request.bookmark_interval.and_then(proto::duration);
        if interval != Some(self.option("bookmark_interval_ms")) {
            return Err(format!("the Watch has bookmark_interval {interval:?}, not that of `start`"));
        }
        let policy = match options["policy"].as_str().unwrap_or_default() {
            "" => "FULL_CHANNEL_POLICY_UNSPECIFIED".to_owned(),
            policy => format!("FULL_CHANNEL_POLICY_{policy}"),
        };
        let queue = request.queue.unwrap_or_default();
        for (name, found, wanted) in [
            ("resource", request.resource.as_str(), RESOURCE),
            ("namespace", &request.namespace, options["namespace"].as_str().unwrap_or_default()),
            ("label_selector", &request.label_selector, options["label_selector"].as_str().unwrap_or_default()),
            ("format", request.format().as_str_name(), pb::PayloadFormat::Raw.as_str_name()),
            ("queue.policy", queue.policy().as_str_name(), &policy),
        ] {
            if found != wanted {
                return Err(format!("the Watch has {name} {found:?} instead of {wanted:?}"));
            }
        }
        Ok(watch)
    }

    /// Waits for a Watch that lists: without a version and a history.
    pub(crate) async fn list(&mut self) -> Result<WatchStream, Failure> {
        let watch = self.watch().await?;
        let request = &watch.request;
        if !request.resource_version.is_empty() || !request.history.is_empty() {
            let (version, history) = (&request.resource_version, &request.history);
            return Err(format!(
                "expected a Watch that lists, without a version and a history; it has version {version:?} and history {history:?}"
            ));
        }
        if request.initial_events() == pb::InitialEvents::None {
            return Err("the Watch that lists has INITIAL_EVENTS_NONE".to_owned());
        }
        Ok(watch)
    }

    /// Waits for a Watch that resumes from a version with its history.
    pub(crate) async fn resume(&mut self, version: &str, history: &str) -> Result<WatchStream, Failure> {
        let watch = self.watch().await?;
        let found = (watch.request.resource_version.as_str(), watch.request.history.as_str());
        if found != (version, history) {
            return Err(format!(
                "expected a Watch that resumes from version {version:?} with history {history:?}; it has {:?} and {:?}",
                found.0, found.1
            ));
        }
        if watch.request.initial_events() == pb::InitialEvents::Send {
            return Err("the Watch that resumes has INITIAL_EVENTS_SEND".to_owned());
        }
        Ok(watch)
    }

    /// Waits for these handler calls, in this order.
    pub(crate) async fn calls(&mut self, expected: &[Value]) -> Outcome {
        self.expect_calls(expected, |expected, received| {
            expected.iter().zip(received).all(|(expected, received)| call::matches(expected, received))
        })
        .await
    }

    /// Waits for these handler calls, in any order: those of one difference.
    pub(crate) async fn calls_in_any_order(&mut self, expected: &[Value]) -> Outcome {
        self.expect_calls(expected, call::match_in_any_order).await
    }

    /// Waits for handler calls. `fits` compares as many of them as there are with those that are expected.
    async fn expect_calls(&mut self, expected: &[Value], fits: impl Fn(&[Value], &[Value]) -> bool) -> Outcome {
        let from = self.checked;
        let since = |events: &[Value]| -> Vec<Value> {
            let calls = events.iter().filter(|event| call::is_call(event)).skip(from).take(expected.len());
            calls.cloned().collect()
        };
        let is_decided = |events: &[Value]| {
            let received = since(events);
            received.len() == expected.len() || !fits(expected, &received)
        };
        let waited = self.driver.wait("", |received| is_decided(&received.events).then_some(())).await;
        let received = self.driver.with_events(since);
        if received.len() < expected.len() || !fits(expected, &received) {
            let cause = waited.err().filter(|cause| !cause.is_empty()).map(|cause| format!(" ({cause})"));
            let both = call::describe_both(expected, &received);
            return Err(format!("other handler calls than expected{}{both}", cause.unwrap_or_default()));
        }
        self.checked += expected.len();
        Ok(())
    }

    /// Checks that no handler call has come since the last one that was expected.
    pub(crate) fn no_calls(&self) -> Outcome {
        let received = self.calls_since(self.checked);
        if received.is_empty() {
            return Ok(());
        }
        Err(format!("handler calls where none is expected{}", call::describe_both(&[], &received)))
    }

    fn calls_since(&self, from: usize) -> Vec<Value> {
        self.driver
            .with_events(|events| events.iter().filter(|event| call::is_call(event)).skip(from).cloned().collect())
    }

    /// Waits for an event line that is no handler call.
    pub(crate) async fn event(&mut self, name: &str) -> Result<Value, Failure> {
        self.nth_event(name, 0).await
    }

    /// Waits for an event line after a number of others with the same name. Its place among the handler calls is free.
    pub(crate) async fn nth_event(&mut self, name: &str, after: usize) -> Result<Value, Failure> {
        let what = format!("no event {name:?} after {after} others within {:?}", self.driver.patience);
        let find = |events: &[Value]| events.iter().filter(|event| event["event"] == name).nth(after).cloned();
        self.driver.wait(&what, |received| find(&received.events)).await
    }

    /// Returns the number of event lines with a name.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.driver.with_events(|events| events.iter().filter(|event| event["event"] == name).count())
    }

    pub(crate) async fn state(&mut self) -> Result<State, Failure> {
        let reply = self.driver.ask(json!({ "do": "state" })).await?;
        let text = |name: &str| reply[name].as_str().unwrap_or_default().to_owned();
        let state = State {
            version: text("version"),
            freshness: text("state"),
            is_healthy: reply["healthy"].as_bool().unwrap_or_default(),
            age: reply["last_message_age_ms"].as_f64().map(|ms| Duration::from_secs_f64(ms.max(0.0) / 1000.0)),
            seen_at: text("source_seen_at"),
            objects: reply["objects"].as_array().cloned().unwrap_or_default(),
            by_app: reply["by_app"].clone(),
        };
        // By its definition, whatever the scenario.
        if state.is_healthy != matches!(state.freshness.as_str(), "LIVE" | "STALE") {
            return Err(format!("healthy is {} while the state is {:?}", state.is_healthy, state.freshness));
        }
        Ok(state)
    }

    /// Waits until the state meets a condition.
    pub(crate) async fn await_state(&mut self, what: &str, is_met: impl Fn(&State) -> bool) -> Result<State, Failure> {
        let began_at = Instant::now();
        loop {
            let state = self.state().await?;
            if is_met(&state) {
                return Ok(state);
            }
            if began_at.elapsed() > self.driver.patience {
                let patience = self.driver.patience;
                return Err(format!("not reached within {patience:?}: {what}; the last {}", state.describe()));
            }
            // Polls: the protocol has no notification of a state.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the client has read everything that was sent on a stream: a BOOKMARK at the same version, with another time of
    /// contact, comes last.
    pub(crate) async fn all_read(&mut self, watch: &mut WatchStream) -> Result<State, Failure> {
        self.seen_at += 1;
        watch.send_seen_at(self.seen_at);
        let wanted = format!("2026-01-01T00:{:02}:{:02}", self.seen_at / 60, self.seen_at % 60);
        let what = format!("source_seen_at of the last BOOKMARK ({wanted}Z)");
        self.await_state(&what, |state| state.seen_at.starts_with(&wanted)).await
    }

    /// Checks the store, with its index.
    pub(crate) async fn store(&mut self, expected: &[&Thing]) -> Outcome {
        let state = self.state().await?;
        state.check_objects(expected)
    }

    /// Checks that the client is current and has exactly these objects, that no other handler call comes, and that it stops.
    pub(crate) async fn finish(&mut self, mut watch: WatchStream, expected: &[&Thing]) -> Outcome {
        self.all_read(&mut watch).await?;
        let state = self.await_state("LIVE at the end", State::is_live).await?;
        state.check_objects(expected)?;
        // All that came before it has been handled when its call comes.
        let version = next_version(&watch.version());
        let last = thing("zz-last", &version);
        watch.send([message::added(&version, &last)]);
        self.calls(&[call::added(&last)]).await?;
        self.event("synced").await?;
        if self.count("synced") != 1 {
            return Err(format!("{} events \"synced\" in place of one", self.count("synced")));
        }
        if self.count("failed") > 0 {
            return Err("an event \"failed\" of an informer that goes on".to_owned());
        }
        self.stop().await?;
        self.closed(&watch).await
    }

    /// Checks that the client has closed a stream.
    pub(crate) async fn closed(&self, watch: &WatchStream) -> Outcome {
        let closed = tokio::time::timeout(self.driver.patience, watch.cancelled()).await;
        closed.map_err(|_| "the Watch goes on after `stop`".to_owned())
    }

    /// Checks that the client has given up with this status, opens no Watch after that, and stops.
    pub(crate) async fn finish_failed(&mut self, code: &str, reason: &str) -> Outcome {
        let failed = self.event("failed").await?;
        // A status without a reason has none, or an empty one.
        if failed["code"] != code || failed["reason"].as_str().unwrap_or_default() != reason {
            return Err(format!("expected the event \"failed\" with {code} / {reason}: {failed}"));
        }
        let state = self.state().await?;
        if state.freshness != "DISCONNECTED" {
            return Err(format!("expected DISCONNECTED after the end; the {}", state.describe()));
        }
        self.stop().await?;
        if self.count("failed") != 1 {
            return Err(format!("{} events \"failed\" in place of one", self.count("failed")));
        }
        match self.server.watch(Duration::ZERO).await {
            Some(_) => Err("a Watch after the client has given up".to_owned()),
            None => Ok(()),
        }
    }

    /// Stops the client and ends the driver.
    pub(crate) async fn stop(&mut self) -> Outcome {
        self.driver.ask(json!({ "do": "stop" })).await?;
        let count = self.driver.events_before_reply();
        self.driver.end().await?;
        let later = self.driver.with_events(|events| events[count..].iter().map(call::describe).collect::<Vec<_>>());
        if later.is_empty() { Ok(()) } else { Err(format!("events after the reply to `stop`: {later:?}")) }
    }
}

// === impl State ===

impl State {
    pub(crate) fn is_live(&self) -> bool {
        self.freshness == "LIVE"
    }

    fn check_objects(&self, expected: &[&Thing]) -> Outcome {
        let mut expected = expected.to_vec();
        expected.sort_by_key(|thing| (thing.object.namespace.clone(), thing.object.name.clone()));
        let mut by_app = BTreeMap::<&str, BTreeSet<String>>::new();
        for thing in &expected {
            if let Some(app) = thing.object.labels.get("app") {
                by_app.entry(app).or_default().insert(thing.key());
            }
        }
        let found: BTreeMap<&str, BTreeSet<String>> = self
            .by_app
            .as_object()
            .into_iter()
            .flatten()
            .map(|(app, keys)| {
                let keys = keys.as_array().into_iter().flatten().filter_map(Value::as_str);
                (app.as_str(), keys.map(str::to_owned).collect())
            })
            .collect();
        let objects: Vec<_> = expected.iter().map(|thing| thing.json()).collect();
        if !(objects.len() == self.objects.len()
            && objects.iter().zip(&self.objects).all(|(expected, found)| call::matches(expected, found)))
        {
            let show = |objects: &[Value]| {
                objects.iter().map(|object| json!({ "event": "added", "object": object })).collect::<Vec<_>>()
            };
            return Err(format!("another store{}", call::describe_both(&show(&objects), &show(&self.objects))));
        }
        if by_app != found {
            return Err(format!("another index: expected by_app {by_app:?}, received {}", self.by_app));
        }
        Ok(())
    }

    pub(crate) fn describe(&self) -> String {
        format!(
            "state is {:?}, version {:?}, last message {:?} ago, source_seen_at {:?}, {} objects",
            self.freshness,
            self.version,
            self.age,
            self.seen_at,
            self.objects.len()
        )
    }
}

/// Returns a later version of the same lineage.
fn next_version(version: &str) -> String {
    let (lineage, number) = version.rsplit_once('.').map_or((None, version), |(lineage, n)| (Some(lineage), n));
    let next = number.parse::<u64>().unwrap_or_default() + 1000;
    lineage.map_or_else(|| next.to_string(), |lineage| format!("{lineage}.{next}"))
}
