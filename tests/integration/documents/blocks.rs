//! Code blocks of the documents: the program accepts each of its commands and configurations, and the proto has each method.

use std::{collections::BTreeSet, fs, path::Path};

use clap::Parser;
use informerd::{
    cli::Cli,
    config::{Config, ServeFlags, reference},
};
use tempfile::TempDir;

use super::{Document, documents};

const FOLDERS: &[&str] = &["benches", "clients", "deploy", "docs", "examples", "fuzz", "proto", "src", "tests"];
/// Added to an example of a part of the configuration: what the file needs to be one.
const RESOURCES: &str = "\nresources: { pods: { source: { files: { path: . } } } }\n";
const AUTHENTICATION: &str = "\nauthentication: { token_file: tokens }\n";

/// Returns the arguments of each command of the program, without what a redirection or a list operator begins.
fn commands(code: &str) -> impl Iterator<Item = Result<Vec<String>, String>> {
    let code = code.replace("\\\n", " ");
    let parts: Vec<String> =
        code.lines().flat_map(|line| line.split(" | ")).map(|part| part.trim().to_owned()).collect();
    let parts = parts.into_iter().map(|part| part.replace("cargo run -- ", "informerd "));
    parts.filter(|part| part.starts_with("informerd ")).map(|part| {
        let words = shlex::split(part.trim_end_matches('|')).ok_or_else(|| format!("{part}: a quote is not closed"))?;
        let is_operator =
            |word: &String| matches!(word.as_str(), "&" | "&&" | ";" | "||") || word.starts_with(['<', '>']);
        Ok(words.into_iter().take_while(|word| !is_operator(word)).collect())
    })
}

#[test]
fn the_arguments_of_commands_are_found() {
    let code =
        "informerd list \\\n  pods -l 'a b' >file # note\nkubectl get pods | informerd serve --stream pods=- &\n";
    let found: Vec<_> = commands(code).map(Result::unwrap).collect();
    assert_eq!(
        found,
        [vec!["informerd", "list", "pods", "-l", "a b"], vec!["informerd", "serve", "--stream", "pods=-"]]
    );
}

#[test]
fn the_program_accepts_the_commands_of_the_documents() {
    let (mut refused, mut checked) = (Vec::new(), 0);
    for Document { path, blocks, .. } in documents() {
        for block in blocks.iter().filter(|block| block.language == "sh") {
            for command in commands(&block.code) {
                checked += 1;
                let parsed = command.and_then(|words| match Cli::try_parse_from(&words) {
                    Err(error) if error.use_stderr() => Err(format!("{}: {error}", words.join(" "))),
                    _ => Ok(()),
                });
                refused.extend(parsed.err().map(|error| format!("{}: {error}", path.display())));
            }
        }
    }
    assert!(checked > 40, "{checked} commands were found");
    assert!(refused.is_empty(), "{refused:#?}");
}

/// Takes a word that begins with a folder of the repository as a path in it.
#[test]
fn the_paths_in_commands_are_in_the_tree() {
    let (mut missing, mut checked) = (Vec::new(), 0);
    for Document { path, blocks, .. } in documents() {
        for block in blocks.iter().filter(|block| block.language == "sh") {
            for word in block.code.split(|c: char| !c.is_alphanumeric() && !"/._-".contains(c)) {
                let word = word.trim_start_matches("../informerd/").trim_start_matches("./");
                let is_path = word.split_once('/').is_some_and(|(folder, _)| FOLDERS.contains(&folder));
                checked += usize::from(is_path);
                if is_path && !Path::new(word).exists() {
                    missing.push(format!("{}: {word}", path.display()));
                }
            }
        }
    }
    assert!(checked > 10, "{checked} paths were found");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn the_methods_of_the_documents_are_in_the_proto() {
    let proto = fs::read_to_string("proto/informerd/v1/informerd.proto").unwrap();
    let (mut unknown, mut checked) = (Vec::new(), 0);
    for Document { path, blocks, .. } in documents() {
        for block in &blocks {
            for (service, rest) in block.code.split("informerd.v1.").skip(1).filter_map(|call| call.split_once('/')) {
                let method: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
                if !service.chars().all(|c| c.is_ascii_alphanumeric()) {
                    continue;
                }
                checked += 1;
                let section =
                    proto.split(&format!("service {service} {{")).nth(1).and_then(|text| text.split("\n}").next());
                if !section.is_some_and(|section| section.contains(&format!("rpc {method}("))) {
                    unknown.push(format!("{}: {service}/{method}", path.display()));
                }
            }
        }
    }
    assert!(checked > 3, "{checked} methods were found");
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// Takes a block of YAML whose keys are all keys of the configuration as one, perhaps with a part that the example leaves out.
#[test]
fn the_program_accepts_the_configurations_of_the_documents() {
    let known: BTreeSet<&str> = reference().iter().filter_map(|key| key.path.split(['.', '[']).next()).collect();
    let (mut refused, mut checked) = (Vec::new(), 0);
    for Document { path, blocks, .. } in documents() {
        for block in blocks.iter().filter(|block| block.language == "yaml") {
            let keys: BTreeSet<&str> = block
                .code
                .lines()
                .filter(|line| !line.starts_with([' ', '#', '-']))
                .filter_map(|line| Some(line.split_once(':')?.0))
                .collect();
            if !keys.is_subset(&known) {
                continue;
            }
            checked += 1;
            let mut text = block.code.clone();
            if !keys.contains("resources") {
                text.push_str(RESOURCES);
            }
            if keys.contains("authorization") && !keys.contains("authentication") {
                text.push_str(AUTHENTICATION);
            }
            let directory = TempDir::new().unwrap();
            let file = directory.path().join("informerd.yaml");
            fs::write(&file, text).unwrap();
            let loaded = Config::load(&ServeFlags { config: Some(file), ..ServeFlags::default() });
            refused.extend(loaded.err().map(|error| format!("{}: {error}\n{}", path.display(), block.code)));
        }
    }
    assert!(checked > 12, "{checked} configurations were found");
    assert!(refused.is_empty(), "{refused:#?}");
}
