mod authentication;
mod authorization;
mod etcd;
mod files;
#[cfg(feature = "kube")]
mod kube;
mod relay;
mod table;
mod views;

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use clap::Parser;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::{
    auth::CertificateNames,
    model::{IndexFunc, Indexers, Path as JsonPath},
    proto::Compression,
    source::{
        etcd::EtcdConfig,
        files::FilesConfig,
        kube::{KubeCluster, KubeConfig},
        relay::RelayConfig,
        stream::{StreamConfig, StreamPath},
    },
    watch::{BroadcasterConfig, FullChannelPolicy, QueueOptions, Retention},
};

#[derive(Debug, Parser)]
struct Serve {
    #[command(flatten)]
    flags: ServeFlags,
}

/// Parses flags as on the command line; the environment of a test run has no informerd variables.
fn flags(args: &[&str]) -> ServeFlags {
    Serve::try_parse_from([&["serve"], args].concat()).unwrap().flags
}

/// Writes a file to a directory of its own, and returns the flags for it.
fn file(yaml: impl AsRef<[u8]>, args: &[&str]) -> (TempDir, ServeFlags) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("informerd.yaml");
    fs::write(&path, yaml).unwrap();
    (directory, ServeFlags { config: Some(path), ..flags(args) })
}

fn load(yaml: &str, args: &[&str]) -> Result<Config, ConfigErrors> {
    let (_directory, flags) = file(yaml, args);
    Config::load(&flags)
}

/// Returns the problems of a file; a flag adds the resource `x`.
fn problems(yaml: &str) -> String {
    load(yaml, &["--files=x=."]).unwrap_err().to_string()
}

fn files(path: impl Into<PathBuf>, kind: Option<&str>) -> SourceConfig {
    SourceConfig::Files(FilesConfig { kind: kind.map(str::to_owned), ..FilesConfig::new(path, "") })
}

#[test]
fn defaults() {
    let config = Config::load(&flags(&["--files", "pods=./manifests@Pod"])).unwrap();
    let pods = ResourceConfig {
        name: "pods".into(),
        source: files("./manifests", Some("Pod")),
        indexers: Arc::default(),
        views: Arc::default(),
        options: ResourceOptions {
            drop_fields: None,
            allow_secrets: false,
            authorize_as: None,
            kubernetes: None,
            kubernetes_columns: Vec::new(),
            read_only_clients: false,
            ttl: None,
            verify_interval: None,
            optional: false,
            snapshot: None,
        },
    };
    let queue = QueueOptions { policy: FullChannelPolicy::Replay, length: 1024 };
    assert_eq!(config.watch.queue_options(), queue);
    let retention = Retention { size: 16 << 20, ..config.history };
    assert_eq!(config.broadcaster(), BroadcasterConfig { retention, ..BroadcasterConfig::default() });
    let expected = Config {
        general: GeneralConfig {
            listen: "127.0.0.1:50051".parse().unwrap(),
            insecure: false,
            compression: Vec::new(),
            stale_after: Duration::from_secs(15),
            state_dir: None,
            state_interval: Duration::from_secs(60),
        },
        admin: AdminConfig { listen: Some("127.0.0.1:9464".parse().unwrap()), ..AdminConfig::default() },
        kubernetes: KubernetesConfig { listen: None, warns: false },
        tls: None,
        authentication: None,
        certificates: CertificateNames::default(),
        authorization: AuthorizationConfig { authority: None, recheck: Duration::from_secs(60) },
        watch: WatchConfig {
            full_channel_policy: FullChannelPolicy::Replay,
            allowed_policies: vec![
                FullChannelPolicy::Drop,
                FullChannelPolicy::Block,
                FullChannelPolicy::Replay,
                FullChannelPolicy::Coalesce,
            ],
            queue_length: 1024,
            block_timeout: Duration::from_secs(5),
            progress_timeout: Duration::from_secs(30),
            max_watchers: 100_000,
        },
        history: Retention { age: Duration::from_secs(300), events: 100_000, size: 256 << 20 },
        limits: LimitsConfig {
            request_timeout: Duration::from_secs(10),
            peer_share: 25,
            trusted_peers: vec![],
            memory: None,
        },
        audit: AuditConfig { file: None },
        quotas: QuotasConfig { streams: None, lists_per_second: None, bulk_responses: None, bytes_held: None },
        drain: DrainConfig { delay: Duration::ZERO, period: Duration::from_secs(5) },
        resources: [("pods".to_owned(), pods)].into(),
    };
    assert_eq!(config, expected);
}

/// A file that has every kind of key.
const EVERYTHING: &str = "
listen: unix:/run/informerd.sock
admin: { listen: none }
insecure: true
compression: [gzip]
watch: { full_channel_policy: block, allowed_policies: [block, drop], queue_length: 0, block_timeout: 1s, progress_timeout: 3m, max_watchers: 7 }
history: { age: 1h, events: 8, bytes: 64KiB }
limits: { request_timeout: 5s, peer_share: 100, trusted_peers: [10.1.2.3/8, '::ffff:192.0.2.7', 2001:db8::/32], memory: 2MiB }
drain: { delay: 1s, period: 0 }
stale_after: 1ms
state_dir: ./state
state_interval: 5s
resources:
  pods:
    source: { files: { path: ./pods/./a, kind: Pod } }
    indexes: { node: { path: .spec.nodeName }, app: { label: app } }
    optional: true
    snapshot: false
  flags: { source: { files: { path: /flags } }, indexes: }
";

#[test]
fn a_file_with_everything() {
    let (directory, flags) = file(EVERYTHING, &[]);
    let config = Config::load(&flags).unwrap();
    let policies = vec![FullChannelPolicy::Block, FullChannelPolicy::Drop];
    assert_eq!(config.general.listen, ListenAddr::Unix("/run/informerd.sock".into()));
    assert_eq!((config.admin.listen, config.general.insecure), (None, true));
    assert_eq!(config.general.compression, [Compression::Gzip]);
    assert_eq!(
        config.watch,
        WatchConfig {
            full_channel_policy: FullChannelPolicy::Block,
            allowed_policies: policies,
            queue_length: 0,
            block_timeout: Duration::from_secs(1),
            progress_timeout: Duration::from_secs(180),
            max_watchers: 7,
        }
    );
    assert!(config.watch.allows(FullChannelPolicy::Drop) && !config.watch.allows(FullChannelPolicy::Replay));
    assert_eq!(config.history, Retention { age: Duration::from_secs(3600), events: 8, size: 64 << 10 });
    assert_eq!(
        config.limits,
        LimitsConfig {
            request_timeout: Duration::from_secs(5),
            peer_share: 100,
            trusted_peers: ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"]
                .map(|network| network.parse().unwrap())
                .into(),
            memory: Some(2 << 20)
        }
    );
    assert_eq!(config.drain, DrainConfig { delay: Duration::from_secs(1), period: Duration::ZERO });
    assert_eq!(config.general.stale_after, Duration::from_millis(1));
    assert_eq!(config.general.state_dir, Some(directory.path().join("state")));
    assert_eq!(config.general.state_interval, Duration::from_secs(5));
    assert_eq!(
        config.broadcaster(),
        BroadcasterConfig {
            retention: Retention { size: 16 << 10, ..config.history },
            block_timeout: Duration::from_secs(1),
            ..BroadcasterConfig::default()
        }
    );

    let indexers = Indexers::new([
        ("node".to_owned(), IndexFunc::Path(JsonPath::parse(".spec.nodeName").unwrap())),
        ("app".to_owned(), IndexFunc::Label("app".to_owned())),
    ]);
    let pods = ResourceConfig {
        name: "pods".into(),
        source: files(directory.path().join("pods/a"), Some("Pod")),
        indexers: Arc::new(indexers.unwrap()),
        views: Arc::default(),
        options: ResourceOptions {
            allow_secrets: false,
            authorize_as: None,
            kubernetes: None,
            kubernetes_columns: Vec::new(),
            read_only_clients: false,
            drop_fields: None,
            ttl: None,
            verify_interval: None,
            optional: true,
            snapshot: Some(false),
        },
    };
    assert_eq!(config.resources["pods"], pods);
    assert_eq!(config.resources["flags"].source, files("/flags", None));
    assert_eq!(config.resources["flags"].indexers, Arc::default());
    assert_eq!(config.resources.len(), 2);
}

#[test]
fn a_flag_wins_over_the_file() {
    let yaml = "{ listen: 127.0.0.1:1, admin: { listen: 127.0.0.1:2 }, insecure: true }";
    let config = load(yaml, &["--files=a=."]).unwrap();
    assert_eq!((config.general.listen.to_string(), config.general.insecure), ("127.0.0.1:1".to_owned(), true));
    assert_eq!(config.admin.listen, Some("127.0.0.1:2".parse().unwrap()));
    let args = ["--files=a=.", "--listen=[::1]:3", "--admin-listen=none", "--insecure=false"];
    let config = load(yaml, &args).unwrap();
    assert_eq!((config.general.listen.to_string(), config.general.insecure), ("[::1]:3".to_owned(), false));
    assert_eq!(config.admin.listen, None);
    let config = load("state_dir: /a", &["--files=a=.", "--state-dir=b"]).unwrap();
    assert_eq!(config.general.state_dir, Some("b".into()), "as it is: relative to the working directory");
}

#[test]
fn plain_text_beyond_loopback_must_be_allowed_explicitly() {
    let problem = |args: &[&str]| Config::load(&flags(args)).map_err(|errors| errors.to_string()).err();
    let text = "0.0.0.0:1 is not loopback and has no `tls`: add `tls: { cert: ..., key: ... }`, or --insecure (or `insecure: true`) to serve it in \
                plain text, or listen on 127.0.0.1:50051";
    assert_eq!(
        problem(&["--files=a=.", "--listen=0.0.0.0:1"]),
        Some(format!("--listen (or INFORMERD_LISTEN): {text}"))
    );
    assert_eq!(problem(&["--files=a=.", "--listen=0.0.0.0:1", "--insecure"]), None);
    assert_eq!(problem(&["--files=a=.", "--admin-listen=0.0.0.0:1"]), None);
    assert_eq!(problems("listen: 0.0.0.0:1"), format!("listen: {text}"));
    assert!(load("{ listen: 0.0.0.0:1, insecure: true }", &["--files=a=."]).is_ok());
    assert!(load("{ listen: 0.0.0.0:1, insecure: true }", &["--files=a=.", "--insecure=false"]).is_err());
}

#[test]
fn the_two_servers_do_not_share_a_port() {
    let yaml = "{ listen: 127.0.0.1:7, admin: { listen: 127.0.0.1:7 } }";
    assert_eq!(
        problems(yaml),
        "admin.listen: 127.0.0.1:7 is already the address of gRPC (listen); choose another port, or none"
    );
    assert!(load("{ listen: 127.0.0.1:0, admin: { listen: 127.0.0.1:0 } }", &["--files=a=."]).is_ok());
}

#[test]
fn without_resources_there_is_nothing_to_serve() {
    let text = "resources: nothing to serve: add a resource with `--files pods=./manifests@Pod`, or under `resources` in the \
                file that --config (or INFORMERD_CONFIG) names";
    assert_eq!(Config::load(&flags(&[])).unwrap_err().to_string(), text);
    assert_eq!(load("{}", &[]).unwrap_err().to_string(), text);
    assert_eq!(load("resources: {}", &[]).unwrap_err().to_string(), text);
    assert_eq!(load("resources: []", &[]).unwrap_err().to_string(), "resources: expected a map of keys, found a list");
    let missing = Config::load(&flags(&["--config=/none/x.yaml", "--listen=y"])).unwrap_err().to_string();
    let lines: Vec<_> = missing.lines().collect();
    assert!(
        lines.len() == 2 && lines[0].starts_with("/none/x.yaml: ") && lines[1].starts_with("--listen (or "),
        "{missing}"
    );
}

#[test]
fn a_resource_is_defined_once() {
    let yaml = "resources: { pods: { source: { files: { path: a } } } }";
    let both = load(yaml, &["--files=pods=b"]).unwrap_err().to_string();
    assert_eq!(both, "--files: resource \"pods\" is also defined in the file, as resources.pods; keep one");
    let twice = Config::load(&flags(&["--files=pods=a", "--files=pods=b"])).unwrap_err().to_string();
    assert_eq!(twice, "--files: resource \"pods\" is defined twice; keep one");
    assert_eq!(load(yaml, &["--files=more=b"]).unwrap().resources.len(), 2);
}

#[test]
fn relative_paths_are_relative_to_the_file() {
    let yaml = "resources: { pods: { source: { files: { path: ../a } } } }";
    let (directory, flags) = file(yaml, &["--files=b=b"]);
    let config = Config::load(&flags).unwrap();
    assert_eq!(config.resources["pods"].source, files(directory.path().join("../a"), None));
    assert_eq!(config.resources["b"].source, files("b", None));
}

#[test]
fn all_problems_are_reported_at_once() {
    let yaml = "
listen: here
admin: 5
watch: { queue_length: many, queue_lenght: 5, allowed_policies: [merge] }
history: { age: 0s }
resources:
  Pods: { source: { files: { path: a, kind: 5 } } }
  pods:
    source: { zookeeper: {} }
    indexes: { node: { path: \"a[\" }, both: { path: a, label: b }, none: {}, namespace: { label: a }, wrong: 1 }
  empty:
  text: text
  files: { source: { files: { } } }
";
    let found = load(yaml, &["--admin-listen=x", "--files=y"]).unwrap_err();
    assert_eq!(
        found.iter().map(ConfigError::at).collect::<Vec<_>>(),
        [
            "resources.pods.source.zookeeper",
            "watch.queue_lenght",
            "listen",
            "admin",
            "--admin-listen (or INFORMERD_ADMIN_LISTEN)",
            "watch.allowed_policies",
            "watch.queue_length",
            "history.age",
            "resources.Pods",
            "resources.Pods.source.files.kind",
            "resources.empty.source",
            "resources.files.source.files.path",
            "resources.pods.indexes.both",
            "resources.pods.indexes.namespace",
            "resources.pods.indexes.node.path",
            "resources.pods.indexes.none",
            "resources.pods.indexes.wrong",
            "resources.text",
            "--files",
        ]
    );
    let found = found.to_string();
    assert_eq!(found.lines().count(), 19);
    for line in [
        "watch.queue_length: expected an unsigned integer, found \"many\"",
        "admin: expected a map of keys, found the number 5",
        "resources.pods.indexes.both: has `path` and `label`; keep one of them",
        "resources.pods.indexes.none: is empty; write `path: .spec.nodeName`, `label: app` or an `expression`",
        "resources.pods.indexes.namespace: index \"namespace\" is built in; choose another name",
        "resources.empty.source: is missing; write for example `source: { files: { path: ./manifests } }`",
        "resources.files.source.files.path: is missing; write the path of a directory such as ./manifests",
        "resources.text: expected a map of keys, found \"text\"",
    ] {
        assert!(found.lines().any(|found| found == line), "{line}\n\n{found}");
    }
}

#[test]
fn conflicting_keys_are_rejected() {
    for (yaml, problem) in [
        ("watch: { queue_length: 65537 }", "watch.queue_length: 65537 is larger than 65536; lower it"),
        (
            "watch: { allowed_policies: [drop, block] }",
            "watch.full_channel_policy: `replay` is not in watch.allowed_policies; add it there, or choose drop or block",
        ),
        (
            "watch: { queue_length: 0 }",
            "watch.queue_length: 0 is only for the policy `block`, and this is `replay`; expected at least 1",
        ),
        (
            "watch: { full_channel_policy: drop, allowed_policies: [block], queue_length: 65537 }",
            "watch.full_channel_policy: `drop` is not in watch.allowed_policies; add it there, or choose block\n\
             watch.queue_length: 65537 is larger than 65536; lower it",
        ),
        (
            "watch: { window_bytes: 1MiB }\nresources: { a: { queue_length: 8, source: { files: { path: a } } } }",
            "resources.a.queue_length: is no key any more: the client requests it for each watch; remove the key\n\
             watch.window_bytes: is no key any more: it follows from history.bytes; remove the key",
        ),
    ] {
        assert_eq!(problems(yaml), problem);
    }
}

#[test]
fn sections_may_be_left_empty() {
    let yaml = "listen:\nadmin:\nwatch:\n  queue_length:\nhistory: {}\nlimits: ~\ndrain:\nresources:\n";
    assert_eq!(load(yaml, &["--files=a=."]), load("", &["--files=a=."]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..crate::property_config() })]

    #[test]
    fn loading_does_not_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        keys in prop::collection::vec(
            (
                "(listen|admin|watch|drain|resources|x)",
                r"[ \[{]{1,2}(pods|queue_length|source|y)?[:,]? ?([0-9]{1,20}|a|~)?[\]}]{0,2}",
            ),
            0..4,
        ),
        flag in ".{0,20}",
    ) {
        let yaml = keys.iter().map(|(key, value)| format!("{key}:{value}")).collect::<Vec<_>>().join("\n");
        for content in [bytes, yaml.into_bytes()] {
            let (_directory, mut flags) = file(content, &[]);
            flags = flags.with("listen", flag.as_str());
            flags.files.push(flag.clone());
            if let Err(errors) = Config::load(&flags) {
                prop_assert_eq!(errors.to_string().lines().count(), errors.iter().len());
            }
        }
    }
}

#[test]
fn snapshots_are_kept_only_of_sources_that_the_next_run_can_resume() {
    let resource = |source: &str, snapshot: &str| {
        format!("resources: {{ a: {{ source: {{ {source} }}, snapshot: {snapshot} }} }}")
    };
    let etcd = "etcd: { endpoints: [\"http://127.0.0.1:1\"], prefix: /a/ }";
    assert_eq!(load(&resource(etcd, "true"), &[]).unwrap().resources["a"].options.snapshot, Some(true));
    for written in [true, false] {
        let config = load(&resource("files: { path: . }", &written.to_string()), &[]).unwrap();
        assert_eq!(config.resources["a"].options.snapshot, Some(written));
    }
    let problem = "resources.a.snapshot: is not for `stream` sources, whose state a later run cannot resume; remove it";
    assert_eq!(problems(&resource("stream: { path: x }", "true")), problem);
    assert!(problems(&resource(etcd, "1")).starts_with("resources.a.snapshot: expected true or false"));
}
