//! Sets `INFORMERD_COMMIT`, the commit of `informerd version`: the environment variable of this name, otherwise that of the checkout,
//! otherwise `unknown`. Builds of the same commit have the same.
//!
//! Git is run for release builds only: in others, each commit would compile everything again.

use std::{env, path::Path, process::Command};

const VARIABLE: &str = "INFORMERD_COMMIT";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let given = env::var(VARIABLE).ok().filter(|commit| !commit.is_empty());
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = given.or_else(|| if is_release { of_checkout() } else { None });
    println!("cargo::rustc-env={VARIABLE}={}", commit.as_deref().unwrap_or("unknown"));
}

/// Returns the commit of the checkout, unless this is a part of another one.
fn of_checkout() -> Option<String> {
    git(&["rev-parse", "--show-prefix"]).filter(String::is_empty)?;
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for reference in ["HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let path = git(&["rev-parse", "--git-path", reference]).filter(|path| Path::new(path).exists());
        if let Some(path) = path {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--verify", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
}
