//! `informerd verify`: a server against its own upstream, and against another one.

use std::{fs, time::Duration};

use informerd::config::{Config, ServeFlags};
use serde_json::Value;
use tempfile::TempDir;

use crate::{client_commands::Server, sandbox::DEADLINE, served::Served};

fn manifest(name: &str, data: &str) -> String {
    format!(
        "kind: ConfigMap\napiVersion: v1\nmetadata: {{ namespace: shop, name: {name} }}\ndata: {{ x: \"{data}\" }}\n"
    )
}

/// Writes a configuration that serves a directory as `things`, and a stream as `lines`. Returns its path.
fn config(at: &TempDir, name: &str, path: &str) -> String {
    let text = format!(
        "resources:\n  things:\n    source: {{ files: {{ path: {path} }} }}\n  lines:\n    source: {{ stream: {{ path: {path}/none }} }}\n"
    );
    let file = at.path().join(name);
    fs::write(&file, text).unwrap();
    file.display().to_string()
}

#[test]
fn a_server_is_compared_with_its_upstream_key_by_key() {
    let directory = tempfile::tempdir().unwrap();
    let write = |path: &str, text: String| {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for name in ["body", "extra", "same"] {
        write(&format!("here/{name}.yaml"), manifest(name, "1"));
    }
    for (name, data) in [("body", "2"), ("missing", "1"), ("same", "1")] {
        write(&format!("there/{name}.yaml"), manifest(name, data));
    }
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (here, there) =
        (config(&directory, "here.yaml", &path("here")), config(&directory, "there.yaml", &path("there")));
    let server = Server::start_at("127.0.0.1:0", &["--files", &format!("things={}", path("here"))]);
    let (code, ..) = server.run(&["until", "things", "--for", "type == 'SYNCED'"]);
    assert_eq!(code, 0);

    let (code, out, err) = server.run(&["verify", "things", "--config", &here]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", "# things: 3 objects are those of the upstream\n"));

    let differs = ["verify", "things", "--config", &there, "--settle", "0s"];
    let (code, out, err) = server.run(&[&differs[..], &["-o", "json"]].concat());
    assert_eq!((code, err.as_str()), (1, "error: 3 objects of things are not those of the upstream\n"));
    let found: Value = serde_json::from_str(&out).unwrap();
    let found = found["differences"].as_array().unwrap().iter();
    let found: Vec<_> =
        found.map(|each| (each["name"].as_str().unwrap(), each["difference"].as_str().unwrap())).collect();
    assert_eq!(found, [("body", "body"), ("extra", "not in the upstream"), ("missing", "not served")]);
    // The time limit is for each list: three are compared in this time.
    let (code, out, err) =
        server.run(&["verify", "things", "--config", &there, "--settle", "4s", "--timeout", "3s", "-o", "name"]);
    assert_eq!((code, out.as_str()), (1, "shop/body\nshop/extra\nshop/missing\n"), "{err}");
    let (_, out, _) = server.run(&differs);
    let header = out.lines().next().unwrap();
    assert_eq!(header.split_whitespace().collect::<Vec<_>>(), ["KEY", "DIFFERENCE", "SERVED", "UPSTREAM"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_an_interval_compares_a_resource_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.yaml"), manifest("a", "1")).unwrap();
    let flags = ServeFlags { files: vec![format!("things={}", directory.path().display())], ..ServeFlags::default() };
    let flags = flags.with("listen", "127.0.0.1:0").with("admin.listen", "127.0.0.1:0");
    let mut config = Config::load(&flags).unwrap();
    // Shorter than a file can have it.
    config.resources.get_mut("things").unwrap().options.verify_interval = Some(Duration::from_millis(10));
    let served = Served::start_config(directory, config).await;
    let verified = async {
        loop {
            let (_, metrics) = served.get("/metrics").await;
            let of = |name: &str| {
                let line =
                    metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {metrics}"));
                line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
            };
            if of("informerd_verify_total{resource=\"things\",result=\"equal\"}") >= 2.0 {
                assert!(of("informerd_verify_total{resource=\"things\",result=\"failed\"}") < 1.0);
                assert!(of("informerd_verify_differences{resource=\"things\"}") < 1.0);
                assert!(of("informerd_verify_last_success_timestamp_seconds{resource=\"things\"}") > 0.0);
                return;
            }
        }
    };
    tokio::time::timeout(DEADLINE, verified).await.expect("it is verified in time");
    served.stop().await;
}

#[test]
fn a_resource_that_cannot_be_compared_is_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = config(&directory, "informerd.yaml", &directory.path().display().to_string());
    fs::write(directory.path().join("none"), "").unwrap();
    let server = Server::of(&directory);
    let error = |arguments: &[&str]| {
        let (code, out, err) = server.run(arguments);
        assert_eq!((out.as_str(), err.lines().count()), ("", 1), "{err}");
        (code, err)
    };
    let (code, err) = error(&["verify", "lines", "--config", &file]);
    assert_eq!((code, err.contains("a stream has no list to compare with")), (1, true), "{err}");
    let (code, err) = error(&["verify", "pods", "--config", &file]);
    assert_eq!((code, err.contains("there is no resource pods in ")), (2, true), "{err}");
    let (code, err) = error(&["verify", "things", "--config", &file, "--settle", "2h"]);
    assert_eq!((code, err.contains("--settle")), (2, true), "{err}");
}
