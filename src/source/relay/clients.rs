//! Connections to upstreams: the sources of one upstream share a connection, and one stream for their watches.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use crate::{
    client::Client,
    net::{ServerAddress, TlsOptions, connection_files},
};

/// Connections of a process, one for each upstream. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct RelayClients {
    clients: Arc<Mutex<HashMap<RelayServer, Weak<Client>>>>,
}

/// Address of an upstream, the files that a connection to it needs, and the digest of their contents.
pub(super) type RelayServer = (ServerAddress, TlsOptions<PathBuf>, Option<connection_files::Digest>);

// === impl RelayClients ===

impl RelayClients {
    /// Returns the connection to a server; none if no source has one.
    pub(super) fn get(&self, server: &RelayServer) -> Option<Arc<Client>> {
        self.clients.lock().get(server)?.upgrade()
    }

    /// Returns this connection, unless another source has made one meanwhile.
    pub(super) fn insert(&self, server: RelayServer, client: Client) -> Arc<Client> {
        let mut clients = self.clients.lock();
        clients.retain(|_, client| client.strong_count() > 0);
        if let Some(other) = clients.get(&server).and_then(Weak::upgrade) {
            return other;
        }
        let client = Arc::new(client);
        clients.insert(server, Arc::downgrade(&client));
        client
    }

    /// Leaves a connection to the sources that use it: later ones make another.
    pub(super) fn leave(&self, server: &RelayServer, client: &Arc<Client>) {
        let mut clients = self.clients.lock();
        if clients.get(server).is_some_and(|current| current.as_ptr() == Arc::as_ptr(client)) {
            clients.remove(server);
        }
    }
}
