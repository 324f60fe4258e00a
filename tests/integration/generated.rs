//! The generated code that is checked in, compared with what its generator makes of the proto now.

use std::{collections::BTreeMap, fs, path::Path};

use tempfile::TempDir;

use crate::generator;

/// Returns the files of a directory by name.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    entries.map(|path| (named(&path), fs::read(path).unwrap())).collect()
}

/// Writes the files that differ, so that a changed proto needs one run of this test and a commit.
#[test]
fn the_generated_code_is_that_of_the_proto() {
    let (kept, out) = (Path::new("proto/generated"), TempDir::new().unwrap());
    generator::generate(out.path()).unwrap();
    let (before, now) = (files(kept), files(out.path()));
    let differing: Vec<&String> =
        now.iter().filter(|(name, text)| before.get(*name) != Some(text)).map(|(name, _)| name).collect();
    for name in &differing {
        fs::write(kept.join(name), &now[*name]).unwrap();
    }
    assert!(differing.is_empty(), "written anew in {}: {differing:?}; build again", kept.display());
    assert!(before.keys().eq(now.keys()), "{:?} are no longer generated: remove the others", now.keys());
}
