//! Requests to one Kubernetes API for one resource, with the classification of their failures.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{
    KubeConfig,
    client::{Body, Client, RequestOptions, Watchdog},
    status::Status,
};
use crate::cache::{SourceError, SourceHealth};

/// Request sender of one resource.
#[derive(Debug)]
pub(super) struct Api {
    client: Arc<Client>,
    is_metadata_only: bool,
    answer_timeout: Duration,
    /// Health of the resource. A lost connection counts as of the last contact.
    health: SourceHealth,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// URL of the last answer, for errors.
    url: Option<Arc<str>>,
    /// Earliest time of the next request, from the Retry-After of an answer.
    not_before: Option<Instant>,
    /// True if the API has answered that it does not serve the method: for a resource that it lists, watches.
    has_no_watch: bool,
}

/// Lower limit of the cap on Retry-After, which may be absurd.
const MIN_PATIENCE: Duration = Duration::from_secs(1);
const MAX_PATIENCE: Duration = Duration::from_secs(5 * 60);
/// Largest body of an unsuccessful answer.
const MAX_FAILURE_BYTES: usize = 64 << 10;
/// Largest page, decompressed. An unpaged list is one page.
const MAX_PAGE_BYTES: usize = 1 << 30;
const JSON: &str = "application/json";
/// Accept header of client-go's metadata client. An API that does not support the type answers with whole objects.
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

// === impl Api ===

impl Api {
    pub(super) fn new(client: Arc<Client>, config: &KubeConfig, health: SourceHealth) -> Self {
        let KubeConfig { answer_timeout, is_metadata_only, .. } = *config;
        Self { client, is_metadata_only, answer_timeout, health, state: Mutex::default() }
    }

    /// Requests a watch. The answer is a success, with its body unread.
    pub(super) async fn open(&self, target: &str) -> Result<Body, SourceError> {
        let accept = if self.is_metadata_only { PARTIAL } else { JSON };
        let wish = RequestOptions { accept, may_compress: false, timeout: self.answer_timeout };
        let answer = self.send(target, wish).await?;
        self.state.lock().has_no_watch = false;
        Ok(answer.into_body())
    }

    /// Requests a page of a list, and reads the whole answer.
    pub(super) async fn list(&self, target: &str) -> Result<Bytes, SourceError> {
        self.list_within(target, MAX_PAGE_BYTES).await
    }

    /// Requests a list that is expected to be small, and reads at most so many bytes.
    pub(super) async fn list_within(&self, target: &str, max_bytes: usize) -> Result<Bytes, SourceError> {
        self.read(target, if self.is_metadata_only { PARTIAL_LIST } else { JSON }, max_bytes).await
    }

    /// Requests one object by its path, and reads the whole answer.
    pub(super) async fn get(&self, target: &str) -> Result<Bytes, SourceError> {
        self.read(target, JSON, MAX_PAGE_BYTES).await
    }

    /// Requests a document by its path, and reads at most so many bytes.
    pub(super) async fn get_within(&self, target: &str, max_bytes: usize) -> Result<Bytes, SourceError> {
        self.read(target, JSON, max_bytes).await
    }

    async fn read(&self, target: &str, accept: &'static str, max_bytes: usize) -> Result<Bytes, SourceError> {
        let wish = RequestOptions { accept, may_compress: true, timeout: self.answer_timeout };
        let answer = self.send(target, wish).await?;
        let is_gzip = is_gzip(answer.headers());
        let text = |problem: String| SourceError::Incomplete(format!("{target}: {problem}"));
        match timeout(self.answer_timeout, answer.into_body().read(is_gzip, max_bytes)).await {
            Ok(page) => page.map_err(text),
            Err(_) => Err(text(format!("response not complete within {:?}", self.answer_timeout))),
        }
    }

    /// Returns true if there is an object at a path; `None` if the API does not answer that.
    pub(super) async fn exists(&self, path: &str) -> Option<bool> {
        let wish = RequestOptions { accept: JSON, may_compress: false, timeout: self.answer_timeout };
        let (_, answer) = self.client.send(path, wish).await.ok()?;
        match answer.status() {
            StatusCode::NOT_FOUND => Some(false),
            status => status.is_success().then_some(true),
        }
    }

    /// Returns true if the API has answered that it serves no watches of the resource.
    pub(super) fn has_no_watch(&self) -> bool {
        self.state.lock().has_no_watch
    }

    /// Returns the liveness check for the connection of a body.
    pub(super) fn watchdog(&self, body: &Body) -> Watchdog {
        self.client.watchdog(body)
    }

    /// Classifies an ERROR event of a watch.
    pub(super) fn watch_error(&self, status: &str) -> SourceError {
        let url = self.state.lock().url.clone();
        self.failure(url.as_deref().unwrap_or("the API"), None, None, status)
    }

    async fn send(&self, target: &str, wish: RequestOptions) -> Result<Response<Body>, SourceError> {
        let not_before = self.state.lock().not_before;
        if let Some(not_before) = not_before {
            tokio::time::sleep_until(not_before).await;
        }
        match self.client.send(target, wish).await {
            Ok((access, answer)) => {
                self.state.lock().url = Some(Arc::clone(&access.url));
                let answer = answer.map(|body| body.reporting_to(self.health.clone()));
                if answer.status().is_success() {
                    return Ok(answer);
                }
                // The API does not parse the version: it is one of a server that had another form of them.
                let is_of_version =
                    target.contains("resourceVersion=") && matches!(answer.status().as_u16(), 400 | 422);
                Err(match self.refused(&access.url, answer).await {
                    SourceError::Refused(problem) if is_of_version => SourceError::Expired(problem),
                    error => error,
                })
            }
            Err(failure) => {
                if let Some(contact) = failure.contact {
                    self.health.record_lost_contact(contact);
                }
                Err(failure.error)
            }
        }
    }

    async fn refused(&self, url: &str, answer: Response<Body>) -> SourceError {
        let (head, body) = answer.into_parts();
        let body = timeout(self.answer_timeout, body.read(is_gzip(&head.headers), MAX_FAILURE_BYTES)).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        self.state.lock().has_no_watch |= head.status == StatusCode::METHOD_NOT_ALLOWED;
        let patience = retry_after(&head.headers, SystemTime::now());
        self.failure(url, Some(head.status), patience, &String::from_utf8_lossy(&body))
    }

    fn failure(&self, url: &str, code: Option<StatusCode>, patience: Option<Duration>, text: &str) -> SourceError {
        let status = Status::read(text);
        let code = code.map(|code| code.as_u16()).or(status.code()).unwrap_or_default();
        let error = status.error(code, url, text);
        if let (SourceError::Busy(_) | SourceError::Incomplete(_), Some(patience)) =
            (&error, patience.or_else(|| status.retry_after()))
        {
            let patience = patience.clamp(MIN_PATIENCE, MAX_PATIENCE).mul_f64(1.0 + fastrand::f64() / 4.0);
            self.state.lock().not_before = Some(Instant::now() + patience);
        }
        error
    }
}

fn is_gzip(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"gzip"))
}

/// Parses the header, in seconds or as a date (RFC 9110, section 10.2.3).
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_in_seconds_or_a_date() {
        let headers = |text: &str| HeaderMap::from_iter([(header::RETRY_AFTER, text.parse().unwrap())]);
        let now = httpdate::parse_http_date("Wed, 21 Oct 2026 07:28:00 GMT").unwrap();
        for (text, expected) in [
            ("7", Some(7)),
            ("Wed, 21 Oct 2026 07:28:30 GMT", Some(30)),
            ("Wednesday, 21-Oct-26 07:29:00 GMT", Some(60)),
            ("Wed, 21 Oct 2026 07:27:00 GMT", Some(0)),
            ("-1", None),
            ("soon", None),
        ] {
            assert_eq!(retry_after(&headers(text), now), expected.map(Duration::from_secs), "{text}");
        }
    }
}
