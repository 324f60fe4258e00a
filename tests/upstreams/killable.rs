//! informerd as a process with a state directory, which is killed and started again.

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use informerd::proto::pb::{self, informer_service_client::InformerServiceClient};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::{
    DEADLINE,
    apiserver::{ADMIN, ApiServer},
    etcd::Etcd,
    follow::Follower,
    port::free_address,
    served::counter,
    truth::{PREFIX, Truth},
};

/// Server with a state directory; INFORMERD may name another program than that of the tests.
pub(crate) struct KillableServer {
    directory: TempDir,
    address: SocketAddr,
    pub(crate) admin: SocketAddr,
    process: Child,
}

impl KillableServer {
    pub(crate) fn start(etcd: &Etcd) -> Self {
        let endpoints = [format!("http://{}", etcd.address())];
        Self::over(TempDir::new().unwrap(), &json!({ "etcd": { "endpoints": endpoints, "prefix": PREFIX } }))
    }

    /// Starts one over the API server, with a user's token.
    pub(crate) fn kube(apiserver: &ApiServer, token: &str, source: Value) -> Self {
        Self::kube_through(apiserver.address().port(), apiserver, token, source)
    }

    /// Starts one that reaches the API server through a port of this machine.
    pub(crate) fn kube_through(port: u16, apiserver: &ApiServer, token: &str, mut source: Value) -> Self {
        let directory = TempDir::new().unwrap();
        apiserver.kubeconfig(&directory.path().join("kubeconfig"), port, token);
        source["kubeconfig"] = json!("kubeconfig");
        Self::over(directory, &json!({ "kube": source }))
    }

    /// Starts a relay of another one.
    pub(crate) fn relay(upstream: &Self) -> Self {
        let endpoint = format!("http://{}", upstream.address);
        Self::over(TempDir::new().unwrap(), &json!({ "informerd": { "endpoint": endpoint } }))
    }

    /// Starts one that serves config maps of a source at an address, also to clients of Kubernetes.
    #[cfg(feature = "kubernetes-api")]
    pub(crate) fn of_config_maps(address: SocketAddr, source: &Value, apiserver: Option<&ApiServer>) -> Self {
        let directory = TempDir::new().unwrap();
        if let Some(apiserver) = apiserver {
            apiserver.kubeconfig(&directory.path().join("kubeconfig"), apiserver.address().port(), ADMIN);
        }
        let mut resource = json!({ "kubernetes": "v1/configmaps=ConfigMap", "source": source });
        if apiserver.is_some() {
            resource["drop_fields"] = json!([".metadata.managedFields"]);
        }
        Self::of(directory, json!({ "kubernetes": { "listen": address } }), &resource)
    }

    fn over(directory: TempDir, source: &Value) -> Self {
        Self::of(directory, json!({}), &json!({ "source": source }))
    }

    fn of(directory: TempDir, mut config: Value, resource: &Value) -> Self {
        let [address, admin] = [(); 2].map(|()| free_address());
        config["state_interval"] = json!("200ms");
        // JSON is YAML.
        config["resources"] = json!({ "things": resource });
        fs::write(directory.path().join("config.yaml"), config.to_string()).unwrap();
        let process = spawn(&directory, address, admin);
        Self { directory, address, admin, process }
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn restart(&mut self) {
        self.process = spawn(&self.directory, self.address, self.admin);
    }

    /// Sends SIGTERM, and waits for a successful exit.
    pub(crate) fn terminate(&mut self) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        assert!(self.process.wait().unwrap().success());
    }

    pub(crate) async fn client(&self) -> InformerServiceClient<Channel> {
        let started = Instant::now();
        loop {
            match InformerServiceClient::connect(format!("http://{}", self.address)).await {
                Ok(client) => return client.max_decoding_message_size(64 << 20),
                Err(error) => assert!(started.elapsed() < DEADLINE, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(crate) async fn count(&self, name: &str) -> u64 {
        counter(self.admin, &format!("informerd_{name}")).await
    }

    /// Waits until the status of the resource meets a condition.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&pb::Resource) -> bool) -> pb::Resource {
        let (mut client, started) = (self.client().await, Instant::now());
        loop {
            let listed = client.list_resources(pb::ListResourcesRequest {}).await.unwrap().into_inner();
            let resource = listed.resources.into_iter().next().unwrap();
            if is_so(&resource) {
                return resource;
            }
            assert!(started.elapsed() < DEADLINE, "not in time: {what}; {resource:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(crate) async fn synced(&self) {
        self.until("synced", |resource| resource.state() == pb::SyncState::Synced).await;
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.directory.path().join("state/things.state")
    }

    /// Waits until this run has saved everything that was written upstream up to a revision.
    pub(crate) async fn kept(&self, revision: i64) {
        let started = Instant::now();
        while self.count("state_writes_total").await == 0 || self.kept_version() < revision as u128 {
            assert!(started.elapsed() < DEADLINE, "not in time: {revision} is kept; {} is", self.kept_version());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until this run has written a snapshot file.
    pub(crate) async fn written(&self) {
        let started = Instant::now();
        while self.count("state_writes_total").await == 0 {
            assert!(started.elapsed() < DEADLINE, "not in time: a state is written");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns the version in the header of the snapshot file.
    fn kept_version(&self) -> u128 {
        let [header, _] = self.pieces().unwrap();
        header["version"].as_str().unwrap().parse().unwrap()
    }

    /// Returns true if the next start over etcd must list: there is no snapshot, or it is of an empty list, or of one after whose
    /// newest object something had been deleted (`source::etcd::proof`).
    pub(crate) fn has_to_list(&self, truth: &Truth) -> bool {
        let Some([_, proof]) = self.pieces() else { return true };
        let mark = &proof["mark"];
        mark.is_null()
            || mark["listed_at"]
                .as_i64()
                .is_some_and(|listed_at| truth.wrote(mark["revision"].as_i64().unwrap(), listed_at))
    }

    /// Returns the header and the proof of the snapshot file, if there is one.
    fn pieces(&self) -> Option<[Value; 2]> {
        let file = fs::read(self.state()).ok()?;
        // The version of the format follows, and each piece behind its length.
        let mut rest = &file.strip_prefix(b"informerd state\n").unwrap()[4..];
        Some([(); 2].map(|()| {
            let (len, from) = rest.split_first_chunk::<4>().unwrap();
            let (piece, after) = from.split_at(u32::from_le_bytes(*len) as usize);
            rest = after;
            serde_json::from_slice(piece).unwrap()
        }))
    }

    pub(crate) async fn followers(&self, count: usize) -> Vec<Follower> {
        let mut followers = Vec::new();
        for namespace in ["", "a", "b"].into_iter().cycle().take(count) {
            followers.push(Follower::start(self.client().await, namespace).await);
        }
        followers
    }

    /// Returns a line of /proc/PID/status, in KiB.
    pub(crate) fn memory(&self, line: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let value = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':')).unwrap();
        value.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Resets `VmHWM`.
    pub(crate) fn reset_peak(&self) {
        fs::write(format!("/proc/{}/clear_refs", self.process.id()), "5").unwrap();
    }

    pub(crate) async fn watch(&self, from: i64) -> tonic::Result<tonic::Streaming<pb::WatchResponse>> {
        let request = pb::WatchRequest {
            resource: "things".to_owned(),
            resource_version: from.to_string(),
            format: pb::PayloadFormat::Raw.into(),
            ..pb::WatchRequest::default()
        };
        self.client().await.watch(request).await.map(tonic::Response::into_inner)
    }

    /// Returns the status that refuses a watch from a version, or none once it has begun.
    pub(crate) async fn refusal(&self, from: i64) -> Option<tonic::Status> {
        refusal(&mut self.watch(from).await.unwrap()).await
    }
}

/// Returns the status of a watch whose first message is an ERROR.
pub(crate) async fn refusal(stream: &mut tonic::Streaming<pb::WatchResponse>) -> Option<tonic::Status> {
    let first = tokio::time::timeout(DEADLINE, stream.message()).await.expect("in time").unwrap().expect("no end");
    match first.r#type() {
        pb::EventType::Error => Some(stream.message().await.unwrap_err()),
        _ => None,
    }
}

impl Drop for KillableServer {
    #[allow(clippy::print_stdout, reason = "beside the panic")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            println!("what every start has said:\n{log}");
        }
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Returns the program of the server.
pub(crate) fn informerd() -> PathBuf {
    std::env::var_os("INFORMERD").map_or_else(|| env!("CARGO_BIN_EXE_informerd").into(), PathBuf::from)
}

fn spawn(directory: &TempDir, address: SocketAddr, admin: SocketAddr) -> Child {
    let log = fs::File::options().create(true).append(true).open(directory.path().join("log")).unwrap();
    Command::new(informerd())
        .arg("serve")
        .arg("--config")
        .arg(directory.path().join("config.yaml"))
        .args(["--listen", &address.to_string(), "--admin-listen", &admin.to_string()])
        .arg("--state-dir")
        .arg(directory.path().join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}
