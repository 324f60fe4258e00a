//! Reads the imports of the files of a module and fails on import cycles. A module's own file counts as one of them: it may
//! declare its children and export from them, and if it uses one of them, that one may not use it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::{code, walk};

/// Modules that must have no import cycles.
const ACYCLIC: &[&str] = &[
    "crate::app",
    "crate::cache",
    "crate::cli",
    "crate::client",
    "crate::config",
    "crate::grpc",
    "crate::mirror",
    "crate::model",
    "crate::proto",
    "crate::source",
    "crate::testing",
    "crate::transport",
    "crate::watch",
];

/// Files of the crate by the paths of their modules, such as `crate::grpc::watch`.
type Files = BTreeMap<String, File>;

/// Paths that a file names: in `use` declarations and elsewhere, and those that it exports.
#[derive(Default)]
struct File {
    used: Vec<String>,
    exported: Vec<String>,
}

impl File {
    fn read(code: &str) -> Self {
        let (mut file, mut lines) = (Self::default(), code.lines());
        while let Some(line) = lines.next() {
            let declared = line.split_once("use ").map(|(visibility, tree)| (visibility.trim(), tree));
            let declared = declared.filter(|(visibility, _)| {
                ["", "pub"].contains(visibility) || (visibility.starts_with("pub(") && visibility.ends_with(')'))
            });
            let Some((visibility, rest)) = declared else {
                file.used.extend(paths_in(line));
                continue;
            };
            let mut tree = rest.to_owned();
            while !tree.contains(';') {
                tree.push_str(lines.next().expect("a declaration ends"));
            }
            let paths = expand(tree.split(';').next().unwrap());
            if visibility.is_empty() { &mut file.used } else { &mut file.exported }.extend(paths);
        }
        file
    }
}

/// Returns the paths in an expression or a type.
fn paths_in(line: &str) -> impl Iterator<Item = String> + '_ {
    let words = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.contains("::")).map(|word| word.trim_matches(':').to_owned())
}

/// Returns the paths of the tree of a `use` declaration.
fn expand(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap().trim().to_owned()];
    };
    let group = group.trim().strip_suffix('}').expect("a group ends");
    let (mut items, mut depth) = (vec![String::new()], 0);
    for c in group.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c == ',' && depth == 0 { items.push(String::new()) } else { items.last_mut().unwrap().push(c) }
    }
    let items = items.iter().filter(|item| !item.trim().is_empty());
    items.flat_map(|item| expand(item)).map(|path| format!("{prefix}{path}")).collect()
}

/// Returns the module that a path leads to from another one, and the item that the path names there.
fn resolve(files: &Files, from: &str, path: &str) -> Option<(String, Option<String>)> {
    let mut module = from.to_owned();
    let mut names = path.split("::").peekable();
    match *names.peek()? {
        "crate" => names.next()?.clone_into(&mut module),
        "self" => drop(names.next()),
        "super" => {
            while names.next_if_eq(&"super").is_some() {
                module.truncate(module.rfind("::")?);
            }
        }
        child => drop(files.get(&format!("{module}::{child}"))?),
    }
    while let Some(name) = names.peek() {
        let child = format!("{module}::{name}");
        if !files.contains_key(&child) {
            break;
        }
        (module, _) = (child, names.next());
    }
    Some((module, names.next().map(str::to_owned)))
}

/// Returns the file that defines the item of a path, through the exports of others.
fn owner(files: &Files, from: &str, path: &str) -> Option<String> {
    let (mut module, mut name) = resolve(files, from, path)?;
    while let Some(wanted) = &name {
        let exported = files.get(&module).map(|file| &file.exported)?;
        let Some(path) = exported.iter().find(|path| path.rsplit("::").next() == Some(wanted.as_str())) else { break };
        let Some(next) = resolve(files, &module, path).filter(|(next, _)| *next != module) else { break };
        (module, name) = next;
    }
    Some(module)
}

/// Returns the imports within a module that are part of a cycle, or lead from one cycle to another.
fn cycles(files: &Files, module: &str) -> Vec<(String, String)> {
    let is_inside = |path: &str| path == module || path.starts_with(&format!("{module}::"));
    let mut imports = BTreeSet::new();
    for (path, file) in files.iter().filter(|(path, _)| is_inside(path)) {
        let owners = file.used.iter().filter_map(|used| owner(files, path, used));
        imports.extend(owners.filter(|owner| owner != path && is_inside(owner)).map(|owner| (path.clone(), owner)));
    }
    loop {
        let before = imports.len();
        let importing: BTreeSet<String> = imports.iter().map(|(from, _)| from.clone()).collect();
        imports.retain(|(_, to)| importing.contains(to));
        let imported: BTreeSet<String> = imports.iter().map(|(_, to)| to.clone()).collect();
        imports.retain(|(from, _)| imported.contains(from));
        if imports.len() == before {
            return imports.into_iter().collect();
        }
    }
}

fn files_of(texts: &[(&str, &str)]) -> Files {
    texts.iter().map(|(path, text)| ((*path).to_owned(), File::read(text))).collect()
}

#[test]
fn import_cycles_are_found() {
    let parent = ("crate::a", "mod b;\nmod c;\npub(super) use b::Exported;\n");
    let cycles =
        |b: &str, c: &str| cycles(&files_of(&[parent, ("crate::a::b", b), ("crate::a::c", c)]), "crate::a").len();
    assert_eq!(cycles("use super::c::C;", "use crate::x::Y;"), 0);
    assert_eq!(cycles("use super::c::C;", "use crate::{\n    a::{self, b::{B, D}},\n    x,\n};"), 2);
    assert_eq!(cycles("use super::c::C;", "fn c(_: super::b::B) {}"), 2);
    assert_eq!(cycles("use super::c::C;", "use super::Exported;"), 2, "through what the parent exports");
    let uses_child = |child: &str| {
        let files = files_of(&[("crate::a", "mod b;\nfn a() { b::b(); }"), ("crate::a::b", child)]);
        self::cycles(&files, "crate::a").len()
    };
    assert_eq!(uses_child("fn b() {}"), 0);
    assert_eq!(uses_child("use super::A;"), 2);
}

/// Reads the files of a module from the folder of its children, `own` being the name of its own file there.
fn read(folder: &str, module: &str, own: &str) -> Files {
    let mut paths = Vec::new();
    walk(Path::new(folder), "rs", &mut paths);
    let is_test = |path: &Path| path.iter().any(|part| part == "tests" || part == "tests.rs");
    let sources = paths.iter().filter(|path| !is_test(path)).map(|path| {
        let text = fs::read_to_string(path).unwrap();
        let path = path.strip_prefix(folder).unwrap().with_extension("");
        let parts = path.iter().map(|part| part.to_str().unwrap()).filter(|part| *part != own);
        let module = parts.fold(module.to_owned(), |module, part| format!("{module}::{part}"));
        (module, File::read(&code(text.split("\nmod tests {").next().unwrap())))
    });
    sources.collect()
}

#[test]
fn no_module_has_an_import_cycle() {
    let (product, load) = (read("src", "crate", "lib"), read("benches/load", "crate::load", "load"));
    let suite = read("clients/conformance/src", "crate", "main");
    let others = [(&load, "crate::load"), (&suite, "crate")];
    for (files, acyclic) in ACYCLIC.iter().map(|module| (&product, *module)).chain(others) {
        assert!(files.contains_key(acyclic), "{acyclic} is there");
        let found = cycles(files, acyclic);
        assert!(found.is_empty(), "{acyclic}: {found:#?}");
    }
}
