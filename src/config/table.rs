//! Table of the configuration: a row for each key, with its type, default, form, bounds, meaning and perhaps its flag.
//!
//! A new key is a row here and its use. A row becomes the field of a struct and perhaps a flag, is read from the file within
//! its bounds, and is listed by [`reference()`](super::reference()) and in `docs/configuration.md`. `rows!` documents the syntax
//! of a row. Forms are the readers of `value` and of the sources.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use ipnet::IpNet;

use super::{
    ListenAddr,
    listen::{address, address_or_socket},
    rows::rows,
    upstream::{endpoints, relay_endpoint as endpoint},
    value::{
        self, boolean,
        choices::{certificate_user, compressions, policies, policy},
        count, duration, expression, file, host_names, integer, kind,
        kube::{self, auto_or_opaque, field_paths, namespaces},
        kubernetes::{KubernetesName, kubernetes_name, printer_columns, refuse_or_warn},
        label_index as label, names, networks, path as directory, path_index as field_path, positive_count,
        positive_duration, positive_size, rules, shard, size, stream_path as file_or_dash, string as text, texts,
        view_names, view_paths as paths,
    },
};
use crate::{
    auth::{CertificateUser, Rules},
    model::{Expression, FieldCut, IndexFunc, PrinterColumn, Shard},
    net::ServerAddress,
    proto::Compression,
    source::{files::FilesConfig, kube::KubeConfig, stream::StreamConfig},
    watch::FullChannelPolicy,
};

rows! {
    /// Keys outside of all sections.
    pub struct GeneralConfig at "" {
        listen: ListenAddr = "127.0.0.1:50051", address_or_socket, "address for gRPC: IP:PORT, localhost:PORT, :PORT for every address, or unix:/path/of/socket",
            flag("listen", "ADDR", "INFORMERD_LISTEN");
        ..AdminConfig;
        ..KubernetesConfig;
        insecure: bool = "false", boolean, "allow gRPC in plain text on an address that is not loopback",
            flag("insecure", "BOOL", "INFORMERD_INSECURE");
        compression: Vec<Compression> = empty, compressions,
            "compressions of the messages of Watch, List and ByIndex, in order of preference, such as [zstd, gzip]: the first that a client accepts is used; gzip also of lists at kubernetes.listen; if left out none";
        ..TlsConfig;
        ..AuthenticationKeys;
        ..AuthorizationKeys;
        ..SubjectAccessReviewConfig;
        ..WatchConfig;
        ..HistoryKeys;
        ..LimitsConfig;
        ..QuotasConfig;
        ..AuditConfig;
        ..DrainConfig;
        stale_after: Duration = "15s", positive_duration,
            "time without contact with the source after which a resource is STALE";
        state_dir: Option<PathBuf>, directory,
            "directory for snapshots of kube, etcd, files and informerd resources: the next start serves them at once, as STALE, and requests only later changes; relative to the configuration file, if it is set there",
            flag("state-dir", "DIR", "INFORMERD_STATE_DIR");
        state_interval: Duration = "1m", positive_duration,
            "interval at which the snapshots of changed resources are written";
        ..FilesConfig;
        ..StreamConfig;
        ..EtcdKeys;
        ..EtcdTlsKeys;
        ..KubeConfig;
        ..RelayKeys;
        ..RelayIndexKeys;
        ..RelayViewKeys;
        ..RelayTlsKeys;
        ..ResourceOptions;
    }
}

rows! {
    /// HTTP port for operators.
    pub struct AdminConfig at "admin." {
        listen: Option<SocketAddr> = "127.0.0.1:9464", address or none,
            "address of HTTP for probes and metrics: IP:PORT, localhost:PORT, :PORT for every address, or none",
            flag("admin-listen", "ADDR", "INFORMERD_ADMIN_LISTEN");
        open_metrics: bool = "false", boolean,
            "serve /metrics without credentials also where callers are authorized: it shows names, counts and versions of every resource";
        bodies: bool = "false", boolean,
            "show the last changes of objects and their bodies on the page, and explain them there, to whoever may inspect every resource; secrets are never shown";
        hosts: Vec<String> = empty, host_names,
            "names under which programs on this machine reach the port, beside localhost and addresses, such as [informerd.example]: other names in the header Host are refused there, because a page in a browser could choose them";
    }
}

rows! {
    /// API of Kubernetes, for unchanged clients.
    pub struct KubernetesConfig at "kubernetes." {
        listen: Option<ListenAddr> = "none", address_or_socket or none,
            "address of the Kubernetes API, read-only, and of resources as JSON and server-sent events (/v1/RESOURCE), under the same TLS and for the same callers as gRPC: IP:PORT, localhost:PORT, :PORT for every address, unix:/path/of/socket, or none; in a build with it (cargo feature `kubernetes-api`)";
        warns ("stale_reads"): bool = "refuse", refuse_or_warn,
            "refuse: a read of the most recent state is answered 503 while the upstream cannot confirm it; warn: it is answered with a Warning header";
    }
}

rows! {
    /// TLS files, in PEM; read again when they change.
    pub struct TlsConfig at "tls." {
        cert: PathBuf = (required "is missing; write the path of a file in PEM"), file,
            "serve gRPC under TLS with this certificate chain in PEM; read again when it changes";
        key: PathBuf = (required "is missing; write the path of a file in PEM"), file,
            "private key of the certificate, in PEM";
        client_ca: Option<PathBuf>, file, "require client certificates signed by one of these CA certificates in PEM";
    }
}

rows! {
    /// Authenticators of clients.
    pub(super) struct AuthenticationKeys at "authentication." {
        client_certificates: bool = "false", boolean,
            "accept a client certificate signed by tls.client_ca; beside another authenticator a client may have none";
        certificate_user: CertificateUser = "cn", certificate_user,
            "name of a certificate that is its user: cn, the common name of its subject, as in Kubernetes; or san, its first URI, DNS name or e-mail address, else the common name";
        certificate_system_names: bool = "false", boolean,
            "accept certificates whose user or a group begins with `system:`: only if tls.client_ca is the authority of a Kubernetes API server, and of nobody else";
        token_file: Option<PathBuf>, file,
            "accept the bearer tokens whose SHA-256 is in this file, with a line `HASH USER [GROUP,GROUP…]` for each, relative to the configuration file; read again when it changes";
        ..JwtKeys;
        ..TokenReviewConfig;
    }
}

rows! {
    /// JSON Web Tokens of one issuer.
    pub(super) struct JwtKeys at "authentication.jwt." {
        issuer: String = (required "is missing; write the `iss` of the tokens, such as https://issuer.example"), text,
            "accept JSON Web Tokens (RS*, PS*, ES256, ES384, EdDSA) of this issuer, by their `iss`";
        audiences: Vec<String> = (required "is missing; write for example [informerd]"), names,
            "audiences, one of which a token needs in `aud`: 1 to 32, such as [informerd]";
        keys: PathBuf = (required "is missing; write the path of a JWKS document or of public keys in PEM"), file,
            "keys of the issuer: a JWKS document, or public keys in PEM, relative to the configuration file; read again when it changes";
        user_claim: String = "sub", text where value::check_not_empty, "claim with the name of the user";
        user_prefix: String = empty, text, "prefix of the names of users";
        groups_claim: Option<String>, text, "claim with the groups of the user, a text or a list";
        groups_prefix: Option<String>, text,
            "prefix of the groups; if left out the issuer and a colon, such as `https://issuer.example:`; `\"\"` for none";
    }
}

rows! {
    /// Bearer tokens that Kubernetes reviews: a `TokenReview` of each.
    pub struct TokenReviewConfig at "authentication.token_review." {
        audiences: Vec<String> = (required "is missing; write for example [informerd]"), names,
            "accept the bearer tokens that a Kubernetes API server authenticates for one of these audiences: 1 to 32, such as [informerd]";
        kubeconfig: Option<PathBuf>, file,
            "kubeconfig, relative to the configuration file; KUBECONFIG, ~/.kube/config or the service account in a cluster if left out";
    }
}

rows! {
    /// Rights of authenticated clients: exactly one of `rules`, `rules_file` and `subject_access_review`.
    pub(super) struct AuthorizationKeys at "authorization." {
        rules: Option<Rules>, rules,
            "list of rules, each a map of lists: subjects (user:NAME, group:NAME or \"*\"), verbs (get, list, watch, admin, disconnect or \"*\"), resources, namespaces (names or \"*\") and perhaps formats (METADATA, STRUCT, RAW) and views (names, of which the bodies are limited to one), or subjects, the verb impersonate, users and perhaps groups; what no rule grants is denied";
        rules_file: Option<PathBuf>, file,
            "file with such a list, in YAML or JSON, relative to the configuration file; read again when it changes";
        recheck: Duration = "60s", duration in "10s"..="10m",
            "interval at which the credentials and the rights of open streams are checked again";
    }
}

rows! {
    /// Rights of clients by Kubernetes: a `SubjectAccessReview` of each access.
    pub struct SubjectAccessReviewConfig at "authorization.subject_access_review." {
        ttl ("cache"): Duration = "10s", duration in "0s"..="5m",
            "time for which a decision is used, positive or negative";
        kubeconfig: Option<PathBuf>, file,
            "kubeconfig, relative to the configuration file; KUBECONFIG, ~/.kube/config or the service account in a cluster if left out";
    }
}

rows! {
    /// Watches: the defaults of the server and the bounds for requests of clients.
    pub struct WatchConfig at "watch." {
        full_channel_policy: FullChannelPolicy = "replay", policy,
            "policy for a full queue of a client whose request names none";
        allowed_policies: Vec<FullChannelPolicy> = "[drop, block, replay, coalesce]", policies,
            "policies that a client may request";
        queue_length: usize = "1024", count, "length of a client's queue in events, unless its request has one";
        block_timeout: Duration = "5s", positive_duration,
            "total time per resource that changes may wait for clients under block, refilled at a tenth of the time";
        progress_timeout: Duration = "30s", positive_duration,
            "time after which a connection or a stream whose client reads nothing is closed";
        max_watchers: usize = "100000", positive_count, "maximum number of open watches";
    }
}

rows! {
    /// History of each resource, kept for watches that lag or resume.
    pub(super) struct HistoryKeys at "history." {
        age: Duration = "5m", positive_duration, "age of the oldest event kept, per resource";
        events: usize = "100000", positive_count, "maximum number of events kept, per resource";
        bytes: usize = "256MiB", positive_size,
            "maximum number of bytes kept, of states and records, per resource";
    }
}

rows! {
    /// Bounds on the usage by clients.
    pub struct LimitsConfig at "limits." {
        request_timeout: Duration = "10s", duration in "100ms"..="5m",
            "time for a client to complete the TLS handshake, the HTTP/2 preface, a header block or the message of a request";
        peer_share: u32 = "25", integer in 1..=100,
            "maximum share of one caller in watches, compilations, reviews and page snapshots, and of one peer in connections, calls in progress and the memory of requests, in percent: a caller is an authenticated user, else its peer; a peer is an IPv4 address, a /64 of IPv6 or a user of a unix socket";
        trusted_peers: Vec<IpNet> = empty, networks,
            "proxies, gateways and NATs, such as [10.0.0.0/8]: a peer there has no share; its callers are counted as authenticated users, else as peers at the address that it forwards (the last one in X-Forwarded-For that is not such a proxy), else only for all together";
        memory: Option<usize>, size in "1MiB"..="1024GiB",
            "memory held for all clients together; above it the stream that has read nothing for longest ends; if left out, a quarter of the cgroup's limit, 1GiB without one";
    }
}

rows! {
    /// Quotas of each caller: an authenticated user, or a peer where nobody has authenticated the user. Without a key there is none.
    pub struct QuotasConfig at "quotas." {
        streams: Option<usize>, positive_count,
            "open calls of Watch, Until, List, ByIndex and Changes, and watches on Subscribe streams, of one caller, and as many of these streams: an authenticated user, else its peer (limits.peer_share)";
        lists_per_second: Option<u32>, integer in 1..=100_000,
            "calls of List, ByIndex, Changes and ListIndexValues, and watches with initial events, of one caller in a second";
        bulk_responses: Option<usize>, positive_count,
            "lists, and watches that are at their initial events, of one caller at a time";
        bytes_held: Option<usize>, size in "64KiB"..="1024GiB",
            "memory held for the streams of one caller that wait for it to read; above it new calls are refused, and its stream that has read nothing for longest ends";
    }
}

rows! {
    /// Audit log of the calls.
    pub struct AuditConfig at "audit." {
        file: Option<PathBuf>, file,
            "file for a line of JSON at the beginning and the end of each Watch, Until, List, ByIndex and Changes, for each Get, Explain and ListIndexValues, and for each denied call, or - for standard error; relative to the configuration file, and created again when it was renamed; none if left out";
    }
}

rows! {
    /// Shutdown of the server, from the first signal on.
    pub struct DrainConfig at "drain." {
        delay: Duration = "0s", duration,
            "time to keep serving after SIGTERM or SIGINT, with /readyz failing";
        period: Duration = "5s", duration, "time after drain.delay for open streams to end";
    }
}

rows! {
    impl FilesConfig at "resources.<name>.source.files." {
        path = (required "is missing; write the path of a directory such as ./manifests"), directory,
            "directory of .json, .yaml and .yml files; relative to the configuration file";
        kind, kind, "only objects of this kind; all if left out";
        rescan = "5s", duration in "100ms"..="1h",
            "interval of full scans, which find changes that the operating system does not report";
    }
}

rows! {
    impl StreamConfig at "resources.<name>.source.stream." {
        path = (required "is missing; write the path of a file such as ./events.jsonl, or - for standard input"),
            file_or_dash,
            "file or named pipe of JSON watch events, relative to the configuration file; or - for standard input";
        confirm_after = "10s", duration in "100ms"..="1h" or none,
            "time without a repeated object from the next writer of a pipe, after which the objects that it has not repeated are deleted; none: never";
    }
}

rows! {
    /// Keys below a prefix of an etcd cluster.
    pub(super) struct EtcdKeys at "resources.<name>.source.etcd." {
        endpoints: Vec<ServerAddress> = (required "is missing; write for example [\"http://127.0.0.1:2379\"]"),
            endpoints,
            "members of one cluster, such as [\"http://127.0.0.1:2379\"]";
        prefix: String = (required "is missing; write what the keys begin with, such as /settings/, or \"\" for all keys"),
            text,
            "prefix of the keys, such as /settings/; \"\" for all keys";
        username: Option<String>, text, "user with read access to every key of the prefix";
        password_file: Option<PathBuf>, file,
            "file with the user's password, relative to the configuration file; read again at each connection";
    }
}

rows! {
    /// TLS with an etcd cluster.
    pub(super) struct EtcdTlsKeys at "resources.<name>.source.etcd.tls." {
        ca: Option<PathBuf>, file,
            "for https: CA certificates in PEM to verify etcd's certificate; the system's if left out";
        cert: Option<PathBuf>, file, "client certificate in PEM";
        key: Option<PathBuf>, file, "private key of the client certificate, in PEM";
        server_name: Option<String>, text,
            "name in etcd's certificate; the endpoint's host if left out";
    }
}

rows! {
    impl KubeConfig at "resources.<name>.source.kube." {
        group = empty, text where kube::check_group,
            "API group, such as apps; the core group if left out";
        version = (required "is missing; write for example v1"), text where kube::check_version,
            "version of the group, such as v1";
        plural = (required "is missing; write for example pods"), text where kube::check_plural,
            "plural name of the kind, as in API paths, such as pods";
        namespace = empty, text where kube::check_namespace,
            "only this namespace; all if left out";
        namespaces = empty, namespaces,
            "only these namespaces, 1 to 100, such as [shop, stock], with a watch for each; instead of namespace";
        namespace_selector = empty, text where kube::check_namespace_selector,
            "only namespaces with these labels, at most 100 at a time, such as team=shop; instead of namespace";
        label_selector = empty, text where kube::check_label_selector,
            "only objects with these labels, such as app=web";
        field_selector = empty, text,
            "only objects with these fields, such as spec.nodeName=node-a, as far as the API can select by them";
        is_metadata_only ("metadata_only") = "false", boolean,
            "request and serve only the metadata of objects, such as Secrets without their data";
        has_opaque_versions ("versions") = "auto", auto_or_opaque,
            "opaque: this server numbers the versions, for an API whose decimal versions have no order";
        cluster.kubeconfig ("kubeconfig"), file,
            "kubeconfig, relative to the configuration file; KUBECONFIG, ~/.kube/config or the service account in a cluster if left out";
        cluster.context ("context"), text, "context of the kubeconfig; its current one if left out";
    }
}

rows! {
    /// Resource of another informerd.
    pub(super) struct RelayKeys at "resources.<name>.source.informerd." {
        endpoint: Option<ServerAddress> = (required "is missing; write for example http://127.0.0.1:50051"), endpoint,
            "another informerd to relay: http://HOST:PORT, https://HOST:PORT or unix:/path";
        resource: Option<String>, text where value::check_resource_name,
            "name of the resource there; the same if left out";
        token_file: Option<PathBuf>, file,
            "file with a bearer token for each call, read at each call; for https, a Unix socket or this host";
        forwards_identity ("forward_identity"): bool = "false", boolean,
            "the other informerd decides what each caller may read, by calls on its behalf: this one needs the right to impersonate there, and authenticated callers";
        namespace: Option<String>, text, "only objects of this namespace; all if left out";
        name: Option<String>, text, "only objects of this name; all if left out";
        label_selector: String = empty, text where kube::check_label_selector,
            "only objects with these labels, such as app=web,tier in (a,b)";
        field_selector: String = empty, text where value::check_field_selector,
            "only objects with these fields, such as spec.nodeName=node-a";
        expression: String = empty, text where value::check_expression,
            "only objects for which this CEL expression over `object` is true, such as object.spec.replicas > 1";
        shard: Option<Shard>, shard,
            "only this part of the objects, such as 2/8 (of 0/8 to 7/8) by their uid, or spec.nodeName:2/8";
    }
}

rows! {
    /// Only objects under one of these values of an index of another informerd.
    pub(super) struct RelayIndexKeys at "resources.<name>.source.informerd.index." {
        name: String = (required "is missing; write the name of an index there"), text,
            "name of an index there, whose values select objects";
        values: Vec<String> = (required "is missing; write for example [node-a]"), texts,
            "values of which an object must have at least one: 1 to 256, such as [node-a]";
    }
}

rows! {
    /// Part of each body to receive from another informerd.
    pub(super) struct RelayViewKeys at "resources.<name>.source.informerd.view." {
        fields: Vec<String> = empty, paths,
            "paths of the bodies to receive, such as [spec.nodeName, \"status.podIPs[].ip\"]; everything if left out";
        drop: Vec<String> = empty, paths, "paths not to receive, such as [metadata.managedFields]";
        name: Option<String>, text where value::check_not_empty,
            "a view by its name there, or @metadata, @no-status or @no-managed-fields, in place of fields and drop";
    }
}

rows! {
    /// TLS with another informerd.
    pub(super) struct RelayTlsKeys at "resources.<name>.source.informerd.tls." {
        ca: Option<PathBuf>, file,
            "for https: CA certificates in PEM to verify its certificate; the system's if left out";
        cert: Option<PathBuf>, file, "client certificate in PEM";
        key: Option<PathBuf>, file, "private key of the client certificate, in PEM";
    }
}

rows! {
    /// Index of a resource: exactly one of these keys.
    pub(super) struct IndexKeys at "resources.<name>.indexes.<index>." {
        path: Option<IndexFunc>, field_path, "index by the scalars at a path such as .spec.nodeName";
        label: Option<IndexFunc>, label, "index by the value of a label";
        expression: Option<Expression>, expression,
            "index by the result of a CEL expression over `object`: a scalar, or a list of scalars";
    }
}

rows! {
    /// View of a resource that requests may name.
    pub(super) struct ViewKeys at "resources.<name>.views.<view>." {
        fields: Vec<String> = empty, paths,
            "paths of the bodies that a client receives which names this view, such as [spec.nodeName, \"status.podIPs[].ip\"]; everything if left out; at most 32 views of a resource";
        drop: Vec<String> = empty, paths, "paths to leave out of that, such as [metadata.managedFields]";
    }
}

rows! {
    /// Bound of what clients receive of each body.
    pub(super) struct AllowedViewsKeys at "resources.<name>." {
        allowed_views: Option<Vec<String>>, view_names,
            "names of views, also of @metadata, @no-status and @no-managed-fields: each request of bodies has to name one of them, and selects by namespace, name and labels only; if left out whole bodies are served";
    }
}

rows! {
    /// Options of a resource besides its source.
    pub struct ResourceOptions at "resources.<name>." {
        drop_fields: Option<FieldCut>, field_paths,
            "fields removed from the objects of a kube, files or stream source; if left out nothing, but for kube \
             metadata.managedFields and metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']";
        ..IndexKeys;
        ..ViewKeys;
        ..AllowedViewsKeys;
        ttl: Option<Duration>, duration in "1s"..="720h",
            "stream sources only: an object that the stream has not reported for that long is deleted, with CAUSE_EXPIRED; if left out never";
        optional: bool = "false", boolean, "the server is ready also without this resource";
        allow_secrets: bool = "false", boolean,
            "serve Secrets, of a kube source of core secrets or of an informerd source of such a resource: their metadata only, unless an authorization rule allows more";
        snapshot: Option<bool>, boolean,
            "write snapshots of this resource to state_dir; if left out true, but false for Secrets";
        verify_interval: Option<Duration>, duration in "1m"..="720h",
            "interval at which the server lists the upstream a second time and compares every object with its cache, with low priority; differences are the problem VERIFY_DIFFERS; not for stream sources; if left out never";
        kubernetes: Option<KubernetesName>, kubernetes_name,
            "serve the resource at kubernetes.listen: auto, the kind of a kube source, else informerd.dev/v1/NAME; or [GROUP/]VERSION/PLURAL=KIND[,SHORT…][@cluster] such as example.com/v1/settings=Setting,set; if left out not";
        kubernetes_columns: Vec<PrinterColumn> = empty, printer_columns,
            "columns of tables (kubectl get) at kubernetes.listen after the name, in place of those of the kind: NAME[:TYPE][@wide]=PATH such as [Phase=.status.phase, 'Size:integer@wide=.spec.size', 'Age:date=.metadata.creationTimestamp'], of the types string, integer, number, boolean and date; @wide for -o wide only";
        read_only_clients: bool = "false", boolean,
            "the clients at kubernetes.listen write nothing back: otherwise a resource is refused there whose objects lack fields other than metadata.managedFields, because an update would erase them";
        authorize_as: Option<String>, text where kube::check_kind_name,
            "PLURAL or PLURAL.GROUP, such as deployments.apps, that a SubjectAccessReview names for this resource; if left out the kind of a kube source, else the resource in the group of the section";
    }
}
