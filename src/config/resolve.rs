//! Flags and file to a [`Config`]: the checks between keys. The table has those of a single key.
//!
//! An invalid value becomes a problem and is replaced by a default, so that the rest is checked too.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use super::{
    Config, LimitsConfig, ListenAddr, ResourceConfig, SourceConfig, TlsConfig, WatchConfig, authentication,
    authorization, etcd,
    flags::{Flagged, ServeFlags},
    kube, kubernetes, relay,
    section::{Input, Section},
    table::{
        AdminConfig, AuditConfig, DrainConfig, GeneralConfig, HistoryKeys, IndexKeys, QuotasConfig, ResourceOptions,
    },
    value, views,
};
use crate::{
    model::{IndexFunc, Indexers},
    source::{
        files::FilesConfig,
        stream::{StreamConfig, StreamPath},
    },
    watch::{FullChannelPolicy, MAX_QUEUE_LENGTH, Retention},
};

const SOURCES: [&str; 5] = ["files", "stream", "etcd", "kube", "informerd"];

/// Combines flags and file. `is_file_read` is false if there is a file that could not be read. Paths in the file are relative
/// to its directory, those in flags to the working directory.
pub(super) fn resolve(file: &Section<'_>, is_file_read: bool, flags: &ServeFlags) -> Config {
    let mut general = GeneralConfig::read(file);
    if !file.is_flagged("state_dir") {
        general.state_dir = general.state_dir.map(|path| file.relative(&path));
    }
    let listen = &general.listen;
    let tls = file.section_or_empty("tls");
    let has_tls = !tls.written_of(&["cert", "key", "client_ca"]).is_empty();
    if !listen.is_local() && !general.insecure && !has_tls {
        let problem = format!(
            "{listen} is not loopback and has no `tls`: add `tls: {{ cert: ..., key: ... }}`, or --insecure (or \
             `insecure: true`) to serve it in plain text, or listen on {}",
            GeneralConfig::default().listen
        );
        file.input().add(&file.origin("listen"), problem);
    }
    let tls = if has_tls { resolve_tls(&tls, listen) } else { None };

    let section = file.section_or_empty("admin");
    let admin = AdminConfig::read(&section);
    if let Some(address) = admin.listen.filter(|address| address.port() != 0 && *listen == ListenAddr::Tcp(*address)) {
        let problem = format!("{address} is already the address of gRPC (listen); choose another port, or none");
        file.input().add(&section.origin("listen"), problem);
    }

    let kubernetes = kubernetes::resolve(&file.section_or_empty("kubernetes"), &general, has_tls);

    let section = file.section_or_empty("watch");
    let watch = WatchConfig::read(&section);
    check_queue(&section, &watch);
    let HistoryKeys { age, events, bytes } = HistoryKeys::read(&file.section_or_empty("history"));
    let (authentication, certificates) =
        authentication::resolve(&file.section_or_empty("authentication"), tls.as_ref());
    Config {
        admin,
        kubernetes,
        authorization: authorization::resolve(&file.section_or_empty("authorization"), authentication.is_some()),
        authentication,
        certificates,
        tls,
        history: Retention { age, events, size: bytes },
        drain: DrainConfig::read(&file.section_or_empty("drain")),
        general,
        resources: resolve_resources(file, is_file_read, flags),
        limits: LimitsConfig::read(&file.section_or_empty("limits")),
        audit: resolve_audit(&file.section_or_empty("audit")),
        quotas: QuotasConfig::read(&file.section_or_empty("quotas")),
        watch,
    }
}

fn resolve_audit(section: &Section<'_>) -> AuditConfig {
    let AuditConfig { file } = AuditConfig::read(section);
    let relative = |file: PathBuf| if file.as_os_str() == "-" { file } else { section.relative(&file) };
    AuditConfig { file: file.map(relative) }
}

fn resolve_tls(section: &Section<'_>, listen: &ListenAddr) -> Option<TlsConfig> {
    if let ListenAddr::Unix(_) = listen {
        section.add_here("is not supported on a Unix socket; remove it, or listen on IP:PORT");
        return None;
    }
    let TlsConfig { cert, key, client_ca } = TlsConfig::read(section);
    Some(TlsConfig {
        cert: section.relative(&cert),
        key: section.relative(&key),
        client_ca: client_ca.map(|path| section.relative(&path)),
    })
}

fn resolve_resources(file: &Section<'_>, is_file_read: bool, flags: &ServeFlags) -> BTreeMap<String, ResourceConfig> {
    let input = file.input();
    let section = file.section_or_empty("resources");
    let in_file: BTreeSet<&str> = section.names().collect();
    let is_flagged =
        [&flags.files, &flags.stream, &flags.etcd, &flags.kube, &flags.relay].iter().any(|flag| !flag.is_empty());
    if in_file.is_empty() && !is_flagged && is_file_read && !file.has_problem("resources") {
        let problem = "nothing to serve: add a resource with `--files pods=./manifests@Pod`, or under `resources` in the \
                       file that --config (or INFORMERD_CONFIG) names";
        section.add_here(problem);
    }
    let mut resources = BTreeMap::new();
    for name in &in_file {
        input.check(&section.at(name), value::check_resource_name(name));
        let resource = section.section(name).and_then(|keys| resolve_resource(&keys, name));
        resources.extend(resource.map(|resource| ((*name).to_owned(), resource)));
    }
    for (flag, name, source) in flagged_sources(flags, input) {
        let options = ResourceOptions::default();
        let (indexers, views) = Default::default();
        let resource = ResourceConfig { name: name.to_owned(), source, indexers, views, options };
        input.check(flag, resource.check_secrets());
        if in_file.contains(name) {
            input.add(flag, format!("resource {name:?} is also defined in the file, as resources.{name}; keep one"));
        } else if resources.insert(name.to_owned(), resource).is_some() {
            input.add(flag, format!("resource {name:?} is defined twice; keep one"));
        }
    }
    check_stdin(&resources, &section);
    kubernetes::check_kinds(&section, &resources);
    resources
}

/// Returns the resources that flags define: the flag, the name of the resource, and its source.
fn flagged_sources<'f>(flags: &'f ServeFlags, input: &Input<'_>) -> Vec<(&'static str, &'f str, SourceConfig)> {
    let mut sources = Vec::new();
    let mut read = |flag, texts: &'f [String], parse: &dyn Fn(&'f str) -> Flagged<'f>| {
        for text in texts {
            sources.extend(input.check(flag, parse(text)).map(|(name, source)| (flag, name, source)));
        }
    };
    read("--files", &flags.files, &|text| {
        let (name, path, kind) = value::parse_files_flag(text)?;
        Ok((name, SourceConfig::Files(FilesConfig { kind, ..FilesConfig::new(path, "") })))
    });
    read("--stream", &flags.stream, &|text| {
        let (name, path) = value::parse_stream_flag(text)?;
        Ok((name, SourceConfig::Stream(StreamConfig::new(path, ""))))
    });
    let credentials = etcd::flagged_credentials(flags, input);
    read("--etcd", &flags.etcd, &|text| etcd::parse_flag(text, credentials.clone()));
    read("--kube", &flags.kube, &|text| kube::parse_flag(text, flags));
    read("--relay", &flags.relay, &relay::parse_flag);
    sources
}

/// Checks that at most one resource reads standard input.
fn check_stdin(resources: &BTreeMap<String, ResourceConfig>, section: &Section<'_>) {
    let is_stdin = |resource: &&ResourceConfig| matches!(&resource.source, SourceConfig::Stream(stream) if stream.path == StreamPath::Stdin);
    let mut readers = resources.values().filter(is_stdin).map(|resource| &resource.name);
    if let (Some(first), Some(second)) = (readers.next(), readers.next()) {
        let problem = format!("`{first}` and `{second}` both read standard input (`-`); give one of them a file");
        section.add_here(problem);
    }
}

fn resolve_resource(section: &Section<'_>, name: &str) -> Option<ResourceConfig> {
    let options = ResourceOptions::read(section);
    let index_section = section.section_or_empty("indexes");
    let indexers = Arc::new(resolve_indexes(&index_section));
    let views = Arc::new(views::resolve(section));
    let source = section.section("source")?;
    if section.is_written("drop_fields") && (source.is_written("etcd") || source.is_written("informerd")) {
        section.add("drop_fields", "is only for `kube`, `files` and `stream` sources; remove it");
    }
    let written = source.written_of(&SOURCES);
    let [kind] = written[..] else {
        // An unknown source has already been reported.
        if !written.is_empty() {
            source.add_here(format!("has {}; keep one", listed(&written)));
        } else if !section.has_problem("source") {
            source.add_here("is missing; write for example `source: { files: { path: ./manifests } }`");
        }
        return None;
    };
    let keys = source.section(kind)?;
    let source = match kind {
        "files" => resolve_files(&keys),
        "stream" => resolve_stream(&keys)?,
        "etcd" => etcd::resolve(&keys),
        "kube" => kube::resolve(&keys, &index_section, &indexers)?,
        _ => relay::resolve(&keys, name)?,
    };
    if options.snapshot == Some(true) && matches!(source, SourceConfig::Stream(_)) {
        section.add("snapshot", "is not for `stream` sources, whose state a later run cannot resume; remove it");
    }
    if options.ttl.is_some() && !matches!(source, SourceConfig::Stream(_)) {
        section.add("ttl", "is only for `stream` sources: every other source finds deletions itself; remove it");
    }
    if options.verify_interval.is_some() && matches!(source, SourceConfig::Stream(_)) {
        section.add("verify_interval", "is not for `stream` sources, which have no list to compare with; remove it");
    }
    if options.allow_secrets && !matches!(source, SourceConfig::Informerd(_)) && !source.is_of_secrets() {
        section
            .add("allow_secrets", "is only for `kube` sources of core secrets, and for `informerd` sources; remove it");
    }
    let resource = ResourceConfig { name: name.to_owned(), source, indexers, views, options };
    section.check_here(resource.check_secrets());
    section.check_here(resource.check_kubernetes());
    Some(resource)
}

fn resolve_files(keys: &Section<'_>) -> SourceConfig {
    let files = FilesConfig::new("", "").read(keys);
    SourceConfig::Files(FilesConfig { path: keys.relative(&files.path), ..files })
}

fn resolve_stream(keys: &Section<'_>) -> Option<SourceConfig> {
    let mut stream = StreamConfig::new(StreamPath::default(), "").read(keys);
    if let StreamPath::Path(path) = &mut stream.path {
        *path = keys.relative(path);
    }
    // An invalid path does not mean standard input.
    (!keys.has_problem("path")).then_some(SourceConfig::Stream(stream))
}

fn resolve_indexes(section: &Section<'_>) -> Indexers {
    let mut indexes = Vec::new();
    for name in section.names() {
        let Some(keys) = section.section(name) else {
            continue;
        };
        let IndexKeys { path, label, expression } = IndexKeys::read(&keys);
        let expression = expression.map(IndexFunc::Expression);
        let written = keys.written_of(&["path", "label", "expression"]);
        if written.len() > 1 {
            keys.add_here(format!("has {}; keep one of them", listed(&written)));
        } else if written.is_empty() && !section.has_problem(name) {
            keys.add_here("is empty; write `path: .spec.nodeName`, `label: app` or an `expression`");
        }
        // Checked alone first: one invalid name makes the call below reject all.
        let named = Indexers::new([(name.to_owned(), IndexFunc::Namespace)]);
        let named = section.input().check(&section.at(name), named);
        if let (Some(_), Some(func)) = (named, path.or(label).or(expression)) {
            indexes.push((name.to_owned(), func));
        }
    }
    section.check_here(Indexers::new(indexes)).unwrap_or_default()
}

/// Checks that the default queue is one that clients may request.
fn check_queue(section: &Section<'_>, watch: &WatchConfig) {
    let policy = watch.full_channel_policy;
    let name = value::choices::policy_name(policy);
    if !watch.allows(policy) {
        let allowed: Vec<_> =
            watch.allowed_policies.iter().map(|policy| value::choices::policy_name(*policy)).collect();
        let problem =
            format!("`{name}` is not in watch.allowed_policies; add it there, or choose {}", allowed.join(" or "));
        section.add("full_channel_policy", problem);
    }
    if watch.queue_length > MAX_QUEUE_LENGTH {
        let problem = format!("{} is larger than {MAX_QUEUE_LENGTH}; lower it", watch.queue_length);
        section.add("queue_length", problem);
    }
    if watch.queue_length == 0 && policy != FullChannelPolicy::Block {
        let problem = format!("0 is only for the policy `block`, and this is `{name}`; expected at least 1");
        section.add("queue_length", problem);
    }
}

/// Formats keys as "`a` and `b`".
fn listed(keys: &[&str]) -> String {
    keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(" and ")
}
