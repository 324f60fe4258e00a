//! The whole server in this process: configuration, sources, gRPC and the admin port, over a directory of its own.

use std::{path::PathBuf, time::Duration};

use informerd::{
    app::App,
    config::{Config, ListenAddr, ServeFlags},
    grpc::ServiceConfig,
    proto::pb::{self, informer_service_client::InformerServiceClient},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::sandbox::DEADLINE;

/// Running server, and the directory that it reads.
pub(crate) struct Served {
    pub(crate) shutdown: CancellationToken,
    pub(crate) address: String,
    pub(crate) kubernetes: Option<ListenAddr>,
    directory: TempDir,
    pub(crate) admin: String,
    running: tokio::task::JoinHandle<()>,
}

/// Returns the program's defaults for checkers that set nothing else, with limits that none of them reaches.
pub(crate) fn service_config() -> ServiceConfig {
    ServiceConfig { drain_period: Duration::ZERO, max_watchers: 1000, peer_share: 100, ..ServiceConfig::default() }
}

impl Served {
    /// Starts a server with these flags, on ports of its own.
    pub(crate) async fn start(directory: TempDir, flags: ServeFlags) -> Self {
        let flags = flags.with("listen", "127.0.0.1:0").with("admin.listen", "127.0.0.1:0");
        Self::start_config(directory, Config::load(&flags).unwrap()).await
    }

    /// Starts a server with this configuration, whose addresses are on loopback.
    pub(crate) async fn start_config(directory: TempDir, config: Config) -> Self {
        let app = App::start(config).await.unwrap();
        let ListenAddr::Tcp(address) = app.grpc_address() else { panic!("a TCP address") };
        let (address, admin) = (format!("http://{address}"), app.admin_address().unwrap().to_string());
        let (kubernetes, shutdown) = (app.kubernetes_address(), CancellationToken::new());
        let token = shutdown.clone();
        let running = tokio::spawn(async move { app.run(token.cancelled_owned()).await.unwrap() });
        Self { shutdown, address, kubernetes, directory, admin, running }
    }

    pub(crate) async fn client(&self) -> InformerServiceClient<Channel> {
        InformerServiceClient::connect(self.address.clone()).await.unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Sends a GET to the admin port over HTTP/1.0, on a plain socket.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        self.get_with(path, None).await
    }

    /// Does the same with a bearer token.
    pub(crate) async fn get_with(&self, path: &str, token: Option<&str>) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.admin).await.unwrap();
        let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n{authorization}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Waits until the status of the resource meets a condition.
    pub(crate) async fn until(&self, is_so: impl Fn(&pb::Resource) -> bool) -> pb::Resource {
        until(&mut self.client().await, is_so).await
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(DEADLINE, self.running).await.expect("it ends in time").unwrap();
    }
}

/// Waits until the status of a server's resource meets a condition.
pub(crate) async fn until(
    client: &mut InformerServiceClient<Channel>,
    is_so: impl Fn(&pb::Resource) -> bool,
) -> pb::Resource {
    let mut last = Vec::new();
    let said = async {
        loop {
            last = client.list_resources(pb::ListResourcesRequest {}).await.unwrap().into_inner().resources;
            if let Some(resource) = last.iter().find(|resource| is_so(resource)) {
                return resource.clone();
            }
            tokio::task::yield_now().await;
        }
    };
    let said = tokio::time::timeout(DEADLINE, said).await;
    said.unwrap_or_else(|_| panic!("it is not said in time, but: {last:#?}"))
}
