//! `informerd by-index`.

use clap::Args;

use super::{
    client_flags::{ObjectFlags, TimeoutFlags},
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

`informerd resources` shows the indexes, `informerd values` their values."
);

/// Flags of `informerd by-index`.
#[derive(Debug, Clone, Args)]
pub(super) struct ByIndexFlags {
    /// A name from `informerd resources`
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// An index of the resource
    #[arg(value_name = "INDEX")]
    index: String,
    /// A value of the index; numbers and booleans as in JSON
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    value: String,
    #[command(flatten)]
    objects: ObjectFlags,
    #[command(flatten)]
    pub(super) timeout: TimeoutFlags,
}

pub(super) async fn run(flags: &ByIndexFlags) -> Result<(), Failure> {
    let ByIndexFlags { resource, index, value, objects, .. } = flags;
    let listed = objects.server.connect().await?.by_index(&objects.query(resource), index, value).await?;
    print_listed(resource, objects, listed)
}
