//! Resolved configuration that the server runs with: sections of the table, and values combined from several keys.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use super::{
    AdminConfig, AuditConfig, DrainConfig, GeneralConfig, KubernetesConfig, LimitsConfig, QuotasConfig,
    ResourceOptions, SubjectAccessReviewConfig, TlsConfig, TokenReviewConfig, WatchConfig,
    table::AuthorizationKeys,
    value::{self, ValueError},
};
use crate::{
    auth::{CertificateNames, JwtConfig, Rules},
    model::{FieldCut, Indexers, NamedViews, Path},
    source::{etcd::EtcdConfig, files::FilesConfig, kube::KubeConfig, relay::RelayConfig, stream::StreamConfig},
    watch::{BroadcasterConfig, FullChannelPolicy, QueueOptions, Retention},
};

/// Configuration of `informerd serve`. The default has no resource: it is for a program that serves its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// Keys outside of all sections. A `listen` address that is not local has TLS or `insecure`; `state_dir` is relative to the
    /// same directory as the TLS files.
    pub general: GeneralConfig,
    /// HTTP port for operators; not the one of gRPC.
    pub admin: AdminConfig,
    /// API of Kubernetes, for unchanged clients.
    pub kubernetes: KubernetesConfig,
    /// TLS files; `None` serves plain text. Over TCP only.
    pub tls: Option<TlsConfig>,
    /// Names of a client certificate that are its user and groups, also where a certificate of `client_ca` is all that a client needs.
    pub certificates: CertificateNames,
    /// Authenticators of clients; `None` admits every client that can connect.
    pub authentication: Option<AuthenticationConfig>,
    /// Rights of authenticated clients.
    pub authorization: AuthorizationConfig,
    /// Watches: bounds for requests of clients, and the defaults.
    pub watch: WatchConfig,
    /// History of each resource, kept for watches that lag or resume. Age: 5 minutes by default; events: 100 000; bytes:
    /// 256 MiB. None of them is 0.
    pub history: Retention,
    /// Bounds on the usage by clients.
    pub limits: LimitsConfig,
    /// Quotas of each caller.
    pub quotas: QuotasConfig,
    /// Audit log of the calls. A path other than `-` is relative to the same directory as the TLS files.
    pub audit: AuditConfig,
    /// Shutdown of the server.
    pub drain: DrainConfig,
    /// Resources by name; at least one, if the configuration was loaded.
    pub resources: BTreeMap<String, ResourceConfig>,
}

/// Authenticators of clients; at least one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuthenticationConfig {
    /// True if a client certificate is accepted; only with `client_ca` of TLS.
    pub accepts_certificates: bool,
    /// File of static bearer tokens, by their hashes.
    pub token_file: Option<PathBuf>,
    /// JSON Web Tokens of one issuer.
    pub jwt: Option<JwtConfig>,
    /// Bearer tokens that Kubernetes reviews; only in a build with the Kubernetes API.
    pub token_review: Option<TokenReviewConfig>,
}

/// Rights of authenticated clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizationConfig {
    /// Authority that decides; without one everything is denied. Only with an authenticator.
    pub authority: Option<AuthorityConfig>,
    /// Interval at which the credentials and the rights of open streams are checked again.
    pub recheck: Duration,
}

/// Authority over the rights of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthorityConfig {
    /// Rules of the configuration.
    Rules(Rules),
    /// Rules of a file, which is relative to the same directory as files of a source.
    RulesFile(PathBuf),
    /// A `SubjectAccessReview` by Kubernetes of each access.
    SubjectAccessReview(SubjectAccessReviewConfig),
}

/// Resource: objects of one source under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceConfig {
    /// Name for clients: at most 253 lowercase letters, digits, `-` and `.`, with a letter or digit at both ends.
    pub name: String,
    /// Source of the objects.
    pub source: SourceConfig,
    /// Indexes; `namespace` is always among them.
    pub indexers: Arc<Indexers>,
    /// Views that requests may name, beside or in place of those that every server has.
    pub views: Arc<NamedViews>,
    /// Other options. `snapshot` is never true for streams, whose state a later run cannot resume.
    pub options: ResourceOptions,
}

/// Source of the objects of a resource. The server sets its `resource`, and the fields that are options of the resource:
/// `drop_fields`, `ttl`, `allows_secrets`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "there is one for each resource")]
pub enum SourceConfig {
    /// JSON and YAML files below a directory.
    Files(FilesConfig),
    /// Watch events as JSON.
    Stream(StreamConfig),
    /// Keys of an etcd cluster.
    Etcd(EtcdConfig),
    /// Objects of a Kubernetes API.
    Kube(KubeConfig),
    /// Resource of another informerd.
    Informerd(RelayConfig),
    /// Source that the program brings itself; never from flags or a file.
    Own,
}

/// Fields that are removed from the objects of a `kube` source by default: large, and written for other programs.
const KUBE_DROP_FIELDS: [&str; 2] =
    [".metadata.managedFields", ".metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']"];

/// Memory of a resource for events that clients have not read yet, as a divisor of that for its history; as much again is for events
/// replayed from the history.
const WINDOW_SHARE: usize = 4;
/// Most such memory. Who reads none of it for that long reads from the history, which costs one more encoding.
const MAX_WINDOW: usize = 16 << 20;
/// Plural name of Secrets in Kubernetes.
const SECRETS: &str = "secrets";

// === impl Config ===

impl Config {
    /// Returns the bounds of each resource's Broadcaster.
    pub fn broadcaster(&self) -> BroadcasterConfig {
        BroadcasterConfig {
            retention: Retention { size: (self.history.size / WINDOW_SHARE).min(MAX_WINDOW), ..self.history },
            block_timeout: self.watch.block_timeout,
            ..BroadcasterConfig::default()
        }
    }
}

// === impl AuthorizationConfig ===

impl Default for AuthorizationConfig {
    fn default() -> Self {
        let AuthorizationKeys { recheck, .. } = AuthorizationKeys::default();
        Self { authority: None, recheck }
    }
}

// === impl WatchConfig ===

impl WatchConfig {
    /// Returns true if a client may choose this policy.
    pub fn allows(&self, policy: FullChannelPolicy) -> bool {
        self.allowed_policies.contains(&policy)
    }

    /// Returns the queue of a client that has not requested one.
    pub fn queue_options(&self) -> QueueOptions {
        QueueOptions { policy: self.full_channel_policy, length: self.queue_length }
    }
}

// === impl SourceConfig ===

impl SourceConfig {
    /// Returns true if the configuration alone shows that the objects are Secrets: core secrets of a Kubernetes API, or a resource
    /// of this name of another informerd.
    pub fn is_of_secrets(&self) -> bool {
        match self {
            Self::Kube(kube) => kube.group.is_empty() && kube.plural == SECRETS,
            Self::Informerd(relay) => relay.query.resource == SECRETS,
            Self::Files(_) | Self::Stream(_) | Self::Etcd(_) | Self::Own => false,
        }
    }
}

// === impl ResourceConfig ===

impl ResourceConfig {
    /// Checks the name of a resource.
    ///
    /// # Errors
    ///
    /// The form of a name, and the name found.
    pub fn check_name(name: &str) -> Result<(), ValueError> {
        value::check_resource_name(name)
    }

    /// Checks that Secrets are served only on request.
    ///
    /// # Errors
    ///
    /// The resource, and the key that allows it.
    pub fn check_secrets(&self) -> Result<(), ValueError> {
        if self.options.allow_secrets || !self.source.is_of_secrets() {
            return Ok(());
        }
        let key = format!("resources.{}.allow_secrets: true", self.name);
        Err(ValueError::new(format!(
            "resource {:?} has Secrets: write `{key}` in the file, and clients receive their metadata; or remove the resource",
            self.name
        )))
    }

    /// Returns true if clients receive only the metadata of objects, unless an authorization rule allows more. A source that
    /// itself requests only metadata has no data to withhold.
    pub fn is_secret(&self) -> bool {
        let is_metadata_only = matches!(&self.source, SourceConfig::Kube(kube) if kube.is_metadata_only);
        self.options.allow_secrets && !is_metadata_only
    }

    /// Returns the fields that are removed from the objects.
    pub fn drop_fields(&self) -> FieldCut {
        match (&self.options.drop_fields, &self.source) {
            (Some(fields), _) => fields.clone(),
            (None, SourceConfig::Kube(_)) => {
                let paths = KUBE_DROP_FIELDS.iter().map(|path| Path::parse(path).expect("a path"));
                FieldCut::new(paths).expect("fields that no object needs")
            }
            (None, _) => FieldCut::default(),
        }
    }
}
