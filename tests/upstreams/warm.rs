//! informerd as a process that is killed, and goes on where it was.

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
use tonic::{Code, transport::Channel};

use crate::{
    DEADLINE,
    apiserver::ApiServer,
    etcd::{Etcd, VERSIONS},
    faults::{reach, write},
    follow::Follower,
    port::free_address,
    served::{counter, gauge},
    truth::{PREFIX, Truth},
};

/// A server with a directory for its state; INFORMERD may name another program than that of the tests.
pub(crate) struct Killable {
    directory: TempDir,
    address: SocketAddr,
    admin: SocketAddr,
    process: Child,
}

impl Killable {
    pub(crate) fn start(etcd: &Etcd) -> Self {
        let endpoints = [format!("http://{}", etcd.address())];
        Self::over(TempDir::new().unwrap(), &json!({ "etcd": { "endpoints": endpoints, "prefix": PREFIX } }))
    }

    /// Over the API server, with the token of somebody.
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

    /// A relay of another one.
    pub(crate) fn relay(upstream: &Self) -> Self {
        let endpoint = format!("http://{}", upstream.address);
        Self::over(TempDir::new().unwrap(), &json!({ "informerd": { "endpoint": endpoint } }))
    }

    fn over(directory: TempDir, source: &Value) -> Self {
        let [address, admin] = [(); 2].map(|()| free_address());
        // JSON is YAML.
        let config = json!({ "state_interval": "200ms", "resources": { "things": { "source": source } } });
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

    /// Ends in order.
    fn terminate(&mut self) {
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

    /// Waits until the resource says so of itself.
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

    /// Waits until what has been written upstream up to a revision is in the file, by this start.
    pub(crate) async fn kept(&self, revision: i64) {
        let started = Instant::now();
        while self.count("state_writes_total").await == 0 || self.kept_version() < revision as u128 {
            assert!(started.elapsed() < DEADLINE, "not in time: {revision} is kept; {} is", self.kept_version());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until there is a file of this start.
    pub(crate) async fn written(&self) {
        let started = Instant::now();
        while self.count("state_writes_total").await == 0 {
            assert!(started.elapsed() < DEADLINE, "not in time: a state is written");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The version of the state, as the header of the file has it.
    fn kept_version(&self) -> u128 {
        let [header, _] = self.pieces().unwrap();
        header["version"].as_str().unwrap().parse().unwrap()
    }

    /// Whether the next start over etcd cannot but list: there is no state, or it is of an empty list, or of one after whose newest
    /// object something had been deleted (`source::etcd::proof`).
    fn has_to_list(&self, truth: &Truth) -> bool {
        let Some([_, proof]) = self.pieces() else { return true };
        let mark = &proof["mark"];
        mark.is_null()
            || mark["listed_at"]
                .as_i64()
                .is_some_and(|listed_at| truth.wrote(mark["revision"].as_i64().unwrap(), listed_at))
    }

    /// Header and proof of the file, if there is one.
    fn pieces(&self) -> Option<[Value; 2]> {
        let file = fs::read(self.state()).ok()?;
        // What follows is the version of the format, and each piece behind its length.
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

    /// A line of /proc/PID/status, in KiB.
    fn memory(&self, line: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let value = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':')).unwrap();
        value.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// `VmHWM` begins anew.
    fn reset_peak(&self) {
        fs::write(format!("/proc/{}/clear_refs", self.process.id()), "5").unwrap();
    }

    async fn watch(&self, from: i64) -> tonic::Result<tonic::Streaming<pb::WatchResponse>> {
        let request = pb::WatchRequest {
            resource: "things".to_owned(),
            resource_version: from.to_string(),
            format: pb::PayloadFormat::Raw.into(),
            ..pb::WatchRequest::default()
        };
        self.client().await.watch(request).await.map(tonic::Response::into_inner)
    }
}

impl Drop for Killable {
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

fn spawn(directory: &TempDir, address: SocketAddr, admin: SocketAddr) -> Child {
    let program = std::env::var_os("INFORMERD").map_or_else(|| env!("CARGO_BIN_EXE_informerd").into(), PathBuf::from);
    let log = fs::File::options().create(true).append(true).open(directory.path().join("log")).unwrap();
    Command::new(program)
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

/// The versions of what a watch that was resumed is told, up to one of them.
async fn told(mut stream: tonic::Streaming<pb::WatchResponse>, up_to: i64) -> Vec<i64> {
    let mut versions = Vec::new();
    let telling = async {
        while versions.last().is_none_or(|last| *last < up_to) {
            let message = stream.message().await.unwrap().expect("no end");
            versions.extend(message.object.map(|object| object.resource_version.parse::<i64>().unwrap()));
        }
    };
    tokio::time::timeout(DEADLINE, telling).await.expect("all of it in time");
    versions.dedup();
    versions
}

/// It is served before etcd is there, and nothing is listed: a client that was killed with the server misses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_goes_on_where_it_was() {
    for version in VERSIONS {
        let etcd = Etcd::start(version).await;
        let (mut driver, mut truth) = (etcd.driver(), Truth::new(11));
        write(&mut truth, &mut driver, 50);
        let mut served = Killable::start(&etcd);
        served.synced().await;
        served.kept(truth.revision()).await;
        let kept_at = truth.revision();
        let mut missed: Vec<i64> = (0..20).map(|_| truth.write(&mut driver)).collect();
        served.until("reached", |resource| resource.resource_version == truth.revision().to_string()).await;
        served.kill();
        missed.extend((0..20).map(|_| truth.write(&mut driver)));

        etcd.signal("-STOP");
        served.restart();
        let resource = served.until("served", |resource| !resource.resource_version.is_empty()).await;
        assert_eq!(resource.state(), pb::SyncState::Stale, "{version:?}");
        let oldest: i64 = resource.oldest_resource_version.parse().unwrap();
        assert!(oldest >= kept_at, "{version:?}");
        let early = served.followers(2).await;
        let resumed = served.watch(oldest).await.unwrap();
        let status = served.watch(kept_at - 1).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{version:?}: older than the state");
        etcd.signal("-CONT");

        served.synced().await;
        write(&mut truth, &mut driver, 10);
        reach(&early, &truth, true).await;
        missed.retain(|revision| *revision > oldest);
        let told = told(resumed, *missed.last().unwrap()).await;
        assert_eq!(told, missed, "{version:?}: what a client of before the kill has missed, and nothing else");
        // The last that a client can have been told before the kill is later than the state.
        assert!(served.watch(missed[10]).await.is_ok());
        assert_eq!(served.count("reflector_lists_total").await, 0, "{version:?}");
        assert_eq!(served.count("reflector_listed_objects_total").await, 0, "{version:?}");
        assert_eq!(served.count("cache_rewinds_total").await, 0, "{version:?}");
        reach(&served.followers(1).await, &truth, true).await;

        // And in order: then the last revision is in the file.
        let before = truth.revision();
        served.terminate();
        served.restart();
        let resource = served.until("served", |resource| !resource.resource_version.is_empty()).await;
        assert!(resource.oldest_resource_version.parse::<i64>().unwrap() >= before, "{version:?}: written on drain");
    }
}

/// What was compacted meanwhile is listed once, and told as a difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_compacted_while_it_was_dead_is_a_difference() {
    for version in VERSIONS {
        let etcd = Etcd::start(version).await;
        let (mut driver, mut truth) = (etcd.driver(), Truth::new(12));
        write(&mut truth, &mut driver, 50);
        let mut served = Killable::start(&etcd);
        served.synced().await;
        served.kept(truth.revision()).await;
        served.kill();
        write(&mut truth, &mut driver, 60);
        driver.compact(truth.revision());
        etcd.signal("-STOP");
        served.restart();
        let early = served.followers(2).await;
        etcd.signal("-CONT");
        let revision = truth.revision();
        served.until("reached", |resource| resource.resource_version.parse::<i64>().unwrap_or(0) >= revision).await;
        write(&mut truth, &mut driver, 10);
        reach(&early, &truth, false).await;
        let is_inferred =
            early.iter().all(|follower| follower.followed().told.iter().any(|told| told.cause == pb::Cause::Inferred));
        assert!(is_inferred, "{version:?}: deletions that nobody saw");
        assert_eq!(served.count("reflector_lists_total").await, 1, "{version:?}");
        assert_eq!(served.count("cache_rewinds_total").await, 0, "{version:?}");
        reach(&served.followers(1).await, &truth, true).await;
    }
}

/// Restored while it was dead: behind, at the same revision, or ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_while_it_was_dead_is_told() {
    for version in VERSIONS {
        for rewritten in [0, 30, 60] {
            let mut etcd = Etcd::start(version).await;
            let (mut driver, mut truth) = (etcd.driver(), Truth::new(13));
            write(&mut truth, &mut driver, 20);
            let (snapshot, restored_to) = (etcd.snapshot(), truth.revision());
            let mut served = Killable::start(&etcd);
            served.synced().await;
            write(&mut truth, &mut driver, 30);
            served.kept(truth.revision()).await;
            served.kill();
            etcd.restore(&snapshot);
            served.restart();
            let early = served.followers(3).await;
            etcd.restart().await;
            truth.rewind(restored_to);
            // It may look before they are written, after them or in between.
            let mut driver = etcd.driver();
            write(&mut truth, &mut driver, rewritten);
            for follower in &early {
                let end = follower.end().await;
                assert_eq!(end, (Code::OutOfRange, "HISTORY_CHANGED".to_owned()), "{version:?}, {rewritten} rewritten");
            }
            served.synced().await;
            assert_eq!(served.count("cache_rewinds_total").await, 1, "{version:?}, {rewritten} rewritten");
            write(&mut truth, &mut driver, 5);
            reach(&served.followers(2).await, &truth, true).await;

            // What is kept then is of the history as it is now.
            served.kept(truth.revision()).await;
            served.kill();
            served.restart();
            let early = served.followers(2).await;
            served.synced().await;
            write(&mut truth, &mut driver, 5);
            reach(&early, &truth, true).await;
            assert_eq!(served.count("cache_rewinds_total").await, 0, "{version:?}, {rewritten} rewritten");
            assert_eq!(served.count("reflector_lists_total").await, 0, "{version:?}, {rewritten} rewritten");
        }
    }
}

/// Again and again, at any moment, while there are writes: what is served is what was written, and nothing is listed that need
/// not be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_at_any_moment_leave_nothing_wrong() {
    for version in VERSIONS {
        let etcd = Etcd::start(version).await;
        let (mut driver, mut truth) = (etcd.driver(), Truth::new(14));
        write(&mut truth, &mut driver, 20);
        let mut served = Killable::start(&etcd);
        served.synced().await;
        let mut lists = true;
        for round in 0..12 {
            let follower = Follower::start(served.client().await, "").await;
            write(&mut truth, &mut driver, 20);
            let told = follower.reach(truth.revision()).await;
            assert!(lists || told.relists.is_empty(), "{version:?}, {round}");
            truth.check_but(&told, &told.relists);
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(37 * round) {
                write(&mut truth, &mut driver, 1);
            }
            let listed = served.count("reflector_lists_total").await;
            assert_eq!(listed, u64::from(lists), "{version:?}, {round}: each start had a state to go on from");
            served.kill();
            lists = served.has_to_list(&truth);
            write(&mut truth, &mut driver, 5);
            served.restart();
            served.synced().await;
            assert_eq!(served.count("cache_rewinds_total").await, 0, "{version:?}");
        }
        write(&mut truth, &mut driver, 5);
        reach(&served.followers(1).await, &truth, true).await;
        served.kept(truth.revision()).await;
        served.kill();
        served.restart();
        served.synced().await;
        reach(&served.followers(1).await, &truth, true).await;
        assert_eq!(served.count("reflector_lists_total").await, 0, "{version:?}: there was a state to go on from");
        assert_eq!(served.count("cache_rewinds_total").await, 0, "{version:?}");
    }
}

/// Something is in the way of the file, then it is not any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_cannot_be_written_is_reported_until_it_can() {
    let etcd = Etcd::start(VERSIONS[0]).await;
    let (mut driver, mut truth) = (etcd.driver(), Truth::new(15));
    write(&mut truth, &mut driver, 5);
    let served = Killable::start(&etcd);
    served.synced().await;
    served.kept(truth.revision()).await;
    let obstacle = served.state().with_extension("tmp");
    fs::create_dir(&obstacle).unwrap();
    write(&mut truth, &mut driver, 5);
    let resource = served.until("reported", |resource| !resource.last_error.is_empty()).await;
    let expected = format!("state_dir: {} cannot be written: File exists", served.state().display());
    assert!(resource.last_error.starts_with(&expected), "{}", resource.last_error);
    assert_eq!(resource.state(), pb::SyncState::Synced);
    assert!(served.count("state_write_failures_total").await > 0);
    reach(&served.followers(1).await, &truth, true).await;
    fs::remove_dir(&obstacle).unwrap();
    served.until("mended", |resource| resource.last_error.is_empty()).await;
}

/// What a warm start gains over a list, of 100,000 objects of 1 KiB. Takes a minute, and prints its figures; INFORMERD names the
/// program of a release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure_a_kill_with_100_000_objects() {
    const OBJECTS: usize = 100_000;
    const AT_A_TIME: usize = 100;
    let etcd = Etcd::start(VERSIONS[0]).await;
    let mut driver = etcd.driver();
    let key = |at: usize| format!("{PREFIX}ns-{}/object-{at}", at % 100);
    let value = |at: usize, round: usize| {
        let head =
            format!(r#"{{"kind":"Thing","metadata":{{"labels":{{"app":"a{}"}}}},"round":{round},"data":""#, at % 50);
        format!("{head}{}\"}}", "x".repeat(1024 - 2 - head.len()))
    };
    let mut put = |first: usize, count: usize, round: usize| {
        for from in (first..first + count).step_by(AT_A_TIME) {
            let to = (from + AT_A_TIME).min(first + count);
            driver.write(&(from..to).map(|at| (key(at), Some(value(at, round)))).collect());
        }
    };
    put(0, OBJECTS, 0);
    let mut served = Killable::start(&etcd);
    let is_written = async |served: &Killable, writes: u64| {
        while served.count("state_writes_total").await < writes {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    served.synced().await;
    is_written(&served, 1).await;
    for round in 1..=3 {
        served.reset_peak();
        let before = served.memory("VmRSS");
        put(0, 1, round);
        is_written(&served, 1 + round as u64).await;
        println!(
            "a state of {} bytes, written in {:.3} s; RSS {} KiB before, {} KiB at most while it is written",
            fs::metadata(served.state()).unwrap().len(),
            gauge(served.admin, "informerd_state_write_seconds").await,
            before,
            served.memory("VmHWM"),
        );
    }
    for (what, missed) in [("warm", 0), ("warm", 1000), ("warm", OBJECTS / 10), ("cold", 0)] {
        for round in 0..3 {
            served.kill();
            put(0, missed, 10 + round);
            if what == "cold" {
                drop(fs::remove_file(served.state()));
            }
            let started = Instant::now();
            served.restart();
            let get = pb::GetRequest {
                resource: "things".to_owned(),
                namespace: "ns-7".to_owned(),
                name: "object-99907".to_owned(),
                ..pb::GetRequest::default()
            };
            let mut client = served.client().await;
            let connected = started.elapsed();
            let answer = client.get(get).await.unwrap().into_inner();
            let (answered, source) = (started.elapsed(), answer.source());
            served.synced().await;
            let fresh = started.elapsed();
            let [connected, answered, fresh] = [connected, answered, fresh].map(|time| time.as_millis());
            println!(
                "{what}, {missed} changes missed: connected {connected} ms, first answer {answered} ms ({source:?}), \
                 SYNCED {fresh} ms, {} lists, {} items listed, RSS {} KiB",
                served.count("reflector_lists_total").await,
                served.count("reflector_listed_objects_total").await,
                served.memory("VmRSS"),
            );
            let writes = u64::from(missed > 0 || what == "cold");
            is_written(&served, writes).await;
        }
    }
}
