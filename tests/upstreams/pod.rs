//! Pod of a manifest, run as the kubelet would run it, on this machine: containers with roots of their own, volumes with data of
//! the API server, and probes from outside.

use std::{
    fs::File,
    path::PathBuf,
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use crate::{
    DEADLINE,
    apiserver::ApiServer,
    manifest::{items, named},
    root::{First, Image, Root},
};

/// State that the containers of one pod share.
pub(crate) struct Pod {
    namespace: String,
    spec: Value,
    /// Port of the API server for the containers.
    api: u16,
    logs: TempDir,
    /// Permit for the ports of the manifest, which this machine has only once.
    _ports: SemaphorePermit<'static>,
}

/// Container of a pod.
pub(crate) struct Container {
    spec: Value,
    root: Root,
    command: Vec<String>,
    user: (u32, u32),
    environment: Vec<(String, String)>,
    log: PathBuf,
    pub(crate) starts: usize,
    process: Option<First>,
}

/// Address of the pod that probes use, and not its loopback: 0.0.0.0 listens here, and 127.0.0.1 does not.
pub(crate) const ADDRESS: &str = "127.0.0.2";

/// Node of every pod here.
pub(crate) const NODE: &str = "node-a";

static PORTS: Semaphore = Semaphore::const_new(1);

// === impl Pod ===

impl Pod {
    /// Creates a pod from the template of a Deployment; the API server is behind a port of this machine.
    pub(crate) async fn new(namespace: &str, template: &Value, api: u16) -> Self {
        let (spec, logs) = (template["spec"].clone(), TempDir::new().unwrap());
        Self { namespace: namespace.to_owned(), spec, api, logs, _ports: PORTS.acquire().await.unwrap() }
    }

    /// Returns the time that it may take to end.
    pub(crate) fn grace_period(&self) -> Duration {
        Duration::from_secs(self.spec["terminationGracePeriodSeconds"].as_u64().unwrap())
    }

    /// Creates a container of `initContainers` or of `containers`, with its volumes, without starting it.
    pub(crate) fn container(&self, apiserver: &ApiServer, spec: &Value) -> Container {
        let (image, root) = (Image::read(), Root::of_image());
        for mount in items(&spec["volumeMounts"]) {
            let volume = named(&self.spec["volumes"], mount["name"].as_str().unwrap());
            self.mount(apiserver, &root, mount["mountPath"].as_str().unwrap(), volume);
        }
        assert_eq!(spec["command"], Value::Null, "the entrypoint of the image");
        let arguments = items(&spec["args"]).iter().map(|argument| argument.as_str().unwrap().to_owned());
        let user = |key: &str, default: u32| self.spec["securityContext"][key].as_u64().map_or(default, |id| id as u32);
        Container {
            log: self.logs.path().join(spec["name"].as_str().unwrap()),
            spec: spec.clone(),
            root,
            command: image.entrypoint.iter().cloned().chain(arguments).collect(),
            user: (user("runAsUser", image.user), user("runAsGroup", image.group)),
            environment: [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", &self.api.to_string())]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into_iter()
                .chain(items(&spec["env"]).iter().map(variable))
                .collect(),
            starts: 0,
            process: None,
        }
    }

    fn mount(&self, apiserver: &ApiServer, root: &Root, path: &str, volume: &Value) {
        let config_map = |source: &Value| {
            let name = source["name"].as_str().unwrap();
            for (key, text) in apiserver.data(&self.namespace, name) {
                let mut items = items(&source["items"]).iter();
                let item = items.find(|item| item["key"] == key);
                assert!(item.is_none_or(|item| item["path"] == key));
                if item.is_some() || source["items"].is_null() {
                    root.write(&format!("{path}/{key}"), text);
                }
            }
        };
        if volume["configMap"].is_object() {
            return config_map(&volume["configMap"]);
        }
        if volume["emptyDir"].is_object() {
            return root.directory(path);
        }
        for source in items(&volume["projected"]["sources"]) {
            if source["configMap"].is_object() {
                config_map(&source["configMap"]);
            } else if source["downwardAPI"].is_object() {
                for item in items(&source["downwardAPI"]["items"]) {
                    assert_eq!(item["fieldRef"]["fieldPath"], "metadata.namespace");
                    root.write(&format!("{path}/{}", item["path"].as_str().unwrap()), &self.namespace);
                }
            } else {
                let file = source["serviceAccountToken"]["path"].as_str().expect("a source that is known here");
                root.write(&format!("{path}/{file}"), self.token(apiserver));
            }
        }
    }

    /// Returns the token of its service account, signed by the API server.
    fn token(&self, apiserver: &ApiServer) -> String {
        let account = self.spec["serviceAccountName"].as_str().unwrap();
        let token = apiserver.kubectl(&["create", "token", account, "-n", &self.namespace]);
        token.trim().to_owned()
    }
}

/// Returns a variable of a container.
fn variable(variable: &Value) -> (String, String) {
    let value = variable["value"].as_str().unwrap_or_else(|| {
        assert_eq!(variable["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName", "a field that is known here");
        NODE
    });
    (variable["name"].as_str().unwrap().to_owned(), value.to_owned())
}

// === impl Container ===

impl Container {
    pub(crate) async fn start(&mut self) {
        let log = |name: &str| File::options().create(true).append(true).open(self.log.with_extension(name)).unwrap();
        let mut command = self.command(&self.command);
        self.process = Some(First::spawn(command.stdout(log("out")).stderr(log("err"))).await);
        self.starts += 1;
    }

    /// Runs informerd in the container, as `kubectl exec` would.
    pub(crate) fn informerd(&self, arguments: &[&str]) -> String {
        let words = [&self.command[..1], &arguments.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()].concat();
        let output = self.command(&words).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn command(&self, words: &[String]) -> Command {
        let mut command = self.root.command(self.user.0, self.user.1, words);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a probe once. Returns the reason if it fails.
    pub(crate) async fn probe(&self, name: &str) -> Result<(), String> {
        let (probe, ask) = (&self.spec[name], &self.spec[name]["httpGet"]);
        let port = named(&self.spec["ports"], ask["port"].as_str().unwrap())["containerPort"].as_u64().unwrap() as u16;
        let path = ask["path"].as_str().unwrap();
        let asked = async {
            let mut stream = TcpStream::connect((ADDRESS, port)).await?;
            stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {ADDRESS}\r\n\r\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        match timeout(Duration::from_secs(probe["timeoutSeconds"].as_u64().unwrap()), asked).await {
            Ok(Ok(answer)) if answer.starts_with("HTTP/1.0 200 ") => Ok(()),
            Ok(Ok(answer)) => Err(answer),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        }
    }

    /// Probes in the periods of the manifest until it succeeds, and restarts the container if it ends, as a sidecar is.
    pub(crate) async fn started(&mut self) {
        let probe = &self.spec["startupProbe"];
        let period = Duration::from_secs(probe["periodSeconds"].as_u64().unwrap());
        let (begun, mut failures) = (Instant::now(), probe["failureThreshold"].as_u64().unwrap());
        while let Err(problem) = self.probe("startupProbe").await {
            failures -= 1;
            assert!(failures > 0 && begun.elapsed() < DEADLINE, "{problem}\n{}", self.log("err"));
            if self.has_ended().is_some() {
                self.start().await;
            }
            tokio::time::sleep(period).await;
        }
    }

    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.process.as_mut().unwrap().has_ended()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().pid()
    }

    /// Sends SIGKILL.
    pub(crate) async fn kill(&mut self) {
        self.signal("-KILL");
        assert_ne!(self.ended(DEADLINE).await, Some(0));
    }

    /// Sends SIGTERM, and returns the exit code.
    pub(crate) async fn terminate(&mut self, within: Duration) -> Option<i32> {
        self.signal("-TERM");
        self.ended(within).await
    }

    pub(crate) fn signal(&self, name: &str) {
        self.process.as_ref().unwrap().signal(name);
    }

    pub(crate) async fn ended(&mut self, within: Duration) -> Option<i32> {
        let ended = self.process.as_mut().unwrap().end(within).await;
        ended.unwrap_or_else(|error| panic!("it does not end: {error}\n{}", self.log("err"))).code()
    }

    /// Returns the text of a file of the container, if it exists.
    pub(crate) fn file(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.path(path)).ok()
    }

    /// Returns what it has written to `out` or to `err`.
    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.log.with_extension(name)).unwrap_or_default()
    }
}
