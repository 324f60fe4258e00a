//! Flags and file exactly as the user writes them; `resolve` says what they mean.

use std::{collections::BTreeMap, fmt, marker::PhantomData, path::PathBuf};

use clap::{Args, ValueEnum, builder::BoolishValueParser};
use serde::{
    Deserialize, Deserializer,
    de::{
        Error, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use serde_json::Value;

/// The flags of `informerd serve`; each wins over the environment, that over the file, and that over the default.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ServeFlags {
    /// Read the configuration from this YAML file [default: no file]
    #[arg(long, value_name = "FILE", env = "INFORMERD_CONFIG")]
    pub config: Option<PathBuf>,

    /// Serve gRPC here: IP:PORT, or `unix:/path/of/socket` [default: 127.0.0.1:50051]
    #[arg(long, value_name = "ADDR", env = "INFORMERD_LISTEN")]
    pub listen: Option<String>,

    /// Serve probes and metrics over HTTP here: IP:PORT, or `none` [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDR", env = "INFORMERD_ADMIN_LISTEN")]
    pub admin_listen: Option<String>,

    /// Allow gRPC in plain text on an address that is not loopback [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        env = "INFORMERD_INSECURE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true
    )]
    pub insecure: Option<bool>,

    /// Serve the objects of the JSON and YAML files below DIR as resource NAME, only those of KIND if it is given; for
    /// example `--files pods=./manifests@Pod`. Can be repeated
    #[arg(long, value_name = "NAME=DIR[@KIND]")]
    pub files: Vec<String>,

    /// Serve what the JSON watch events of FILE, or of standard input for `-`, add up to as resource NAME; for example
    /// `kubectl get pods -A -w --output-watch-events -o json | informerd serve --stream pods=-`. Can be repeated
    #[arg(long, value_name = "NAME=FILE|-")]
    pub stream: Vec<String>,

    /// Serve the keys below PREFIX of an etcd cluster as resource NAME; for example
    /// `--etcd settings=http://127.0.0.1:2379/settings/`. Several endpoints and certificates need a file. Can be repeated
    #[arg(long, value_name = "NAME=http://HOST:PORT/PREFIX")]
    pub etcd: Vec<String>,

    /// Relay a resource of another informerd as resource NAME: the one of that name, or RESOURCE if it is given; for example
    /// `--relay pods=http://127.0.0.1:50051`. Certificates need a file. Can be repeated
    #[arg(long, value_name = "NAME=http://HOST:PORT[/RESOURCE]")]
    pub relay: Vec<String>,

    /// The user for every --etcd
    #[arg(long, value_name = "NAME", env = "INFORMERD_ETCD_USERNAME")]
    pub etcd_username: Option<String>,

    /// The file with that user's password, read at each connection
    #[arg(long, value_name = "FILE", env = "INFORMERD_ETCD_PASSWORD_FILE")]
    pub etcd_password_file: Option<PathBuf>,

    /// Serve a kind of object of a Kubernetes API as resource NAME, in one namespace if it is given; for example `--kube
    /// pods=v1/pods` or `--kube web=apps/v1/deployments@shop`. Can be repeated
    #[arg(long, value_name = "NAME=[GROUP/]VERSION/PLURAL[@NAMESPACE]")]
    pub kube: Vec<String>,

    /// The kubeconfig for every --kube [default: KUBECONFIG, ~/.kube/config, or the cluster that this runs in]
    #[arg(long, value_name = "FILE", env = "INFORMERD_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig for every --kube [default: its current context]
    #[arg(long, value_name = "NAME", env = "INFORMERD_KUBE_CONTEXT")]
    pub kube_context: Option<String>,

    /// Keep the states of --kube, --etcd and --relay resources in DIR, so that the next start serves them at once, as STALE, and
    /// asks only for what has changed since [default: none]
    #[arg(long, value_name = "DIR", env = "INFORMERD_STATE_DIR")]
    pub state_dir: Option<PathBuf>,

    /// Write the log in this format
    #[arg(long, value_name = "FORMAT", env = "INFORMERD_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,

    /// Log from this level on: error, warn, info, debug or trace, or a filter such as `info,informerd::watch=debug`
    #[arg(long, value_name = "FILTER", env = "INFORMERD_LOG", default_value = DEFAULT_LOG)]
    pub log: String,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, ValueEnum)]
pub enum LogFormat {
    /// Lines to read.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The file; what stands at a key is read later, so that every problem is found.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawConfig {
    pub(super) listen: Option<Value>,
    pub(super) admin: Section<RawAdmin>,
    pub(super) insecure: Option<Value>,
    pub(super) tls: Section<RawTls>,
    pub(super) watch: Section<RawWatch>,
    pub(super) history: Section<RawHistory>,
    pub(super) limits: Section<RawLimits>,
    pub(super) drain: Section<RawDrain>,
    pub(super) stale_after: Option<Value>,
    pub(super) state_dir: Option<Value>,
    pub(super) state_interval: Option<Value>,
    pub(super) resources: Section<BTreeMap<String, Section<RawResource>>>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawTls {
    pub(super) cert: Option<Value>,
    pub(super) key: Option<Value>,
    pub(super) client_ca: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawAdmin {
    pub(super) listen: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawWatch {
    pub(super) full_channel_policy: Option<Value>,
    pub(super) allowed_policies: Option<Value>,
    pub(super) queue_length: Option<Value>,
    pub(super) max_queue_length: Option<Value>,
    pub(super) queue_bytes: Option<Value>,
    pub(super) window_bytes: Option<Value>,
    pub(super) coalesce_bytes: Option<Value>,
    pub(super) block_timeout: Option<Value>,
    pub(super) selection_budget: Option<Value>,
    pub(super) selection_share: Option<Value>,
    pub(super) bookmark_interval: Option<Value>,
    pub(super) future_wait: Option<Value>,
    pub(super) batch_window: Option<Value>,
    pub(super) progress_timeout: Option<Value>,
    pub(super) max_watchers: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawHistory {
    pub(super) age: Option<Value>,
    pub(super) events: Option<Value>,
    pub(super) bytes: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawLimits {
    pub(super) request_bytes: Option<Value>,
    pub(super) request_timeout: Option<Value>,
    pub(super) connections: Option<Value>,
    pub(super) peer_share: Option<Value>,
    pub(super) compilations: Option<Value>,
    pub(super) page_snapshots: Option<Value>,
    pub(super) streams_per_connection: Option<Value>,
    pub(super) struct_bytes: Option<Value>,
    pub(super) memory: Option<Value>,
    pub(super) expression_steps: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawDrain {
    pub(super) delay: Option<Value>,
    pub(super) period: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawResource {
    pub(super) source: Section<RawSource>,
    pub(super) indexes: Section<BTreeMap<String, Section<RawIndex>>>,
    pub(super) optional: Option<Value>,
    pub(super) snapshot: Option<Value>,
    pub(super) full_channel_policy: Option<Value>,
    pub(super) queue_length: Option<Value>,
    pub(super) drop_fields: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawSource {
    pub(super) files: Option<Section<RawFiles>>,
    pub(super) stream: Option<Section<RawStream>>,
    pub(super) etcd: Option<Section<RawEtcd>>,
    pub(super) kube: Option<Section<RawKube>>,
    pub(super) informerd: Option<Section<RawRelay>>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawFiles {
    pub(super) path: Option<Value>,
    pub(super) kind: Option<Value>,
    pub(super) rescan: Option<Value>,
    pub(super) quiet: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawStream {
    pub(super) path: Option<Value>,
    pub(super) confirm_after: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawEtcd {
    pub(super) endpoints: Option<Value>,
    pub(super) prefix: Option<Value>,
    pub(super) username: Option<Value>,
    pub(super) password_file: Option<Value>,
    pub(super) tls: Section<RawEtcdTls>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawEtcdTls {
    pub(super) ca: Option<Value>,
    pub(super) cert: Option<Value>,
    pub(super) key: Option<Value>,
    pub(super) server_name: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawKube {
    pub(super) group: Option<Value>,
    pub(super) version: Option<Value>,
    pub(super) plural: Option<Value>,
    pub(super) namespace: Option<Value>,
    pub(super) namespaces: Option<Value>,
    pub(super) namespace_selector: Option<Value>,
    pub(super) label_selector: Option<Value>,
    pub(super) field_selector: Option<Value>,
    pub(super) metadata_only: Option<Value>,
    pub(super) page_size: Option<Value>,
    pub(super) watch_timeout: Option<Value>,
    pub(super) versions: Option<Value>,
    pub(super) kubeconfig: Option<Value>,
    pub(super) context: Option<Value>,
    pub(super) contact_timeout: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawRelay {
    pub(super) endpoint: Option<Value>,
    pub(super) resource: Option<Value>,
    pub(super) tls: Section<RawRelayTls>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawRelayTls {
    pub(super) ca: Option<Value>,
    pub(super) cert: Option<Value>,
    pub(super) key: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub(super) struct RawIndex {
    pub(super) path: Option<Value>,
    pub(super) label: Option<Value>,
    pub(super) expression: Option<Value>,
}

/// What should be a map of keys, so that reading goes on when it is not.
#[derive(Debug)]
#[cfg_attr(test, derive(serde::Serialize), serde(untagged))]
pub(super) enum Section<T> {
    /// It is, or nothing was written.
    Keys(T),
    /// It is not.
    Other(Value),
}

struct SectionVisitor<T>(PhantomData<T>);

const DEFAULT_LOG: &str = "info";

// === impl ServeFlags ===

impl Default for ServeFlags {
    /// As without any flag and in an empty environment.
    fn default() -> Self {
        Self {
            config: None,
            listen: None,
            admin_listen: None,
            insecure: None,
            files: Vec::new(),
            stream: Vec::new(),
            etcd: Vec::new(),
            relay: Vec::new(),
            etcd_username: None,
            etcd_password_file: None,
            kube: Vec::new(),
            kubeconfig: None,
            kube_context: None,
            state_dir: None,
            log_format: LogFormat::default(),
            log: DEFAULT_LOG.to_owned(),
        }
    }
}

// === impl Section ===

impl<T: Default> Default for Section<T> {
    fn default() -> Self {
        Self::Keys(T::default())
    }
}

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Section<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SectionVisitor(PhantomData))
    }
}

// === impl SectionVisitor ===

impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for SectionVisitor<T> {
    type Value = Section<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of keys")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Section<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Section::Keys)
    }

    fn visit_unit<E>(self) -> Result<Section<T>, E> {
        Ok(Section::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Section<T>, A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(list)).map(Section::Other)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Section<T>, E> {
        Ok(Section::Other(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Section<T>, E> {
        Ok(Section::Other(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Section<T>, E> {
        Ok(Section::Other(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Section<T>, E> {
        Ok(Section::Other(value.into()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Section<T>, E> {
        Ok(Section::Other(value.into()))
    }
}
