//! Kinds of the resources that take part.

use std::{collections::HashSet, sync::Arc};

use super::path::Objects;
use crate::{
    cache::Snapshot,
    grpc::{ServedResource, Service},
    model::ApiKind,
};

/// Returns the kind as which a resource is served; `None` if it does not take part, or its source has not reported the kind yet
/// and no object shows it.
pub(super) fn of(resource: &ServedResource) -> Option<ApiKind> {
    let api = resource.kubernetes.as_ref()?;
    if !api.is_discovered {
        return Some(api.kind.clone());
    }
    let columns = api.kind.columns.clone();
    if let Some(kind) = resource.informer.health().api_kind() {
        return Some(ApiKind { columns, ..kind });
    }
    // After a warm start beside an API that does not answer.
    let snapshot = resource.informer.snapshot()?;
    let first = snapshot.objects(None, None).next()?;
    if first.kind().is_empty() {
        return None;
    }
    let ApiKind { group, version, plural, .. } = &api.kind;
    let namespaced = has_namespaces(&snapshot);
    Some(ApiKind { namespaced, columns, ..ApiKind::new(group, version, plural, first.kind()) })
}

fn has_namespaces(snapshot: &Snapshot) -> bool {
    snapshot.objects(None, None).next().is_some_and(|object| !object.key().namespace().is_empty())
}

/// Returns the resource that a path names, and its kind.
pub(super) fn find(service: &Service, objects: &Objects) -> Option<(Arc<ServedResource>, ApiKind)> {
    let Objects { group, version, plural, namespace, name } = objects;
    let is_named = |kind: &ApiKind| kind.group == *group && kind.version == *version && kind.plural == *plural;
    let candidate =
        |resource: &Arc<ServedResource>| resource.kubernetes.as_ref().is_some_and(|api| is_named(&api.kind));
    let resource = service.resources().find(candidate)?;
    let kind = of(&resource)?;
    // An object of a namespaced kind has one, and one of the cluster has none.
    let is_place = if kind.namespaced { !namespace.is_empty() || name.is_empty() } else { namespace.is_empty() };
    is_place.then_some((resource, kind))
}

/// Returns the kinds of these resources, each once, sorted by group, version and plural name.
pub(super) fn all(resources: &[Arc<ServedResource>]) -> Vec<ApiKind> {
    let mut kinds: Vec<ApiKind> = resources.iter().filter_map(|resource| of(resource)).collect();
    let mut seen = HashSet::new();
    kinds.retain(|kind| seen.insert((kind.group.clone(), kind.version.clone(), kind.plural.clone())));
    kinds.sort_by(|a, b| (&a.group, &a.version, &a.plural).cmp(&(&b.group, &b.version, &b.plural)));
    kinds
}
