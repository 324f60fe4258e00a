//! Kubeconfig files and the service account of a pod, read as client-go's `clientcmd` and `rest.InClusterConfig` read them.
//!
//! If `KUBECONFIG` has several files, the first that defines a name wins, and files that do not exist are skipped. Paths are
//! relative to the file that names them. Inline values (`…-data`) win over named files.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::net::small_file::{read, read_text};
use crate::source::kube::KubeCluster;

/// Cluster and user of a context: client-go's `rest.Config`. Paths are absolute, or relative to the working directory.
pub(super) struct RestConfig {
    /// Kubeconfig files that were read or looked for.
    pub(super) files: Vec<PathBuf>,
    pub(super) cluster: Cluster,
    pub(super) user: User,
}

/// Address of an API server, and its authority.
#[derive(Clone, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct Cluster {
    #[serde(deserialize_with = "or_default")]
    pub(super) server: String,
    pub(super) insecure_skip_tls_verify: Option<bool>,
    pub(super) certificate_authority: Option<PathBuf>,
    pub(super) certificate_authority_data: Option<String>,
    pub(super) proxy_url: Option<String>,
    pub(super) tls_server_name: Option<String>,
    pub(super) disable_compression: Option<bool>,
    pub(super) extensions: Option<Vec<Extension>>,
}

/// Credentials of a user.
#[derive(Clone, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct User {
    pub(super) token: Option<String>,
    #[serde(rename = "tokenFile")]
    pub(super) token_file: Option<PathBuf>,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) client_certificate: Option<PathBuf>,
    pub(super) client_certificate_data: Option<String>,
    pub(super) client_key: Option<PathBuf>,
    pub(super) client_key_data: Option<String>,
    #[serde(rename = "as")]
    pub(super) impersonate: Option<String>,
    #[serde(rename = "as-uid")]
    pub(super) impersonate_uid: Option<String>,
    #[serde(rename = "as-groups", deserialize_with = "or_default")]
    pub(super) impersonate_groups: Vec<String>,
    #[serde(rename = "as-user-extra", deserialize_with = "or_default")]
    pub(super) impersonate_extra: BTreeMap<String, Vec<String>>,
    pub(super) auth_provider: Option<AuthProvider>,
    pub(super) exec: Option<ExecConfig>,
}

/// Exec plugin.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ExecConfig {
    pub(super) api_version: String,
    pub(super) command: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) args: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) env: Vec<ExecEnv>,
    pub(super) install_hint: Option<String>,
    pub(super) interactive_mode: Option<String>,
    pub(super) provide_cluster_info: bool,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(super) struct ExecEnv {
    pub(super) name: String,
    pub(super) value: String,
}

/// Auth provider: a plugin that is, or was, built into client-go.
#[derive(Clone, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(super) struct AuthProvider {
    pub(super) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) config: BTreeMap<String, String>,
}

#[derive(Clone, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Extension {
    name: String,
    extension: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Kubeconfig {
    current_context: Option<String>,
    #[serde(deserialize_with = "or_default")]
    clusters: Vec<NamedCluster>,
    #[serde(deserialize_with = "or_default")]
    users: Vec<NamedUser>,
    #[serde(deserialize_with = "or_default")]
    contexts: Vec<NamedContext>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedCluster {
    name: String,
    #[serde(deserialize_with = "or_default")]
    cluster: Cluster,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedUser {
    name: String,
    #[serde(deserialize_with = "or_default")]
    user: User,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedContext {
    name: String,
    #[serde(deserialize_with = "or_default")]
    context: Context,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    #[serde(deserialize_with = "or_default")]
    user: String,
}

/// Lookup of environment variables by name; empty ones count as unset.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const SERVICE_HOST: &str = "KUBERNETES_SERVICE_HOST";
const SERVICE_PORT: &str = "KUBERNETES_SERVICE_PORT";
/// Extension of a cluster for exec plugins that receive the cluster.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

// === impl RestConfig ===

impl RestConfig {
    /// Loads the cluster and user of a context, without a connection or a plugin.
    pub(super) fn load(cluster: &KubeCluster, env: Env<'_>) -> Result<Self, String> {
        let files = files(cluster, env);
        let kubeconfig = Kubeconfig::read(&files)?;
        let Some(kubeconfig) = kubeconfig else {
            return match &cluster.kubeconfig {
                Some(path) => Err(format!("{}: no such file; correct the path of the kubeconfig", path.display())),
                None if cluster.context.is_none() && env(SERVICE_HOST).is_some() => in_cluster(env),
                None => Err(no_kubeconfig(&files)),
            };
        };
        let (cluster, user) = kubeconfig.select(cluster.context.as_deref())?;
        Ok(Self { files, cluster, user })
    }
}

// === impl Kubeconfig ===

impl Kubeconfig {
    /// Reads and merges files; `None` if there are none.
    fn read(files: &[PathBuf]) -> Result<Option<Self>, String> {
        let mut merged: Option<Self> = None;
        for path in files {
            if !path.exists() {
                continue;
            }
            let text = read_text(path)?;
            let parsed = serde_saphyr::from_str::<Option<Self>>(&text);
            let parsed =
                parsed.map_err(|error| format!("{}: is not a kubeconfig, at {}", path.display(), place(&error)))?;
            let directory = path.parent().unwrap_or(Path::new(""));
            let next = parsed.unwrap_or_default().relative_to(directory);
            match &mut merged {
                Some(merged) => merged.append(next),
                None => merged = Some(next),
            }
        }
        Ok(merged)
    }

    /// Resolves the paths in a file against its directory.
    fn relative_to(mut self, directory: &Path) -> Self {
        let resolve = |path: &mut Option<PathBuf>| {
            if let Some(path) = path {
                *path = directory.join(&*path);
            }
        };
        for NamedCluster { cluster, .. } in &mut self.clusters {
            resolve(&mut cluster.certificate_authority);
        }
        for NamedUser { user, .. } in &mut self.users {
            resolve(&mut user.client_certificate);
            resolve(&mut user.client_key);
            resolve(&mut user.token_file);
            // A command without a slash is looked up in PATH.
            if let Some(exec) = user.exec.as_mut().filter(|exec| exec.command.contains('/')) {
                exec.command = directory.join(&exec.command).display().to_string();
            }
        }
        self
    }

    /// Adds what is not defined yet. Names are looked up from the front, so that the first wins.
    fn append(&mut self, next: Self) {
        if self.current_context.as_deref().unwrap_or_default().is_empty() {
            self.current_context = next.current_context;
        }
        self.clusters.extend(next.clusters);
        self.users.extend(next.users);
        self.contexts.extend(next.contexts);
    }

    fn select(self, context: Option<&str>) -> Result<(Cluster, User), String> {
        let current = self.current_context.as_deref().filter(|context| !context.is_empty());
        let name = context.or(current);
        let name = name.ok_or("the kubeconfig has no current context; write a `context`")?;
        let Some(NamedContext { context, .. }) = self.contexts.iter().find(|known| known.name == name) else {
            let known: Vec<&str> = self.contexts.iter().map(|known| known.name.as_str()).collect();
            return Err(format!("context {name:?} not found in the kubeconfig (known: {})", known.join(", ")));
        };
        let Some(NamedCluster { cluster, .. }) = self.clusters.into_iter().find(|known| known.name == context.cluster)
        else {
            return Err(format!("cluster {:?} of context {name:?} not found in the kubeconfig", context.cluster));
        };
        if cluster.server.is_empty() {
            return Err(format!("cluster {:?} of the kubeconfig has no `server`", context.cluster));
        }
        // client-go treats an undefined user as one without credentials.
        let user = self.users.into_iter().find(|known| known.name == context.user);
        Ok((cluster, user.unwrap_or_default().user))
    }
}

// === impl Cluster ===

impl Cluster {
    /// Returns the certificates that may sign the API server's, in PEM; `None` for those that the system trusts.
    pub(super) fn authority(&self) -> Result<Option<Vec<u8>>, String> {
        pem(
            "certificate-authority-data",
            self.certificate_authority_data.as_deref(),
            self.certificate_authority.as_deref(),
        )
    }

    /// Returns the extension for exec plugins.
    pub(super) fn exec_config(&self) -> Option<&Value> {
        let extension = self.extensions.iter().flatten().find(|extension| extension.name == EXEC_EXTENSION)?;
        Some(&extension.extension)
    }
}

// === impl User ===

impl User {
    /// Returns the client certificate and its key, concatenated, in PEM.
    pub(super) fn identity(&self) -> Result<Option<Vec<u8>>, String> {
        let certificate = pem(
            "client-certificate-data",
            self.client_certificate_data.as_deref(),
            self.client_certificate.as_deref(),
        )?;
        let key = pem("client-key-data", self.client_key_data.as_deref(), self.client_key.as_deref())?;
        match (certificate, key) {
            (Some(mut certificate), Some(key)) => {
                certificate.push(b'\n');
                certificate.extend(key);
                Ok(Some(certificate))
            }
            (None, None) => Ok(None),
            (Some(_), None) => Err("the kubeconfig has a client certificate without a client key".to_owned()),
            (None, Some(_)) => Err("the kubeconfig has a client key without a client certificate".to_owned()),
        }
    }
}

/// Returns the paths to look for a kubeconfig at.
fn files(cluster: &KubeCluster, env: Env<'_>) -> Vec<PathBuf> {
    if let Some(path) = &cluster.kubeconfig {
        return vec![path.clone()];
    }
    if let Some(list) = env("KUBECONFIG") {
        return std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect();
    }
    env("HOME").map(|home| Path::new(&home).join(".kube/config")).into_iter().collect()
}

fn no_kubeconfig(files: &[PathBuf]) -> String {
    if files.is_empty() {
        return "no kubeconfig: neither KUBECONFIG nor HOME is set; name one, or run inside a cluster".to_owned();
    }
    let files: Vec<_> = files.iter().map(|path| path.display().to_string()).collect();
    format!("no kubeconfig: none of {} exists; name one, or run inside a cluster", files.join(", "))
}

/// Returns the service account that Kubernetes mounts into a pod.
fn in_cluster(env: Env<'_>) -> Result<RestConfig, String> {
    let host = env(SERVICE_HOST).unwrap_or_default();
    let port = env(SERVICE_PORT).ok_or_else(|| format!("{SERVICE_HOST} is set, but {SERVICE_PORT} is not"))?;
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let (token, authority) = (Path::new(SERVICE_ACCOUNT).join("token"), Path::new(SERVICE_ACCOUNT).join("ca.crt"));
    for path in [&token, &authority] {
        read_text(path).map_err(|problem| {
            format!(
                "the service account of this pod: {problem}; mount its token (automountServiceAccountToken), or name a kubeconfig"
            )
        })?;
    }
    let cluster = Cluster {
        server: format!("https://{host}:{port}"),
        certificate_authority: Some(authority),
        ..Cluster::default()
    };
    Ok(RestConfig { files: Vec::new(), cluster, user: User { token_file: Some(token), ..User::default() } })
}

/// Returns an inline base64 value, or else the content of a file.
fn pem(key: &str, data: Option<&str>, path: Option<&Path>) -> Result<Option<Vec<u8>>, String> {
    use base64::prelude::{BASE64_STANDARD, Engine};
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        // YAML may break a long text over lines.
        let data: String = data.split_whitespace().collect();
        let decoded = BASE64_STANDARD.decode(data);
        return decoded.map(Some).map_err(|error| format!("{key} of the kubeconfig is not base64: {error}"));
    }
    path.filter(|path| !path.as_os_str().is_empty()).map(read).transpose()
}

/// Returns the place of an error in YAML with credentials, which its message may quote.
pub(super) fn place(error: &serde_saphyr::Error) -> String {
    let location = error.location().map_or((0, 0), |location| (location.line(), location.column()));
    format!("line {} column {}", location.0, location.1)
}

/// Deserializes null as the default, as Go does.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
#[path = "tests/kubeconfig.rs"]
mod tests;
