//! Requests to one Kubernetes API, and what their failures mean.
//!
//! The client of the kube crate brings TLS, exec plugins and tokens that are read again. It is made when it is first needed and
//! made anew, from the files as they are then, when its certificate ends, when the API does not know us, and when nothing is to
//! be reached.

use std::{error::Error as StdError, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use kube::{
    Client, Config,
    client::Body,
    config::{InClusterError, KubeConfigOptions, Kubeconfig},
};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::{Instant, timeout};

use super::KubeCluster;
use crate::{
    cache::{SourceError, random_fraction},
    source::{text::one_line, watch_event::status_text},
};

/// Asks one API.
#[derive(Debug)]
pub(super) struct Api {
    cluster: KubeCluster,
    answer_timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connected: Option<Connected>,
    /// An answer has asked for patience.
    not_before: Option<Instant>,
}

#[derive(Clone)]
struct Connected {
    client: Client,
    url: Arc<str>,
}

/// What `metav1.Status` says for programs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    code: Option<u16>,
    reason: Option<String>,
    message: Option<String>,
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    causes: Option<Vec<Cause>>,
    retry_after_seconds: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: Option<String>,
    message: Option<String>,
}

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An absurd Retry-After is not obeyed.
const MIN_PATIENCE: Duration = Duration::from_secs(1);
const MAX_PATIENCE: Duration = Duration::from_secs(5 * 60);
/// Of an answer that is not what was asked for.
const MAX_FAILURE_BYTES: usize = 64 << 10;
/// Of a page. A list that is not paged is one.
const MAX_PAGE_BYTES: usize = 1 << 30;
const TOO_LARGE: &str = "Too large resource version";

// === impl Api ===

impl Api {
    pub(super) fn new(cluster: KubeCluster, answer_timeout: Duration) -> Self {
        Self { cluster, answer_timeout, state: Mutex::default() }
    }

    /// Asks for a path and its query; the answer is a success, and its body is still to be read.
    pub(super) async fn open(&self, target: &str) -> Result<Body, SourceError> {
        let not_before = self.state.lock().not_before;
        if let Some(not_before) = not_before {
            tokio::time::sleep_until(not_before).await;
        }
        let mut is_known = true;
        loop {
            let Connected { client, url } = self.connect().await?;
            let request = Request::get(target).header(header::ACCEPT, "application/json").body(Body::empty());
            let request = request.map_err(|error| SourceError::Unavailable(format!("{target}: {error}")))?;
            let answer = match timeout(self.answer_timeout, client.send(request)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => {
                    if !has_connected(&error) {
                        self.forget();
                    }
                    return Err(unreachable(&url, &error));
                }
                Err(_) => {
                    self.forget();
                    return Err(SourceError::Busy(format!("{url}: no answer within {:?}", self.answer_timeout)));
                }
            };
            if answer.status().is_success() {
                return Ok(answer.into_body());
            }
            // A token that was renewed is in the file already; once.
            if answer.status() == StatusCode::UNAUTHORIZED && std::mem::take(&mut is_known) {
                self.forget();
                continue;
            }
            return Err(self.refused(&url, answer).await);
        }
    }

    /// Asks for a whole answer.
    pub(super) async fn get(&self, target: &str) -> Result<Bytes, SourceError> {
        let body = self.open(target).await?;
        let text = |problem: String| SourceError::Busy(format!("{target}: {problem}"));
        match timeout(self.answer_timeout, read(body, MAX_PAGE_BYTES)).await {
            Ok(page) => page.map_err(text),
            Err(_) => Err(text(format!("no whole answer within {:?}", self.answer_timeout))),
        }
    }

    /// What an ERROR in a watch means.
    pub(super) fn told(&self, status: &str) -> SourceError {
        let url = self.state.lock().connected.as_ref().map(|connected| Arc::clone(&connected.url));
        self.failure(url.as_deref().unwrap_or("the API"), None, None, status)
    }

    async fn refused(&self, url: &str, answer: Response<Body>) -> SourceError {
        let (head, body) = answer.into_parts();
        let body = timeout(self.answer_timeout, read(body, MAX_FAILURE_BYTES)).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        self.failure(url, Some(head.status), retry_after(&head.headers), &String::from_utf8_lossy(&body))
    }

    fn failure(&self, url: &str, code: Option<StatusCode>, patience: Option<Duration>, text: &str) -> SourceError {
        let status: Status = serde_json::from_str(text).unwrap_or_default();
        let in_status = || status.details.as_ref()?.retry_after_seconds.map(Duration::from_secs);
        let code = code.map(|code| code.as_u16()).or(status.code).unwrap_or_default();
        let error = status.error(code, url, text);
        if let (SourceError::Busy(_), Some(patience)) = (&error, patience.or_else(in_status)) {
            let patience = patience.clamp(MIN_PATIENCE, MAX_PATIENCE).mul_f64(1.0 + random_fraction() / 4.0);
            self.state.lock().not_before = Some(Instant::now() + patience);
        }
        error
    }

    fn forget(&self) {
        self.state.lock().connected = None;
    }

    async fn connect(&self) -> Result<Connected, SourceError> {
        if let Some(connected) = self.state.lock().connected.clone().filter(|connected| !connected.is_over()) {
            return Ok(connected);
        }
        let mut config = config(&self.cluster).await.map_err(SourceError::Unavailable)?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // Whether and when to ask again is for the Reflector.
        config.default_retry = false;
        // By which the API's audit log and its priorities know who asks.
        let user_agent = HeaderValue::from_static(concat!("informerd/", env!("CARGO_PKG_VERSION")));
        config.headers.push((header::USER_AGENT, user_agent));
        let url: Arc<str> = config.cluster_url.to_string().trim_end_matches('/').into();
        let client = Client::try_from(config);
        let client = client.map_err(|error| not_allowed(&url, &error))?;
        let connected = Connected { client, url };
        self.state.lock().connected = Some(connected.clone());
        Ok(connected)
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = self.connected.as_ref().map(|connected| &connected.url);
        f.debug_struct("State").field("connected", &url).field("not_before", &self.not_before).finish()
    }
}

// === impl Connected ===

impl Connected {
    /// Whether the certificate of an exec plugin has to be asked for again.
    fn is_over(&self) -> bool {
        let ends_at = self.client.valid_until().as_ref().map(|until| until.as_second());
        let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs().cast_signed());
        ends_at.is_some_and(|ends_at| ends_at <= now)
    }
}

// === impl Status ===

impl Status {
    /// SEMANTICS 1.25, rules 6 and 7, and 1.27, rules 2 and 9.
    fn error(&self, code: u16, url: &str, text: &str) -> SourceError {
        let reason = self.reason.as_deref().unwrap_or_default();
        let words = status_text(text);
        let words = if words.is_empty() { format!("HTTP {code}") } else { words };
        let told = |hint: &str| format!("{url}: {words}{hint}");
        if self.is_too_large() {
            return SourceError::VersionTooLarge(told(""));
        }
        match (code, reason) {
            (410, _) | (_, "Expired" | "Gone") => SourceError::Expired(told("")),
            // What is in front of the API, or the API while it begins or ends, says nothing of the version.
            (429 | 502..=504, _) | (_, "TooManyRequests") => SourceError::Busy(told("")),
            (401, _) => SourceError::Unavailable(told("; correct the credentials of the kubeconfig or the token")),
            (403, _) => SourceError::Unavailable(told("; `informerd rbac` prints the role that is needed")),
            (404, _) => {
                SourceError::Unavailable(told("; correct group, version and plural: see `kubectl api-resources`"))
            }
            _ => SourceError::Unavailable(told("")),
        }
    }

    /// In each of the forms that servers have had for it.
    fn is_too_large(&self) -> bool {
        let causes = || self.details.iter().filter_map(|details| details.causes.as_ref()).flatten();
        let is_timeout = self.reason.as_deref() == Some("Timeout");
        let says = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains(TOO_LARGE));
        causes().any(|cause| cause.reason.as_deref() == Some("ResourceVersionTooLarge"))
            || (is_timeout && (says(&self.message) || causes().any(|cause| says(&cause.message))))
    }
}

/// Whether the files that lead to a cluster are there. No connection is made, and no plugin is run.
pub(super) fn check(cluster: &KubeCluster) -> Result<(), String> {
    let kubeconfig = match &cluster.kubeconfig {
        Some(path) => Kubeconfig::read_from(path).map_err(|error| describe(cluster, &error))?,
        None => match Kubeconfig::read() {
            Ok(kubeconfig) => kubeconfig,
            Err(_) if cluster.context.is_none() && Config::incluster().is_ok() => return Ok(()),
            Err(error) => return Err(describe(cluster, &error)),
        },
    };
    let context = cluster.context.as_ref().or(kubeconfig.current_context.as_ref());
    let context = context.ok_or("the kubeconfig has no current context; write a `context`")?;
    if !kubeconfig.contexts.iter().any(|known| known.name == *context) {
        let known: Vec<&str> = kubeconfig.contexts.iter().map(|known| known.name.as_str()).collect();
        return Err(format!("the kubeconfig has no context {context:?}; it has: {}", known.join(", ")));
    }
    Ok(())
}

async fn config(cluster: &KubeCluster) -> Result<Config, String> {
    let options = KubeConfigOptions { context: cluster.context.clone(), ..KubeConfigOptions::default() };
    match (&cluster.kubeconfig, &cluster.context) {
        (Some(path), _) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(|error| describe(cluster, &error))?;
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            config.map_err(|error| describe(cluster, &error))
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(|error| describe(cluster, &error)),
        (None, None) => Config::infer().await.map_err(|error| describe(cluster, &error)),
    }
}

fn describe(cluster: &KubeCluster, error: &dyn StdError) -> String {
    if let Some(path) = &cluster.kubeconfig {
        return format!("{}: {}", path.display(), root_cause(error));
    }
    match Config::incluster() {
        // The environment is that of a pod, so that nobody thinks of a kubeconfig.
        Err(in_cluster)
            if cluster.context.is_none() && !matches!(in_cluster, InClusterError::ReadEnvironmentVariable(_)) =>
        {
            let problem = one_line(&in_cluster.to_string());
            format!("the service account of this pod: {problem}; mount its token (automountServiceAccountToken)")
        }
        _ => format!("no kubeconfig: {}; name one, or run inside a cluster", root_cause(error)),
    }
}

/// Whether it failed after there was a connection, for which nothing in the files would have been wrong.
fn has_connected(error: &kube::Error) -> bool {
    match error {
        kube::Error::HyperError(_) => true,
        kube::Error::Service(error) => {
            error.downcast_ref::<hyper_util::client::legacy::Error>().is_some_and(|error| !error.is_connect())
        }
        _ => false,
    }
}

/// Nothing was answered.
fn unreachable(url: &str, error: &kube::Error) -> SourceError {
    match error {
        kube::Error::Auth(_) => not_allowed(url, error),
        _ => SourceError::Busy(format!("{url}: {}", root_cause(error))),
    }
}

/// What a plugin or a file says is only half of it: which one it was stands above.
fn not_allowed(url: &str, error: &kube::Error) -> SourceError {
    SourceError::Unavailable(format!("{url}: {}", one_line(&error.to_string())))
}

async fn read(mut body: Body, max_bytes: usize) -> Result<Bytes, String> {
    let mut chunks = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| root_cause(&error))?;
        if let Some(data) = frame.data_ref() {
            chunks.extend_from_slice(data);
        }
        if chunks.len() > max_bytes {
            return Err(format!("the answer has more than {max_bytes} bytes"));
        }
    }
    Ok(chunks.into())
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// What lies at the bottom: above it, everybody says that something failed.
pub(super) fn root_cause(error: &dyn StdError) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    one_line(&cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u16, status: &str) -> SourceError {
        serde_json::from_str::<Status>(status).unwrap_or_default().error(code, "u", status)
    }

    /// The three forms of `TestReflectorFullListIfTooLarge`.
    #[test]
    fn a_version_that_is_too_large_is_recognised_in_each_of_its_forms() {
        for status in [
            r#"{"reason":"Timeout","code":504,"details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"x"}]}}"#,
            r#"{"reason":"Timeout","code":504,"details":{"causes":[{"message":"Too large resource version"}]}}"#,
            r#"{"reason":"Timeout","code":504,"message":"Too large resource version: 20, current: 10"}"#,
        ] {
            assert!(matches!(error(504, status), SourceError::VersionTooLarge(_)), "{status}");
        }
        let other = r#"{"reason":"Timeout","code":504,"message":"etcd took too long"}"#;
        assert_eq!(error(504, other), SourceError::Busy("u: etcd took too long (Timeout)".to_owned()));
    }

    #[test]
    fn a_failure_is_what_the_reflector_does_next() {
        for (code, status, expected) in [
            (410, r#"{"reason":"Expired","message":"m"}"#, SourceError::Expired("u: m (Expired)".into())),
            (200, r#"{"reason":"Gone","message":"m"}"#, SourceError::Expired("u: m (Gone)".into())),
            (429, "", SourceError::Busy("u: HTTP 429".into())),
            (503, "<html>\nno backend", SourceError::Busy("u: <html> no backend".into())),
            (
                500,
                r#"{"reason":"InternalError","message":"m"}"#,
                SourceError::Unavailable("u: m (InternalError)".into()),
            ),
        ] {
            assert_eq!(error(code, status), expected);
        }
        for (code, hint) in [(401, "credentials"), (403, "informerd rbac"), (404, "api-resources")] {
            assert!(error(code, "{}").to_string().contains(hint), "{code}");
        }
    }

    #[test]
    fn patience_is_asked_for_in_seconds() {
        let headers = |text: &str| HeaderMap::from_iter([(header::RETRY_AFTER, text.parse().unwrap())]);
        assert_eq!(retry_after(&headers("7")), Some(Duration::from_secs(7)));
        for text in ["-1", "soon", "Wed, 21 Oct 2026 07:28:00 GMT"] {
            assert_eq!(retry_after(&headers(text)), None);
        }
    }
}
