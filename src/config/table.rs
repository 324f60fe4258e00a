//! Table of the configuration: a row for each key, with its type, default, form, bounds, meaning and perhaps its flag.
//!
//! A new key is a row here and its use. A row becomes the field of a struct and perhaps a flag, is read from the file within
//! its bounds, and is listed by [`reference()`](super::reference()) and in `docs/configuration.md`. `rows!` documents the syntax
//! of a row. Forms are the readers of `value` and of the sources.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use super::{
    ListenAddr,
    listen::address_or_socket,
    rows::rows,
    upstream::{endpoints, relay_endpoint as endpoint},
    value::{
        self, admin_listen as address, boolean, count, duration, expression, file, integer, kind,
        kube::{self, auto_or_opaque, field_paths, namespaces},
        label_index as label, path as directory, path_index as field_path, policies, policy, positive_count,
        positive_duration, positive_size, size, stream_path as file_or_dash, string as text,
    },
};
use crate::{
    model::{Expression, FieldCut, IndexFunc},
    watch::FullChannelPolicy,
};

rows! {
    /// Keys outside of all sections.
    pub struct GeneralConfig at "" {
        listen: ListenAddr = "127.0.0.1:50051", address_or_socket, "where gRPC listens: IP:PORT or unix:/path/of/socket",
            flag("listen", "ADDR", "INFORMERD_LISTEN");
        ..AdminConfig;
        insecure: bool = "false", boolean, "allow gRPC in plain text on an address that is not loopback",
            flag("insecure", "BOOL", "INFORMERD_INSECURE");
        ..TlsConfig;
        ..WatchConfig;
        ..HistoryKeys;
        ..LimitsConfig;
        ..DrainConfig;
        stale_after: Duration = "15s", positive_duration,
            "how long a source may be out of contact before its resource is stale";
        state_dir: Option<PathBuf>, directory,
            "keep states of kube, etcd and informerd resources in this directory, so that the next start serves them at once, as STALE, and requests only what has changed since; relative to the configuration file, if it is written there",
            flag("state-dir", "DIR", "INFORMERD_STATE_DIR");
        state_interval: Duration = "1m", positive_duration,
            "how often a state is written when objects have changed";
        ..FilesResource;
        ..StreamResource;
        ..EtcdKeys;
        ..EtcdTlsKeys;
        ..KubeResource;
        ..RelayKeys;
        ..RelayTlsKeys;
        ..ResourceOptions;
    }
}

rows! {
    /// HTTP port for operators.
    pub struct AdminConfig at "admin." {
        listen: Option<SocketAddr> = "127.0.0.1:9464", address or none,
            "where HTTP for probes and metrics listens: IP:PORT or none",
            flag("admin-listen", "ADDR", "INFORMERD_ADMIN_LISTEN");
    }
}

rows! {
    /// TLS files, in PEM; read again when they change.
    pub struct TlsConfig at "tls." {
        cert: PathBuf = (required "is missing; write the path of a file in PEM"), file,
            "serve gRPC under TLS with this certificate in PEM, and those that lead to its root; read again when it changes";
        key: PathBuf = (required "is missing; write the path of a file in PEM"), file, "its private key in PEM";
        client_ca: Option<PathBuf>, file, "clients need a certificate that one of these has signed";
    }
}

rows! {
    /// Watches: the defaults of the server and the bounds for requests of clients.
    pub struct WatchConfig at "watch." {
        full_channel_policy: FullChannelPolicy = "replay", policy,
            "when a client's queue is full, unless it asks otherwise";
        allowed_policies: Vec<FullChannelPolicy> = "[drop, block, replay, coalesce]", policies,
            "what a client may ask for";
        queue_length: usize = "1024", count, "events that make a client's queue full, unless it asks otherwise";
        max_queue_length: usize = "65536", positive_count, "the most that a client may ask for";
        queue_bytes: usize = "16MiB", positive_size,
            "encoded bytes that make a client's queue full, whatever its length";
        window_bytes: usize = "16MiB", positive_size,
            "memory for events that clients still have to read, for each resource, and as much again for what they are told from the history";
        coalesce_bytes: usize = "64MiB", positive_size,
            "memory of what has merged for one watch under coalesce; beyond it the watch ends";
        block_timeout: Duration = "5s", positive_duration,
            "how long changes wait for all clients under block together, beside a tenth of any time";
        selection_budget: Duration = "200us", duration in "10us"..="100ms",
            "what selections that nothing leads to, and expressions, take of a publish cycle; threads evaluate the others";
        selection_share: u32 = "20", integer in 1..=100,
            "what they take of all the time of a resource's writer, in percent";
        bookmark_interval: Duration = "30s", positive_duration,
            "how long a watch is silent before it gets a bookmark";
        future_wait: Duration = "90s", positive_duration,
            "how long a watch from a version of the future waits for it";
        batch_window: Duration = "0ms", duration in "0ms"..="1s",
            "how long changes are gathered after others: more delay, less work for many watchers";
        progress_timeout: Duration = "30s", positive_duration,
            "how long a client may take nothing of what is to be sent, on its connection or on a stream";
        max_watchers: usize = "100000", positive_count, "watches open at the same time";
    }
}

rows! {
    /// History of each resource, kept for watches that lag or resume.
    pub(super) struct HistoryKeys at "history." {
        age: Duration = "5m", positive_duration, "the age of the oldest event that is kept, for each resource";
        events: usize = "100000", positive_count, "the most events that are kept, for each resource";
        bytes: usize = "256MiB", positive_size,
            "the most bytes that are kept, of states and records, for each resource";
    }
}

rows! {
    /// Bounds on the usage by clients.
    pub struct LimitsConfig at "limits." {
        request_bytes: usize = "64KiB", positive_size, "the largest request";
        request_timeout: Duration = "10s", duration in "100ms"..="5m",
            "how long a client may take for the handshake of TLS, the preface of HTTP/2, a header block or the message of a request";
        connections: Option<usize>, positive_count,
            "connections open at the same time; what the limit on open files leaves if left out, at most 100000";
        peer_share: u32 = "25", integer in 1..=100,
            "what one peer (an IPv4 address, a /64 of IPv6, a user of a unix socket) may have of connections, watches, compilations and page snapshots, in percent; 100 behind a proxy";
        compilations: usize = "4096", positive_count,
            "expressions and conditions that wait to be compiled at the same time";
        page_snapshots: usize = "16", positive_count,
            "states that are kept for the next pages of lists; beyond them the oldest tokens expire";
        // The limit of HTTP/2: 31 bits.
        streams_per_connection: u32 = "1024", integer in 1..=2_147_483_647, "calls open at the same time on one connection";
        struct_bytes: usize = "64MiB", positive_size,
            "of bodies that were sent as STRUCT, what is kept for those who ask for the same";
        memory: Option<usize>, size in "1MiB"..="1024GiB",
            "what is held for all clients together: above it the stream ends that has waited longest; a quarter of the cgroup's limit if left out, 1GiB where there is none";
        expression_steps: u64 = "10000", integer in 100..=100_000,
            "steps of one evaluation of an expression, 100000 for some 5 ms; beyond them it fails and is counted";
    }
}

rows! {
    /// Shutdown of the server, from the first signal on.
    pub struct DrainConfig at "drain." {
        delay: Duration = "0s", duration,
            "how long the server goes on after a signal, while it says that it is not ready";
        period: Duration = "5s", duration, "how long open streams then have to end";
    }
}

rows! {
    /// JSON and YAML files below a directory.
    pub struct FilesResource at "resources.<name>.source.files." {
        path: PathBuf = (required "is missing; write the path of a directory such as ./manifests"), directory,
            "a directory of .json, .yaml and .yml files; relative to the configuration file";
        kind: Option<String>, kind, "only objects of this kind; all of them if left out";
        rescan: Duration = "5s", duration in "100ms"..="1h",
            "the interval of full scans, which find what the operating system does not report";
        quiet: Duration = "100ms", duration in "10ms"..="10s",
            "how long the directory has to be quiet before changes are read, at most rescan";
    }
}

rows! {
    /// Watch events as JSON; without a path, those of standard input.
    pub struct StreamResource at "resources.<name>.source.stream." {
        path: Option<PathBuf> = (required "is missing; write the path of a file such as ./events.jsonl, or - for standard input"),
            file_or_dash,
            "a file or named pipe of JSON watch events, relative to the configuration file; or - for standard input";
        confirm_after: Option<Duration> = "10s", duration in "100ms"..="1h" or none,
            "when the next writer of a pipe has repeated no object for so long, the rest is deleted; with none, nothing is";
    }
}

rows! {
    /// Keys below a prefix of an etcd cluster.
    pub(super) struct EtcdKeys at "resources.<name>.source.etcd." {
        endpoints: Vec<String> = (required "is missing; write for example [\"http://127.0.0.1:2379\"]"),
            endpoints,
            "the members of one cluster, such as [\"http://127.0.0.1:2379\"]";
        prefix: String = (required "is missing; write what the keys begin with, such as /settings/, or \"\" for all keys"),
            text,
            "what the keys begin with, such as /settings/; \"\" for all keys";
        username: Option<String>, text, "the user, who may read every key of the prefix";
        password_file: Option<PathBuf>, file,
            "the file with the password, relative to the configuration file; read again at each connection";
    }
}

rows! {
    /// TLS with an etcd cluster.
    pub(super) struct EtcdTlsKeys at "resources.<name>.source.etcd.tls." {
        ca: Option<PathBuf>, file,
            "for https: the certificates in PEM that may have signed etcd's; those that the system trusts if left out";
        cert: Option<PathBuf>, file, "a certificate of our own, in PEM";
        key: Option<PathBuf>, file, "its private key";
        server_name: Option<String>, text,
            "the name that etcd's certificate has; the endpoint's host if left out";
    }
}

rows! {
    /// One resource type of a Kubernetes API.
    pub struct KubeResource at "resources.<name>.source.kube." {
        group: String = empty, text where kube::check_group,
            "the API group, such as apps; the core group if left out";
        version: String = (required "is missing; write for example v1"), text where kube::check_version,
            "the version of the group, such as v1";
        plural: String = (required "is missing; write for example pods"), text where kube::check_plural,
            "the kind as it is written in paths, such as pods";
        namespace: String = empty, text where kube::check_namespace,
            "only this namespace; all of them if left out";
        namespaces: Vec<String> = empty, namespaces,
            "only these namespaces, 1 to 100, such as [shop, stock], with a watch for each; instead of namespace";
        namespace_selector: String = empty, text where kube::check_namespace_selector,
            "only namespaces with these labels, at most 100 at a time, such as team=shop; instead of namespace";
        label_selector: String = empty, text where kube::check_label_selector,
            "only objects with these labels, such as app=web";
        field_selector: String = empty, text,
            "only objects with these fields, such as spec.nodeName=node-a, as far as the API can select by them";
        is_metadata_only ("metadata_only"): bool = "false", boolean,
            "request and serve only the metadata of objects, such as of Secrets without their data";
        page_size: Option<u32>, integer in 1..=100_000,
            "objects on a page of a list; 500 where pages are of use if left out";
        watch_timeout: Duration = "5m", duration in "10s"..="24h",
            "how long the API is requested to keep a watch open, and up to twice as long, at random";
        has_opaque_versions ("versions"): bool = "auto", auto_or_opaque,
            "opaque: count versions here, for an API whose decimal versions are in no order";
        kubeconfig: Option<PathBuf>, file,
            "a kubeconfig, relative to the configuration file; KUBECONFIG, ~/.kube/config or the cluster it runs in if left out";
        context: Option<String>, text, "a context of the kubeconfig; its current one if left out";
        // A third of it is the interval of contacts, in which an API server under load has to respond.
        contact_timeout: Duration = "15s", duration in "3s"..="5m",
            "how long the API server may give no sign of life before its connections are closed";
    }
}

rows! {
    /// Resource of another informerd.
    pub(super) struct RelayKeys at "resources.<name>.source.informerd." {
        endpoint: String = (required "is missing; write for example http://127.0.0.1:50051"), endpoint,
            "another informerd to relay: http://HOST:PORT, https://HOST:PORT or unix:/path";
        resource: Option<String>, text where value::check_resource_name,
            "what the resource is called there; the same if left out";
    }
}

rows! {
    /// TLS with another informerd.
    pub(super) struct RelayTlsKeys at "resources.<name>.source.informerd.tls." {
        ca: Option<PathBuf>, file,
            "for https: the certificates in PEM that may have signed its own; those that the system trusts if left out";
        cert: Option<PathBuf>, file, "a certificate of our own, in PEM";
        key: Option<PathBuf>, file, "its private key";
    }
}

rows! {
    /// Index of a resource: exactly one of these keys.
    pub(super) struct IndexKeys at "resources.<name>.indexes.<index>." {
        path: Option<IndexFunc>, field_path, "index by the scalars at a path such as .spec.nodeName";
        label: Option<IndexFunc>, label, "index by the value of a label";
        expression: Option<Expression>, expression,
            "index by what a CEL expression over `object` gives: a scalar, or a list of them";
    }
}

rows! {
    /// Options of a resource besides its source.
    pub struct ResourceOptions at "resources.<name>." {
        drop_fields: FieldCut =
            "[metadata.managedFields, \"metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']\"]",
            field_paths, "fields that are not kept of objects of kube";
        ..IndexKeys;
        optional: bool = "false", boolean, "be ready without it";
        snapshot: Option<bool>, boolean,
            "true writes its state to state_dir, false does not; true if left out, but false for Secrets";
        full_channel_policy: Option<FullChannelPolicy>, policy, "instead of watch.full_channel_policy";
        queue_length: Option<usize>, count, "instead of watch.queue_length";
    }
}
