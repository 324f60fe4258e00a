//! Views of a resource: the part of each body that a request names, and the number of different ones that its watches use.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use super::status::ApiError;
use crate::{
    model::{View, ViewError, excerpt},
    proto::{ObjectFormat, PayloadFormat, pb},
};

/// Views of a resource. A clone shares them.
#[derive(Debug, Clone, Default)]
pub struct ResourceViews {
    /// Views of the open watches, each with their number.
    open: Arc<Mutex<HashMap<View, usize>>>,
}

/// View of an open watch.
#[derive(Debug)]
pub(super) struct OpenView {
    view: View,
    views: ResourceViews,
}

/// Maximum number of different views that open watches of a resource may have: each event is projected and encoded once for each.
const MAX_OPEN_VIEWS: usize = 32;

// === impl ResourceViews ===

impl ResourceViews {
    /// Returns the form of objects that a request names.
    ///
    /// # Errors
    ///
    /// If the view has no meaning.
    pub(super) fn format(payload: PayloadFormat, view: Option<&pb::View>) -> Result<ObjectFormat, ApiError> {
        let Some(view) = view else { return Ok(payload.into()) };
        if payload == PayloadFormat::Metadata {
            return Err(invalid("view", "cannot be given together with METADATA; leave out one of them"));
        }
        let pb::View { fields, drop, only_if_changed, name } = view;
        let view = if name.is_empty() {
            View::parse(fields, drop).map_err(|error| {
                let field = match &error {
                    ViewError::Path { list: "drop", .. } => "view.drop",
                    ViewError::Path { .. } | ViewError::TooManyPaths { .. } => "view.fields",
                };
                invalid(field, error.to_string())
            })?
        } else if !fields.is_empty() || !drop.is_empty() {
            return Err(invalid("view.name", "cannot be given together with fields or drop; leave out one of them"));
        } else {
            let unknown = || {
                let known = View::BUILT_IN.join(", ");
                invalid("view.name", format!("view {:?} not found; known: {known}", excerpt(name)))
            };
            View::built_in(name).ok_or_else(unknown)?
        };
        let view = Some(view).filter(|view| !view.is_whole());
        Ok(ObjectFormat { payload, view, only_if_changed: *only_if_changed })
    }

    /// Counts the view of a watch while it is open. Equal views are the same one from then on.
    ///
    /// # Errors
    ///
    /// If open watches have too many other views.
    pub(super) fn open(&self, resource: &str, format: &mut ObjectFormat) -> Result<Option<OpenView>, ApiError> {
        let Some(view) = &mut format.view else { return Ok(None) };
        let mut open = self.open.lock();
        if let Some((same, _)) = open.get_key_value(view) {
            view.clone_from(same);
        } else if open.len() >= MAX_OPEN_VIEWS {
            return Err(ApiError::TooManyViews { resource: resource.to_owned(), limit: MAX_OPEN_VIEWS });
        }
        *open.entry(view.clone()).or_default() += 1;
        Ok(Some(OpenView { view: view.clone(), views: self.clone() }))
    }
}

impl Drop for OpenView {
    fn drop(&mut self) {
        let mut open = self.views.open.lock();
        if let Some(watches) = open.get_mut(&self.view) {
            *watches -= 1;
            if *watches == 0 {
                open.remove(&self.view);
            }
        }
    }
}

fn invalid(field: &'static str, message: impl Into<String>) -> ApiError {
    ApiError::Invalid { reason: "VIEW_INVALID", field, message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(fields: &[&str], drop: &[&str], name: &str) -> pb::View {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        pb::View { fields: texts(fields), drop: texts(drop), name: name.to_owned(), only_if_changed: false }
    }

    fn refusal(payload: PayloadFormat, view: &pb::View) -> String {
        let error = ResourceViews::format(payload, Some(view)).unwrap_err();
        assert_eq!(error.code_and_reason(), (tonic::Code::InvalidArgument, "VIEW_INVALID"));
        error.to_status().message().to_owned()
    }

    #[test]
    fn an_invalid_view_is_refused_with_its_field() {
        let raw = PayloadFormat::Raw;
        assert!(refusal(raw, &view(&["a["], &[], "")).starts_with("view.fields: expected '*', an index"));
        assert!(refusal(raw, &view(&["a"], &["b", ""], "")).starts_with("view.drop: expected a key"));
        assert!(refusal(raw, &view(&["a"; 65], &[], "")).starts_with("view.fields: 65 paths are more than 64;"));
        let both = "view.name: cannot be given together with fields or drop; leave out one of them";
        assert_eq!(refusal(raw, &view(&["a"], &[], "@metadata")), both);
        assert_eq!(refusal(raw, &view(&[], &["a"], "@metadata")), both);
        let unknown = "view.name: view \"small\" not found; known: @metadata, @no-managed-fields, @no-status";
        assert_eq!(refusal(raw, &view(&[], &[], "small")), unknown);
        let metadata = "view: cannot be given together with METADATA; leave out one of them";
        assert_eq!(refusal(PayloadFormat::Metadata, &view(&["a"], &[], "")), metadata);
    }

    #[test]
    fn a_view_of_everything_is_none() {
        assert_eq!(ResourceViews::format(PayloadFormat::Raw, Some(&view(&[], &[], ""))), Ok(PayloadFormat::Raw.into()));
        assert_eq!(ResourceViews::format(PayloadFormat::Metadata, None), Ok(PayloadFormat::Metadata.into()));
        let built_in = ResourceViews::format(PayloadFormat::Struct, Some(&view(&[], &[], "@no-status"))).unwrap();
        assert_eq!(built_in.view, View::built_in("@no-status"));
    }

    #[test]
    fn distinct_views_of_open_watches_are_limited() {
        let views = ResourceViews::default();
        let open = |path: &str| {
            let mut format = ResourceViews::format(PayloadFormat::Raw, Some(&view(&[path], &[], ""))).unwrap();
            views.open("pods", &mut format)
        };
        let mut held: Vec<_> = (0..MAX_OPEN_VIEWS).map(|n| open(&format!("f{n}")).unwrap()).collect();
        held.push(open("f0").unwrap());
        let refusal = open("other").unwrap_err();
        assert_eq!(refusal.code_and_reason(), (tonic::Code::ResourceExhausted, "VIEW_LIMIT"));
        drop(held.pop());
        open("other").unwrap_err();
        drop(held.pop());
        assert!(open("other").unwrap().is_some());
        assert!(views.open("pods", &mut PayloadFormat::Raw.into()).unwrap().is_none(), "whole bodies");
        drop(held);
        assert!(views.open.lock().is_empty());
    }
}
