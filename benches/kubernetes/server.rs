//! informerd over the API server, in a process of its own.

use std::{
    fs,
    net::SocketAddr,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use super::{
    apiserver::{ADMIN, ApiServer},
    port::free_address,
    running::Running,
};

pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) process: Running,
    _directory: TempDir,
}

// === impl Server ===

impl Server {
    /// Starts one, which drops these fields of the objects.
    pub(super) fn start(apiserver: &ApiServer, certificate: &str, key: &str, drop_fields: &str) -> Self {
        let (directory, address) = (TempDir::new().unwrap(), free_address());
        let path = |name: &str| directory.path().join(name);
        apiserver.kubeconfig(&path("kubeconfig"), apiserver.address().port(), ADMIN);
        let config = format!(
            "listen: 127.0.0.1:0\nadmin: {{ listen: none }}\nkubernetes: {{ listen: '{address}' }}\ncompression: [gzip]\n\
             tls: {{ cert: cert.pem, key: key.pem }}\nlimits: {{ peer_share: 100 }}\nresources:\n  pods:\n    kubernetes: auto\n    \
             drop_fields: [{drop_fields}]\n    source: {{ kube: {{ version: v1, plural: pods, kubeconfig: kubeconfig }} }}\n"
        );
        for (name, text) in [("config.yaml", &config[..]), ("cert.pem", certificate), ("key.pem", key)] {
            fs::write(path(name), text).unwrap();
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_informerd"));
        command.args(["serve", "--log", "warn", "--config"]).arg(path("config.yaml")).stdin(Stdio::null());
        Self { address, process: Running(command.spawn().unwrap()), _directory: directory }
    }
}
