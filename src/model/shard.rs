//! Shards: parts of a resource by ranges of a hash, as in Kubernetes' sharded list and watch (KEP-5866).

mod parse;

use std::{borrow::Cow, fmt, sync::Arc};

use super::{Object, Path, SyntaxError};

/// Part of the objects of a resource, for fleets of workers that divide it among them: those whose hash is in one of its ranges.
///
/// The hash is FNV-1a with 64 bits over the value of the key, as in apimachinery's `pkg/sharding`, so that an object is in the same
/// shard at Kubernetes. Shards with the same key and the same hashes are equal.
///
/// It parses from `2/8`, the third of eight equal parts by uid, which are `0/8` to `7/8`; from `spec.nodeName:2/8`, the same by
/// another key; and from Kubernetes' `shardRange(object.metadata.uid, '0x4000000000000000', '0x8000000000000000')`, or several of
/// these with `||`, for the uid or the namespace. Leading zeros may be left out there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    key: ShardKey,
    /// Sorted; hashes lie between any two.
    ranges: Arc<[ShardRange]>,
}

/// Value of an object whose hash decides about its shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ShardKey {
    /// Uid; objects without one share a hash.
    Uid,
    /// Namespace; empty for an object without one.
    Namespace,
    /// `namespace/name`, or the name alone without a namespace.
    Key,
    /// Scalar at a path of a JSON body; empty if it is missing.
    Path(Path),
}

/// Range of hashes; it has at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardRange {
    first: u64,
    last: u64,
}

/// Indicates a shard that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// Key that is no path of one scalar.
    #[error("{0}; expected uid, namespace, key, or a path such as spec.nodeName")]
    Key(SyntaxError),
    /// Number of ranges out of bounds.
    #[error("expected 1 to {} ranges, found {found}", Shard::MAX_RANGES)]
    Count {
        /// Number of ranges.
        found: usize,
    },
    /// Range without a hash.
    #[error("range {start:#018x} to {end:#018x} is empty or reversed")]
    Empty {
        /// First hash.
        start: u64,
        /// Hash after the last one.
        end: u64,
    },
}

// === impl Shard ===

impl Shard {
    /// Maximum number of ranges.
    pub const MAX_RANGES: usize = 64;

    /// Returns the objects whose hash is in one of these ranges, each with its first hash and the one after its last; 0 there is 2^64.
    ///
    /// # Errors
    ///
    /// If there is no range or more than [`Shard::MAX_RANGES`], or one has no hash.
    pub fn new(key: ShardKey, ranges: &[(u64, u64)]) -> Result<Self, ShardError> {
        if ranges.is_empty() || ranges.len() > Self::MAX_RANGES {
            return Err(ShardError::Count { found: ranges.len() });
        }
        let mut sorted = Vec::new();
        for &(start, end) in ranges {
            let last = end.wrapping_sub(1);
            if start > last {
                return Err(ShardError::Empty { start, end });
            }
            sorted.push(ShardRange { first: start, last });
        }
        sorted.sort_unstable();
        let mut merged: Vec<ShardRange> = Vec::new();
        for range in sorted {
            match merged.last_mut().filter(|before| before.last >= range.first.saturating_sub(1)) {
                Some(before) => before.last = before.last.max(range.last),
                None => merged.push(range),
            }
        }
        Ok(Self { key, ranges: merged.into() })
    }

    /// Returns the part with this number, from 0, of so many equal ones; `None` if there is no such part.
    pub fn part(key: ShardKey, part: u64, of: u64) -> Option<Self> {
        let border = |part: u64| ((u128::from(part) << 64) / u128::from(of)) as u64;
        let ranges = || [(border(part), if part + 1 == of { 0 } else { border(part + 1) })];
        (part < of).then(|| Self::new(key, &ranges()).ok()).flatten()
    }

    /// Returns the key.
    pub fn key(&self) -> &ShardKey {
        &self.key
    }

    /// Returns the ranges, sorted; hashes lie between any two.
    pub fn ranges(&self) -> &[ShardRange] {
        &self.ranges
    }

    /// Returns true if the object is in the shard.
    pub fn matches(&self, object: &Object) -> bool {
        let hash = self.key.hash(object);
        let after = self.ranges.partition_point(|range| range.first <= hash);
        after.checked_sub(1).is_some_and(|at| hash <= self.ranges[at].last)
    }

    /// Returns true if the shard depends on more than the key and the uid of an object.
    pub fn reads_body(&self) -> bool {
        matches!(self.key, ShardKey::Path(_))
    }
}

impl fmt::Display for Shard {
    /// Writes Kubernetes' syntax; keys that Kubernetes does not have, too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, ShardRange { first, last }) in self.ranges.iter().enumerate() {
            let separator = if at == 0 { "" } else { " || " };
            let (key, end) = (&self.key, u128::from(*last) + 1);
            write!(f, "{separator}shardRange({key}, '{first:#018x}', '{end:#018x}')")?;
        }
        Ok(())
    }
}

// === impl ShardKey ===

impl ShardKey {
    /// Parses `uid`, `namespace`, `key` or the path of a scalar.
    ///
    /// # Errors
    ///
    /// If the text is none of these.
    pub fn parse(text: &str) -> Result<Self, ShardError> {
        match text {
            "uid" => Ok(Self::Uid),
            "namespace" => Ok(Self::Namespace),
            "key" => Ok(Self::Key),
            _ => {
                let path = Path::parse(text).map_err(ShardError::Key)?;
                if path.has_wildcard() {
                    let at = text.find("[*]").unwrap_or_default();
                    let error =
                        SyntaxError::new(text, at, "[*] is not allowed in the key of a shard, which is one value");
                    return Err(ShardError::Key(error));
                }
                Ok(Self::Path(path))
            }
        }
    }

    /// Returns the text that parses to this key.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Uid => "uid",
            Self::Namespace => "namespace",
            Self::Key => "key",
            Self::Path(path) => path.as_str(),
        }
    }

    /// Returns the hash of the object's value.
    pub fn hash(&self, object: &Object) -> u64 {
        fnv1a(&match self {
            Self::Uid => Cow::Borrowed(object.uid()),
            Self::Namespace => Cow::Borrowed(object.key().namespace()),
            Self::Key => Cow::Owned(object.key().to_string()),
            Self::Path(path) => object.json().and_then(|json| path.scalar_of_json(json)).unwrap_or_default(),
        })
    }
}

impl fmt::Display for ShardKey {
    /// Writes the key as in an expression over `object`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid => f.write_str("object.metadata.uid"),
            Self::Namespace => f.write_str("object.metadata.namespace"),
            Self::Key => f.write_str("key"),
            Self::Path(path) => write!(f, "object{path}"),
        }
    }
}

// === impl ShardRange ===

impl ShardRange {
    /// Returns the first hash.
    pub fn first(self) -> u64 {
        self.first
    }

    /// Returns the last hash.
    pub fn last(self) -> u64 {
        self.last
    }
}

/// Returns apimachinery's `HashField` as a number.
fn fnv1a(text: &str) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    text.bytes().fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests;
