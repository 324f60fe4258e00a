//! Request of a client, and the objects that it selects.

use std::time::Duration;

use informerd::proto::pb::{self, FullChannelPolicy};

/// Request, speed of the reader, and selected objects.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    pub(crate) request: pb::WatchRequest,
    /// Selects objects by their values, besides the namespace of the request.
    selects: fn(&str) -> bool,
    /// Pause between two messages.
    pub(crate) pace: Duration,
}

// === impl Selection ===

impl Selection {
    /// Selects everything in one namespace, or in all, read without pauses.
    pub(crate) fn namespace(namespace: &str) -> Self {
        let request = pb::WatchRequest {
            resource: "things".to_owned(),
            namespace: namespace.to_owned(),
            format: pb::PayloadFormat::Raw.into(),
            bookmark_interval: Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 }),
            ..pb::WatchRequest::default()
        };
        Self { request, selects: |_| true, pace: Duration::ZERO }
    }

    /// Selects the same of another resource.
    pub(crate) fn resource(mut self, name: &str) -> Self {
        name.clone_into(&mut self.request.resource);
        self
    }

    pub(crate) fn labels(mut self, selector: &str, selects: fn(&str) -> bool) -> Self {
        selector.clone_into(&mut self.request.label_selector);
        Self { selects, ..self }
    }

    pub(crate) fn fields(mut self, selector: &str, selects: fn(&str) -> bool) -> Self {
        selector.clone_into(&mut self.request.field_selector);
        Self { selects, ..self }
    }

    pub(crate) fn expression(mut self, expression: &str, selects: fn(&str) -> bool) -> Self {
        expression.clone_into(&mut self.request.expression);
        Self { selects, ..self }
    }

    /// Requests no bodies.
    pub(crate) fn metadata(mut self) -> Self {
        self.request.set_format(pb::PayloadFormat::Metadata);
        self
    }

    /// Makes the client read slowly, under a policy and with a queue.
    pub(crate) fn slow(mut self, policy: FullChannelPolicy, length: u32, pace: Duration) -> Self {
        self.request.queue = Some(pb::QueueOptions { policy: policy.into(), length });
        Self { pace, ..self }
    }

    pub(crate) fn policy(&self) -> FullChannelPolicy {
        self.request.queue.as_ref().map_or(FullChannelPolicy::Replay, pb::QueueOptions::policy)
    }

    pub(crate) fn has(&self, key: &str, value: &str) -> bool {
        let namespace = key.split_once('/').map(|(namespace, _)| namespace);
        (self.request.namespace.is_empty() || namespace == Some(&*self.request.namespace)) && (self.selects)(value)
    }
}

impl Default for Selection {
    fn default() -> Self {
        Self::namespace("")
    }
}
