//! `informerd check`.

mod plan;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    time::Duration,
};

use clap::Args;

use self::plan::Plan;
use super::{
    failure::{FAILED, Failure},
    print::{or_unread, write_all},
    serve_flags::ConfigFlags,
};
use crate::{
    app::{self, AppError},
    client::ServerAddress,
    config::{Config, SourceConfig, parse_duration},
    proto::pb,
    source::{kube::KubeConfig, stream::StreamPath},
};

pub(super) const EXAMPLES: &str = "\
Examples:
  informerd check examples/shop.yaml
  informerd check examples/shop.yaml --offline
  informerd check examples/shop.yaml --plan subscribers=100000,rate=10,bytes=1024

It opens the paths that the server writes to, looks for the kind of each directory, and connects to the Kubernetes API, etcd \
or informerd of each resource, to all at once, and reads at most one object there. With \
--offline it reads files only, for a place without the network of the server.

Exit codes: 0 success; 1 a source cannot be read or reached, or a path not be written to, with one line for each; 2 the configuration is invalid, with one line for \
each problem.";

/// Flags of `informerd check`.
#[derive(Debug, Clone, Args)]
pub(super) struct CheckFlags {
    #[command(flatten)]
    config: ConfigFlags,
    /// Make no connection: check the configuration and the files that it names
    #[arg(long)]
    offline: bool,
    /// Print what so many subscribers need, and make no connection: subscribers=NUMBER; with defaults, rate=1 (events a second for each),
    /// bytes=1024 (of an object), connections (one each), objects=0 (MiB of JSON), and a machine: cores=4, gbit=10, memory=8192 (MiB)
    #[arg(long, value_name = "KEY=NUMBER,...")]
    plan: Option<Plan>,
    /// Time for each source to respond
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
}

/// Errors of the resources that cannot be reached, by name.
type Unreachable = BTreeMap<String, AppError>;

pub(super) async fn run(flags: &CheckFlags) -> Result<(), Failure> {
    let CheckFlags { config, offline, plan, timeout } = flags;
    let config = Config::load(&config.serve_flags()?)?;
    let warnings = app::check(&config)?;
    let unreachable =
        if *offline || plan.is_some() { None } else { Some(Box::pin(app::unreachable(&config, *timeout)).await) };
    let unusable = app::check_paths(&config).err().unwrap_or_default();
    let mut out = Vec::new();
    print(&config, unreachable.as_ref(), !unusable.is_empty(), &mut out)?;
    let unplanned = match plan {
        Some(plan) => plan.print(&config, &mut out)?.err(),
        None => None,
    };
    or_unread(write_all(&out))?;
    for warning in warnings {
        // A closed stderr has no reader.
        drop(writeln!(io::stderr(), "warning: {warning}"));
    }
    let unreachable = unreachable.iter().flat_map(BTreeMap::values).map(AppError::to_string);
    let errors: Vec<String> = unusable.iter().map(AppError::to_string).chain(unreachable).chain(unplanned).collect();
    if errors.is_empty() { Ok(()) } else { Err(Failure::new(FAILED, errors.join("\nerror: "))) }
}

fn print(
    config: &Config,
    unreachable: Option<&Unreachable>,
    is_unusable: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let is_bad = is_unusable || unreachable.is_some_and(|found| !found.is_empty());
    let ok = if is_bad { "" } else { "ok: " };
    match config.admin.listen {
        Some(admin) => writeln!(out, "{ok}gRPC on {}, admin on {admin}", config.general.listen)?,
        None => writeln!(out, "{ok}gRPC on {}", config.general.listen)?,
    }
    for resource in config.resources.values() {
        let source = match &resource.source {
            SourceConfig::Files(files) => {
                let kind = files.kind.as_deref().map(|kind| format!(" of kind {kind}")).unwrap_or_default();
                format!("files below {}{kind}", files.path.display())
            }
            SourceConfig::Stream(stream) => match &stream.path {
                StreamPath::Path(path) => format!("watch events of {}", path.display()),
                StreamPath::Stdin => "watch events of standard input".to_owned(),
            },
            SourceConfig::Etcd(etcd) => {
                let endpoints: Vec<_> = etcd.endpoints.iter().map(ServerAddress::uri).collect();
                format!("keys of {} in etcd at {}", etcd.prefix, endpoints.join(", "))
            }
            SourceConfig::Kube(kube) => kube_text(kube),
            SourceConfig::Informerd(relay) => {
                let view = relay.query.view.as_ref().map(|view| format!(" in the view {}", view_text(view)));
                let view = view.unwrap_or_default();
                format!("{} of informerd at {}{view}", relay.query.resource, relay.endpoint.uri())
            }
            SourceConfig::Own => "objects of this program".to_owned(),
        };
        let indexes: Vec<&str> = resource.indexers.names().collect();
        let optional = if resource.options.optional { ", optional" } else { "" };
        let is_remote =
            matches!(resource.source, SourceConfig::Etcd(_) | SourceConfig::Kube(_) | SourceConfig::Informerd(_));
        let reached = match unreachable.filter(|_| is_remote) {
            None => "",
            Some(unreachable) if unreachable.contains_key(&resource.name) => ", cannot be read",
            Some(_) => ", reachable",
        };
        writeln!(out, "{}: {source}, indexed by {}{optional}{reached}", resource.name, indexes.join(", "))?;
        for (name, view) in resource.views.iter() {
            writeln!(out, "{}: view {name} of {view}", resource.name)?;
        }
        if resource.views.is_required() {
            writeln!(out, "{}: requests of bodies have to name one of {}", resource.name, resource.views.known())?;
        }
    }
    if let Some(state_dir) = &config.general.state_dir {
        writeln!(out, "snapshots of kube, etcd, files and informerd resources in {}", state_dir.display())?;
    }
    Ok(())
}

fn view_text(view: &pb::View) -> String {
    let pb::View { fields, drop, name, .. } = view;
    let dropped = drop.iter().map(|path| format!("-{path}"));
    let paths: Vec<String> = fields.iter().cloned().chain(dropped).collect();
    if name.is_empty() { paths.join(",") } else { name.clone() }
}

fn kube_text(kube: &KubeConfig) -> String {
    let KubeConfig { group, version, plural, namespace, cluster, .. } = kube;
    let slash = if group.is_empty() { "" } else { "/" };
    let namespace = if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
    let context = cluster.context.as_ref().map(|context| format!(" of context {context}")).unwrap_or_default();
    format!("{plural} of the Kubernetes API {group}{slash}{version}{namespace}{context}")
}
