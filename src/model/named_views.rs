//! Views of a resource that its operator has named.

use std::collections::BTreeMap;

use super::{View, index::is_name};

/// Views that requests may name, beside or in place of those that every server has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedViews {
    views: BTreeMap<String, View>,
    is_required: bool,
}

/// Indicates views that cannot be named.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamedViewsError {
    /// Text that is not a name.
    #[error(
        "invalid view name {name:?}: expected at most 63 lowercase letters, digits, '-', '_' and '.', with a letter or digit at \
         both ends"
    )]
    Name {
        /// Text as it was given.
        name: String,
    },
    /// View of whole bodies.
    #[error("view {name:?} has no paths; write `fields`, `drop` or both")]
    Whole {
        /// Its name.
        name: String,
    },
    /// More than [`NamedViews::MAX`].
    #[error("{count} views are more than {}", NamedViews::MAX)]
    TooMany {
        /// Their number.
        count: usize,
    },
    /// Name without a view.
    #[error("view {name:?} not found; known: {known}")]
    Unknown {
        /// Name as it was given.
        name: String,
        /// Names of all views, in one text.
        known: String,
    },
}

// === impl NamedViews ===

impl NamedViews {
    /// Maximum number of views: as many different ones as the open watches of a resource may have.
    pub const MAX: usize = 32;

    /// Returns views by name.
    ///
    /// # Errors
    ///
    /// Fails if there are too many, if a name is not of the form of the names of indexes, or if a view has no paths.
    pub fn new(views: impl IntoIterator<Item = (String, View)>) -> Result<Self, NamedViewsError> {
        let views: BTreeMap<String, View> = views.into_iter().collect();
        if views.len() > Self::MAX {
            return Err(NamedViewsError::TooMany { count: views.len() });
        }
        if let Some(name) = views.keys().find(|name| !is_name(name)) {
            return Err(NamedViewsError::Name { name: name.clone() });
        }
        if let Some((name, _)) = views.iter().find(|(_, view)| view.is_whole()) {
            return Err(NamedViewsError::Whole { name: name.clone() });
        }
        Ok(Self { views, is_required: false })
    }

    /// Returns only those of the views that have these names, of which requests have to name one: no other part of a body leaves the
    /// server.
    ///
    /// # Errors
    ///
    /// If a name is neither that of one of the views nor of one that every server has.
    pub fn required(self, names: &[String]) -> Result<Self, NamedViewsError> {
        let find = |name: &String| {
            let unknown = || NamedViewsError::Unknown { name: name.clone(), known: self.known() };
            Ok((name.clone(), self.get(name).ok_or_else(unknown)?))
        };
        Ok(Self { views: names.iter().map(find).collect::<Result<_, _>>()?, is_required: true })
    }

    /// Returns the view that a request names.
    pub fn get(&self, name: &str) -> Option<View> {
        let built_in = || if self.is_required { None } else { View::built_in(name) };
        self.views.get(name).cloned().or_else(built_in)
    }

    /// Returns true if requests of bodies have to name one of the views, and may depend on no other part of a body.
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// Returns names and views, sorted by name, without those that every server has unless one of them has to be named.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &View)> {
        self.views.iter().map(|(name, view)| (&**name, view))
    }

    /// Returns the names that a request may have, in one text.
    pub fn known(&self) -> String {
        let built_in = View::BUILT_IN.into_iter().filter(|_| !self.is_required);
        built_in.chain(self.iter().map(|(name, _)| name)).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(field: &str) -> View {
        View::parse(&[field], &[]).unwrap()
    }

    fn named(names: &[&str]) -> Result<NamedViews, NamedViewsError> {
        NamedViews::new(names.iter().map(|name| ((*name).to_owned(), view(".spec"))))
    }

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_name_is_one_of_the_operator_or_of_every_server() {
        let views = named(&["small", "a.b_c-1"]).unwrap();
        assert_eq!((views.get("small"), views.get("other")), (Some(view("spec")), None));
        assert_eq!(views.get("@metadata"), View::built_in("@metadata"));
        assert_eq!(views.known(), "@metadata, @no-managed-fields, @no-status, a.b_c-1, small");
        assert!(!views.is_required() && !NamedViews::default().is_required());
    }

    #[test]
    fn required_views_are_the_only_ones() {
        let views = named(&["small", "other"]).unwrap().required(&texts(&["small", "@no-status", "small"])).unwrap();
        assert!(views.is_required());
        assert_eq!(views.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["@no-status", "small"]);
        assert_eq!((views.get("small"), views.get("@no-status")), (Some(view("spec")), View::built_in("@no-status")));
        assert_eq!([views.get("other"), views.get("@metadata"), views.get("")], [None, None, None]);
        assert_eq!(views.known(), "@no-status, small");
        let unknown = named(&["small"]).unwrap().required(&texts(&["smal"])).unwrap_err();
        let expected = "view \"smal\" not found; known: @metadata, @no-managed-fields, @no-status, small";
        assert_eq!(unknown.to_string(), expected);
    }

    #[test]
    fn views_that_cannot_be_named_are_refused() {
        for name in ["", "@small", "Small", "-a", "a b"] {
            assert_eq!(named(&[name]), Err(NamedViewsError::Name { name: name.to_owned() }));
        }
        let whole = View::parse::<&str>(&[], &[]).unwrap();
        let error = NamedViews::new([("all".to_owned(), whole)]).unwrap_err();
        assert_eq!(error.to_string(), "view \"all\" has no paths; write `fields`, `drop` or both");
        let names: Vec<String> = (0..=NamedViews::MAX).map(|number| format!("v{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        named(&names[1..]).unwrap();
        assert_eq!(named(&names).unwrap_err().to_string(), "33 views are more than 32");
    }
}
