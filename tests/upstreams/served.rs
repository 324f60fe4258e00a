//! informerd in this process, over one prefix of one etcd, one kind of one API, or another informerd.

use std::{collections::BTreeMap, fs, net::SocketAddr};

use informerd::{
    app::App,
    config::{Config, ListenAddr, ServeFlags},
    proto::pb::{self, informer_service_client::InformerServiceClient},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
};
use tonic::transport::{Channel, Endpoint};

use crate::{apiserver::ApiServer, etcd::Etcd, follow::Follower, gate::Gate, truth::PREFIX};

/// Server, and the proxy before each member of its upstream.
pub(crate) struct Served {
    pub(crate) gates: Vec<Gate>,
    directory: TempDir,
    address: String,
    admin: SocketAddr,
    running: tokio::task::JoinHandle<()>,
}

// === impl Served ===

impl Served {
    pub(crate) async fn start(etcd: &Etcd, credentials: Option<(&str, &str)>) -> Self {
        Self::over(std::slice::from_ref(etcd), credentials).await
    }

    /// Starts one over members of etcd, with a user and a password where they need them.
    pub(crate) async fn over(members: &[Etcd], credentials: Option<(&str, &str)>) -> Self {
        let mut gates = Vec::new();
        for member in members {
            gates.push(Gate::to(member.address()).await);
        }
        let mut etcd = json!({ "endpoints": gates.iter().map(Gate::url).collect::<Vec<_>>(), "prefix": PREFIX });
        let directory = TempDir::new().unwrap();
        if let Some((user, password)) = credentials {
            (etcd["username"], etcd["password_file"]) = (json!(user), json!("password"));
            fs::write(directory.path().join("password"), format!("{password}\n")).unwrap();
        }
        Self::serve(directory, gates, &json!({ "etcd": etcd })).await
    }

    /// Starts a relay of another one, with a proxy between them.
    pub(crate) async fn relay(upstream: &Self) -> Self {
        Self::relay_of(upstream.address()).await
    }

    /// Starts a relay of a process.
    pub(crate) async fn relay_of(upstream: SocketAddr) -> Self {
        let gate = Gate::to(upstream).await;
        let source = json!({ "informerd": { "endpoint": gate.url() } });
        Self::serve(TempDir::new().unwrap(), vec![gate], &source).await
    }

    /// Starts one over the API server, with a user's token.
    pub(crate) async fn kube(apiserver: &ApiServer, token: &str, source: Value) -> Self {
        Self::kube_among(apiserver, token, source, &[]).await
    }

    /// Starts one over the API server, among other resources.
    pub(crate) async fn kube_among(
        apiserver: &ApiServer,
        token: &str,
        mut source: Value,
        others: &[(&str, Value)],
    ) -> Self {
        let gate = Gate::to(apiserver.address()).await;
        let directory = TempDir::new().unwrap();
        apiserver.kubeconfig(&directory.path().join("kubeconfig"), gate.port(), token);
        source["kubeconfig"] = json!("kubeconfig");
        Self::serve_among(directory, vec![gate], &json!({ "kube": source }), others).await
    }

    async fn serve(directory: TempDir, gates: Vec<Gate>, source: &Value) -> Self {
        Self::serve_among(directory, gates, source, &[]).await
    }

    async fn serve_among(directory: TempDir, gates: Vec<Gate>, source: &Value, others: &[(&str, Value)]) -> Self {
        let allow_secrets = source["kube"]["plural"] == "secrets";
        let mut resources = json!({ "things": { "source": source, "allow_secrets": allow_secrets } });
        for (name, resource) in others {
            resources[*name] = resource.clone();
        }
        Self::configured(directory, gates, &json!({ "resources": resources })).await
    }

    /// Starts one with this configuration, whose paths are relative to the directory.
    pub(crate) async fn configured(directory: TempDir, gates: Vec<Gate>, content: &Value) -> Self {
        // JSON is YAML.
        let config = directory.path().join("config.yaml");
        fs::write(&config, content.to_string()).unwrap();
        let flags = ServeFlags { config: Some(config), ..ServeFlags::default() };
        let flags = flags.with("listen", "127.0.0.1:0").with("admin.listen", "127.0.0.1:0");
        let app = App::start(Config::load(&flags).unwrap()).await.unwrap();
        let ListenAddr::Tcp(address) = app.grpc_address() else { panic!("a TCP address") };
        let admin = app.admin_address().unwrap();
        let running = tokio::spawn(async move { app.run(std::future::pending()).await.unwrap() });
        Self { gates, directory, address: format!("http://{address}"), admin, running }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address.trim_start_matches("http://").parse().unwrap()
    }

    /// Compares a resource with its upstream. Returns the exit code of `informerd verify`, and its message.
    pub(crate) async fn verify(&self, resource: &str) -> (Option<i32>, String) {
        let mut verify = Command::new(env!("CARGO_BIN_EXE_informerd"));
        verify
            .args(["verify", resource, "--server", &self.address, "--config"])
            .arg(self.directory.path().join("config.yaml"));
        let output = verify.output().await.unwrap();
        assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }

    /// Closes every connection to the upstream.
    pub(crate) fn cut(&self) {
        self.gates.iter().for_each(Gate::cut);
    }

    /// Closes the connections to the upstream, and refuses new ones.
    pub(crate) fn refuse(&self, is_refusing: bool) {
        self.gates.iter().for_each(|gate| gate.refuse(is_refusing));
    }

    pub(crate) async fn client(&self) -> InformerServiceClient<Channel> {
        InformerServiceClient::connect(self.address.clone()).await.unwrap()
    }

    /// Returns a client with small buffers: the server keeps what the client does not read.
    pub(crate) async fn narrow_client(&self) -> InformerServiceClient<Channel> {
        let endpoint = Endpoint::from_shared(self.address.clone()).unwrap().initial_stream_window_size(16 << 10);
        InformerServiceClient::new(endpoint.connect().await.unwrap())
    }

    /// Starts some followers of everything, and some of one namespace.
    pub(crate) async fn followers(&self) -> Vec<Follower> {
        let mut followers = Vec::new();
        for namespace in ["", "a", "", "b", ""] {
            followers.push(Follower::start(self.client().await, namespace).await);
        }
        followers
    }

    /// Returns the last error of the source.
    pub(crate) async fn last_error(&self) -> String {
        let answer =
            self.client().await.list_resources(pb::ListResourcesRequest::default()).await.unwrap().into_inner();
        answer.resources.into_iter().map(|resource| resource.last_error).collect()
    }

    /// Returns the last error of one of several resources.
    pub(crate) async fn last_error_of(&self, name: &str) -> String {
        self.resource(name).await.last_error
    }

    pub(crate) async fn state(&self, name: &str) -> pb::SyncState {
        self.resource(name).await.state()
    }

    pub(crate) async fn resource(&self, name: &str) -> pb::Resource {
        let answer = self.client().await.list_resources(pb::ListResourcesRequest::default()).await.unwrap();
        answer.into_inner().resources.into_iter().find(|resource| resource.name == name).unwrap()
    }

    /// Returns true if /livez succeeds.
    pub(crate) async fn is_live(&self) -> bool {
        let mut stream = TcpStream::connect(self.admin).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.contains(" 200 ")
    }

    /// Returns the value of a counter of informerd.
    pub(crate) async fn count(&self, name: &str) -> u64 {
        counter(self.admin, &format!("informerd_{name}")).await
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// Returns the bodies of a List.
pub(crate) async fn bodies(mut client: InformerServiceClient<Channel>, resource: &str) -> BTreeMap<String, String> {
    let request = pb::ListRequest {
        resource: resource.to_owned(),
        format: pb::PayloadFormat::Raw.into(),
        ..pb::ListRequest::default()
    };
    let mut chunks = client.list(request).await.unwrap().into_inner();
    let entry = |object: pb::Object| match object.body {
        Some(pb::object::Body::Raw(body)) => {
            (format!("{}/{}", object.namespace, object.name), String::from_utf8(body.to_vec()).unwrap())
        }
        other => panic!("{other:?}"),
    };
    let mut bodies = BTreeMap::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        bodies.extend(chunk.objects.into_iter().map(entry));
    }
    bodies
}

/// Returns the sum of a counter in `/metrics`, over all labels or some.
pub(crate) async fn counter(address: SocketAddr, name: &str) -> u64 {
    gauge(address, name).await as u64
}

/// Returns the sum of a gauge, which may be a fraction.
pub(crate) async fn gauge(address: SocketAddr, name: &str) -> f64 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (name, label) = name.split_once(' ').unwrap_or((name, ""));
    let is_it = |line: &&str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(label)
    };
    answer.lines().filter(is_it).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}
