//! `informerd by-index`.

use clap::Args;

use super::{
    client_flags::{ColumnFlags, FormatFlags, ScopeFlags, SelectorFlags, ServerFlags, TimeoutFlags},
    failure::Failure,
    list::print_listed,
};

pub(super) const EXAMPLES: &str = super::with_exit_codes!(
    "\
Examples, with a server of examples/shop.yaml:
  informerd by-index pods node node-a
  informerd by-index pods image docker.io/envoyproxy/envoy:v1.36.2 -o wide
  informerd by-index services port 443 -o name
  informerd by-index pods node node-a --expression 'object.spec.containers.size() == 1'

`informerd resources` says which indexes there are, `informerd values` which values."
);

/// What to look up.
#[derive(Debug, Clone, Args)]
pub(super) struct ByIndexFlags {
    /// A name from `informerd resources`
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// One of its indexes
    #[arg(value_name = "INDEX")]
    index: String,
    /// A value of the index; numbers and booleans as in JSON
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    value: String,
    #[command(flatten)]
    scope: ScopeFlags,
    #[command(flatten)]
    selectors: SelectorFlags,
    #[command(flatten)]
    format: FormatFlags,
    #[command(flatten)]
    columns: ColumnFlags,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    pub(super) timeout: TimeoutFlags,
}

pub(super) async fn run(flags: &ByIndexFlags) -> Result<(), Failure> {
    let ByIndexFlags { resource, index, value, scope, selectors, format, columns, server, .. } = flags;
    let query = selectors.query(resource, scope);
    let listed = server.connect().await?.by_index(&query, index, value).await?;
    print_listed(resource, listed, &format.object_options(columns, scope), scope, server)
}
