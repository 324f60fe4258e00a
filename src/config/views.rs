//! Views of a resource.

use super::{
    section::Section,
    table::{AllowedViewsKeys, ViewKeys},
};
use crate::model::{NamedViews, View};

/// Reads the views of one resource, and those that its requests have to name.
pub(super) fn resolve(resource: &Section<'_>) -> NamedViews {
    let section = resource.section_or_empty("views");
    let mut views = Vec::new();
    for name in section.names() {
        let Some(keys) = section.section(name) else { continue };
        let ViewKeys { fields, drop } = ViewKeys::read(&keys);
        if section.has_problem(name) {
            continue;
        }
        let Some(view) = keys.check_here(View::parse(&fields, &drop)) else { continue };
        // Checked alone first: one that cannot be named makes the call below reject all.
        if keys.check_here(NamedViews::new([(name.to_owned(), view.clone())])).is_some() {
            views.push((name.to_owned(), view));
        }
    }
    let views = section.check_here(NamedViews::new(views)).unwrap_or_default();
    let AllowedViewsKeys { allowed_views } = AllowedViewsKeys::read(resource);
    match allowed_views {
        // What is wrong with a view has been reported.
        Some(names) if !resource.has_problem("views") => {
            resource.input().check(&resource.at("allowed_views"), views.required(&names)).unwrap_or_default()
        }
        _ => views,
    }
}
