//! Objects of the checker, and their encoding in each payload format.

use informerd::proto::pb::{PayloadFormat, object::Body};
use prost_types::{ListValue, Struct, value::Kind};
use serde_json::Value;

use super::view::Form;

/// Namespace and name.
pub(crate) type Key = (&'static str, &'static str);

/// Object as the script has written it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pod {
    pub(crate) key: Key,
    pub(crate) uid: u32,
    pub(crate) app: Option<&'static str>,
    pub(crate) node: Option<&'static str>,
    /// Number of the write, so that no two writes have the same body.
    pub(crate) serial: u32,
    pub(crate) padding: usize,
}

/// One state of an object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Held {
    pub(crate) pod: Pod,
    pub(crate) version: u64,
    pub(crate) body: String,
    /// True if it is small enough to be served.
    pub(crate) is_served: bool,
}

impl Pod {
    /// Returns the body as the upstream writes it.
    pub(crate) fn body(&self) -> String {
        let (namespace, name) = self.key;
        let quoted = |key: &str, value: Option<&str>| value.map(|value| format!(r#""{key}":"{value}""#));
        let labels = quoted("app", self.app).unwrap_or_default();
        let node = quoted("nodeName", self.node).map(|node| format!("{node},")).unwrap_or_default();
        format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"{namespace}","name":"{name}","uid":"u{}","labels":{{{labels}}}}},"spec":{{{node}"n":{},"padding":"{}"}}}}"#,
            self.uid,
            self.serial,
            "x".repeat(self.padding)
        )
    }
}

impl Held {
    /// Returns the body in a form.
    pub(crate) fn body(&self, form: Form) -> Option<Body> {
        match form.format {
            PayloadFormat::Raw => Some(Body::Raw(form.view.body(self).into())),
            PayloadFormat::Unspecified | PayloadFormat::Struct => {
                let body: Value = serde_json::from_str(&form.view.body(self)).expect("bodies are JSON");
                let Some(Kind::StructValue(fields)) = structured(&body).kind else { unreachable!("an object") };
                Some(Body::Struct(fields))
            }
            PayloadFormat::Metadata => None,
        }
    }
}

/// Converts a value to `google.protobuf.Value`.
fn structured(value: &Value) -> prost_types::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(is) => Kind::BoolValue(*is),
        Value::Number(number) => Kind::NumberValue(number.as_f64().expect("a number")),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(values) => Kind::ListValue(ListValue { values: values.iter().map(structured).collect() }),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), structured(value)));
            Kind::StructValue(Struct { fields: fields.collect() })
        }
    };
    prost_types::Value { kind: Some(kind) }
}
