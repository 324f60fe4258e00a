//! The tests that kube-apiserver has for its watch cache, with informerd in place of it: `storage/` has them, and those that do not pass,
//! each with its reason.

use std::process::{Command, Stdio};

use crate::{etcd::program, killable::informerd};

#[test]
fn the_tests_of_the_watch_cache_of_kubernetes_pass() {
    let mut tests = Command::new(program("INFORMERD_STORAGE"));
    let output = tests.env("INFORMERD", informerd()).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", text.lines().last().unwrap_or_default());
}
