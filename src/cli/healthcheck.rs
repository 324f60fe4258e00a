//! `informerd healthcheck`: the gRPC health check, for probes of containers without a shell.

use std::time::Duration;

use clap::Args;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use super::{
    client_flags::ServerFlags,
    failure::{FAILED, Failure, UNAVAILABLE},
};
use crate::config::parse_duration;

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd healthcheck
  informerd healthcheck --server unix:/run/informerd/informerd.sock
  HEALTHCHECK CMD [\"informerd\", \"healthcheck\"]

Exit codes: 0 serving; 1 not serving; 2 wrong usage; 3 unknown service; 4 unavailable or timed out.";

/// Flags of `informerd healthcheck`.
#[derive(Debug, Clone, Args)]
pub(super) struct HealthcheckFlags {
    /// Service of the gRPC health check [default: the server as a whole: all resources have synced, and it does not shut down]
    #[arg(value_name = "SERVICE", default_value = "", hide_default_value = true)]
    service: String,
    #[command(flatten)]
    server: ServerFlags,
    /// Time limit for the answer
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = parse_duration, help_heading = "Server")]
    timeout: Duration,
}

pub(super) async fn run(flags: &HealthcheckFlags) -> Result<(), Failure> {
    let HealthcheckFlags { service, server, timeout } = flags;
    let late = |_| Failure::new(UNAVAILABLE, format!("no answer within {timeout:?} (--timeout)"));
    let status = tokio::time::timeout(*timeout, status(server, service)).await.map_err(late)??;
    if status == ServingStatus::Serving {
        return Ok(());
    }
    Err(Failure::new(FAILED, format!("the server reports {}", status.as_str_name())))
}

async fn status(server: &ServerFlags, service: &str) -> Result<ServingStatus, Failure> {
    let client = server.connect().await?;
    let request = HealthCheckRequest { service: service.to_owned() };
    let checked = HealthClient::new(client.connection()).check(request).await;
    let answer = checked.map_err(|status| client.error(&status))?;
    Ok(answer.into_inner().status())
}
