//! The flags that the client commands share. Their letters and their meaning are kubectl's.

use std::{
    fmt::Display,
    fs,
    io::Write,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use clap::{Args, builder::NonEmptyStringValueParser};
use prost_types::Timestamp;

use super::{
    WRONG_USAGE,
    failure::{Failure, UNAVAILABLE},
    print::{self, Color, ColumnOptions, Output, PrintOptions},
};
use crate::{
    client::{Client, Query, ServerAddress, TlsOptions},
    config::parse_duration,
    proto::pb::{self, SyncState},
};

/// Which server, and how much is said besides the data.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub(super) struct ServerFlags {
    /// The informerd to ask: `HOST:PORT`, `http://HOST:PORT`, `https://HOST:PORT` or `unix:/path/of/socket`
    #[arg(long, value_name = "URL", env = "INFORMERD_SERVER", default_value = "127.0.0.1:50051")]
    server: ServerAddress,

    /// Under https, trust what these certificates in PEM have signed [default: what this machine trusts]
    #[arg(long, value_name = "FILE", env = "INFORMERD_CERTIFICATE_AUTHORITY")]
    certificate_authority: Option<PathBuf>,

    /// Under https, the certificate in PEM that says who asks
    #[arg(long, value_name = "FILE", env = "INFORMERD_CLIENT_CERTIFICATE", requires = "client_key")]
    client_certificate: Option<PathBuf>,

    /// Its private key in PEM
    #[arg(long, value_name = "FILE", env = "INFORMERD_CLIENT_KEY", requires = "client_certificate")]
    client_key: Option<PathBuf>,

    /// No notes on stderr; errors are still told
    #[arg(short, long)]
    pub(super) quiet: bool,
}

/// How long an answer may take.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub(super) struct TimeoutFlags {
    /// Give up when the answer is not complete after this
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    timeout: Duration,
}

/// Where to look.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Selection")]
pub(super) struct ScopeFlags {
    /// Only this namespace [default: all]
    #[arg(short, long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(super) namespace: Option<String>,

    /// All namespaces, as without -n; wins over it
    #[arg(short = 'A', long)]
    pub(super) all_namespaces: bool,
}

/// Which objects.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Selection")]
pub(super) struct SelectorFlags {
    /// Only objects with these labels: `app=web`, `tier in (a,b)`, `!canary`, separated by commas
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub(super) selector: Option<String>,

    /// Only objects with these fields: `spec.nodeName=node-a`, `status.phase!=Running`, separated by commas
    #[arg(long, value_name = "FIELDS")]
    pub(super) field_selector: Option<String>,

    /// Only objects for which this CEL expression is true: `object.spec.containers.size() > 1`
    #[arg(long, value_name = "CEL")]
    pub(super) expression: Option<String>,
}

/// In which form.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct FormatFlags {
    /// The form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t)]
    pub(super) output: Output,

    /// No line with the names of the columns
    #[arg(long)]
    pub(super) no_headers: bool,

    /// When there is colour
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub(super) color: Color,
}

/// Which columns.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct ColumnFlags {
    /// A column for each of these labels; can be repeated, or separated by commas
    #[arg(short = 'L', long, value_name = "KEY", value_delimiter = ',')]
    pub(super) label_columns: Vec<String>,

    /// A column with all labels
    #[arg(long)]
    pub(super) show_labels: bool,
}

// === impl ServerFlags ===

impl ServerFlags {
    pub(super) async fn connect(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.address()?).await?)
    }

    /// A client that connects when it is first used.
    pub(super) fn connect_lazy(&self) -> Result<Client, Failure> {
        Ok(Client::connect_lazy(&self.address()?)?)
    }

    /// The server, and whom to trust.
    fn address(&self) -> Result<ServerAddress, Failure> {
        if self.certificate_authority.is_none() && self.client_certificate.is_none() {
            return Ok(self.server.clone());
        }
        let read = |path: &PathBuf| {
            fs::read(path).map_err(|error| Failure::new(WRONG_USAGE, format!("{}: {error}", path.display())))
        };
        let options = TlsOptions {
            authority: self.certificate_authority.as_ref().map(read).transpose()?,
            identity: match (&self.client_certificate, &self.client_key) {
                (Some(cert), Some(key)) => Some((read(cert)?, read(key)?)),
                _ => None,
            },
        };
        self.server.with_tls(options).ok_or_else(|| {
            let problem = format!("{} is not called under TLS: write --server https://HOST:PORT", self.server);
            Failure::new(WRONG_USAGE, problem)
        })
    }

    /// Tells something that is not data.
    pub(super) fn note(&self, note: &dyn Display) {
        if !self.quiet {
            // A closed stderr leaves nobody to tell.
            drop(writeln!(std::io::stderr(), "{}", print::escape(&note.to_string())));
        }
    }

    /// Tells that what is printed is old, if it is.
    pub(super) fn note_stale(&self, resource: &str, source: SyncState, seen_at: Option<Timestamp>) {
        if source == SyncState::Stale {
            let seen_at = seen_at.and_then(|seen_at| SystemTime::try_from(seen_at).ok());
            let age = seen_at.map(|seen_at| format!(", seen {} ago", print::age::age_of(seen_at, SystemTime::now())));
            let age = age.unwrap_or_default();
            self.note(&format_args!("# {resource}: the upstream cannot be reached; this is its last known state{age}"));
        }
    }
}

// === impl TimeoutFlags ===

impl TimeoutFlags {
    /// Waits for a call and what is done with its answer.
    pub(super) async fn limit(&self, call: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
        tokio::time::timeout(self.timeout, call).await.unwrap_or_else(|_| {
            Err(Failure::new(UNAVAILABLE, format!("no complete answer within {:?} (--timeout)", self.timeout)))
        })
    }
}

// === impl ScopeFlags ===

impl ScopeFlags {
    /// The one namespace; none for all of them.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref().filter(|_| !self.all_namespaces)
    }

    /// What an empty answer says of where was looked.
    pub(super) fn suffix(&self) -> String {
        self.namespace().map(|namespace| format!(" in namespace {namespace:?}")).unwrap_or_default()
    }
}

// === impl SelectorFlags ===

impl SelectorFlags {
    /// The objects that are asked for, with their bodies as the source gave them.
    pub(super) fn query(&self, resource: &str, scope: &ScopeFlags) -> Query {
        Query {
            namespace: scope.namespace().map(str::to_owned),
            label_selector: self.selector.clone().unwrap_or_default(),
            field_selector: self.field_selector.clone().unwrap_or_default(),
            expression: self.expression.clone().unwrap_or_default(),
            format: pb::PayloadFormat::Raw,
            ..Query::of(resource)
        }
    }

    /// The same, but only those of a name, if there is one; NAMESPACE/NAME is one object.
    pub(super) fn query_of_name(&self, resource: &str, scope: &ScopeFlags, name: Option<&str>) -> Query {
        let mut query = self.query(resource, scope);
        match name.map(|name| (name, name.split_once('/'))) {
            Some((_, Some((namespace, name)))) if query.namespace.as_deref().is_none_or(|other| other == namespace) => {
                query.name = Some(name.to_owned());
                query.namespace = Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty());
            }
            Some((name, _)) => query.name = Some(name.to_owned()),
            None => {}
        }
        query
    }

    pub(super) fn is_empty(&self) -> bool {
        self.selector.is_none() && self.field_selector.is_none() && self.expression.is_none()
    }
}

// === impl FormatFlags ===

impl FormatFlags {
    /// For what are not objects of a resource.
    pub(super) fn options(&self) -> PrintOptions {
        PrintOptions {
            output: self.output,
            columns: ColumnOptions { wide: self.output == Output::Wide, ..ColumnOptions::default() },
            no_headers: self.no_headers,
            colors: self.color.is_on(),
        }
    }

    /// For objects. The namespace is shown when more than one is looked at.
    pub(super) fn object_options(&self, columns: &ColumnFlags, scope: &ScopeFlags) -> PrintOptions {
        let mut options = self.options();
        options.columns.namespace = scope.namespace().is_none();
        options.columns.labels = columns.label_columns.iter().filter(|key| !key.is_empty()).cloned().collect();
        options.columns.show_labels = columns.show_labels;
        options
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        scope: ScopeFlags,
        #[command(flatten)]
        format: FormatFlags,
        #[command(flatten)]
        columns: ColumnFlags,
        #[command(flatten)]
        server: ServerFlags,
    }

    fn parse(arguments: &[&str]) -> Flags {
        Flags::try_parse_from([&["test"], arguments].concat()).unwrap()
    }

    fn columns(arguments: &[&str]) -> ColumnOptions {
        let flags = parse(arguments);
        flags.format.object_options(&flags.columns, &flags.scope).columns
    }

    #[test]
    fn all_namespaces_unless_one_is_named() {
        assert!(columns(&[]).namespace && columns(&["-A"]).namespace && columns(&["-n", "shop", "-A"]).namespace);
        assert!(!columns(&["-n", "shop"]).namespace);
        assert_eq!(parse(&["-n", "shop"]).scope.suffix(), " in namespace \"shop\"");
        assert_eq!(parse(&["-n", "shop", "-A"]).scope.namespace(), None);
        assert!(Flags::try_parse_from(["test", "-n", ""]).is_err(), "an empty variable of a script means no namespace");
    }

    #[test]
    fn label_columns_repeat_and_split() {
        let ColumnOptions { labels, wide, show_labels, .. } = columns(&["-L", "app,tier", "-Lx", "-o", "wide"]);
        assert_eq!(labels, ["app", "tier", "x"]);
        assert!(wide && !show_labels);
    }
}
