//! Sizes and times as people write them.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::time::Duration;

use ringfab_base::parse_size;

/// A number of bytes: `4096`, `4k`, `128KiB`, `2GB`, as [`parse_size`] reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// A time: `10`, `10s`, `500ms`, `50us`, `2m`, `1h`. A number without a unit is in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

/// A time, or `never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<Duration>);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_size(text).map(Bytes).map_err(|error| error.to_string())
    }
}

impl fmt::Display for Bytes {
    /// In the largest unit that keeps the number at one or more; exact numbers without a fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let unit = (0..UNITS.len()).rfind(|unit| self.0 >= 1 << (10 * unit)).unwrap_or(0);
        let one = 1_u64 << (10 * unit);
        if self.0.is_multiple_of(one) {
            write!(f, "{} {}", self.0 / one, UNITS[unit])
        } else {
            write!(f, "{:.1} {}", self.0 as f64 / one as f64, UNITS[unit])
        }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a time like 10s, 500ms, 50us or 2m");
        let (number, unit) = split(text);
        let nanos: u64 = match unit {
            "us" => 1_000,
            "ms" => 1_000_000,
            "" | "s" => 1_000_000_000,
            "m" | "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        number.checked_mul(nanos).map(|nanos| Span(Duration::from_nanos(nanos))).ok_or_else(wrong)
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if matches!(text, "never" | "-1") {
            return Ok(Limit(None));
        }
        text.parse::<Span>().map(|span| Limit(Some(span.0))).map_err(|error| format!("{error}, or `never`"))
    }
}

/// A number of engine threads.
pub(crate) fn cores(text: &str) -> Result<NonZeroU16, String> {
    let number = text.parse::<NonZeroU16>().ok().filter(|number| number.get() <= 128);
    number.ok_or_else(|| format!("`{text}` is not a number from 1 to 128"))
}

/// The digits at the start, and what follows them.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_configuration_file() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("4k", 4096), ("3MiB", 3 << 20), ("2GB", 2_000_000_000)]
        {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        assert!("4x".parse::<Bytes>().expect_err("no unit").contains("must be a size"));
    }

    #[test]
    fn sizes_are_written_in_the_largest_unit_that_fits() {
        for (bytes, text) in
            [(0, "0 B"), (512, "512 B"), (4096, "4 KiB"), (1536, "1.5 KiB"), (1 << 40, "1 TiB")]
        {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn times_are_read_with_every_unit_and_seconds_without_one() {
        for (text, nanos) in
            [("10", 10_000_000_000), ("50us", 50_000), ("7ms", 7_000_000), ("2m", 120_000_000_000)]
        {
            assert_eq!(text.parse(), Ok(Span(Duration::from_nanos(nanos))), "{text}");
        }
        for text in ["", "s", "1d", "1.5s", "-3", "99999999999999999999h", "9999999h"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn there_are_one_to_128_engine_threads() {
        assert_eq!(
            (cores("1"), cores("128")),
            (Ok(NonZeroU16::MIN), Ok(NonZeroU16::new(128).expect("not zero")))
        );
        for text in ["", "0", "-1", "129", "x"] {
            assert!(cores(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_limit_may_be_none() {
        assert_eq!("never".parse(), Ok(Limit(None)));
        assert_eq!("-1".parse(), Ok(Limit(None)));
        assert_eq!("600".parse(), Ok(Limit(Some(Duration::from_secs(600)))));
        assert!("always".parse::<Limit>().is_err());
    }
}
