//! `informerd mirror`: a directory with a file for each object of a resource.

use std::{fmt::Display, future::pending, net::SocketAddr, ops::ControlFlow, path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::{
    alias::{named, of_resource},
    client_flags::{ChangedFlag, SelectionFlags, ServerFlags},
    failure::{FAILED, Failure},
    signals::Signals,
};
use crate::{
    client::Query,
    config::parse_duration,
    mirror::{Layout, Mirror, MirrorConfig, Notes, OpenError, serve_probe},
};

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd mirror pods ./pods --once
  informerd mirror configmaps ./settings -n platform --keys
  informerd mirror configmaps /dashboards -l grafana_dashboard=1 --keys --health 0.0.0.0:8080
  informerd mirror pods ./pods --then 'ls -R ./pods'
  informerd serve --listen 127.0.0.1:50052 --admin-listen none --files copy=./pods

DIR has exactly one file per object, NAMESPACE/NAME.json with the bytes of the object, or with --keys one per key of its data, \
NAMESPACE/NAME/KEY. Its readers see the old or the new bytes of a file, never a part. Characters that do not fit into a file name \
are `%` and two digits; docs/mirror.md has the rules. After a restart, DIR is made right. Ctrl-C and SIGTERM end it with exit \
code 0; with --once before DIR is complete, with 130 or 143.";

/// Flags of `informerd mirror`.
#[derive(Debug, Clone, Args)]
pub(super) struct MirrorFlags {
    /// A name from `informerd resources`
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// Directory, which is made if it is missing: an empty one, or that of an earlier mirror of the resource
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// End once DIR has the current objects, for an init container
    #[arg(long, help_heading = "Mirror")]
    once: bool,
    /// Compare all files with the objects at this interval, and repair those that others have changed; 0: never
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_duration, help_heading = "Mirror")]
    resync: Duration,
    /// Remove the files in DIR that are not of this mirror, in place of an error, once the server has answered
    #[arg(long, help_heading = "Mirror")]
    replace: bool,
    /// One file for each key in `data` and `binaryData` of a `ConfigMap` or Secret, decoded
    #[arg(long, help_heading = "Mirror")]
    keys: bool,
    /// Command to run in the shell when DIR is complete, and after changes of files, one at a time
    #[arg(long, value_name = "CMD", help_heading = "Mirror")]
    then: Option<String>,
    /// Address for probes over HTTP: 503 before DIR is complete and while it is stale, otherwise 200
    #[arg(long, value_name = "ADDR", help_heading = "Mirror")]
    health: Option<SocketAddr>,
    #[command(flatten)]
    selection: SelectionFlags,
    #[command(flatten)]
    changed: ChangedFlag,
    #[command(flatten)]
    server: ServerFlags,
}

of_resource!(MirrorFlags, server);

impl MirrorFlags {
    /// Returns the end by a signal: what --once is for is lost with this process.
    fn interrupted(&self, exit_code: u8) -> Result<(), Failure> {
        if self.once { Err(Failure { message: None, exit_code }) } else { Ok(()) }
    }
}

/// Time for the server to refuse the request at the start.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// Time between two requests for the names, of a server that has not answered.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The directory has the name of the resource, so it is found first. A server that does not answer is waited for: later, it may have
/// the name as another name of a resource.
pub(super) async fn run(flags: &MirrorFlags) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    loop {
        let found = tokio::select! {
            found = named(flags) => found,
            exit_code = signals.next() => return flags.interrupted(exit_code),
        };
        let mirrored = mirror(found.as_ref().unwrap_or(flags), found.is_some(), &mut signals);
        if Box::pin(mirrored).await?.is_break() {
            return Ok(());
        }
    }
}

/// Mirrors. Continues if the server has answered meanwhile, and the resource may have another name.
async fn mirror(flags: &MirrorFlags, is_named: bool, signals: &mut Signals) -> Result<ControlFlow<()>, Failure> {
    let MirrorFlags { resource, directory, once, resync, replace, keys, then, health, selection, changed, server } =
        flags;
    let query = changed.applied_to(selection.query(resource)?);
    let notes: Notes = {
        let server = server.clone();
        Arc::new(move |note: &dyn Display| server.note(note))
    };
    let (address, tls) = server.upstream()?;
    let health = listen(*health, &notes).await?;
    let mirror = Mirror::open(MirrorConfig {
        address,
        tls,
        query: query.clone(),
        directory: directory.clone(),
        layout: if *keys { Layout::Keys } else { Layout::Objects },
        replace: *replace,
        once: *once,
        resync: *resync,
        then: then.clone(),
        notes,
    });
    let mirror = match mirror {
        Ok(mirror) => mirror,
        Err(OpenError::Foreign { path, is_of_other: true, .. }) if !is_named => {
            let note = "is of another mirror, perhaps of the same resource: waiting for the server to tell";
            server.note(&format_args!("# {resource}: {path} {note}"));
            let probing = serve_probe(health, move || Some(format!("not synced: {path} {note}")));
            return tokio::select! {
                _ = answer(flags) => Ok(ControlFlow::Continue(())),
                () = probing => Ok(ControlFlow::Continue(())),
                exit_code = signals.next() => flags.interrupted(exit_code).map(ControlFlow::Break),
            };
        }
        Err(error @ OpenError::Io { .. }) => return Err(Failure::new(FAILED, error.to_string())),
        Err(error @ (OpenError::InUse { .. } | OpenError::Foreign { .. })) => {
            return Err(Failure::usage(error.to_string()));
        }
    };
    let checking = async {
        let checked = check(server, &query).await;
        // The server may have come since the request for the name.
        let is_unasked = checked.is_err() && !is_named;
        let is_renamed = is_unasked && named(flags).await.is_some_and(|found| found.resource != *resource);
        if is_renamed { Ok(true) } else { checked.map(|()| false) }
    };
    let is_renamed = tokio::select! {
        checked = checking => checked?,
        exit_code = signals.next() => return flags.interrupted(exit_code).map(ControlFlow::Break),
    };
    if is_renamed {
        return Ok(ControlFlow::Continue(()));
    }
    let stop = CancellationToken::new();
    let running = mirror.run(health, stop.clone());
    tokio::pin!(running);
    let exit_code = tokio::select! {
        _ = &mut running => return Ok(ControlFlow::Break(())),
        exit_code = signals.next() => exit_code,
        () = renamed(flags), if !is_named => {
            stop.cancel();
            running.await;
            return Ok(ControlFlow::Continue(()));
        }
    };
    stop.cancel();
    tokio::select! {
        has_settled = running => {
            let ended = if has_settled { Ok(()) } else { flags.interrupted(exit_code) };
            ended.map(ControlFlow::Break)
        }
        // A command may take long.
        exit_code = signals.next() => Err(Failure { message: None, exit_code }),
    }
}

/// Waits until the server answers; returns the flags with the name of the resource.
async fn answer(flags: &MirrorFlags) -> MirrorFlags {
    loop {
        sleep(ASK_AGAIN).await;
        if let Some(found) = named(flags).await {
            return found;
        }
    }
}

/// Waits until the server answers that the resource has another name.
async fn renamed(flags: &MirrorFlags) {
    if answer(flags).await.resource == flags.resource {
        pending::<()>().await;
    }
}

async fn listen(address: Option<SocketAddr>, notes: &Notes) -> Result<Option<TcpListener>, Failure> {
    let Some(address) = address else { return Ok(None) };
    let failed = |error| Failure::new(FAILED, format!("cannot listen on {address} (--health): {error}"));
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    notes(&format_args!("# health at http://{}/", listener.local_addr().map_err(failed)?));
    Ok(Some(listener))
}

/// Checks that the server serves the selection. A server that cannot be reached is waited for, but a mistake in the command line
/// would only be repeated.
async fn check(server: &ServerFlags, query: &Query) -> Result<(), Failure> {
    let client = server.connect_lazy()?;
    match timeout(FIRST_ANSWER, server.try_watch(&client, query)).await {
        Ok(Err(error)) if is_mistake(error.code()) => Err(error.into()),
        _ => Ok(()),
    }
}

fn is_mistake(code: Code) -> bool {
    use Code::{InvalidArgument, NotFound, PermissionDenied, Unauthenticated, Unimplemented};
    matches!(code, InvalidArgument | NotFound | PermissionDenied | Unauthenticated | Unimplemented)
}
