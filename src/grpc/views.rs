//! Views of a resource: the part of each body that a request names, and the number of different ones that are in use.

use std::{collections::HashMap, fmt::Display, sync::Arc};

use parking_lot::Mutex;

use super::{call::Caller, status::ApiError};
use crate::{
    model::{NamedViews, View, ViewError, excerpt},
    proto::{ObjectFormat, PayloadFormat, pb},
    transport::Origin,
};

/// Views of a resource. A clone shares them.
#[derive(Debug, Clone, Default)]
pub struct ResourceViews {
    named: Arc<NamedViews>,
    open: Arc<Mutex<HashMap<ViewUse, UsedViews>>>,
}

/// View of an open watch, or of a call that reads.
#[derive(Debug)]
pub(super) struct OpenView {
    view: View,
    used_by: ViewUse,
    views: ResourceViews,
}

/// Those who may use a number of different views.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ViewUse {
    /// The open watches: each event is projected and encoded once for each view.
    Watches,
    /// The calls of a caller that read.
    Reads(Option<Origin>),
}

/// Views, each with the number of its users.
type UsedViews = HashMap<View, usize>;

/// Maximum number of different views that open watches of a resource may have, and that one caller may read with at a time.
const MAX_OPEN_VIEWS: usize = 32;

// === impl ResourceViews ===

impl ResourceViews {
    /// Returns the views of a resource, with those that its operator has named.
    pub fn new(named: Arc<NamedViews>) -> Self {
        Self { named, open: Arc::default() }
    }

    /// Returns the views that the operator has named.
    pub(super) fn named(&self) -> &NamedViews {
        &self.named
    }

    /// Returns the form of objects that a request of a resource names.
    ///
    /// # Errors
    ///
    /// If the view has no meaning, or the operator does not allow it.
    pub(super) fn format(
        &self,
        resource: &str,
        payload: PayloadFormat,
        view: Option<&pb::View>,
    ) -> Result<ObjectFormat, ApiError> {
        let is_metadata = payload == PayloadFormat::Metadata;
        let Some(view) = view else {
            // METADATA has no body.
            return if self.named.is_required() && !is_metadata {
                Err(self.not_allowed(resource))
            } else {
                Ok(payload.into())
            };
        };
        if is_metadata {
            return Err(invalid("view", "cannot be given together with METADATA; leave out one of them"));
        }
        let pb::View { fields, drop, only_if_changed, name } = view;
        let has_paths = !fields.is_empty() || !drop.is_empty();
        let view = if !name.is_empty() && has_paths {
            return Err(invalid("view.name", "cannot be given together with fields or drop; leave out one of them"));
        } else if self.named.is_required() {
            self.named.get(name).ok_or_else(|| self.not_allowed(resource))?
        } else if name.is_empty() {
            View::parse(fields, drop).map_err(|error| {
                let field = match &error {
                    ViewError::Path { list: "drop", .. } => "view.drop",
                    ViewError::Path { .. } | ViewError::TooManyPaths { .. } => "view.fields",
                };
                invalid(field, error.to_string())
            })?
        } else {
            let unknown = || {
                let known = self.named.known();
                invalid("view.name", format!("view {:?} not found; known: {known}", excerpt(name)))
            };
            self.named.get(name).ok_or_else(unknown)?
        };
        let view = Some(view).filter(|view| !view.is_whole());
        Ok(ObjectFormat { view, only_if_changed: *only_if_changed, ..payload.into() })
    }

    /// Checks that a selection or a condition may depend on whole bodies, for this part of a request.
    ///
    /// # Errors
    ///
    /// If requests have to name a view: what the view leaves out could be found out by many of them.
    pub(super) fn check_selection(&self, resource: &str, part: impl Display) -> Result<(), ApiError> {
        if !self.named.is_required() {
            return Ok(());
        }
        Err(ApiError::AccessDenied {
            message: format!(
                "resource {resource:?} serves the views {} only, and a {part} could find out what they leave out: select by namespace, \
                 name and labels",
                self.named.known()
            ),
        })
    }

    fn not_allowed(&self, resource: &str) -> ApiError {
        ApiError::ViewNotAllowed { resource: resource.to_owned(), allowed: self.named.known() }
    }

    /// Counts the view of a watch while it is open. Equal views are the same one from then on.
    ///
    /// # Errors
    ///
    /// If open watches have too many other views.
    pub(super) fn open(&self, resource: &str, format: &mut ObjectFormat) -> Result<Option<Box<OpenView>>, ApiError> {
        self.count(resource, ViewUse::Watches, format)
    }

    /// Counts the view of a call that reads, until it is over.
    ///
    /// # Errors
    ///
    /// If the caller reads with too many other views.
    pub(super) fn read(
        &self,
        resource: &str,
        caller: Caller,
        format: &mut ObjectFormat,
    ) -> Result<Option<Box<OpenView>>, ApiError> {
        self.count(resource, ViewUse::Reads(caller.origin()), format)
    }

    fn count(
        &self,
        resource: &str,
        used_by: ViewUse,
        format: &mut ObjectFormat,
    ) -> Result<Option<Box<OpenView>>, ApiError> {
        let Some(view) = &mut format.view else { return Ok(None) };
        let mut open = self.open.lock();
        let used = open.entry(used_by).or_default();
        if let Some((same, _)) = used.get_key_value(view) {
            view.clone_from(same);
        } else if used.len() >= MAX_OPEN_VIEWS {
            return Err(ApiError::TooManyViews { resource: resource.to_owned(), limit: MAX_OPEN_VIEWS });
        }
        *used.entry(view.clone()).or_default() += 1;
        Ok(Some(Box::new(OpenView { view: view.clone(), used_by, views: self.clone() })))
    }
}

impl Drop for OpenView {
    fn drop(&mut self) {
        let mut open = self.views.open.lock();
        let Some(used) = open.get_mut(&self.used_by) else { return };
        if let Some(users) = used.get_mut(&self.view) {
            *users -= 1;
            if *users == 0 {
                used.remove(&self.view);
            }
        }
        if used.is_empty() {
            open.remove(&self.used_by);
        }
    }
}

fn invalid(field: &'static str, message: impl Into<String>) -> ApiError {
    ApiError::Invalid { reason: "VIEW_INVALID", field, message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Peer;

    fn view(fields: &[&str], drop: &[&str], name: &str) -> pb::View {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        pb::View { fields: texts(fields), drop: texts(drop), name: name.to_owned(), only_if_changed: false }
    }

    fn format(payload: PayloadFormat, view: Option<&pb::View>) -> Result<ObjectFormat, ApiError> {
        ResourceViews::default().format("pods", payload, view)
    }

    fn refusal(payload: PayloadFormat, view: &pb::View) -> String {
        let error = format(payload, Some(view)).unwrap_err();
        assert_eq!(error.code_and_reason(), (tonic::Code::InvalidArgument, "VIEW_INVALID"));
        error.to_status().message().to_owned()
    }

    #[test]
    fn an_invalid_view_is_refused_with_its_field() {
        let raw = PayloadFormat::Raw;
        assert!(refusal(raw, &view(&["a["], &[], "")).starts_with("view.fields, character 3: expected '*', an index"));
        assert!(refusal(raw, &view(&["a"], &["b", ""], "")).starts_with("view.drop, character 1: expected a key"));
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
        assert_eq!(format(PayloadFormat::Raw, Some(&view(&[], &[], ""))), Ok(PayloadFormat::Raw.into()));
        assert_eq!(format(PayloadFormat::Metadata, None), Ok(PayloadFormat::Metadata.into()));
        let built_in = format(PayloadFormat::Struct, Some(&view(&[], &[], "@no-status"))).unwrap();
        assert_eq!(built_in.view, View::built_in("@no-status"));
    }

    fn named(required: Option<&[&str]>) -> ResourceViews {
        let view = |field: &str| View::parse(&[field], &[]).unwrap();
        let views = ["small", "other"].map(|name| (name.to_owned(), view(name)));
        let views = NamedViews::new(views).unwrap();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        ResourceViews::new(Arc::new(match required {
            Some(required) => views.required(&names(required)).unwrap(),
            None => views,
        }))
    }

    #[test]
    fn a_view_of_the_operator_is_found_by_its_name() {
        let views = named(None);
        let found = views.format("pods", PayloadFormat::Raw, Some(&view(&[], &[], "small"))).unwrap();
        assert_eq!(found.view, View::parse(&["small"], &[]).ok());
        assert_eq!(views.format("pods", PayloadFormat::Raw, None), Ok(PayloadFormat::Raw.into()));
        let unknown = views.format("pods", PayloadFormat::Raw, Some(&view(&[], &[], "smal"))).unwrap_err().to_status();
        let expected =
            "view.name: view \"smal\" not found; known: @metadata, @no-managed-fields, @no-status, other, small";
        assert_eq!(unknown.message(), expected);
        assert_eq!(views.check_selection("pods", "condition"), Ok(()));
    }

    #[test]
    fn where_views_are_required_a_request_names_one_of_them() {
        let views = named(Some(&["small", "@metadata"]));
        let of = |payload, view: Option<pb::View>| views.format("pods", payload, view.as_ref());
        let raw = PayloadFormat::Raw;
        for name in ["small", "@metadata"] {
            assert_eq!(of(raw, Some(view(&[], &[], name))).unwrap().view, views.named.get(name), "{name}");
        }
        assert_eq!(of(PayloadFormat::Metadata, None), Ok(PayloadFormat::Metadata.into()));
        let others = [
            None,
            Some(view(&[], &[], "")),
            Some(view(&["small"], &[], "")),
            Some(view(&["a["], &[], "")),
            Some(view(&[], &["spec"], "")),
            Some(view(&[], &[], "other")),
            Some(view(&[], &[], "@no-status")),
            Some(view(&[], &[], "unknown")),
        ];
        for other in others {
            let refusal = of(raw, other).unwrap_err();
            assert_eq!(refusal.code_and_reason(), (tonic::Code::PermissionDenied, "VIEW_NOT_ALLOWED"));
            let message =
                "view.name: resource \"pods\" serves views only: name one of @metadata, small, or request METADATA";
            assert_eq!(refusal.to_status().message(), message);
        }
        let both = of(raw, Some(view(&["small"], &[], "small"))).unwrap_err();
        assert_eq!(both.code_and_reason().1, "VIEW_INVALID");
        assert_eq!(
            of(PayloadFormat::Metadata, Some(view(&[], &[], "small"))).unwrap_err().code_and_reason().1,
            "VIEW_INVALID"
        );
        let refusal = views.check_selection("pods", "selection by a field").unwrap_err();
        assert_eq!(refusal.code_and_reason(), (tonic::Code::PermissionDenied, "ACCESS_DENIED"));
        assert_eq!(
            refusal.to_status().message(),
            "resource \"pods\" serves the views @metadata, small only, and a selection by a field could find out what they leave out: \
             select by namespace, name and labels"
        );
    }

    #[test]
    fn distinct_views_of_open_watches_are_limited() {
        let views = ResourceViews::default();
        let open = |path: &str| {
            let mut format = format(PayloadFormat::Raw, Some(&view(&[path], &[], ""))).unwrap();
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

    #[test]
    fn distinct_views_that_a_caller_reads_with_are_limited() {
        let views = ResourceViews::default();
        let at = |host| Caller::new(Some(Peer::Tcp(([10, 0, 0, host], 1).into())), None);
        let read = |caller, path: &str| {
            let mut format = format(PayloadFormat::Raw, Some(&view(&[path], &[], ""))).unwrap();
            views.read("pods", caller, &mut format)
        };
        let held: Vec<_> = (0..MAX_OPEN_VIEWS).map(|n| read(at(1), &format!("f{n}")).unwrap()).collect();
        let refusal = read(at(1), "other").unwrap_err();
        assert_eq!(refusal.code_and_reason(), (tonic::Code::ResourceExhausted, "VIEW_LIMIT"));
        read(at(1), "f0").unwrap();
        read(at(2), "other").unwrap();
        drop(held);
        assert!(views.open.lock().is_empty());
    }
}
