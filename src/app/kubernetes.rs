//! Server of the Kubernetes API, beside that of gRPC.

use tokio::task::JoinSet;

use super::listener::UnixSocket;
#[cfg(feature = "kubernetes-api")]
use crate::{app::error::named, rest::RestService, transport::Server};
use crate::{
    config::Config,
    grpc::{Lifecycle, Service},
    transport::{Listener, ServerConfig},
};

/// Parts that the server needs.
#[cfg_attr(not(feature = "kubernetes-api"), expect(dead_code, reason = "the configuration has no listener then"))]
pub(super) struct KubernetesServer<'a> {
    pub(super) service: Service,
    pub(super) config: &'a Config,
    pub(super) bounds: ServerConfig,
}

// === impl KubernetesServer ===

impl KubernetesServer<'_> {
    /// Starts the server in a task. Returns its socket file, to be removed at the end.
    #[cfg(feature = "kubernetes-api")]
    pub(super) fn start(
        self,
        (listener, socket): (Listener, Option<UnixSocket>),
        lifecycle: &Lifecycle,
        tasks: &mut JoinSet<String>,
    ) -> Option<UnixSocket> {
        let rest = RestService::new(self.service, self.config.kubernetes.warns);
        let server = Server::new(rest, RestService::is_watch, self.bounds).with_http1();
        tasks.spawn(named("kubernetes server", server.serve(listener, lifecycle.draining.clone())));
        socket
    }

    #[cfg(not(feature = "kubernetes-api"))]
    #[expect(clippy::unused_self, reason = "the configuration has no listener then")]
    pub(super) fn start(
        self,
        (_, socket): (Listener, Option<UnixSocket>),
        _: &Lifecycle,
        _: &mut JoinSet<String>,
    ) -> Option<UnixSocket> {
        socket
    }
}
