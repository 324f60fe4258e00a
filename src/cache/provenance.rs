//! Servers that a resource comes through: this one, and at a relay those before it.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::model::random_id;

/// Path of a resource through servers: the source writes it, if it is a relay's, and responses report it. Clones share it.
#[derive(Debug, Clone)]
pub struct Provenance {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    upstream: Mutex<Vec<String>>,
}

// === impl Provenance ===

impl Provenance {
    /// Returns the name of this resource at this server.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Sets the servers before this one, the origin first. Only a relay has any.
    pub fn set_upstream(&self, path: Vec<String>) {
        *self.shared.upstream.lock() = path;
    }

    /// Returns the whole path, the origin first and this server last.
    pub fn path(&self) -> Vec<String> {
        let mut path = self.shared.upstream.lock().clone();
        path.push(self.shared.name.clone());
        path
    }
}

impl Default for Provenance {
    /// Returns the path of a resource that begins at this server, with a new random name.
    fn default() -> Self {
        let name = format!("{:016x}", random_id());
        Self { shared: Arc::new(Shared { name, upstream: Mutex::default() }) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_server_name_is_new_and_comes_last_in_the_path() {
        let names: BTreeSet<String> = (0..1000).map(|_| Provenance::default().name().to_owned()).collect();
        assert_eq!(names.len(), 1000);
        let relay = Provenance::default();
        assert_eq!(relay.path(), [relay.name()]);
        relay.set_upstream(vec!["origin".into(), "between".into()]);
        assert_eq!(relay.path(), ["origin", "between", relay.name()]);
    }
}
