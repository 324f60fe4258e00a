//! Server in the process of a test, with a client of it.

use std::{collections::BTreeMap, sync::Arc};

use tokio_util::task::AbortOnDropHandle;

use crate::{
    app::{App, OwnSource},
    cache::ListerWatcher,
    client::{Client, ServerAddress},
    config::{
        AdminConfig, Config, DrainConfig, GeneralConfig, LimitsConfig, ListenAddr, ResourceConfig, ResourceOptions,
        SourceConfig, WatchConfig,
    },
    watch::BroadcasterConfig,
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
    let (mut resources, mut own) = (BTreeMap::new(), BTreeMap::new());
    for (name, source) in sources {
        let name: String = name.into();
        let resource = ResourceConfig {
            name: name.clone(),
            source: SourceConfig::Own,
            indexers: Arc::default(),
            options: ResourceOptions::default(),
        };
        resources.insert(name.clone(), resource);
        assert!(own.insert(name.clone(), OwnSource::new(source)).is_none(), "two resources are named {name}");
    }
    let config = Config {
        general: GeneralConfig { listen: ListenAddr::Tcp(([127, 0, 0, 1], 0).into()), ..GeneralConfig::default() },
        admin: AdminConfig { listen: None },
        tls: None,
        watch: WatchConfig::default(),
        history: BroadcasterConfig::default().retention,
        limits: LimitsConfig::default(),
        drain: DrainConfig::default(),
        resources,
    };
    let app = App::start_with(config, own).await.expect("the server starts");
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
