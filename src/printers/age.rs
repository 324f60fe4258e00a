//! Ages in kubectl's format: two units while the second is significant.

use std::time::{Duration, SystemTime};

use prost_types::Timestamp;

use crate::proto;

/// Returns the time since an RFC 3339 time.
pub(crate) fn age(since: &str, now: SystemTime) -> String {
    age_of(since.parse().ok(), now).unwrap_or_else(|| "<invalid>".to_owned())
}

/// Returns the time since a time, if there is one; a time in the future counts as now.
pub(crate) fn age_of(since: Option<Timestamp>, now: SystemTime) -> Option<String> {
    let since = proto::system_time(since?)?;
    Some(human(now.duration_since(since).unwrap_or_default()))
}

/// Formats a duration as apimachinery's `duration.HumanDuration`.
pub(crate) fn human(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |first: u64, unit: char, rest: u64, rest_unit: char| {
        if rest == 0 { format!("{first}{unit}") } else { format!("{first}{unit}{rest}{rest_unit}") }
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, 'd', hours % 24, 'h'),
        () if days < 2 * 365 => format!("{days}d"),
        () if days < 8 * 365 => two(days / 365, 'y', days % 365, 'd'),
        () => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_those_of_kubectl() {
        let (minute, hour, day) = (60, 3600, 86_400);
        let table = [
            (0, "0s"),
            (119, "119s"),
            (2 * minute, "2m"),
            (9 * minute + 5, "9m5s"),
            (10 * minute + 5, "10m"),
            (179 * minute, "179m"),
            (3 * hour, "3h"),
            (7 * hour + 59 * minute, "7h59m"),
            (8 * hour + 59 * minute, "8h"),
            (47 * hour, "47h"),
            (2 * day, "2d"),
            (7 * day + 23 * hour, "7d23h"),
            (8 * day + 23 * hour, "8d"),
            (729 * day, "729d"),
            (730 * day, "2y"),
            (800 * day, "2y70d"),
            (3000 * day, "8y"),
        ];
        for (seconds, expected) in table {
            assert_eq!(human(Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn an_age_is_computed_from_a_time_or_invalid() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        assert_eq!(age("2001-09-09T01:46:30Z", now), "10s");
        assert_eq!(age("2001-09-09T03:46:30.5+02:00", now), "9s");
        assert_eq!(age("2031-01-01T00:00:00Z", now), "0s", "clocks differ");
        assert_eq!(age("yesterday", now), "<invalid>");
    }
}
