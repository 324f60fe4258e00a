//! READY, STATUS and RESTARTS of a pod, as kubectl prints them.
//!
//! The rules are those of `printPod` in Kubernetes' `pkg/printers/internalversion/printers.go`, which the API server applies for
//! kubectl's tables.

use std::time::SystemTime;

use serde_json::Value;

use super::age::age;

/// Facts of the containers' states.
#[derive(Debug, Default)]
struct Containers {
    ready: usize,
    restarts: u64,
    restarted_at: String,
    has_running: bool,
    reason: Option<String>,
    /// Reason of the first container that has ended with an error.
    error: Option<String>,
}

/// Returns `READY/ALL` of the containers, with the init containers that run beside them.
pub(crate) fn ready(body: &Value) -> String {
    let sidecars = items(body, "/spec/initContainers").filter(|container| is_sidecar(container)).count();
    let all = items(body, "/spec/containers").count() + sidecars;
    let (init, containers) = (init_containers(body), containers(body));
    let ready = if init.hides_containers(body) { init.ready } else { init.ready + containers.ready };
    format!("{ready}/{all}")
}

/// Returns the phase, or the reason that says more; empty if there is neither.
pub(crate) fn status(body: &Value) -> String {
    let mut reason = str_at(body, "/status/phase").to_owned();
    let pod_reason = str_at(body, "/status/reason");
    if !pod_reason.is_empty() {
        pod_reason.clone_into(&mut reason);
    }
    let is_gated = items(body, "/status/conditions").any(|condition| {
        str_at(condition, "/type") == "PodScheduled" && str_at(condition, "/reason") == "SchedulingGated"
    });
    if is_gated {
        "SchedulingGated".clone_into(&mut reason);
    }
    let init = init_containers(body);
    let hides_containers = init.hides_containers(body);
    if let Some(initializing) = init.initializing {
        reason = initializing;
    }
    if !hides_containers {
        let containers = containers(body);
        if let Some(found) = containers.reason {
            reason = found;
        }
        if reason == "Completed" {
            let is_ready = containers.has_running && condition(body, "Ready");
            let running = containers.has_running.then(|| "NotReady".to_owned());
            reason = if is_ready { "Running".to_owned() } else { containers.error.or(running).unwrap_or(reason) };
        }
    }
    if body.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null()) {
        let is_lost = pod_reason == "NodeLost";
        let is_terminal = matches!(str_at(body, "/status/phase"), "Succeeded" | "Failed");
        if is_lost {
            "Unknown".clone_into(&mut reason);
        } else if !is_terminal {
            "Terminating".clone_into(&mut reason);
        }
    }
    reason
}

/// Returns the number of restarts, with the age of the last one.
pub(crate) fn restarts(body: &Value, now: SystemTime) -> String {
    let (init, containers) = (init_containers(body), containers(body));
    let (count, at) = if init.hides_containers(body) {
        (init.restarts, init.restarted_at)
    } else {
        let at = containers.restarted_at.max(init.sidecars_restarted_at);
        (containers.restarts + init.sidecar_restarts, at)
    };
    if count > 0 && !at.is_empty() { format!("{count} ({} ago)", age(&at, now)) } else { count.to_string() }
}

/// Facts of the init containers.
#[derive(Debug, Default)]
struct Init {
    /// Number of those that run beside the containers, and are ready.
    ready: usize,
    restarts: u64,
    restarted_at: String,
    sidecar_restarts: u64,
    sidecars_restarted_at: String,
    /// State of the first that has not ended, or not started.
    initializing: Option<String>,
}

// === impl Init ===

impl Init {
    /// Returns true if the containers do not count yet.
    fn hides_containers(&self, body: &Value) -> bool {
        self.initializing.is_some() && !condition(body, "Initialized")
    }
}

fn init_containers(body: &Value) -> Init {
    let mut init = Init::default();
    let specs: Vec<&Value> = items(body, "/spec/initContainers").collect();
    for (at, status) in items(body, "/status/initContainerStatuses").enumerate() {
        let name = str_at(status, "/name");
        let is_sidecar = specs.iter().any(|spec| str_at(spec, "/name") == name && is_sidecar(spec));
        let (restarts, restarted_at) = (number(status, "/restartCount"), last_end(status));
        init.restarts += restarts;
        init.restarted_at = std::mem::take(&mut init.restarted_at).max(restarted_at.clone());
        if is_sidecar {
            init.sidecar_restarts += restarts;
            init.sidecars_restarted_at = std::mem::take(&mut init.sidecars_restarted_at).max(restarted_at);
        }
        let terminated = status.pointer("/state/terminated").filter(|state| !state.is_null());
        if terminated.is_some_and(|state| number(state, "/exitCode") == 0) {
            continue;
        }
        if is_sidecar && status.pointer("/started").and_then(Value::as_bool) == Some(true) {
            init.ready += usize::from(is_ready(status));
            continue;
        }
        let waiting = str_at(status, "/state/waiting/reason");
        init.initializing = Some(match terminated {
            Some(state) => format!("Init:{}", end_reason(state)),
            None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
            None => format!("Init:{at}/{}", specs.len()),
        });
        break;
    }
    init
}

fn containers(body: &Value) -> Containers {
    let mut found = Containers::default();
    // The first container's reason counts most.
    let mut statuses: Vec<&Value> = items(body, "/status/containerStatuses").collect();
    statuses.reverse();
    for status in statuses {
        found.restarts += number(status, "/restartCount");
        found.restarted_at = std::mem::take(&mut found.restarted_at).max(last_end(status));
        let waiting = str_at(status, "/state/waiting/reason");
        let terminated = status.pointer("/state/terminated").filter(|state| !state.is_null());
        if !waiting.is_empty() {
            found.reason = Some(waiting.to_owned());
        } else if let Some(state) = terminated {
            found.reason = Some(end_reason(state));
            if state.pointer("/exitCode").and_then(Value::as_i64).unwrap_or_default() != 0 {
                found.error.clone_from(&found.reason);
            }
        } else if is_ready(status) && status.pointer("/state/running").is_some_and(|state| !state.is_null()) {
            found.has_running = true;
            found.ready += 1;
        }
    }
    found
}

/// Returns the reason of an end, or its signal or exit code.
fn end_reason(terminated: &Value) -> String {
    let reason = str_at(terminated, "/reason");
    match (reason, number(terminated, "/signal")) {
        ("", 0) => format!("ExitCode:{}", terminated.pointer("/exitCode").and_then(Value::as_i64).unwrap_or_default()),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn is_sidecar(container: &Value) -> bool {
    str_at(container, "/restartPolicy") == "Always"
}

fn is_ready(status: &Value) -> bool {
    status.pointer("/ready").and_then(Value::as_bool) == Some(true)
}

fn condition(body: &Value, name: &str) -> bool {
    items(body, "/status/conditions")
        .any(|condition| str_at(condition, "/type") == name && str_at(condition, "/status") == "True")
}

/// Returns the time of the last end, in RFC 3339 in UTC, whose texts sort by time.
fn last_end(status: &Value) -> String {
    str_at(status, "/lastState/terminated/finishedAt").to_owned()
}

fn items<'a>(body: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    body.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn str_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn cells(body: &Value) -> [String; 3] {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        [ready(body), status(body), restarts(body, now)]
    }

    fn pod(containers: usize, status: &Value) -> Value {
        json!({"spec": {"containers": vec![json!({"image": "a"}); containers]}, "status": status})
    }

    /// Cases of `TestPrintPod`, `TestPrintPodWithRestarts` and `TestPrintPodInitializing` of Kubernetes' printers.
    #[test]
    fn a_pod_is_shown_as_kubectl_shows_it() {
        let running = |restarts: u64| json!({"ready": true, "restartCount": restarts, "state": {"running": {}}});
        let waiting = |reason: &str| json!({"restartCount": 3, "state": {"waiting": {"reason": reason}}});
        let ended =
            |reason: &str| json!({"restartCount": 3, "state": {"terminated": {"reason": reason, "exitCode": 1}}});
        let completed = json!({"restartCount": 3, "state": {"terminated": {"reason": "Completed", "exitCode": 0}}});
        let crashed = json!({"restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"finishedAt": "2001-09-09T01:41:40Z"}}});
        let table = [
            (
                pod(2, &json!({"phase": "podPhase", "containerStatuses": [running(6), {"restartCount": 0}]})),
                ["1/2", "podPhase", "6"],
            ),
            (
                pod(1, &json!({"phase": "Running", "containerStatuses": [crashed]})),
                ["0/1", "CrashLoopBackOff", "4 (5m ago)"],
            ),
            (
                pod(
                    2,
                    &json!({"phase": "podPhase", "containerStatuses": [waiting("ContainerWaitingReason"), running(3)]}),
                ),
                ["1/2", "ContainerWaitingReason", "6"],
            ),
            (
                pod(
                    2,
                    &json!({"phase": "podPhase", "containerStatuses": [ended("ContainerTerminatedReason"), running(3)]}),
                ),
                ["1/2", "ContainerTerminatedReason", "6"],
            ),
            (
                pod(
                    2,
                    &json!({"phase": "podPhase", "reason": "podReason",
                "containerStatuses": [running(0), {"restartCount": 3, "state": {"terminated": {"signal": 7, "exitCode": 1}}}]}),
                ),
                ["1/2", "Signal:7", "3"],
            ),
            (pod(1, &json!({"phase": "Failed", "reason": "Evicted"})), ["0/1", "Evicted", "0"]),
            (
                pod(
                    2,
                    &json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [completed, running(0)]}),
                ),
                ["1/2", "Running", "3"],
            ),
            (
                pod(2, &json!({"phase": "Running", "containerStatuses": [completed, running(0)]})),
                ["1/2", "NotReady", "3"],
            ),
            (
                pod(2, &json!({"phase": "Failed", "containerStatuses": [completed, ended("Error")]})),
                ["0/2", "Error", "6"],
            ),
            (
                pod(3, &json!({"phase": "Running", "containerStatuses": [completed, ended("Error"), running(0)]})),
                ["1/3", "Error", "6"],
            ),
            (
                pod(
                    3,
                    &json!({"phase": "Failed", "containerStatuses": [completed, ended("Error"), ended("OOMKilled")]}),
                ),
                ["0/3", "Error", "9"],
            ),
            (
                pod(
                    1,
                    &json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}),
                ),
                ["0/1", "SchedulingGated", "0"],
            ),
            (json!({}), ["0/0", "", "0"]),
            (json!(null), ["0/0", "", "0"]),
        ];
        for (body, expected) in table {
            assert_eq!(cells(&body), expected, "{body}");
        }
        let mut deleted = pod(1, &json!({"phase": "Running", "containerStatuses": [running(0)]}));
        deleted["metadata"] = json!({"deletionTimestamp": "2001-09-09T01:41:40Z"});
        assert_eq!(cells(&deleted), ["1/1", "Terminating", "0"]);
    }

    #[test]
    fn init_containers_come_first() {
        let of = |statuses: Value, conditions: Value| {
            json!({"spec": {"initContainers": [{"name": "a"}, {"name": "proxy", "restartPolicy": "Always"}],
                "containers": [{"name": "main"}]},
                "status": {"phase": "Pending", "initContainerStatuses": statuses, "conditions": conditions,
                    "containerStatuses": [{"restartCount": 2, "state": {"waiting": {"reason": "PodInitializing"}}}]}})
        };
        let done = json!({"name": "a", "restartCount": 0, "state": {"terminated": {"exitCode": 0}}});
        let failed = json!({"name": "a", "restartCount": 5, "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
        let starting = json!({"name": "a", "restartCount": 0, "state": {"running": {}}});
        let sidecar =
            json!({"name": "proxy", "restartCount": 1, "ready": true, "started": true, "state": {"running": {}}});
        assert_eq!(cells(&of(json!([starting]), json!([]))), ["0/2", "Init:0/2", "0"]);
        assert_eq!(cells(&of(json!([failed]), json!([]))), ["0/2", "Init:CrashLoopBackOff", "5"]);
        assert_eq!(
            cells(&of(json!([done, {"name": "proxy", "restartCount": 0}]), json!([]))),
            ["0/2", "Init:1/2", "0"]
        );
        let initialized = json!([{"type": "Initialized", "status": "True"}]);
        assert_eq!(cells(&of(json!([done, sidecar]), initialized)), ["1/2", "PodInitializing", "3"]);
    }
}
