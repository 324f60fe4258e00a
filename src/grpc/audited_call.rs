//! Call in the audit log: a line when its stream begins and when it ends, a line for an answer that is no stream, and a line if it is
//! denied ([`Denials`] limits these).
//!
//! The layer around every call creates the entry, and learns the outcome; the handlers add what the call requests. A line has names,
//! selections and numbers: never credentials, and never an object.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use http::{Extensions, HeaderMap};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::{
    denials::{Denials, DeniedCaller},
    peers::HEALTH_PATHS,
};
use crate::{
    auth::Identity,
    model::{ObjectKey, Selection, excerpt, excerpt_of},
    proto::{ObjectFormat, PayloadFormat, pb},
    transport::Peer,
};

/// Entry of a call; clones share it. When the last is dropped, the stream has ended.
#[derive(Clone)]
pub(super) struct AuditedCall(Arc<Entry>);

struct Entry {
    log: Arc<Denials>,
    id: u64,
    peer: Option<Peer>,
    method: String,
    started: Instant,
    requested: Mutex<Requested>,
    bytes: AtomicU64,
    events: AtomicU64,
}

/// Properties of a call, as far as they are known.
#[derive(Default, Serialize)]
struct Requested {
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonator: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    resource: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    selection: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    view: Option<String>,
    /// Point at which a watch begins: a version, or a name in upper case.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// Event of the line at the end of the call, if it has one.
    #[serde(skip)]
    last: Option<&'static str>,
    /// Code with which the call has ended; a stream that is dropped without one was cancelled.
    #[serde(skip)]
    code: Option<Code>,
}

/// Line of the log.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    event: &'static str,
    /// Number of the call in this run of the server: the same at the beginning and at the end.
    call: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    method: &'a str,
    #[serde(flatten)]
    requested: &'a Requested,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<u64>,
}

/// Size limit of the selection in a line, in bytes.
const MAX_SELECTION_BYTES: usize = 4 << 10;
/// Reasons of denials with codes that have other reasons, too.
const DENIALS: [&str; 2] = ["QUOTA_EXCEEDED", "AUTHORIZER_UNAVAILABLE"];

// === impl AuditedCall ===

impl AuditedCall {
    /// Creates the entry of a request; none for a probe.
    pub(super) fn new(log: &Arc<Denials>, path: &str, extensions: &Extensions) -> Option<Self> {
        if path.starts_with(HEALTH_PATHS) {
            return None;
        }
        let method = excerpt(path.rsplit('/').next().unwrap_or_default()).into_owned();
        let peer = extensions.get().copied();
        let call = Self(Arc::new(Entry::new(log, peer, method, Requested::default())));
        if let Some(identity) = extensions.get() {
            call.is_of(identity, None);
        }
        Some(call)
    }

    /// Creates the entry of a watch on a Subscribe stream.
    pub(super) fn of_watch(&self) -> Self {
        let Entry { log, peer, method, .. } = &*self.0;
        let Requested { user, impersonator, .. } = &*self.0.requested.lock();
        let requested = Requested { user: user.clone(), impersonator: impersonator.clone(), ..Requested::default() };
        Self(Arc::new(Entry::new(log, *peer, method.clone(), requested)))
    }

    /// Records the caller, and who makes the call on its behalf.
    pub(super) fn is_of(&self, identity: &Identity, impersonator: Option<&Identity>) {
        let mut requested = self.0.requested.lock();
        requested.user = Some(identity.user().to_owned());
        requested.impersonator = impersonator.map(|identity| identity.user().to_owned());
    }

    /// Records the resource, before the rights are checked.
    pub(super) fn requests(&self, resource: &str, namespace: Option<&str>, format: i32) {
        let mut requested = self.0.requested.lock();
        requested.resource = excerpt(resource).into_owned();
        requested.namespace = namespace.map(|namespace| excerpt(namespace).into_owned());
        requested.format = PayloadFormat::from_proto(format)
            .filter(|_| format != i32::from(pb::PayloadFormat::Unspecified))
            .map(name_of);
    }

    /// Records the point at which a watch begins.
    pub(super) fn begins_from(&self, from: &str) {
        self.0.requested.lock().from = Some(excerpt(from).into_owned());
    }

    /// Records that the stream begins.
    pub(super) fn begins(&self, selection: &Selection, format: &ObjectFormat, is_secret: bool) {
        let mut requested = self.0.requested.lock();
        requested.selection = Some(shown(&selection.described(is_secret)));
        let namespaces = selection.namespaces.as_ref();
        requested.namespaces = namespaces.map(|namespaces| namespaces.iter().map(str::to_owned).collect());
        // An Until reads other bodies than it sends.
        if requested.format.is_none() && self.0.method != "Until" {
            requested.format = Some(name_of(format.payload));
        }
        requested.view = format.view.as_ref().map(ToString::to_string);
        requested.last = Some("end");
        self.0.write(&requested, "begin", |line| line);
    }

    /// Records that the call, which has the rights, reads an object or values of an index: it has one line, at its end.
    pub(super) fn reads(&self, key: Option<&ObjectKey>, selection: Option<&str>, format: &ObjectFormat) {
        let mut requested = self.0.requested.lock();
        requested.namespace = key.map(|key| key.namespace().to_owned());
        requested.name = key.map(|key| key.name().to_owned());
        requested.selection = selection.map(shown);
        requested.format = Some(name_of(format.payload));
        requested.view = format.view.as_ref().map(ToString::to_string);
        requested.last = Some("read");
    }

    /// Records that the call, which has the right, ends watches: it has one line, at its end.
    pub(super) fn disconnects(&self, ids: &[u64]) {
        let mut requested = self.0.requested.lock();
        requested.selection =
            Some(format!("watchers={}", ids.iter().map(u64::to_string).collect::<Vec<_>>().join(",")));
        requested.last = Some("disconnect");
    }

    /// Counts events or objects that were sent.
    pub(super) fn sends(&self, events: u64) {
        self.0.events.fetch_add(events, Ordering::Relaxed);
    }

    /// Counts bytes of the response.
    pub(super) fn sends_bytes(&self, bytes: usize) {
        self.0.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Records the code with which the call ends.
    pub(super) fn ends(&self, code: Code) {
        self.0.requested.lock().code = Some(code);
    }

    /// Records the headers of the response, which have a status if the call is refused.
    pub(super) fn answers(&self, headers: &HeaderMap) {
        if let Some(status) = Status::from_header_map(headers) {
            self.refuses(&status);
        }
    }

    /// Records the status with which the call is refused.
    pub(super) fn refuses(&self, status: &Status) {
        let reason = status.get_details_error_info().map(|info| info.reason);
        let is_denial = matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied)
            || reason.as_ref().is_some_and(|reason| DENIALS.contains(&&**reason));
        if is_denial {
            let status = Some(format!("{:?}", status.code()));
            let requested = self.0.requested.lock();
            let by = reason.clone().unwrap_or_default();
            if let Some(line) = self.0.line(&requested, "denied", |line| Line { reason, status, ..line }) {
                // The user whose credentials these are, or the peer.
                let user = requested.impersonator.as_ref().or(requested.user.as_ref());
                let caller = match user {
                    Some(user) => DeniedCaller::User(user.clone()),
                    None => DeniedCaller::Peer(self.0.peer.as_ref().and_then(Peer::origin)),
                };
                self.0.log.add(caller, by, line);
            }
        }
    }
}

debug_fields!(AuditedCall, this => { id: this.0.id });

/// Returns a selection as a line has it: a caller may send values up to the size of a request.
fn shown(selection: &str) -> String {
    excerpt_of(selection, MAX_SELECTION_BYTES).into_owned()
}

fn name_of(format: PayloadFormat) -> &'static str {
    match format {
        PayloadFormat::Struct => "STRUCT",
        PayloadFormat::Raw => "RAW",
        PayloadFormat::Metadata => "METADATA",
    }
}

// === impl Entry ===

impl Entry {
    fn new(log: &Arc<Denials>, peer: Option<Peer>, method: String, requested: Requested) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            log: Arc::clone(log),
            id: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            peer,
            method,
            started: Instant::now(),
            requested: Mutex::new(requested),
            bytes: AtomicU64::new(0),
            events: AtomicU64::new(0),
        }
    }

    fn write<'a>(&'a self, requested: &'a Requested, event: &'static str, with: impl FnOnce(Line<'a>) -> Line<'a>) {
        if let Some(line) = self.line(requested, event, with) {
            self.log.log().add(line);
        }
    }

    /// Returns the text of a line.
    fn line<'a>(
        &'a self,
        requested: &'a Requested,
        event: &'static str,
        with: impl FnOnce(Line<'a>) -> Line<'a>,
    ) -> Option<String> {
        let line = with(Line {
            time: prost_types::Timestamp::from(SystemTime::now()).to_string(),
            event,
            call: self.id,
            peer: self.peer.map(|peer| peer.to_string()),
            method: &self.method,
            requested,
            reason: None,
            status: None,
            duration_ms: None,
            bytes: None,
            events: None,
        });
        // Texts and numbers are always JSON.
        serde_json::to_string(&line).ok()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let requested = std::mem::take(self.requested.get_mut());
        let Some(event) = requested.last else { return };
        let code = requested.code.unwrap_or(Code::Cancelled);
        let duration = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let [bytes, events] = [&self.bytes, &self.events].map(|count| Some(count.load(Ordering::Relaxed)));
        self.write(&requested, event, |line| Line {
            status: Some(format!("{code:?}")),
            duration_ms: Some(duration),
            bytes,
            events,
            ..line
        });
    }
}
