//! Exec plugins: programs that print credentials (client-go's `plugin/pkg/client/auth/exec`).
//!
//! A plugin runs as a child process in a process group of its own, with bounded time and output, and without a terminal. It is ended
//! with everything that it started: wrapper scripts leave children behind. Only the requests that need its credentials wait for it.

use std::{process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    time::timeout,
};

use super::kubeconfig::{self, Cluster, ExecConfig};
use crate::source::text::one_line;

/// Answer of a plugin.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ExecCredential {
    pub(super) token: Option<String>,
    /// Client certificate and its key, in PEM.
    pub(super) identity: Option<Vec<u8>>,
    /// Unix time in seconds; `None` for credentials that last until the server refuses them.
    pub(super) expires_at: Option<i64>,
}

/// `ExecCredential` of `client.authentication.k8s.io`.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Printed {
    api_version: String,
    kind: String,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

/// Process group of a plugin, which is killed when this is dropped.
struct ProcessGroup(Option<Pid>);

/// Timeout of a plugin. One that waits for a login never ends by itself.
const EXEC_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// Length of the end of a plugin's stderr that the error quotes.
const MAX_COMPLAINT_BYTES: usize = 2 << 10;

/// Runs a plugin.
///
/// # Cancel safety
///
/// Dropping the future kills the plugin and its children.
pub(super) async fn run(exec: &ExecConfig, cluster: &Cluster) -> Result<ExecCredential, String> {
    let name = &exec.command;
    if exec.interactive_mode.as_deref() == Some("Always") {
        return Err(format!(
            "exec plugin {name:?} needs a terminal (interactiveMode: Always), which a server does not have; use another plugin"
        ));
    }
    let info = info(exec, cluster)?;
    match timeout(EXEC_TIMEOUT, output(exec, &info)).await {
        Ok(Ok(printed)) => {
            read(&printed, &exec.api_version).map_err(|problem| format!("exec plugin {name:?}: {problem}"))
        }
        Ok(Err(problem)) => Err(problem),
        Err(_) => Err(format!(
            "exec plugin {name:?} did not finish within {} s; run it by hand, it may wait for a login",
            EXEC_TIMEOUT.as_secs()
        )),
    }
}

/// Returns the value of `KUBERNETES_EXEC_INFO`.
fn info(exec: &ExecConfig, cluster: &Cluster) -> Result<String, String> {
    use base64::prelude::{BASE64_STANDARD, Engine};
    let mut spec = json!({ "interactive": false });
    if exec.provide_cluster_info {
        let Cluster { server, insecure_skip_tls_verify, proxy_url, tls_server_name, disable_compression, .. } = cluster;
        let mut about = serde_json::Map::new();
        let mut add = |key: &str, value: Option<Value>| about.extend(value.map(|value| (key.to_owned(), value)));
        add("server", Some(json!(server)));
        add("tls-server-name", tls_server_name.as_ref().map(|name| json!(name)));
        add("insecure-skip-tls-verify", insecure_skip_tls_verify.filter(|skip| *skip).map(|skip| json!(skip)));
        add("certificate-authority-data", cluster.authority()?.map(|pem| json!(BASE64_STANDARD.encode(pem))));
        add("proxy-url", proxy_url.as_ref().map(|url| json!(url)));
        add("disable-compression", disable_compression.filter(|disable| *disable).map(|disable| json!(disable)));
        add("config", cluster.exec_config().cloned());
        spec["cluster"] = Value::Object(about);
    }
    Ok(json!({ "apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec }).to_string())
}

async fn output(exec: &ExecConfig, info: &str) -> Result<Vec<u8>, String> {
    let ExecConfig { command: name, args, env, install_hint, .. } = exec;
    let mut command = Command::new(name);
    command.args(args).envs(env.iter().map(|env| (&env.name, &env.value))).env("KUBERNETES_EXEC_INFO", info);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| {
        let hint = install_hint.as_deref().map(one_line).filter(|hint| !hint.is_empty());
        let hint = hint.unwrap_or_else(|| "install it, or correct `command` in the kubeconfig".to_owned());
        format!("exec plugin {name:?} cannot be started: {error}; {hint}")
    })?;
    let group = ProcessGroup::of(&child);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let ended = async {
        let status = child.wait().await;
        // Children that are left would keep its output open.
        drop(group);
        status
    };
    let (printed, complaint, status) = tokio::join!(first(stdout), last(stderr), ended);
    let status = status.map_err(|error| format!("exec plugin {name:?}: {error}"))?;
    // The plugin may have failed because the rest of its output was not read.
    let printed =
        printed.ok_or_else(|| format!("exec plugin {name:?}: output too large (limit: {MAX_OUTPUT_BYTES} bytes)"))?;
    if !status.success() {
        let complaint = one_line(&String::from_utf8_lossy(&complaint));
        let complaint = if complaint.is_empty() { "no output on stderr" } else { &complaint };
        return Err(format!("exec plugin {name:?} failed ({status}): {complaint}"));
    }
    Ok(printed)
}

// === impl ProcessGroup ===

impl ProcessGroup {
    /// Returns the group that a child leads.
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| Pid::from_raw(id.cast_signed())))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It has usually ended.
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}

/// Reads all of a bounded output; `None` if there is more.
async fn first(stream: Option<impl AsyncRead + Unpin>) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // A read error leaves the bytes so far, which the parser judges.
        drop(stream.take(MAX_OUTPUT_BYTES as u64 + 1).read_to_end(&mut bytes).await);
    }
    (bytes.len() <= MAX_OUTPUT_BYTES).then_some(bytes)
}

/// Reads to the end, so that the plugin is not blocked, and keeps the last bytes.
async fn last(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut stream) = stream else { return kept };
    let mut buffer = [0; 1024];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..read]);
        kept.drain(..kept.len().saturating_sub(MAX_COMPLAINT_BYTES));
    }
    kept
}

/// Parses the credentials. As client-go, it accepts YAML too, which some plugins print.
fn read(printed: &[u8], api_version: &str) -> Result<ExecCredential, String> {
    let printed = std::str::from_utf8(printed).map_err(|_| "the output is not UTF-8".to_owned())?;
    let printed: Printed = serde_saphyr::from_str(printed)
        .map_err(|error| format!("the output is not an ExecCredential, at {}", kubeconfig::place(&error)))?;
    if printed.kind != "ExecCredential" {
        return Err(format!("the output has kind {:?}, expected \"ExecCredential\"", printed.kind));
    }
    if !api_version.is_empty() && printed.api_version != api_version {
        let printed = printed.api_version;
        return Err(format!("the output has apiVersion {printed:?}, expected {api_version:?} as in the kubeconfig"));
    }
    let status = printed.status.ok_or("the output has no status; the plugin may wait for a login")?;
    let text = |text: Option<String>| text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let token = text(status.token);
    let identity = match (text(status.client_certificate_data), text(status.client_key_data)) {
        (Some(certificate), Some(key)) => Some(format!("{certificate}\n{key}\n").into_bytes()),
        (None, None) => None,
        _ => return Err("the output has one of client certificate and key without the other".to_owned()),
    };
    if token.is_none() && identity.is_none() {
        return Err("the output has neither a token nor a client certificate".to_owned());
    }
    let expires_at = text(status.expiration_timestamp).map(|text| {
        let at = text.parse::<jiff::Timestamp>();
        at.map(jiff::Timestamp::as_second).map_err(|_| format!("expirationTimestamp {text:?} is not an RFC 3339 time"))
    });
    Ok(ExecCredential { token, identity, expires_at: expires_at.transpose()? })
}

#[cfg(test)]
#[path = "tests/exec.rs"]
mod tests;
