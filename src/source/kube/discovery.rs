//! Discovery of the other names of a resource: singular and short ones.

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use tokio::time::sleep;

use super::{KubeConfig, KubeSource, api::Api, client::KubeClients};
use crate::cache::{SourceError, SourceHealth};

/// `metav1.APIResourceList`, as far as it is read.
#[derive(Debug, Deserialize)]
struct ApiResourceList {
    #[serde(default)]
    resources: Vec<ApiResource>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiResource {
    name: String,
    #[serde(default)]
    singular_name: String,
    #[serde(default)]
    short_names: Vec<String>,
}

/// Delays between attempts while the API does not answer.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(5 * 60);
/// Largest list of the resources of one group and version.
const MAX_BYTES: usize = 4 << 20;

// === impl KubeSource ===

impl KubeSource {
    /// Requests the other names of a resource from the API, until it answers, and reports them to `health`. After a refusal there is
    /// no other attempt, and there are no other names.
    pub fn discover(
        config: &KubeConfig,
        health: SourceHealth,
        clients: &KubeClients,
    ) -> impl Future<Output = ()> + use<> {
        let client = clients.get(&config.cluster, config.contact_timeout);
        // Its failures are none of the resource.
        let api = Api::new(Arc::clone(&client), config, SourceHealth::new(Duration::MAX, Duration::MAX));
        let KubeConfig { group, version, plural, .. } = config.clone();
        let path = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        async move {
            let mut delay = FIRST_DELAY;
            loop {
                match api.get_within(&path, MAX_BYTES).await {
                    Ok(list) => return health.set_aliases(aliases(&list, &plural)),
                    Err(error @ (SourceError::Refused(_) | SourceError::Undecodable(_))) => {
                        tracing::debug!(resource = plural, %error, "no short names");
                        return;
                    }
                    Err(_) => sleep(delay).await,
                }
                delay = (delay * 2).min(MAX_DELAY);
            }
        }
    }
}

/// Returns the singular and short names of a resource in a list; none if it is not there.
fn aliases(list: &[u8], plural: &str) -> Vec<String> {
    let Ok(ApiResourceList { resources }) = serde_json::from_slice(list) else { return Vec::new() };
    let found = resources.into_iter().find(|resource| resource.name == plural);
    found
        .map(|ApiResource { singular_name, mut short_names, .. }| {
            short_names.push(singular_name);
            short_names
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_a_resource_are_found_among_those_of_its_group() {
        let list = br#"{"kind":"APIResourceList","groupVersion":"v1","resources":[
            {"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get"],"shortNames":["po"]},
            {"name":"pods/log","singularName":"","namespaced":true,"kind":"Pod","verbs":["get"]},
            {"name":"things","namespaced":true,"kind":"Thing","verbs":["get"]}]}"#;
        assert_eq!(aliases(list, "pods"), ["po", "pod"]);
        assert_eq!(aliases(list, "things"), [""], "which the health leaves out");
        assert!(aliases(list, "nothing").is_empty() && aliases(b"no JSON", "pods").is_empty());
        let health = SourceHealth::new(Duration::MAX, Duration::MAX);
        health.set_aliases(["pod", "", "po", "po"].map(str::to_owned).to_vec());
        assert_eq!(health.aliases(), ["po", "pod"]);
    }
}
