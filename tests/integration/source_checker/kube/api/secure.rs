//! Certificates of an API server and of its clients, and connections secured by them.

use std::{io, net::SocketAddr, path::Path, sync::Arc};

use axum::serve::Listener;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{RootCertStore, ServerConfig, crypto::ring, pki_types::PrivateKeyDer, server::WebPkiClientVerifier};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::Api;

/// Certificates of one authority, for the API server and for a client; those of another authority are rejected.
#[derive(Clone)]
pub(crate) struct Certificates {
    config: Arc<ServerConfig>,
    authority: String,
    client: (String, String),
}

/// Listener for accepted connections of clients.
pub(super) struct SecureListener {
    address: SocketAddr,
    accepted: mpsc::Receiver<TlsStream<TcpStream>>,
    _accepting: JoinSet<()>,
}

// === impl Certificates ===

impl Certificates {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let sign = |names: &[&str]| {
            let key = KeyPair::generate().unwrap();
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            (CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap(), key)
        };
        let ((server, key), (client, client_key)) = (sign(&["127.0.0.1"]), sign(&[]));
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.unwrap())
            .with_single_cert(vec![server.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
            .unwrap();
        Self {
            config: Arc::new(config),
            authority: authority.pem(),
            client: (client.pem(), client_key.serialize_pem()),
        }
    }

    /// Writes the files of a client.
    pub(crate) fn write(&self, directory: &Path) {
        let (certificate, key) = &self.client;
        for (name, text) in [("authority", &self.authority), ("certificate", certificate), ("key", key)] {
            std::fs::write(directory.join(name), text).unwrap();
        }
    }
}

// === impl SecureListener ===

impl SecureListener {
    /// Listens with the certificates that the API has when a client connects.
    pub(super) fn new(listener: TcpListener, api: Api) -> Self {
        let address = listener.local_addr().unwrap();
        let (sender, accepted) = mpsc::channel(1);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            // A silent client does not block the others.
            let mut handshakes = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let config = api.set(|state| state.certificates.clone()).unwrap().config;
                let sender = sender.clone();
                handshakes.spawn(async move {
                    if let Ok(stream) = TlsAcceptor::from(config).accept(stream).await {
                        sender.send(stream).await.unwrap();
                    }
                });
            }
        });
        Self { address, accepted, _accepting: accepting }
    }
}

impl Listener for SecureListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        (self.accepted.recv().await.unwrap(), self.address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}
