//! Conversion of request fields to a selection; invalid and unsupported ones are rejected here.

use std::sync::Arc;

use super::{access::Access, call::Caller, resource::ServedResource, service::Service, status::ApiError};
use crate::{
    model::{
        Condition, Expression, ExpressionError, FieldSelector, IndexMatch, Indexers, KeyError, LabelSelector,
        ObjectKey, ResourceVersion, Selection,
    },
    proto::{self, pb},
};

/// Fields of a request that select objects, common to all RPCs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) label_selector: &'a str,
    pub(super) field_selector: &'a str,
    pub(super) expression: &'a str,
    pub(super) index: Option<&'a pb::IndexMatch>,
    pub(super) shard: Option<&'a pb::Shard>,
    /// Caller, for fair turns at the compiler.
    pub(super) caller: Caller,
}

/// Returns the parts of a request; without a name, which not every request has.
macro_rules! parts {
    ($request:expr, $caller:expr) => {
        $crate::grpc::query::Parts {
            namespace: &$request.namespace,
            name: "",
            label_selector: &$request.label_selector,
            field_selector: &$request.field_selector,
            expression: &$request.expression,
            index: $request.index.as_ref(),
            shard: $request.shard.as_ref(),
            caller: $caller,
        }
    };
}
pub(super) use parts;

/// Builds the selection of the parts.
pub(super) async fn selection(access: &mut Access<'_>, parts: Parts<'_>) -> Result<Selection, ApiError> {
    let resource = Arc::clone(&access.resource);
    let Parts { namespace, name, label_selector, field_selector, expression, index, shard, caller } = parts;
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let selection = Selection {
        namespace: given(namespace),
        namespaces: None,
        name: given(name),
        labels: LabelSelector::parse(label_selector).map_err(|error| ApiError::selector("label_selector", &error))?,
        fields: FieldSelector::parse(field_selector).map_err(|error| ApiError::selector("field_selector", &error))?,
        index: index.map(|index| index_match(&resource.informer.indexers(), index)).transpose()?,
        shard: shard.map(|shard| proto::shard(shard).map_err(|error| ApiError::shard(&error))).transpose()?,
        expression: None,
    };
    if selection.reads_body() || !expression.is_empty() {
        access.require_bodies("selection by other than namespace, name and labels").await?;
    }
    let selection = Selection { namespaces: access.namespaces.clone(), ..selection };
    if expression.is_empty() {
        return Ok(selection);
    }
    // Compiling takes time, so it comes last.
    let expression = self::expression(access.service, &resource, expression, caller).await?;
    Ok(Selection { expression: Some(expression), ..selection })
}

/// Compiles an expression that selects objects; its evaluation errors are counted for the resource.
async fn expression(
    service: &Service,
    resource: &ServedResource,
    text: &str,
    caller: Caller,
) -> Result<Expression, ApiError> {
    check_expressions("expression")?;
    let expression = service.inner.expressions.compile(text, caller).await?;
    let expression = expression.map_err(|error| not_compiled("expression", "", &error))?;
    Ok(expression.counted_in(&resource.informer.stats().expression_errors))
}

/// Compiles one of the conditions of an Until.
pub(super) async fn condition(
    access: &mut Access<'_>,
    at: usize,
    text: &str,
    caller: Caller,
) -> Result<Condition, ApiError> {
    check_expressions("conditions")?;
    let service = access.service;
    let located = |error| not_compiled("conditions", &format!("[{at}], "), &error);
    let condition = service.inner.conditions.compile(text, caller).await?.map_err(located)?;
    if condition.reads_body() {
        access.require_bodies("condition with `object`").await?;
    }
    Ok(condition.counted_in(&access.resource.informer.stats().expression_errors))
}

fn check_expressions(what: &'static str) -> Result<(), ApiError> {
    if Expression::IS_SUPPORTED { Ok(()) } else { Err(ApiError::NotImplemented { what }) }
}

fn not_compiled(field: &'static str, place: &str, error: &ExpressionError) -> ApiError {
    let message = format!("{place}{error}");
    match error {
        ExpressionError::Syntax(_) => ApiError::Invalid { reason: "EXPRESSION_INVALID", field, message },
        ExpressionError::NotParsed(_) => ApiError::NotParsed { field, message },
    }
}

fn index_match(indexers: &Indexers, index: &pb::IndexMatch) -> Result<IndexMatch, ApiError> {
    let func = indexers.get(&index.name).ok_or_else(|| ApiError::index("index.name", &index.name, indexers.names()))?;
    if index.values.is_empty() {
        let message = format!("index {:?} needs at least one value", index.name);
        return Err(ApiError::Invalid { reason: "INDEX_VALUES_INVALID", field: "index.values", message });
    }
    if index.values.len() > IndexMatch::MAX_VALUES {
        let (found, most) = (index.values.len(), IndexMatch::MAX_VALUES);
        let message = format!("{found} values are more than {most}; use several calls");
        return Err(ApiError::Invalid { reason: "INDEX_VALUES_INVALID", field: "index.values", message });
    }
    let values = index.values.iter().cloned().collect();
    Ok(IndexMatch { name: index.name.clone(), func: func.clone(), values })
}

/// Parses the key of an object; `field` has the name.
pub(super) fn key(field: &'static str, namespace: &str, name: &str) -> Result<ObjectKey, ApiError> {
    let invalid = |error: KeyError| ApiError::Invalid { reason: "NAME_INVALID", field, message: error.to_string() };
    ObjectKey::new(namespace, name).map_err(invalid)
}

/// Parses an optional resource version.
pub(super) fn version(field: &'static str, text: &str) -> Result<Option<ResourceVersion>, ApiError> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| ApiError::version(field, &error))
}
