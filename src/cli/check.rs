//! `informerd check`.

use std::io::{self, Write};

use super::failure::Failure;
use crate::{
    app,
    client::ServerAddress,
    config::{Config, FilesResource, KubeResource, ServeFlags, SourceConfig, StreamResource},
    proto::pb,
};

pub(super) const EXAMPLES: &str = "\
Examples:
  informerd check examples/shop.yaml

Exit codes: 0 success; 1 a source cannot be read; 2 the configuration is invalid, with one line for each problem.";

pub(super) fn run(flags: &ServeFlags) -> Result<(), Failure> {
    let config = Config::load(flags)?;
    app::check(&config)?;
    Ok(print(&config, &mut io::stdout().lock())?)
}

fn print(config: &Config, out: &mut impl Write) -> io::Result<()> {
    match config.admin.listen {
        Some(admin) => writeln!(out, "ok: gRPC on {}, admin on {admin}", config.general.listen)?,
        None => writeln!(out, "ok: gRPC on {}", config.general.listen)?,
    }
    for resource in config.resources.values() {
        let source = match &resource.source {
            SourceConfig::Files(FilesResource { path, kind, .. }) => {
                let kind = kind.as_deref().map(|kind| format!(" of kind {kind}")).unwrap_or_default();
                format!("files below {}{kind}", path.display())
            }
            SourceConfig::Stream(StreamResource { path: Some(path), .. }) => {
                format!("watch events of {}", path.display())
            }
            SourceConfig::Stream(StreamResource { path: None, .. }) => "watch events of standard input".to_owned(),
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
        writeln!(out, "{}: {source}, indexed by {}{optional}", resource.name, indexes.join(", "))?;
        for (name, view) in resource.views.iter() {
            writeln!(out, "{}: view {name} of {view}", resource.name)?;
        }
        if resource.views.is_required() {
            writeln!(out, "{}: requests of bodies have to name one of {}", resource.name, resource.views.known())?;
        }
    }
    if let Some(state_dir) = &config.general.state_dir {
        writeln!(out, "snapshots of kube, etcd and informerd resources in {}", state_dir.display())?;
    }
    out.flush()
}

fn view_text(view: &pb::View) -> String {
    let pb::View { fields, drop, name, .. } = view;
    let dropped = drop.iter().map(|path| format!("-{path}"));
    let paths: Vec<String> = fields.iter().cloned().chain(dropped).collect();
    if name.is_empty() { paths.join(",") } else { name.clone() }
}

fn kube_text(kube: &KubeResource) -> String {
    let KubeResource { group, version, plural, namespace, context, .. } = kube;
    let slash = if group.is_empty() { "" } else { "/" };
    let namespace = if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
    let context = context.as_ref().map(|context| format!(" of context {context}")).unwrap_or_default();
    format!("{plural} of the Kubernetes API {group}{slash}{version}{namespace}{context}")
}
