//! The `JSONPath` of kubectl: templates for `-o jsonpath`, and single paths for `-o custom-columns` and `--sort-by`.
//!
//! A path is translated to RFC 9535, and evaluated by `jsonpath_rust`. kubectl's dialect differs from it in the spelling of names: `-`
//! needs no quotes, `\.` is a dot in a name, and `['a.b']` is the path `.a.b`. What is not supported is an error, never ignored.

use std::fmt;

use jsonpath_rust::{
    parser::{model::JpQuery, parse_json_path},
    query::js_path_process,
};
use serde_json::Value;

/// Text with paths in braces, for example `{.metadata.name}{"\n"}`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Template(Vec<Node>);

/// Path to values of a document. Paths of the same text are equal.
#[derive(Clone)]
pub(crate) struct JsonPath {
    text: String,
    /// Several for a list of paths, `['metadata.name','kind']`: the values of each follow one another, as kubectl prints them.
    queries: Vec<JpQuery>,
}

#[derive(Clone, PartialEq, Eq)]
enum Node {
    Text(String),
    Path(JsonPath),
    /// `{range PATH}…{end}`: the nodes in between, for each value.
    Range(JsonPath, Vec<Node>),
}

// === impl Template ===

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    ///
    /// The problem, in one line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if !text.contains('{') {
            return Err(format!("has no path in braces, such as {{.metadata.name}}: {text:?}"));
        }
        let mut open: Vec<(JsonPath, Vec<Node>)> = Vec::new();
        let mut nodes = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            if !before.is_empty() {
                nodes.push(Node::Text(before.to_owned()));
            }
            let end = action_end(after).ok_or_else(|| format!("a brace is not closed: {{{after}"))?;
            let mut action = after[..end].trim();
            rest = &after[end + 1..];
            while !action.is_empty() {
                let (item, following) = item(action)?;
                action = following.trim_start();
                match item {
                    "range" => {
                        let path = JsonPath::parse(action)?;
                        open.push((path, std::mem::take(&mut nodes)));
                        action = "";
                    }
                    "end" => {
                        let (path, outer) = open.pop().ok_or("{end} without {range}")?;
                        let inner = std::mem::replace(&mut nodes, outer);
                        nodes.push(Node::Range(path, inner));
                    }
                    _ if item.starts_with(['"', '\'']) => nodes.push(Node::Text(unquoted(item)?)),
                    _ => nodes.push(Node::Path(JsonPath::parse(item)?)),
                }
            }
        }
        if !rest.is_empty() {
            nodes.push(Node::Text(rest.to_owned()));
        }
        if open.is_empty() { Ok(Self(nodes)) } else { Err("{range} without {end}".to_owned()) }
    }

    /// Returns the text for a document. Several values of a path are separated by blanks; what is missing is empty.
    pub(crate) fn render(&self, document: &Value) -> String {
        let mut out = String::new();
        render(&self.0, document, &mut out);
        out
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Template").field(&self.0.len()).finish()
    }
}

fn render(nodes: &[Node], document: &Value, out: &mut String) {
    for node in nodes {
        match node {
            Node::Text(text) => out.push_str(text),
            Node::Path(path) => {
                let texts: Vec<String> = path.values(document).into_iter().map(shown).collect();
                out.push_str(&texts.join(" "));
            }
            Node::Range(path, nodes) => path.values(document).into_iter().for_each(|value| render(nodes, value, out)),
        }
    }
}

/// Returns a value as kubectl prints it: texts without quotes, the others as JSON; null is empty.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Returns the index of the brace that closes an action. Braces in quotes do not count.
fn action_end(text: &str) -> Option<usize> {
    let mut quote = Quote::default();
    text.char_indices().find(|(_, c)| !quote.contains(*c) && *c == '}').map(|(at, _)| at)
}

/// Splits the first item off an action: a word, a quoted text or a path.
fn item(action: &str) -> Result<(&str, &str), String> {
    if action.starts_with(['"', '\'']) {
        let mut quote = Quote::default();
        let end = action.char_indices().find(|(_, c)| !quote.contains(*c)).map_or(action.len(), |(at, _)| at);
        // The closing quote is outside of the text.
        return match action[end..].chars().next() {
            Some(_) => Ok(action.split_at(end + 1)),
            None => Err(format!("a quote is not closed: {action}")),
        };
    }
    let (mut quote, mut depth) = (Quote::default(), 0_usize);
    let end = action.char_indices().find(|(_, c)| {
        if !quote.contains(*c) {
            match c {
                '[' | '(' => depth += 1,
                ']' | ')' => depth = depth.saturating_sub(1),
                c => return c.is_whitespace() && depth == 0,
            }
        }
        false
    });
    Ok(action.split_at(end.map_or(action.len(), |(at, _)| at)))
}

/// Returns the text of a quoted one, with its escapes resolved.
fn unquoted(quoted: &str) -> Result<String, String> {
    let inner = &quoted[1..quoted.len() - 1];
    let mut out = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('r') => out.push('\r'),
                Some(c @ ('\\' | '"' | '\'')) => out.push(c),
                _ => return Err(format!("unsupported escape in {quoted}: use \\n, \\t, \\r, \\\\, \\\" or \\'")),
            },
            c => out.push(c),
        }
    }
    Ok(out)
}

/// Quotes so far: the character of the open one, and true after a backslash in it.
#[derive(Debug, Default)]
struct Quote {
    open: Option<char>,
    is_escaped: bool,
}

// === impl Quote ===

impl Quote {
    /// Reads the next character; returns true if it is in quotes, or opens them.
    fn contains(&mut self, c: char) -> bool {
        match self.open {
            None => {
                self.open = Some(c).filter(|c| matches!(c, '"' | '\''));
                self.open.is_some()
            }
            Some(_) if self.is_escaped => {
                self.is_escaped = false;
                true
            }
            Some(quote) => {
                self.is_escaped = c == '\\';
                if c == quote {
                    self.open = None;
                }
                c != quote
            }
        }
    }
}

// === impl JsonPath ===

impl JsonPath {
    /// Parses a path as kubectl takes it: `.spec.replicas`, `{.spec.replicas}`, `spec.replicas`.
    ///
    /// # Errors
    ///
    /// The problem, in one line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let path = text.trim();
        let path = path.strip_prefix('{').and_then(|path| path.strip_suffix('}')).unwrap_or(path).trim();
        let path = path.strip_prefix(['$', '@']).unwrap_or(path);
        if path.is_empty() && text.trim().is_empty() {
            return Err("a path is missing".to_owned());
        }
        let parse = |steps: String| {
            parse_json_path(&format!("${steps}")).map_err(|_| format!("not a supported JSONPath: {text:?}"))
        };
        let queries = translate(path)?.into_iter().map(parse).collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), queries })
    }

    /// Returns the values at the path; none where something is missing.
    pub(crate) fn values<'a>(&self, document: &'a Value) -> Vec<&'a Value> {
        let found = |query| js_path_process(query, document).unwrap_or_default();
        self.queries.iter().flat_map(found).map(|found| found.val).collect()
    }
}

impl PartialEq for JsonPath {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for JsonPath {}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JsonPath").field(&self.text).finish()
    }
}

/// Largest number of paths that lists in one path stand for.
const MAX_PATHS: usize = 64;

/// Translates the steps of a path, after its root; to several for a list of paths.
fn translate(path: &str) -> Result<Vec<String>, String> {
    let mut paths = vec![String::new()];
    let append = |paths: &mut Vec<String>, text: &str| paths.iter_mut().for_each(|path| path.push_str(text));
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let end = bracket_end(inner).ok_or_else(|| format!("a bracket is not closed: {rest}"))?;
            let steps = bracket(&inner[..end])?;
            paths = paths.iter().flat_map(|path| steps.iter().map(move |step| format!("{path}{step}"))).collect();
            if paths.len() > MAX_PATHS {
                return Err(format!("lists for more than {MAX_PATHS} paths: {path:?}"));
            }
            rest = &inner[end + 1..];
            continue;
        }
        let (dots, steps) = match rest.strip_prefix("..") {
            Some(steps) => ("..", steps),
            None => ("", rest.strip_prefix('.').unwrap_or(rest)),
        };
        append(&mut paths, dots);
        if steps.starts_with('[') || (dots.is_empty() && steps.is_empty() && path == ".") {
            rest = steps;
            continue;
        }
        let (name, following) = name(steps);
        match name.as_str() {
            "" => return Err(format!("a name is missing in the path {path:?}")),
            "*" => append(&mut paths, "[*]"),
            name => append(&mut paths, &format!("[{}]", quoted(name))),
        }
        rest = following;
    }
    Ok(paths)
}

/// Splits a name off the rest of a path; `\.` is a dot of the name.
fn name(steps: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = steps.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '.' | '[' => return (name, &steps[at..]),
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            c => name.push(c),
        }
    }
    (name, "")
}

fn quoted(name: &str) -> String {
    Value::from(name).to_string()
}

/// Returns the index of the bracket that closes one.
fn bracket_end(text: &str) -> Option<usize> {
    let (mut quote, mut depth) = (Quote::default(), 0_usize);
    let end = text.char_indices().find(|(_, c)| {
        if quote.contains(*c) {
            return false;
        }
        match c {
            '[' => depth += 1,
            ']' if depth == 0 => return true,
            ']' => depth -= 1,
            _ => {}
        }
        false
    });
    end.map(|(at, _)| at)
}

/// Translates what is in brackets: indexes, slices, `*`, a filter, or paths in quotes, of which each is a step of its own.
fn bracket(inner: &str) -> Result<Vec<String>, String> {
    let inner = inner.trim();
    if let Some(filter) = inner.strip_prefix('?') {
        return Ok(vec![format!("[?{}]", self::filter(filter)?)]);
    }
    let is_name = |part: &str| part.len() > 1 && part.starts_with('\'') && part.ends_with('\'');
    let is_number = |part: &str| part.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | ':')) && !part.is_empty();
    let parts: Vec<&str> = inner.split(',').map(str::trim).collect();
    if parts.iter().all(|part| is_name(part)) {
        let paths = parts.iter().map(|part| translate(&format!(".{}", &part[1..part.len() - 1])));
        return Ok(paths.collect::<Result<Vec<_>, _>>()?.concat());
    }
    match parts.iter().find(|part| **part != "*" && !is_number(part)) {
        Some(_) => Err(format!("not an index, a slice, names in single quotes or a filter: [{inner}]")),
        None => Ok(vec![format!("[{}]", parts.join(","))]),
    }
}

/// Translates the paths in a filter, which begin with `@` or `$`.
fn filter(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let end = match c {
            '@' | '$' => {
                let steps = &rest[1..];
                let mut depth = 0_usize;
                let end = steps.find(|c: char| match c {
                    '[' => {
                        depth += 1;
                        false
                    }
                    ']' => {
                        depth = depth.saturating_sub(1);
                        false
                    }
                    c => depth == 0 && (c.is_whitespace() || matches!(c, '=' | '!' | '<' | '>' | ')' | '&' | '|')),
                });
                let end = end.unwrap_or(steps.len());
                out.push(c);
                match &*translate(&steps[..end])? {
                    [path] => out.push_str(path),
                    _ => return Err(format!("a list of paths in a filter is not supported: {text}")),
                }
                1 + end
            }
            '"' | '\'' => {
                let mut quote = Quote::default();
                let end = rest.char_indices().find(|(_, c)| !quote.contains(*c)).map_or(rest.len(), |(at, _)| at + 1);
                out.push_str(rest.get(..end).unwrap_or(rest));
                end.min(rest.len())
            }
            c => {
                out.push(c);
                c.len_utf8()
            }
        };
        rest = &rest[end..];
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pods() -> Value {
        let pod = |name: &str, ready: &str, ports: Value| {
            json!({"metadata": {"name": name, "labels": {"app.kubernetes.io/name": "web", "a-b": "c"}},
                "spec": {"containers": [{"name": "main", "ports": ports}, {"name": "side"}]},
                "status": {"conditions": [{"type": "Scheduled", "status": "True"}, {"type": "Ready", "status": ready}],
                    "restarts": 3, "big": 9_007_199_254_740_993_u64, "none": null}})
        };
        json!({"kind": "List", "items": [pod("a", "True", json!([80, 443])), pod("b", "False", json!([]))]})
    }

    fn render(template: &str) -> String {
        Template::parse(template).unwrap().render(&pods())
    }

    /// The examples of kubectl's documentation, `JSONPath` Support, and of its `jsonpath_test.go`.
    #[test]
    fn templates_print_what_kubectl_prints() {
        let table = [
            ("{.kind}", "List"),
            ("{@.kind}/{$.kind}", "List/List"),
            ("{['kind']}", "List"),
            ("kind is {.kind}.", "kind is List."),
            ("{.items[*].metadata.name}", "a b"),
            ("{.items[0].metadata.name}", "a"),
            ("{.items[-1].metadata.name}", "b"),
            ("{.items[-1:].metadata.name}", "b"),
            ("{.items[0:2].metadata.name}", "a b"),
            ("{.items[0,1].metadata.name}", "a b"),
            ("{.items[0]['metadata.name']}", "a"),
            ("{.items[0].spec.containers[*]['name','ports']}", "main side [80,443]"),
            ("{.items[*]['metadata.name','status.restarts']}", "a b 3 3"),
            ("{range .items[*]}{.metadata.name}{\"\\t\"}{.status.restarts}{\"\\n\"}{end}", "a\t3\nb\t3\n"),
            ("{range .items[*]}[{range .spec.containers[*]}{.name},{end}]{end}", "[main,side,][main,side,]"),
            ("{.items[0].metadata.labels.app\\.kubernetes\\.io/name}", "web"),
            ("{.items[0].metadata.labels.a-b}", "c"),
            ("{.items[?(@.metadata.name==\"b\")].metadata.name}", "b"),
            ("{.items[0].status.conditions[?(@.type=='Ready')].status}", "True"),
            ("{.items[*].status.conditions[?(@.type == \"Ready\")].status}", "True False"),
            ("{.items[?(@.metadata.labels.a-b==\"c\")].metadata.name}", "a b"),
            ("{.items[?(@.status.restarts>2)].metadata.name}", "a b"),
            ("{.items[0].spec.containers[?(@.ports)].name}", "main"),
            ("{..name}", "a main side b main side"),
            ("{.items[0].spec.containers[0].ports}", "[80,443]"),
            ("{.items[0].status.big}", "9007199254740993"),
            ("{.items[0].status.none}|{.nothing.there}|", "||"),
            ("{'}'}{\"{\"}", "}{"),
            ("{.kind} {.items[0].metadata.name \" \" .kind}", "List a List"),
        ];
        for (template, expected) in table {
            assert_eq!(render(template), expected, "{template}");
        }
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        for (template, problem) in [
            (".metadata.name", "no path in braces"),
            ("{.a", "not closed"),
            ("{range .items[*]}{.a}", "{range} without {end}"),
            ("{end}", "{end} without {range}"),
            ("{.items[0}", "not closed"),
            ("{.items[x]}", "not an index"),
            ("{.items[(@.length-1)]}", "not an index"),
            ("{.a[?(@['b','c']==1)]}", "a list of paths"),
            ("{.a['b',1]}", "not an index"),
            ("{.items[?(@.a ~ 'x')]}", "not a supported"),
            ("{..}", "name is missing"),
            ("{\"\\u0041\"}", "unsupported escape"),
            ("{\"x}", "not closed"),
            ("{range}", "missing"),
        ] {
            let error = Template::parse(template).unwrap_err();
            assert!(error.contains(problem), "{template}: {error}");
        }
    }

    #[test]
    fn a_path_needs_neither_braces_nor_a_dot() {
        for text in [".kind", "kind", "{.kind}", "{ .kind }", "$.kind"] {
            assert_eq!(JsonPath::parse(text).unwrap().values(&pods()), [&json!("List")], "{text}");
        }
        assert_eq!(JsonPath::parse(".").unwrap().values(&pods()).len(), 1);
        assert!(JsonPath::parse("").is_err());
    }

    proptest::proptest! {
        #![proptest_config(crate::property_config())]

        #[test]
        fn no_text_makes_it_panic(text in "[{}\\[\\]().@$?*'\"\\\\a=<:,0 -]{0,24}") {
            if let Ok(template) = Template::parse(&text) {
                template.render(&pods());
            }
        }
    }
}
