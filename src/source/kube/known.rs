//! What is known of the API between a list and a watch: which cluster it is, and how its versions count.

use crate::{
    model::{ResourceVersion, VersionError},
    source::lineage::new_lineage,
};

/// What one source knows.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The uid of the namespace kube-system, as far as it may be read.
    cluster: Option<String>,
    /// `None` while versions are the API's own.
    lineage: Option<Place>,
    /// A list has just been read at this version.
    fresh: Option<ResourceVersion>,
}

/// Where a resource is whose versions are not decimals.
#[derive(Debug)]
struct Place {
    version: ResourceVersion,
    /// What the API says instead.
    text: String,
}

// === impl Known ===

impl Known {
    /// Takes note of the cluster.
    ///
    /// # Errors
    ///
    /// What has changed, once: from now on the new cluster is the one to be kept.
    pub(super) fn check_cluster(&mut self, uid: &str) -> Result<(), String> {
        match self.cluster.replace(uid.to_owned()) {
            Some(known) if known != uid => Err(format!("kube-system had the uid {known}, and has {uid}")),
            _ => Ok(()),
        }
    }

    /// Whether versions are the API's own.
    pub(super) fn is_decimal(&self) -> bool {
        self.lineage.is_none()
    }

    /// From now on versions are counted here.
    pub(super) fn begin_lineage(&mut self) {
        let version = ResourceVersion::of_lineage(new_lineage(), 0);
        self.lineage = Some(Place { version, text: String::new() });
    }

    /// What the API calls a version; `None` for one that it cannot be asked for any more.
    pub(super) fn text_of(&self, version: &ResourceVersion) -> Option<String> {
        match &self.lineage {
            None => version.lineage().is_none().then(|| version.to_string()),
            Some(place) => (place.version == *version && !place.text.is_empty()).then(|| place.text.clone()),
        }
    }

    /// The version of a change, which is another one than that before.
    pub(super) fn change(&mut self, text: &str) -> Result<ResourceVersion, VersionError> {
        match &mut self.lineage {
            None => text.parse(),
            Some(place) => {
                *place = Place { version: place.version.next(), text: text.to_owned() };
                Ok(place.version.clone())
            }
        }
    }

    /// The version of a state, which may be the one before.
    pub(super) fn state(&mut self, text: &str) -> Result<ResourceVersion, VersionError> {
        match &self.lineage {
            Some(place) if place.text == text && !text.is_empty() => Ok(place.version.clone()),
            _ => self.change(text),
        }
    }

    /// A list has been read: what is known before the next watch need not be asked for again.
    pub(super) fn is_read(&mut self, version: &ResourceVersion) {
        self.fresh = Some(version.clone());
    }

    /// Whether the list before this watch was the last thing that happened. Once.
    pub(super) fn is_fresh(&mut self, version: &ResourceVersion) -> bool {
        self.fresh.take().as_ref() == Some(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_cluster_is_told_once() {
        let mut known = Known::default();
        assert_eq!(known.check_cluster("a"), Ok(()));
        assert_eq!(known.check_cluster("a"), Ok(()));
        assert!(known.check_cluster("b").unwrap_err().contains("the uid a, and has b"));
        assert_eq!(known.check_cluster("b"), Ok(()));
    }

    /// Invariant 12.
    #[test]
    fn versions_are_the_apis_own_or_counted_here() {
        let mut known = Known::default();
        let version = known.change("12").unwrap();
        assert_eq!((version.to_string(), known.text_of(&version)), ("12".to_owned(), Some("12".to_owned())));
        assert!(known.change("a12").is_err());
        known.begin_lineage();
        assert_eq!(known.text_of(&version), None, "another numbering");
        let first = known.state("a12").unwrap();
        assert_eq!((known.text_of(&first).as_deref(), first.number()), (Some("a12"), 1));
        assert_eq!(known.state("a12").unwrap(), first, "nothing happened");
        let second = known.change("a12").unwrap();
        assert!(second > first && known.text_of(&first).is_none());
        let unnamed = known.state("").unwrap();
        assert!(unnamed > second && known.text_of(&unnamed).is_none(), "there is nothing to watch from");
        assert!(known.state("").unwrap() > unnamed);
    }
}
