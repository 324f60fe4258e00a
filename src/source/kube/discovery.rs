//! Discovery of the other names of a resource: singular and short ones.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{KubeConfig, KubeSource, api::Api, client::KubeClients, resources::ApiResources};
use crate::cache::SourceHealth;

/// Delays between attempts while the API does not answer, or does not have the resource.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(60);

// === impl KubeSource ===

impl KubeSource {
    /// Requests the kind of a resource and its other names from the API, until it has them, and reports them to `health`: the
    /// definition of the resource may be installed later, and so may the rights.
    pub fn discover(
        config: &KubeConfig,
        health: SourceHealth,
        clients: &KubeClients,
    ) -> impl Future<Output = ()> + use<> {
        let client = clients.get(&config.cluster, config.contact_timeout);
        // Its failures are none of the resource.
        let api = Api::new(Arc::clone(&client), config, SourceHealth::new(Duration::MAX, Duration::MAX));
        let config = config.clone();
        async move {
            let mut delay = FIRST_DELAY;
            loop {
                match ApiResources::read(&api, &config).await {
                    Ok(resources) => {
                        if let Some(kind) = resources.api_kind(&config) {
                            health.set_api_kind(kind);
                            return health.set_aliases(resources.aliases(&config.plural));
                        }
                    }
                    Err(error) => tracing::debug!(resource = config.plural, %error, "discovery failed"),
                }
                sleep(delay).await;
                delay = (delay * 2).min(MAX_DELAY);
            }
        }
    }
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
        let aliases = |list: &[u8], plural| ApiResources::parse(list).aliases(plural);
        assert_eq!(aliases(list, "pods"), ["po", "pod"]);
        assert_eq!(aliases(list, "things"), [""], "which the health leaves out");
        assert!(aliases(list, "nothing").is_empty() && aliases(b"no JSON", "pods").is_empty());
        let health = SourceHealth::new(Duration::MAX, Duration::MAX);
        health.set_aliases(["pod", "", "po", "po"].map(str::to_owned).to_vec());
        assert_eq!(health.aliases(), ["po", "pod"]);
    }
}
