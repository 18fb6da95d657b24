//! Sizes with units.

/// Binary units, as they are written.
const UNITS: [(&str, u32); 5] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("PiB", 50)];

/// Bytes of a size like `16GiB`, `4096` or `512 MiB`. Only binary units, because a disk that is 7 % smaller than
/// meant is found too late.
///
/// # Errors
/// What is wrong, as the end of a sentence that begins with the key.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let number: u64 = digits.replace('_', "").parse().map_err(|_| refused(text))?;
    let shift = match unit.trim() {
        "" | "B" => 0,
        unit => UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(|| refused(text))?.1,
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("is \"{text}\", which is beyond 64 bits of bytes"))
}

/// A size with the largest unit that divides it.
pub(super) fn format_size(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| bytes.to_string(), |(name, shift)| format!("{}{name}", bytes >> shift))
}

fn refused(text: &str) -> String {
    format!("is \"{text}\", but must be a size such as \"16GiB\", with KiB, MiB, GiB, TiB or PiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units_or_none() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("1_000 B"), Ok(1000));
        assert_eq!(parse_size("8KiB"), Ok(8192));
        assert_eq!(parse_size("2 TiB"), Ok(2 << 40));
    }

    #[test]
    fn decimal_units_signs_and_overflow_are_refused() {
        for text in ["", "GiB", "1GB", "1G", "-1GiB", "1.5GiB", "20000PiB", "99999999999999999999"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_formatted_size_parses_to_itself() {
        for bytes in [0, 1, 512, 1024, 1536, 1 << 20, 3 << 30, 1 << 50, u64::MAX] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        assert_eq!(format_size(3 << 30), "3GiB");
    }
}
