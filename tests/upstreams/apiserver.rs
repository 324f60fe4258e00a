//! The API server of Kubernetes, on an etcd of its own, and its writers.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::Instant,
};

use http::{Request, header};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    DEADLINE,
    etcd::{Etcd, Version, program, run},
    port::free_address,
};

/// API server in a process of its own.
pub(crate) struct ApiServer {
    pub(crate) etcd: Etcd,
    /// Flags, kept for a restart.
    pub(crate) flags: Vec<String>,
    directory: TempDir,
    address: SocketAddr,
    process: Child,
    pub(crate) client: Client,
}

/// Kind of object, and the place of a value in its objects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// Root of the API, as in `/api/v1`.
    pub(crate) root: &'static str,
    api_version: &'static str,
    name: &'static str,
    pub(crate) plural: &'static str,
    /// Prefix of all its keys in etcd.
    pub(crate) stored: &'static str,
}

/// Kind of a custom resource.
pub(crate) const THINGS: Kind = Kind {
    root: "/apis/example.com/v1",
    api_version: "example.com/v1",
    name: "Thing",
    plural: "things",
    stored: "/registry/example.com/things/",
};
/// Kind that an aggregated API server serves.
pub(crate) const AGGREGATED: Kind = Kind {
    root: "/apis/aggregated.example.com/v1",
    api_version: "aggregated.example.com/v1",
    stored: "/registry/aggregated.example.com/things/",
    ..THINGS
};
/// Kind of Kubernetes itself.
pub(crate) const CONFIG_MAPS: Kind = Kind {
    root: "/api/v1",
    api_version: "v1",
    name: "ConfigMap",
    plural: "configmaps",
    stored: "/registry/configmaps/",
};

/// Variable with the program of the API server, which is also a kubectl.
pub(crate) const KUBECTL: &str = "INFORMERD_KUBERNETES";
/// Tokens: one of an administrator, and one without rights.
const TOKENS: &str = "admin,admin,1,\"system:masters\"\nreader,reader,2\n";
pub(crate) const ADMIN: &str = "admin";
pub(crate) const READER: &str = "reader";

// === impl ApiServer ===

impl ApiServer {
    /// Starts one with the namespaces a, b and c, and the kind Thing.
    pub(crate) async fn start() -> Self {
        Self::with(&[]).await
    }

    /// Starts one with these flags.
    pub(crate) async fn with(flags: &[&str]) -> Self {
        let flags = owned(flags);
        let etcd = Etcd::start(Version::Latest).await;
        let directory = TempDir::new().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("tokens.csv"), TOKENS).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        fs::write(path("key.pem"), key.serialize_pem()).unwrap();
        fs::write(path("public.pem"), key.public_key_pem()).unwrap();
        let address = free_address();
        let process = spawn(&directory, address, &etcd, &flags);
        // It creates its certificate before it listens; the file exists before its content does.
        let started = Instant::now();
        let certificate = || fs::read_to_string(path("certs/apiserver.crt")).unwrap_or_default();
        while !certificate().ends_with("-----END CERTIFICATE-----\n") {
            assert!(started.elapsed() < DEADLINE, "no certificate: {}", log(&directory));
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        write_kubeconfig(&directory, &path("kubeconfig"), address.port(), ADMIN);
        let client = Client::try_from(config(&path("kubeconfig")).await).unwrap();
        let this = Self { etcd, flags, directory, address, process, client };
        this.wait().await;
        for namespace in ["a", "b", "c"] {
            this.post("/api/v1/namespaces", &json!({ "metadata": { "name": namespace } })).await;
        }
        this.define(THINGS).await;
        this
    }

    /// Defines a kind as a custom resource.
    pub(crate) async fn define(&self, kind: Kind) {
        let schema = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
        let (group, version) = kind.api_version.split_once('/').unwrap();
        let version = json!({ "name": version, "served": true, "storage": true, "schema": schema });
        let names = json!({ "plural": kind.plural, "singular": kind.name.to_lowercase(), "kind": kind.name });
        let spec = json!({ "group": group, "scope": "Namespaced", "names": names, "versions": [version] });
        let crd = json!({ "metadata": { "name": format!("{}.{group}", kind.plural) }, "spec": spec });
        self.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd).await;
        self.until(&kind.all()).await;
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a client without retries, for a writer that must not wait while the server is killed.
    pub(crate) async fn impatient_client(&self) -> Client {
        let mut config = config(&self.directory.path().join("kubeconfig")).await;
        config.default_retry = false;
        Client::try_from(config).unwrap()
    }

    /// Writes a kubeconfig that leads here through a port of this machine.
    pub(crate) fn kubeconfig(&self, path: &Path, port: u16, token: &str) {
        write_kubeconfig(&self.directory, path, port, token);
    }

    /// Returns the certificate of the authority that signed its own.
    pub(crate) fn authority(&self) -> String {
        fs::read_to_string(self.directory.path().join("certs/apiserver.crt")).unwrap()
    }

    /// Returns the output of kubectl, which must write no warning.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.try_kubectl(arguments);
        let stderr = String::from_utf8(stderr).unwrap();
        assert!(status.success() && stderr.is_empty(), "kubectl {arguments:?}: {stderr}");
        String::from_utf8(stdout).unwrap()
    }

    pub(crate) fn try_kubectl(&self, arguments: &[&str]) -> Output {
        self.try_kubectl_of(KUBECTL, arguments)
    }

    /// Returns the output of the kubectl that a variable names.
    pub(crate) fn try_kubectl_of(&self, variable: &str, arguments: &[&str]) -> Output {
        let mut command = kubectl(variable, self.directory.path());
        command.arg("--kubeconfig").arg(self.directory.path().join("kubeconfig")).args(arguments).output().unwrap()
    }

    /// Returns the data of a `ConfigMap`.
    pub(crate) fn data(&self, namespace: &str, name: &str) -> BTreeMap<String, String> {
        let found = self.kubectl(&["get", "configmap", name, "-n", namespace, "-o", "jsonpath={.data}"]);
        serde_json::from_str(&found).unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal, such as one that stops or continues the process.
    pub(crate) fn signal(&self, signal: &str) {
        run(Command::new("kill").args([signal, &self.pid().to_string()]));
    }

    /// Starts it again, with the data of its etcd.
    pub(crate) async fn restart(&mut self) {
        self.process = spawn(&self.directory, self.address, &self.etcd, &self.flags);
        self.wait().await;
        self.until(&THINGS.all()).await;
    }

    /// Returns its metrics.
    pub(crate) async fn metrics(&self) -> String {
        self.client.request_text(Request::get("/metrics").body(Vec::new()).unwrap()).await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, object: &Value) {
        let answer = self.ask("POST", path, Some(object)).await;
        answer.unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Creates an object from YAML, as `kubectl apply` would.
    pub(crate) async fn create(&self, path: &str, yaml: &str) {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/yaml");
        let answer = self.client.send(request.body(Body::from(yaml.as_bytes().to_vec())).unwrap()).await.unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
    }

    pub(crate) async fn bind(&self, role: &str, user: &str) {
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        let subject = json!({ "kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user });
        let role_ref = json!({ "kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": role });
        self.post(path, &json!({ "metadata": { "name": role }, "subjects": [subject], "roleRef": role_ref })).await;
    }

    pub(crate) async fn ask(&self, method: &str, path: &str, object: Option<&Value>) -> Result<Value, String> {
        ask(&self.client, method, path, object).await
    }

    async fn wait(&self) {
        let started = Instant::now();
        loop {
            let answer = self.client.request_text(Request::get("/readyz").body(Vec::new()).unwrap()).await;
            if answer.is_ok() {
                return;
            }
            assert!(started.elapsed() < DEADLINE, "{answer:?}: {}", log(&self.directory));
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Waits until a path has an answer.
    pub(crate) async fn until(&self, path: &str) {
        let started = Instant::now();
        while let Err(error) = self.ask("GET", path, None).await {
            assert!(started.elapsed() < DEADLINE, "{path}: {error}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Kind {
    /// Returns the path of all objects.
    pub(crate) fn all(self) -> String {
        format!("{}/{}", self.root, self.plural)
    }

    /// Returns the path of all objects of one namespace.
    pub(crate) fn path(self, namespace: &str) -> String {
        format!("{}/namespaces/{namespace}/{}", self.root, self.plural)
    }

    pub(crate) fn object(self, metadata: &Value, data: &Value) -> Value {
        json!({ "apiVersion": self.api_version, "kind": self.name, "metadata": metadata, "data": data })
    }

    /// Returns the value in a body.
    pub(crate) fn value(self, body: &str) -> String {
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!((&body["kind"], &body["apiVersion"]), (&json!(self.name), &json!(self.api_version)));
        assert!(body["metadata"].get("managedFields").is_none(), "{body}");
        body["data"]["value"].as_str().unwrap().to_owned()
    }
}

/// Returns the command of the kubectl that a variable names, with its cache in a directory.
pub(crate) fn kubectl(variable: &str, directory: &Path) -> Command {
    let mut command = Command::new(program(variable));
    if variable == KUBECTL {
        command.arg("kubectl");
    }
    command.arg("--cache-dir").arg(directory.join("cache").join(variable)).stdin(Stdio::null());
    command
}

/// Returns the flags as owned strings.
pub(crate) fn owned(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|flag| (*flag).to_owned()).collect()
}

/// Returns the answer, or the reason for its absence.
pub(crate) async fn ask(client: &Client, method: &str, path: &str, object: Option<&Value>) -> Result<Value, String> {
    let media_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = object.map(|object| object.to_string().into_bytes()).unwrap_or_default();
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, media_type).body(body);
    let answer = client.request_text(request.unwrap()).await.map_err(|error| error.to_string())?;
    serde_json::from_str(&answer).map_err(|error| error.to_string())
}

async fn config(kubeconfig: &Path) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap()
}

fn spawn(directory: &TempDir, address: SocketAddr, etcd: &Etcd, flags: &[String]) -> Child {
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let log = fs::File::create(path("log")).unwrap();
    Command::new(program("INFORMERD_KUBERNETES"))
        .arg("kube-apiserver")
        .arg(format!("--etcd-servers={}", etcd.url()))
        .arg(format!("--secure-port={}", address.port()))
        .arg(format!("--cert-dir={}", path("certs")))
        .arg(format!("--token-auth-file={}", path("tokens.csv")))
        .arg(format!("--service-account-key-file={}", path("public.pem")))
        .arg(format!("--service-account-signing-key-file={}", path("key.pem")))
        .args(["--bind-address=127.0.0.1", "--service-account-issuer=https://informerd.test"])
        .args(["--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24"])
        .args(["--disable-admission-plugins=ServiceAccount"])
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

fn write_kubeconfig(directory: &TempDir, path: &Path, port: u16, token: &str) {
    let authority = directory.path().join("certs/apiserver.crt");
    let cluster = json!({ "server": format!("https://127.0.0.1:{port}"), "certificate-authority": authority });
    let config = json!({
        "current-context": "c",
        "clusters": [{ "name": "k", "cluster": cluster }],
        "users": [{ "name": "u", "user": { "token": token } }],
        "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
    });
    fs::write(path, config.to_string()).unwrap();
}

fn log(directory: &TempDir) -> String {
    let text = fs::read_to_string(directory.path().join("log")).unwrap_or_default();
    text.lines().last().unwrap_or_default().to_owned()
}
