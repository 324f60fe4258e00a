//! Position of a resource in its upstream's history.

use std::{cmp::Ordering, fmt, str::FromStr, sync::Arc};

/// Resource version: the upstream's own decimal (kube, etcd), or `<lineage>.<n>` for sources without versions of their own
/// (files, stream), whose lineage is new at each start.
///
/// Two versions can be compared only within one lineage ([`PartialOrd`] returns `None` otherwise), as in KEP-5504, whose
/// decimals have no leading zero. Numbers above 2^128-1, the largest that Kubernetes' conformance tests require, are
/// rejected.
#[derive(PartialEq, Eq, Hash)]
pub struct ResourceVersion {
    lineage: Option<Lineage>,
    /// Upper and lower half: every object and every event has one, and a `u128` would be aligned to 16 bytes.
    number: [u64; 2],
}

/// Common prefix of the versions of one start of a source: `[a-z0-9]+`. One pointer, which all of them share.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Lineage(Arc<String>);

/// Indicates a text that is not a resource version of any source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a resource version: expected a decimal without leading zeros, or <lineage>.<decimal>")]
pub struct VersionError {
    text: String,
}

// === impl ResourceVersion ===

impl ResourceVersion {
    /// Returns a version of an upstream that counts by itself.
    pub const fn decimal(number: u128) -> Self {
        Self { lineage: None, number: halves(number) }
    }

    /// Returns version `number` of `lineage`.
    pub const fn of_lineage(lineage: Lineage, number: u128) -> Self {
        Self { lineage: Some(lineage), number: halves(number) }
    }

    /// Parses a version of an upstream that counts by itself.
    ///
    /// # Errors
    ///
    /// Fails if the text is no decimal.
    pub fn parse_decimal(text: &str) -> Result<Self, VersionError> {
        let version: Self = text.parse()?;
        if version.lineage.is_some() { Err(VersionError::of(text)) } else { Ok(version) }
    }

    /// Returns the lineage, for sources without versions of their own.
    pub fn lineage(&self) -> Option<&Lineage> {
        self.lineage.as_ref()
    }

    /// Returns the number within the lineage.
    pub fn number(&self) -> u128 {
        let [upper, lower] = self.number;
        (u128::from(upper) << 64) | u128::from(lower)
    }

    /// Returns the following version of the same lineage.
    #[must_use]
    pub fn next(&self) -> Self {
        Self { lineage: self.lineage.clone(), number: halves(self.number() + 1) }
    }

    /// Returns the previous version of the same lineage; for 0, which has none, 0 itself.
    #[must_use]
    pub fn previous(&self) -> Self {
        Self { lineage: self.lineage.clone(), number: halves(self.number().saturating_sub(1)) }
    }

    /// Returns the lower half of the number.
    pub(crate) fn lower(&self) -> u64 {
        self.number[1]
    }

    /// Returns true if the upper half of the number is that of another version.
    pub(crate) fn has_upper_of(&self, other: &Self) -> bool {
        self.number[0] == other.number[0]
    }

    /// Returns the version of the same lineage with another lower half of the number.
    pub(crate) fn with_lower(&self, lower: u64) -> Self {
        Self { lineage: self.lineage.clone(), number: [self.number[0], lower] }
    }

    /// Returns true if both have the same lineage, so that they can be compared.
    pub fn same_lineage(&self, other: &Self) -> bool {
        self.lineage == other.lineage
    }
}

impl Clone for ResourceVersion {
    fn clone(&self) -> Self {
        Self { lineage: self.lineage.clone(), number: self.number }
    }

    /// Copies without touching a reference count if the lineage is the same: every watch copies the version of every event,
    /// on all threads.
    fn clone_from(&mut self, other: &Self) {
        self.number = other.number;
        let is_same = match (&self.lineage, &other.lineage) {
            (Some(Lineage(lineage)), Some(Lineage(other))) => Arc::ptr_eq(lineage, other),
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            self.lineage.clone_from(&other.lineage);
        }
    }
}

impl PartialOrd for ResourceVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.same_lineage(other).then(|| self.number.cmp(&other.number))
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lineage {
            Some(Lineage(lineage)) => write!(f, "{lineage}.{}", self.number()),
            None => write!(f, "{}", self.number()),
        }
    }
}

impl fmt::Debug for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ResourceVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let error = || VersionError::of(text);
        let (lineage, digits) = match text.split_once('.') {
            Some((lineage, digits)) if is_lineage(lineage) => (Some(Lineage::from(lineage)), digits),
            Some(_) => return Err(error()),
            None => (None, text),
        };
        let well_formed = match digits.as_bytes() {
            // A lineage begins at 0, before its first change; an upstream's own "0" is not a version (KEP-5504).
            [b'0'] => lineage.is_some(),
            [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
            _ => false,
        };
        if !well_formed {
            return Err(error());
        }
        Ok(Self { lineage, number: halves(digits.parse().map_err(|_| error())?) })
    }
}

// === impl VersionError ===

impl VersionError {
    fn of(text: &str) -> Self {
        Self { text: text.chars().take(64).collect() }
    }
}

// === impl Lineage ===

impl Lineage {
    /// Parses a lineage; `None` of anything but `[a-z0-9]+`.
    pub fn parse(text: &str) -> Option<Self> {
        is_lineage(text).then(|| Self::from(text))
    }

    /// Returns the text before the dot.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Lineage {
    /// Converts a text of `[a-z0-9]` only.
    fn from(text: &str) -> Self {
        debug_assert!(is_lineage(text));
        Self(Arc::new(text.to_owned()))
    }
}

impl fmt::Debug for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const fn halves(number: u128) -> [u64; 2] {
    [(number >> 64) as u64, number as u64]
}

fn is_lineage(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> ResourceVersion {
        text.parse().unwrap()
    }

    /// KEP-5504: the comparison table of apimachinery's resourceversion package.
    #[test]
    fn decimals_compare_as_numbers_and_not_as_text() {
        assert!(version("9") < version("10"));
        assert!(version("10") > version("9"));
        assert_eq!(version("10").partial_cmp(&version("10")), Some(Ordering::Equal));
        assert!(
            version("340282366920938463463374607431768211454") < version("340282366920938463463374607431768211455"),
            "2^128-1, the largest of the conformance test"
        );
    }

    #[test]
    fn invalid_versions_are_rejected() {
        for text in ["", "0", "01", "a", "-1", "+1", "1.", ".1", "A.1", "a.01", "a.b.1", "1 ", "a.-1"] {
            assert!(text.parse::<ResourceVersion>().is_err(), "{text:?}");
        }
        assert!("9".repeat(40).parse::<ResourceVersion>().is_err());
    }

    #[test]
    fn versions_of_the_upstream_have_no_lineage() {
        assert_eq!(ResourceVersion::parse_decimal("12"), Ok(version("12")));
        assert!(ResourceVersion::parse_decimal("abc.12").is_err() && ResourceVersion::parse_decimal("x").is_err());
    }

    #[test]
    fn versions_of_different_lineages_have_no_order() {
        assert_eq!(version("a1.5").partial_cmp(&version("b1.6")), None);
        assert_eq!(version("a1.5").partial_cmp(&version("6")), None);
        assert!(version("a1.5") < version("a1.6"));
        assert!(version("a1.18446744073709551615") < version("a1.18446744073709551616"));
    }

    #[test]
    fn a_version_prints_as_it_was_written() {
        for text in ["1", "18446744073709551616", "abc123.0", "abc123.42"] {
            assert_eq!(version(text).to_string(), text);
        }
        assert_eq!(version("18446744073709551616").number(), 1 << 64);
        assert_eq!(version("18446744073709551615").next(), version("18446744073709551616"));
        assert_eq!(version("abc.9").next().to_string(), "abc.10");
    }
}
