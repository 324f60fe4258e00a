//! Negotiation of the form of a response (`NegotiateMediaTypeOptions` of Kubernetes).

use http::{HeaderMap, header};

use super::{
    encode::{Form, Include},
    status::Failure,
};
use crate::model::excerpt;

/// Part of an `Accept` header.
#[derive(Debug)]
struct Clause<'a> {
    media_type: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    weight: f32,
}

// === impl Form ===

impl Form {
    /// Returns the form of the most wanted type in `Accept` that is served; `None` if there is none, or it is not one of lists or of
    /// objects.
    pub(super) fn accepted(headers: &HeaderMap, is_list: bool) -> Option<Self> {
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if accept.is_empty() {
            return Some(Self::Object);
        }
        let (form, is_of_list) = by_weight(accept).iter().find_map(Self::of_type)?;
        is_of_list.is_none_or(|is_of_list| is_of_list == is_list).then_some(form)
    }

    /// Returns the form of a type, and if it is that of a list, where there are two.
    fn of_type(clause: &Clause<'_>) -> Option<(Self, Option<bool>)> {
        if !["application/json", "application/*", "*/*"].contains(&clause.media_type) {
            return None;
        }
        let of = |key: &str| clause.parameters.iter().rfind(|(found, _)| *found == key).map(|(_, value)| *value);
        match (of("as"), of("g"), of("v")) {
            (None, None, None) => Some((Self::Object, None)),
            (Some("Table"), Some("meta.k8s.io"), Some("v1")) => Some((Self::Table(Include::Metadata), None)),
            (Some("PartialObjectMetadata"), Some("meta.k8s.io"), Some("v1")) => Some((Self::Metadata, Some(false))),
            (Some("PartialObjectMetadataList"), Some("meta.k8s.io"), Some("v1")) => Some((Self::Metadata, Some(true))),
            _ => None,
        }
    }

    /// Returns the form with the part of the object that the rows of a table have.
    pub(super) fn including(self, include: &str) -> Result<Self, Failure> {
        let include = match (self, include) {
            (Self::Table(_), "None") => Include::None,
            (Self::Table(_), "Object") => Include::Object,
            (Self::Table(_), "" | "Metadata") => Include::Metadata,
            (Self::Table(_), other) => {
                return Err(Failure::bad_request(&format!("unrecognized includeObject value: {:?}", excerpt(other))));
            }
            _ => return Ok(self),
        };
        Ok(Self::Table(include))
    }
}

/// Returns the types of an `Accept` header, sorted as by the library of Kubernetes (goautoneg): the heavier and the more exact first.
fn by_weight(accept: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = Vec::new();
    for clause in accept.split(',') {
        let mut parts = clause.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
        let weight = parameters.iter().rfind(|(key, _)| *key == "q").map(|(_, value)| value.parse());
        let clause = Clause { media_type, parameters, weight: weight.map_or(1.0, Result::unwrap_or_default) };
        let is_exact = |clause: &Clause<'_>| !clause.media_type.ends_with('*');
        let goes_before = |other: &Clause<'_>| clause.weight > other.weight || is_exact(&clause) && !is_exact(other);
        // Its order has no transitivity, so the steps count.
        let place = clauses.iter().rposition(|other| !goes_before(other)).map_or(0, |last| last + 1);
        clauses.insert(place, clause);
    }
    clauses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(accept: &str, is_list: bool) -> Option<Form> {
        Form::accepted(&HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]), is_list)
    }

    #[test]
    fn the_first_served_type_is_the_form() {
        let table = Some(Form::Table(Include::Metadata));
        let partial = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                       application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
        for (accept, expected) in [
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                table,
            ),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io, application/json", Some(Form::Object)),
            (partial, Some(Form::Metadata)),
            ("application/json;as=Table;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", Some(Form::Metadata)),
            ("application/vnd.kubernetes.protobuf,application/json", Some(Form::Object)),
            ("*/*", Some(Form::Object)),
            ("", Some(Form::Object)),
            ("application/vnd.kubernetes.protobuf", None),
            ("application/cbor;q=0.9", None),
            ("application/json;v=v1", None),
        ] {
            assert_eq!(accepted(accept, true), expected, "{accept}");
        }
        assert_eq!(Form::accepted(&HeaderMap::new(), true), Some(Form::Object));
    }

    #[test]
    fn heavier_and_more_exact_types_come_first() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        for (accept, expected) in [
            (format!("application/json;q=0.5,{table}"), Form::Table(Include::Metadata)),
            (format!("application/json,{table};q=0.5"), Form::Object),
            (format!("*/*,{table};q=0.5"), Form::Table(Include::Metadata)),
            (format!("application/*, {table}"), Form::Table(Include::Metadata)),
            (format!("application/json;q=x,{table};q=0.1"), Form::Table(Include::Metadata)),
        ] {
            assert_eq!(accepted(&accept, true), Some(expected), "{accept}");
        }
    }

    #[test]
    fn the_metadata_of_a_list_is_not_that_of_an_object() {
        let partial = |kind: &str| format!("application/json;as={kind};v=v1;g=meta.k8s.io,application/json");
        for (kind, is_list) in [("PartialObjectMetadata", false), ("PartialObjectMetadataList", true)] {
            assert_eq!(accepted(&partial(kind), is_list), Some(Form::Metadata));
            assert_eq!(accepted(&partial(kind), !is_list), None, "also where another type follows");
        }
    }

    #[test]
    fn a_table_has_the_part_of_the_object_that_the_client_names() {
        let including = |include: &str| Form::Table(Include::Metadata).including(include).ok();
        assert_eq!(including("None"), Some(Form::Table(Include::None)));
        assert_eq!(including("Object"), Some(Form::Table(Include::Object)));
        assert_eq!(including(""), Some(Form::Table(Include::Metadata)));
        assert_eq!(including("x"), None);
        assert_eq!(Form::Object.including("x").ok(), Some(Form::Object));
    }
}
