//! A time until which something counts.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use toml::value::{Datetime, Offset};

/// A time until which something counts, by the clock of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Until {
    at: SystemTime,
    written: Datetime,
}

impl Until {
    /// As TOML has it, with date, time and offset: `2026-12-31T00:00:00Z`. None if one of the three is missing, or if
    /// it is before 1970.
    pub(super) fn new(written: Datetime) -> Option<Self> {
        let (date, time, offset) = (written.date?, written.time?, written.offset?);
        let days = days_since_1970(date.year.into(), date.month.into(), date.day.into());
        let minutes = match offset {
            Offset::Z => 0,
            Offset::Custom { minutes } => i64::from(minutes),
        };
        let seconds = i64::from(time.second.unwrap_or_default()) - minutes * 60;
        let seconds = days * 86_400 + i64::from(time.hour) * 3600 + i64::from(time.minute) * 60 + seconds;
        let at = UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).ok()?);
        Some(Self { at, written })
    }

    /// Whether it is over.
    pub fn is_over(&self, now: SystemTime) -> bool {
        now >= self.at
    }
}

impl FromStr for Until {
    type Err = &'static str;

    /// # Errors
    /// What is wrong with it.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().ok().and_then(Self::new).ok_or(EXPECTED)
    }
}

/// What people are told to write.
pub(super) const EXPECTED: &str = "must be a time with its offset, without quotes: 2026-12-31T00:00:00Z";

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years begin in March here, so that the day that comes
/// every four years is the last one.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days_of_months = (153 * month + 2) / 5;
    // From 0000-03-01 to 1970-01-01.
    const EPOCH: i64 = 719_468;
    365 * year + leap_days + days_of_months + day - 1 - EPOCH
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.written.fmt(f)
    }
}

impl Serialize for Until {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.written.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<u64> {
        let until = Until::new(text.parse().expect("a time of TOML"))?;
        assert_eq!(until.to_string(), text);
        Some(until.at.duration_since(UNIX_EPOCH).expect("after 1970").as_secs())
    }

    /// Compared with `date -u -d TIME +%s`.
    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(seconds("2000-02-29T12:00:00Z"), Some(951_825_600));
        assert_eq!(seconds("2000-03-01T00:00:00Z"), Some(951_868_800));
        assert_eq!(seconds("2026-12-31T23:59:59Z"), Some(1_798_761_599));
        assert_eq!(seconds("2100-03-01T00:00:00Z"), Some(4_107_542_400));
        assert_eq!(seconds("2026-12-31T01:30:00+01:30"), seconds("2026-12-31T00:00:00Z"));
    }

    #[test]
    fn a_time_that_is_not_one_for_everybody_is_none() {
        for text in ["2026-12-31", "2026-12-31T00:00:00", "12:00:00", "1969-12-31T23:59:59Z"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn it_is_over_from_that_second_on() {
        let until = Until::new("1970-01-01T00:01:00Z".parse().expect("a time")).expect("with all parts");
        assert!(!until.is_over(UNIX_EPOCH + Duration::from_secs(59)));
        assert!(until.is_over(UNIX_EPOCH + Duration::from_secs(60)));
    }
}
