//! kubectl and the informers of client-go, unchanged, over informerd's own API and over the API server: they see the same.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
    time::{Duration, Instant},
};

use informerd::{
    app::App,
    config::{Config, ListenAddr, ServeFlags},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::{
    DEADLINE,
    apiserver::{ADMIN, ApiServer, CONFIG_MAPS, KUBECTL, THINGS, kubectl},
    etcd::program,
};

/// informerd with the kinds that the commands name.
pub(crate) struct Facade {
    directory: TempDir,
    pub(crate) address: String,
    _running: JoinHandle<()>,
}

/// Informers of client-go in a process.
pub(crate) struct Informers {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Versions of objects, by namespace and name.
pub(crate) type Versions = BTreeMap<String, String>;

/// Variables with a kubectl: of the version of `kube/`, and of those that `tests/upstreams/run --strangers` sets.
const KUBECTLS: [&str; 3] = [KUBECTL, "INFORMERD_KUBECTL_030", "INFORMERD_KUBECTL_037"];
/// Commands whose output must be that of the API server, in each form.
const COMMANDS: &[&str] = &[
    "get pods -A -o json",
    "get pod p1 -n a -o yaml",
    "get pods -A -o name",
    "get po -n a -l app=web -o name",
    "get pods -A --field-selector metadata.name=p1 -o json",
    "get pods -A --field-selector spec.nodeName=n1 -o name",
    "get pods,configmaps -n a -o name --chunk-size=1",
    "get pods -A --sort-by .metadata.name -o name",
    "get configmaps -n b",
    "get nodes -o json",
    "get services -A -o json",
    "get deployments -n a -o json",
    "auth can-i list pods -n a",
    "auth can-i get nodes/n1 -q",
    "get nothing",
    "get pod none -n a",
    "describe pod p1 -n a",
    "describe deployment web -n a",
    "describe service web -n a",
];
/// Tables, whose ages are those of the moment.
const TABLES: &[&str] = &[
    "get pods -A",
    "get all -n b",
    "get pods -n a -o wide",
    "get nodes -o wide",
    "get services -A -o wide",
    "get deployments -n a -o wide",
    "get configmaps -n a",
    "get pods -n a --show-labels",
    "get pods -A -L app",
    "get things -n a",
    "get thing t1 -n a -o wide",
    "get things -A -o wide",
];

/// Columns of Thing: name, type, priority and path.
const COLUMNS: &[(&str, &str, u8, &str)] = &[
    ("Phase", "string", 0, ".data.phase"),
    ("Size", "integer", 0, ".data.size"),
    ("Load", "number", 1, ".data.load"),
    ("Ready", "boolean", 0, ".data.ready"),
    ("Since", "date", 0, ".data.since"),
    ("Age", "date", 0, ".metadata.creationTimestamp"),
];

// === impl Facade ===

impl Facade {
    pub(crate) async fn start(apiserver: &ApiServer) -> Self {
        let core = ["pods", "nodes", "services", "configmaps"].map(|plural| ("", plural));
        let kinds = [&core[..], &[("apps", "deployments"), ("example.com", "things")]].concat();
        Self::of(apiserver, &kinds, &json!([".metadata.managedFields"])).await
    }

    /// Starts one with these kinds, without these fields.
    pub(crate) async fn of(apiserver: &ApiServer, kinds: &[(&str, &str)], drop: &Value) -> Self {
        let directory = TempDir::new().unwrap();
        apiserver.kubeconfig(&directory.path().join("kubeconfig"), apiserver.address().port(), ADMIN);
        let resource = |&(group, plural): &(&str, &str)| {
            let kube = json!({ "group": group, "version": "v1", "plural": plural, "kubeconfig": "kubeconfig" });
            (plural.to_owned(), json!({ "kubernetes": "auto", "drop_fields": drop, "source": { "kube": kube } }))
        };
        let mut resources: serde_json::Map<String, Value> = kinds.iter().map(resource).collect();
        let column = |(name, column_type, priority, path): &(&str, &str, u8, &str)| {
            format!("{name}:{column_type}{}={path}", if *priority > 0 { "@wide" } else { "" })
        };
        if let Some(things) = resources.get_mut("things") {
            things["kubernetes_columns"] = COLUMNS.iter().map(column).collect();
        }
        let config = json!({
            "listen": "127.0.0.1:0", "admin": { "listen": "none" }, "kubernetes": { "listen": "127.0.0.1:0" },
            "resources": resources,
        });
        let path = directory.path().join("informerd.yaml");
        fs::write(&path, config.to_string()).unwrap();
        let flags = ServeFlags { config: Some(path), ..ServeFlags::default() };
        let app = App::start(Config::load(&flags).unwrap()).await.unwrap();
        let Some(ListenAddr::Tcp(address)) = app.kubernetes_address() else { panic!("a TCP address") };
        let running = tokio::spawn(async move { app.run(std::future::pending()).await.unwrap() });
        let this = Self { directory, address: format!("http://{address}"), _running: running };
        let started = Instant::now();
        while !this.kubectl("get --raw /readyz").status.success() || !this.has_kinds(kinds.len()) {
            assert!(started.elapsed() < DEADLINE, "{:?}", this.kubectl("get --raw /readyz"));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        this
    }

    fn has_kinds(&self, count: usize) -> bool {
        let names = self.kubectl("api-resources -o name --cached=false").stdout;
        String::from_utf8(names).unwrap().lines().count() == count
    }

    fn kubectl(&self, command: &str) -> Output {
        self.kubectl_of(KUBECTL, command)
    }

    fn kubectl_of(&self, variable: &str, command: &str) -> Output {
        let mut kubectl = kubectl(variable, self.directory.path());
        kubectl
            .args(["--server", &self.address, "--kubeconfig", "/dev/null"])
            .args(command.split(' '))
            .output()
            .unwrap()
    }
}

// === impl Informers ===

impl Informers {
    fn start(address: &str) -> Self {
        Self::of(Self::command(address))
    }

    /// Returns the command that starts them.
    pub(crate) fn command(address: &str) -> Command {
        let mut command = Command::new(program("INFORMERD_KUBERNETES"));
        command.args(["informers", address]);
        command
    }

    /// Starts those that a command runs.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (commands, answers) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        Self { process, commands, answers }
    }

    /// Returns the versions in each store, and how often each has been listed.
    pub(crate) fn stores(&mut self) -> BTreeMap<String, (Versions, u64)> {
        self.commands.write_all(b"\n").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the informers have ended: {:?}", self.process.wait());
        let stores: BTreeMap<String, Value> = serde_json::from_str(&line).unwrap();
        let objects = |store: &Value| serde_json::from_value(store["Objects"].clone()).unwrap();
        let of = |store: Value| (objects(&store), store["Lists"].as_u64().unwrap());
        stores.into_iter().map(|(name, store)| (name, of(store))).collect()
    }
}

impl Drop for Informers {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Creates objects of each kind.
pub(crate) async fn fill(apiserver: &ApiServer) {
    let container = json!([{ "name": "c", "image": "nginx" }]);
    let pod = |name: &str, app: &str, node: Value| json!({ "metadata": { "name": name, "labels": { "app": app } }, "spec": { "containers": container, "nodeName": node } });
    apiserver
        .post(
            "/api/v1/nodes",
            &json!({ "metadata": { "name": "n1", "labels": { "node-role.kubernetes.io/worker": "" } } }),
        )
        .await;
    for (namespace, pod) in [
        ("a", pod("p1", "web", json!("n1"))),
        ("a", pod("p2", "db", Value::Null)),
        ("b", pod("p3", "web", Value::Null)),
    ] {
        apiserver.post(&format!("/api/v1/namespaces/{namespace}/pods"), &pod).await;
    }
    let both = json!({ "metadata": { "name": "p4" }, "spec": { "containers": [{ "name": "c", "image": "a" }, { "name": "d", "image": "b" }] } });
    apiserver.post("/api/v1/namespaces/a/pods", &both).await;
    let labels = json!({ "app": "web", "app.kubernetes.io/name": "web" });
    let template = json!({ "metadata": { "labels": labels }, "spec": { "containers": container } });
    let absent = json!([{ "key": "b", "operator": "DoesNotExist" }]);
    let selector = json!({ "matchLabels": labels, "matchExpressions": absent });
    let spec = json!({ "replicas": 2, "selector": selector, "template": template });
    apiserver
        .post("/apis/apps/v1/namespaces/a/deployments", &json!({ "metadata": { "name": "web" }, "spec": spec }))
        .await;
    for (name, service_type) in [("web", "NodePort"), ("lb", "LoadBalancer")] {
        let spec = json!({ "type": service_type, "selector": labels, "ports": [{ "port": 80 }] });
        apiserver.post("/api/v1/namespaces/a/services", &json!({ "metadata": { "name": name }, "spec": spec })).await;
    }
    apiserver.post(&CONFIG_MAPS.path("a"), &CONFIG_MAPS.object(&json!({ "name": "m" }), &json!({ "k": "v" }))).await;
    report(apiserver).await;
}

/// Reports what kubelets and a cloud would.
async fn report(apiserver: &ApiServer) {
    let ended = |name: &str, reason: &str, code: u8| {
        let state = json!({ "terminated": { "exitCode": code, "reason": reason } });
        json!({ "name": name, "image": "a", "imageID": "a", "ready": false, "restartCount": 0, "state": state })
    };
    let info = [
        ("architecture", "amd64"),
        ("kernelVersion", "6.1"),
        ("osImage", "Debian"),
        ("containerRuntimeVersion", "containerd://2.0"),
        ("kubeletVersion", "v1.36.3"),
    ];
    let info: serde_json::Map<String, Value> =
        info.map(|(key, value)| (key.to_owned(), json!(value))).into_iter().collect();
    let conditions = json!([{ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown" }]);
    let statuses = [ended("c", "Completed", 0), ended("d", "Error", 1)];
    for (path, status) in [
        ("nodes/n1", json!({ "conditions": conditions, "nodeInfo": info })),
        ("namespaces/a/pods/p4", json!({ "phase": "Failed", "containerStatuses": statuses })),
        ("namespaces/b/pods/p3", json!({ "phase": "Succeeded" })),
        (
            "namespaces/a/services/lb",
            json!({ "loadBalancer": { "ingress": [{ "ip": "10.1.0.9" }, { "ip": "10.1.0.1" }] } }),
        ),
    ] {
        let patch = json!({ "status": status });
        apiserver.ask("PATCH", &format!("/api/v1/{path}/status"), Some(&patch)).await.unwrap();
    }
}

/// Gives Thing the same columns at the API server, and creates some.
async fn define_columns(apiserver: &ApiServer) {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.com";
    let mut versions = apiserver.ask("GET", path, None).await.unwrap()["spec"]["versions"].clone();
    let column = |(name, column_type, priority, path): &(&str, &str, u8, &str)| json!({ "name": name, "type": column_type, "priority": priority, "jsonPath": path });
    versions[0]["additionalPrinterColumns"] = COLUMNS.iter().map(column).collect();
    apiserver.ask("PATCH", path, Some(&json!({ "spec": { "versions": versions } }))).await.unwrap();
    let data = json!({ "phase": "Up", "size": 3, "load": 0.5, "ready": true, "since": "2020-01-01T00:00:00Z" });
    let others = json!({ "phase": 7, "size": "x", "load": false, "ready": "x" });
    for (name, data) in [("t1", data), ("t2", others), ("t3", json!({}))] {
        apiserver.post(&THINGS.path("a"), &THINGS.object(&json!({ "name": name }), &data)).await;
    }
    let started = Instant::now();
    while !apiserver.kubectl(&["get", "things", "-n", "a"]).contains("PHASE") {
        assert!(started.elapsed() < DEADLINE, "no columns");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Replaces the words that are ages.
fn without_ages(text: &[u8]) -> String {
    let is_age = |word: &str| word.starts_with(|c: char| c.is_ascii_digit()) && word.ends_with(['s', 'm', 'h']);
    let text = String::from_utf8_lossy(text);
    let words = |line: &str| {
        line.split_whitespace().map(|word| if is_age(word) { "AGE" } else { word }).collect::<Vec<_>>().join(" ")
    };
    text.lines().map(words).collect::<Vec<_>>().join("\n")
}

/// Returns the versions of all config maps.
pub(crate) async fn config_maps(apiserver: &ApiServer) -> Versions {
    let list = apiserver.ask("GET", &CONFIG_MAPS.all(), None).await.unwrap();
    let text = |item: &Value, key: &str| item["metadata"][key].as_str().unwrap().to_owned();
    let key = |item: &Value| format!("{}/{}", text(item, "namespace"), text(item, "name"));
    list["items"].as_array().unwrap().iter().map(|item| (key(item), text(item, "resourceVersion"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_prints_the_same_as_of_the_api_server() {
    let apiserver = ApiServer::start().await;
    fill(&apiserver).await;
    define_columns(&apiserver).await;
    let facade = Facade::start(&apiserver).await;
    // kubectl 1.30 reads Endpoints, of which the API server warns; they are not served here.
    let is_wanted = |line: &&str| !line.starts_with("Warning: v1 Endpoints is deprecated");
    let text = |output: &Output| {
        let lines =
            |text: &[u8]| String::from_utf8_lossy(text).split('\n').filter(is_wanted).collect::<Vec<_>>().join("\n");
        [lines(&output.stdout), lines(&output.stderr)]
    };
    for version in KUBECTLS.into_iter().filter(|variable| env::var_os(variable).is_some()) {
        for command in COMMANDS.iter().chain(TABLES) {
            let arguments: Vec<&str> = command.split(' ').collect();
            let (theirs, ours) = (apiserver.try_kubectl_of(version, &arguments), facade.kubectl_of(version, command));
            assert_eq!(ours.status.code(), theirs.status.code(), "{version}: {command}: {ours:?}");
            if TABLES.contains(command) {
                assert_eq!(without_ages(&ours.stdout), without_ages(&theirs.stdout), "{version}: {command}");
            } else {
                assert_eq!(text(&ours), text(&theirs), "{version}: {command}");
            }
        }
        println!("{version}: {} commands", COMMANDS.len() + TABLES.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn informers_of_client_go_have_what_the_api_server_has() {
    let apiserver = ApiServer::start().await;
    fill(&apiserver).await;
    let facade = Facade::start(&apiserver).await;
    let mut informers = Informers::start(&facade.address);
    for round in 0..20 {
        let name = format!("m{}", round % 7);
        let path = format!("{}/{name}", CONFIG_MAPS.path("b"));
        if round % 5 == 4 {
            drop(apiserver.ask("DELETE", &path, None).await);
        } else if apiserver.ask("GET", &path, None).await.is_ok() {
            let object = CONFIG_MAPS.object(&json!({ "name": name }), &json!({ "round": round.to_string() }));
            apiserver.ask("PUT", &path, Some(&object)).await.unwrap();
        } else {
            let object = CONFIG_MAPS.object(&json!({ "name": name }), &json!({}));
            apiserver.post(&CONFIG_MAPS.path("b"), &object).await;
        }
    }
    let truth = config_maps(&apiserver).await;
    let started = Instant::now();
    loop {
        let stores = informers.stores();
        assert_eq!(stores.len(), 3);
        if stores.values().all(|(store, _)| *store == truth) {
            return;
        }
        assert!(started.elapsed() < DEADLINE, "{stores:#?}, not {truth:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Nothing else is written meanwhile, so no version after the deletion's confirms the state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_after_a_write_has_it() {
    let apiserver = ApiServer::start().await;
    let facade = Facade::of(&apiserver, &[("", "configmaps")], &json!([".metadata.managedFields"])).await;
    let path = CONFIG_MAPS.path("b");
    for round in 0..5 {
        let object = CONFIG_MAPS.object(&json!({ "name": "m" }), &json!({}));
        apiserver.post(&path, &object).await;
        assert_eq!(facade.kubectl("get configmaps -n b -o name").stdout, b"configmap/m\n", "round {round}");
        apiserver.ask("DELETE", &format!("{path}/m"), None).await.unwrap();
        let output = facade.kubectl(&format!("get --raw {path}"));
        let list: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("round {round}: {output:?}"));
        assert_eq!(list["items"], json!([]), "round {round}");
    }
}
