//! The documents: links resolve, pages begin alike, names and commands in them exist in the code, and the README is short.
//!
//! `tests/documents/run` also runs the commands of some pages.

mod blocks;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use http::Uri;

use crate::tidy::walk;

/// Largest size of the README: an entry page, not a manual.
const MAX_README_BYTES: usize = 10 * 1024;

/// One Markdown file: its text, and its code blocks apart from it.
struct Document {
    path: PathBuf,
    text: String,
    blocks: Vec<Block>,
}

struct Block {
    language: String,
    code: String,
}

/// Returns every document of the repository.
fn documents() -> Vec<Document> {
    let mut paths = Vec::new();
    for folder in ["benches", "deploy", "docs", "examples"] {
        walk(Path::new(folder), "md", &mut paths);
    }
    // Without what the packages of the clients have installed below their folders.
    let clients = fs::read_dir("clients").unwrap().map(|entry| entry.unwrap().path().join("README.md"));
    paths.extend(clients.filter(|path| path.exists()));
    let entries = fs::read_dir(".").unwrap().map(|entry| PathBuf::from(entry.unwrap().file_name()));
    paths.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    assert!(paths.len() > 15, "the documents were found");
    let read = |path: PathBuf| {
        let (text, blocks) = without_blocks(&fs::read_to_string(&path).unwrap());
        Document { path, text, blocks }
    };
    paths.into_iter().map(read).collect()
}

/// Returns the text outside of code blocks, and the blocks.
fn without_blocks(page: &str) -> (String, Vec<Block>) {
    let (mut text, mut blocks, mut open) = (String::new(), Vec::new(), None::<Block>);
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some(Block { language: language.to_owned(), code: String::new() }),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.code.extend([line, "\n"]),
            (None, None) => text.extend([line, "\n"]),
        }
    }
    assert!(open.is_none(), "a code block is not closed");
    (text, blocks)
}

/// Returns the targets of all links outside of code.
fn links(text: &str) -> Vec<String> {
    let text: String = text.split('`').step_by(2).collect();
    text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap().to_owned()).collect()
}

/// Returns the anchors that GitHub makes of the headings: lower case, no punctuation, a hyphen for each blank.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    headings
        .map(|heading| heading.to_lowercase().chars().filter(is_kept).collect::<String>().replace(' ', "-"))
        .collect()
}

/// Returns the texts in backticks.
fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let (mut broken, mut checked) = (Vec::new(), 0);
    for Document { path, text, .. } in documents() {
        for link in links(&text).into_iter().filter(|link| !link.starts_with("https://")) {
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let has_anchor = || {
                let (text, _) = without_blocks(&fs::read_to_string(&target).unwrap());
                anchors(&text).contains(anchor)
            };
            if !target.exists() || !anchor.is_empty() && !has_anchor() {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(checked > 50, "the links were found");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Checks links that lead out of the tree by their form alone: a test opens none of them.
#[test]
fn every_other_link_has_the_form_of_an_address() {
    let (mut broken, mut checked) = (Vec::new(), 0);
    for Document { path, text, .. } in documents() {
        for link in links(&text).into_iter().filter(|link| link.starts_with("https://")) {
            checked += 1;
            let address = link.parse::<Uri>().ok();
            let has_host = address.and_then(|uri| Some(uri.host()?.contains('.'))).unwrap_or_default();
            if !has_host || link.ends_with(['.', ',', ';', ':']) {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(checked > 5, "the links were found");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_readme_is_short_and_leads_to_every_page() {
    let readme = fs::read_to_string("README.md").unwrap();
    assert!(readme.len() <= MAX_README_BYTES, "{} bytes", readme.len());
    let mut pages = Vec::new();
    walk(Path::new("docs"), "md", &mut pages);
    let named: BTreeSet<PathBuf> = links(&readme).into_iter().map(PathBuf::from).collect();
    let missing: Vec<&PathBuf> = pages.iter().filter(|page| !named.contains(*page)).collect();
    assert!(missing.is_empty(), "not in the README: {missing:?}");
}

#[test]
fn ci_runs_the_test_command_of_the_readme() {
    let readme = fs::read_to_string("README.md").unwrap();
    let develop = readme.split_once("\n## Develop\n").unwrap().1;
    let command = develop.lines().find(|line| line.starts_with("cargo test")).unwrap();
    let ci = fs::read_to_string(".ci/run").unwrap();
    assert!(ci.contains(&format!(" {command} ")), "not in .ci/run: {command}");
}

#[test]
fn every_page_begins_with_its_use() {
    for Document { path, text, .. } in documents().into_iter().filter(|document| document.path.starts_with("docs")) {
        let mut lines = text.lines();
        assert!(lines.next().unwrap().starts_with("# "), "{}", path.display());
        assert_eq!(lines.next(), Some(""), "{}", path.display());
        assert!(lines.next().unwrap().starts_with("After this page you "), "{}", path.display());
    }
}

#[test]
fn the_keys_in_the_documents_are_keys_of_the_configuration() {
    let known: BTreeSet<&str> = informerd::config::reference().iter().map(|key| key.path).collect();
    let sections = ["admin.", "drain.", "history.", "limits.", "tls.", "watch."];
    let is_key = |span: &&str| {
        sections.iter().any(|section| span.starts_with(section))
            && span.bytes().all(|b| b.is_ascii_lowercase() || matches!(b, b'.' | b'_'))
    };
    let mut unknown = Vec::new();
    for Document { path, text, .. } in documents() {
        let spans = code_spans(&text).filter(is_key).filter(|span| !known.contains(span));
        unknown.extend(spans.map(|span| format!("{}: {span}", path.display())));
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// Names in code of these pages that are no keys of the configuration.
const OTHER_NAMES: &[&str] = &[
    "admin",
    "ann",
    "aud",
    "authorization",
    "create",
    "debug",
    "disconnect",
    "edge",
    "email",
    "email_verified",
    "exp",
    "formats",
    "get",
    "groups",
    "history",
    "impersonate",
    "impersonator",
    "informerd",
    "iss",
    "kid",
    "list",
    "namespaces",
    "nbf",
    "object",
    "only_if_changed",
    "rejected",
    "tokenreviews",
    "users",
    "watch",
];

/// Checks the names without a section, on the pages of one section each.
#[test]
fn the_keys_on_the_pages_of_callers_are_keys_of_their_section() {
    let pages = [
        ("docs/authentication.md", &["authentication.", "tls."][..]),
        ("docs/authorization.md", &["authorization.", "authentication.", "limits.", "resources."]),
    ];
    let (mut unknown, mut checked) = (Vec::new(), 0);
    for (page, sections) in pages {
        let reference = informerd::config::reference();
        let keys = reference.iter().filter(|key| sections.iter().any(|section| key.path.starts_with(section)));
        let known: BTreeSet<&str> =
            keys.flat_map(|key| key.path.split('.')).chain(OTHER_NAMES.iter().copied()).collect();
        let is_name = |span: &&str| span.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let (text, _) = without_blocks(&fs::read_to_string(page).unwrap());
        let names: Vec<&str> =
            code_spans(&text).filter(is_name).filter(|span| !span.starts_with("informerd_")).collect();
        checked += names.len();
        unknown.extend(names.into_iter().filter(|name| !known.contains(name)).map(|name| format!("{page}: {name}")));
    }
    assert!(checked > 50, "the names were found");
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// Looks each metric up by its registered name, also without the prefix of the crate: the encoder adds the unit, `_total` and `_info`.
#[test]
fn the_metrics_in_the_documents_are_in_the_code() {
    let mut paths = Vec::new();
    walk(Path::new("src"), "rs", &mut paths);
    let code: String = paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let (mut unknown, mut checked) = (Vec::new(), 0);
    for Document { path, text, .. } in documents() {
        let is_metric = |span: &&str| span.starts_with("informerd_") || span.starts_with("grpc_server_");
        for span in code_spans(&text).filter(is_metric) {
            checked += 1;
            let name = span.split('{').next().unwrap().trim_end_matches("_total");
            let name = name.strip_suffix("_bytes").or_else(|| name.strip_suffix("_seconds")).unwrap_or(name);
            let short = name.trim_start_matches("informerd_");
            let is_known = |name: &str| code.contains(&format!("\"{name}\""));
            if ![name, short, name.trim_end_matches("_info")].into_iter().any(is_known) {
                unknown.push(format!("{}: {span}", path.display()));
            }
        }
    }
    assert!(checked > 20, "the metrics were found");
    assert!(unknown.is_empty(), "{unknown:#?}");
}
