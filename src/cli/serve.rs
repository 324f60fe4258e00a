//! `informerd serve`.

use std::process::ExitCode;

use super::{FAILED, WRONG_USAGE, complain, load, signals::Signals};
use crate::{
    app::App,
    config::{Config, ServeFlags},
    telemetry,
};

pub(super) const EXAMPLES: &str = "\
Examples:
  # the pods in a directory, for grpcurl on this machine
  informerd serve --files pods=./manifests@Pod
  grpcurl -plaintext -d '{\"resource\":\"pods\"}' 127.0.0.1:50051 informerd.v1.InformerService/Watch

  # the objects of a recorded or piped watch
  informerd serve --stream events=events.jsonl
  kubectl get pods -A -w --output-watch-events -o json | informerd serve --stream pods=-

  # the keys below a prefix of etcd, served at once after a restart
  informerd serve --etcd settings=http://127.0.0.1:2379/settings/ --state-dir /var/lib/informerd

  # a resource of another informerd, for more clients than that one has connections for
  informerd serve --listen 127.0.0.1:50052 --relay pods=http://127.0.0.1:50051

  # the pods of all namespaces of the cluster that kubectl talks to, or that this runs in
  informerd serve --kube pods=v1/pods

  # several resources with indexes
  informerd serve --config examples/shop.yaml

A flag overrides its environment variable, which overrides the file, which overrides the default.
SIGINT and SIGTERM shut it down gracefully, within `drain`; a second signal ends it at once.";

pub(super) fn run(flags: &ServeFlags) -> ExitCode {
    let config = match load(flags) {
        Ok(config) => config,
        Err(code) => return code,
    };
    if let Err(error) = telemetry::init_logs(&flags.log, flags.log_format) {
        complain(&error);
        return WRONG_USAGE.into();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format_args!("cannot start: {error}"));
            return FAILED.into();
        }
    };
    let code = runtime.block_on(serve(config));
    // Does not wait for connections that were cut off or a scan in progress.
    runtime.shutdown_background();
    code
}

async fn serve(config: Config) -> ExitCode {
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            complain(&error);
            return FAILED.into();
        }
    };
    let app = match App::start(config).await {
        Ok(app) => app,
        Err(error) => {
            complain(&error);
            return FAILED.into();
        }
    };
    let (told, mut is_told) = tokio::sync::oneshot::channel();
    let running = app.run(async {
        // The sender is dropped only after it has sent: it lasts as long as this function.
        drop((&mut is_told).await);
    });
    tokio::pin!(running);
    tokio::select! {
        ended = &mut running => return exit_code(ended),
        _ = signals.next() => drop(told.send(())),
    }
    tokio::select! {
        ended = running => exit_code(ended),
        code = signals.next() => {
            tracing::warn!("second signal: exiting immediately");
            code.into()
        }
    }
}

fn exit_code(ended: Result<(), crate::app::AppError>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            FAILED.into()
        }
    }
}
