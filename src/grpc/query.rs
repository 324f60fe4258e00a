//! Conversion of request fields to a selection; invalid and unsupported ones are rejected here.

use std::sync::Arc;

use super::{
    access::Access, call::Caller, compiler::Compiler, resource::ServedResource, service::Service, status::ApiError,
};
use crate::{
    model::{
        Condition, Expression, ExpressionError, FieldSelector, IndexMatch, Indexers, KeyError, LabelSelector,
        ObjectKey, ResourceVersion, Selection,
    },
    proto::{self, pb},
    transport::Quota,
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
    let expression = compiled(service.compilations(), service.expressions(), text, caller).await?;
    let expression = expression.map_err(|error| not_compiled("expression", "", &error))?;
    let max_steps = service.config().expression_steps;
    Ok(expression.with_max_steps(max_steps).counted_in(&resource.informer.stats().expression_errors))
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
    let condition = compiled(service.compilations(), service.conditions(), text, caller).await?.map_err(located)?;
    if condition.reads_body() {
        access.require_bodies("condition with `object`").await?;
    }
    let max_steps = service.config().expression_steps;
    Ok(condition.with_max_steps(max_steps).counted_in(&access.resource.informer.stats().expression_errors))
}

/// Returns the cached outcome of a text, or compiles it. The number of calls that wait for the compiler is limited.
async fn compiled<T: Clone + Send + 'static>(
    waiting: &Arc<Quota>,
    compiler: &Compiler<T>,
    text: &str,
    caller: Caller,
) -> Result<Result<T, ExpressionError>, ApiError> {
    if let Some(known) = compiler.known(text) {
        return Ok(known);
    }
    let permit = waiting.take(caller.origin());
    let _permit = permit.map_err(ApiError::TooManyCompilations)?;
    Ok(compiler.compile(text, caller).await)
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;
    use crate::transport::{Exceeded, Peer};

    #[tokio::test]
    async fn a_peer_has_its_share_of_waiting_compilations() {
        static GATE: AtomicBool = AtomicBool::new(false);
        let compiler = Compiler::new(|text| {
            while !GATE.load(Ordering::SeqCst) && text != "known" {
                std::thread::yield_now();
            }
            Ok(text.to_owned())
        });
        let waiting = Quota::new(3, 67);
        let compile = |text: &'static str, host: u8| {
            let caller = Caller::new(Some(Peer::Tcp(([10, 0, 0, host], 1).into())), None);
            task::spawn(Box::pin(compiled(&waiting, &compiler, text, caller)))
        };
        compile("known", 1).await.unwrap().unwrap();
        let mut calls = [compile("a", 1), compile("b", 1), compile("c", 2)];
        for call in &mut calls {
            assert_pending!(call.poll());
        }
        let refused = |text, host| assert_ready!(compile(text, host).poll()).unwrap_err();
        assert_eq!(refused("d", 1), ApiError::TooManyCompilations(Exceeded::Share(2)));
        assert_eq!(refused("d", 2), ApiError::TooManyCompilations(Exceeded::All(3)));
        for exceeded in [Exceeded::Share(2), Exceeded::All(3)] {
            let status = ApiError::TooManyCompilations(exceeded).to_status();
            assert!(status.message().contains("limits.compilations"), "{}", status.message());
        }
        assert_eq!(assert_ready!(compile("known", 1).poll()), Ok(Ok("known".to_owned())), "it waits for nobody");
        GATE.store(true, Ordering::SeqCst);
        for call in calls {
            call.await.unwrap().unwrap();
        }
        compile("d", 1).await.unwrap().unwrap();
    }
}
