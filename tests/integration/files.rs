//! The whole server over a directory of manifests: edits reach the watches, and a broken file affects no other.

use std::{fs, path::Path, process::Command};

use informerd::{
    app::App,
    config::{Config, ServeFlags},
    proto::pb::{self, informer_service_client::InformerServiceClient},
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tonic::{Streaming, transport::Channel};

use crate::{
    sandbox::{DEADLINE, end, next, reason, watch_pods, words},
    served::Served,
};

const WEB: &str = "{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: web}, spec: {nodeName: n1}}\n";

/// Starts a server over a directory with these files.
async fn serve(files: &[(&str, &str)]) -> Served {
    let directory = TempDir::new().unwrap();
    for (name, text) in files {
        write(&directory.path().join(name), text);
    }
    let files = vec![format!("pods={}@Pod", directory.path().display())];
    Served::start(directory, ServeFlags { files, ..ServeFlags::default() }).await
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Opens a watch, and reads its initial events.
async fn watch(client: &mut InformerServiceClient<Channel>) -> Streaming<pb::WatchResponse> {
    let mut watch = client.watch(watch_pods()).await.unwrap().into_inner();
    while !next(&mut watch).await.bookmark.is_some_and(|bookmark| bookmark.initial_events_end) {}
    watch
}

/// Returns the next event, and skips bookmarks, which a slow source may let through.
async fn next_event(watch: &mut Streaming<pb::WatchResponse>) -> pb::WatchResponse {
    loop {
        let response = next(watch).await;
        if response.object.is_some() {
            return response;
        }
    }
}

fn kind_and_name(response: &pb::WatchResponse) -> String {
    words(response).split(" @").next().unwrap().to_owned()
}

#[tokio::test]
async fn files_that_are_written_changed_and_deleted_are_watched() {
    let served = serve(&[("web.yaml", WEB)]).await;
    let mut client = served.client().await;
    let mut watch = watch(&mut client).await;
    // As editors do: another file, renamed over the first.
    write(&served.path(".web.yaml.swp"), &WEB.replace("n1", "n2"));
    fs::rename(served.path(".web.yaml.swp"), served.path("web.yaml")).unwrap();
    assert_eq!(kind_and_name(&next_event(&mut watch).await), "MODIFIED web");
    write(&served.path("more/api.json"), r#"{"kind":"Pod","metadata":{"name":"api"}}"#);
    assert_eq!(kind_and_name(&next_event(&mut watch).await), "ADDED api");
    write(&served.path("more/service.yaml"), "{kind: Service, metadata: {name: no-pod}}");
    fs::remove_file(served.path("web.yaml")).unwrap();
    let deleted = next_event(&mut watch).await;
    assert_eq!(kind_and_name(&deleted), "DELETED web");
    let body = crate::sandbox::raw(deleted.object.as_ref().unwrap());
    assert!(String::from_utf8_lossy(&body).contains("n2"), "with the last state");
    served.stop().await;
}

/// Also of a stream; a resource without the key keeps everything.
#[tokio::test]
async fn dropped_fields_are_removed_from_files_and_streams_and_nothing_else_changes() {
    let directory = TempDir::new().unwrap();
    let web = r#"{"kind":"Pod","metadata":{"name":"web","managedFields":[1]},"spec": {"n":1.50},"status":{"a":1}}"#;
    write(&directory.path().join("pods/web.json"), web);
    write(&directory.path().join("events.jsonl"), &format!(r#"{{"type":"ADDED","object":{web}}}"#));
    let config = "resources: { files: { drop_fields: [status], source: { files: { path: pods } } }, \
                  stream: { drop_fields: [spec.n, status], source: { stream: { path: events.jsonl } } }, \
                  whole: { source: { files: { path: pods } } } }";
    let file = directory.path().join("informerd.yaml");
    write(&file, config);
    let served = Served::start(directory, ServeFlags { config: Some(file), ..ServeFlags::default() }).await;
    let mut client = served.client().await;
    for (resource, expected) in [
        ("whole", web.to_owned()),
        ("files", web.replace(r#","status":{"a":1}"#, "")),
        ("stream", web.replace(r#","status":{"a":1}"#, "").replace(r#""n":1.50"#, "")),
    ] {
        let request = pb::WatchRequest { resource: resource.to_owned(), ..watch_pods() };
        let mut watch = client.watch(request).await.unwrap().into_inner();
        let added = next_event(&mut watch).await;
        let body = crate::sandbox::raw(added.object.as_ref().unwrap());
        assert_eq!(String::from_utf8_lossy(&body), expected, "{resource}");
    }
    served.stop().await;
}

#[tokio::test]
async fn a_file_that_cannot_be_read_keeps_its_objects_and_is_reported_until_it_is_mended() {
    let served = serve(&[("web.yaml", WEB), ("api.yaml", &WEB.replace("web", "api"))]).await;
    let mut client = served.client().await;
    let mut watch = watch(&mut client).await;
    let level = |(last, this): (char, char)| format!("{this}: &{this} [{}]", vec![format!("*{last}"); 9].join(","));
    let levels: Vec<String> = ('a'..='j').zip('b'..='k').map(level).collect();
    let bombs = format!("a: &a [x,x,x,x,x,x,x,x,x]\n{}\n", levels.join("\n"));
    for (what, bytes) in [
        ("half written", b"{apiVersion: v1, kind: Pod, metadata: {name: we".to_vec()),
        ("binary", (0..=255).cycle().take(4096).collect()),
        ("alias bomb", bombs.into_bytes()),
    ] {
        fs::write(served.path("web.yaml"), &bytes).unwrap();
        let resource = served.until(|resource| resource.last_error.contains("web.yaml")).await;
        assert_eq!(resource.objects, 2, "{what}: {}", resource.last_error);
        assert!(!resource.last_error.contains('\n'), "{what}: {}", resource.last_error);
        let [problem] = &*resource.problems else { panic!("{what}: {:?}", resource.problems) };
        assert_eq!((&*problem.reason, &*problem.subject), ("FILE_INVALID", "web.yaml"));
        assert_eq!(resource.last_error, format!("web.yaml: {}", problem.message));
        assert!(problem.since.is_some() && resource.version_format() == pb::VersionFormat::Lineage, "{what}");
        write(&served.path("web.yaml"), WEB);
        served.until(|resource| resource.last_error.is_empty()).await;
    }
    write(&served.path("web.yaml"), &WEB.replace("n1", "n3"));
    assert_eq!(kind_and_name(&next_event(&mut watch).await), "MODIFIED web", "and nothing before it");
    served.stop().await;
}

/// Uses a sparse file, which needs no disk space.
#[tokio::test]
async fn a_file_of_100_mib_is_rejected_and_affects_nothing_else() {
    let served = serve(&[("web.yaml", WEB)]).await;
    served.until(|resource| resource.objects == 1).await;
    let huge = fs::File::create(served.path("huge.json")).unwrap();
    huge.set_len(100 << 20).unwrap();
    let resource = served.until(|resource| resource.last_error.contains("huge.json")).await;
    assert_eq!(resource.objects, 1);
    served.stop().await;
}

#[tokio::test]
async fn a_directory_that_disappears_deletes_nothing_and_is_served_again() {
    let served = serve(&[("web.yaml", WEB)]).await;
    let mut client = served.client().await;
    let mut watch = watch(&mut client).await;
    let aside = served.path("").with_extension("aside");
    fs::rename(served.path(""), &aside).unwrap();
    let resource = served.until(|resource| !resource.last_error.is_empty()).await;
    assert_eq!(resource.objects, 1, "{}", resource.last_error);
    fs::rename(&aside, served.path("")).unwrap();
    served.until(|resource| resource.last_error.is_empty()).await;
    write(&served.path("web.yaml"), &WEB.replace("n1", "n2"));
    assert_eq!(kind_and_name(&next_event(&mut watch).await), "MODIFIED web", "and nothing before it");
    served.stop().await;
}

/// Checks that the empty directory of an unmounted volume deletes nothing, and that clients receive the difference to the next
/// volume once it is mounted.
#[tokio::test]
async fn a_volume_that_is_unmounted_is_stale_until_the_next_one_is_mounted() {
    let directory = TempDir::new().unwrap();
    let volume = directory.path().join("volume");
    fs::create_dir(&volume).unwrap();
    let mount = || Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&volume).status();
    let unmount = || assert!(Command::new("umount").arg("-l").arg(&volume).status().unwrap().success());
    if !mount().is_ok_and(|status| status.success()) {
        eprintln!("not tested: mounting is not allowed here");
        return;
    }
    write(&volume.join("web.yaml"), WEB);
    write(&volume.join("api.yaml"), &WEB.replace("web", "api"));
    let config = directory.path().join("config.yaml");
    let pods = "{ source: { files: { path: volume, rescan: 100ms } } }";
    write(&config, &format!("{{ stale_after: 500ms, resources: {{ pods: {pods} }} }}"));
    let served = Served::start(directory, ServeFlags { config: Some(config), ..ServeFlags::default() }).await;
    let mut client = served.client().await;
    let mut watch = watch(&mut client).await;
    unmount();
    let resource = served.until(|resource| resource.state() == pb::SyncState::Stale).await;
    assert!(resource.objects == 2 && resource.last_error.contains("mount it"), "{resource:?}");
    assert!(mount().unwrap().success());
    write(&volume.join("web.yaml"), &WEB.replace("n1", "n2"));
    let mut changes = [next_event(&mut watch).await, next_event(&mut watch).await].map(|event| kind_and_name(&event));
    changes.sort();
    assert_eq!(changes, ["DELETED api", "MODIFIED web"]);
    served.until(|resource| resource.state() == pb::SyncState::Synced && resource.last_error.is_empty()).await;
    write(&volume.join("more.yaml"), &WEB.replace("web", "more"));
    assert_eq!(kind_and_name(&next_event(&mut watch).await), "ADDED more", "and nothing before it");
    served.stop().await;
    unmount();
}

#[tokio::test]
async fn probes_and_metrics_report_the_state() {
    let served = serve(&[("web.yaml", WEB)]).await;
    served.until(|resource| resource.objects == 1).await;
    assert_eq!(served.get("/livez").await, (200, "ok\n".to_owned()));
    assert_eq!(served.get("/readyz").await, (200, "ok\n".to_owned()));
    let (code, page) = served.get("/").await;
    assert_eq!(code, 200);
    let paths: Vec<_> = page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(paths.len(), 5, "{page}");
    for path in paths {
        assert_ne!(served.get(path).await.0, 404, "{path}");
    }
    assert_eq!(served.get("/none").await, (404, "not found; / has links to what there is\n".to_owned()));
    let mut client = served.client().await;
    let mut watch = watch(&mut client).await;
    write(&served.path("web.yaml"), &WEB.replace("n1", "n2"));
    next(&mut watch).await;
    let (code, metrics) = served.get("/metrics").await;
    assert_eq!(code, 200);
    for line in [
        r#"informerd_cache_objects{resource="pods"} 1.0"#,
        r#"informerd_cache_synced{resource="pods"} 1.0"#,
        r#"informerd_watchers{resource="pods"} 1.0"#,
        r#"informerd_watch_events_sent_total{resource="pods"} 2"#,
        r#"informerd_expression_errors_total{resource="pods"} 0"#,
        r#"informerd_waiting_bytes{owner="sending"} 0.0"#,
        r#"informerd_waiting_bytes{owner="made"} 0.0"#,
        r#"informerd_waiting_bytes{owner="kept"} 0.0"#,
        r#"informerd_streams_ended_total{reason="memory"} 0"#,
        r#"informerd_reflector_lists_total{resource="pods"} 1"#,
        r#"informerd_reflector_watches_total{resource="pods"} 1"#,
        r#"grpc_server_started_total{grpc_service="informerd.v1.InformerService",grpc_method="Watch",grpc_type="server_stream"} 1"#,
        r#"grpc_server_msg_received_total{grpc_service="informerd.v1.InformerService",grpc_method="Watch",grpc_type="server_stream"} 1"#,
        // The object, the bookmark after it, and its change.
        r#"grpc_server_msg_sent_total{grpc_service="informerd.v1.InformerService",grpc_method="Watch",grpc_type="server_stream"} 3"#,
        r#"grpc_server_msg_sent_total{grpc_service="informerd.v1.AdminService",grpc_method="ListWatchers",grpc_type="unary"} 0"#,
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    let handled =
        r#"grpc_server_handled_total{grpc_service="informerd.v1.InformerService",grpc_method="ListResources","#;
    let handled = format!(r#"{handled}grpc_type="unary",grpc_code="OK"}} "#);
    assert!(metrics.lines().any(|line| line.strip_prefix(&handled).is_some_and(|count| count != "0")), "{metrics}");
    let never = r#"grpc_service="informerd.v1.AdminService",grpc_method="ListWatchers",grpc_type="unary",grpc_code="Canceled"} 0"#;
    assert!(metrics.contains(never), "registered at the start: {metrics}");
    served.stop().await;
}

/// Checks the overall health and that of each resource, as Kubernetes' gRPC probes read it.
#[tokio::test]
async fn health_is_reported_for_the_server_and_each_resource() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let served = serve(&[("web.yaml", WEB)]).await;
    let channel = tonic::transport::Endpoint::new(served.address.clone()).unwrap().connect().await.unwrap();
    let mut health = HealthClient::new(channel);
    for service in ["", "resource/pods"] {
        let serving = async {
            loop {
                let request = HealthCheckRequest { service: service.to_owned() };
                // 1 is SERVING.
                if health.check(request).await.unwrap().into_inner().status == 1 {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, serving).await.expect("it is serving in time");
    }
    let unknown = HealthCheckRequest { service: "resource/none".to_owned() };
    assert_eq!(health.check(unknown).await.unwrap_err().code(), tonic::Code::NotFound);
    served.stop().await;
}

#[tokio::test]
async fn shutdown_notifies_open_watches_and_waits_for_nothing_else() {
    let served = serve(&[("web.yaml", WEB)]).await;
    let mut client = served.client().await;
    let mut watch = watch(&mut client).await;
    served.shutdown.cancel();
    assert!(next(&mut watch).await.bookmark.unwrap().draining);
    let status = end(&mut watch).await;
    assert_eq!((status.code(), reason(&status).as_str()), (tonic::Code::Unavailable, "DRAINING"));
    served.stop().await;
}

#[tokio::test]
async fn a_unix_socket_is_served_and_removed() {
    let directory = TempDir::new().unwrap();
    write(&directory.path().join("web.yaml"), WEB);
    let socket = directory.path().join("informerd.sock");
    // A socket as a killed server leaves it.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let files = vec![format!("pods={}", directory.path().display())];
    let flags = ServeFlags { files, ..ServeFlags::default() };
    let flags = flags.with("listen", format!("unix:{}", socket.display())).with("admin.listen", "none");
    let app = App::start(Config::load(&flags).unwrap()).await.unwrap();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(app.run(shutdown.clone().cancelled_owned()));
    let mut client = InformerServiceClient::connect(format!("unix:{}", socket.display())).await.unwrap();
    let mut watch = watch(&mut client).await;
    shutdown.cancel();
    assert!(next(&mut watch).await.bookmark.unwrap().draining);
    running.await.unwrap().unwrap();
    assert!(!socket.exists(), "removed");
}
