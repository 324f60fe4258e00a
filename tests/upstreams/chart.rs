//! The Helm chart, and the manifests that are made from it: admitted by the API server, with the rights and the memory of their
//! configuration.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Output, Stdio},
    time::Instant,
};

use informerd::config::{parse_size, reference};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    apiserver::{ADMIN, ApiServer},
    deploy::{RESTRICTED, apply, create, publish_authority},
    etcd::program,
    manifest::{Manifest, items, named, text},
    pod::{ADDRESS, NODE, Pod},
};

const CHART: &str = "deploy/helm/informerd";
/// Examples of the chart, with their namespaces.
const EXAMPLES: [(&str, &str); 6] = [
    ("daemonset", "informerd"),
    ("mirror", "dashboards"),
    ("relay", "relay"),
    ("shared", "informerd"),
    ("sidecar", "default"),
    ("standalone", "informerd"),
];
const MONITORED: &str = "podMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true";
const MIB: usize = 1 << 20;

/// Runs Helm with nothing of its user.
fn try_helm(arguments: &[&str]) -> Output {
    of_helm(Command::new(program("INFORMERD_HELM")).args(arguments))
}

fn of_helm(command: &mut Command) -> Output {
    let home = TempDir::new().unwrap();
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, home.path());
    }
    command.stdin(Stdio::null()).output().unwrap()
}

fn helm(arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = try_helm(arguments);
    assert!(status.success(), "helm {arguments:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn example(mode: &str) -> String {
    format!("{CHART}/examples/{mode}.yaml")
}

/// Returns the objects of the chart for the example of a mode, as `helm template` prints them.
fn rendered(mode: &str, namespace: &str, flags: &[&str]) -> Manifest {
    let example = example(mode);
    let words = ["template", "informerd", CHART, "--namespace", namespace, "--values", &example];
    Manifest::parse(&helm(&[&words, flags].concat()))
}

/// Returns the objects of the chart for these values, in the mode `standalone`.
fn rendered_with(values: &Value) -> Manifest {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("values.json");
    fs::write(&file, values.to_string()).unwrap();
    Manifest::parse(&helm(&["template", "informerd", CHART, "--values", file.to_str().unwrap()]))
}

#[test]
fn the_plain_manifests_are_those_of_the_chart() {
    let directory = TempDir::new().unwrap();
    let render = of_helm(Command::new("deploy/render").env("HELM", program("INFORMERD_HELM")).arg(directory.path()));
    assert!(render.status.success(), "{}", String::from_utf8_lossy(&render.stderr));
    for entry in fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        let (rendered, name) = (fs::read_to_string(entry.path()).unwrap(), entry.file_name().into_string().unwrap());
        assert!(rendered == text(&name), "{name} is another one: run deploy/render");
    }
}

/// Returns the configuration file of the objects.
fn config(manifest: &Manifest) -> Value {
    let is_config = |object: &&Value| object["data"]["config.yaml"].is_string();
    let found = manifest.objects.iter().find(is_config).expect("a ConfigMap");
    serde_saphyr::from_str(found["data"]["config.yaml"].as_str().unwrap()).unwrap()
}

/// Checks that the Kubernetes API has a port where clients are in other pods, and is on loopback beside its application.
#[test]
fn the_kubernetes_api_has_a_port_of_the_service() {
    let api = "kubernetesApi.enabled=true";
    let pods = "resources.pods.kubernetes=auto,resources.pods.drop_fields={.metadata.managedFields}";
    for (flags, port) in [
        (vec!["--set", api, "--set", pods], 8001),
        (vec!["--set", api, "--set", pods, "--set", "config.kubernetes.listen=0.0.0.0:8080"], 8080),
    ] {
        let manifest = rendered("standalone", "informerd", &flags);
        let service = named(&manifest.object("Service")["spec"]["ports"], "kubernetes");
        assert_eq!(service, &json!({ "name": "kubernetes", "port": port, "targetPort": "kubernetes" }));
        let container = named(&manifest.pod()["spec"]["containers"], "informerd");
        assert_eq!(named(&container["ports"], "kubernetes")["containerPort"], port);
        let ports = &manifest.object("NetworkPolicy")["spec"]["ingress"][0]["ports"];
        assert!(items(ports).iter().any(|found| found["port"] == "kubernetes"), "{ports}");
        assert_eq!(config(&manifest)["kubernetes"]["listen"], format!("0.0.0.0:{port}"));
    }
    let kinds = "resources.configmaps.kubernetes=auto,resources.configmaps.read_only_clients=true";
    let sidecar = rendered("sidecar", "default", &["--set", api, "--set", kinds]);
    assert_eq!(config(&sidecar)["kubernetes"]["listen"], "127.0.0.1:8001");
    let without = rendered("standalone", "informerd", &[]);
    assert!(
        config(&without).get("kubernetes").is_none() && items(&without.object("Service")["spec"]["ports"]).len() == 1
    );
    let refused = try_helm(&["template", "informerd", CHART, "--values", &example("standalone"), "--set", api]);
    assert!(
        !refused.status.success()
            && String::from_utf8_lossy(&refused.stderr).contains("no resource has the key `kubernetes`")
    );
}

/// Returns what `informerd rbac` prints for a configuration; nothing where no right is needed.
fn printed_roles(config: &Value) -> Vec<Value> {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("config.yaml");
    fs::write(&file, config.to_string()).unwrap();
    // In the mode daemonset the chart sets it.
    let mut command = Command::new(env!("CARGO_BIN_EXE_informerd"));
    let output = command.arg("rbac").arg("--config").arg(&file).env("NODE_NAME", "node-a").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    if error.contains("no resource has a kube source") {
        return Vec::new();
    }
    assert!(output.status.success(), "{error}");
    Manifest::parse(&String::from_utf8(output.stdout).unwrap()).objects
}

/// Checks that the roles are those of the configuration, and that each is bound to the service account of the pod.
fn check_roles(manifest: &Manifest, expected: &[Value], what: &str) {
    let of_kind = |end: &str| {
        let found = manifest.objects.iter().filter(|object| object["kind"].as_str().unwrap().ends_with(end));
        found.collect::<Vec<_>>()
    };
    let essence = |role: &Value| (role["kind"].clone(), role["metadata"]["namespace"].clone(), role["rules"].clone());
    let roles = of_kind("Role");
    let mut found: Vec<_> = roles.iter().map(|role| essence(role)).collect();
    let mut expected: Vec<_> = expected.iter().map(essence).collect();
    found.sort_by_key(|role| role.1.to_string());
    expected.sort_by_key(|role| role.1.to_string());
    assert_eq!(found, expected, "{what}");

    let account = manifest.object("ServiceAccount");
    assert_eq!(manifest.pod()["spec"]["serviceAccountName"], account["metadata"]["name"]);
    let bindings = of_kind("RoleBinding");
    assert_eq!(bindings.len(), roles.len(), "{what}");
    for role in roles {
        let is_its = |binding: &&&Value| {
            binding["roleRef"]["kind"] == role["kind"]
                && binding["metadata"]["namespace"] == role["metadata"]["namespace"]
        };
        let binding = bindings.iter().find(is_its).unwrap();
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"], "{what}");
        let [subject] = items(&binding["subjects"]) else { panic!("{binding}") };
        assert_eq!(
            (&subject["name"], &subject["namespace"]),
            (&account["metadata"]["name"], &account["metadata"]["namespace"])
        );
    }
    let has_token = items(&manifest.pod()["spec"]["volumes"]).iter().any(|volume| volume["name"] == "api");
    assert_eq!(has_token, !expected.is_empty(), "{what}: a token if it has rights");
}

#[test]
fn the_roles_of_the_chart_are_what_informerd_prints() {
    for (mode, namespace) in EXAMPLES {
        helm(&["lint", "--strict", CHART, "--values", &example(mode)]);
        let manifest = rendered(mode, namespace, &[]);
        check_roles(&manifest, &printed_roles(&config(&manifest)), mode);
    }
    let kube = |more: Value| {
        let mut kube = json!({ "version": "v1", "plural": "pods" });
        kube.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "source": { "kube": kube } })
    };
    let reviews = json!({
        "tls": { "secret": "informerd-tls" },
        "config": {
            "authentication": { "token_review": { "audiences": ["informerd"] } },
            "authorization": { "subject_access_review": { "cache": "5s" } },
        },
    });
    for (resources, more) in [
        (json!({ "a": kube(json!({ "namespaces": ["y", "x"] })) }), json!({})),
        (json!({ "b": kube(json!({ "namespace_selector": "team=shop" })) }), json!({})),
        (
            json!({
                "c": kube(json!({ "group": "apps", "plural": "deployments", "namespace": "x" })),
                "d": kube(json!({ "plural": "nodes" })),
                "e": kube(json!({ "plural": "pods", "namespace": "x" })),
                "f": kube(json!({ "plural": "configmaps", "namespace": "123" })),
            }),
            json!({}),
        ),
        (json!({ "g": kube(json!({ "namespace": "x" })) }), reviews.clone()),
        (json!({ "h": kube(json!({})), "i": kube(json!({ "plural": "services" })) }), reviews),
    ] {
        let mut values = more;
        values["resources"] = resources;
        let manifest = rendered_with(&values);
        check_roles(&manifest, &printed_roles(&config(&manifest)), &values.to_string());
    }
    // What is read from another cluster needs no role in this one.
    let other = kube(json!({ "plural": "nodes", "context": "other" }));
    let values = json!({ "resources": { "pods": kube(json!({})), "other": other } });
    let manifest = rendered_with(&values);
    let mut config = config(&manifest);
    config["resources"].as_object_mut().unwrap().remove("other").expect("the resource");
    check_roles(&manifest, &printed_roles(&config), "another cluster");
}

/// Checks that the limit of the container is the sum of all bounds, with the program's defaults for those that are left out.
#[test]
fn the_memory_limit_follows_from_the_configuration() {
    let default = |path: &str| reference().iter().find(|key| key.path == path).unwrap().default.unwrap();
    let needed = |config: &Value, objects: usize, watchers: usize| {
        let size = |path: &str| {
            let pointer = format!("/{}", path.replace('.', "/"));
            parse_size(config.pointer(&pointer).map_or_else(|| default(path), |size| size.as_str().unwrap())).unwrap()
                / MIB
        };
        let resources = config["resources"].as_object().unwrap().len();
        let history = size("history.bytes");
        let of_resources = resources * (history + 2 * (history / 4).min(16));
        let is_verified = |resource: &Value| resource["verify_interval"].is_string();
        let verified = config["resources"].as_object().unwrap().values().any(is_verified);
        64 + objects
            + if verified { objects } else { 0 }
            + (27 * watchers).div_ceil(1024)
            + of_resources
            + (size("limits.memory") / 4).min(64)
            + size("limits.memory")
    };
    let limits = |manifest: &Manifest| {
        let spec = &manifest.pod()["spec"];
        let containers = if spec["initContainers"].is_array() { &spec["initContainers"] } else { &spec["containers"] };
        named(containers, "informerd")["resources"].clone()
    };
    let changed = json!({
        "config": { "history": null, "limits": { "memory": "1Gi" } },
        "memory": { "objects": "2GiB", "watchers": 50_000 },
        "resources": { "a": { "source": { "files": { "path": "/a" } } }, "b": { "source": { "stream": { "path": "/b" } } } },
    });
    let mut verified = changed.clone();
    verified["resources"]["a"]["verify_interval"] = json!("6h");
    for (manifest, objects, watchers) in [
        (rendered_with(&verified), 2048, 50_000),
        (rendered("standalone", "n", &[]), 256, 1000),
        (rendered("daemonset", "n", &[]), 64, 200),
        (rendered("sidecar", "n", &[]), 32, 10),
        (rendered_with(&changed), 2048, 50_000),
    ] {
        let needed = needed(&config(&manifest), objects, watchers);
        let limits = limits(&manifest);
        assert_eq!(limits["limits"]["memory"], format!("{needed}Mi"));
        assert_eq!(limits["requests"]["memory"], format!("{}Mi", 64 + objects));
    }
    let own =
        json!({ "resources": changed["resources"], "container": { "resources": { "limits": { "memory": "1Gi" } } } });
    assert_eq!(limits(&rendered_with(&own)), own["container"]["resources"]);
}

/// Returns the error of Helm.
fn refused(arguments: &[&str]) -> String {
    let output = try_helm(&[&["template", "x", CHART], arguments].concat());
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn wrong_values_are_refused_with_their_names() {
    let example = example("standalone");
    for (value, expected) in [
        ("mode=cluster", "mode"),
        ("replica=3", "replica"),
        ("resources.limits.memory=1Gi", "memory"),
        ("resources.pods.source.kube.namespce=shop", "namespce"),
        ("resources.pods.source.files.path=/x", "source"),
        ("config.histori.bytes=1MiB", "histori"),
        ("config.history.bytes=lots", "/config/history/bytes"),
        ("config.watch.max_watchers=0", "/config/watch/max_watchers"),
        ("config.watch.full_channel_policy=discard", "/config/watch/full_channel_policy"),
        ("config.limits.memory=null", "config.limits.memory: set it"),
        ("config.listen=unix:/run/informerd.sock", "config.listen: a Service needs a port"),
        ("config.admin.listen=none", "config.admin.listen: the probes need a port"),
        ("mode=relay", "resources.pods.source: a relay needs `informerd`"),
        ("mode=sidecar", "application.containers: there is none"),
    ] {
        let error = refused(&["--values", &example, "--set", value]);
        assert!(error.contains(expected), "{value}: {error}");
    }
    let error = refused(&[]);
    assert!(error.contains("resources: there is none; add one, such as --set resources.pods."), "{error}");
}

#[test]
fn the_notes_have_the_address_of_the_server() {
    for (mode, value, address) in [
        ("standalone", "config.listen=0.0.0.0:6000", "127.0.0.1:6000"),
        ("standalone", "tls.secret=s", "https://x-informerd.default:50051"),
        ("sidecar", "config.listen=unix:/run/informerd.sock", "unix:/run/informerd.sock"),
    ] {
        let notes = helm(&["install", "x", CHART, "--dry-run=client", "--values", &example(mode), "--set", value]);
        let expected = format!(" -- /informerd resources --server {address}\n");
        assert!(notes.contains(&expected), "{mode} {value}: {notes}");
    }
}

/// Returns the objects as a file for kubectl.
fn file_of(manifest: &Manifest) -> String {
    manifest.objects.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n---\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_admits_every_object_of_the_chart() {
    let apiserver = ApiServer::start().await;
    let crds = program("INFORMERD_CRDS");
    apiserver.kubectl(&["create", "-f", crds.to_str().unwrap()]);
    apiserver.kubectl(&["wait", "--for=condition=established", "crd", "--all"]);
    apiserver.kubectl(&["create", "namespace", "dashboards"]);
    for (mode, _) in EXAMPLES {
        apiserver.kubectl(&["create", "namespace", mode]);
        apiserver.kubectl(&["label", "namespace", mode, RESTRICTED]);
        let more = ["--set", MONITORED, "--set", "tls.secret=informerd-tls,tls.client_ca=true"];
        let manifest = rendered(mode, mode, &more);
        apply(&apiserver, &file_of(&manifest));

        let mut pod = manifest.pod().clone();
        (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
        (pod["metadata"]["name"], pod["metadata"]["namespace"]) = (json!("p"), json!(mode));
        assert_eq!(create(&apiserver, &pod), Ok(()), "{mode}");
        pod["spec"]["hostNetwork"] = json!(true);
        assert!(create(&apiserver, &pod).unwrap_err().contains("violates PodSecurity"), "{mode}");

        // The definitions are there: no unknown field passes.
        for kind in ["PodMonitor", "PrometheusRule"] {
            let mut object = manifest.object(kind).clone();
            object["metadata"]["name"] = json!("other");
            object["spec"]["unknown"] = json!(1);
            assert!(create(&apiserver, &object).unwrap_err().contains("spec.unknown"), "{kind}");
        }
    }
}

/// Installs the chart as somebody new does, and runs the pod of the Deployment that is then in the API.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_installed_release_serves_its_first_event() {
    let apiserver = ApiServer::start().await;
    let directory = TempDir::new().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    apiserver.kubeconfig(&kubeconfig, apiserver.address().port(), ADMIN);
    let (kubeconfig, example) = (kubeconfig.to_str().unwrap(), example("standalone"));
    let release = |verb: &str, more: &[&str]| {
        let words =
            [verb, "informerd", CHART, "--kubeconfig", kubeconfig, "--namespace", "informerd", "--values", &example];
        helm(&[&words, more].concat())
    };
    let deployment = || -> Value {
        let found = apiserver.kubectl(&["get", "deployment", "informerd", "-n", "informerd", "-o", "json"]);
        serde_json::from_str(&found).unwrap()
    };

    let started = Instant::now();
    let notes = release("install", &["--create-namespace"]);
    assert!(notes.contains("informerd watch pods --server informerd.informerd:50051"), "{notes}");
    let installed = started.elapsed();
    publish_authority(&apiserver, "informerd");
    let template = deployment()["spec"]["template"].clone();
    let pod = Pod::new("informerd", &template, apiserver.address().port()).await;
    let mut server = pod.container(&apiserver, named(&template["spec"]["containers"], "informerd"));
    server.start().await;
    server.started().await;
    let mut watch = Command::new(env!("CARGO_BIN_EXE_informerd"))
        .args(["watch", "services", "-o", "jsonl", "--server", &format!("{ADDRESS}:50051")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(watch.stdout.take().unwrap()).read_line(&mut first).unwrap();
    eprintln!("helm install: {installed:?}; to the first event: {:?}", started.elapsed());
    let event: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("ADDED"), &json!("Service")), "{first}");
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert_eq!(server.terminate(pod.grace_period()).await, Some(0));

    // The pods are replaced if the configuration is another one, and only then.
    release("upgrade", &["--set", "podDisruptionBudget.maxUnavailable=2"]);
    assert_eq!(deployment()["spec"]["template"], template);
    release("upgrade", &["--set", "config.stale_after=20s"]);
    assert_ne!(deployment()["spec"]["template"], template);
    helm(&["uninstall", "informerd", "--kubeconfig", kubeconfig, "--namespace", "informerd"]);
    let left = apiserver.kubectl(&[
        "get",
        "clusterrole,clusterrolebinding",
        "-l",
        "app.kubernetes.io/instance=informerd",
        "-o",
        "name",
    ]);
    let here = apiserver.kubectl(&[
        "get",
        "deploy,svc,cm,sa,netpol,pdb",
        "-n",
        "informerd",
        "-l",
        "app.kubernetes.io/instance=informerd",
        "-o",
        "name",
    ]);
    assert_eq!((left.as_str(), here.as_str()), ("", ""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pod_of_a_daemonset_serves_the_pods_of_its_node() {
    let apiserver = ApiServer::start().await;
    for (name, node) in [("here", NODE), ("elsewhere", "node-b")] {
        let spec = json!({ "nodeName": node, "containers": [{ "name": "c", "image": "i" }] });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec });
        apiserver.post("/api/v1/namespaces/a/pods", &pod).await;
    }
    apiserver.kubectl(&["create", "namespace", "informerd"]);
    publish_authority(&apiserver, "informerd");
    let manifest = rendered("daemonset", "informerd", &[]);
    apply(&apiserver, &file_of(&manifest));
    let template = manifest.pod();
    let pod = Pod::new("informerd", template, apiserver.address().port()).await;
    let mut server = pod.container(&apiserver, named(&template["spec"]["containers"], "informerd"));
    server.start().await;
    server.started().await;
    assert_eq!(server.informerd(&["list", "pods", "-o", "name"]), "a/here\n");
    assert_eq!(server.terminate(pod.grace_period()).await, Some(0));
}
