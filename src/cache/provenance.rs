//! Servers that a resource comes through: this one, and at a relay those before it.

use parking_lot::Mutex;

use crate::model::random_id;

/// Path of a resource through servers. The source writes it, if it is a relay's; responses report it.
#[derive(Debug)]
pub struct Provenance {
    name: String,
    upstream: Mutex<Vec<String>>,
}

// === impl Provenance ===

impl Provenance {
    /// Makes the path of a resource at this server, with a new random name.
    pub(super) fn new() -> Self {
        Self { name: format!("{:016x}", random_id()), upstream: Mutex::default() }
    }

    /// Returns the name of this resource at this server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the servers before this one, the origin first. Only a relay has any.
    pub fn set_upstream(&self, path: Vec<String>) {
        *self.upstream.lock() = path;
    }

    /// Returns the whole path, the origin first and this server last.
    pub fn path(&self) -> Vec<String> {
        let mut path = self.upstream.lock().clone();
        path.push(self.name.clone());
        path
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_name_is_new_and_stands_after_those_before_it() {
        let names: BTreeSet<String> = (0..1000).map(|_| Provenance::new().name).collect();
        assert_eq!(names.len(), 1000);
        let relay = Provenance::new();
        assert_eq!(relay.path(), [relay.name()]);
        relay.set_upstream(vec!["origin".into(), "between".into()]);
        assert_eq!(relay.path(), ["origin", "between", relay.name()]);
    }
}
