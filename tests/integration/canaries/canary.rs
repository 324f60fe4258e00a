//! Canaries: texts that nobody without the right may see, and the search for them in any of the usual encodings.

use std::{collections::BTreeSet, fmt::Write};

use base64::{Engine, engine::general_purpose::STANDARD};
use memchr::memmem::Finder;
use ring::digest::{SHA256, digest};

/// Secret of a kind, by which it is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Bearer token of a client, its hash, or a password that a client sends.
    Token,
    /// Credentials with which the server reads an upstream.
    Upstream,
    /// Data of a Secret.
    Secret,
    /// Body of a pod in the namespace that Ann may read.
    Open,
    /// Body of a pod in another one.
    Closed,
    /// Body of a `ConfigMap`.
    Settings,
}

/// Search for all canaries.
pub(super) struct Search {
    /// Encodings of [`MARK`], without which there is no canary.
    marks: Vec<Finder<'static>>,
    kinds: Vec<(Kind, Finder<'static>)>,
}

/// Beginning of each canary.
const MARK: &str = "CanaryOfInformerd";
const KINDS: [Kind; 6] = [Kind::Token, Kind::Upstream, Kind::Secret, Kind::Open, Kind::Closed, Kind::Settings];

// === impl Kind ===

impl Kind {
    /// Returns a canary.
    pub(super) fn canary(self, name: &str) -> String {
        format!("{MARK}{self:?}{name}")
    }
}

// === impl Search ===

impl Search {
    /// Searches for all kinds, and for the hashes of these tokens.
    pub(super) fn new(tokens: &[&str]) -> Self {
        let finders = |text: &str| encodings(text).into_iter().map(|form| Finder::new(&form).into_owned());
        let mut kinds: Vec<_> =
            KINDS.into_iter().flat_map(|kind| finders(&kind.canary("")).map(move |finder| (kind, finder))).collect();
        let hashes: Vec<_> = tokens.iter().flat_map(|token| hash_forms(token)).collect();
        let hashes = || hashes.iter().map(|form| Finder::new(form).into_owned());
        kinds.extend(hashes().map(|finder| (Kind::Token, finder)));
        Self { marks: finders(MARK).chain(hashes()).collect(), kinds }
    }

    /// Returns the kinds of the canaries in a text.
    pub(super) fn kinds(&self, text: &[u8]) -> BTreeSet<Kind> {
        if !self.marks.iter().any(|mark| mark.find(text).is_some()) {
            return BTreeSet::new();
        }
        self.kinds.iter().filter(|(_, finder)| finder.find(text).is_some()).map(|(kind, _)| *kind).collect()
    }

    /// Checks that a text has no canaries but of these kinds.
    #[track_caller]
    pub(super) fn check(&self, place: &str, text: &[u8], allowed: &[Kind]) {
        let is_found =
            |(kind, finder): &&(Kind, Finder<'static>)| !allowed.contains(kind) && finder.find(text).is_some();
        if self.kinds(text).is_empty() {
            return;
        }
        if let Some((kind, finder)) = self.kinds.iter().find(is_found) {
            let at = finder.find(text).unwrap();
            let around = &text[at.saturating_sub(300)..text.len().min(at + 100)];
            panic!("{kind:?} in {place}: …{}…", String::from_utf8_lossy(around));
        }
    }
}

/// Returns a text as it is, in base64 wherever it begins, and in hexadecimal digits.
fn encodings(text: &str) -> Vec<Vec<u8>> {
    let mut forms = vec![text.as_bytes().to_vec()];
    for before in 0..3 {
        let encoded = STANDARD.encode([&b"xx"[..before], text.as_bytes()].concat());
        // The first and the last digits depend on what is around it.
        let (first, last) = ([0, 2, 3][before], encoded.trim_end_matches('=').len() - 1);
        forms.push(encoded.as_bytes()[first..last].to_vec());
    }
    forms.extend(hex(text.as_bytes()));
    forms
}

fn hash_forms(token: &str) -> Vec<Vec<u8>> {
    let hash = digest(&SHA256, token.as_bytes());
    let mut forms = hex(hash.as_ref()).to_vec();
    forms.extend([hash.as_ref().to_vec(), STANDARD.encode(hash).into_bytes()]);
    forms
}

fn hex(bytes: &[u8]) -> [Vec<u8>; 2] {
    let mut digits = String::new();
    for byte in bytes {
        write!(digits, "{byte:02x}").unwrap();
    }
    [digits.to_uppercase().into_bytes(), digits.into_bytes()]
}

#[test]
fn a_canary_is_found_in_each_encoding() {
    let search = Search::new(&["token"]);
    let canary = Kind::Secret.canary("1");
    for before in ["", "a", "ab", "abc"] {
        let text = format!("{before}{canary} and more");
        let [upper, lower] = hex(text.as_bytes());
        for form in [text.clone().into_bytes(), STANDARD.encode(&text).into_bytes(), upper, lower] {
            assert_eq!(search.kinds(&form), [Kind::Secret].into(), "{}", String::from_utf8_lossy(&form));
        }
    }
    for form in hash_forms("token") {
        assert_eq!(search.kinds(&form), [Kind::Token].into());
    }
    assert!(search.kinds(&Kind::Secret.canary("1").as_bytes()[1..]).is_empty());
    search.check("a place", canary.as_bytes(), &[Kind::Secret]);
    let refused = std::panic::catch_unwind(|| search.check("a place", canary.as_bytes(), &[Kind::Open]));
    assert!(refused.is_err());
}
