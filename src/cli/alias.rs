//! Singular and short names of resources, as upstreams have them: `po` for `pods`.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Code;

use super::{
    client_flags::ServerFlags,
    failure::{Failure, NOT_ALLOWED, NOT_FOUND},
};
use crate::proto::pb;

/// Flags of a command about one resource.
pub(super) trait OfResource: Clone {
    fn resource(&self) -> &str;

    fn with_resource(&self, resource: String) -> Self;

    fn server(&self) -> &ServerFlags;
}

/// Implements [`OfResource`] for flags with the field `resource`.
macro_rules! of_resource {
    ($flags:ident, $($server:ident).+) => {
        impl $crate::cli::alias::OfResource for $flags {
            fn resource(&self) -> &str {
                &self.resource
            }

            fn with_resource(&self, resource: String) -> Self {
                Self { resource, ..self.clone() }
            }

            fn server(&self) -> &$crate::cli::client_flags::ServerFlags {
                &self.$($server).+
            }
        }
    };
}
pub(super) use of_resource;

/// Time for the names of the resources.
const NAMES_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a command. If there is no resource of a name, runs it again for the one that has it as another name. A command may have
/// several names, with commas between them.
pub(super) async fn resolved<F: OfResource>(
    flags: &F,
    command: impl AsyncFn(&F) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failure = match command(flags).await {
        Err(failure) if matches!(failure.exit_code, NOT_FOUND | NOT_ALLOWED) => failure,
        ended => return ended,
    };
    let renamed = named(flags).await.filter(|found| found.resource() != flags.resource());
    let Some(flags) = renamed else { return Err(failure) };
    command(&flags).await
}

/// Returns the flags with the names of resources in place of other names, for commands that leave something behind when they fail;
/// `None` if the server does not answer.
pub(super) async fn named<F: OfResource>(flags: &F) -> Option<F> {
    let names = async {
        match flags.server().connect().await.ok()?.resources().await {
            Ok(resources) => Some(resources),
            Err(error) if matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded) => None,
            // A refusal is an answer, without names.
            Err(_) => Some(Vec::new()),
        }
    };
    let resources = timeout(NAMES_TIMEOUT, names).await.ok().flatten()?;
    let found = flags.resource().split(',').map(|name| find(&resources, name).unwrap_or(name));
    Some(flags.with_resource(found.collect::<Vec<_>>().join(",")))
}

/// Returns the only resource with this other name, unless one has it as its name.
fn find<'a>(resources: &'a [pb::Resource], alias: &str) -> Option<&'a str> {
    let mut found = resources.iter().filter(|resource| resource.aliases.iter().any(|known| known == alias));
    let is_name = resources.iter().any(|resource| resource.name == alias);
    match (found.next(), found.next()) {
        (Some(resource), None) if !is_name => Some(&resource.name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_name_stands_for_the_one_resource_that_has_it() {
        let resource = |name: &str, aliases: &[&str]| pb::Resource {
            name: name.to_owned(),
            aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
            ..pb::Resource::default()
        };
        let resources = [
            resource("pods", &["po", "pod"]),
            resource("shop-pods", &["pod"]),
            resource("deployments", &["deploy", "pods"]),
        ];
        for (alias, expected) in
            [("po", Some("pods")), ("deploy", Some("deployments")), ("pod", None), ("pods", None), ("x", None)]
        {
            assert_eq!(find(&resources, alias), expected, "{alias}");
        }
    }
}
