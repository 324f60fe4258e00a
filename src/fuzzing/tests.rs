//! Replay of the corpora. A failing input is printed, and can be added to its corpus as a file.

use std::{fs, path::Path, thread};

use super::*;

/// Variations of each file of a corpus.
const CUTS: usize = 16;
const CHANGES: usize = 40;

/// Largest size of all corpora together, which every clone of the repository contains.
const MAX_BYTES: u64 = 300 << 10;

/// Directory in the project that the tests run in. An absolute path in the binary could be that of another clone that was built
/// into the same directory.
const FUZZ: &str = "fuzz";

/// Input that is printed if its target panics.
struct Input<'a>(&'a str, &'a [u8]);

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("the target {} fails with the input b\"{}\"", self.0, self.1.escape_ascii());
        }
    }
}

/// Random numbers with a fixed seed.
struct Numbers(u64);

impl Numbers {
    /// Returns a number below a bound that is not 0.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(FUZZ).join("corpus").join(target);
    names(&directory).iter().map(|name| fs::read(directory.join(name)).unwrap()).collect()
}

fn replay(target: &str) {
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    let run = |data: &[u8]| {
        let input = Input(target, data);
        run(data);
        drop(input);
    };
    let files = corpus(target);
    let mut numbers = Numbers(7);
    for file in &files {
        run(file);
        for _ in 0..CUTS {
            run(&file[..numbers.below(file.len() + 1)]);
        }
        for _ in 0..CHANGES {
            let mut changed = file.clone();
            for _ in 0..=numbers.below(3) {
                change(&mut changed, &files, &mut numbers);
            }
            run(&changed);
        }
    }
}

/// Changes a byte, or inserts a part of another file into an input.
fn change(input: &mut Vec<u8>, files: &[Vec<u8>], numbers: &mut Numbers) {
    let at = numbers.below(input.len() + 1);
    match numbers.below(5) {
        0 => input.insert(at, numbers.below(256) as u8),
        1 if at < input.len() => drop(input.remove(at)),
        2 if at < input.len() => input[at] ^= 1 << numbers.below(8),
        3 if at < input.len() => input[at] = b"{}[]\",:=\n\0 \\09-"[numbers.below(15)],
        _ => {
            let other = &files[numbers.below(files.len())];
            let from = numbers.below(other.len() + 1);
            let part = &other[from..(from + numbers.below(64)).min(other.len())];
            let end = (at + numbers.below(64)).min(input.len());
            input.splice(at..end, part.iter().copied());
        }
    }
}

#[test]
fn etcd_is_replayed() {
    replay("etcd");
}

#[test]
#[cfg(feature = "cel")]
fn expressions_are_replayed() {
    replay("expressions");
}

#[test]
fn field_cut_is_replayed() {
    replay("field_cut");
}

#[test]
fn framing_is_replayed() {
    replay("framing");
}

#[test]
#[cfg(feature = "kube")]
fn kube_is_replayed() {
    replay("kube");
}

#[test]
fn selectors_are_replayed() {
    replay("selectors");
}

#[test]
fn snapshot_is_replayed() {
    replay("snapshot");
}

#[test]
fn tokens_are_replayed() {
    replay("tokens");
}

#[test]
#[cfg(all(feature = "cel", feature = "kube"))]
fn every_target_has_a_corpus_and_a_program() {
    let targets: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&Path::new(FUZZ).join("corpus")), targets);
    let programs = names(&Path::new(FUZZ).join("fuzz_targets"));
    assert_eq!(programs, targets.iter().map(|target| format!("{target}.rs")).collect::<Vec<_>>());
    let manifest = fs::read_to_string(Path::new(FUZZ).join("Cargo.toml")).unwrap();
    let mut bytes = 0;
    for target in &targets {
        assert!(manifest.contains(&format!("name = \"{target}\"\n")), "{target}");
        let files = corpus(target);
        assert!(files.len() >= 10, "{target}: {} files", files.len());
        bytes += files.iter().map(|file| file.len() as u64).sum::<u64>();
    }
    assert!(bytes <= MAX_BYTES, "{bytes} bytes");
}
