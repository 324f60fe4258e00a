//! `informerd verify`: the objects of a server, and those of its upstream.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use bytes::Bytes;
use clap::Args;
use tokio::time::{Instant, sleep};

use super::{
    client_flags::{FormatFlags, ServerFlags, TimeoutFlags},
    failure::{FAILED, Failure},
    print::{Record, json::Document, or_unread, stdout, table::Cell, write_records},
    waiting,
};
use crate::{
    app::{Comparison, Difference, State, Upstream},
    client::{ListResult, Query},
    config::{Config, ServeFlags, parse_duration},
    model::ObjectKey,
    proto::pb::{self, PayloadFormat, object::Body},
};

pub(super) const EXAMPLES: &str = "\
Examples, with a server of examples/shop.yaml:
  informerd verify pods --config examples/shop.yaml
  informerd verify pods --config examples/shop.yaml -o json

It lists the upstream with the source of the file, and the server, and compares key by key: uid, body, and the version where the \
upstream assigns it. An object counts that differs for the time --settle, in which its upstream state has not changed; one that \
changes is compared again, ten times at most. --timeout is for the two lists of each comparison. A stream, which has no list, is \
refused. Exit code 1: there is a difference.";

/// Flags of `informerd verify`.
#[derive(Debug, Clone, Args)]
pub(super) struct VerifyFlags {
    /// A resource of the file, which the server serves by the same name
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// Configuration file of the server, with the resource's source
    #[arg(long, value_name = "FILE", env = "INFORMERD_CONFIG", hide_env_values = true)]
    config: PathBuf,
    /// Time for which an object must differ without a change in the upstream, 0s to 1h; both sides are listed again twice in it
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    settle: Duration,
    #[command(flatten)]
    format: FormatFlags,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    timeout: TimeoutFlags,
}

const HEADER: &[&str] = &["KEY", "DIFFERENCE", "SERVED", "UPSTREAM"];
/// Rounds of a comparison.
const MAX_ROUNDS: u32 = 10;
/// Largest value of `--settle`.
const MAX_SETTLE: Duration = Duration::from_secs(3600);

pub(super) async fn run(flags: &VerifyFlags) -> Result<(), Failure> {
    let VerifyFlags { resource, settle, format, server, timeout, .. } = flags;
    if *settle > MAX_SETTLE {
        return Err(Failure::usage(format!("--settle {settle:?} is longer than {MAX_SETTLE:?}")));
    }
    let upstream = upstream(flags)?;
    let mut comparison = Comparison::new(*settle, usize::MAX);
    let (mut count, mut rounds) = (0, 0);
    while rounds == 0 || comparison.open() > 0 && rounds < MAX_ROUNDS {
        if rounds > 0 {
            server.note(&format_args!("# {resource}: {} objects differ now: comparing again", comparison.open()));
            sleep(*settle / 2).await;
        }
        let lists = async { Ok((upstream.list().await?, served(server, resource).await?)) };
        let (listed, (served, namespaces)) = waiting::limited(timeout, server, resource, Box::pin(lists)).await?;
        if rounds == 0 {
            server.note_limited(resource, &namespaces);
        }
        let compares_versions = upstream.assigns_versions(&listed);
        let is_readable =
            |key: &ObjectKey| namespaces.is_empty() || namespaces.iter().any(|namespace| namespace == key.namespace());
        let listed = listed.objects.iter().map(|object| (object.key(), object)).filter(|(key, _)| is_readable(key));
        // Of two objects with the same key the last wins.
        let listed: BTreeMap<_, _> = listed.collect();
        count = listed.len();
        let listed = listed.into_iter().map(|(key, object)| (key, State::of(object)));
        let served = served.iter().map(|(key, state)| (key, state.clone()));
        comparison.compare(compares_versions, listed, served, Instant::now());
        rounds += 1;
    }
    let (differences, open) = (comparison.differences(), comparison.open());
    let records = differences.iter().map(|(key, difference)| record(key, difference)).collect();
    or_unread(write_records(stdout(), &format.options(), ("differences", HEADER), records))?;
    if open > 0 {
        server.note(&format_args!("# {resource}: {open} objects change all the time, and were not compared"));
    }
    let found = differences.len();
    if found > 0 {
        return Err(Failure::new(FAILED, format!("{found} objects of {resource} are not those of the upstream")));
    }
    server.note(&format_args!("# {resource}: {} objects are those of the upstream", count - open.min(count)));
    Ok(())
}

fn upstream(flags: &VerifyFlags) -> Result<Upstream, Failure> {
    let VerifyFlags { resource, config: path, .. } = flags;
    let serve = ServeFlags { config: Some(path.clone()), ..ServeFlags::default() };
    let config = Config::load(&serve)?;
    let Some(found) = config.resources.get(resource) else {
        let known: Vec<&str> = config.resources.keys().map(String::as_str).collect();
        let problem = format!("there is no resource {resource} in {}; it has {}", path.display(), known.join(", "));
        return Err(Failure::usage(problem));
    };
    Ok(Upstream::new(found))
}

/// Returns the objects that the server has, and the namespaces that they are limited to, because the caller may read no others.
async fn served(server: &ServerFlags, resource: &str) -> Result<(BTreeMap<ObjectKey, State>, Vec<String>), Failure> {
    let query = Query { format: PayloadFormat::Raw, ..Query::of(resource) };
    let ListResult { objects, namespaces, .. } = server.connect().await?.list(&query).await?;
    Ok((objects.into_iter().map(of_server).collect::<Result<_, _>>()?, namespaces))
}

fn of_server(object: pb::Object) -> Result<(ObjectKey, State), Failure> {
    let key = ObjectKey::new(&object.namespace, &object.name);
    let key = key
        .map_err(|error| Failure::new(FAILED, format!("the server has sent an object without a valid key: {error}")))?;
    let body = match object.body {
        Some(Body::Raw(body)) => body,
        Some(Body::Struct(_)) | None => Bytes::new(),
    };
    Ok((key, State { uid: object.uid, version: object.resource_version, body }))
}

fn record(key: &ObjectKey, difference: &Difference) -> Record {
    let Difference { what, served, upstream } = difference;
    let cells = vec![Cell::new(&key.to_string()), Cell::new(what), Cell::or_none(served), Cell::or_none(upstream)];
    let parts = [
        ("namespace", key.namespace().into()),
        ("name", key.name().into()),
        ("difference", (*what).into()),
        ("served", served.as_str().into()),
        ("upstream", upstream.as_str().into()),
    ];
    Record { name: key.to_string(), cells, document: Document::from_fields(parts) }
}
