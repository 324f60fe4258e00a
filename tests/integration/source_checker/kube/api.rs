//! Scripted API of one kind of object, over HTTP/1.1, with the answers of kube-apiserver.
//!
//! Its rules are those of kube-apiserver's source: a watch from a version before the watch cache began is answered with 200 and
//! ends with an ERROR of 410; a list without a version is the most recent state; for a version that the replica has not reached,
//! a list fails with "Too large resource version", and a watch is silent; a bookmark is never older than the version at which the
//! watch began; initial events end with an annotated bookmark; watches are closed after `timeoutSeconds`.

mod answer;
mod secure;
mod target;
mod violations;
mod watch;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::Request, response::Response, serve::ListenerExt};
use http::request::Parts;
use parking_lot::Mutex;
use serde_json::json;
use tokio::{net::TcpListener, sync};

use self::{
    answer::{failure, success, too_large},
    secure::SecureListener,
    target::Target,
};
pub(crate) use self::{secure::Certificates, violations::Violations};
use super::world::World;
use crate::source_checker::upstream::Key;

/// API servers of a cluster; clones share it.
#[derive(Clone)]
pub(crate) struct Api {
    state: Arc<Mutex<State>>,
    changed: Arc<sync::watch::Sender<u64>>,
}

#[allow(clippy::struct_excessive_bools, reason = "each is a property of an API that a script draws")]
pub(crate) struct State {
    pub(crate) world: World,
    /// uid of kube-system; `None` if the source may not read it.
    pub(crate) cluster: Option<String>,
    pub(crate) token: Option<String>,
    /// Certificates; `None` for plain text.
    pub(crate) certificates: Option<Certificates>,
    /// Version at which the watch cache began.
    pub(crate) cache_start: u64,
    /// Number of changes and version that a lagging replica has reached.
    pub(crate) lagging_at: Option<(usize, u64)>,
    /// Namespace of the requests that this replica answers; `None` if it answers all.
    pub(crate) lagging_in: Option<&'static str>,
    /// True if that replica lagged when it took over.
    pub(crate) is_behind: bool,
    /// Set by a list, or initial events, since it lags.
    pub(crate) is_listed_since: bool,
    /// Namespaces whose requests another replica answers: the number of such changes, and the version at which its watch cache
    /// began.
    pub(crate) replicas: BTreeMap<&'static str, (u64, u64)>,
    /// Version before which page tokens have expired.
    pub(crate) compacted: u64,
    /// True if the next page's token has expired, because its version was compacted meanwhile.
    pub(crate) expires_page: bool,
    /// Raised to close every watch.
    pub(crate) generation: u64,
    /// Raised with it if the watches do not end regularly.
    pub(crate) kills: u64,
    /// True if requests wait, and are not answered.
    pub(crate) is_stopped: bool,
    /// True if the kind is served.
    pub(crate) is_served: bool,
    pub(crate) initial_events: InitialEvents,
    pub(crate) ignores_limit: bool,
    /// True if the source requests one object per page.
    pub(crate) has_short_pages: bool,
    /// True if a list without pages takes too long.
    pub(crate) needs_pages: bool,
    /// True if the initial events of the next watch are not sent.
    pub(crate) stalls: bool,
    /// End of the initial events of the next watch.
    pub(crate) early_end: Option<EarlyEnd>,
    /// Answer to the next list.
    pub(crate) wrong_answer: Option<WrongAnswer>,
    /// Number of pages whose next token is their own.
    pub(crate) circles: u64,
    pub(crate) sends_bookmarks: bool,
    /// True if items of lists have no kind, as those of built-in kinds.
    pub(crate) is_built_in: bool,
    /// True if only requests with the configured selector are allowed.
    pub(crate) needs_selector: bool,
    /// True if versions do not show that several changes have the same one.
    pub(crate) has_opaque_versions: bool,
    /// True if the next watch that gets several changes of one version is closed after the first.
    pub(crate) closes_inside: bool,
    pub(crate) violations: Violations,
    /// True if it answers with metadata only where that is requested.
    pub(crate) knows_metadata: bool,
    /// Answers to the next requests, each used once.
    pub(crate) once: Vec<Answer>,
    /// Answer to every request, while it is set.
    pub(crate) standing: Option<Answer>,
    /// Errors that the next watches send after the requested events, each once.
    pub(crate) in_band: Vec<(u16, &'static str)>,
    pub(crate) counts: Counts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InitialEvents {
    Served,
    /// 422, as of an API server that does not have this feature.
    Forbidden,
    /// Ignored, as by an aggregated API, which begins an ordinary watch.
    Ignored,
}

/// Answer that replaces the regular one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) retry_after: RetryAfter,
    /// Requests to which it applies.
    pub(crate) to: To,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryAfter {
    None,
    Seconds(u64),
    Date(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    All,
    Lists,
    Watches,
}

/// Early end of initial events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EarlyEnd {
    Closed,
    Error,
    Garbage,
    Torn,
    Refused,
}

/// Answer with 200 that is no list of the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WrongAnswer {
    Table,
    Status,
    OtherKind,
    NoItems,
    /// Only after a list of the same process: the first one decides how versions are numbered.
    NoVersion,
}

impl EarlyEnd {
    pub(crate) const ALL: [Self; 5] = [Self::Closed, Self::Error, Self::Garbage, Self::Torn, Self::Refused];
}

impl WrongAnswer {
    pub(crate) const ALL: [Self; 5] = [Self::Table, Self::Status, Self::OtherKind, Self::NoItems, Self::NoVersion];
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) early_ends: u64,
    pub(crate) wrong_answers: u64,
    pub(crate) circles: u64,
    /// Lists that this process of the source has received whole.
    pub(crate) in_process: u64,
    pub(crate) lists: u64,
    pub(crate) watches: u64,
    pub(crate) expired_watches: u64,
    pub(crate) expired_pages: u64,
    pub(crate) in_band: u64,
    pub(crate) refused: u64,
    /// Number of those that were drawn for one request.
    pub(crate) once: u64,
    pub(crate) too_large: u64,
    pub(crate) bookmarks: u64,
    pub(crate) ignored_initial_events: u64,
    pub(crate) stalls: u64,
    pub(crate) initial_events_after_a_stall: u64,
    pub(crate) in_one_piece: u64,
    pub(crate) pages: u64,
    pub(crate) closed_inside: u64,
    pub(crate) tokens_renewed: u64,
    pub(crate) certificates_renewed: u64,
}

type Query = BTreeMap<String, String>;

pub(crate) const PATH: &str = "/apis/example.com/v1/";
pub(crate) const PLURAL: &str = "widgets";
/// Time for which a replica waits until it has reached a version.
const FRESH_WITHIN: Duration = Duration::from_secs(3);

// === impl Api ===

impl Api {
    pub(crate) fn new(state: State) -> Self {
        Self { state: Arc::new(Mutex::new(state)), changed: Arc::new(sync::watch::Sender::new(0)) }
    }

    pub(crate) async fn listen(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = self.clone();
        let router = Router::new().fallback(move |request: Request| {
            let api = api.clone();
            let (head, _) = request.into_parts();
            async move { api.answer(head).await }
        });
        if self.state.lock().certificates.is_some() {
            let listener = SecureListener::new(listener, self.clone());
            tokio::spawn(async move { axum::serve(listener, router).await });
        } else {
            let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
            tokio::spawn(async move { axum::serve(listener, router).await });
        }
        address
    }

    /// Changes the state.
    pub(crate) fn set<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state.lock());
        self.changed.send_modify(|changes| *changes += 1);
        changed
    }

    async fn answer(&self, request: Parts) -> Response {
        let mut changes = self.changed.subscribe();
        while self.state.lock().is_stopped {
            changes.changed().await.unwrap();
        }
        let uri = &request.uri;
        let query: Query = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
        let authorization = request.headers.get("authorization").and_then(|value| value.to_str().ok());
        let expected = self.state.lock().token.as_ref().map(|token| format!("Bearer {token}"));
        if expected.is_some() && expected.as_deref() != authorization {
            return failure(401, RetryAfter::None, "Unauthorized", "no");
        }
        let is_watch = query.get("watch").is_some_and(|watch| watch == "1" || watch == "true");
        // An answer drawn for lists of the resource does not apply to this request.
        let namespace = uri.path().strip_prefix("/api/v1/namespaces/").filter(|name| !name.contains('/'));
        let is_cluster = namespace.is_some();
        let to = match is_watch {
            _ if is_cluster => To::All,
            true => To::Watches,
            false => To::Lists,
        };
        let drawn = self.fault(to);
        self.state.lock().violations.note(uri, drawn);
        if let Some(answer) = drawn {
            let reason = match answer.code {
                403 => "Forbidden",
                404 => "NotFound",
                410 => "Expired",
                429 => "TooManyRequests",
                504 => "Timeout",
                _ => "InternalError",
            };
            return failure(answer.code, answer.retry_after, reason, "drawn");
        }
        if let Some(name) = namespace {
            return match &self.state.lock().cluster {
                _ if name != "kube-system" => success(json!({"metadata": {"name": name, "uid": name}}).to_string()),
                Some(uid) => success(json!({"metadata": {"name": "kube-system", "uid": uid}}).to_string()),
                None => failure(403, RetryAfter::None, "Forbidden", "kube-system is not yours"),
            };
        }
        let Some(mut target) = Target::of(uri.path(), &query) else {
            return failure(404, RetryAfter::None, "NotFound", "no such path");
        };
        let wanted = if is_watch { ";as=PartialObjectMetadata;" } else { ";as=PartialObjectMetadataList;" };
        let accept = request.headers.get("accept").and_then(|value| value.to_str().ok()).unwrap_or_default();
        target.is_metadata = accept.contains(wanted) && self.state.lock().knows_metadata;
        if !self.state.lock().is_served {
            return failure(404, RetryAfter::None, "NotFound", "the server could not find the requested resource");
        }
        if self.state.lock().needs_selector && !target.has_selector && target.name.is_none() {
            self.state.lock().violations.note_forbidden(uri);
            return failure(403, RetryAfter::None, "Forbidden", "only with the selector");
        }
        if is_watch { self.watch(query, target).await } else { self.list(&query, target).await }
    }

    fn fault(&self, to: To) -> Option<Answer> {
        let mut state = self.state.lock();
        let is_meant = |answer: &Answer| answer.to == To::All || answer.to == to;
        let once = state.once.iter().position(is_meant).map(|at| state.once.remove(at));
        state.counts.once += u64::from(once.is_some());
        let answer = once.or_else(|| state.standing.filter(is_meant));
        state.counts.refused += u64::from(answer.is_some());
        answer
    }

    /// Waits for some time until the replica has reached a version.
    async fn reach(&self, version: u64, target: &Target) -> bool {
        let mut changes = self.changed.subscribe();
        let reached = async {
            while self.state.lock().reached(target) < version {
                changes.changed().await.unwrap();
            }
        };
        let is_reached = tokio::time::timeout(FRESH_WITHIN, reached).await.is_ok();
        self.state.lock().counts.too_large += u64::from(!is_reached);
        is_reached
    }

    async fn list(&self, query: &Query, target: Target) -> Response {
        let limit = query.get("limit").and_then(|limit| limit.parse::<usize>().ok()).filter(|limit| *limit > 0);
        let text = query.get("resourceVersion").map_or("", String::as_str);
        {
            let mut state = self.state.lock();
            let is_list = limit != Some(1) && target.name.is_none() && !query.contains_key("continue");
            state.counts.lists += u64::from(is_list);
            // With pages of one object a list begins like a probe.
            state.is_listed_since |= is_list || state.has_short_pages;
            state.counts.pages += u64::from(query.contains_key("continue"));
        }
        if limit.is_none() && target.name.is_none() && self.state.lock().needs_pages {
            self.state.lock().counts.in_one_piece += 1;
            return failure(504, RetryAfter::None, "Timeout", "the request did not complete within the allotted time");
        }
        if let Some(wrong) = self.state.lock().take_wrong_answer() {
            return success(wrong);
        }
        let (changes, version, after) = match query.get("continue") {
            Some(token) => {
                let mut parts = token.splitn(3, '/');
                let mut number = || parts.next().unwrap().parse::<u64>().unwrap();
                let (changes, version) = (number(), number());
                let mut state = self.state.lock();
                let is_expired = std::mem::take(&mut state.expires_page) || version < state.compacted;
                if is_expired || changes > state.world.changes.len() as u64 {
                    state.counts.expired_pages += 1;
                    drop(state);
                    let text = "The provided continue parameter is too old";
                    return failure(410, RetryAfter::None, "Expired", text);
                }
                (changes as usize, version, Some(parts.next().unwrap().to_owned()))
            }
            None if text.is_empty() => {
                // A read of the store itself, even if the replica lags.
                let state = self.state.lock();
                (state.world.changes.len(), state.world.version, None)
            }
            None => {
                let Some(asked) = self.state.lock().world.version_of(text) else {
                    return failure(410, RetryAfter::None, "Expired", "no such version");
                };
                if query.get("resourceVersionMatch").is_some_and(|rule| rule == "Exact") {
                    // A read of the store itself.
                    let state = self.state.lock();
                    if asked > state.world.version {
                        return too_large();
                    }
                    if asked < state.compacted {
                        let text = "The resourceVersion for the provided list is too old";
                        return failure(410, RetryAfter::None, "Expired", text);
                    }
                    (state.world.changes.partition_point(|change| change.version <= asked), asked, None)
                } else {
                    if !self.reach(asked, &target).await {
                        return too_large();
                    }
                    let state = self.state.lock();
                    (state.known(&target), state.reached(&target), None)
                }
            }
        };
        let mut state = self.state.lock();
        let is_circle = query.contains_key("continue") && state.circles > 0;
        state.circles -= u64::from(is_circle);
        state.counts.circles += u64::from(is_circle);
        let all = state.world.selected(changes);
        let path = |key: &Key| format!("{}|{}", key.0, key.1);
        let mut rest: Vec<_> = all.into_iter().filter(|(key, _)| target.is_of(key)).collect();
        rest.retain(|(key, _)| after.as_ref().is_none_or(|after| path(key) >= *after));
        let limit = limit.filter(|_| !state.ignores_limit).unwrap_or(usize::MAX);
        let next = rest.get(limit).map(|(key, _)| format!("{changes}/{version}/{}", path(key)));
        let next = if is_circle { query.get("continue").cloned() } else { next };
        state.counts.in_process += u64::from(next.is_none() && target.name.is_none());
        let items: Vec<String> = rest
            .iter()
            .take(limit)
            .map(|(key, (version, stored))| target.shape(state.world.object(key, *version, stored, !state.is_built_in)))
            .collect();
        if let (Some(_), true) = (&target.name, target.is_one) {
            return match items.first() {
                Some(object) => success(object.clone()),
                None => failure(404, RetryAfter::None, "NotFound", "not found"),
            };
        }
        let metadata = json!({"resourceVersion": state.world.text_of(version), "continue": next});
        let items = items.join(",");
        success(format!(
            r#"{{"kind":"WidgetList","apiVersion":"example.com/v1","metadata":{metadata},"items":[{items}]}}"#
        ))
    }
}

// === impl State ===

impl State {
    /// Returns the wrong answer that is drawn for a list.
    fn take_wrong_answer(&mut self) -> Option<String> {
        let wrong = self.wrong_answer.take()?;
        let metadata = json!({"resourceVersion": self.world.text_of(self.world.version + 1_000_000)});
        let typed = |kind: &str, version: &str| json!({"kind": kind, "apiVersion": version, "metadata": metadata});
        let mut answer = match wrong {
            WrongAnswer::NoVersion if self.counts.in_process == 0 => return None,
            WrongAnswer::Table => typed("Table", "meta.k8s.io/v1"),
            WrongAnswer::Status => typed("Status", "v1"),
            WrongAnswer::OtherKind => typed("SecretList", "v1"),
            WrongAnswer::NoItems | WrongAnswer::NoVersion => typed("WidgetList", "example.com/v1"),
        };
        match wrong {
            WrongAnswer::Table => answer["rows"] = json!([]),
            WrongAnswer::OtherKind => answer["items"] = json!([]),
            WrongAnswer::NoVersion => (answer["items"], answer["metadata"]) = (json!([]), json!({})),
            WrongAnswer::Status | WrongAnswer::NoItems => {}
        }
        self.counts.wrong_answers += 1;
        Some(answer.to_string())
    }

    /// Replaces the process; the watch cache of the new one begins now.
    pub(crate) fn restart(&mut self) {
        self.generation += 1;
        self.cache_start = self.world.version;
        self.lagging_at = None;
        self.replicas.values_mut().for_each(|(_, start)| *start = 0);
    }

    /// Does the same for requests of one namespace.
    pub(crate) fn restart_of(&mut self, namespace: &'static str) {
        let (times, _) = self.replicas.get(namespace).copied().unwrap_or_default();
        self.replicas.insert(namespace, (times + 1, self.world.version));
        self.lagging_at.take_if(|_| self.lagging_in == Some(namespace));
    }

    /// Stops the replica, or that of one namespace, from seeing further changes; or lets another one take over, which lags by
    /// this number of changes.
    pub(crate) fn lag(&mut self, namespace: Option<&'static str>, behind: usize) {
        if self.lagging_at.is_some() {
            return;
        }
        let (changes, version) = (&self.world.changes, self.world.version);
        let first = changes.len() - behind.min(changes.len());
        // The replica has no changes at the version of the first missing one, and all changes from before its watch cache.
        let before = changes.get(first).map_or(version, |next| next.version - 1);
        let oldest = self.replicas.values().map(|(_, start)| *start).fold(self.cache_start, u64::max);
        let version = if behind == 0 { version } else { before.max(oldest) };
        let changes = changes.partition_point(|change| change.version <= version);
        (self.lagging_at, self.lagging_in, self.is_behind) = (Some((changes, version)), namespace, behind > 0);
        self.is_listed_since = false;
        if behind > 1 {
            // Its watch cache does not reach back to the requested version, so the source relists.
            self.in_band = vec![(410, "Expired")];
        }
        match namespace {
            _ if behind == 0 => {}
            None => self.generation += 1,
            Some(namespace) => self.close_watches_of(namespace),
        }
    }

    /// Closes the watches of one namespace.
    pub(crate) fn close_watches_of(&mut self, namespace: &'static str) {
        self.replicas.entry(namespace).or_default().0 += 1;
    }

    fn replica(&self, target: &Target) -> (u64, u64) {
        let namespace = target.namespace.as_deref();
        namespace.and_then(|namespace| self.replicas.get(namespace)).copied().unwrap_or_default()
    }

    /// Returns the number that closes a watch when it is raised.
    fn generation(&self, target: &Target) -> u64 {
        self.generation + self.replica(target).0
    }

    fn cache_start(&self, target: &Target) -> u64 {
        self.cache_start.max(self.replica(target).1)
    }

    fn lagging(&self, target: &Target) -> Option<(usize, u64)> {
        let is_meant = self.lagging_in.is_none_or(|namespace| target.namespace.as_deref() == Some(namespace));
        self.lagging_at.filter(|_| is_meant)
    }

    /// Returns the version that the replica has reached.
    fn reached(&self, target: &Target) -> u64 {
        self.lagging(target).map_or(self.world.version, |(_, version)| version)
    }

    /// Returns the number of changes that the replica has seen.
    fn known(&self, target: &Target) -> usize {
        self.lagging(target).map_or(self.world.changes.len(), |(changes, _)| changes)
    }
}
