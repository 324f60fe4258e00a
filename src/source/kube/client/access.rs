//! Prerequisites of a request to an API server: its address, TLS, a proxy, and credentials.
//!
//! Files are read, and plugins run, outside of the runtime's threads and for one caller at a time; the others wait for the
//! result. Files are read again when they have changed and a connection is to be opened, and when the API server refuses the
//! credentials. A plugin runs when its credentials have expired or were refused, at most once per [`PLUGIN_INTERVAL`].

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::prelude::{BASE64_STANDARD, Engine};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::time::{Instant, timeout};

use super::{
    bearer::{Bearer, READ_TIMEOUT, bearer, secret},
    exec::{self, ExecCredential},
    kubeconfig::{Cluster, ExecConfig, RestConfig, User},
    proxy::Proxy,
    tls::Trust,
};
use crate::{
    cache::SourceError,
    source::kube::{KubeCluster, SingleFlight},
};

/// Configuration and credentials for requests to one API server, until any of them changes.
pub(in crate::source::kube) struct Access {
    /// Number that differs after every change.
    pub(super) version: u64,
    /// `server` of the kubeconfig, for errors.
    pub(in crate::source::kube) url: Arc<str>,
    pub(super) host: String,
    pub(super) port: u16,
    /// Common prefix of all paths, without a trailing slash.
    pub(super) root: String,
    /// `None` for plain text.
    pub(super) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    pub(super) proxy: Option<Proxy>,
    pub(super) accepts_gzip: bool,
    headers: HeaderMap,
    bearer: Bearer,
    expires_at: Option<i64>,
}

/// Source of the [`Access`] of one context.
pub(super) struct Authenticator {
    cluster: KubeCluster,
    current: Mutex<Option<Arc<Access>>>,
    loaded: SingleFlight<Loaded>,
}

/// Requirement on an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Any that has not expired.
    Any,
    /// One from the present files.
    Fresh,
    /// Another one than this version, which the API server has refused.
    Other(u64),
}

#[derive(Default)]
struct Loaded {
    files: Option<Arc<Files>>,
    /// Files that were read last, which may not be usable.
    tried: Option<Arc<Files>>,
    run: Option<PluginRun>,
    versions: u64,
    /// Number of different contents that were loaded.
    contents: u64,
}

/// Content of the kubeconfig and the files that it names.
struct Files {
    stamps: Vec<Stamp>,
    cluster: Cluster,
    user: User,
    authority: Option<Vec<u8>>,
    identity: Option<Vec<u8>>,
    proxy: Option<Proxy>,
    trust: Trust,
    address: Address,
}

#[derive(Clone)]
struct Address {
    is_tls: bool,
    host: String,
    port: u16,
    root: String,
}

/// A file with its modification time and size; `None` if it does not exist.
#[derive(Debug, PartialEq, Eq)]
struct Stamp(PathBuf, Option<(SystemTime, u64)>);

struct PluginRun {
    exec: ExecConfig,
    ended: Instant,
    result: Result<ExecCredential, String>,
}

/// Shortest time between two runs of a plugin, even if its credentials expire or are refused.
const PLUGIN_INTERVAL: Duration = Duration::from_secs(10);
/// Characters that Go escapes in queries, and client-go in headers of extra field names: all but the unreserved ones of RFC 3986.
pub(in crate::source::kube) const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

// === impl Authenticator ===

impl Authenticator {
    pub(super) fn new(cluster: KubeCluster) -> Self {
        Self { cluster, current: Mutex::default(), loaded: SingleFlight::default() }
    }

    /// Returns an access that meets the requirement; for [`Need::Other`] the same one if there is no other.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future kills a plugin that runs for it; the next caller runs it again.
    pub(super) async fn get(&self, need: Need) -> Result<Arc<Access>, SourceError> {
        if let Some(access) = self.usable(need) {
            return Ok(access);
        }
        let mut loaded = self.loaded.lock().await;
        if let Some(access) = self.usable(need) {
            return Ok(access);
        }
        let current = self.current.lock().clone();
        match loaded.access(&self.cluster, need, current.as_ref()).await {
            Ok(access) => {
                *self.current.lock() = Some(Arc::clone(&access));
                Ok(access)
            }
            // The previous access is good until the server refuses it: a file may be missing while it is replaced.
            Err(error) => match current.filter(|access| need == Need::Fresh && !access.is_expired()) {
                Some(access) => {
                    tracing::warn!(%error, "kubeconfig not reloaded");
                    Ok(access)
                }
                None => Err(error),
            },
        }
    }

    /// Returns true if the kubeconfig, or a file that it names, has had other contents than the `seen` ones since the last call:
    /// another server, authority, proxy or user. Contents that cannot be used have not changed: files may be replaced just now, and
    /// connections are still made with the previous ones.
    pub(super) async fn has_changed(&self, seen: &mut u64) -> bool {
        let tried = self.loaded.lock().await.tried.clone();
        if let Some(tried) = tried {
            let (cluster, known) = (self.cluster.clone(), Arc::clone(&tried));
            let reading = tokio::task::spawn_blocking(move || Files::read(&cluster, Some(known), false));
            let read = timeout(READ_TIMEOUT, reading).await;
            if matches!(read, Ok(Ok(Ok(files))) if !files.has_contents_of(&tried)) {
                drop(self.get(Need::Fresh).await);
            }
        }
        // A request may have loaded the new contents, while others still have connections of the old ones.
        let contents = self.loaded.lock().await.contents;
        std::mem::replace(seen, contents) != contents
    }

    fn usable(&self, need: Need) -> Option<Arc<Access>> {
        let current = self.current.lock().clone();
        current.filter(|access| match need {
            Need::Any => !access.is_expired(),
            Need::Fresh => false,
            Need::Other(refused) => access.version != refused,
        })
    }
}

// === impl Loaded ===

impl Loaded {
    async fn access(
        &mut self,
        cluster: &KubeCluster,
        need: Need,
        current: Option<&Arc<Access>>,
    ) -> Result<Arc<Access>, SourceError> {
        let is_forced = matches!(need, Need::Other(_));
        let previous = self.files.clone();
        let cluster = cluster.clone();
        let reading = tokio::task::spawn_blocking(move || Files::read(&cluster, previous, is_forced));
        let files = match timeout(READ_TIMEOUT, reading).await {
            Ok(Ok(files)) => files.map_err(SourceError::Unavailable)?,
            Ok(Err(error)) => return Err(SourceError::Unavailable(error.to_string())),
            Err(_) => {
                let problem = format!(
                    "the kubeconfig and the files that it names cannot be read within {READ_TIMEOUT:?}; check where they are mounted"
                );
                return Err(SourceError::Unavailable(problem));
            }
        };
        self.tried = Some(Arc::clone(&files));
        let is_same = self.files.as_ref().is_some_and(|known| Arc::ptr_eq(known, &files));
        let before = self.run.as_ref().and_then(|run| run.result.clone().ok());
        let credential = match files.user.plugin() {
            Some(exec) => Some(self.credential(exec, &files.cluster, need).await?),
            None => None,
        };
        let current = current.filter(|_| is_same && before.filter(|_| credential.is_some()) == credential);
        if let Some(current) = current {
            return Ok(Arc::clone(current));
        }
        let access = files.access(self.versions + 1, credential);
        let access =
            access.map_err(|problem| SourceError::Unavailable(format!("{}: {problem}", files.cluster.server)))?;
        self.contents += u64::from(self.files.as_ref().is_none_or(|known| !files.has_contents_of(known)));
        (self.files, self.versions) = (Some(files), access.version);
        Ok(Arc::new(access))
    }

    async fn credential(
        &mut self,
        exec: &ExecConfig,
        cluster: &Cluster,
        need: Need,
    ) -> Result<ExecCredential, SourceError> {
        // The position of the resource stays valid: when the plugin succeeds, the watch resumes.
        let failure =
            |problem: &String| SourceError::Busy(format!("{}: {problem}", cluster.server.trim_end_matches('/')));
        if let Some(PluginRun { ended, result, .. }) = self.run.as_ref().filter(|run| run.exec == *exec) {
            let is_recent = ended.elapsed() < PLUGIN_INTERVAL;
            match result {
                Ok(credential) if is_recent || !(is_past(credential.expires_at) || matches!(need, Need::Other(_))) => {
                    return Ok(credential.clone());
                }
                Err(problem) if is_recent => return Err(failure(problem)),
                _ => {}
            }
        }
        tracing::debug!(command = exec.command, "exec plugin started");
        let result = exec::run(exec, cluster).await;
        let answer = result.as_ref().map_err(failure).cloned();
        self.run = Some(PluginRun { exec: exec.clone(), ended: Instant::now(), result });
        answer
    }
}

// === impl Files ===

impl Files {
    /// Reads all files, unless none has changed.
    fn read(cluster: &KubeCluster, previous: Option<Arc<Self>>, is_forced: bool) -> Result<Arc<Self>, String> {
        if let Some(previous) = &previous
            && !is_forced
            && previous.stamps.iter().all(|stamp| Stamp::of(&stamp.0) == *stamp)
        {
            return Ok(Arc::clone(previous));
        }
        let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let RestConfig { files, cluster, user } = RestConfig::load(cluster, &env)?;
        let named = [&cluster.certificate_authority, &user.client_certificate, &user.client_key];
        let named = named.into_iter().flatten();
        // Taken before the files are read, so that a change in the meantime is read again.
        let stamps: Vec<Stamp> = files.iter().chain(named).map(|path| Stamp::of(path)).collect();
        let (authority, identity) = (cluster.authority()?, user.identity()?);
        let address = Address::parse(&cluster.server)?;
        let Address { is_tls, ref host, port, .. } = address;
        let proxy = Proxy::choose(cluster.proxy_url.as_deref(), is_tls, host, port, &env)?;
        if let Some(previous) = previous
            && (&previous.cluster, &previous.user) == (&cluster, &user)
            && (&previous.authority, &previous.identity) == (&authority, &identity)
            && previous.stamps == stamps
        {
            return Ok(previous);
        }
        let trust = if cluster.insecure_skip_tls_verify == Some(true) || !is_tls {
            Trust::AnyCertificate
        } else {
            Trust::read(authority.as_deref()).map_err(|problem| format!("{}: {problem}", cluster.server))?
        };
        Ok(Arc::new(Self { stamps, cluster, user, authority, identity, proxy, trust, address }))
    }

    fn has_contents_of(&self, other: &Self) -> bool {
        (&self.cluster, &self.user, &self.proxy) == (&other.cluster, &other.user, &other.proxy)
            && (&self.authority, &self.identity) == (&other.authority, &other.identity)
    }

    fn access(&self, version: u64, credential: Option<ExecCredential>) -> Result<Access, String> {
        let Self { cluster, user, identity, proxy, trust, address, .. } = self;
        let ExecCredential { token, identity: issued, expires_at } =
            credential.unwrap_or(ExecCredential { token: None, identity: None, expires_at: None });
        let tls = if address.is_tls {
            // As client-go, which has it for debugging.
            let is_http2 = std::env::var_os("DISABLE_HTTP2").is_none_or(|value| value.is_empty());
            let config = trust.client_config(identity.as_deref().or(issued.as_deref()), is_http2)?;
            let name = cluster.tls_server_name.as_deref().filter(|name| !name.is_empty()).unwrap_or(&address.host);
            let name = ServerName::try_from(name.to_owned()).map_err(|_| format!("{name:?} is not a host name"))?;
            Some((Arc::new(config), name))
        } else {
            None
        };
        let bearer = match (&user.token_file, token.as_deref().or(user.token.as_deref())) {
            (Some(path), fallback) if !path.as_os_str().is_empty() => {
                let last = fallback.map(bearer).transpose()?;
                Bearer::File { path: path.clone(), last: Mutex::new(last) }
            }
            (_, token) => Bearer::Fixed(token.filter(|token| !token.is_empty()).map(bearer).transpose()?),
        };
        let mut headers = user.headers()?;
        // The API's audit log and its flow control identify the client by it.
        let user_agent = HeaderValue::from_static(concat!("informerd/", env!("CARGO_PKG_VERSION")));
        headers.insert(header::USER_AGENT, user_agent);
        let Address { host, port, root, .. } = address.clone();
        Ok(Access {
            version,
            url: cluster.server.trim_end_matches('/').into(),
            host,
            port,
            root,
            tls,
            proxy: proxy.clone(),
            accepts_gzip: cluster.disable_compression != Some(true),
            headers,
            bearer,
            expires_at,
        })
    }
}

// === impl Address ===

impl Address {
    fn parse(server: &str) -> Result<Self, String> {
        let problem = |why: &str| format!("server {server:?} of the kubeconfig: {why}; write https://HOST:PORT");
        // As client-go: a host without a scheme means plain text.
        let text = if server.contains("://") { server.to_owned() } else { format!("http://{server}") };
        let uri: Uri = text.parse().map_err(|error: http::uri::InvalidUri| problem(&error.to_string()))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(problem("the scheme is neither https nor http")),
        };
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(problem("no host"));
        }
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Ok(Self { is_tls, host, port, root: uri.path().trim_end_matches('/').to_owned() })
    }
}

// === impl User ===

impl User {
    /// Returns the plugin to run; static credentials in the kubeconfig have precedence.
    fn plugin(&self) -> Option<&ExecConfig> {
        let has = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let has_own = has(&self.token)
            || has(&self.username)
            || self.token_file.is_some()
            || self.client_certificate.is_some()
            || has(&self.client_certificate_data);
        self.exec.as_ref().filter(|_| !has_own)
    }

    /// Returns the headers of every request, without a token.
    fn headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        if let Some(username) = self.username.as_ref().filter(|name| !name.is_empty()) {
            let password = self.password.as_deref().unwrap_or_default();
            let credentials = BASE64_STANDARD.encode(format!("{username}:{password}"));
            headers.insert(header::AUTHORIZATION, secret(&format!("Basic {credentials}"), "the password")?);
        } else if let Some(provider) = self.auth_provider.as_ref().filter(|_| self.token.is_none()) {
            // client-go still has only OIDC; kubectl would renew its token.
            let token = ["id-token", "access-token"].into_iter().find_map(|key| provider.config.get(key));
            let token = token.ok_or_else(|| {
                format!("auth-provider {:?} of the kubeconfig is not supported; use an exec plugin", provider.name)
            })?;
            headers.insert(header::AUTHORIZATION, bearer(token)?);
        }
        let text = |text: &str| {
            HeaderValue::from_str(text).map_err(|_| format!("cannot impersonate {text:?}: not a valid header value"))
        };
        if let Some(name) = self.impersonate.as_ref().filter(|name| !name.is_empty()) {
            headers.insert("impersonate-user", text(name)?);
        }
        if let Some(uid) = self.impersonate_uid.as_ref().filter(|uid| !uid.is_empty()) {
            headers.insert("impersonate-uid", text(uid)?);
        }
        for group in &self.impersonate_groups {
            headers.append("impersonate-group", text(group)?);
        }
        for (key, values) in &self.impersonate_extra {
            let name = format!("impersonate-extra-{}", utf8_percent_encode(&key.to_lowercase(), ESCAPED));
            let name = HeaderName::try_from(name).map_err(|_| {
                format!("invalid extra field {key:?} of the impersonated user: not a valid header name")
            })?;
            for value in values {
                headers.append(name.clone(), text(value)?);
            }
        }
        Ok(headers)
    }
}

// === impl Access ===

impl Access {
    /// Returns the headers of a request.
    pub(super) async fn headers(&self) -> Result<HeaderMap, SourceError> {
        let mut headers = self.headers.clone();
        if let Some(bearer) = self.bearer.get().await.map_err(SourceError::Unavailable)? {
            headers.insert(header::AUTHORIZATION, bearer);
        }
        Ok(headers)
    }

    /// Returns the authority, as in the header `Host`.
    pub(super) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    fn is_expired(&self) -> bool {
        is_past(self.expires_at)
    }
}

// === impl Stamp ===

impl Stamp {
    fn of(path: &Path) -> Self {
        let metadata = std::fs::metadata(path).ok();
        let stamp = metadata.and_then(|metadata| Some((metadata.modified().ok()?, metadata.len())));
        Self(path.to_owned(), stamp)
    }
}

fn is_past(time: Option<i64>) -> bool {
    let now = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs().cast_signed());
    time.is_some_and(|time| time <= now)
}

#[cfg(test)]
#[path = "tests/access.rs"]
mod tests;
