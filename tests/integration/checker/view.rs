//! Forms in which the checker's clients request objects: format, view, and whether changes outside of the view are suppressed.

use informerd::proto::pb::{self, PayloadFormat};

use super::pod::{Held, Pod};

/// Form of the objects of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Form {
    pub(crate) format: PayloadFormat,
    pub(crate) view: View,
    /// True if a Watch suppresses changes that its view does not show.
    pub(crate) only_if_changed: bool,
}

/// Part of a body.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum View {
    Whole,
    Metadata,
    Labels,
    Node,
    NameAndNode,
    /// Field that no body has, and the map that would contain it.
    Missing,
    WithoutNumber,
    WithoutLabelsAndSpec,
    /// The view drops what no body has.
    NoStatus,
}

impl Form {
    /// Returns the form with whole bodies.
    pub(crate) fn of(format: PayloadFormat) -> Self {
        Self { format, view: View::Whole, only_if_changed: false }
    }

    /// Returns the same form in another format; METADATA permits no view.
    pub(crate) fn in_format(self, format: PayloadFormat) -> Self {
        if format == PayloadFormat::Metadata { Self::of(format) } else { Self { format, ..self } }
    }

    /// Returns the form in which no change is suppressed.
    pub(crate) fn of_all_changes(self) -> Self {
        Self { only_if_changed: false, ..self }
    }

    /// Returns the view of a request.
    pub(crate) fn ask(self) -> Option<pb::View> {
        let (fields, drop, name): (&[&str], &[&str], &str) = match self.view {
            View::Whole => (&[], &[], ""),
            View::Metadata => (&[], &[], "@metadata"),
            View::Labels => (&["metadata.labels"], &[], ""),
            View::Node => (&[".spec.nodeName"], &[], ""),
            View::NameAndNode => (&["spec.nodeName", "metadata['name']", "spec.nodeName"], &[], ""),
            View::Missing => (&["spec.missing.deeper", "missing", "kind[]"], &[], ""),
            View::WithoutNumber => (&[], &["spec.n", "spec.padding"], ""),
            View::WithoutLabelsAndSpec => (&["metadata", "spec"], &["metadata.labels", "spec"], ""),
            View::NoStatus => (&[], &[], "@no-status"),
        };
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let view = pb::View {
            fields: texts(fields),
            drop: texts(drop),
            name: name.to_owned(),
            only_if_changed: self.only_if_changed,
        };
        Some(view).filter(|view| *view != pb::View::default())
    }

    /// Returns true if a client that has one state of an object must not receive the other as MODIFIED.
    pub(crate) fn suppresses(self, had: &Held, now: &Held) -> bool {
        let seen = |held: &Held| (held.pod.uid, held.pod.app, self.view.body(held));
        self.only_if_changed && seen(had) == seen(now)
    }
}

impl View {
    pub(crate) const EVERY: [Self; 9] = [
        Self::Whole,
        Self::Metadata,
        Self::Labels,
        Self::Node,
        Self::NameAndNode,
        Self::Missing,
        Self::WithoutNumber,
        Self::WithoutLabelsAndSpec,
        Self::NoStatus,
    ];

    /// Returns what it keeps of a body, written anew from what the script has written.
    pub(crate) fn body(self, held: &Held) -> String {
        let Pod { key: (namespace, name), uid, app, node, .. } = &held.pod;
        let quoted =
            |key: &str, value: Option<&str>| value.map(|value| format!(r#""{key}":"{value}""#)).unwrap_or_default();
        let (labels, node) = (quoted("app", *app), quoted("nodeName", *node));
        let named = format!(r#""namespace":"{namespace}","name":"{name}","uid":"u{uid}""#);
        let metadata = format!(r#""apiVersion":"v1","kind":"Pod","metadata":{{{named},"labels":{{{labels}}}}}"#);
        match self {
            Self::Whole | Self::NoStatus => held.body.clone(),
            Self::Metadata => format!("{{{metadata}}}"),
            Self::Labels => format!(r#"{{"metadata":{{"labels":{{{labels}}}}}}}"#),
            Self::Node => format!(r#"{{"spec":{{{node}}}}}"#),
            Self::NameAndNode => format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{{node}}}}}"#),
            Self::Missing => r#"{"spec":{}}"#.to_owned(),
            Self::WithoutNumber => format!(r#"{{{metadata},"spec":{{{node}}}}}"#),
            Self::WithoutLabelsAndSpec => format!(r#"{{"metadata":{{{named}}}}}"#),
        }
    }
}
