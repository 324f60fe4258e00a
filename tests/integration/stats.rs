//! Figures for operators: `GetStats`, the fields of a watch and of a resource, the metrics, `/debug/informers` and the filter of the
//! log, of the program in a process of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
    time::SystemTime,
};

use informerd::{
    grpc::ShownChanges,
    proto::pb::{self, admin_service_client::AdminServiceClient, informer_service_client::InformerServiceClient},
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::{Code, Streaming, transport::Channel};

use crate::{
    authority::Authority,
    process::{Metrics, Process},
    sandbox::{DEADLINE, Sandbox, next, watch_pods},
};

const WEB: &str = r#"{"kind":"Pod","metadata":{"namespace":"shop","name":"web"},"n":0}"#;

fn serve(directory: &Path) -> Process {
    fs::write(directory.join("web.json"), WEB).unwrap();
    Process::start(&["--files", &format!("pods={}@Pod", directory.display())], None)
}

async fn watch(process: &Process, request: pb::WatchRequest) -> Streaming<pb::WatchResponse> {
    let mut client = InformerServiceClient::connect(process.address()).await.unwrap();
    let mut watch = client.watch(request).await.unwrap().into_inner();
    while !next(&mut watch).await.bookmark.is_some_and(|bookmark| bookmark.initial_events_end) {}
    watch
}

async fn watchers(admin: &mut AdminServiceClient<Channel>, include_ended: bool) -> Vec<pb::Watcher> {
    let request = pb::ListWatchersRequest { include_ended, ..Default::default() };
    admin.list_watchers(request).await.unwrap().into_inner().watchers
}

/// Sends a request to the admin port, and returns the head and the body of the answer.
async fn ask(process: &Process, request: &str) -> (String, String) {
    let asked = async {
        let mut stream = TcpStream::connect(process.admin).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    };
    tokio::time::timeout(DEADLINE, asked).await.expect("the admin port answers")
}

async fn put_log_filter(process: &Process, filter: &str) -> (String, String) {
    ask(process, &format!("PUT /loglevel HTTP/1.0\r\nContent-Length: {}\r\n\r\n{filter}", filter.len())).await
}

/// Repeats a question until its answer is accepted.
async fn until<T>(mut ask: impl AsyncFnMut() -> T, is_so: impl Fn(&T) -> bool) -> T {
    let answered = async {
        loop {
            let answer = ask().await;
            if is_so(&answer) {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, answered).await.expect("it is so in time")
}

fn check_resource(stats: &pb::ResourceStats, metrics: &Metrics) {
    let seconds = |duration: Option<prost_types::Duration>| {
        std::time::Duration::try_from(duration.unwrap()).unwrap().as_secs_f64()
    };
    let label = format!("{{resource=\"{}\"", stats.resource);
    for (name, expected) in [
        ("cache_changes_total", stats.changes),
        ("cache_replaces_total", stats.relists),
        ("watch_events_sent_total", stats.events_sent),
        ("watch_sent_bytes_total", stats.bytes_sent),
        ("watch_events_dropped_total", stats.dropped),
        ("watch_changes_suppressed_total", stats.suppressed),
        ("cache_body_bytes", stats.cache_bytes),
        ("history_bytes", stats.history_bytes),
        ("expression_errors_total", stats.expression_errors),
    ] {
        assert!(metrics.0.contains(&format!("informerd_{name}{label}")), "informerd_{name} is missing");
        assert_eq!(metrics.sum(&format!("informerd_{name}{label}")) as u64, expected, "informerd_{name}");
    }
    assert_eq!((seconds(stats.max_lag), metrics.sum(&format!("informerd_watch_max_lag_seconds{label}"))), (0.0, 0.0));
    assert_eq!(
        (seconds(stats.blocked), metrics.sum(&format!("informerd_watch_blocked_seconds_total{label}"))),
        (0.0, 0.0)
    );
}

#[tokio::test]
async fn the_stats_are_the_numbers_of_the_metrics_and_an_ended_watch_stays_listed() {
    let directory = TempDir::new().unwrap();
    let process = serve(directory.path());
    let mut kept = watch(&process, watch_pods()).await;
    let structs = pb::WatchRequest { format: pb::PayloadFormat::Struct.into(), ..watch_pods() };
    let left = watch(&process, structs).await;
    fs::write(directory.path().join("web.json"), WEB.replace('0', "1")).unwrap();
    while next(&mut kept).await.object.is_none() {}
    drop(left);
    let mut admin = AdminServiceClient::connect(process.address()).await.unwrap();
    until(async || watchers(&mut admin, false).await, |found| found.len() == 1).await;

    let found = watchers(&mut admin, true).await;
    let [open, ended] = &found[..] else { panic!("{found:?}") };
    assert_eq!((open.id, open.format(), open.state()), (1, pb::PayloadFormat::Raw, pb::WatcherState::Live));
    assert!(open.user_agent.starts_with("tonic/") && open.bytes_sent > 100 && open.ended_at.is_none(), "{open:?}");
    assert_eq!(open.lag, Some(prost_types::Duration::default()), "it has everything");
    assert_eq!((ended.id, ended.format(), ended.state()), (2, pb::PayloadFormat::Struct, pb::WatcherState::Ended));
    let (at, end) = (ended.ended_at.unwrap(), ended.end_status.as_ref().unwrap());
    assert!(SystemTime::try_from(at).unwrap() >= SystemTime::try_from(ended.since.unwrap()).unwrap());
    assert_eq!((end.code, ended.lag), (i32::from(Code::Cancelled), None), "{end:?}");
    let request = pb::ListWatchersRequest { include_ended: true, page_size: 1, ..Default::default() };
    let page = admin.list_watchers(request.clone()).await.unwrap().into_inner();
    assert_eq!((page.watchers[0].id, page.next_page_token.as_str()), (1, "1"));
    let request = pb::ListWatchersRequest { page_token: page.next_page_token, ..request };
    let page = admin.list_watchers(request).await.unwrap().into_inner();
    assert_eq!((page.watchers[0].id, page.next_page_token.as_str()), (2, ""));

    // That of the watch that is kept, and that of `admin`.
    until(async || process.metrics().await, |metrics| metrics.sum("informerd_connections") as u64 == 2).await;
    let stats = admin.get_stats(pb::GetStatsRequest {}).await.unwrap().into_inner();
    let (metrics, server) = (process.metrics().await, stats.server.unwrap());
    let [pods] = &stats.resources[..] else { panic!("{:?}", stats.resources) };
    assert_eq!((pods.resource.as_str(), pods.changes, pods.relists), ("pods", 1, 1));
    assert!(pods.events_sent >= 3 && pods.bytes_sent >= open.bytes_sent + ended.bytes_sent, "{pods:?}");
    assert_eq!(pods.events_sent, open.sent + ended.sent);
    check_resource(pods, &metrics);
    for (name, expected) in [
        ("informerd_watchers", server.watchers),
        ("informerd_connections", server.connections),
        ("informerd_waiting_limit_bytes", server.held_bytes_limit),
    ] {
        assert_eq!(metrics.sum(name) as u64, expected, "{name}");
    }
    assert!(server.watchers == 1 && server.connections == 2 && server.resident_bytes > 1 << 20 && !server.draining);
    let started_at = SystemTime::try_from(server.started_at.unwrap()).unwrap();
    let started_at = started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((metrics.sum("process_start_time_seconds") - started_at).abs() < 0.1);

    for name in [
        r#"informerd_watch_ends_total{resource="pods",reason="CANCELLED"} 1"#,
        r#"informerd_watch_ends_total{resource="pods",reason="DRAINING"} 0"#,
        r#"informerd_dispatch_duration_seconds_count{resource="pods",stage="publish"} 1"#,
        r#"informerd_propagation_delay_seconds_count{resource="pods"} 0"#,
        "informerd_build_info{version=",
        "informerd_config_info{hash=",
    ] {
        assert!(metrics.0.lines().any(|line| line.starts_with(name)), "{name} is not in\n{}", metrics.0);
    }
    for name in [
        r#"informerd_dispatch_duration_seconds_count{resource="pods",stage="cache""#,
        "informerd_history_oldest_timestamp_seconds",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_max_fds",
    ] {
        assert!(metrics.sum(name) > 0.0, "{name} in\n{}", metrics.0);
    }
    let mut client = InformerServiceClient::connect(process.address()).await.unwrap();
    let listed = client.list_resources(pb::ListResourcesRequest {}).await.unwrap().into_inner();
    let oldest_at = SystemTime::try_from(listed.resources[0].oldest_at.unwrap()).unwrap();
    assert!(oldest_at.elapsed().unwrap() < DEADLINE, "{oldest_at:?}");
}

/// Returns a row for each metric: its name, kind, labels and help.
fn rows(exposition: &str) -> String {
    let mut families: BTreeMap<&str, [&str; 2]> = BTreeMap::new();
    let mut labels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in exposition.lines() {
        if let Some((family, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            assert!(help.ends_with('.') && !help.ends_with(".."), "one full stop: {line}");
            families.entry(family).or_default()[1] = help;
        } else if let Some((family, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            families.entry(family).or_default()[0] = kind;
        } else if let Some((_, series)) = line.split_once('{') {
            let names =
                series.split("\",").filter_map(|label| Some(label.split_once('=')?.0)).filter(|name| *name != "le");
            let family = families.keys().rfind(|family| line.starts_with(**family)).unwrap();
            labels.entry(family).or_default().extend(names);
        }
    }
    let row = |(family, [kind, help]): (&&str, &[&str; 2])| {
        let suffix = match *kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let names = labels.get(*family).into_iter().flatten().map(|name| format!("`{name}`"));
        format!("| `{family}{suffix}` | {kind} | {} | {help} |\n", names.collect::<Vec<_>>().join(", "))
    };
    families.iter().map(row).collect()
}

/// Compares the page with the metrics; writes it with `UPDATE_DOCS=1`.
#[tokio::test]
async fn the_metrics_page_has_every_metric_and_no_other() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("web.json"), WEB).unwrap();
    let config = directory.path().join("informerd.yaml");
    fs::write(&config, "{ resources: { pods: { verify_interval: 1h, source: { files: { path: ., kind: Pod } } } } }")
        .unwrap();
    let server = Process::start(&["--config", config.to_str().unwrap()], None);
    let expected = rows(&server.metrics().await.0);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let page = fs::read_to_string(&path).unwrap();
    let head = "\n| metric | kind | labels | meaning |\n|---|---|---|---|\n";
    let (before, found) = page.split_once(head).expect("the head of the table");
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, format!("{before}{head}{expected}")).unwrap();
    } else {
        assert_eq!(found, expected, "docs/metrics.md is not as the code: run with UPDATE_DOCS=1");
    }
}

#[tokio::test]
async fn the_state_of_the_informers_is_a_json_document() {
    let directory = TempDir::new().unwrap();
    let process = serve(directory.path());
    let _watch = watch(&process, watch_pods()).await;
    let (head, body) = ask(&process, "GET /debug/informers HTTP/1.0\r\n\r\n").await;
    assert!(head.contains("content-type: application/json"), "{head}");
    let document: Value = serde_json::from_str(&body).unwrap();
    let pods = &document["informers"][0];
    assert_eq!((&pods["name"], &pods["state"], &pods["source"]), (&"pods".into(), &"SYNCED".into(), &"files".into()));
    assert_eq!((&pods["objects"], &pods["watches"], &pods["eventsSent"]), (&1.into(), &1.into(), &1.into()));
    assert_eq!((&document["watchers"], &document["connections"]), (&1.into(), &1.into()));
    assert!(!body.contains("shop"), "no object: {body}");
    let (head, _) = ask(&process, "PUT /debug/informers HTTP/1.0\r\nContent-Length: 0\r\n\r\n").await;
    assert!(head.contains(" 405 ") && head.contains("allow: GET,HEAD\r\n"), "{head}");
}

/// Its cost does not depend on how many watches and changes there are, or how large the bodies.
#[tokio::test]
async fn the_answers_for_the_page_are_bounded() {
    let mut sandbox = Sandbox::start(Vec::new()).await;
    let mut client = sandbox.in_process();
    let mut watches = Vec::new();
    for _ in 0..210 {
        watches.push(client.watch(watch_pods()).await.unwrap().into_inner());
    }
    let shown = sandbox.state.debug_watches("");
    assert_eq!((&shown["open"], shown["watches"].as_array().unwrap().len()), (&210.into(), 200));
    drop(watches);
    let is_last = |shown: &Value| shown["open"] == 0;
    let ended = until(async || sandbox.state.debug_watches(""), is_last).await;
    assert_eq!(ended["ended"].as_array().unwrap().len(), 50);

    for number in 0..120 {
        sandbox.put("shop", &format!("web-{}", number % 2), "").await;
    }
    let large = "x".repeat(300_000);
    let mut last = sandbox.put("shop", "large", "").await;
    for _ in 0..3 {
        last = sandbox.put("shop", "large", &format!(r#""nodeName":"{large}""#)).await;
    }
    sandbox.reached(last.version()).await;
    let mut shown = ShownChanges { resource: "pods".to_owned(), ..ShownChanges::default() };
    let changes = sandbox.state.debug_changes(&shown, true).unwrap();
    assert_eq!((changes["changes"].as_array().unwrap().len(), &changes["gap"]), (100, &false.into()));
    shown.object = Some(("shop".to_owned(), "large".to_owned()));
    let changes = sandbox.state.debug_changes(&shown, true).unwrap();
    let changes = changes["changes"].as_array().unwrap();
    let has = |state: &str| changes.iter().map(|change| change[state].is_object()).collect::<Vec<_>>();
    // Three bodies of 300 kB fit into 1 MiB, the last ones, and small ones beside them.
    assert_eq!((has("old"), has("new")), (vec![true, true, true, false], vec![true, false, false, true]));
}

/// The page requests changes from where its last answer ended.
#[tokio::test]
async fn the_page_has_the_last_changes_and_bodies_only_where_they_are_shown() {
    let pod = |name: &str, n: u32| {
        format!(
            r#"{{"kind":"Pod","metadata":{{"namespace":"shop","name":"{name}","labels":{{"app":"{name}"}}}},"n":{n}}}"#
        )
    };
    for bodies in [false, true] {
        let directory = TempDir::new().unwrap();
        let pods = directory.path().join("pods");
        fs::create_dir(&pods).unwrap();
        fs::write(pods.join("web.json"), pod("web", 0)).unwrap();
        fs::write(pods.join("db.json"), pod("db", 0)).unwrap();
        let config = directory.path().join("informerd.yaml");
        let yaml = format!(
            "{{ admin: {{ bodies: {bodies} }}, resources: {{ pods: {{ source: {{ files: {{ path: pods, kind: Pod }} }} }} }} }}"
        );
        fs::write(&config, yaml).unwrap();
        let process = Process::start(&["--config", config.to_str().unwrap()], None);
        let mut follower = watch(&process, watch_pods()).await;
        let json = async |query: String| -> Value {
            let (head, body) =
                ask(&process, &format!("GET /debug/changes?resource=pods{query} HTTP/1.0\r\n\r\n")).await;
            assert!(head.contains(" 200 ") && head.contains("application/json"), "{query}: {head}");
            serde_json::from_str(&body).unwrap()
        };
        let first = json(String::new()).await;
        assert_eq!((&first["changes"], &first["gap"]), (&Value::Array(Vec::new()), &false.into()));
        let mut versions = Vec::new();
        for (name, n) in [("web", 1), ("db", 1), ("web", 2)] {
            fs::write(pods.join(format!("{name}.json")), pod(name, n)).unwrap();
            versions.push(next(&mut follower).await.resource_version);
        }
        fs::remove_file(pods.join("web.json")).unwrap();
        versions.push(next(&mut follower).await.resource_version);

        let after = |answer: &Value| format!("&history={}&offset={}", answer["history"], answer["offset"]);
        let changes = json(after(&first)).await;
        let of = |changes: &Value, field: &str| -> Vec<String> {
            let changes = changes["changes"].as_array().unwrap();
            changes.iter().map(|change| change[field].as_str().unwrap().to_owned()).collect()
        };
        versions.reverse();
        assert_eq!(of(&changes, "resourceVersion"), versions, "the newest comes first");
        assert_eq!(of(&changes, "name"), ["web", "web", "db", "web"]);
        assert_eq!(of(&changes, "type"), ["DELETED", "MODIFIED", "MODIFIED", "MODIFIED"]);
        assert!(!changes.to_string().contains("\"new\""), "bodies are those of one object: {changes}");
        assert_eq!(json(after(&changes)).await["changes"], Value::Array(Vec::new()));
        assert_eq!(of(&json("&labels=app%3Ddb".to_owned()).await, "name"), ["db"]);

        let web = json("&namespace=shop&name=web".to_owned()).await;
        assert_eq!((web["changes"].as_array().unwrap().len(), &web["bodies"]), (3, &bodies.into()));
        let n = |of: &Value| of.get("n").and_then(Value::as_u64);
        let shown = web["changes"].as_array().unwrap().iter().map(|change| (n(&change["old"]), n(&change["new"])));
        let expected = [(Some(2), None), (Some(1), Some(2)), (Some(0), Some(1))];
        let expected = expected.map(|states| if bodies { states } else { (None, None) });
        assert_eq!(shown.collect::<Vec<_>>(), expected, "{web}");
        for query in ["resource=other", "resource=pods&labels=!!", ""] {
            let (head, _) = ask(&process, &format!("GET /debug/changes?{query} HTTP/1.0\r\n\r\n")).await;
            assert!(head.contains(" 400 "), "{query}: {head}");
        }
    }
}

#[tokio::test]
async fn the_page_has_the_watches_that_are_furthest_behind_and_why_they_have_an_object() {
    let directory = TempDir::new().unwrap();
    let process = serve(directory.path());
    let (head, body) = ask(&process, "GET / HTTP/1.0\r\n\r\n").await;
    assert!(
        head.contains("content-type: text/html") && head.contains("default-src 'none'; connect-src 'self'"),
        "{head}"
    );
    assert!(head.contains("x-content-type-options: nosniff"), "{head}");
    assert!(body.contains("<title>informerd</title>"));
    let elsewhere: Vec<_> = body.match_indices("://").map(|(at, _)| &body[at - 4..at + 13]).collect();
    assert_eq!(elsewhere, ["http://www.w3.org"], "the namespace of SVG, which is no address");
    let mut behind = watch(&process, pb::WatchRequest { label_selector: "a!=b".to_owned(), ..watch_pods() }).await;
    let others = [watch(&process, watch_pods()).await, watch(&process, watch_pods()).await];
    let json = async |path: &str| -> Value {
        let (head, body) = ask(&process, &format!("GET {path} HTTP/1.0\r\n\r\n")).await;
        assert!(head.contains(" 200 ") && head.contains("application/json"), "{path}: {head}");
        serde_json::from_str(&body).unwrap()
    };
    let watches = json("/debug/watches?resource=pods").await;
    assert_eq!((&watches["open"], &watches["ended"]), (&3.into(), &Value::Array(Vec::new())));
    let first = &watches["watches"][0];
    assert_eq!(
        (&first["id"], &first["selection"]),
        (&1.into(), &"labels=a!=b".into()),
        "equal lags are in the order of ids"
    );
    assert_eq!(json("/debug/watches?resource=other").await["open"], 0);

    let explained = json("/debug/explain?id=1&namespace=shop&name=web").await;
    assert_eq!((&explained["found"], &explained["selected"]), (&true.into(), &true.into()), "{explained}");
    assert_eq!(explained["terms"].as_array().unwrap().last().unwrap()["result"], "MATCH", "{explained}");
    let explained = json("/debug/explain?id=1&namespace=shop&name=none").await;
    assert_eq!((&explained["found"], &explained["selected"]), (&false.into(), &false.into()));
    for query in ["id=9&name=web", "id=x&name=web", "id=1&name=", ""] {
        let (head, _) = ask(&process, &format!("GET /debug/explain?{query} HTTP/1.0\r\n\r\n")).await;
        assert!(head.contains(" 404 "), "{query}: {head}");
    }

    let request = pb::WatchRequest { field_selector: "n=0".to_owned(), ..watch_pods() };
    let of_body = watch(&process, request).await;
    let explained = json("/debug/explain?id=4&namespace=shop&name=web").await;
    assert_eq!((&explained["known"], &explained["selected"]), (&false.into(), &false.into()), "a term of the body");
    assert_eq!(explained["terms"].as_array().unwrap().last().unwrap()["result"], Value::Null, "{explained}");

    drop(of_body);
    let is_last = |watches: &Value| watches["ended"][0]["id"] == 4;
    until(async || json("/debug/watches").await, is_last).await;
    drop(others);
    let ended = until(async || json("/debug/watches").await, |watches| watches["open"] == 1).await;
    let reasons: Vec<_> = ended["ended"].as_array().unwrap().iter().map(|ended| &ended["endStatus"]).collect();
    assert_eq!(reasons, ["the client cancelled the call or closed its connection"; 3]);
    assert_eq!(ended["ended"][2]["id"], 4, "the newest come first");
    assert!(json("/debug/watches?resource=other").await["ended"].as_array().unwrap().is_empty());
    fs::write(directory.path().join("web.json"), WEB.replace("\"n\":0", "\"n\":1")).unwrap();
    assert!(next(&mut behind).await.object.is_some());
}

#[tokio::test]
async fn the_filter_of_the_log_changes_while_the_server_runs() {
    let directory = TempDir::new().unwrap();
    let process = serve(directory.path());
    let answer = ask(&process, "GET /loglevel HTTP/1.0\r\n\r\n").await;
    assert!(answer.0.contains(" 200 ") && answer.1 == "info\n", "{answer:?}");
    drop(watch(&process, watch_pods()).await);
    assert!(!process.log().contains("watch joined"), "{}", process.log());
    let answer = put_log_filter(&process, "informerd::grpc=debug,warn\n").await;
    assert!(answer.0.contains(" 200 ") && answer.1 == "informerd::grpc=debug,warn\n", "{answer:?}");
    drop(watch(&process, watch_pods()).await);
    let is_logged = |log: &String| {
        // The watch before may end after the change of the filter, and has no span.
        let parts = ["watch ended", "CANCELLED", "call{", "informerd.v1.InformerService/Watch"];
        log.lines().any(|line| parts.iter().all(|part| line.contains(part)))
    };
    let log = until(async || process.log(), is_logged).await;
    assert!(log.contains("log filter changed") && log.contains("watch joined"), "{log}");
    let (head, body) = put_log_filter(&process, "informerd=loud").await;
    assert!(head.contains(" 400 ") && body.starts_with("invalid log filter \"informerd=loud\": "), "{head}\n{body}");
    assert_eq!(body.trim_end().lines().count(), 1, "{body}");
    let (head, _) = put_log_filter(&process, &"x".repeat(5000)).await;
    assert!(head.contains(" 413 "), "{head}");
    let (_, body) = ask(&process, "GET /loglevel HTTP/1.0\r\n\r\n").await;
    assert_eq!(body, "informerd::grpc=debug,warn\n", "unchanged");
    let (head, _) = ask(&process, "POST /loglevel HTTP/1.0\r\nContent-Length: 0\r\n\r\n").await;
    assert!(head.contains(" 405 ") && head.contains("allow: GET,HEAD,PUT\r\n"), "{head}");
}

/// A page in a browser on this machine can have its own name resolve to it (DNS rebinding).
#[tokio::test]
async fn the_admin_port_is_not_served_on_this_machine_under_the_name_of_another() {
    let directory = TempDir::new().unwrap();
    let process = serve(directory.path());
    let under = async |host: &str, line: &str| {
        let (head, body) =
            ask(&process, &format!("{line} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\n\r\noff")).await;
        (head.split(' ').nth(1).unwrap().to_owned(), body)
    };
    for line in ["GET /metrics", "PUT /loglevel", "GET /debug/informers", "GET /"] {
        let (status, body) = under("evil.example", line).await;
        assert_eq!(status, "421", "{line}");
        assert_eq!(
            body,
            "host \"evil.example\" is not a name of this server: use its address, or add the name to admin.hosts\n"
        );
    }
    assert_eq!(process.refused(["admin_host"], 4).await, [4]);
    for (host, line) in [
        ("evil.example", "GET /livez"),
        ("evil.example", "GET /readyz"),
        ("localhost:1234", "GET /metrics"),
        ("[::1]", "GET /metrics"),
    ] {
        assert_eq!(under(host, line).await.0, "200", "{host} {line}");
    }
    assert_eq!(ask(&process, "GET /loglevel HTTP/1.0\r\n\r\n").await.1, "info\n", "unchanged");
}

#[tokio::test]
async fn failed_handshakes_and_the_expiry_of_the_certificate_are_metrics() {
    let directory = TempDir::new().unwrap();
    let (cert, key) = Authority::new().sign(&["localhost"]);
    for (name, bytes) in [("tls.crt", &cert[..]), ("tls.key", &key), ("informerd.yaml", CONFIG.as_bytes())] {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    fs::create_dir(directory.path().join("pods")).unwrap();
    let process = Process::start(&["--config", directory.path().join("informerd.yaml").to_str().unwrap()], None);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let metrics = process.metrics().await;
    assert!(metrics.sum("informerd_tls_cert_expiry_timestamp_seconds") > now, "{}", metrics.0);
    assert!(metrics.0.contains("informerd_tls_handshake_failures_total 0"), "{}", metrics.0);
    let mut plain = TcpStream::connect(process.grpc).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    until(
        async || process.metrics().await,
        |metrics| metrics.sum("informerd_tls_handshake_failures_total") as u64 == 1,
    )
    .await;
}

const CONFIG: &str =
    "{ tls: { cert: tls.crt, key: tls.key }, resources: { pods: { source: { files: { path: pods } } } } }";
