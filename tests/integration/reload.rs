//! Reload of the configuration while the server runs.

use std::{
    collections::BTreeSet,
    fs,
    future::pending,
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use informerd::{
    app::{App, Reloader},
    client::{Client, ListResult, Query, ServerAddress},
    config::ServeFlags,
    grpc::ResourceEnd,
    proto::pb::{self, admin_service_client::AdminServiceClient},
};
use rustix::{
    fs::{CWD, OFlags, mkfifoat},
    process::{Pid, Signal, kill_process},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Request, Status, Streaming, transport::Channel};

use crate::{
    authentication::line,
    process::Process,
    sandbox::{DEADLINE, Sandbox, next, pod, reason, watch_pods, words},
};

/// Server whose configuration is a file.
struct Reloading {
    directory: TempDir,
    reloader: Reloader,
    address: ServerAddress,
    /// Address of the admin port, if it is configured.
    admin: Option<SocketAddr>,
    _running: AbortOnDropHandle<()>,
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

// === impl Reloading ===

impl Reloading {
    /// Starts a server of the resources `kept`, `replaced` and `removed`, each of an object in a directory of its name, and of
    /// further keys.
    async fn start(keys: &str, files: &[(&str, &str)]) -> Self {
        Self::start_with(&text(keys, "kept: kept, replaced: replaced, removed: removed"), files).await
    }

    /// Starts a server of this configuration.
    async fn start_with(configuration: &str, files: &[(&str, &str)]) -> Self {
        let directory = TempDir::new().unwrap();
        for name in ["kept", "replaced", "removed", "added", "other"] {
            let object = format!(r#"{{"kind":"Pod","metadata":{{"namespace":"x","name":"of-{name}"}}}}"#);
            write(&directory.path().join(name).join("object.json"), &object);
        }
        for (name, text) in files {
            write(&directory.path().join(name), text);
        }
        let config = directory.path().join("informerd.yaml");
        write(&config, configuration);
        let flags = ServeFlags { config: Some(config), ..ServeFlags::default() };
        let app = App::builder_of(flags).unwrap().start().await.unwrap();
        let (address, reloader) = (app.grpc_address().to_string().parse().unwrap(), app.reloader().unwrap());
        let admin = app.admin_address();
        let running = tokio::spawn(async { app.run(pending()).await.unwrap() });
        Self { directory, reloader, address, admin, _running: AbortOnDropHandle::new(running) }
    }

    /// Reloads these keys and resources, each with its directory.
    fn reload(&self, keys: &str, resources: &str) {
        self.reload_as(&text(keys, resources));
    }

    /// Reloads this configuration.
    fn reload_as(&self, configuration: &str) {
        write(&self.directory.path().join("informerd.yaml"), configuration);
        self.reloader.reload();
    }

    /// Returns the status code of the readiness probe.
    async fn readiness(&self) -> String {
        let mut stream = TcpStream::connect(self.admin.unwrap()).await.unwrap();
        stream.write_all(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    }

    async fn client(&self) -> Client {
        Client::connect(&self.address).await.unwrap()
    }

    async fn raw_client(&self) -> pb::informer_service_client::InformerServiceClient<Channel> {
        pb::informer_service_client::InformerServiceClient::connect(format!("http://{}", self.address)).await.unwrap()
    }

    async fn watch(&self, resource: &str) -> Streaming<pb::WatchResponse> {
        let request = pb::WatchRequest { resource: resource.to_owned(), ..watch_pods() };
        let mut stream = self.raw_client().await.watch(request).await.unwrap().into_inner();
        assert_eq!(words(&next(&mut stream).await), format!("ADDED INITIAL of-{resource}"));
        assert!(next(&mut stream).await.bookmark.unwrap().initial_events_end);
        stream
    }

    /// Returns the names of the resources that are served.
    async fn served(&self) -> Vec<String> {
        self.client().await.resources().await.unwrap().into_iter().map(|resource| resource.name).collect()
    }

    /// Waits until a condition of the server's description holds, and returns that.
    async fn until(&self, is_met: impl Fn(&pb::ListResourcesResponse) -> bool) -> pb::ListResourcesResponse {
        let client = self.client().await;
        let met = async {
            loop {
                let answer = client.list_resources().await.unwrap();
                if is_met(&answer) {
                    break answer;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, met).await.expect("reloaded in time")
    }

    /// Reloads a configuration that cannot be used, and returns the reason.
    async fn rejected(&self, keys: &str, resources: &str) -> String {
        self.reload(keys, resources);
        let is_rejected = |answer: &pb::ListResourcesResponse| !answer.server.as_ref().unwrap().config_error.is_empty();
        let error = self.until(is_rejected).await.server.unwrap().config_error;
        assert_eq!(self.served().await, ["kept", "removed", "replaced"]);
        self.reload("", "kept: kept, replaced: replaced, removed: removed");
        self.until(|answer| !is_rejected(answer)).await;
        error
    }
}

/// Returns a configuration of files.
fn text(keys: &str, resources: &str) -> String {
    let resource = |resource: &str| {
        let (name, path) = resource.trim().split_once(": ").unwrap();
        format!("{name}: {{ source: {{ files: {{ path: {path}, rescan: 100ms }} }} }}")
    };
    let resources: Vec<String> = resources.split(',').map(resource).collect();
    format!("{{ listen: '127.0.0.1:0', admin: {{ listen: none }}, {keys} resources: {{ {} }} }}", resources.join(", "))
}

/// Reads the last message and the status of a stream.
async fn ended(mut stream: Streaming<pb::WatchResponse>) -> Status {
    loop {
        match tokio::time::timeout(DEADLINE, stream.message()).await.expect("ended in time") {
            Ok(Some(_)) => {}
            Ok(None) => panic!("ended with OK"),
            Err(status) => break status,
        }
    }
}

#[tokio::test]
async fn resources_are_added_replaced_and_removed_and_the_watches_of_others_stay() {
    let server = Reloading::start("", &[]).await;
    let (mut kept, replaced) = (server.watch("kept").await, server.watch("replaced").await);
    let removed = server.watch("removed").await;
    server.reload("", "kept: kept, replaced: other, added: added");
    let replaced = ended(replaced).await;
    assert_eq!((replaced.code(), &*reason(&replaced)), (Code::Unavailable, "RESOURCE_REPLACED"), "{replaced:?}");
    let removed = ended(removed).await;
    assert_eq!((removed.code(), &*reason(&removed)), (Code::NotFound, "RESOURCE_REMOVED"), "{removed:?}");

    let client = server.client().await;
    let has_added =
        |answer: &pb::ListResourcesResponse| answer.resources.iter().any(|resource| resource.name == "added");
    server.until(has_added).await;
    assert_eq!(server.served().await, ["added", "kept", "replaced"]);
    let names = |listed: ListResult| listed.objects.into_iter().map(|object| object.name).collect::<Vec<_>>();
    assert_eq!(names(client.list(&Query::of("added")).await.unwrap()), ["of-added"]);
    assert_eq!(names(client.list(&Query::of("replaced")).await.unwrap()), ["of-other"]);
    assert!(client.list(&Query::of("removed")).await.unwrap_err().to_string().contains("not found"));

    let object = r#"{"kind":"Pod","metadata":{"namespace":"x","name":"later"}}"#;
    write(&server.directory.path().join("kept/later.json"), object);
    let later = words(&next(&mut kept).await);
    assert!(later.starts_with("ADDED later"), "the watch has stayed open: {later}");
}

/// A client finds a resource that is being replaced, a server that was not ready is not, and a right to every resource is not one to
/// none.
#[tokio::test]
async fn while_resources_are_replaced_the_former_ones_stay_in_the_list() {
    const RELOADS: u16 = 100;
    let configuration = |at: u16| {
        let (directory, port) = (if at.is_multiple_of(2) { "replaced" } else { "other" }, 1 + at % 2);
        format!(
            "{{ listen: '127.0.0.1:0', admin: {{ listen: '127.0.0.1:0' }}, authentication: {{ token_file: tokens }}, authorization: {{ rules: \
             [{{ subjects: ['user:ann'], verbs: [list], resources: ['*'], namespaces: ['*'] }}] }}, resources: {{ \
             replaced: {{ source: {{ files: {{ path: {directory}, rescan: 100ms }} }} }}, \
             dead: {{ source: {{ informerd: {{ endpoint: 'http://127.0.0.1:{port}' }} }} }} }} }}"
        )
    };
    let files = [("tokens", &*(line("of-ann", "ann") + &line("of-bob", "bob"))), ("token", "of-ann")];
    let server = Reloading::start_with(&configuration(0), &files).await;
    let address = server.address.with_token_file(server.directory.path().join("token")).unwrap();
    let ann = Client::connect(&address).await.unwrap();
    let channel = Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
    let mut bob = AdminServiceClient::new(channel);
    let mut answers = BTreeSet::new();
    let reloads = async {
        for at in 1..=RELOADS {
            server.reload_as(&configuration(at));
            let expected = if at.is_multiple_of(2) { "of-replaced" } else { "of-other" };
            loop {
                let mut stats = Request::new(pb::GetStatsRequest {});
                stats.metadata_mut().insert("authorization", "Bearer of-bob".parse().unwrap());
                let stats = bob.get_stats(stats).await;
                answers.insert(format!("stats {:?}", stats.map_or_else(|status| status.code(), |_| Code::Ok)));
                answers.insert(format!("ready {}", server.readiness().await));
                match ann.list(&Query::of("replaced")).await {
                    Ok(listed) if listed.objects[0].name == expected => break,
                    Ok(_) => {}
                    Err(error) => {
                        answers.insert(format!("list {:?}", error.code()));
                    }
                }
            }
        }
    };
    tokio::time::timeout(DEADLINE, reloads).await.expect("reloaded in time");
    answers.remove("list Unavailable");
    assert_eq!(answers.into_iter().collect::<Vec<_>>(), ["ready 503", "stats PermissionDenied"]);
}

#[tokio::test]
async fn a_call_that_waits_for_a_resource_ends_when_it_is_removed() {
    let dead = "dead: { source: { informerd: { endpoint: 'http://127.0.0.1:1' } } },";
    let of = |more: &str| {
        format!(
            "{{ listen: '127.0.0.1:0', admin: {{ listen: none }}, resources: {{ {more} \
             kept: {{ source: {{ files: {{ path: kept }} }} }} }} }}"
        )
    };
    let server = Reloading::start("", &[]).await;
    let path = server.directory.path().join("informerd.yaml");
    write(&path, &of(dead));
    server.reloader.reload();
    let is_served = |answer: &pb::ListResourcesResponse| answer.resources.iter().any(|of| of.name == "dead");
    server.until(is_served).await;
    let mut client = server.raw_client().await;
    let request = pb::ListRequest { resource: "dead".to_owned(), ..Default::default() };
    let waiting = AbortOnDropHandle::new(tokio::spawn(async move { client.list(request).await.map(drop) }));
    write(&path, &of(""));
    server.reloader.reload();
    let status = tokio::time::timeout(DEADLINE, waiting).await.unwrap().unwrap().unwrap_err();
    // A call that comes after the removal finds no such resource.
    assert!(["RESOURCE_REMOVED", "RESOURCE_NOT_FOUND"].contains(&&*reason(&status)), "{status:?}");
}

#[tokio::test]
async fn a_configuration_that_cannot_be_used_changes_nothing_and_is_reported() {
    let server = Reloading::start("", &[]).await;
    let mut watches = [server.watch("kept").await, server.watch("replaced").await];
    let resources = "kept: kept, added: added";
    let error = server.rejected("lisen: x,", resources).await;
    assert!(error.ends_with("/informerd.yaml:1: lisen: unknown key; did you mean `listen`?"), "{error}");
    let error = server.rejected("watch: { max_watchers: 7 }, limits: { peer_share: 9 },", resources).await;
    let expected = "`limits.peer_share`, `watch.max_watchers` cannot change while the server runs: restart it, or restore the \
                    former value";
    assert_eq!(error, expected);
    for (name, resources) in
        [("added", "kept: kept, added: nowhere"), ("replaced", "kept: kept, replaced: nowhere, removed: removed")]
    {
        let error = server.rejected("", resources).await;
        assert!(error.starts_with(&format!("resource {name}: ")) && error.contains("nowhere"), "{error}");
    }

    let object = r#"{"kind":"Pod","metadata":{"namespace":"x","name":"later"}}"#;
    for (watch, path) in watches.iter_mut().zip(["kept/later.json", "replaced/later.json"]) {
        write(&server.directory.path().join(path), object);
        let later = words(&next(watch).await);
        assert!(later.starts_with("ADDED later"), "the watch has stayed open: {later}");
    }
}

/// A call may come after a resource has ended, and before the one that replaces it is served.
#[tokio::test]
async fn a_resource_that_has_ended_and_is_still_listed_serves_no_call() {
    let server = Sandbox::start(vec![pod("x", "a", "")]).await;
    server.calls.end(ResourceEnd::Replaced);
    let (mut client, mut admin) = (server.in_process(), AdminServiceClient::new(server.service()));
    let (resource, namespace, name) = ("pods".to_owned(), "x".to_owned(), "a".to_owned());
    let list = pb::ListRequest { resource: resource.clone(), ..Default::default() };
    let watchers = pb::ListWatchersRequest { resource: resource.clone(), ..Default::default() };
    let get = pb::GetRequest { resource, namespace, name, ..Default::default() };
    for answer in [
        client.get(get).await.map(drop),
        client.list(list).await.map(drop),
        client.watch(watch_pods()).await.map(drop),
        admin.list_watchers(watchers).await.map(drop),
    ] {
        let status = answer.unwrap_err();
        assert_eq!((status.code(), &*reason(&status)), (Code::Unavailable, "RESOURCE_REPLACED"), "{status:?}");
    }
}

#[tokio::test]
async fn rules_of_the_configuration_are_reloaded_and_decide_about_open_watches() {
    let keys = |resources: &str| {
        format!(
            "authentication: {{ token_file: tokens }}, authorization: {{ rules: [{{ subjects: ['*'], verbs: ['*'], \
             resources: [{resources}], namespaces: ['*'] }}] }},"
        )
    };
    let resources = "kept: kept, replaced: replaced, removed: removed";
    let files = [("tokens", &*line("secret", "ann")), ("token", "secret")];
    let server = Reloading::start(&keys("kept, replaced"), &files).await;
    let address = server.address.with_token_file(server.directory.path().join("token")).unwrap();
    let client = Client::connect(&address).await.unwrap();
    assert!(client.list(&Query::of("removed")).await.is_err());
    let mut request = tonic::Request::new(pb::WatchRequest { resource: "replaced".to_owned(), ..watch_pods() });
    request.metadata_mut().insert("authorization", "Bearer secret".parse().unwrap());
    let stream = server.raw_client().await.watch(request).await.unwrap().into_inner();
    server.reload(&keys("kept, removed"), resources);
    let status = ended(stream).await;
    assert_eq!((status.code(), &*reason(&status)), (Code::PermissionDenied, "ACCESS_DENIED"), "{status:?}");
    assert!(client.list(&Query::of("removed")).await.is_ok());
}

#[tokio::test]
async fn a_process_reloads_its_configuration_on_sighup() {
    let directory = TempDir::new().unwrap();
    let (config, kept) = (directory.path().join("informerd.yaml"), directory.path().join("kept"));
    fs::create_dir(&kept).unwrap();
    let text = |name: &str| format!("{{ resources: {{ {name}: {{ source: {{ files: {{ path: kept }} }} }} }} }}");
    write(&config, &text("first"));
    let server = Process::start(&["--config", config.to_str().unwrap()], None);
    assert!(server.metrics().await.sum("informerd_config_last_reload_successful") > 0.0);
    for (name, is_good) in [("second", true), ("Third", false), ("fourth", true)] {
        write(&config, &text(name));
        let pid = Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap();
        kill_process(pid, Signal::HUP).unwrap();
        let reloaded = async {
            loop {
                let metrics = server.metrics().await;
                let is_served = metrics.0.contains(&format!("{{resource=\"{name}\"}}"));
                let is_successful = metrics.sum("informerd_config_last_reload_successful") > 0.0;
                if is_successful == is_good && is_served == is_good {
                    break;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, reloaded).await.expect("reloaded in time");
    }
    assert!(server.log().contains("configuration not reloaded, last good one in use"), "{}", server.log());

    let unreachable = "dead: { source: { informerd: { endpoint: 'http://127.0.0.1:1' } } }";
    write(&config, &text("fourth").replace("resources: {", &format!("resources: {{ {unreachable},")));
    kill_process(Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap(), Signal::HUP).unwrap();
    let added = async {
        while !server.metrics().await.0.contains("{resource=\"dead\"}") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, added).await.expect("reloaded in time");
    let ready = server.get("/readyz").await;
    assert!(ready.starts_with("HTTP/1.0 200"), "a resource that is added does not make the server unready: {ready}");
    assert!(server.terminate().await.success());
}

/// A file may never be readable, as one on a network file system whose server is gone.
#[tokio::test]
async fn a_reload_that_cannot_read_a_file_does_not_hold_the_shutdown() {
    let authority = "authentication: { token_file: tokens }, \
                     authorization: { subject_access_review: { kubeconfig: kubeconfig } },";
    let etcd = "{ endpoints: ['http://127.0.0.1:1'], prefix: /x/, username: u, password_file: password }";
    let added = format!(", stuck: {{ source: {{ etcd: {etcd} }} }}");
    for (name, keys, added) in [("password", "", &*added), ("kubeconfig", authority, "")] {
        let directory = TempDir::new().unwrap();
        let path = |name: &str| -> PathBuf { directory.path().join(name) };
        let (config, pipe) = (path("informerd.yaml"), path(name));
        fs::create_dir(path("kept")).unwrap();
        write(&path("tokens"), &line("secret", "ann"));
        write(
            &path("kubeconfig"),
            "{ current-context: c, contexts: [{ name: c, context: { cluster: c, user: u } }], \
             clusters: [{ name: c, cluster: { server: 'http://127.0.0.1:1' } }], users: [{ name: u, user: {} }] }",
        );
        let text = |added: &str| {
            format!("{{ {keys} resources: {{ kept: {{ source: {{ files: {{ path: kept }} }} }}{added} }} }}")
        };
        write(&config, &text(""));
        let server = Process::start(&["--config", config.to_str().unwrap()], None);
        drop(fs::remove_file(&pipe));
        mkfifoat(CWD, &pipe, 0o600.into()).unwrap();
        write(&config, &text(added));
        kill_process(Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap(), Signal::HUP).unwrap();
        // It is opened to write once the server has it open to read, which then waits for the content.
        let held = async {
            loop {
                let opened =
                    fs::OpenOptions::new().write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&pipe);
                match opened {
                    Ok(held) => break held,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        };
        let held = tokio::time::timeout(DEADLINE, held).await.expect("the server reads the file");
        let ended = tokio::time::timeout(DEADLINE, server.terminate()).await;
        drop(held);
        assert!(ended.expect("an end in time").success(), "{name}");
    }
}
