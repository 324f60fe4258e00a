//! End of a resource at a reload of the configuration.

/// Reason why a resource is no longer served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceEnd {
    /// The configuration has no such resource any more.
    Removed,
    /// The configuration has another resource of the same name.
    Replaced,
}

// === impl ResourceEnd ===

impl ResourceEnd {
    pub(super) fn message(self, resource: &str) -> String {
        match self {
            Self::Removed => {
                format!(
                    "resource {resource:?} is no longer served: the server's configuration has changed; `informerd resources` lists the others"
                )
            }
            Self::Replaced => {
                format!(
                    "resource {resource:?} has another configuration now: resume, or list again if its history is another"
                )
            }
        }
    }
}
