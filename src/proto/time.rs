//! Durations and times of messages: a peer may send any number, and none of them panics.

use std::time::{Duration, SystemTime};

use prost_types::Timestamp;

/// Converts the duration of a message; `None` if it is negative.
///
/// The conversion of `prost_types` negates the seconds of a negative one, which the least number does not survive.
pub fn duration(given: prost_types::Duration) -> Option<Duration> {
    let nanos = i128::from(given.seconds) * NANOS_PER_SECOND + i128::from(given.nanos);
    let (seconds, nanos) = (nanos.div_euclid(NANOS_PER_SECOND), nanos.rem_euclid(NANOS_PER_SECOND));
    Some(Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanos).ok()?))
}

/// Converts a duration to that of a message; `None` if it is longer than any.
pub fn duration_message(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

/// Converts the time of a message; `None` if the system has no such time.
pub fn system_time(given: Timestamp) -> Option<SystemTime> {
    SystemTime::try_from(given).ok()
}

const NANOS_PER_SECOND: i128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, sample::select};

    use super::*;

    /// Numbers around those at which a calculation overflows, a sign changes or a unit ends.
    fn seconds() -> impl Strategy<Value = i64> {
        let year = 31_556_952_i64;
        let ends = vec![0, i64::MIN, i64::MAX, i64::from(i32::MIN), i64::from(u32::MAX), 9999 * year, -62_135_596_800];
        prop_oneof![any::<i64>(), (select(ends), -2..=2_i64).prop_map(|(end, by)| end.saturating_add(by))]
    }

    fn nanos() -> impl Strategy<Value = i32> {
        let ends = vec![0, i32::MIN, i32::MAX, 1_000_000_000, -1_000_000_000];
        prop_oneof![any::<i32>(), (select(ends), -2..=2_i32).prop_map(|(end, by)| end.saturating_add(by))]
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        #[test]
        fn no_duration_and_no_time_panics(seconds in seconds(), nanos in nanos()) {
            let found = duration(prost_types::Duration { seconds, nanos });
            let _ = found.and_then(duration_message);
            let expected = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
            let found = found.map(|found| i128::try_from(found.as_nanos()).unwrap());
            prop_assert_eq!(found, Some(expected).filter(|expected| *expected >= 0));
            let time = Timestamp { seconds, nanos };
            if let Some(found) = system_time(time) {
                prop_assert_eq!(Timestamp::from(found), time.normalized());
            }
            prop_assert!(!time.to_string().is_empty());
        }
    }
}
