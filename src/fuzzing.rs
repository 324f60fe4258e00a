//! Fuzz targets of all decoders of foreign input: from clients, upstreams, and files.
//!
//! Compiled into tests, and for libFuzzer by cargo-fuzz, which sets `cfg(fuzzing)`: `fuzz/run` runs them. `cargo test` replays
//! the inputs of `fuzz/corpus`, each unchanged, cut, and with bytes changed. A target accepts any bytes. Besides not panicking
//! itself, the decoder has to give a correct result: each target states the reference that it compares with, and panics if they
//! differ.
//!
//! Targets of private items of a module are in its own `fuzzing` module.

#[cfg(feature = "cel")]
mod expressions;
mod field_cut;
mod naive;
mod selectors;
mod views;

use crate::{
    cache, grpc,
    model::{Object, ResourceVersion, SyntaxError},
    source,
};

/// Fuzz target.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("etcd", etcd),
    #[cfg(feature = "cel")]
    ("expressions", expressions),
    ("field_cut", field_cut),
    ("framing", framing),
    #[cfg(feature = "kube")]
    ("kube", kube),
    ("selectors", selectors),
    ("snapshot", snapshot),
    ("tokens", tokens),
    ("views", views),
];

/// Follows the responses of an etcd watch.
pub fn etcd(data: &[u8]) {
    source::etcd::fuzzing::watch(data, &pieces(data));
}

/// Compiles a CEL expression, and evaluates it on the object after it.
#[cfg(feature = "cel")]
pub fn expressions(data: &[u8]) {
    let (text, body) = split(data);
    if let Ok(text) = str::from_utf8(text) {
        expressions::check(text, &object(body));
    }
}

/// Cuts the fields at some paths, one per line, out of the JSON after them.
pub fn field_cut(data: &[u8]) {
    let (paths, json) = split(data);
    if let Ok(paths) = str::from_utf8(paths) {
        field_cut::check(paths, json);
    }
}

/// Finds the events and the lines in a stream, for any division of it into pieces.
pub fn framing(data: &[u8]) {
    source::stream::fuzzing::events(data, &pieces(data));
    #[cfg(feature = "kube")]
    source::kube::fuzzing::lines(data, &pieces(data));
}

/// Reads a list of the Kubernetes API, and each line as a watch event, a bookmark and a `Status`.
#[cfg(feature = "kube")]
pub fn kube(data: &[u8]) {
    source::kube::fuzzing::list(data);
    data.split(|byte| *byte == b'\n').for_each(source::kube::fuzzing::line);
}

/// Parses a label selector and a field selector, and applies them to the object after them.
pub fn selectors(data: &[u8]) {
    let (text, body) = split(data);
    if let Ok(text) = str::from_utf8(text) {
        selectors::labels(text, &object(body));
        selectors::fields(text, &object(body));
    }
}

/// Reads a snapshot file, or the record of one object in such a file.
pub fn snapshot(data: &[u8]) {
    cache::fuzzing::snapshot(data);
}

/// Reads a page token, encoded or not, and a resource version.
pub fn tokens(data: &[u8]) {
    grpc::fuzzing::page_token(data);
    if let Ok(text) = str::from_utf8(data) {
        naive::check_versions(text);
    }
}

/// Projects the JSON after some paths, one per line, to them; those that begin with `-` are left out.
pub fn views(data: &[u8]) {
    // A body that is not a map is the last line.
    let last_line = || memchr::memrchr(b'\n', data).map(|end| (&data[..end], &data[end + 1..]));
    let (paths, json) =
        Some(split(data)).filter(|(_, json)| !json.is_empty()).or_else(last_line).unwrap_or((data, &[]));
    if let Ok(paths) = str::from_utf8(paths) {
        views::check(paths, json);
    }
}

/// Splits an input at the first line that begins with `{`: the text before it, without its last line end, and the rest.
fn split(data: &[u8]) -> (&[u8], &[u8]) {
    if data.starts_with(b"{") {
        return (&[], data);
    }
    let end = memchr::memmem::find(data, b"\n{").unwrap_or(data.len());
    (&data[..end], data.get(end + 1..).unwrap_or_default())
}

/// Returns the object of a body, or a small one.
fn object(body: &[u8]) -> Object {
    let pod = r#"{"kind":"Pod","metadata":{"namespace":"shop","name":"web","labels":{"app":"web","n":"3"}},
        "spec":{"n":3,"x":1.5,"on":true,"none":null,"l":[{"n":1},{"n":"2"}],"s":["a","b"]}}"#;
    let read = |body: &[u8]| Object::from_json(body, "file", ResourceVersion::decimal(7));
    read(body).or_else(|_| read(pod.as_bytes())).expect("an object")
}

/// Divides an input into pieces: whole, byte by byte, and at places that depend on all of it.
fn pieces(data: &[u8]) -> [Vec<&[u8]>; 3] {
    let mut state = data
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |state, byte| (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let (mut any, mut rest) = (Vec::new(), data);
    while !rest.is_empty() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (piece, after) = rest.split_at(1 + (state >> 33) as usize % rest.len());
        any.push(piece);
        rest = after;
    }
    [vec![data], data.chunks(1).collect(), any]
}

/// Checks that an error's position is in its text, and that its length is bounded.
fn check_error(text: &str, error: &SyntaxError, max_bytes: usize) {
    assert!((1..=text.chars().count() + 1).contains(&error.position()), "{error}");
    assert!(error.to_string().len() <= max_bytes, "{error}");
}

#[cfg(test)]
mod tests;
