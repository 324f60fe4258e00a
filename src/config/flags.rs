//! The flags of `informerd serve`, exactly as the user gives them.

use std::path::PathBuf;

use clap::{
    Arg, ArgMatches, Args, Command, FromArgMatches, ValueEnum, builder::BoolishValueParser, parser::ValueSource,
};
use serde_json::Value;

use super::{
    SourceConfig,
    keys::reference,
    rows::{Key, KeyFlag},
    section::KeyFlags,
    value::ValueError,
};

/// Flags of `informerd serve`; each overrides the environment, which overrides the file and the default.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ServeFlags {
    /// Read the configuration from this YAML file [default: no file]
    #[arg(long, value_name = "FILE", env = "INFORMERD_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,

    /// Flags of keys of the file; the table has them, with their variables.
    #[command(flatten)]
    pub keys: KeyFlags,

    /// Serve the objects of the JSON and YAML files below DIR, or only those of KIND, as resource NAME; for example
    /// `--files pods=./manifests@Pod`. Can be repeated
    #[arg(long, value_name = "NAME=DIR[@KIND]")]
    pub files: Vec<String>,

    /// Serve the objects of the JSON watch events in FILE, or on standard input for `-`, as resource NAME; for example
    /// `kubectl get pods -A -w --output-watch-events -o json | informerd serve --stream pods=-`. Can be repeated
    #[arg(long, value_name = "NAME=FILE|-")]
    pub stream: Vec<String>,

    /// Serve the keys below PREFIX of an etcd cluster as resource NAME; for example
    /// `--etcd settings=http://127.0.0.1:2379/settings/`. Several endpoints and certificates need a file. Can be repeated
    #[arg(long, value_name = "NAME=http://HOST:PORT/PREFIX")]
    pub etcd: Vec<String>,

    /// Relay a resource of another informerd, RESOURCE or the one of the same name, as resource NAME; for example
    /// `--relay pods=http://127.0.0.1:50051`. Certificates need a file. Can be repeated
    #[arg(long, value_name = "NAME=http://HOST:PORT[/RESOURCE]")]
    pub relay: Vec<String>,

    /// User for every --etcd
    #[arg(long, value_name = "NAME", env = "INFORMERD_ETCD_USERNAME", hide_env_values = true)]
    pub etcd_username: Option<String>,

    /// File with the password of that user, read at each connection
    #[arg(long, value_name = "FILE", env = "INFORMERD_ETCD_PASSWORD_FILE", hide_env_values = true)]
    pub etcd_password_file: Option<PathBuf>,

    /// Serve the objects of a Kubernetes API of one kind, in all namespaces or in one, as resource NAME; for example `--kube
    /// pods=v1/pods` or `--kube web=apps/v1/deployments@shop`. Can be repeated
    #[arg(long, value_name = "NAME=[GROUP/]VERSION/PLURAL[@NAMESPACE]")]
    pub kube: Vec<String>,

    /// Kubeconfig for every --kube [default: KUBECONFIG, ~/.kube/config, or the service account in a cluster]
    #[arg(long, value_name = "FILE", env = "INFORMERD_KUBECONFIG", hide_env_values = true)]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig for every --kube [default: its current context]
    #[arg(long, value_name = "NAME", env = "INFORMERD_KUBE_CONTEXT", hide_env_values = true)]
    pub kube_context: Option<String>,

    /// Format of the log
    #[arg(
        long,
        value_name = "FORMAT",
        env = "INFORMERD_LOG_FORMAT",
        hide_env_values = true,
        value_enum,
        default_value_t
    )]
    pub log_format: LogFormat,

    /// Log level: error, warn, info, debug or trace; or a filter such as `info,informerd::watch=debug`
    #[arg(long, value_name = "FILTER", env = "INFORMERD_LOG", hide_env_values = true, default_value = DEFAULT_LOG)]
    pub log: String,
}

/// Name and source of the resource that a flag defines, or its problem.
pub(super) type Flagged<'f> = Result<(&'f str, SourceConfig), ValueError>;

/// Format of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, ValueEnum)]
pub enum LogFormat {
    /// Lines of text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

const DEFAULT_LOG: &str = "info";

// === impl ServeFlags ===

impl ServeFlags {
    /// Returns these flags with the flag for this key set.
    ///
    /// # Panics
    ///
    /// If the key has no flag.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        let (key, flag) = key_flags().find(|(known, _)| known.path == key).expect("a key with a flag");
        self.keys.insert(key.path, flag.to_string(), value.into());
        self
    }
}

impl Default for ServeFlags {
    /// Returns the flags of an empty command line in an empty environment.
    fn default() -> Self {
        Self {
            config: None,
            keys: KeyFlags::default(),
            files: Vec::new(),
            stream: Vec::new(),
            etcd: Vec::new(),
            relay: Vec::new(),
            etcd_username: None,
            etcd_password_file: None,
            kube: Vec::new(),
            kubeconfig: None,
            kube_context: None,
            log_format: LogFormat::default(),
            log: DEFAULT_LOG.to_owned(),
        }
    }
}

// === impl KeyFlags ===

impl FromArgMatches for KeyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Self::default();
        given.update_from_arg_matches(matches)?;
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (key, flag) in key_flags() {
            let value = if is_boolean(key) {
                matches.get_one::<bool>(flag.name).map(|value| Value::Bool(*value))
            } else {
                matches.get_one::<String>(flag.name).map(|text| Value::String(text.clone()))
            };
            if let Some(value) = value {
                self.insert(key.path, flag.to_string(), value);
                if matches.value_source(flag.name) == Some(ValueSource::EnvVariable) {
                    self.note_variable(key.path);
                }
            }
        }
        Ok(())
    }
}

impl Args for KeyFlags {
    fn augment_args(command: Command) -> Command {
        command.args(key_flags().map(|(key, flag)| {
            let default = key.default.unwrap_or("none");
            let (first, rest) = key.meaning.split_at(1);
            let help = format!("{}{rest} [default: {default}]", first.to_uppercase());
            let arg = Arg::new(flag.name)
                .long(flag.name)
                .value_name(flag.value)
                .env(flag.variable)
                .hide_env_values(true)
                .help(help);
            if !is_boolean(key) {
                return arg;
            }
            let arg = arg.num_args(0..=1).require_equals(true).default_missing_value("true");
            arg.value_parser(BoolishValueParser::new()).hide_possible_values(true)
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Returns the keys that have a flag.
fn key_flags() -> impl Iterator<Item = (&'static Key, KeyFlag)> {
    reference().iter().filter_map(|key| Some((key, key.flag?)))
}

fn is_boolean(key: &Key) -> bool {
    key.form == "boolean"
}
