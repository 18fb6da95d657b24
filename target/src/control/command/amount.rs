//! Numbers, sizes and times in few characters.

/// A count: exact below ten thousand, then with three digits and a unit.
pub(super) fn count(number: u64) -> String {
    if number < 10_000 { number.to_string() } else { scaled(number, 1000, &["k", "M", "G", "T", "P", "E"]) }
}

/// Bytes, in binary units.
pub(super) fn bytes(number: u64) -> String {
    if number < 1024 {
        format!("{number} B")
    } else {
        scaled(number, 1024, &[" KiB", " MiB", " GiB", " TiB", " PiB", " EiB"])
    }
}

/// How long something has been so.
pub(super) fn age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match () {
        () if days > 0 => format!("{days}d {}h", hours % 24),
        () if hours > 0 => format!("{hours}h {}m", minutes % 60),
        () if minutes > 0 => format!("{minutes}m {}s", seconds % 60),
        () => format!("{seconds}s"),
    }
}

/// A time of so many nanoseconds.
pub(super) fn nanos(nanos: u64) -> String {
    let value = nanos as f64;
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{} µs", digits(value / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", digits(value / 1e6)),
        _ => format!("{} s", digits(value / 1e9)),
    }
}

fn scaled(number: u64, base: u64, units: &[&str]) -> String {
    let (mut value, mut unit) = (number as f64 / base as f64, 0);
    while value >= 999.5 && unit + 1 < units.len() {
        (value, unit) = (value / base as f64, unit + 1);
    }
    format!("{}{}", digits(value), units[unit])
}

/// Three digits, without a fraction that is zero.
fn digits(value: f64) -> String {
    let places = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.places$}");
    if places == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_few_characters() {
        let counts = [(0, "0"), (9999, "9999"), (10_000, "10k"), (123_456, "123k"), (1_234_567, "1.23M")];
        for (number, text) in counts {
            assert_eq!(count(number), text);
        }
        let sizes =
            [(0, "0 B"), (1023, "1023 B"), (4096, "4 KiB"), (1 << 20, "1 MiB"), (1_610_612_736, "1.5 GiB")];
        for (number, text) in sizes {
            assert_eq!(bytes(number), text);
        }
        assert_eq!(bytes(u64::MAX), "16 EiB");
        for (seconds, text) in [(5, "5s"), (65, "1m 5s"), (3600, "1h 0m"), (90_000, "1d 1h")] {
            assert_eq!(age(seconds), text);
        }
        for (time, text) in
            [(17, "17 ns"), (12_340, "12.3 µs"), (4_000_000, "4 ms"), (1_500_000_000, "1.5 s")]
        {
            assert_eq!(nanos(time), text);
        }
    }
}
