//! Reads the sources and fails where a module breaks the rules of the crate: layers, size, headers.

mod cycles;
mod exports;
mod upstream;
mod weight;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use proptest::test_runner::{FailurePersistence, FileFailurePersistence};

/// Modules at the top of the crate, each with the others that it may name; each may name itself.
const MODULES: &[(&str, &[&str])] = &[
    ("census", &[]),
    ("log_throttle", &[]),
    ("net", &["log_throttle"]),
    ("sync", &[]),
    ("process", &[]),
    ("model", &[]),
    ("watch", &["model", "census", "log_throttle", "sync"]),
    ("cache", &["model", "watch", "census", "log_throttle", "sync"]),
    ("proto", &["model", "watch", "cache"]),
    ("client", &["model", "watch", "cache", "proto", "net"]),
    ("source", &["model", "watch", "cache", "proto", "client", "net", "auth"]),
    ("audit", &["log_throttle"]),
    ("turns", &[]),
    ("auth", &["log_throttle", "model", "net", "turns"]),
    ("transport", &["auth", "log_throttle", "net", "turns"]),
    ("grpc", &["model", "watch", "cache", "log_throttle", "process", "proto", "audit", "auth", "transport", "turns"]),
    // The rows of the table write the plain types of the sources.
    ("config", &["model", "watch", "cache", "proto", "client", "net", "auth", "source"]),
    ("telemetry", &["model", "watch", "cache", "process", "proto", "config", "grpc"]),
    ("admin", &["model", "watch", "cache", "proto", "transport", "config", "grpc", "telemetry"]),
    (
        "app",
        &[
            "model",
            "watch",
            "cache",
            "proto",
            "audit",
            "auth",
            "net",
            "client",
            "source",
            "grpc",
            "transport",
            "config",
            "telemetry",
            "admin",
            "rest",
        ],
    ),
    ("printers", &["proto"]),
    ("rest", &["model", "cache", "proto", "auth", "transport", "grpc", "admin", "printers"]),
    ("mirror", &["model", "cache", "client", "source", "admin"]),
    ("testing", &["model", "watch", "cache", "client", "config", "app"]),
    // `watch --state` runs a Reflector of a relay source in the program.
    ("cli", &["model", "cache", "source", "app", "client", "config", "mirror", "printers", "proto", "telemetry"]),
    ("fuzzing", &["model", "cache", "grpc", "source"]),
    ("main", &["cli"]),
    ("lib", &[]),
];

/// Folders with comments and documents.
const FOLDERS: &[&str] = &["benches", "clients/conformance", "docs", "examples", "fuzz", "proto", "src", "tests"];

/// Modules of the core, which name no transport, command line or vendor (`NOT_IN_CORE`).
const CORE: &[&str] = &["model", "watch", "cache"];
const NOT_IN_CORE: &[&str] = &["tonic", "prost", "clap", "hyper", "axum", "kube", "notify", "http"];

const MAX_LINES: usize = 500;

struct Source {
    path: PathBuf,
    module: String,
    text: String,
    is_test: bool,
}

/// Returns every source file of the crate.
fn sources() -> Vec<Source> {
    let sources = sources_in("src");
    assert!(sources.len() > 30, "the sources were found");
    sources
}

/// Returns the source files of a folder.
fn sources_in(folder: &str) -> Vec<Source> {
    let mut paths = Vec::new();
    walk(Path::new(folder), "rs", &mut paths);
    let source = |path: PathBuf| {
        let relative = path.strip_prefix(folder).unwrap();
        let module = relative.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
        let is_test = relative.iter().any(|part| part == "tests" || part == "tests.rs");
        let text = fs::read_to_string(&path).unwrap();
        Source { path, module, text, is_test }
    };
    paths.into_iter().map(source).collect()
}

/// Finds the files with this extension, at any depth.
pub(crate) fn walk(directory: &Path, wanted: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, wanted, found);
        } else if path.extension().is_some_and(|extension| extension == wanted) {
            found.push(path);
        }
    }
}

/// Returns the lines of the documents, and the comments of the code, with their paths and line numbers.
fn prose() -> Vec<(PathBuf, usize, String)> {
    let mut paths = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"].map(PathBuf::from).to_vec();
    for folder in FOLDERS {
        for extension in ["rs", "md", "proto"] {
            walk(Path::new(folder), extension, &mut paths);
        }
    }
    let mut lines = Vec::new();
    for path in paths {
        let is_document = path.extension().is_some_and(|extension| extension == "md");
        for (line, number) in fs::read_to_string(&path).unwrap().lines().zip(1..) {
            let text = if is_document { Some(line) } else { line.split_once("//").map(|(_, comment)| comment) };
            lines.extend(text.map(|text| (path.clone(), number, text.to_owned())));
        }
    }
    assert!(lines.len() > 10_000, "the comments were found");
    lines
}

/// Returns the code without its comments.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the top modules that a text names: `crate::module`, and every module of `crate::{…}`.
fn modules_in(code: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut modules = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            modules.insert(rest.chars().take_while(|c| is_word(*c)).collect());
            continue;
        };
        // The first word of each item at the first level of the braces.
        let (mut depth, mut at_start, mut word) = (0, true, String::new());
        for c in group.chars() {
            if at_start && is_word(c) {
                word.push(c);
                continue;
            }
            at_start = at_start && word.is_empty() && c.is_whitespace();
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    modules.insert(std::mem::take(&mut word));
                    at_start = true;
                }
                _ => {}
            }
        }
        modules.insert(word);
    }
    modules.remove("");
    modules
}

#[test]
fn the_modules_named_in_a_text_are_found() {
    let text = "use crate::model::{A, B};\nuse crate::{\n    cache::{List, Watch},\n    proto::{self, pb},\n    watch::Cursor,\n};";
    assert_eq!(Vec::from_iter(modules_in(text)), ["cache", "model", "proto", "watch"]);
    assert_eq!(Vec::from_iter(modules_in("x: crate::app::AppError")), ["app"]);
}

#[test]
fn imports_point_inward() {
    let mut found = Vec::new();
    for Source { path, module, text, is_test } in sources() {
        let (_, allowed) =
            MODULES.iter().find(|(name, _)| *name == module).unwrap_or_else(|| panic!("{module} is not in MODULES"));
        for named in modules_in(&code(&text)) {
            // A path into the crate may also name an item of a macro or a test; the rule is for modules only.
            let is_module = MODULES.iter().any(|(name, _)| *name == named);
            let is_fake = is_test && named == "testing";
            if is_module && named != module && !is_fake && !allowed.contains(&named.as_str()) {
                found.push(format!("{}: {module} names {named}", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_core_names_no_transport_and_no_vendor() {
    let mut found = Vec::new();
    for Source { path, module, text, .. } in sources() {
        if !CORE.contains(&module.as_str()) {
            continue;
        }
        let code = code(&text);
        for name in NOT_IN_CORE {
            let named = code
                .match_indices(&format!("{name}::"))
                .any(|(at, _)| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':'));
            if named {
                found.push(format!("{}: names {name}", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Files of the server that call the file system, and the threads that do so. A runtime's thread would block all its tasks, on a network
/// file system for long.
const FILE_READERS: &[(&str, &str)] = &[
    ("src/app/cgroup.rs", "the start"),
    ("src/app/listener.rs", "the start and the end"),
    ("src/audit.rs", "a thread of its own"),
    ("src/cache/snapshot_file.rs", "the start of a resource, in its thread; then blocking threads"),
    ("src/cache/snapshot_file/directory.rs", "the start; then blocking threads"),
    ("src/net/endpoint.rs", "blocking threads"),
    ("src/net/small_file.rs", "the start; then blocking threads"),
    ("src/process.rs", "any: /proc does not block"),
    ("src/source/files/read.rs", "blocking threads"),
    ("src/source/files/root.rs", "blocking threads"),
    ("src/source/files/scan.rs", "blocking threads"),
    ("src/source/kube/client/access.rs", "blocking threads"),
    ("src/source/stream/input.rs", "blocking threads"),
    ("src/telemetry/traces.rs", "the start"),
    ("src/transport/tls.rs", "the start; then blocking threads"),
];

#[test]
fn files_are_read_on_threads_that_may_block() {
    // Programs of their own, which serve nobody else.
    const PROGRAMS: &[&str] = &["cli", "main", "mirror", "testing", "fuzzing"];
    let calls = |source: &Source| {
        let code = source.text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        code.contains("fs::") || code.contains("File::open")
    };
    let mut found: Vec<String> = sources()
        .iter()
        .filter(|source| !source.is_test && !PROGRAMS.contains(&&*source.module) && calls(source))
        .map(|source| source.path.display().to_string())
        .collect();
    found.sort();
    let known: Vec<&str> = FILE_READERS.iter().map(|(path, _)| *path).collect();
    assert_eq!(
        found, known,
        "read files on a thread that may block (`spawn_blocking`), and list the file here with that thread"
    );
}

#[test]
fn every_file_has_a_header_and_a_bounded_length() {
    let mut untidy = Vec::new();
    for Source { path, text, is_test, .. } in sources().into_iter().chain(sources_in("clients/conformance/src")) {
        let path = path.display();
        if !is_test && !text.starts_with("//!") {
            untidy.push(format!("{path}: does not begin with //!"));
        }
        if !is_test && text.lines().count() > MAX_LINES {
            untidy.push(format!("{path}: {} lines", text.lines().count()));
        }
        if path.to_string().ends_with("mod.rs") {
            untidy.push(format!("{path}: is a mod.rs"));
        }
    }
    assert!(untidy.is_empty(), "{untidy:#?}");
}

/// A comment of a thing begins with a noun, and one of a function with a verb: a newcomer can then read the first words alone.
#[test]
fn doc_comments_begin_with_a_noun_or_a_verb() {
    const REFUSED: &[&str] = &["How", "What", "Whatever", "Where", "Whether", "Who", "Whoever", "Whose"];
    let mut paths = Vec::new();
    for folder in ["benches", "clients/conformance", "src", "tests"] {
        walk(Path::new(folder), "rs", &mut paths);
    }
    let mut refused = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let mut is_first = true;
        for line in text.lines().map(str::trim_start) {
            let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim_start);
            if let Some(comment) = comment.filter(|_| is_first) {
                let word = comment.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
                if REFUSED.contains(&word) {
                    refused.push(format!("{}: {line}", path.display()));
                }
            }
            is_first = comment.is_none();
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
}

/// Checks comments and documents for the metaphors of earlier versions, in place of reported, requested, module and the like.
#[test]
fn comments_and_documents_have_no_metaphors() {
    const REFUSED: &[&str] =
        &["asked", "asks", "believes", "dies", "goes back", "house", "knows", "lives", "said", "told"];
    let mut found = Vec::new();
    for (path, number, text) in prose() {
        let words: Vec<_> = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '`').collect();
        let text = format!(" {} ", words.join(" ").to_lowercase());
        let refused = REFUSED.iter().filter(|word| text.contains(&format!(" {word} ")));
        found.extend(refused.map(|word| format!("{}:{number}: {word}", path.display())));
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Checks that every Rust file and every document that a comment or a document cites is in the tree.
#[test]
fn cited_files_are_in_the_tree() {
    // Placeholders in CONTRIBUTING.md.
    let mut known = BTreeSet::from(["NAME.rs".to_owned(), "NAME.md".to_owned()]);
    let mut paths: Vec<_> = fs::read_dir(".").unwrap().map(|entry| entry.unwrap().path()).collect();
    for folder in FOLDERS {
        walk(Path::new(folder), "rs", &mut paths);
        walk(Path::new(folder), "md", &mut paths);
    }
    known.extend(paths.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())));
    let mut missing = Vec::new();
    for (path, number, text) in prose() {
        for word in text.split(|c: char| !c.is_alphanumeric() && !"/._-".contains(c)) {
            let name = word.trim_end_matches('.').rsplit('/').next().unwrap_or_default();
            let is_file = Path::new(name).extension().is_some_and(|extension| extension == "rs" || extension == "md");
            if is_file && !known.contains(name) {
                missing.push(format!("{}:{number}: {word}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Checks that `proto` alone converts durations and times of messages: the conversions of `prost_types` may panic.
#[test]
fn durations_of_messages_are_converted_in_one_place() {
    let mut found = Vec::new();
    for Source { path, text, .. } in sources() {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let is_conversion =
            |line: &&str| line.contains("Duration::try_from(") || line.contains("SystemTime::try_from(");
        if path.starts_with("src") && path != Path::new("src/proto/time.rs") {
            found.extend(code.lines().filter(is_conversion).map(|line| format!("{}: {}", path.display(), line.trim())));
        }
    }
    assert!(found.is_empty(), "use proto::duration, duration_message and system_time: {found:#?}");
}

/// Checks for the crate's configuration: without it, proptest would keep failures in a folder at the top.
#[test]
fn every_property_test_has_the_configuration_of_the_crate() {
    let mut others = Vec::new();
    for Source { path, text, .. } in sources() {
        for rest in text.split("proptest! {\n").skip(1) {
            let first = rest.lines().next().unwrap_or_default();
            if !first.trim_start().starts_with("#![proptest_config(") || !first.contains("crate::property_config()") {
                others.push(format!("{}: {first}", path.display()));
            }
        }
    }
    assert!(others.is_empty(), "{others:#?}");
}

/// Checks that proptest finds each file of failures by the path of its source.
#[test]
fn saved_failures_of_property_tests_are_replayed() {
    let folder = "tests/proptest-regressions";
    let mut paths = Vec::new();
    walk(Path::new(folder), "txt", &mut paths);
    assert!(!paths.is_empty(), "the failures were found");
    for path in paths {
        let source = Path::new("src").join(path.strip_prefix(folder).unwrap()).with_extension("rs");
        let source: &'static str = source.to_str().unwrap().to_owned().leak();
        let failures = FileFailurePersistence::SourceParallel(folder).load_persisted_failures2(Some(source));
        assert!(!failures.is_empty(), "{}: nothing is read for {source}", path.display());
    }
}

#[test]
fn main_is_short() {
    let main = fs::read_to_string("src/main.rs").unwrap();
    assert!(main.lines().count() < 60);
}

/// The integration tests do not compile without them, and a script that runs at night shows that late.
#[test]
fn scripts_run_the_tests_with_their_features() {
    let scripts =
        [".ci/run", ".ci/nightly", ".cargo/mutants.toml", "CONTRIBUTING.md", "README.md", "tests/mutants/run"];
    let runs_tests = |line: &str| {
        let named = ["--test integration", "--test=integration", "${binary[@]}"].iter().any(|test| line.contains(test));
        named && !line.contains("binary=(") && !line.contains("cargo test ...")
    };
    let mut found = 0;
    for script in scripts {
        let text = fs::read_to_string(script).unwrap();
        for line in text.lines().filter(|line| runs_tests(line)) {
            assert!(line.contains("testing,otel,kubernetes-api"), "{script}: {line}");
            found += 1;
        }
    }
    assert!(found > 8, "{found} lines");
}
