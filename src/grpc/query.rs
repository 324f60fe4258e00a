//! From the fields of requests to a selection: what cannot be served is refused here, at the door.

use std::sync::Arc;

use super::{
    compiler::Compiler,
    service::{ServedResource, Service},
    status::Refusal,
};
use crate::{
    model::{
        Condition, Expression, ExpressionError, FieldSelector, IndexMatch, Indexers, LabelSelector, ResourceVersion,
        Selection,
    },
    proto::{PayloadFormat, pb},
    transport::Peer,
};

/// As many as a requirement of a selector may have.
const MAX_INDEX_VALUES: usize = 256;

/// The parts of a request that choose objects, whatever the RPC.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) label_selector: &'a str,
    pub(super) field_selector: &'a str,
    pub(super) expression: &'a str,
    pub(super) index: Option<&'a pb::IndexMatch>,
    /// The connection, with which others take turns.
    pub(super) peer: Option<Peer>,
}

/// What the parts choose.
pub(super) async fn selection(
    service: &Service,
    resource: &ServedResource,
    parts: Parts<'_>,
) -> Result<Selection, Refusal> {
    let Parts { namespace, name, label_selector, field_selector, expression, index, peer } = parts;
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Ok(Selection {
        namespace: given(namespace),
        name: given(name),
        labels: LabelSelector::parse(label_selector).map_err(|error| Refusal::selector("label_selector", &error))?,
        fields: FieldSelector::parse(field_selector).map_err(|error| Refusal::selector("field_selector", &error))?,
        index: index.map(|index| index_match(resource.informer.indexers(), index)).transpose()?,
        // What takes time comes last.
        expression: match expression {
            "" => None,
            expression => Some(self::expression(service, resource, expression, peer).await?),
        },
    })
}

/// An expression that objects are selected by; what fails in it is counted with the resource.
async fn expression(
    service: &Service,
    resource: &ServedResource,
    text: &str,
    peer: Option<Peer>,
) -> Result<Expression, Refusal> {
    check_expressions("expression")?;
    let expression = compiled(service, service.expressions(), text, peer).await?;
    let expression = expression.map_err(|error| not_compiled("expression", "", &error))?;
    let max_steps = service.config().expression_steps;
    Ok(expression.with_max_steps(max_steps).counted_in(&resource.informer.stats().expression_errors))
}

/// One of the conditions of an Until.
pub(super) async fn condition(
    service: &Service,
    resource: &ServedResource,
    at: usize,
    text: &str,
    peer: Option<Peer>,
) -> Result<Condition, Refusal> {
    check_expressions("conditions")?;
    let located = |error| not_compiled("conditions", &format!("[{at}]: "), &error);
    let condition = compiled(service, service.conditions(), text, peer).await?.map_err(located)?;
    let max_steps = service.config().expression_steps;
    Ok(condition.with_max_steps(max_steps).counted_in(&resource.informer.stats().expression_errors))
}

/// The outcome of a text, which may wait for others.
async fn compiled<T: Clone + Send + 'static>(
    service: &Service,
    compiler: &Compiler<T>,
    text: &str,
    peer: Option<Peer>,
) -> Result<Result<T, ExpressionError>, Refusal> {
    if let Some(known) = compiler.known(text) {
        return Ok(known);
    }
    let permit = service.compilations().take(peer.as_ref().map(Peer::origin));
    let _permit = permit.map_err(Refusal::TooManyCompilations)?;
    Ok(compiler.compile(text, peer).await)
}

fn check_expressions(what: &'static str) -> Result<(), Refusal> {
    if Expression::IS_SUPPORTED { Ok(()) } else { Err(Refusal::NotImplemented { what }) }
}

fn not_compiled(field: &'static str, place: &str, error: &ExpressionError) -> Refusal {
    let message = format!("{place}{error}");
    match error {
        ExpressionError::Syntax(_) => Refusal::Invalid { reason: "EXPRESSION_INVALID", field, message },
        ExpressionError::NotParsed(_) => Refusal::NotParsed { field, message },
    }
}

fn index_match(indexers: &Arc<Indexers>, index: &pb::IndexMatch) -> Result<IndexMatch, Refusal> {
    let func = indexers.get(&index.name).ok_or_else(|| Refusal::index("index.name", &index.name, indexers.names()))?;
    if index.values.is_empty() {
        let message = format!("name at least one value of the index {:?}", index.name);
        return Err(Refusal::Invalid { reason: "INDEX_VALUES_INVALID", field: "index.values", message });
    }
    if index.values.len() > MAX_INDEX_VALUES {
        let message = format!("{} values, more than {MAX_INDEX_VALUES}; ask in several calls", index.values.len());
        return Err(Refusal::Invalid { reason: "INDEX_VALUES_INVALID", field: "index.values", message });
    }
    let values = index.values.iter().cloned().collect();
    Ok(IndexMatch { name: index.name.clone(), func: func.clone(), values })
}

/// The payload format.
pub(super) fn format(format: i32) -> Result<PayloadFormat, Refusal> {
    PayloadFormat::from_proto(format).ok_or_else(|| Refusal::Invalid {
        reason: "PAYLOAD_FORMAT_INVALID",
        field: "format",
        message: format!("there is no payload format {format}; there are STRUCT (1), RAW (2), METADATA (3)"),
    })
}

/// A version that may be left empty.
pub(super) fn version(field: &'static str, text: &str) -> Result<Option<ResourceVersion>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| Refusal::version(field, &error))
}
