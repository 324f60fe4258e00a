//! Weighs the modules: lines of code, fields of a struct, files of a folder and `pub(crate)` items, against the table in `ceilings`.

mod ceilings;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use self::ceilings::{CEILINGS, STEP, WIDE_FOLDERS, WIDE_STRUCTS};
use super::sources;

const MAX_FIELDS: usize = 16;
const MAX_FILES: usize = 20;
/// Number of `pub(crate)` items by which a row may be too high.
const SLACK: usize = 5;

/// Attributes of what is compiled for tests and fuzz targets only.
const TEST_ATTRIBUTES: &[&str] = &["#[cfg(test)]", "#[cfg(all(test", "#[cfg(any(test, fuzzing))]"];

/// Returns the text with comments removed, and with `s` for each character of a literal; lines stay lines.
fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_in_word = code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = literal(rest, is_in_word) {
            code.extend(rest[..length].chars().map(|c| if c == '\n' { c } else { 's' }));
            rest = &rest[length..];
            continue;
        } else {
            code.push(first);
            first.len_utf8()
        };
        if rest.starts_with("/*") {
            code.extend(rest[..length].chars().filter(|c| *c == '\n'));
        }
        rest = &rest[length..];
    }
    code
}

/// Returns the length of the text or character literal at the beginning of a code, if there is one; a lifetime is none.
fn literal(code: &str, is_in_word: bool) -> Option<usize> {
    let opening = code.trim_start_matches(['b', 'c', 'r']);
    let prefix = code.len() - opening.len();
    let hashes = opening.len() - opening.trim_start_matches('#').len();
    let is_raw = code[..prefix].ends_with('r');
    if prefix <= 2 && !(prefix > 0 && is_in_word) && (hashes == 0 || is_raw) && opening[hashes..].starts_with('"') {
        let begin = prefix + hashes + 1;
        if is_raw {
            let end = format!("\"{}", "#".repeat(hashes));
            return code[begin..].find(&end).map(|at| begin + at + end.len());
        }
        let mut is_escaped = false;
        let end = code[begin..].find(|c| {
            let is_end = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        });
        return end.map(|at| begin + at + 1);
    }
    let character = code.strip_prefix('\'')?;
    let length = if character.starts_with("\\u") {
        character.find('}')? + 1
    } else if character.starts_with('\\') {
        if character.starts_with("\\x") { 4 } else { 2 }
    } else {
        character.chars().next()?.len_utf8()
    };
    character.get(length..)?.starts_with('\'').then_some(length + 2)
}

/// Returns the code without what is compiled for tests only, and the names of the modules among that which are files.
fn without_tests(mut code: String) -> (String, Vec<String>) {
    let mut modules = Vec::new();
    while let Some(at) = TEST_ATTRIBUTES.iter().filter_map(|attribute| code.find(attribute)).min() {
        let item = at + code[at..].find(']').expect("an attribute ends") + 1;
        let end = item + length_of_item(&code[item..]);
        let words: Vec<&str> = code[item..end].split_whitespace().collect();
        if let [.., "mod", name] = words.as_slice() {
            modules.extend(name.strip_suffix(';').map(str::to_owned));
        }
        let lines = "\n".repeat(code[at..end].matches('\n').count());
        code.replace_range(at..end, &lines);
    }
    (code, modules)
}

/// Returns the length of an item, a statement, a field or a variant.
fn length_of_item(code: &str) -> usize {
    let mut depth = 0_i32;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return at,
            ')' | ']' => depth -= 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return if code[at + 1..].starts_with(';') { at + 2 } else { at + 1 };
                }
            }
            ';' | ',' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// Returns the structs of a code with the number of their fields, also those of `rows!`.
fn structs(code: &str) -> Vec<(String, usize)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut structs = Vec::new();
    for (at, _) in code.match_indices("struct ") {
        let rest = &code[at + "struct ".len()..];
        let name: String = rest.chars().take_while(|c| is_word(*c)).collect();
        let Some(open) = rest.find(['{', ';', '(']).filter(|open| rest[*open..].starts_with('{')) else { continue };
        if code[..at].ends_with(is_word) || name.is_empty() {
            continue;
        }
        let (mut depth, mut fields) = (0_i32, 0);
        for line in rest[open..].lines() {
            fields += usize::from(depth == 1 && is_field(line));
            let turn = |c| i32::from(matches!(c, '{' | '(' | '[')) - i32::from(matches!(c, '}' | ')' | ']'));
            depth += line.chars().map(turn).sum::<i32>();
            if depth <= 0 {
                break;
            }
        }
        structs.push((name, fields));
    }
    structs
}

/// Returns true if a line begins with the name of a field, perhaps with that of its key in parentheses.
fn is_field(line: &str) -> bool {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')').map_or("", |(_, rest)| rest).trim_start(),
        Some(rest) if rest.starts_with(' ') => rest.trim_start(),
        _ => line,
    };
    let rest = line.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
    let after = match rest.strip_prefix(" (") {
        Some(key) => key.split_once(')').map_or("", |(_, rest)| rest),
        None => rest,
    };
    rest.len() < line.len() && after.starts_with(':') && !after.starts_with("::")
}

/// Files of the product by their paths, each with its module and its code.
fn product() -> BTreeMap<PathBuf, (String, String)> {
    let (mut files, mut tests) = (BTreeMap::new(), BTreeSet::new());
    for source in sources() {
        let (code, modules) = without_tests(without_comments(&source.text));
        let is_root = source.path == Path::new("src/lib.rs") || source.path == Path::new("src/main.rs");
        let folder = if is_root { PathBuf::from("src") } else { source.path.with_extension("") };
        tests.extend(modules.iter().map(|module| folder.join(module)));
        files.insert(source.path, (source.module, code));
    }
    files.retain(|path, _| !path.with_extension("").ancestors().any(|folder| tests.contains(folder)));
    files
}

fn lines_of(code: &str) -> usize {
    code.lines().filter(|line| !line.trim().is_empty()).count()
}

#[test]
fn the_weight_of_a_text_is_that_of_its_code() {
    let text = "//! A.\n\n/* b\n */\nuse c::{D, E};\n\n/// F. // g\n#[cfg(test)]\nmod h;\npub struct I<'a> {\n    pub(crate) j: &'a str, // k\n    \
                pub l: fn(\n        m: N,\n    ),\n    o (\"p\"): Q,\n}\nfn r() -> char { let _ = (\"// {\", r#\"\"s\"#, '\"', '\\''); '{' }\n\
                #[cfg(test)]\nmod tests {\n    fn t() { u(\"}\") }\n}\n";
    let (code, modules) = without_tests(without_comments(text));
    assert_eq!(modules, ["h"]);
    assert_eq!(structs(&code), [("I".to_owned(), 3)]);
    assert_eq!(lines_of(&code), 9, "{code}");
}

/// A module may not outgrow its row, and its row comes down with it.
#[test]
fn no_module_is_heavier_than_its_ceiling() {
    let (mut lines, mut items) = (BTreeMap::<&str, usize>::new(), BTreeMap::<&str, usize>::new());
    let files = product();
    for (module, code) in files.values() {
        *lines.entry(module).or_default() += lines_of(code);
        *items.entry(module).or_default() += code.matches("pub(crate)").count();
    }
    let counted: Vec<&str> = lines.keys().copied().collect();
    let listed: Vec<&str> = CEILINGS.iter().map(|(module, ..)| *module).collect();
    assert_eq!(counted, listed, "a module needs a row in `ceilings.rs`");
    let mut found = Vec::new();
    for (module, most_lines, most_items) in CEILINGS {
        let (lines, items) = (lines[module], items[module]);
        if lines > *most_lines {
            found.push(format!(
                "{module}: {lines} lines of code, at most {most_lines}: write less, or raise it and say why"
            ));
        }
        if lines + 2 * STEP <= *most_lines {
            found.push(format!("{module}: {lines} lines of code: lower its ceiling of {most_lines}"));
        }
        if items > *most_items {
            found.push(format!("{module}: {items} items are pub(crate), at most {most_items}"));
        }
        if items + SLACK <= *most_items {
            found.push(format!("{module}: {items} items are pub(crate): lower its ceiling of {most_items}"));
        }
    }
    let total: usize = lines.values().sum();
    println!("{total} lines of code in {} files: {lines:#?}", files.len());
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_struct_has_many_fields() {
    let mut wide = Vec::new();
    for (path, (_, code)) in product() {
        let wider = structs(&code).into_iter().filter(|(_, fields)| *fields > MAX_FIELDS);
        wide.extend(wider.map(|(name, fields)| (path.display().to_string(), name, fields)));
    }
    let listed: Vec<_> =
        WIDE_STRUCTS.iter().map(|(path, name, fields)| ((*path).to_owned(), (*name).to_owned(), *fields)).collect();
    assert_eq!(wide, listed, "a struct has at most {MAX_FIELDS} fields; the exceptions only get fewer and smaller");
}

#[test]
fn no_folder_has_many_files() {
    let mut folders = BTreeMap::<String, usize>::new();
    for path in product().keys() {
        *folders.entry(path.parent().unwrap().display().to_string()).or_default() += 1;
    }
    folders.retain(|_, files| *files > MAX_FILES);
    let listed = WIDE_FOLDERS.iter().map(|(folder, files)| ((*folder).to_owned(), *files)).collect();
    assert_eq!(folders, listed, "a folder has at most {MAX_FILES} files; the exceptions only get fewer and smaller");
}
