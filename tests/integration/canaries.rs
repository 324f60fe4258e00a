//! Secrets of many kinds in a server under faults, with callers of all sorts: none of them is in a log, an audit log, a metric, a
//! snapshot file, an error, or a response to somebody who may not read it.
//!
//! A canary that leaks is found in each of the usual encodings. That somebody with the right receives it shows that it was there.

mod callers;
mod canary;
mod files;
mod kube;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use fastrand::Rng;
use informerd::{
    auth::{Authentication, TokenFile},
    model::{Event, Object, ResourceVersion},
    proto::pb,
};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use self::{
    callers::{Caller, Calls, RESOURCES},
    canary::{Kind, Search},
    files::{bad_files, config, good_files, kubeconfig, manifests},
    kube::{Kube, Mode},
};
use crate::{
    authentication::line,
    process::{EVERYTHING, Process},
    sandbox::{DEADLINE, Options, Sandbox, queue},
    tcp_proxy::TcpProxy,
};

const SEED: u64 = 19;
/// Calls of each caller between two faults.
const CALLS: usize = 12;

/// Server, its upstreams, its files, and everything that it has shown so far.
struct World {
    directory: TempDir,
    search: Arc<Search>,
    calls: Arc<Calls>,
    callers: Arc<Vec<Caller>>,
    kube: Kube,
    upstream: Sandbox,
    proxy: TcpProxy,
    /// Running, but for the moment of a restart.
    server: Option<Process>,
    /// Logs of the runs before.
    logs: String,
    random: Rng,
    version: u64,
}

/// Returns an object with data, as a Secret has it: in base64.
fn secret(name: &str, version: u64) -> Arc<Object> {
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "data": { "key": STANDARD.encode(Kind::Secret.canary("Keys")) },
        "metadata": { "namespace": "open", "name": name, "labels": { "app": "web" } },
    });
    Arc::new(Object::from_json(object.to_string(), "", ResourceVersion::decimal(version.into())).unwrap())
}

/// Signs a token of the user jay, whose content nobody may see.
fn jwt(key: &Ed25519KeyPair, expires: Duration) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let claims = json!({
        "iss": "https://issuer.example", "aud": "informerd", "sub": "jay", "jti": Kind::Token.canary("InJwt"),
        "exp": (now + expires).as_secs() - 3600,
    });
    let encode = |part: &serde_json::Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", encode(&json!({ "alg": "EdDSA", "kid": "k" })), encode(&claims));
    let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

/// Returns callers with good, bad, expired and misplaced credentials.
fn callers(good: &Ed25519KeyPair, bad: &Ed25519KeyPair) -> Vec<Caller> {
    let hour = Duration::from_secs(3600);
    let token = |name: &str| Kind::Token.canary(name);
    let bearer = |token: &str| vec![("authorization", format!("Bearer {token}"))];
    let caller = |name, headers, may_see: &'static [Kind]| Caller { name, headers, may_see };
    let basic = STANDARD.encode(format!("ann:{}", token("Password")));
    vec![
        caller("reader", bearer(&token("Reader")), &[Kind::Secret]),
        caller("admin", bearer(&token("Admin")), &[Kind::Open, Kind::Closed, Kind::Settings]),
        caller("ann", bearer(&token("Ann")), &[Kind::Open]),
        caller("an account", bearer(&token("Account")), &[Kind::Open]),
        caller("jay", bearer(&jwt(good, 2 * hour)), &[]),
        caller("an expired token", bearer(&jwt(good, Duration::ZERO)), &[]),
        caller("a token of another issuer", bearer(&jwt(bad, 2 * hour)), &[]),
        caller("an unknown token", bearer(&token("Unknown")), &[]),
        caller("a long token", bearer(&token("Long").repeat(300)), &[]),
        caller("two tokens", [bearer(&token("Ann")), bearer(&token("Reader"))].concat(), &[]),
        caller("a password", vec![("authorization", format!("Basic {basic}"))], &[]),
        caller("no scheme", vec![("authorization", token("Ann"))], &[]),
        caller("more than a token", vec![("authorization", format!("Bearer {} {}", token("Ann"), token("Ann")))], &[]),
        caller("other headers", vec![("x-api-token", token("Ann")), ("cookie", format!("t={}", token("Ann")))], &[]),
        caller("no credentials", vec![], &[]),
    ]
}

// === impl World ===

impl World {
    async fn start() -> Self {
        let keys = [[1; 32], [2; 32]].map(|seed| Ed25519KeyPair::from_seed_unchecked(&seed).unwrap());
        let callers = callers(&keys[0], &keys[1]);
        let tokens = ["Reader", "Admin", "Ann", "Unknown"].map(|name| Kind::Token.canary(name));
        let search = Arc::new(Search::new(&tokens.each_ref().map(String::as_str)));
        let directory = TempDir::new().unwrap();
        let users = [(&*Kind::Token.canary("Account"), "system:serviceaccount:open:web")];
        let (kube, api) = Kube::start(&Kind::Upstream.canary("Kube"), &users).await;
        let data = |kind: Kind| json!({ "data": { "key": STANDARD.encode(kind.canary("Keys")) } });
        kube.put("secrets", "open", "key", &data(Kind::Secret));
        kube.put("configmaps", "open", "web", &data(Kind::Settings));

        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write("relay-tokens", &line(&Kind::Upstream.canary("Relay"), "relay"));
        write("relay-token", &Kind::Upstream.canary("Relay"));
        write("etcd-password", &Kind::Upstream.canary("Etcd"));
        let authentication = Authentication {
            token_file: Some(TokenFile::load(&directory.path().join("relay-tokens")).unwrap()),
            ..Authentication::default()
        };
        let options = Options { source: "kube", authentication: Some(Arc::new(authentication)), ..Options::default() };
        let upstream = Sandbox::start_with(options, vec![secret("key", 1)]).await;
        let proxy = TcpProxy::to(upstream.address()).await;
        write("kubeconfig", &kubeconfig(api, ""));
        write("informerd.yaml", &config(proxy.address()));
        for name in ["pods", "settings"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let jwk = URL_SAFE_NO_PAD.encode(keys[0].public_key().as_ref());
        let jwks = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "kid": "k", "x": jwk }] }).to_string();
        write("good-jwks.json", &jwks);
        good_files(directory.path());
        manifests(directory.path(), 0);
        let server = serve(directory.path());
        let calls = Arc::new(Calls::new(Arc::clone(&search)));
        let random = Rng::with_seed(SEED);
        Self {
            directory,
            search,
            calls,
            callers: Arc::new(callers),
            kube,
            upstream,
            proxy,
            server: Some(server),
            logs: String::new(),
            random,
            version: 1,
        }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn server(&self) -> &Process {
        self.server.as_ref().unwrap()
    }

    /// Makes calls of all callers, reads the admin pages, and changes the objects meanwhile.
    async fn use_it(&mut self) {
        let endpoint = Endpoint::new(self.server().address()).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let watches = self.watches(&channel);
        let mut calls = JoinSet::new();
        for at in 0..self.callers.len() {
            let (calling, callers, channel) = (Arc::clone(&self.calls), Arc::clone(&self.callers), channel.clone());
            let mut random = self.random.fork();
            calls.spawn(async move {
                for _ in 0..CALLS {
                    calling.call(&channel, &callers[at], &mut random).await;
                }
            });
        }
        self.version += 1;
        let version = self.version;
        manifests(self.path(), version);
        let data = |kind: Kind| json!({ "data": { "key": STANDARD.encode(kind.canary("Keys")), "at": version } });
        self.kube.put("secrets", "open", "key", &data(Kind::Secret));
        self.kube.put("configmaps", "closed", "web", &data(Kind::Settings));
        self.upstream.push(Event::Modified(secret("key", version))).await;
        self.read_pages().await;
        while let Some(ended) = calls.join_next().await {
            ended.expect("no leak");
        }
        end(watches).await;
    }

    /// Opens watches that last until the server ends them, of each caller and resource. That of secrets selects by the content.
    fn watches(&self, channel: &Channel) -> JoinSet<()> {
        let mut watches = JoinSet::new();
        for at in 0..self.callers.len() {
            for (number, resource) in RESOURCES.into_iter().enumerate() {
                let is_secret = ["secrets", "relayed"].contains(&resource);
                let policy = pb::FullChannelPolicy::try_from(i32::try_from((at + number) % 4 + 1).unwrap()).unwrap();
                let request = pb::WatchRequest {
                    resource: resource.to_owned(),
                    queue: Some(queue(policy, 4)),
                    field_selector: if is_secret {
                        format!("data.key={}", STANDARD.encode(Kind::Secret.canary("Keys")))
                    } else {
                        String::new()
                    },
                    ..Default::default()
                };
                let (calls, callers, channel) = (Arc::clone(&self.calls), Arc::clone(&self.callers), channel.clone());
                watches.spawn(async move {
                    if let Err(status) = calls.watch(&channel, &callers[at], request, true).await {
                        let text = format!("{status:?}");
                        calls.search.check("the end of a watch", text.as_bytes(), callers[at].may_see);
                    }
                });
            }
        }
        watches
    }

    async fn read_pages(&self) {
        let admin = Kind::Token.canary("Admin");
        let mut metrics = 0;
        for path in ["/metrics", "/readyz", "/livez", "/", "/state", "/config", "/debug"] {
            for token in [None, Some(&*admin), Some(&*Kind::Token.canary("Ann")), Some(&*Kind::Token.canary("Unknown"))]
            {
                let page = get(self.server(), path, token).await;
                metrics += usize::from(page.contains("informerd_cache_objects{"));
                self.search.check(path, page.as_bytes(), &[]);
            }
        }
        assert!(metrics <= 1, "metrics are for an operator");
    }

    /// Stops the server, gracefully or not, and starts it again: it serves its snapshots.
    async fn restart(&mut self, is_graceful: bool) {
        let stopped = self.server.take().unwrap();
        if is_graceful {
            let watches = self.watches(&Endpoint::new(stopped.address()).unwrap().connect().await.unwrap());
            self.logs += &stopped.terminate_with_log().await.1;
            end(watches).await;
        } else {
            self.logs += &stopped.log();
            drop(stopped);
        }
        self.server = Some(serve(self.path()));
    }

    /// Waits until the log of this run has a text so often.
    async fn logged(&self, text: &str, count: usize) {
        let found = async {
            while self.server().log().matches(text).count() < count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(DEADLINE, found).await.unwrap_or_else(|_| panic!("{text:?} is logged {count} times"));
    }

    fn check_files(&self, log: &str) {
        self.search.check("the log", log.as_bytes(), &[]);
        let audit = fs::read(self.path().join("audit.log")).unwrap();
        assert!(audit.len() > 10_000, "{}", audit.len());
        self.search.check("the audit log", &audit, &[]);
    }
}

/// Ends watches. None of them may have received what it may not see.
async fn end(mut watches: JoinSet<()>) {
    watches.abort_all();
    while let Some(ended) = watches.join_next().await {
        assert!(ended.err().is_none_or(|error| error.is_cancelled()), "no leak");
    }
}

fn serve(directory: &Path) -> Process {
    let config = directory.join("informerd.yaml");
    Process::start(&["--config", config.to_str().unwrap(), "--log", EVERYTHING], None)
}

/// Sends a GET to the admin port with a bearer token.
async fn get(server: &Process, path: &str, token: Option<&str>) -> String {
    let mut stream = TcpStream::connect(server.admin).await.unwrap();
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    stream.write_all(format!("GET {path} HTTP/1.0\r\n{authorization}\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Looks at each file of the state directory again and again, the temporary ones included. Returns true if there was one.
async fn look_at_snapshots(state: PathBuf, search: Arc<Search>, is_over: CancellationToken) -> bool {
    let mut has_found = false;
    while !is_over.is_cancelled() {
        let entries = fs::read_dir(&state).into_iter().flatten().flatten();
        // A temporary file may be gone.
        for (name, content) in entries.filter_map(|entry| Some((entry.file_name(), fs::read(entry.path()).ok()?))) {
            // Directories of manifests have snapshots, too.
            let allowed = [Kind::Settings, Kind::Open, Kind::Closed];
            search.check(&format!("the file {}", name.display()), &content, &allowed);
            has_found |= search.kinds(&content).contains(&Kind::Settings);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    has_found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_where_somebody_without_the_right_may_see_it() {
    let mut world = World::start().await;
    let is_over = CancellationToken::new();
    let looking = look_at_snapshots(world.path().join("state"), Arc::clone(&world.search), is_over.clone());
    let looking = tokio::spawn(looking);
    world.use_it().await;
    for round in 0..3 {
        bad_files(world.path(), round);
        world.kube.set_mode([Mode::Failing(500), Mode::Malformed, Mode::Failing(401)][round]);
        world.proxy.lead_nowhere();
        world.proxy.cut();
        world.use_it().await;
        world.logged("file not reloaded, last good content in use", 3).await;
        good_files(world.path());
        world.kube.set_mode(Mode::Serving);
        let upstream = world.upstream.address().to_owned();
        world.proxy.lead_to(&upstream);
        world.use_it().await;
        world.restart(round != 1).await;
        world.use_it().await;
    }
    // Calls are drawn, and end early on a busy machine.
    let rights = [("reader", Kind::Secret), ("ann", Kind::Open), ("an account", Kind::Open), ("admin", Kind::Settings)];
    let are_used = async {
        while !rights.iter().all(|right| world.calls.seen.lock().contains(right)) {
            world.use_it().await;
        }
    };
    let are_used = tokio::time::timeout(DEADLINE, are_used).await;
    assert!(are_used.is_ok(), "each right is of use: {:?} of {rights:?}", world.calls.seen.lock());
    world.restart(true).await;
    is_over.cancel();
    assert!(looking.await.expect("no leak"), "snapshots were written");
    let log = std::mem::take(&mut world.logs);
    assert!(log.contains("TRACE") && log.len() > 100_000, "{}", log.len());
    world.check_files(&log);
}

/// Commands whose arguments, files or configuration have secrets in places where they do not belong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_command_quotes_a_secret_in_its_error() {
    let directory = TempDir::new().unwrap();
    let (token, search) = (Kind::Token.canary("Key"), Search::new(&[&Kind::Token.canary("Key")]));
    let (_, api) = Kube::start("none", &[]).await;
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let url = format!("http://ann:{token}@127.0.0.1:1");
    let bad_token = write("token", &format!("{token}\n{token}"));
    let resources = |source: &str| format!("resources: {{ a: {{ source: {{ {source} }} }} }}");
    let mut commands: Vec<Vec<String>> = Vec::new();
    for command in ["resources", "list a", "get a b", "watch a", "until a --for true", "watchers", "values a b"] {
        let words = command.split(' ').map(str::to_owned);
        commands.push(words.clone().chain(["--server".to_owned(), url.clone()]).collect());
        let server = ["--server", "127.0.0.1:1", "--token-file", &bad_token].map(str::to_owned);
        commands.push(words.chain(server).collect());
    }
    for flag in [
        format!("--etcd=a={url}/b"),
        format!("--etcd=a=http://ann:{token}@/b"),
        format!("--config={}", write("etcd.yaml", &resources(&format!("etcd: {{ endpoints: ['{url}'], prefix: a }}")))),
        format!("--config={}", write("relay.yaml", &resources(&format!("informerd: {{ endpoint: '{url}' }}")))),
        format!("--config={}", write("list.yaml", &resources(&format!("informerd: {{ endpoint: ['{url}'] }}")))),
        format!(
            "--config={}",
            write("rules.yaml", &format!("authentication: {{ token_file: {bad_token} }}\nresources:"))
        ),
    ] {
        commands.extend([vec!["serve".to_owned(), flag.clone()], vec!["check".to_owned(), flag]]);
    }
    for (number, broken) in ["    ]", "  - {", "    exec: 5\n", "    as-groups: x\n", "x: [\n"].into_iter().enumerate()
    {
        let text = kubeconfig(api, broken).replace(&Kind::Upstream.canary("Kube"), &token);
        let kubeconfig = write(&format!("kubeconfig{number}"), &text);
        let source = resources(&format!("kube: {{ version: v1, plural: pods, kubeconfig: {kubeconfig} }}"));
        let config = write(&format!("kube{number}.yaml"), &source);
        for command in ["serve", "check"] {
            commands.push(vec![command.to_owned(), format!("--config={config}")]);
        }
    }
    for words in commands {
        let mut command = Command::new(env!("CARGO_BIN_EXE_informerd"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("INFORMERD")) {
            command.env_remove(name);
        }
        let output = command.args(&words).output().unwrap();
        assert!(!output.status.success(), "{words:?}");
        assert!(!output.stderr.is_empty(), "{words:?}");
        search.check(&words[0], &[output.stdout, output.stderr].concat(), &[]);
    }
}
