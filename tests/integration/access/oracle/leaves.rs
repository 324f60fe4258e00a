//! Messages as leaves: each field with its path and its value, read from the bytes by the descriptors of the contract. So a field that
//! is added to the contract is in them, too.

use std::collections::{BTreeMap, HashMap};

use informerd::proto::pb;
use prost::{
    Message,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorSet, MethodDescriptorProto, Struct, Value,
    field_descriptor_proto::{Label, Type},
    value::Kind,
};

/// Value of each field by its path, such as `objects{x/a}.raw`. Fields that are unset, or have the default, are absent.
pub(super) type Leaves = BTreeMap<String, String>;

/// Messages and methods of the contract.
pub(super) struct Contract {
    messages: HashMap<String, DescriptorProto>,
    pub(super) methods: Vec<MethodDescriptorProto>,
}

/// Value of a field on the wire.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Messages of which several may be in one place, and the fields that name each.
const NAMED: [(&str, &[&str]); 8] = [
    ("Object", &["namespace", "name"]),
    ("Resource", &["name"]),
    ("NamedView", &["name"]),
    ("IndexValue", &["value"]),
    ("SelectionTerm", &["field"]),
    ("Watcher", &["id"]),
    ("Problem", &["subject"]),
    ("ResourceStats", &["resource"]),
];
const PACKAGE: &str = ".informerd.v1.";

impl Contract {
    pub(super) fn new() -> Self {
        let set = FileDescriptorSet::decode(pb::FILE_DESCRIPTOR_SET).unwrap();
        let files: Vec<_> = set.file.into_iter().filter(|file| file.package() == "informerd.v1").collect();
        let methods = files.iter().flat_map(|file| &file.service).flat_map(|service| service.method.clone()).collect();
        let messages = files.into_iter().flat_map(|file| file.message_type);
        Self { messages: messages.map(|message| (message.name().to_owned(), message)).collect(), methods }
    }

    /// Returns the message of a field, if its type is one of the contract and has fields of its own.
    pub(super) fn inner(&self, field: &FieldDescriptorProto) -> Option<&DescriptorProto> {
        self.messages.get(field.type_name().strip_prefix(PACKAGE)?)
    }

    pub(super) fn message(&self, name: &str) -> &DescriptorProto {
        &self.messages[name.trim_start_matches(PACKAGE)]
    }

    /// Returns the leaves of the messages of an answer together.
    pub(super) fn leaves<M: Message>(&self, kind: &str, messages: &[M]) -> Leaves {
        let mut leaves = Leaves::new();
        for message in messages {
            self.add(self.message(kind), &message.encode_to_vec(), "", &mut leaves);
        }
        leaves
    }

    fn add(&self, message: &DescriptorProto, bytes: &[u8], place: &str, leaves: &mut Leaves) {
        let values = fields(bytes);
        let of = |field: &FieldDescriptorProto| values.get(&field.number()).map_or(&[][..], Vec::as_slice);
        let named = NAMED.iter().find(|(name, _)| *name == message.name()).map(|(_, names)| *names);
        let label = |names: &[&str]| {
            let part = |name: &&str| {
                let field = message.field.iter().find(|field| field.name() == *name).unwrap();
                of(field).first().map(|value| text(field, *value)).unwrap_or_default()
            };
            names.iter().map(part).collect::<Vec<_>>().join("/")
        };
        let place = named.map_or_else(|| place.to_owned(), |names| format!("{place}{{{}}}", label(names)));
        let prefix = if place.is_empty() { place } else { format!("{place}.") };
        for field in &message.field {
            let path = format!("{prefix}{}", field.name());
            if let Some(inner) = self.inner(field).filter(|_| !is_map(message, field)) {
                for value in of(field) {
                    let Wire::Bytes(bytes) = value else { panic!("{path}: a number in place of a message") };
                    self.add(inner, bytes, &path, leaves);
                }
                continue;
            }
            let mut texts: Vec<_> = of(field).iter().map(|value| text(field, *value)).collect();
            texts.sort_unstable();
            let text = texts.join(",");
            if text.is_empty() {
                continue;
            }
            let known = leaves.entry(path).or_insert_with(|| text.clone());
            if *known != text {
                *known = format!("{known} and {text}");
            }
        }
    }
}

fn text(field: &FieldDescriptorProto, value: Wire<'_>) -> String {
    match value {
        Wire::Number(0) => String::new(),
        Wire::Number(number) => number.to_string(),
        Wire::Bytes(bytes) if field.type_name().ends_with(".Struct") => {
            let fields = Struct::decode(bytes).unwrap().fields;
            json(&Value { kind: Some(Kind::StructValue(Struct { fields })) }).to_string()
        }
        Wire::Bytes(bytes) if field.type_name().ends_with("Entry") => {
            let entry = fields(bytes);
            let part = |number| match entry.get(&number).map(Vec::as_slice) {
                Some([Wire::Bytes(bytes)]) => String::from_utf8_lossy(bytes).into_owned(),
                _ => String::new(),
            };
            format!("{}={}", part(1), part(2))
        }
        Wire::Bytes(bytes) if field.r#type() == Type::Message => format!("{} bytes", bytes.len()),
        Wire::Bytes(bytes)
            if field.label() == Label::Repeated && ![Type::String, Type::Bytes].contains(&field.r#type()) =>
        {
            let mut rest = bytes;
            let mut numbers = Vec::new();
            while !rest.is_empty() {
                numbers.push(decode_varint(&mut rest).unwrap().to_string());
            }
            numbers.join(",")
        }
        Wire::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
    }
}

fn is_map(message: &DescriptorProto, field: &FieldDescriptorProto) -> bool {
    message.nested_type.iter().any(|entry| field.type_name().ends_with(&format!(".{}", entry.name())))
}

fn fields(mut bytes: &[u8]) -> BTreeMap<i32, Vec<Wire<'_>>> {
    let mut values: BTreeMap<i32, Vec<Wire<'_>>> = BTreeMap::new();
    while !bytes.is_empty() {
        let (number, kind) = decode_key(&mut bytes).unwrap();
        let value = match kind {
            WireType::Varint => Wire::Number(decode_varint(&mut bytes).unwrap()),
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(&mut bytes).unwrap()).unwrap();
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                Wire::Bytes(value)
            }
            other => {
                skip_field(other, number, &mut bytes, DecodeContext::default()).unwrap();
                panic!("field {number}: the contract has no values of the type {other:?} yet");
            }
        };
        values.entry(number.try_into().unwrap()).or_default().push(value);
    }
    values
}

fn json(value: &Value) -> serde_json::Value {
    match value.kind.as_ref().unwrap() {
        Kind::NullValue(_) => serde_json::Value::Null,
        Kind::NumberValue(number) => serde_json::json!(number),
        Kind::StringValue(text) => text.as_str().into(),
        Kind::BoolValue(is_true) => (*is_true).into(),
        Kind::StructValue(fields) => fields.fields.iter().map(|(name, value)| (name.clone(), json(value))).collect(),
        Kind::ListValue(values) => values.values.iter().map(json).collect(),
    }
}
