//! Server in the process of a test, with a client of it.

use tokio_util::task::AbortOnDropHandle;

use crate::{
    app::{App, ServeOptions},
    cache::ListerWatcher,
    client::{Client, ServerAddress},
    config::{AdminConfig, Config, GeneralConfig, ListenAddr},
};

/// Server of [`serve`], which ends when this is dropped.
#[derive(Debug)]
#[must_use = "the server ends when this is dropped"]
pub struct TestServer {
    client: Client,
    _task: AbortOnDropHandle<()>,
}

/// Starts the server with these sources as its resources, on a free port of the loopback address and with the default
/// configuration, and connects a client to it.
///
/// Its sockets are real, and so is its clock: a test with a paused clock (`start_paused`) would see every timeout of the client
/// pass at once.
///
/// # Panics
///
/// If the server cannot be started.
pub async fn serve<N, S>(sources: impl IntoIterator<Item = (N, S)>) -> TestServer
where
    N: Into<String>,
    S: ListerWatcher,
{
    let config = Config {
        general: GeneralConfig { listen: ListenAddr::Tcp(([127, 0, 0, 1], 0).into()), ..GeneralConfig::default() },
        admin: AdminConfig { listen: None, ..AdminConfig::default() },
        ..Config::default()
    };
    let builder = sources.into_iter().fold(App::builder(config), |builder, (name, source)| {
        builder.serve(&name.into(), ServeOptions::default(), source)
    });
    let app = builder.start().await.expect("the server starts");
    let address: ServerAddress = app.grpc_address().to_string().parse().expect("an address");
    let task = AbortOnDropHandle::new(tokio::spawn(async move {
        app.run(std::future::pending()).await.expect("the server runs until it is dropped");
    }));
    let client = Client::connect(&address).await.expect("the server accepts connections");
    TestServer { client, _task: task }
}

// === impl TestServer ===

impl TestServer {
    /// Returns the connected client. A clone of it shares the connection.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the address of the server, for clients of its own connection.
    pub fn address(&self) -> &ServerAddress {
        self.client.address()
    }
}
