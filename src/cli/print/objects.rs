//! Lists of objects, in every form.

use std::{
    io::{self, Write},
    time::SystemTime,
};

use serde_json::{Value, json};

use super::{
    columns::Layout,
    json::Document,
    options::{Output, PrintOptions},
    table::Table,
    text::{escape, reference},
    yaml,
};
use crate::proto::pb;

/// Printer of successive objects; a table is written with the last, because its columns must suit all.
pub(crate) struct ObjectPrinter<'o, W> {
    out: W,
    options: &'o PrintOptions,
    count: usize,
    buffer: String,
    waiting: Vec<pb::Object>,
    /// Version of the snapshot that a List has; empty for none.
    version: String,
}

// === impl ObjectPrinter ===

impl<'o, W: Write> ObjectPrinter<'o, W> {
    pub(crate) fn new(out: W, options: &'o PrintOptions) -> Self {
        Self { out, options, count: 0, buffer: String::new(), waiting: Vec::new(), version: String::new() }
    }

    /// Returns the printer of a snapshot: a List has its version, where kubectl has it.
    pub(crate) fn at_version(self, version: String) -> Self {
        Self { version, ..self }
    }

    pub(crate) fn push(&mut self, object: pb::Object) -> io::Result<()> {
        let is_first = self.count == 0;
        self.count += 1;
        let buffer = &mut self.buffer;
        buffer.clear();
        match self.options.output {
            Output::Table | Output::Wide | Output::CustomColumns | Output::JsonPath => {
                self.waiting.push(object);
                return Ok(());
            }
            Output::Json => {
                buffer.push_str(if is_first { JSON_HEAD } else { "," });
                buffer.push_str("\n        ");
                Document::of(&object).pretty(2, buffer);
            }
            Output::Yaml => {
                buffer.push_str(if is_first { YAML_HEAD } else { "" });
                buffer.push_str("- ");
                yaml::write(&Document::of(&object), 2, buffer);
            }
            Output::Jsonl => Output::Jsonl.document(&Document::of(&object), buffer),
            Output::Name => {
                buffer.push_str(&escape(&reference(&object)));
                buffer.push('\n');
            }
        }
        self.out.write_all(buffer.as_bytes())
    }

    /// Writes the rest, and returns the number of objects.
    pub(crate) fn finish(mut self) -> io::Result<usize> {
        let version = Value::from(std::mem::take(&mut self.version));
        let has_version = version != "";
        let text = match (self.options.output, self.count) {
            (Output::Table | Output::Wide | Output::CustomColumns, 1..) => table(&self.waiting, self.options),
            (Output::JsonPath, _) => {
                let items: Vec<Value> = self.waiting.iter().map(|object| Document::of(object).value()).collect();
                let metadata = if has_version { json!({ "resourceVersion": version }) } else { json!({}) };
                let list = json!({ "apiVersion": "v1", "kind": "List", "items": items, "metadata": metadata });
                self.options.rendered(&list)
            }
            (Output::Json, count) => {
                let items = if count == 0 { format!("{JSON_HEAD}]") } else { "\n    ]".to_owned() };
                let metadata = format!(",\n    \"metadata\": {{\n        \"resourceVersion\": {version}\n    }}");
                format!("{items}{}\n}}\n", if has_version { &metadata } else { "" })
            }
            (Output::Yaml, count) => {
                let items = if count == 0 { "apiVersion: v1\nkind: List\nitems: []\n" } else { "" };
                // A JSON string is one of YAML.
                let metadata = format!("metadata:\n  resourceVersion: {version}\n");
                format!("{items}{}", if has_version { &metadata } else { "" })
            }
            _ => String::new(),
        };
        self.out.write_all(text.as_bytes())?;
        self.out.flush()?;
        Ok(self.count)
    }
}

/// Writes one object: the document in the forms for programs, otherwise a row.
pub(crate) fn write_one(object: pb::Object, mut out: impl Write, options: &PrintOptions) -> io::Result<()> {
    if let Output::Json | Output::Yaml | Output::JsonPath = options.output {
        out.write_all(options.text_of(&Document::of(&object)).as_bytes())?;
        return out.flush();
    }
    let mut printer = ObjectPrinter::new(out, options);
    printer.push(object)?;
    printer.finish().map(drop)
}

/// Writes one of several lists, each of which is complete: a document, one line of JSON, or rows after an empty line.
pub(crate) fn write_list(
    objects: Vec<pb::Object>,
    is_first: bool,
    mut out: impl Write,
    options: &PrintOptions,
) -> io::Result<()> {
    match options.output {
        Output::Jsonl => {
            let mut line = r#"{"apiVersion":"v1","kind":"List","items":["#.to_owned();
            for (number, object) in objects.iter().enumerate() {
                line.push_str(if number > 0 { "," } else { "" });
                Document::of(object).compact(&mut line);
            }
            line.push_str("]}\n");
            out.write_all(line.as_bytes())?;
            return out.flush();
        }
        Output::Yaml if !is_first => out.write_all(b"---\n")?,
        Output::Table | Output::Wide | Output::CustomColumns | Output::Name if !is_first => out.write_all(b"\n")?,
        _ => {}
    }
    let mut printer = ObjectPrinter::new(out, options);
    objects.into_iter().try_for_each(|object| printer.push(object))?;
    printer.finish().map(drop)
}

fn table(objects: &[pb::Object], options: &PrintOptions) -> String {
    let now = SystemTime::now();
    let layout = Layout::of(&Vec::from_iter(objects), &options.columns);
    let mut table = Table::default();
    if !options.no_headers {
        table.push(layout.header());
    }
    for object in objects {
        table.push(layout.row(object, now));
    }
    let mut out = String::new();
    table.write(&table.widths(), options.colors, &mut out);
    out
}

const JSON_HEAD: &str = "{\n    \"apiVersion\": \"v1\",\n    \"kind\": \"List\",\n    \"items\": [";
const YAML_HEAD: &str = "apiVersion: v1\nkind: List\nitems:\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::print::tests::{config_map, object};

    fn printed(objects: &[pb::Object], output: Output) -> String {
        let options = PrintOptions { output, ..PrintOptions::default() };
        let mut out = Vec::new();
        let mut printer = ObjectPrinter::new(&mut out, &options);
        for object in objects {
            printer.push(object.clone()).unwrap();
        }
        assert_eq!(printer.finish().unwrap(), objects.len());
        String::from_utf8(out).unwrap()
    }

    fn one(object: pb::Object, output: Output) -> String {
        let options = PrintOptions { output, ..PrintOptions::default() };
        let mut out = Vec::new();
        write_one(object, &mut out, &options).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn big() -> pb::Object {
        object(r#"{"n":9007199254740993, "metadata":{"name":"big"}}"#)
    }

    #[test]
    fn a_list_is_a_document_with_the_bodies_as_they_are() {
        let objects = [config_map("shop", "a"), big()];
        let expected = r#"{
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "namespace": "shop",
                "name": "a"
            },
            "data": {
                "a": "010",
                "n": "yes"
            }
        },
        {
            "n": 9007199254740993,
            "metadata": {
                "name": "big"
            }
        }
    ]
}
"#;
        assert_eq!(printed(&objects, Output::Json), expected);
        let yaml = "\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
  metadata:
    namespace: shop
    name: a
  data:
    a: \"010\"
    \"n\": \"yes\"
- \"n\": 9007199254740993
  metadata:
    name: big
";
        assert_eq!(printed(&objects, Output::Yaml), yaml);
        let (json, yaml): (Value, Value) =
            (serde_json::from_str(expected).unwrap(), serde_saphyr::from_str(yaml).unwrap());
        assert_eq!(json, yaml);
    }

    #[test]
    fn an_empty_list_is_still_a_document_and_an_empty_table_is_nothing() {
        let empty = json!({"apiVersion": "v1", "kind": "List", "items": []});
        assert_eq!(serde_json::from_str::<Value>(&printed(&[], Output::Json)).unwrap(), empty);
        assert_eq!(serde_saphyr::from_str::<Value>(&printed(&[], Output::Yaml)).unwrap(), empty);
        for output in [Output::Table, Output::Wide, Output::Jsonl, Output::Name] {
            assert_eq!(printed(&[], output), "");
        }
    }

    #[test]
    fn a_list_of_a_snapshot_has_its_version() {
        for (output, objects) in
            [Output::Json, Output::Yaml].map(|output| [(output, vec![]), (output, vec![big()])]).concat()
        {
            let options = PrintOptions { output, ..PrintOptions::default() };
            let mut out = Vec::new();
            let mut printer = ObjectPrinter::new(&mut out, &options).at_version("a.5".to_owned());
            for object in objects {
                printer.push(object).unwrap();
            }
            printer.finish().unwrap();
            let list: Value = serde_saphyr::from_str(&String::from_utf8(out).unwrap()).unwrap();
            assert_eq!(list["metadata"], json!({ "resourceVersion": "a.5" }));
        }
    }

    #[test]
    fn one_line_for_each_object() {
        let objects = [config_map("shop", "a"), big()];
        assert_eq!(printed(&objects, Output::Name), "shop/a\nbig\n");
        let jsonl = printed(&objects, Output::Jsonl);
        assert_eq!(jsonl.lines().nth(1), Some(r#"{"n":9007199254740993,"metadata":{"name":"big"}}"#));
        assert_eq!(jsonl.lines().count(), 2);
        assert_eq!(printed(&objects, Output::Table), "NAME   KIND\na      ConfigMap\nbig    <none>\n");
    }

    #[test]
    fn one_object_is_printed_without_a_list() {
        assert_eq!(
            one(big(), Output::Json),
            "{\n    \"n\": 9007199254740993,\n    \"metadata\": {\n        \"name\": \"big\"\n    }\n}\n"
        );
        assert_eq!(one(big(), Output::Yaml), "\"n\": 9007199254740993\nmetadata:\n  name: big\n");
        assert_eq!(one(big(), Output::Jsonl), "{\"n\":9007199254740993,\"metadata\":{\"name\":\"big\"}}\n");
        assert_eq!(one(config_map("shop", "a"), Output::Name), "shop/a\n");
        assert_eq!(one(config_map("shop", "a"), Output::Table), "NAME   DATA\na      2\n");
    }

    #[test]
    fn every_document_has_the_key_of_its_object() {
        let of = |body: &str| {
            let (namespace, name) = ("shop".to_owned(), "a".to_owned());
            one(pb::Object { namespace, name, ..object(body) }, Output::Jsonl)
        };
        let key = r#""namespace":"shop","name":"a""#;
        for (body, expected) in [
            ("{}", format!("{{\"metadata\":{{{key}}}}}")),
            (r#"{"n":1.10}"#, format!("{{\"n\":1.10,\"metadata\":{{{key}}}}}")),
            (
                r#" { "x" : "metadata" , "metadata" : { "uid" : "u" } }"#,
                format!("{{\"x\":\"metadata\",\"metadata\":{{{key},\"uid\":\"u\"}}}}"),
            ),
            (r#"{"metadata":{}}"#, format!("{{\"metadata\":{{{key}}}}}")),
            (r#"{"metadata":{"name":"b"}}"#, r#"{"metadata":{"namespace":"shop","name":"b"}}"#.to_owned()),
            (r#"{"metadata":{"namespace":"x","name":"b"}}"#, r#"{"metadata":{"namespace":"x","name":"b"}}"#.to_owned()),
            (r#"{"metadata":5}"#, r#"{"metadata":5}"#.to_owned()),
            (r#"{"metadata":null}"#, r#"{"metadata":null}"#.to_owned()),
            ("[1,2]", format!("{{{key},\"mediaType\":\"application/json\",\"value\":[1,2]}}")),
        ] {
            assert_eq!(of(body), expected + "\n", "{body}");
        }
        let text = pb::Object {
            media_type: "text/plain".to_owned(),
            body: Some(pb::object::Body::Raw(bytes::Bytes::from_static(b"hello"))),
            ..object("{}")
        };
        let expected = r#"{"data":"aGVsbG8=","mediaType":"text/plain","name":"unnamed","namespace":"","text":"hello"}"#;
        assert_eq!(one(text, Output::Jsonl), format!("{expected}\n"));
    }

    #[test]
    fn successive_lists_can_be_told_apart() {
        let written = |output| {
            let options = PrintOptions { output, ..PrintOptions::default() };
            let mut out = Vec::new();
            for (number, objects) in
                [vec![config_map("shop", "a"), big()], Vec::new(), vec![big()]].into_iter().enumerate()
            {
                write_list(objects, number == 0, &mut out, &options).unwrap();
            }
            String::from_utf8(out).unwrap()
        };
        let lists: Vec<Value> =
            written(Output::Jsonl).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let counts: Vec<_> = lists.iter().map(|list| list["items"].as_array().unwrap().len()).collect();
        assert_eq!((counts, &lists[2]["kind"]), (vec![2, 0, 1], &json!("List")));
        assert_eq!(written(Output::Name), "shop/a\nbig\n\n\nbig\n");
        assert_eq!(written(Output::Yaml).matches("---\napiVersion: v1\nkind: List\n").count(), 2);
        let json = written(Output::Json);
        let lists: Vec<Value> = serde_json::Deserializer::from_str(&json).into_iter().map(Result::unwrap).collect();
        assert_eq!(lists.len(), 3);
    }

    #[test]
    fn headers_can_be_omitted() {
        let options = PrintOptions { no_headers: true, ..PrintOptions::default() };
        let mut out = Vec::new();
        write_one(config_map("", "settings"), &mut out, &options).unwrap();
        assert_eq!(out, b"settings   2\n");
    }
}
