//! Every key of the file: for the reference, and to say which one was meant.

use super::ConfigError;

/// A row of the configuration reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Where it is in the file, such as `watch.queue_length`; `<name>` stands for any name.
    pub path: &'static str,
    /// As it would be written; `None` when nothing stands for leaving it out.
    pub default: Option<&'static str>,
    /// In a few words.
    pub meaning: &'static str,
}

const KEYS: &[Key] = &[
    key("listen", "127.0.0.1:50051", "where gRPC listens: IP:PORT or unix:/path/of/socket"),
    key("admin.listen", "127.0.0.1:9464", "where HTTP for probes and metrics listens: IP:PORT or none"),
    key("insecure", "false", "allow gRPC in plain text on an address that is not loopback"),
    no_default(
        "tls.cert",
        "serve gRPC under TLS with this certificate in PEM, and those that lead to its root; read again when it changes",
    ),
    no_default("tls.key", "its private key in PEM"),
    no_default("tls.client_ca", "clients need a certificate that one of these has signed"),
    key("watch.full_channel_policy", "replay", "when a client's queue is full, unless it asks otherwise"),
    key("watch.allowed_policies", "[drop, block, replay, coalesce]", "what a client may ask for"),
    key("watch.queue_length", "1024", "events that make a client's queue full, unless it asks otherwise"),
    key("watch.max_queue_length", "65536", "the most that a client may ask for"),
    key("watch.queue_bytes", "16MiB", "encoded bytes that make a client's queue full, whatever its length"),
    key(
        "watch.window_bytes",
        "16MiB",
        "memory for events that clients still have to read, for each resource, and as much again for what they are told from the history",
    ),
    key(
        "watch.coalesce_bytes",
        "64MiB",
        "memory of what has merged for one watch under coalesce; beyond it the watch ends",
    ),
    key(
        "watch.block_timeout",
        "5s",
        "how long changes wait for all clients under block together, beside a tenth of any time",
    ),
    key(
        "watch.selection_budget",
        "200us",
        "what selections that nothing leads to, and expressions, take of a publish cycle, 10us to 100ms; threads evaluate the others",
    ),
    key("watch.selection_share", "20", "what they take of all the time of a resource's writer, in percent, 1 to 100"),
    key("watch.bookmark_interval", "30s", "how long a watch is silent before it gets a bookmark"),
    key("watch.future_wait", "90s", "how long a watch from a version of the future waits for it"),
    key(
        "watch.batch_window",
        "0ms",
        "how long changes are gathered after others: more delay, less work for many watchers",
    ),
    key(
        "watch.progress_timeout",
        "30s",
        "how long a client may take nothing of what is to be sent, on its connection or on a stream",
    ),
    key("watch.max_watchers", "100000", "watches open at the same time"),
    key("history.age", "5m", "the age of the oldest event that is kept, for each resource"),
    key("history.events", "100000", "the most events that are kept, for each resource"),
    key("history.bytes", "256MiB", "the most bytes that are kept, of states and records, for each resource"),
    key("limits.request_bytes", "64KiB", "the largest request"),
    key(
        "limits.request_timeout",
        "10s",
        "how long a client may take for the handshake of TLS, the preface of HTTP/2, a header block or the message of a request, 100ms to 5m",
    ),
    no_default(
        "limits.connections",
        "connections open at the same time; what the limit on open files leaves if left out, at most 100000",
    ),
    key(
        "limits.peer_share",
        "25",
        "what one peer (an IPv4 address, a /64 of IPv6, a user of a unix socket) may have of connections, watches, compilations and page snapshots, in percent, 1 to 100; 100 behind a proxy",
    ),
    key("limits.compilations", "4096", "expressions and conditions that wait to be compiled at the same time"),
    key(
        "limits.page_snapshots",
        "16",
        "states that are kept for the next pages of lists; beyond them the oldest tokens expire",
    ),
    key("limits.streams_per_connection", "1024", "calls open at the same time on one connection"),
    key(
        "limits.struct_bytes",
        "64MiB",
        "of bodies that were sent as STRUCT, what is kept for those who ask for the same",
    ),
    no_default(
        "limits.memory",
        "what is held for all clients together, 1MiB to 1024GiB: above it the stream ends that has waited longest; a quarter of the cgroup's limit if left out, 1GiB where there is none",
    ),
    key(
        "limits.expression_steps",
        "10000",
        "steps of one evaluation of an expression, 100 to 100000 (some 5 ms); beyond them it fails and is counted",
    ),
    key("drain.delay", "0s", "how long the server goes on after a signal, while it says that it is not ready"),
    key("drain.period", "5s", "how long open streams then have to end"),
    key("stale_after", "15s", "how long a source may be out of contact before its resource is stale"),
    no_default(
        "state_dir",
        "keep states of kube, etcd and informerd resources in this directory, relative to the configuration file, for the next start to begin with",
    ),
    key("state_interval", "1m", "how often a state is written when objects have changed"),
    no_default(
        "resources.<name>.source.files.path",
        "a directory of .json, .yaml and .yml files; relative to the configuration file",
    ),
    no_default("resources.<name>.source.files.kind", "only objects of this kind; all of them if left out"),
    key(
        "resources.<name>.source.files.rescan",
        "5s",
        "the interval of full scans, which find what the operating system does not report; 100ms to 1h",
    ),
    key(
        "resources.<name>.source.files.quiet",
        "100ms",
        "how long the directory has to be quiet before changes are read; 10ms to 10s, at most rescan",
    ),
    no_default(
        "resources.<name>.source.stream.path",
        "a file or named pipe of JSON watch events, relative to the configuration file; or - for standard input",
    ),
    key(
        "resources.<name>.source.stream.confirm_after",
        "10s",
        "when the next writer of a pipe has repeated no object for so long, the rest is deleted; 100ms to 1h, or none",
    ),
    no_default(
        "resources.<name>.source.etcd.endpoints",
        "the members of one cluster, such as [\"http://127.0.0.1:2379\"]",
    ),
    no_default(
        "resources.<name>.source.etcd.prefix",
        "what the keys begin with, such as /settings/; \"\" for all keys",
    ),
    no_default("resources.<name>.source.etcd.username", "the user, who may read every key of the prefix"),
    no_default(
        "resources.<name>.source.etcd.password_file",
        "the file with the password, relative to the configuration file; read again at each connection",
    ),
    no_default(
        "resources.<name>.source.etcd.tls.ca",
        "for https: the certificates in PEM that may have signed etcd's; those that the system trusts if left out",
    ),
    no_default("resources.<name>.source.etcd.tls.cert", "a certificate of our own, in PEM"),
    no_default("resources.<name>.source.etcd.tls.key", "its private key"),
    no_default(
        "resources.<name>.source.etcd.tls.server_name",
        "the name that etcd's certificate has; the endpoint's host if left out",
    ),
    no_default("resources.<name>.source.kube.group", "the API group, such as apps; the core group if left out"),
    no_default("resources.<name>.source.kube.version", "the version of the group, such as v1"),
    no_default("resources.<name>.source.kube.plural", "the kind as it is written in paths, such as pods"),
    no_default("resources.<name>.source.kube.namespace", "only this namespace; all of them if left out"),
    no_default(
        "resources.<name>.source.kube.namespaces",
        "only these namespaces, 1 to 100, such as [shop, stock], with a watch for each; instead of namespace",
    ),
    no_default(
        "resources.<name>.source.kube.namespace_selector",
        "only namespaces with these labels, at most 100 at a time, such as team=shop; instead of namespace",
    ),
    no_default("resources.<name>.source.kube.label_selector", "only objects with these labels, such as app=web"),
    no_default(
        "resources.<name>.source.kube.field_selector",
        "only objects with these fields, such as spec.nodeName=node-a, as far as the API can select by them",
    ),
    no_default(
        "resources.<name>.source.kube.metadata_only",
        "true requests and serves only the metadata of objects, such as of Secrets without their data; false if left out",
    ),
    no_default(
        "resources.<name>.source.kube.page_size",
        "objects on a page of a list, 1 to 100000; 500 where pages are of use if left out",
    ),
    no_default(
        "resources.<name>.source.kube.watch_timeout",
        "how long the API is requested to keep a watch open, 10s to 24h, and up to twice as long, at random; 5m if left out",
    ),
    no_default(
        "resources.<name>.source.kube.versions",
        "opaque: count versions here, for an API whose decimal versions are in no order; auto if left out",
    ),
    no_default(
        "resources.<name>.source.kube.kubeconfig",
        "a kubeconfig, relative to the configuration file; KUBECONFIG, ~/.kube/config or the cluster it runs in if left out",
    ),
    no_default("resources.<name>.source.kube.context", "a context of the kubeconfig; its current one if left out"),
    no_default(
        "resources.<name>.source.kube.contact_timeout",
        "how long the API server may give no sign of life before its connections are closed: 3s to 5m; 15s if left out",
    ),
    no_default(
        "resources.<name>.source.informerd.endpoint",
        "another informerd to relay: http://HOST:PORT, https://HOST:PORT or unix:/path",
    ),
    no_default("resources.<name>.source.informerd.resource", "what the resource is called there; the same if left out"),
    no_default(
        "resources.<name>.source.informerd.tls.ca",
        "for https: the certificates in PEM that may have signed its own; those that the system trusts if left out",
    ),
    no_default("resources.<name>.source.informerd.tls.cert", "a certificate of our own, in PEM"),
    no_default("resources.<name>.source.informerd.tls.key", "its private key"),
    no_default(
        "resources.<name>.drop_fields",
        "fields that are not kept of objects of kube; metadata.managedFields and what kubectl applied last if left out",
    ),
    no_default("resources.<name>.indexes.<index>.path", "index by the scalars at a path such as .spec.nodeName"),
    no_default("resources.<name>.indexes.<index>.label", "index by the value of a label"),
    no_default(
        "resources.<name>.indexes.<index>.expression",
        "index by what a CEL expression over `object` gives: a scalar, or a list of them",
    ),
    key("resources.<name>.optional", "false", "be ready without it"),
    no_default(
        "resources.<name>.snapshot",
        "true writes its state to state_dir, false does not; true if left out, but false for Secrets",
    ),
    no_default("resources.<name>.full_channel_policy", "instead of watch.full_channel_policy"),
    no_default("resources.<name>.queue_length", "instead of watch.queue_length"),
];

/// Keys of the design that come with later versions.
const LATER: [&str; 1] = ["resources.<name>.ttl"];

/// Longer than any key and typo; the distance of two texts takes time by the product of their lengths.
const MAX_TYPO_BYTES: usize = 64;

const MAX_SHOWN_CHARS: usize = 80;

/// Every key of the configuration file, in the order of the reference.
pub fn reference() -> &'static [Key] {
    KEYS
}

/// A key as one text: names as they are, unless they would be misread.
pub(super) fn join<S: AsRef<str>>(path: &[S]) -> String {
    let parts: Vec<_> = path.iter().map(|part| segment(part.as_ref())).collect();
    parts.join(".")
}

/// Says what is wrong with a key that nothing reads.
pub(super) fn unread(path: &[String]) -> ConfigError {
    let at = join(path);
    let Some((key, parents)) = path.split_last() else {
        return ConfigError::new(&at, "unknown key");
    };
    let shown = segment(key);
    if LATER.iter().any(|later| is_at(later, path) && later.split('.').count() == path.len()) {
        return ConfigError::new(&at, &format!("`{shown}` is not supported by this version; remove it"));
    }
    let siblings = siblings(parents);
    let problem = if let Some(near) = nearest(key, &siblings) {
        format!("unknown key; did you mean `{near}`?")
    } else if let Some(elsewhere) = KEYS.iter().find(|known| known.path.rsplit('.').next() == Some(key)) {
        format!("unknown key here; did you mean `{}`?", elsewhere.path)
    } else {
        format!("unknown key; known here: {}", siblings.join(", "))
    };
    ConfigError::new(&at, &problem)
}

const fn key(path: &'static str, default: &'static str, meaning: &'static str) -> Key {
    Key { path, default: Some(default), meaning }
}

const fn no_default(path: &'static str, meaning: &'static str) -> Key {
    Key { path, default: None, meaning }
}

fn segment(name: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'/');
    if !name.is_empty() && name.len() <= MAX_SHOWN_CHARS && name.bytes().all(is_plain) {
        return name.to_owned();
    }
    let beginning: String = name.chars().take(MAX_SHOWN_CHARS).collect();
    let more = if beginning.len() < name.len() { "…" } else { "" };
    format!("{beginning:?}{more}")
}

/// Whether a pattern begins like this path.
fn is_at<S: AsRef<str>>(pattern: &str, path: &[S]) -> bool {
    let mut parts = pattern.split('.');
    path.iter().all(|name| parts.next().is_some_and(|part| part.starts_with('<') || part == name.as_ref()))
}

/// What can stand below a key.
fn siblings(parents: &[String]) -> Vec<&'static str> {
    let mut names: Vec<_> = KEYS
        .iter()
        .filter(|known| is_at(known.path, parents))
        .filter_map(|known| known.path.split('.').nth(parents.len()))
        .collect();
    names.dedup();
    names
}

fn nearest(key: &str, known: &[&'static str]) -> Option<&'static str> {
    if key.len() > MAX_TYPO_BYTES {
        return None;
    }
    let distances = known.iter().map(|name| (strsim::damerau_levenshtein(key, name), *name));
    let (distance, name) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= (name.len() / 3).max(1)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(key: &str) -> String {
        unread(&key.split('.').map(str::to_owned).collect::<Vec<_>>()).to_string()
    }

    #[test]
    fn the_nearest_sibling_is_named() {
        for (key, near) in [
            ("lisen", "listen"),
            ("resource", "resources"),
            ("watch.queue_lenght", "queue_length"),
            ("watch.queueLength", "queue_length"),
            ("watch.max-watchers", "max_watchers"),
            ("drain.dealy", "delay"),
            ("resources.pods.indices", "indexes"),
            ("resources.pods.source.file", "files"),
            ("resources.pods.source.files.pth", "path"),
            ("resources.pods.indexes.node.lable", "label"),
            ("resources.pods.queue_len", "queue_length"),
        ] {
            assert_eq!(problem(key), format!("{key}: unknown key; did you mean `{near}`?"));
        }
    }

    #[test]
    fn a_key_of_another_section_is_found() {
        assert_eq!(problem("block_timeout"), "block_timeout: unknown key here; did you mean `watch.block_timeout`?");
        assert_eq!(problem("drain.age"), "drain.age: unknown key here; did you mean `history.age`?");
    }

    #[test]
    fn without_anything_near_the_known_ones_are_listed() {
        assert_eq!(problem("history.colour"), "history.colour: unknown key; known here: age, events, bytes");
        assert_eq!(problem("admin.x"), "admin.x: unknown key; known here: listen");
        let long = "x".repeat(1000);
        let shown = format!("history.\"{}\"…: unknown key; known here: age, events, bytes", "x".repeat(80));
        assert_eq!(problem(&format!("history.{long}")), shown);
    }

    #[test]
    fn keys_of_later_versions_say_so() {
        for pattern in LATER {
            let key = pattern.replace("<name>", "pods").replace("<index>", "owner");
            let name = key.rsplit('.').next().unwrap();
            assert_eq!(problem(&key), format!("{key}: `{name}` is not supported by this version; remove it"));
        }
        assert!(problem("resources.pods.source.kubes").contains("unknown key"));
    }

    #[test]
    fn names_that_would_be_misread_are_quoted() {
        let path: Vec<String> = ["resources", "a.b", "c d", "", "é\n", "x-1/y_2"].map(Into::into).into();
        assert_eq!(join(&path), r#"resources."a.b"."c d".""."é\n".x-1/y_2"#);
    }
}
