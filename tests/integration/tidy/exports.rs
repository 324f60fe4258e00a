//! Reads what the modules of the library export, and fails on a name that nobody uses.

use std::{collections::BTreeSet, path::Path};

use super::{Source, code, sources, walk};

/// Modules whose exports have to be used.
const LIBRARY: &[&str] = &["watch", "cache", "testing"];
/// Exports for tests: those of other modules count as their users.
const FAKES: &[&str] = &["EmptyWatch", "Recorder"];

/// Returns the words of a code.
fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Returns the names that the declarations `pub use module::{…};` of a code export.
fn exported(code: &str) -> BTreeSet<String> {
    let declarations = code.split("pub use ").skip(1).filter_map(|rest| rest.split_once(';')?.0.split_once("::"));
    declarations.flat_map(|(_, names)| words(names)).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Returns the signatures of the public functions of a code, the bounds of its types, the types of their public fields and variants, and
/// the associated types of its traits: who uses the one uses the other, also without its name.
fn signatures(code: &str) -> String {
    let mut signatures = String::new();
    let (mut is_inside, mut is_in_enum) = (false, false);
    for line in code.lines() {
        is_in_enum = line.starts_with("pub enum ") || is_in_enum && line != "}";
        let line = line.trim_start();
        let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| line.starts_with(prefix));
        if is_inside || begins(&["pub fn ", "pub async fn ", "pub const fn ", "type "]) {
            signatures.push_str(line);
            is_inside = !line.ends_with(['{', ';', '}']);
        } else if begins(&["pub "]) && !begins(&["pub use ", "pub mod "]) {
            // The bounds of a type or the type of a field. Not the name before: a type is no user of itself.
            signatures.push_str(line.split_once(['<', ':']).map_or("", |(_, named)| named));
        } else if is_in_enum {
            signatures.push_str(line.split_once(['(', ':']).map_or("", |(_, named)| named));
        }
        signatures.push('\n');
    }
    signatures
}

#[test]
fn exports_and_signatures_are_found() {
    let code = "mod a;\npub use a::{B, C};\npub(crate) use a::D;\npub use e::f;\npub struct G<T: H> {\n    i: J,\n    pub s: S,\n}\npub enum U {\n    V(W),\n}\n\
                    pub fn k(\n        l: M,\n    ) -> N {\n        O\n    }\nfn p(q: R) {}";
    assert_eq!(Vec::from_iter(exported(code)), ["B", "C", "f"]);
    let signatures = signatures(code);
    let named: Vec<_> =
        words(&signatures).filter(|word| word.chars().all(char::is_uppercase) && !word.is_empty()).collect();
    assert_eq!(named, ["T", "H", "S", "W", "M", "N"]);
}

/// Checks that each export is named in another module, in an example or in a signature of its own module; a fake also in a test
/// of another module.
#[test]
fn every_export_of_the_library_has_a_user() {
    let sources = sources();
    let mut examples = Vec::new();
    walk(Path::new("examples"), "rs", &mut examples);
    let examples: Vec<_> = examples.iter().map(|path| code(&std::fs::read_to_string(path).unwrap())).collect();
    let mut unused = Vec::new();
    for module in LIBRARY {
        let own = |source: &&Source| source.module == *module;
        let root = sources.iter().find(|source| source.path == Path::new("src").join(format!("{module}.rs"))).unwrap();
        let mut users: BTreeSet<String> = examples.iter().flat_map(|code| words(code).map(str::to_owned)).collect();
        let mut in_tests = users.clone();
        for source in &sources {
            let code = code(&source.text);
            let text = if own(&source) { signatures(&code) } else { code };
            let found = if source.is_test { &mut in_tests } else { &mut users };
            found.extend(words(&text).map(str::to_owned));
        }
        let names = exported(&code(&root.text));
        assert!(names.len() > 5, "the exports of {module} were found");
        for name in names {
            let is_fake = *module == "testing" || FAKES.contains(&name.as_str());
            let is_used = users.contains(&name) || is_fake && in_tests.contains(&name);
            if !is_used {
                unused.push(format!("{module}::{name}"));
            }
        }
    }
    assert!(unused.is_empty(), "{unused:#?}");
}
