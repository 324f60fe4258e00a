//! Text of objects and servers, made safe for a terminal.

use std::borrow::Cow;

use crate::{model::escaped, proto::pb};

/// Returns true if a terminal would not just show the character: it controls, changes the text direction, or begins a line.
pub(crate) fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Returns foreign text for one line of a terminal: characters that would control it are escaped.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    escaped(text, is_unsafe)
}

/// Returns the name by which `get` finds the object: `namespace/name`; the name alone for an object without namespace, with a
/// leading slash if the name contains one.
pub(crate) fn reference(object: &pb::Object) -> String {
    let pb::Object { namespace, name, .. } = object;
    match namespace.as_str() {
        "" if name.contains('/') => format!("/{name}"),
        "" => name.clone(),
        _ => format!("{namespace}/{name}"),
    }
}
