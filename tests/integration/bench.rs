//! The load generator (`benches/load`) against a real server, at a very small scale: checks counts, never times.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{command_line::informerd, load};

/// Returns the exit code, and the texts for stdout and stderr.
fn run(arguments: &str) -> (u8, String, String) {
    let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let exit_code = load::execute(&arguments, &mut out, &mut notes);
    (exit_code, String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap())
}

/// Returns the figures of the first subject.
fn measured(arguments: &str) -> Value {
    let (exit_code, out, notes) = run(&format!("{arguments} -q -o json"));
    assert!(exit_code == 0 && notes.is_empty(), "{arguments}: {notes}");
    let mut document: Value = serde_json::from_str(&out).unwrap();
    let subject = document["bench"][0]["subject"].as_str().unwrap();
    assert!(["informerd", "one stopped", "a view"].contains(&subject), "{subject}");
    document["bench"][0]["measured"].take()
}

fn delivered(arguments: &str) -> u64 {
    let measured = measured(arguments);
    for metric in ["server_us", "client_us", "both_us", "rate_k", "resident_mib"] {
        assert!(measured[metric]["median"].as_f64().unwrap() > 0.0, "{metric} of {measured}");
    }
    count(&measured, "delivered")
}

fn count(measured: &Value, metric: &str) -> u64 {
    measured[metric]["median"].as_f64().unwrap() as u64
}

#[test]
fn every_watcher_receives_every_event() {
    assert_eq!(delivered("w1 --local --watchers 10 --events 300 --reps 2"), 3000);
    assert_eq!(delivered("w1 --local --watchers 10 --rate 500 --seconds 1 --reps 1 --policy replay"), 5000);
    assert_eq!(delivered("w2 --local --watchers 10 --connections 3 --events 300 --reps 1"), 3000);
    for watches in ["--subscribe", "--subscribe --own-selections", "--own-selections"] {
        let arguments = "w2 --local --watchers 600 --connections 2 --events 100 --reps 1";
        assert_eq!(delivered(&format!("{arguments} {watches}")), 60_000, "{watches}");
    }
}

/// Checks that events a policy drops or merges are reported and counted. One writer outpaces so many watchers.
#[test]
fn events_that_a_policy_omits_are_accounted_for() {
    for policy in ["drop", "coalesce"] {
        let arguments = "w1 --local --watchers 30 --events 5000 --queue 1 --reps 1";
        let delivered = delivered(&format!("{arguments} --policy {policy}"));
        assert!((30..150_000).contains(&delivered), "{policy}: {delivered}");
    }
}

#[test]
fn each_event_goes_to_its_watcher() {
    assert_eq!(delivered("w3 --local --watchers 10 --connections 3 --events 300 --reps 1"), 300);
    let few = delivered("w3 --local --watchers 10 --connections 3 --values 50 --events 300 --reps 1");
    assert!((20..150).contains(&few), "a fifth of the events has a watcher: {few}");
}

/// Sends over a narrow window that refills again and again, with events larger than a frame.
#[test]
fn a_client_with_a_small_window_receives_everything() {
    let arguments = "w2 --local --watchers 4 --connections 2 --events 50 --reps 1 --window 65535 --size 40000";
    assert_eq!(delivered(arguments), 200);
}

#[test]
fn the_memory_of_idle_watchers_is_measured() {
    for watches in ["", "--subscribe"] {
        let measured = measured(&format!("idle --local --watchers 20 --connections 4 --reps 1 {watches}"));
        assert!(measured["idle_kib"]["median"].is_number() && measured["after_events_kib"]["median"].is_number());
    }
}

/// Checks that the client was stopped; the run itself checks its counts.
#[test]
fn a_stopped_client_receives_what_its_policy_guarantees() {
    let stopped = |policy: &str| {
        // Under BLOCK, long enough for the clients that read: the stopped one spends the whole budget of their host.
        let queue = if policy == "block" { 400 } else { 16 };
        let arguments =
            "stopped --local --watchers 4 --size 4000 --rate 2000 --seconds 1 --reps 1 --block-timeout 100ms";
        let measured = measured(&format!("{arguments} --queue {queue} --history 5000 --policy {policy}"));
        let of = |metric: &str| count(&measured, &format!("stopped_{metric}"));
        (of("delivered"), of("missed"), of("ended"))
    };
    assert_eq!(stopped("replay"), (2000, 0, 0));
    for policy in ["drop", "coalesce"] {
        let (delivered, missed, ended) = stopped(policy);
        assert!(missed > 0 && delivered + missed == 2000 && ended == 0, "{policy}: {delivered} and {missed}");
    }
    let (delivered, missed, ended) = stopped("block");
    assert!(delivered < 2000 && (missed, ended) == (0, 1), "{delivered} before the end");
}

#[test]
fn a_storm_of_snapshots_and_lists_sends_every_object_to_every_client() {
    for mode in ["storm --watchers 5", "list --lists 3"] {
        let measured = measured(&format!("{mode} --local --objects 500 --rate 200 --reps 1"));
        for metric in ["time_s", "throughput_gb_s", "per_core_gb_s", "quiet_p99_ms", "resident_mib"] {
            assert!(measured[metric]["median"].as_f64().unwrap() > 0.0, "{mode}: {metric} of {measured}");
        }
    }
}

/// Checks that heartbeats are suppressed; the run itself checks that each is sent or counted.
#[test]
fn a_small_view_suppresses_what_does_not_concern_it() {
    let measured = measured("views --local --watchers 5 --objects 500 --events 1000 --reps 1");
    assert_eq!((count(&measured, "received"), count(&measured, "suppressed")), (10, 990));
    assert!(measured["sent_mib"]["median"].as_f64().unwrap() > 0.0, "{measured}");
}

/// Checks that each client receives each pod; the run itself counts them.
#[test]
fn compressed_pods_are_fewer_bytes() {
    for flags in ["", "--list", "--compression gzip", "--list --compression gzip"] {
        let arguments = format!("compressed --local --clients 3 --objects 200 --reps 1 {flags} -q -o json");
        let (exit_code, out, notes) = run(&arguments);
        assert!(exit_code == 0 && notes.is_empty(), "{arguments}: {notes}");
        let document: Value = serde_json::from_str(&out).unwrap();
        let [compressed, whole] =
            [0, 1].map(|at| document["bench"][at]["measured"]["client_mib"]["median"].as_f64().unwrap());
        let ratio = if flags.contains("--list") { 6.0 } else { 1.5 };
        assert!(compressed * ratio < whole, "{flags}: {compressed} of {whole} MiB");
    }
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_server_that_runs_already_is_measured_through_its_pipe() {
    let directory = TempDir::new().unwrap();
    let feed = directory.path().join("feed");
    assert!(Command::new("mkfifo").arg(&feed).status().unwrap().success());
    let stream = format!("pods={}", feed.display());
    let arguments = ["serve", "--stream", &stream, "--listen", "127.0.0.1:0", "--admin-listen", "none"];
    let mut server = Server(informerd(&arguments).stderr(Stdio::piped()).spawn().unwrap());
    let mut log = BufReader::new(server.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = log.find(|line| line.contains("grpc listening")).expect("it listens");
    let address = line.split("address=").nth(1).unwrap().to_owned();
    let target = format!("--server {address} --feed {} --resource pods", feed.display());
    assert_eq!(delivered(&format!("w1 {target} --pid {} --watchers 5 --events 100 --reps 2", server.0.id())), 500);
    let unknown = measured(&format!("w1 {target} --watchers 5 --events 100 --reps 1"));
    assert_eq!((count(&unknown, "delivered"), &unknown["server_us"]), (500, &Value::Null));
}

#[test]
fn errors_of_a_measurement_are_one_line() {
    let pipe = TempDir::new().unwrap();
    let feed = pipe.path().join("feed");
    fs::write(&feed, "").unwrap();
    let target = format!("--server 127.0.0.1:1 --feed {}", feed.display());
    for (arguments, code, hint) in [
        ("w1 --server 127.0.0.1:1 --feed /no/such/feed --reps 1".to_owned(), 1, "--feed names the pipe"),
        (format!("w1 {target} --reps 1"), 1, "is the server running"),
        (
            "w1 --local --baseline naive=/no/such/program --watchers 2 --events 2 --reps 1".to_owned(),
            1,
            "/no/such/program",
        ),
        ("w2 --local --watchers 2".to_owned(), 2, "lower --connections"),
        ("w1".to_owned(), 2, "--local"),
    ] {
        let (exit_code, out, error) = run(&format!("{arguments} -q"));
        assert_eq!(exit_code, code, "{arguments}: {error}");
        assert!(error.contains(hint) && error.starts_with("error: "), "{arguments}: {hint} is not in {error}");
        assert!(out.is_empty(), "{arguments}");
    }
}
