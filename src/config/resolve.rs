//! Flags and file to a [`Config`]: precedence, defaults, and what has to hold between keys.
//!
//! What is wrong is added to the errors and replaced by its default, so that the rest is looked at too.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;

use super::{
    Config, DEFAULT_ADMIN_LISTEN, DEFAULT_LISTEN, DEFAULT_STALE_AFTER, DEFAULT_STATE_INTERVAL, DrainConfig,
    FilesResource, LimitsConfig, ListenAddr, ResourceConfig, SourceConfig, StreamResource, TlsConfig, WatchConfig,
    error::ConfigErrors,
    etcd, keys, kube, limits,
    raw::{
        RawConfig, RawDrain, RawFiles, RawHistory, RawIndex, RawResource, RawStream, RawTls, RawWatch, Section,
        ServeFlags,
    },
    relay, value,
};
use crate::{
    model::{IndexFunc, Indexers},
    watch::{BroadcasterConfig, FullChannelPolicy, Retention},
};

/// The rest of the configuration, as far as resources depend upon it.
#[derive(Clone, Copy)]
struct Shared<'a> {
    directory: &'a Path,
    watch: &'a WatchConfig,
    limits: &'a LimitsConfig,
}

/// How a flag is named in errors: the user may have set the variable.
const LISTEN_FLAG: &str = "--listen (or INFORMERD_LISTEN)";
const ADMIN_LISTEN_FLAG: &str = "--admin-listen (or INFORMERD_ADMIN_LISTEN)";

/// Puts flags and file together; without a file that could be read, `raw` is `None`. What `directory` is to relative
/// paths in the file, the working directory is to those in flags.
pub(super) fn resolve(
    raw: Option<RawConfig>,
    directory: &Path,
    flags: &ServeFlags,
    errors: &mut ConfigErrors,
) -> Config {
    let is_file_read = raw.is_some();
    let raw = raw.unwrap_or_default();

    let insecure = errors.read("insecure", raw.insecure.as_ref(), value::boolean);
    let insecure = flags.insecure.or(insecure).unwrap_or(false);

    let tls = errors.section("tls", raw.tls).unwrap_or_default();
    let tls = [&tls.cert, &tls.key, &tls.client_ca].iter().any(|file| file.is_some()).then_some(tls);
    let listen = resolve_listen(raw.listen.as_ref(), insecure, tls.is_some(), flags, errors);
    let tls = tls.and_then(|tls| resolve_tls(&tls, &listen, directory, errors));
    let admin = errors.section("admin", raw.admin).unwrap_or_default();
    let admin_listen = resolve_admin_listen(admin.listen.as_ref(), &listen, flags, errors);
    let watch = errors.section("watch", raw.watch).unwrap_or_default();
    let watch = resolve_watch(&watch, errors);
    let history = errors.section("history", raw.history).unwrap_or_default();
    let limits = errors.section("limits", raw.limits).unwrap_or_default();
    let limits = limits::resolve(&limits, errors);
    let drain = errors.section("drain", raw.drain).unwrap_or_default();
    let state_dir = errors.read("state_dir", raw.state_dir.as_ref(), value::path);
    let state_dir = state_dir.map(|path| directory.join(path).components().collect());
    Config {
        listen,
        admin_listen,
        insecure,
        tls,
        history: resolve_history(&history, errors),
        drain: resolve_drain(&drain, errors),
        stale_after: errors
            .read("stale_after", raw.stale_after.as_ref(), value::positive_duration)
            .unwrap_or(DEFAULT_STALE_AFTER),
        state_dir: flags.state_dir.clone().or(state_dir),
        state_interval: errors
            .read("state_interval", raw.state_interval.as_ref(), value::positive_duration)
            .unwrap_or(DEFAULT_STATE_INTERVAL),
        resources: {
            let shared = Shared { directory, watch: &watch, limits: &limits };
            resolve_resources(raw.resources, is_file_read, flags, shared, errors)
        },
        limits,
        watch,
    }
}

fn resolve_listen(
    written: Option<&Value>,
    is_insecure: bool,
    has_tls: bool,
    flags: &ServeFlags,
    errors: &mut ConfigErrors,
) -> ListenAddr {
    let in_file = errors.read("listen", written, value::listen).map(|listen| ("listen", listen));
    let in_flag = flags.listen.as_deref().and_then(|text| errors.check(LISTEN_FLAG, text.parse()));
    let (at, listen) =
        in_flag.map(|listen| (LISTEN_FLAG, listen)).or(in_file).unwrap_or(("listen", ListenAddr::Tcp(DEFAULT_LISTEN)));
    if !listen.is_local() && !is_insecure && !has_tls {
        let problem = format!(
            "{listen} is not loopback, and there is no `tls`: add `tls: {{ cert: ..., key: ... }}`, or --insecure (or \
             `insecure: true`) to serve it in plain text, or listen on {DEFAULT_LISTEN}"
        );
        errors.add(at, problem);
    }
    listen
}

fn resolve_tls(raw: &RawTls, listen: &ListenAddr, directory: &Path, errors: &mut ConfigErrors) -> Option<TlsConfig> {
    if let ListenAddr::Unix(_) = listen {
        errors.add("tls", "a Unix socket is served without TLS; remove it, or listen on IP:PORT");
        return None;
    }
    let mut file = |key: &str, written: Option<&Value>, is_required: bool| {
        if written.is_none() && is_required {
            errors.add(key, "is missing; write the path of a file in PEM");
        }
        let path = errors.read(key, written, value::path)?;
        Some(directory.join(path).components().collect())
    };
    let cert = file("tls.cert", raw.cert.as_ref(), true);
    let key = file("tls.key", raw.key.as_ref(), true);
    let client_ca = file("tls.client_ca", raw.client_ca.as_ref(), false);
    Some(TlsConfig { cert: cert?, key: key?, client_ca })
}

fn resolve_admin_listen(
    written: Option<&Value>,
    listen: &ListenAddr,
    flags: &ServeFlags,
    errors: &mut ConfigErrors,
) -> Option<SocketAddr> {
    let in_file = errors.read("admin.listen", written, value::admin_listen).map(|address| ("admin.listen", address));
    let in_flag = flags.admin_listen.as_deref();
    let in_flag = in_flag.and_then(|text| errors.check(ADMIN_LISTEN_FLAG, value::parse_admin_listen(text)));
    let (at, address) = in_flag
        .map(|address| (ADMIN_LISTEN_FLAG, address))
        .or(in_file)
        .unwrap_or(("admin.listen", Some(DEFAULT_ADMIN_LISTEN)));
    if let Some(address) = address.filter(|address| address.port() != 0 && *listen == ListenAddr::Tcp(*address)) {
        errors.add(at, format!("{address} is where gRPC listens; choose another port, or none"));
    }
    address
}

fn resolve_watch(raw: &RawWatch, errors: &mut ConfigErrors) -> WatchConfig {
    let default = WatchConfig::default();
    let watch = WatchConfig {
        full_channel_policy: errors
            .read("watch.full_channel_policy", raw.full_channel_policy.as_ref(), value::policy)
            .unwrap_or(default.full_channel_policy),
        allowed_policies: errors
            .read("watch.allowed_policies", raw.allowed_policies.as_ref(), value::policies)
            .unwrap_or(default.allowed_policies),
        queue_length: errors
            .read("watch.queue_length", raw.queue_length.as_ref(), value::count)
            .unwrap_or(default.queue_length),
        max_queue_length: errors
            .read("watch.max_queue_length", raw.max_queue_length.as_ref(), value::positive_count)
            .unwrap_or(default.max_queue_length),
        queue_bytes: errors
            .read("watch.queue_bytes", raw.queue_bytes.as_ref(), value::positive_size)
            .unwrap_or(default.queue_bytes),
        window_bytes: errors
            .read("watch.window_bytes", raw.window_bytes.as_ref(), value::positive_size)
            .unwrap_or(default.window_bytes),
        coalesce_bytes: errors
            .read("watch.coalesce_bytes", raw.coalesce_bytes.as_ref(), value::positive_size)
            .unwrap_or(default.coalesce_bytes),
        block_timeout: errors
            .read("watch.block_timeout", raw.block_timeout.as_ref(), value::positive_duration)
            .unwrap_or(default.block_timeout),
        selection_budget: errors
            .read("watch.selection_budget", raw.selection_budget.as_ref(), value::selection_budget)
            .unwrap_or(default.selection_budget),
        selection_share: errors
            .read("watch.selection_share", raw.selection_share.as_ref(), value::percent)
            .unwrap_or(default.selection_share),
        future_wait: errors
            .read("watch.future_wait", raw.future_wait.as_ref(), value::positive_duration)
            .unwrap_or(default.future_wait),
        batch_window: errors
            .read("watch.batch_window", raw.batch_window.as_ref(), value::window)
            .unwrap_or(default.batch_window),
        progress_timeout: errors
            .read("watch.progress_timeout", raw.progress_timeout.as_ref(), value::positive_duration)
            .unwrap_or(default.progress_timeout),
        bookmark_interval: errors
            .read("watch.bookmark_interval", raw.bookmark_interval.as_ref(), value::positive_duration)
            .unwrap_or(default.bookmark_interval),
        max_watchers: errors
            .read("watch.max_watchers", raw.max_watchers.as_ref(), value::positive_count)
            .unwrap_or(default.max_watchers),
    };
    check_queue("watch", Some(watch.full_channel_policy), Some(watch.queue_length), &watch, errors);
    watch
}

fn resolve_history(raw: &RawHistory, errors: &mut ConfigErrors) -> Retention {
    let default = BroadcasterConfig::default().retention;
    Retention {
        events: errors.read("history.events", raw.events.as_ref(), value::positive_count).unwrap_or(default.events),
        size: errors.read("history.bytes", raw.bytes.as_ref(), value::positive_size).unwrap_or(256 << 20),
        age: errors.read("history.age", raw.age.as_ref(), value::positive_duration).unwrap_or(default.age),
    }
}

fn resolve_drain(raw: &RawDrain, errors: &mut ConfigErrors) -> DrainConfig {
    let default = DrainConfig::default();
    DrainConfig {
        delay: errors.read("drain.delay", raw.delay.as_ref(), value::duration).unwrap_or(default.delay),
        period: errors.read("drain.period", raw.period.as_ref(), value::duration).unwrap_or(default.period),
    }
}

fn resolve_resources(
    raw: Section<BTreeMap<String, Section<RawResource>>>,
    is_file_read: bool,
    flags: &ServeFlags,
    shared: Shared<'_>,
    errors: &mut ConfigErrors,
) -> BTreeMap<String, ResourceConfig> {
    let raw = errors.section("resources", raw).unwrap_or_default();
    if raw.is_empty()
        && flags.files.is_empty()
        && flags.stream.is_empty()
        && flags.etcd.is_empty()
        && flags.kube.is_empty()
        && flags.relay.is_empty()
        && is_file_read
        && !errors.has_at("resources")
    {
        let problem = "there is none to serve: name one with `--files pods=./manifests@Pod`, or under `resources` in the \
                       file that --config (or INFORMERD_CONFIG) names";
        errors.add("resources", problem);
    }
    let mut resources = BTreeMap::new();
    let mut in_file = BTreeSet::new();
    for (name, section) in raw {
        let key = keys::join(&["resources", &name]);
        errors.check(&key, value::check_resource_name(&name));
        let resource = errors.section(&key, section);
        let resource = resource.and_then(|raw| resolve_resource(&key, name.clone(), raw, shared, errors));
        resources.extend(resource.map(|resource| (name.clone(), resource)));
        in_file.insert(name);
    }
    for (flag, name, source) in flagged_sources(flags, errors) {
        let resource = ResourceConfig {
            name: name.clone(),
            source,
            indexers: Arc::default(),
            optional: false,
            snapshot: None,
            full_channel_policy: None,
            queue_length: None,
        };
        if in_file.contains(&name) {
            errors.add(flag, format!("the resource `{name}` is also in the file, as resources.{name}; keep one"));
        } else if resources.insert(name.clone(), resource).is_some() {
            errors.add(flag, format!("the resource `{name}` is given twice; keep one"));
        }
    }
    check_stdin(&resources, errors);
    resources
}

/// The flag, the resource that it names, and its source.
fn flagged_sources(flags: &ServeFlags, errors: &mut ConfigErrors) -> Vec<(&'static str, String, SourceConfig)> {
    let mut sources = Vec::new();
    for text in &flags.files {
        if let Some(flag) = errors.check("--files", value::parse_files_flag(text)) {
            let source = SourceConfig::Files(FilesResource { kind: flag.kind, ..FilesResource::new(flag.path) });
            sources.push(("--files", flag.name.to_owned(), source));
        }
    }
    for text in &flags.stream {
        if let Some(flag) = errors.check("--stream", value::parse_stream_flag(text)) {
            sources.push(("--stream", flag.name.to_owned(), SourceConfig::Stream(StreamResource::new(flag.path))));
        }
    }
    sources.extend(etcd::flagged(flags, errors));
    sources.extend(kube::flagged(flags, errors));
    sources.extend(relay::flagged(flags, errors));
    sources
}

/// There is one standard input.
fn check_stdin(resources: &BTreeMap<String, ResourceConfig>, errors: &mut ConfigErrors) {
    let is_stdin =
        |resource: &&ResourceConfig| matches!(&resource.source, SourceConfig::Stream(stream) if stream.path.is_none());
    let mut readers = resources.values().filter(is_stdin).map(|resource| &resource.name);
    if let (Some(first), Some(second)) = (readers.next(), readers.next()) {
        let problem = format!("both `{first}` and `{second}` read standard input (`-`); give one of them a file");
        errors.add("resources", problem);
    }
}

fn resolve_resource(
    key: &str,
    name: String,
    raw: RawResource,
    Shared { directory, watch, limits }: Shared<'_>,
    errors: &mut ConfigErrors,
) -> Option<ResourceConfig> {
    let at = |leaf: &str| format!("{key}.{leaf}");
    let optional = errors.read(&at("optional"), raw.optional.as_ref(), value::boolean).unwrap_or(false);
    let snapshot = errors.read(&at("snapshot"), raw.snapshot.as_ref(), value::boolean);
    let policy = errors.read(&at("full_channel_policy"), raw.full_channel_policy.as_ref(), value::policy);
    let queue_length = errors.read(&at("queue_length"), raw.queue_length.as_ref(), value::count);
    check_queue(key, policy, queue_length, watch, errors);
    let indexers = Arc::new(resolve_indexes(&at("indexes"), raw.indexes, limits.expression_steps, errors));
    let source = errors.section(&at("source"), raw.source)?;
    if raw.drop_fields.is_some() && source.kube.is_none() {
        errors.add(&at("drop_fields"), "is for `kube` sources alone; remove it");
    }
    let source = match (source.files, source.stream, source.etcd, source.kube, source.informerd) {
        (Some(files), None, None, None, None) => {
            let files = errors.section(&at("source.files"), files)?;
            resolve_files(&at("source.files"), &files, directory, errors)?
        }
        (None, Some(stream), None, None, None) => {
            let stream = errors.section(&at("source.stream"), stream)?;
            resolve_stream(&at("source.stream"), &stream, directory, errors)?
        }
        (None, None, Some(raw), None, None) => {
            let raw = errors.section(&at("source.etcd"), raw)?;
            etcd::resolve(&at("source.etcd"), raw, directory, errors)?
        }
        (None, None, None, Some(kube), None) => {
            let kube = errors.section(&at("source.kube"), kube)?;
            let drop_fields = kube::drop_fields(&at("drop_fields"), raw.drop_fields.as_ref(), errors);
            let source = kube::resolve(&at("source.kube"), &kube, directory, drop_fields, errors)?;
            if matches!(&source, SourceConfig::Kube(kube) if kube.is_metadata_only) {
                kube::check_indexes(&at("indexes"), &indexers, errors);
            }
            source
        }
        (None, None, None, None, Some(raw)) => {
            let raw = errors.section(&at("source.informerd"), raw)?;
            relay::resolve(&at("source.informerd"), &name, raw, directory, errors)?
        }
        (None, None, None, None, None) => {
            // A source that is not known has been named already.
            if !errors.has_at(&at("source")) {
                errors.add(&at("source"), "is missing; write for example `source: { files: { path: ./manifests } }`");
            }
            return None;
        }
        (files, stream, etcd, kube, informerd) => {
            let given = [
                ("`files`", files.is_some()),
                ("`stream`", stream.is_some()),
                ("`etcd`", etcd.is_some()),
                ("`kube`", kube.is_some()),
                ("`informerd`", informerd.is_some()),
            ];
            let given: Vec<_> = given.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect();
            errors.add(&at("source"), format!("has {}; keep one", given.join(" and ")));
            return None;
        }
    };
    if snapshot == Some(true) && matches!(source, SourceConfig::Files { .. } | SourceConfig::Stream { .. }) {
        errors.add(&at("snapshot"), "is for `kube`, `etcd` and `informerd` sources alone; remove it");
    }
    Some(ResourceConfig { name, source, indexers, optional, snapshot, full_channel_policy: policy, queue_length })
}

fn resolve_files(key: &str, raw: &RawFiles, directory: &Path, errors: &mut ConfigErrors) -> Option<SourceConfig> {
    let kind = errors.read(&format!("{key}.kind"), raw.kind.as_ref(), value::kind);
    if raw.path.is_none() {
        errors.add(&format!("{key}.path"), "is missing; write the path of a directory such as ./manifests");
    }
    let path = errors.read(&format!("{key}.path"), raw.path.as_ref(), value::path)?;
    // Without the dots that were written in between.
    let path: PathBuf = directory.join(path).components().collect();
    let default = FilesResource::new(path);
    let bounds = (Duration::from_millis(100), Duration::from_secs(3600));
    let rescan =
        errors.read(&format!("{key}.rescan"), raw.rescan.as_ref(), |value| value::duration_within(value, bounds));
    let rescan = rescan.unwrap_or(default.rescan);
    let bounds = (Duration::from_millis(10), Duration::from_secs(10));
    let quiet = errors.read(&format!("{key}.quiet"), raw.quiet.as_ref(), |value| value::duration_within(value, bounds));
    let quiet = quiet.unwrap_or(default.quiet);
    if quiet > rescan {
        errors.add(
            &format!("{key}.quiet"),
            format!("is longer than `rescan` ({}); write a shorter one", value::text_of(rescan)),
        );
    }
    Some(SourceConfig::Files(FilesResource { kind, rescan, quiet, ..default }))
}

fn resolve_stream(key: &str, raw: &RawStream, directory: &Path, errors: &mut ConfigErrors) -> Option<SourceConfig> {
    if raw.path.is_none() {
        let problem = "is missing; write the path of a file such as ./events.jsonl, or - for standard input";
        errors.add(&format!("{key}.path"), problem);
    }
    let path = errors.read(&format!("{key}.path"), raw.path.as_ref(), value::stream_path)?;
    let default = StreamResource::new(path.map(|path| directory.join(path).components().collect()));
    let bounds = (Duration::from_millis(100), Duration::from_secs(3600));
    let confirm_after = errors.read(&format!("{key}.confirm_after"), raw.confirm_after.as_ref(), |value| {
        if value.as_str() == Some("none") { Ok(None) } else { value::duration_within(value, bounds).map(Some) }
    });
    Some(SourceConfig::Stream(StreamResource {
        confirm_after: confirm_after.unwrap_or(default.confirm_after),
        ..default
    }))
}

fn resolve_indexes(
    key: &str,
    raw: Section<BTreeMap<String, Section<RawIndex>>>,
    expression_steps: u64,
    errors: &mut ConfigErrors,
) -> Indexers {
    let mut indexes = Vec::new();
    for (name, section) in errors.section(key, raw).unwrap_or_default() {
        let key = format!("{key}.{}", keys::join(&[&name]));
        let Some(index) = errors.section(&key, section) else {
            continue;
        };
        let path = errors.read(&format!("{key}.path"), index.path.as_ref(), value::path_index);
        let label = errors.read(&format!("{key}.label"), index.label.as_ref(), value::label_index);
        let expression = index.expression.as_ref();
        let expression = errors
            .read(&format!("{key}.expression"), expression, |value| value::expression_index(value, expression_steps));
        let written = [("`path`", &index.path), ("`label`", &index.label), ("`expression`", &index.expression)];
        let written: Vec<_> = written.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| *name).collect();
        if written.len() > 1 {
            errors.add(&key, format!("has {}; keep one of them", written.join(" and ")));
        } else if written.is_empty() && !errors.has_at(&key) {
            errors.add(&key, "is empty; write `path: .spec.nodeName`, `label: app` or an `expression`");
        }
        // By itself first: the names of all are checked.
        let named = Indexers::new([(name.clone(), IndexFunc::Namespace)]);
        if let (Some(_), Some(func)) = (errors.check(&key, named), path.or(label).or(expression)) {
            indexes.push((name, func));
        }
    }
    errors.check(key, Indexers::new(indexes)).unwrap_or_default()
}

/// A default of clients' queues has to be what a client may ask for. What a section leaves out is that of `watch`, and
/// has been checked there.
fn check_queue(
    section: &str,
    policy: Option<FullChannelPolicy>,
    length: Option<usize>,
    watch: &WatchConfig,
    errors: &mut ConfigErrors,
) {
    if let Some(policy) = policy.filter(|policy| !watch.allows(*policy)) {
        let name = value::policy_name(policy);
        let allowed: Vec<_> = watch.allowed_policies.iter().map(|policy| value::policy_name(*policy)).collect();
        let problem =
            format!("`{name}` is not among watch.allowed_policies; add it there, or choose {}", allowed.join(" or "));
        errors.add(&format!("{section}.full_channel_policy"), problem);
    }
    let max = watch.max_queue_length;
    if let Some(length) = length.filter(|length| *length > max) {
        let problem = format!("{length} is more than watch.max_queue_length, which is {max}; raise that or lower this");
        errors.add(&format!("{section}.queue_length"), problem);
    }
    let is_written = policy.is_some() || length.is_some();
    let policy = policy.unwrap_or(watch.full_channel_policy);
    if is_written && length.unwrap_or(watch.queue_length) == 0 && policy != FullChannelPolicy::Block {
        let name = value::policy_name(policy);
        let problem = format!("0 is for the policy `block` alone, and this is `{name}`; expected at least 1");
        errors.add(&format!("{section}.queue_length"), problem);
    }
}
