//! Lineage of a source that numbers its versions itself.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::model::{Lineage, random_id};

/// Returns a text of `[a-z0-9]` that no earlier run had: the time in milliseconds, then random digits in case two runs begin in
/// the same millisecond.
pub(super) fn new_lineage() -> Lineage {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    // Four digits of base 36.
    Lineage::from(&*format!("{}{:0>4}", base36(millis), base36(random_id() % 36_u64.pow(4))))
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    while number > 0 || digits.is_empty() {
        digits.push(char::from_digit((number % 36) as u32, 36).unwrap_or('0'));
        number /= 36;
    }
    digits.into_iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::ResourceVersion;

    #[test]
    fn lineages_differ_from_start_to_start() {
        let versions: BTreeSet<_> =
            (0..50).map(|_| ResourceVersion::of_lineage(new_lineage(), 1).to_string()).collect();
        assert!(versions.len() > 45, "{versions:?}");
        assert!(versions.iter().all(|version| version.parse::<ResourceVersion>().is_ok()));
    }
}
