//! Admin port: probes, metrics, the state of the resources and the filter of the log, over HTTP.
//!
//! No response contains objects, so the port may be reachable from other machines; with `admin.bodies` the page shows the last changes
//! of objects and their bodies. Where callers are authorized, everything but the probes and the page without its data is for those who
//! may inspect every resource, and the probes name no errors. Where they are not, only
//! this machine may change the filter of the log. A browser on this machine may be made to send requests here under the name of any page,
//! so only known names are served there (`probes`). `/livez` never depends on an upstream; `/readyz` names the resources that have no
//! state. `probes` serves the connections, also those of a mirror's probe.

mod probes;

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tonic::Code;

#[cfg(feature = "kubernetes-api")]
pub(crate) use self::probes::foreign_host;
use self::probes::is_local;
pub use self::probes::{ProbeRequest, Probes, serve};
use crate::{
    grpc::{Service, ShownChanges},
    telemetry,
};

/// State of the endpoints.
#[derive(Debug, Clone)]
pub struct Admin {
    service: Service,
    registry: Arc<Registry>,
    /// Time for the head of a request.
    request_timeout: Duration,
    /// True if metrics need no rights.
    open_metrics: bool,
    /// True if whoever may inspect every resource may see objects here.
    bodies: bool,
    /// Names in the header Host that programs on this machine may use.
    hosts: Vec<String>,
}

/// Page for people. It has no data of its own: its script requests them, with the rights of whoever looks at it.
const PAGE: &str = include_str!("admin/page.html");

/// Answer about the log of a program that embeds the server.
const NO_LOG: &str = "the log is that of the program that embeds this server\n";

// === impl Admin ===

impl Admin {
    /// Makes the endpoints over a service. A client has `request_timeout` for the head of its request. With `open_metrics`, whoever
    /// reaches the port may read metrics, also where callers are authorized; with `bodies`, whoever may inspect every resource may
    /// see objects. `hosts` are the names, beside localhost and addresses, under which programs on this machine may reach it.
    pub fn new(
        service: Service,
        registry: Registry,
        request_timeout: Duration,
        open_metrics: bool,
        bodies: bool,
        hosts: Vec<String>,
    ) -> Self {
        Self { service, registry: Arc::new(registry), request_timeout, open_metrics, bodies, hosts }
    }

    /// Serves until the future is dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops all connections.
    pub async fn serve(self, listener: TcpListener) {
        let request_timeout = self.request_timeout;
        serve(self, request_timeout, listener).await;
    }

    fn readyz(&self) -> (StatusCode, String) {
        if self.service.is_shutting_down() {
            return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n".to_owned());
        }
        let missing: String = self
            .service
            .resources()
            .filter(|resource| !resource.optional && resource.informer.snapshot().is_none())
            .map(|resource| match resource.informer.report().last_error.filter(|_| !self.service.authorizes()) {
                Some(error) => format!("{}: not synced: {error}\n", resource.name),
                None => format!("{}: not synced\n", resource.name),
            })
            .collect();
        // A resource that a reload has added may be missing.
        if missing.is_empty() || self.service.is_ready() {
            (StatusCode::OK, "ok\n".to_owned())
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, missing)
        }
    }

    fn explain(&self, query: &str) -> (StatusCode, String) {
        let [id, namespace, name] = ["id", "namespace", "name"].map(|name| parameter(query, name));
        match id.parse().ok().and_then(|id| self.service.debug_explain(id, &namespace, &name)) {
            Some(explained) => (StatusCode::OK, format!("{explained}\n")),
            None => (StatusCode::NOT_FOUND, "no open watch has this id, or this is no name of an object\n".to_owned()),
        }
    }

    fn changes(&self, query: &str) -> (StatusCode, String) {
        let [resource, labels, namespace, name] =
            ["resource", "labels", "namespace", "name"].map(|of| parameter(query, of));
        let [history, offset] = ["history", "offset"].map(|name| parameter(query, name).parse().ok());
        let object = (!name.is_empty()).then_some((namespace, name));
        let shown = ShownChanges { resource, labels, object, after: history.zip(offset) };
        match self.service.debug_changes(&shown, self.bodies) {
            Ok(changes) => (StatusCode::OK, format!("{changes}\n")),
            Err(problem) => (StatusCode::BAD_REQUEST, problem + "\n"),
        }
    }

    fn metrics(&self) -> (StatusCode, String) {
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, &self.registry) {
            Ok(()) => (StatusCode::OK, text),
            Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, String::new()),
        }
    }
}

impl Probes for Admin {
    fn answer(&self, path: &str, query: &str) -> Option<(StatusCode, String)> {
        match path {
            "/" => Some((StatusCode::OK, PAGE.to_owned())),
            "/livez" => Some((StatusCode::OK, "ok\n".to_owned())),
            "/readyz" => Some(self.readyz()),
            "/metrics" => Some(self.metrics()),
            "/debug/informers" => Some((StatusCode::OK, format!("{:#}\n", self.service.debug()))),
            "/debug/watches" => {
                let watches = self.service.debug_watches(&parameter(query, "resource"));
                Some((StatusCode::OK, format!("{watches}\n")))
            }
            "/debug/explain" => Some(self.explain(query)),
            "/debug/changes" => Some(self.changes(query)),
            "/loglevel" => Some(match telemetry::log_filter() {
                Some(filter) => (StatusCode::OK, filter.text() + "\n"),
                None => (StatusCode::NOT_IMPLEMENTED, NO_LOG.to_owned()),
            }),
            _ => None,
        }
    }

    fn content_type(&self, path: &str) -> &'static str {
        match path {
            "/" => "text/html; charset=utf-8",
            "/metrics" => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            "/debug/informers" | "/debug/watches" | "/debug/explain" | "/debug/changes" => "application/json",
            _ => "text/plain; charset=utf-8",
        }
    }

    fn is_writable(&self, path: &str) -> bool {
        path == "/loglevel"
    }

    fn write(&self, _path: &str, text: &str) -> (StatusCode, String) {
        let Some(filter) = telemetry::log_filter() else { return (StatusCode::NOT_IMPLEMENTED, NO_LOG.to_owned()) };
        match filter.set(text.trim()) {
            Ok(()) => (StatusCode::OK, filter.text() + "\n"),
            Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")),
        }
    }

    fn is_host(&self, name: &str) -> bool {
        self.hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
    }

    async fn check(&self, request: ProbeRequest<'_>, headers: &HeaderMap) -> Result<(), StatusCode> {
        let ProbeRequest { path, is_write, sender } = request;
        if ["/", "/livez", "/readyz"].contains(&path) || (path == "/metrics" && self.open_metrics) {
            return Ok(());
        }
        // Without authorization nobody is known, and a log filter of anybody could fill a disk.
        if is_write && !is_local(sender) && !self.service.authorizes() {
            return Err(StatusCode::FORBIDDEN);
        }
        self.service.check_operator(headers, sender).await.map_err(|status| match status.code() {
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        })?;
        // The rights to an object are not those to see the watches of others.
        let is_of_objects = ["/debug/explain", "/debug/changes"].contains(&path);
        let is_allowed = self.bodies || is_local(sender) && !self.service.authorizes();
        if is_of_objects && !is_allowed { Err(StatusCode::FORBIDDEN) } else { Ok(()) }
    }

    fn count_refused(&self, reason: &'static str) {
        self.service.metrics().refused().count(reason);
    }
}

/// Returns a parameter of a query, or the empty text.
fn parameter(query: &str, name: &str) -> String {
    form_urlencoded::parse(query.as_bytes())
        .find_map(|(key, value)| (key == name).then(|| value.into_owned()))
        .unwrap_or_default()
}
