//! Lists of records other than objects: the values of an index, the resources.

use std::io::{self, Write};

use super::{
    json::Document,
    options::{Output, PrintOptions},
    table::{Cell, Table},
    text::escape,
};

/// Record in every form.
pub(crate) struct Record {
    pub(crate) name: String,
    /// Cells, one for each column.
    pub(crate) cells: Vec<Cell>,
    pub(crate) document: Document<'static>,
}

/// Columns of long texts.
const LONG: &[&str] = &["INDEXES", "SELECTION"];

/// Writes all records. In a single document they are the array `key` of an object.
pub(crate) fn write_records(
    mut out: impl Write,
    options: &PrintOptions,
    (key, header): (&str, &[&str]),
    records: Vec<Record>,
) -> io::Result<()> {
    let mut text = String::new();
    match options.output {
        Output::Table | Output::Wide | Output::CustomColumns if records.is_empty() => {}
        Output::CustomColumns => {
            let columns = &options.columns.custom;
            let mut table = Table::default();
            if !options.no_headers {
                table.push(columns.iter().map(|column| &column.header));
            }
            for record in records {
                let document = record.document.value();
                table.push(columns.iter().map(|column| column.show(&document)));
            }
            table.write(&table.widths(), options.colors, &mut text);
        }
        Output::JsonPath => {
            let items = Document::from_items(records.into_iter().map(|record| record.document));
            text = options.rendered(&Document::from_parts([(key, items)]).value());
        }
        Output::Table | Output::Wide => {
            let mut table = Table::default();
            if !options.no_headers {
                table.push(header);
            }
            for record in records {
                table.push(record.cells);
            }
            let long = header.iter().position(|name| LONG.contains(name));
            table.write(&table.widths().at_most(options.max_width, long), options.colors, &mut text);
        }
        Output::Json | Output::Yaml => {
            let items = Document::from_items(records.into_iter().map(|record| record.document));
            options.output.document(&Document::from_parts([(key, items)]), &mut text);
        }
        Output::Jsonl => records.iter().for_each(|record| Output::Jsonl.document(&record.document, &mut text)),
        Output::Name => {
            for record in &records {
                text.push_str(&escape(&record.name));
                text.push('\n');
            }
        }
    }
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(output: Output, values: &[(&str, u64)]) -> String {
        let records = values.iter().map(|(value, objects)| Record {
            name: (*value).to_owned(),
            cells: vec![Cell::new(value), Cell::new(&objects.to_string())],
            document: Document::from_fields([("value", (*value).into()), ("objects", (*objects).into())]),
        });
        let mut out = Vec::new();
        let options = PrintOptions { output, ..PrintOptions::default() };
        write_records(&mut out, &options, ("values", &["VALUE", "OBJECTS"]), records.collect()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_output_format_has_all_records() {
        let values = [("node-a", 12), ("443", 1)];
        assert_eq!(printed(Output::Table, &values), "VALUE    OBJECTS\nnode-a   12\n443      1\n");
        assert_eq!(
            printed(Output::Yaml, &values),
            "values:\n- value: node-a\n  objects: 12\n- value: \"443\"\n  objects: 1\n"
        );
        assert_eq!(
            printed(Output::Jsonl, &values),
            "{\"value\":\"node-a\",\"objects\":12}\n{\"value\":\"443\",\"objects\":1}\n"
        );
        assert_eq!(printed(Output::Name, &values), "node-a\n443\n");
    }

    #[test]
    fn no_records_are_an_empty_document_without_a_header() {
        assert_eq!(printed(Output::Table, &[]), "");
        assert_eq!(printed(Output::Json, &[]), "{\n    \"values\": []\n}\n");
    }
}
