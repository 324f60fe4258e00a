//! The files of `deploy/` are consistent with each other and with informerd. tests/upstreams applies them to a real API server.

use std::{collections::BTreeSet, env, fs, path::PathBuf, time::Duration};

use informerd::config::{Config, ListenAddr, ServeFlags, json_schema};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    command_line::run,
    contract::table,
    manifest::{Manifest, items, named, text},
};

const FILES: [&str; 4] = ["mirror.yaml", "shared.yaml", "sidecar.yaml", "standalone.yaml"];
/// Longest time that a draining server takes to write its snapshot file.
const LAST_WRITE: Duration = Duration::from_secs(10);

fn config_text(manifest: &Manifest) -> &str {
    manifest.object("ConfigMap")["data"]["config.yaml"].as_str().unwrap()
}

fn config_file(text: &str) -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("config.yaml");
    fs::write(&path, text).unwrap();
    (directory, path)
}

fn config(text: &str) -> Config {
    let (_directory, path) = config_file(text);
    Config::load(&ServeFlags { config: Some(path), ..ServeFlags::default() }).unwrap()
}

/// Returns the container of informerd.
fn container(manifest: &Manifest) -> &Value {
    let spec = &manifest.pod()["spec"];
    named(if spec["initContainers"].is_array() { &spec["initContainers"] } else { &spec["containers"] }, "informerd")
}

#[test]
fn ports_probes_and_periods_are_those_of_the_configuration() {
    for file in FILES {
        let manifest = Manifest::read(file);
        let config = config(config_text(&manifest));
        let container = container(&manifest);
        let admin = config.admin.listen.unwrap();
        assert!(admin.ip().is_unspecified(), "{file}: the kubelet asks from outside of the pod");
        assert_eq!(named(&container["ports"], "admin")["containerPort"], admin.port(), "{file}");
        for (probe, path) in [("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")] {
            let asked = &container[probe]["httpGet"];
            assert_eq!((&asked["path"], &asked["port"]), (&json!(path), &json!("admin")), "{file}");
        }
        let annotations = &manifest.pod()["metadata"]["annotations"];
        assert_eq!(annotations["prometheus.io/port"], admin.port().to_string(), "{file}");
        let ListenAddr::Tcp(grpc) = config.general.listen else { panic!("{file}: TCP") };
        assert_eq!(grpc.ip().is_loopback(), !["shared.yaml", "standalone.yaml"].contains(&file), "{file}");
        if !grpc.ip().is_loopback() {
            assert_eq!(named(&container["ports"], "grpc")["containerPort"], grpc.port(), "{file}");
            assert_eq!(named(&manifest.object("Service")["spec"]["ports"], "grpc")["port"], grpc.port(), "{file}");
        }
        let period = manifest.pod()["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap();
        let needed = config.drain.delay + config.drain.period + LAST_WRITE;
        assert!(Duration::from_secs(period) > needed, "{file}: {period} s for {needed:?}");
    }
}

/// Checks the names that no API server resolves.
#[test]
fn names_in_the_manifests_refer_to_existing_objects() {
    for file in FILES {
        let manifest = Manifest::read(file);
        let (pod, account) = (manifest.pod(), manifest.object("ServiceAccount"));
        assert_eq!(pod["spec"]["serviceAccountName"], account["metadata"]["name"], "{file}");
        let is_binding = |object: &&Value| object["kind"].as_str().unwrap().ends_with("Binding");
        for binding in manifest.objects.iter().filter(is_binding) {
            let role = manifest.object(binding["roleRef"]["kind"].as_str().unwrap());
            assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"], "{file}");
            assert_eq!(binding["metadata"]["namespace"], role["metadata"]["namespace"], "{file}");
            let [subject] = items(&binding["subjects"]) else { panic!("{file}: one subject") };
            for part in ["name", "namespace"] {
                assert_eq!(subject[part], account["metadata"][part], "{file}");
            }
        }
        // One namespace, and with it the selectors.
        for object in &manifest.objects {
            let namespace = object["metadata"].get("namespace");
            assert!(
                namespace.is_none_or(|namespace| *namespace == account["metadata"]["namespace"]),
                "{file}: {object}"
            );
            let spec = &object["spec"];
            let labels = match object["kind"].as_str().unwrap() {
                "Service" => &spec["selector"],
                "Deployment" | "PodDisruptionBudget" => &spec["selector"]["matchLabels"],
                "NetworkPolicy" => &spec["podSelector"]["matchLabels"],
                _ => continue,
            };
            assert_eq!(*labels, pod["metadata"]["labels"], "{file}: {object}");
        }
        let containers = items(&pod["spec"]["initContainers"]).iter().chain(items(&pod["spec"]["containers"]));
        for container in containers {
            assert_eq!(container["image"], concat!("informerd:", env!("CARGO_PKG_VERSION")), "{file}");
            for mount in items(&container["volumeMounts"]) {
                named(&pod["spec"]["volumes"], mount["name"].as_str().unwrap());
            }
        }
        let volume = &named(&pod["spec"]["volumes"], "config")["configMap"]["name"];
        assert_eq!(*volume, manifest.object("ConfigMap")["metadata"]["name"], "{file}");
    }
}

/// Checks the mirror: its flags are valid, its probes and its volume are those of its arguments, and it needs no rights.
#[test]
fn the_mirror_of_a_pod_has_the_volume_of_the_application() {
    let manifest = Manifest::read("mirror.yaml");
    let spec = &manifest.pod()["spec"];
    let (mirror, application) = (named(&spec["initContainers"], "mirror"), named(&spec["containers"], "application"));
    let args: Vec<&str> = items(&mirror["args"]).iter().map(|arg| arg.as_str().unwrap()).collect();
    let ["mirror", resource, directory, "--keys", "--health", health] = args[..] else { panic!("{args:?}") };
    assert!(config(config_text(&manifest)).resources.contains_key(resource));
    let port = health.rsplit(':').next().unwrap().parse::<u16>().unwrap();
    assert_eq!(named(&mirror["ports"], "health")["containerPort"], port);
    for (probe, path) in [("startupProbe", "/readyz"), ("livenessProbe", "/livez")] {
        let asked = &mirror[probe]["httpGet"];
        assert_eq!((&asked["path"], &asked["port"]), (&json!(path), &json!("health")));
    }
    let [of_mirror] = items(&mirror["volumeMounts"]) else { panic!("one volume, and no token") };
    let of_application = named(&application["volumeMounts"], of_mirror["name"].as_str().unwrap());
    assert_eq!((&of_mirror["mountPath"], &of_application["mountPath"]), (&json!(directory), &json!(directory)));
    assert!(named(&spec["volumes"], "dashboards")["emptyDir"].is_object() && of_application["readOnly"] == true);
    for container in ["informerd", "mirror"] {
        assert_eq!(named(&spec["initContainers"], container)["restartPolicy"], "Always");
    }
}

#[test]
fn the_image_is_of_this_version() {
    let dockerfile = text("Dockerfile");
    let build = concat!("docker build -f deploy/Dockerfile -t informerd:", env!("CARGO_PKG_VERSION"), " .\n");
    assert!(dockerfile.contains(build) && text("../docs/kubernetes.md").contains(build), "{build}");
    let manifest = Manifest::read("sidecar.yaml");
    let user = &manifest.pod()["spec"]["securityContext"];
    assert!(dockerfile.contains(&format!("\nUSER {}:{}\n", user["runAsUser"], user["runAsGroup"])), "{dockerfile}");
}

#[test]
fn the_chart_is_of_this_version() {
    let chart: Value = serde_saphyr::from_str(&text("helm/informerd/Chart.yaml")).unwrap();
    assert_eq!((&chart["version"], &chart["appVersion"]), (&json!(env!("CARGO_PKG_VERSION")), &chart["version"]));
}

/// Compares the configuration in the schema of the chart's values with the keys; writes it with `UPDATE_DOCS=1`.
#[test]
fn the_values_of_the_chart_have_every_key_of_the_configuration() {
    let file = "helm/informerd/values.schema.json";
    let mut schema: Value = serde_json::from_str(&text(file)).unwrap();
    let mut config = json_schema();
    config.as_object_mut().unwrap().remove("$schema").expect("the draft");
    let resources = config["properties"].as_object_mut().unwrap().remove("resources").expect("the resources");
    let definitions = json!({ "config": config, "resources": resources });
    if env::var_os("UPDATE_DOCS").is_some() {
        schema["$defs"] = definitions;
        fs::write(format!("deploy/{file}"), serde_json::to_string_pretty(&schema).unwrap() + "\n").unwrap();
    } else {
        assert!(schema["$defs"] == definitions, "deploy/{file} is not as the code: run with UPDATE_DOCS=1");
    }
    let values: Value = serde_saphyr::from_str(&text("helm/informerd/values.yaml")).unwrap();
    let keys = |map: &Value| map.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let mut known = keys(&schema["properties"]);
    // Helm adds it to the values of a chart that is a part of another one.
    assert!(known.remove("global") && known == keys(&values), "{known:?}");
}

#[test]
fn the_operations_page_has_every_alert_and_no_other() {
    let rule: Value = serde_saphyr::from_str(&text("helm/informerd/monitoring/prometheusrule.yaml")).unwrap();
    let rules = items(&rule["spec"]["groups"]).iter().flat_map(|group| items(&group["rules"]));
    let alerts: Vec<&str> = rules.map(|rule| rule["alert"].as_str().unwrap()).collect();
    assert_eq!(table(include_str!("../../docs/operations.md"), "## Alerts"), alerts);
}

#[test]
fn the_packaged_unit_may_bind_the_socket_of_the_help() {
    let (_, help, _) = run(&["healthcheck", "--help"]);
    assert!(help.contains("--server unix:/run/informerd/informerd.sock"), "{help}");
    assert!(text("informerd.service").lines().any(|line| line == "RuntimeDirectory=informerd"));
}
