//! Numbers in at most six characters: bytes and short times.

use std::time::Duration;

use super::age::human;

const BYTES: &[&str] = &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Formats a number of bytes as a Kubernetes quantity: `512`, `1.5Ki`, `68Ki`.
pub(crate) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64)
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
fn scaled(mut number: f64) -> String {
    let mut units = BYTES.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    while number >= 1023.5
        && let Some(next) = units.next()
    {
        number /= 1024.0;
        unit = next;
    }
    if unit.is_empty() || number >= 9.95 { format!("{number:.0}{unit}") } else { format!("{number:.1}{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_six_characters() {
        let table = [(0, "0"), (1023, "1023"), (1024, "1.0Ki"), (1536, "1.5Ki"), (70_000, "68Ki"), (1 << 20, "1.0Mi")];
        for (number, expected) in table {
            assert_eq!(bytes(number), expected);
        }
        for number in [u64::MAX, u64::MAX / 1000, (1 << 50) - 1, 1023 << 20, 1_048_575] {
            assert!(bytes(number).len() <= 6, "{}", bytes(number));
        }
        assert_eq!(bytes(u64::MAX), "16Ei");
    }

    #[test]
    fn delays_are_short() {
        let delays =
            [(0, "0"), (1, "1ms"), (850, "850ms"), (999, "999ms"), (1500, "1.5s"), (12_400, "12s"), (180_000, "3m")];
        for (millis, expected) in delays {
            assert_eq!(delay(Duration::from_millis(millis)), expected);
        }
        assert_eq!(delay(Duration::from_nanos(5)), "1ms");
        assert_eq!(delay(Duration::from_secs(86_400 * 30)), "30d");
    }
}
