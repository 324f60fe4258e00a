//! Numbers in at most six characters: counts, rates, bytes and short times.

use std::time::Duration;

use super::age::human;

const COUNTS: &[&str] = &["", "k", "M", "G", "T", "P", "E"];
const BYTES: &[&str] = &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Counts from here on have a unit.
const LONG: f64 = 99_999.5;

/// Formats a count: `99999`, `123k`, `4.5M`.
pub(crate) fn count(count: u64) -> String {
    if (count as f64) < LONG { count.to_string() } else { scaled(count as f64, 1000.0, COUNTS) }
}

/// Formats a number of bytes as a Kubernetes quantity: `512`, `1.5Ki`, `68Ki`.
pub(crate) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, BYTES)
}

/// Formats a number in a second: `0.5`, `120`, `123k`; `-` if it is unknown.
pub(crate) fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(rate) if rate <= 0.0 => "0".to_owned(),
        Some(rate) if rate < 0.05 => "<0.1".to_owned(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) if rate < LONG => format!("{rate:.0}"),
        Some(rate) => scaled(rate, 1000.0, COUNTS),
    }
}

/// Formats a number of bytes in a second; `-` if it is unknown.
pub(crate) fn byte_rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| scaled(rate.max(0.0).round(), 1024.0, BYTES))
}

/// Formats a delay: `0`, `850ms`, `1.5s`, `12s`, `3m`.
pub(crate) fn delay(delay: Duration) -> String {
    match delay.as_secs_f64() {
        0.0 => "0".to_owned(),
        seconds if seconds < 0.9995 => format!("{:.0}ms", (seconds * 1000.0).max(1.0)),
        seconds if seconds < 9.95 => format!("{seconds:.1}s"),
        seconds => human(Duration::from_secs_f64(seconds.round())),
    }
}

/// Divides a number until it has at most four digits; one digit alone has a decimal.
fn scaled(mut number: f64, step: f64, units: &[&str]) -> String {
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    while number >= step - 0.5
        && let Some(next) = units.next()
    {
        number /= step;
        unit = next;
    }
    if unit.is_empty() || number >= 9.95 { format!("{number:.0}{unit}") } else { format!("{number:.1}{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_six_characters() {
        let counts = [(0, "0"), (99_999, "99999"), (100_000, "100k"), (999_499, "999k"), (999_500, "1.0M")];
        for (number, expected) in counts {
            assert_eq!(count(number), expected);
        }
        let table = [(0, "0"), (1023, "1023"), (1024, "1.0Ki"), (1536, "1.5Ki"), (70_000, "68Ki"), (1 << 20, "1.0Mi")];
        for (number, expected) in table {
            assert_eq!(bytes(number), expected);
        }
        for number in [u64::MAX, u64::MAX / 1000, (1 << 50) - 1, 1023 << 20, 1_048_575] {
            assert!(bytes(number).len() <= 6 && count(number).len() <= 6, "{} {}", bytes(number), count(number));
        }
        assert_eq!(bytes(u64::MAX), "16Ei");
    }

    #[test]
    fn rates_and_delays_are_short() {
        let rates = [
            (None, "-"),
            (Some(0.0), "0"),
            (Some(0.01), "<0.1"),
            (Some(0.5), "0.5"),
            (Some(9.94), "9.9"),
            (Some(9.96), "10"),
            (Some(12_345.6), "12346"),
            (Some(123_456.0), "123k"),
            (Some(1e12), "1.0T"),
        ];
        for (number, expected) in rates {
            assert_eq!(rate(number), expected, "{number:?}");
        }
        assert_eq!([None, Some(0.0), Some(1536.4)].map(byte_rate), ["-", "0", "1.5Ki"]);
        let delays =
            [(0, "0"), (1, "1ms"), (850, "850ms"), (999, "999ms"), (1500, "1.5s"), (12_400, "12s"), (180_000, "3m")];
        for (millis, expected) in delays {
            assert_eq!(delay(Duration::from_millis(millis)), expected);
        }
        assert_eq!(delay(Duration::from_nanos(5)), "1ms");
        assert_eq!(delay(Duration::from_secs(86_400 * 30)), "30d");
    }
}
