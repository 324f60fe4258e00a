//! informerd itself, in this process, over one prefix of one etcd.

use std::{net::SocketAddr, path::PathBuf};

use informerd::{
    app::App,
    config::{Config, ListenAddr, ServeFlags},
    proto::pb::informer_service_client::InformerServiceClient,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::transport::Channel;

use crate::{etcd::Etcd, follow::Follower, gate::Gate, truth::PREFIX};

/// A server, and what stands between it and etcd.
pub(crate) struct Served {
    pub(crate) gate: Gate,
    address: String,
    admin: SocketAddr,
    running: tokio::task::JoinHandle<()>,
}

// === impl Served ===

impl Served {
    pub(crate) async fn start(etcd: &Etcd, credentials: Option<(String, PathBuf)>) -> Self {
        let gate = Gate::to(etcd.address()).await;
        let anywhere = Some("127.0.0.1:0".to_owned());
        let (etcd_username, etcd_password_file) = credentials.unzip();
        let flags = ServeFlags {
            listen: anywhere.clone(),
            admin_listen: anywhere,
            etcd: vec![format!("things={}{PREFIX}", gate.url())],
            etcd_username,
            etcd_password_file,
            ..ServeFlags::default()
        };
        let app = App::start(Config::load(&flags).unwrap()).await.unwrap();
        let ListenAddr::Tcp(address) = app.grpc_address() else { panic!("a TCP address") };
        let admin = app.admin_address().unwrap();
        let running = tokio::spawn(async move { app.run(std::future::pending()).await.unwrap() });
        Self { gate, address: format!("http://{address}"), admin, running }
    }

    pub(crate) async fn client(&self) -> InformerServiceClient<Channel> {
        InformerServiceClient::connect(self.address.clone()).await.unwrap()
    }

    /// Some of everything, and some of one namespace.
    pub(crate) async fn followers(&self) -> Vec<Follower> {
        let mut followers = Vec::new();
        for namespace in ["", "a", "", "b", ""] {
            followers.push(Follower::start(self.client().await, namespace).await);
        }
        followers
    }

    /// A counter of ours.
    pub(crate) async fn count(&self, name: &str) -> u64 {
        counter(self.admin, &format!("informerd_{name}")).await
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// The sum of what `/metrics` says of a name, or of a name with some labels.
pub(crate) async fn counter(address: SocketAddr, name: &str) -> u64 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (name, label) = name.split_once(' ').unwrap_or((name, ""));
    let is_it = |line: &&str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(label)
    };
    let values =
        answer.lines().filter(is_it).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64);
    values.sum()
}
