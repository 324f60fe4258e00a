//! TLS: the certificates of server and client, the clients that the server accepts, and the errors of both sides.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use informerd::{
    app::App,
    cache::{ListVersion, ListerWatcher, SourceHealth},
    client::{Client, Query, ServerAddress, TlsOptions, Update, WatchOptions},
    config::{Config, ListenAddr, ServeFlags},
    source::relay::{RelayConfig, RelaySource},
};
use rcgen::{CertificateParams, DistinguishedName};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::{authority::Authority, sandbox::DEADLINE};

/// Server of one pod under TLS.
pub(crate) struct Secured {
    pub(crate) address: ServerAddress,
    /// Address of the Kubernetes API, if it is configured.
    pub(crate) kubernetes: Option<ListenAddr>,
    shutdown: CancellationToken,
    running: tokio::task::JoinHandle<()>,
    directory: TempDir,
}

impl Secured {
    async fn start(server: &Authority, clients: Option<&Authority>) -> Self {
        Self::start_with(server, clients, "", &[]).await
    }

    /// Starts it with more keys, each with a comma behind it, and more files.
    pub(crate) async fn start_with(
        server: &Authority,
        clients: Option<&Authority>,
        keys: &str,
        files: &[(&str, &str)],
    ) -> Self {
        let directory = TempDir::new().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(directory.path().join(name), bytes).unwrap();
        let (cert, key) = server.sign(&["localhost"]);
        write("tls.crt", &cert);
        write("tls.key", &key);
        fs::create_dir(directory.path().join("pods")).unwrap();
        write("pods/web.json", br#"{"kind":"Pod","metadata":{"name":"web"}}"#);
        for (name, text) in files {
            write(name, text.as_bytes());
        }
        let client_ca = clients.map(|clients| {
            write("ca.crt", &clients.pem());
            ", client_ca: ca.crt"
        });
        let config = format!(
            "{{ {keys} listen: '127.0.0.1:0', admin: {{ listen: none }}, tls: {{ cert: tls.crt, key: tls.key{} }}, \
             resources: {{ pods: {{ source: {{ files: {{ path: pods }} }} }} }} }}",
            client_ca.unwrap_or_default()
        );
        write("informerd.yaml", config.as_bytes());
        let app = App::start(load(directory.path())).await.unwrap();
        let ListenAddr::Tcp(address) = app.grpc_address() else { panic!("a TCP address") };
        let (kubernetes, shutdown) = (app.kubernetes_address(), CancellationToken::new());
        let running = tokio::spawn(app.run(shutdown.clone().cancelled_owned()));
        let running = tokio::spawn(async { running.await.unwrap().unwrap() });
        let address = format!("https://localhost:{}", address.port()).parse().unwrap();
        Self { address, kubernetes, shutdown, running, directory }
    }

    /// Returns the result of a client that trusts this authority and presents this certificate.
    pub(crate) async fn names(
        &self,
        authority: &Authority,
        identity: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Result<Vec<String>, informerd::client::ClientError> {
        let options = TlsOptions { authority: Some(authority.pem()), identity, server_name: None };
        self.listed(&self.address.with_tls(options).unwrap()).await
    }

    /// Returns the same for a client with this address.
    pub(crate) async fn listed(&self, address: &ServerAddress) -> Result<Vec<String>, informerd::client::ClientError> {
        let client = Client::connect(address).await?;
        let listed = client.list(&Query::of("pods")).await?;
        Ok(listed.objects.into_iter().map(|object| object.name).collect())
    }

    /// Returns the path of one of the server's files.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(DEADLINE, self.running).await.expect("it ends in time").unwrap();
    }
}

fn load(directory: &Path) -> Config {
    let config = Some(directory.join("informerd.yaml"));
    Config::load(&ServeFlags { config, ..ServeFlags::default() }).unwrap()
}

#[tokio::test]
async fn a_client_that_trusts_the_server_is_served_and_another_reports_the_reason() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = Secured::start(&authority, None).await;
    assert_eq!(server.names(&authority, None).await.unwrap(), ["web"]);
    let error = server.names(&stranger, None).await.unwrap_err().to_string();
    assert!(error.contains("invalid peer certificate") && !error.contains('\n'), "{error}");
    let plain: ServerAddress = server.address.to_string().trim_start_matches("https://").parse().unwrap();
    let client = Client::connect(&plain).await;
    let answer = match client {
        Ok(client) => client.list(&Query::of("pods")).await.map(drop),
        Err(error) => Err(error),
    };
    assert!(answer.is_err(), "plain text is not answered");
    server.stop().await;
}

#[tokio::test]
async fn a_client_without_the_right_certificate_is_rejected() {
    let (authority, clients, stranger) = (Authority::new(), Authority::new(), Authority::new());
    let server = Secured::start(&authority, Some(&clients)).await;
    assert_eq!(server.names(&authority, Some(clients.sign(&["me"]))).await.unwrap(), ["web"]);
    for identity in [None, Some(stranger.sign(&["me"]))] {
        assert!(server.names(&authority, identity).await.is_err());
    }
    server.stop().await;
}

/// A certificate admits its client as long as it is valid, whatever names it has.
#[tokio::test]
async fn a_certificate_without_a_user_is_refused_once_it_has_expired() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let server = Secured::start(&authority, Some(&clients)).await;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_after = (SystemTime::now() + Duration::from_secs(3)).into();
    let identity = Some(clients.sign_these(&params));
    let options = TlsOptions { authority: Some(authority.pem()), identity, server_name: None };
    let client = Client::connect(&server.address.with_tls(options).unwrap()).await.unwrap().subscribing();
    assert_eq!(client.list(&Query::of("pods")).await.unwrap().objects.len(), 1);
    let watch = || client.watch(&Query::of("pods"), &WatchOptions::default());
    let mut open = watch();
    open.next().await.unwrap().unwrap();
    let refused = async {
        loop {
            if let Err(error) = client.list(&Query::of("pods")).await {
                break error;
            }
        }
    };
    let refused = tokio::time::timeout(DEADLINE, refused).await.expect("a refusal in time");
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    // One that begins on the open stream of the other.
    let mut later = watch();
    let refused = async {
        loop {
            match later.next().await.unwrap() {
                Ok(Update::Note(_)) => {}
                other => break other,
            }
        }
    };
    let refused = tokio::time::timeout(DEADLINE, refused).await.expect("a refusal in time");
    assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
    drop((open, later, client));
    server.stop().await;
}

#[tokio::test]
async fn the_list_of_watchers_has_the_names_in_the_certificates() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let server = Secured::start(&authority, Some(&clients)).await;
    let identity = Some(clients.sign(&["web.shop", "other.shop"]));
    let options = TlsOptions { authority: Some(authority.pem()), identity, server_name: None };
    let client = Client::connect(&server.address.with_tls(options).unwrap()).await.unwrap();
    let mut watch = client.watch(&Query::of("pods"), &WatchOptions::default());
    watch.next().await.unwrap().unwrap();
    let watchers = client.watchers("pods").await.unwrap();
    assert_eq!(watchers.iter().map(|watcher| watcher.identity.as_str()).collect::<Vec<_>>(), ["web.shop"]);
    drop((watch, client));
    server.stop().await;

    let server = Secured::start(&authority, None).await;
    let options = TlsOptions { authority: Some(authority.pem()), identity: None, server_name: None };
    let client = Client::connect(&server.address.with_tls(options).unwrap()).await.unwrap();
    let mut watch = client.watch(&Query::of("pods"), &WatchOptions::default());
    watch.next().await.unwrap().unwrap();
    assert_eq!(client.watchers("pods").await.unwrap()[0].identity, "");
    drop((watch, client));
    server.stop().await;
}

/// Checks that a relay presents its certificate like any other client.
#[tokio::test]
async fn a_relay_presents_its_certificate() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let server = Secured::start(&authority, Some(&clients)).await;
    let directory = TempDir::new().unwrap();
    let file = |name: &str, pem: &[u8]| {
        fs::write(directory.path().join(name), pem).unwrap();
        directory.path().join(name)
    };
    let (cert, key) = clients.sign(&["relay"]);
    let tls = TlsOptions {
        authority: Some(file("ca.crt", &authority.pem())),
        identity: Some((file("tls.crt", &cert), file("tls.key", &key))),
        server_name: None,
    };
    let config = RelayConfig { tls, ..RelayConfig::new(server.address.clone(), "pods") };
    assert_eq!(RelaySource::check(&config), Ok(()));
    let source = |config: &RelayConfig| RelaySource::new(config.clone(), SourceHealth::new(DEADLINE, DEADLINE));
    let list = source(&config).list(ListVersion::MostRecent).await.unwrap();
    assert_eq!(list.objects.len(), 1);
    let nobody = RelayConfig { tls: TlsOptions { identity: None, ..config.tls.clone() }, ..config.clone() };
    assert!(source(&nobody).list(ListVersion::MostRecent).await.is_err());
    fs::remove_file(directory.path().join("tls.key")).unwrap();
    let error = RelaySource::check(&config).unwrap_err();
    assert!(error.contains("tls.key cannot be read"), "{error}");
    server.stop().await;
}
