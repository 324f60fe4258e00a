//! Reads the table of upstream's tests, and the mutants, and fails on one that names no test of ours that runs.

use std::{collections::BTreeSet, fs, path::PathBuf};

const VERDICTS: &[&str] = &["ours", "stricter", "otherwise", "not ours"];

/// Returns the rows of upstream's tests.
fn rows(document: &str) -> Vec<&str> {
    document.lines().filter(|line| line.starts_with("| `Test")).collect()
}

/// Returns what is wrong with rows.
fn problems(rows: &[&str], find: impl Fn(&str) -> Result<(), String>) -> Vec<String> {
    let (mut names, mut problems) = (BTreeSet::new(), Vec::new());
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, verdict, tests, reason] = cells[..] else {
            problems.push(format!("{row}: not four cells"));
            continue;
        };
        let mut check = |holds: bool, problem: &str| {
            if !holds {
                problems.push(format!("{name}: {problem}"));
            }
        };
        check(names.insert(name), "stands twice");
        check(VERDICTS.contains(&verdict), "no verdict");
        check(tests.is_empty() == (verdict == "not ours"), "tests belong to every verdict but \"not ours\"");
        check(reason.is_empty() == (verdict == "ours"), "a reason belongs to every verdict but \"ours\"");
        for test in tests.split(", ").filter(|test| !test.is_empty()) {
            let found = find(test.trim_matches('`'));
            problems.extend(found.err().map(|problem| format!("{name}: {test}: {problem}")));
        }
    }
    problems
}

/// Finds a test by its path, as `cache::reflector::tests::name`, or `integration::until::name` in the integration tests.
fn find(path: &str) -> Result<(), String> {
    let (modules, function) = path.rsplit_once("::").ok_or("no path")?;
    let (root, folder, modules) = match modules.strip_prefix("integration::") {
        Some(modules) => ("main.rs", "tests/integration", modules),
        None => ("lib.rs", "src", modules),
    };
    let mut folder = PathBuf::from(folder);
    let read = |path: PathBuf| fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()));
    let mut text = read(folder.join(root))?;
    for module in modules.split("::") {
        let other = at_other_path(&text, module).map(|path| folder.with_file_name(path));
        folder.push(module);
        if is_declared(&text, module) {
            text = read(other.unwrap_or_else(|| folder.with_extension("rs")))?;
        } else {
            let inline = text.split_once(&format!("\nmod {module} {{"));
            text = inline.ok_or(format!("module {module} is not declared"))?.1.to_owned();
        }
    }
    check_test(&text, function)
}

fn is_declared(text: &str, module: &str) -> bool {
    let declaration = format!("mod {module};");
    text.lines()
        .any(|line| line == declaration || line.starts_with("pub") && line.ends_with(&format!(" {declaration}")))
}

/// Returns the path in the attribute of a module.
fn at_other_path<'t>(text: &'t str, module: &str) -> Option<&'t str> {
    let (before, _) = text.split_once(&format!("\nmod {module};"))?;
    before.lines().next_back()?.strip_prefix("#[path = \"")?.strip_suffix("\"]")
}

/// Checks that a function is a test that is not ignored.
fn check_test(text: &str, function: &str) -> Result<(), String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let signature = format!("fn {function}(");
    let is_function = |line: &&str| line.trim_start_matches("async ").starts_with(&signature);
    let at = lines.iter().position(is_function).ok_or("no such function")?;
    let above = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    let above: Vec<_> = above.collect();
    let has = |attribute: &str| above.iter().any(|line| line.starts_with(attribute));
    match (has("#[test]") || has("#[tokio::test"), has("#[ignore")) {
        (false, _) => Err("not a test".to_owned()),
        (true, true) => Err("ignored".to_owned()),
        (true, false) => Ok(()),
    }
}

#[test]
fn problems_of_rows_and_tests_are_found() {
    let exists = |path: &str| if path == "a::b" { Ok(()) } else { Err("no such function".to_owned()) };
    let count = |cells: &[[&str; 3]]| {
        let lines: Vec<String> = cells.iter().map(|cells| format!("| `TestA` | {} |", cells.join(" | "))).collect();
        problems(&rows(&lines.join("\n")), exists).len()
    };
    let ours = ["ours", "`a::b`, `a::b`", ""];
    assert_eq!(count(&[ours]), 0);
    assert_eq!(count(&[ours, ours]), 1, "twice");
    assert_eq!(count(&[["otherwise", "`a::b`", "Because."]]), 0);
    assert_eq!(count(&[["not ours", "", "Because."]]), 0);
    for cells in [
        ["same", "`a::b`", "Because."],
        ["ours", "`a::b`, `a::c`", ""],
        ["ours", "", ""],
        ["ours", "`a::b`", "Because."],
        ["stricter", "`a::b`", ""],
        ["otherwise", "", "Because."],
        ["not ours", "`a::b`", "Because."],
        ["not ours", "", ""],
        ["not ours", "", "Because. | More."],
    ] {
        assert_eq!(count(&[cells]), 1, "{cells:?}");
    }

    let text =
        "#[tokio::test]\n// Why.\nasync fn runs() {}\n#[test]\n#[ignore = \"slow\"]\nfn waits() {}\nfn helps() {}";
    let check = |function| check_test(text, function);
    assert_eq!(check("runs"), Ok(()));
    assert_eq!(["waits", "helps", "run"].map(|function| check(function).is_ok()), [false; 3]);
    assert_eq!(at_other_path("#[cfg(test)]\n#[path = \"b/a.rs\"]\nmod a;", "a"), Some("b/a.rs"));
    assert!(is_declared("mod a;\npub(crate) mod b;", "b") && !is_declared("// mod a;\nmod ab;", "a"));
}

#[test]
fn every_test_that_the_table_of_upstream_names_exists_and_runs() {
    let document = fs::read_to_string("tests/upstream.md").unwrap();
    let rows = rows(&document);
    assert!(rows.len() > 150, "the rows were found");
    let problems = problems(&rows, find);
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn every_test_that_a_mutant_names_exists_and_runs() {
    let mut problems = Vec::new();
    for folder in fs::read_dir("tests/mutants").unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
    {
        for patch in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let text = fs::read_to_string(&patch).unwrap_or_default();
            for finder in text.lines().filter_map(|line| line.strip_prefix("Found by: ")) {
                // Another one is the name of a checker, which `tests/mutants/run --check` looks up.
                let Some((binary, path)) = finder.split_once(' ') else { continue };
                let path = if binary == "lib" { path.to_owned() } else { format!("{binary}::{path}") };
                problems.extend(find(&path).err().map(|problem| format!("{}: {path}: {problem}", patch.display())));
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}
