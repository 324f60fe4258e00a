//! `informerd serve`.

use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

use super::{
    failure::Failure,
    signals::{Hangup, Signals},
};
use crate::{
    app::{App, AppBuilder, Reloader},
    config::ServeFlags,
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
  informerd serve --listen 127.0.0.1:50052 --admin-listen none --relay pods=http://127.0.0.1:50051

  # the pods of all namespaces of the cluster that kubectl uses, or that informerd runs in
  informerd serve --kube pods=v1/pods

  # several resources with indexes
  informerd serve examples/shop.yaml

A flag overrides its environment variable, which overrides the file, which overrides the default.
The configuration is read again on SIGHUP and when its file changes: resources are added, replaced and removed.
SIGINT and SIGTERM shut it down gracefully, within `drain.delay` and `drain.period`; a second signal ends it at once.";

pub(super) fn run(flags: &ServeFlags) -> Result<(), Failure> {
    let builder = App::builder_of(flags.clone())?;
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(|error| Failure::start(&error))?;
    let traces = {
        let _entered = runtime.enter();
        telemetry::init_logs(&flags.log, flags.log_format).map_err(|error| Failure::usage(error.to_string()))?
    };
    let ended = runtime.block_on(serve(builder));
    traces.flush();
    // Does not wait for connections that were cut off or a scan in progress.
    runtime.shutdown_background();
    ended
}

async fn serve(builder: AppBuilder) -> Result<(), Failure> {
    let (mut signals, mut hangup) = (Signals::new()?, Hangup::new()?);
    let app = builder.start().await?;
    let reloader = app.reloader();
    let reloading = async {
        loop {
            hangup.next().await;
            reloader.iter().for_each(Reloader::reload);
        }
    };
    let shutdown = CancellationToken::new();
    let running = app.run(shutdown.cancelled());
    tokio::pin!(running);
    tokio::select! {
        ended = &mut running => return Ok(ended?),
        () = reloading => {}
        _ = signals.next() => shutdown.cancel(),
    }
    tokio::select! {
        ended = running => Ok(ended?),
        exit_code = signals.next() => {
            tracing::warn!("second signal: exiting immediately");
            Err(Failure { message: None, exit_code })
        }
    }
}
