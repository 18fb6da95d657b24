//! Sizes with units, as people write them.

/// Units by their names: binary ones, and decimal ones, which end in B alone. A letter alone is the binary unit, as in
/// other programs of a system (`truncate`, `dd`, fio).
const UNITS: [(&str, u64); 16] = [
    ("b", 1),
    ("kib", 1 << 10),
    ("k", 1 << 10),
    ("kb", 1_000),
    ("mib", 1 << 20),
    ("m", 1 << 20),
    ("mb", 1_000_000),
    ("gib", 1 << 30),
    ("g", 1 << 30),
    ("gb", 1_000_000_000),
    ("tib", 1 << 40),
    ("t", 1 << 40),
    ("tb", 1_000_000_000_000),
    ("pib", 1 << 50),
    ("p", 1 << 50),
    ("pb", 1_000_000_000_000_000),
];

/// Binary units, as they are written.
const BINARY: [(&str, u32); 5] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("PiB", 50)];

/// Why a text is no size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// It is not a number with a unit.
    NotASize,
    /// It has too many bytes for 64 bits.
    TooLarge,
}

impl std::error::Error for SizeError {}

/// The end of a sentence that begins with what it is about.
impl std::fmt::Display for SizeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotASize => {
                "must be a size such as 16GiB or 500GB, in KiB, MiB, GiB, TiB, PiB (or K, M, G, T, P), \
                               or in the decimal KB, MB, GB, TB, PB"
            }
            Self::TooLarge => "must be a size of less than 16 EiB",
        })
    }
}

/// Bytes of a size like `16GiB`, `500 GB`, `4k` or `4096`. KiB, MiB, ... and K, M, ... are powers of 1024, KB, MB, ...
/// are powers of 1000.
///
/// # Errors
/// When that is no size.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let digits = digits.replace('_', "");
    if digits.is_empty() {
        return Err(SizeError::NotASize);
    }
    let unit = unit.trim();
    let found = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let bytes = match found {
        _ if unit.is_empty() => 1,
        Some((_, bytes)) => *bytes,
        None => return Err(SizeError::NotASize),
    };
    // Of digits alone, too many are the only mistake.
    let number: u64 = digits.parse().map_err(|_| SizeError::TooLarge)?;
    number.checked_mul(bytes).ok_or(SizeError::TooLarge)
}

/// A size with the largest binary unit that divides it.
pub fn format_size(bytes: u64) -> String {
    let unit = BINARY.iter().rev().find(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| bytes.to_string(), |(name, shift)| format!("{}{name}", bytes >> shift))
}

/// A size as people read it: exactly, with the largest binary unit that divides it. Configurations have it without the
/// space, as [`format_size`] writes it.
pub fn shown_size(bytes: u64) -> String {
    let text = format_size(bytes);
    let digits_end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    format!("{digits} {}", if unit.is_empty() { "bytes" } else { unit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_what_they_say() {
        let sizes = [
            ("4096", 4096),
            ("1_000 B", 1000),
            ("8KiB", 8192),
            ("8KB", 8000),
            ("4k", 4096),
            ("2 TiB", 2 << 40),
            ("2 TB", 2_000_000_000_000),
            ("1G", 1 << 30),
            ("1gb", 1_000_000_000),
            ("16777215T", 16_777_215 << 40),
            ("1PB", 1_000_000_000_000_000),
        ];
        for (text, bytes) in sizes {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn anything_else_and_overflow_are_refused() {
        for text in ["", "GiB", "_", "-1GiB", "1.5GiB", "4x", "k", "1KiBs"] {
            assert_eq!(parse_size(text), Err(SizeError::NotASize), "{text}");
        }
        for text in ["20000PiB", "99999999999999999999", "16777216T"] {
            assert_eq!(parse_size(text), Err(SizeError::TooLarge), "{text}");
        }
    }

    #[test]
    fn a_formatted_size_parses_to_itself() {
        for bytes in [0, 1, 512, 1024, 1536, 1 << 20, 3 << 30, 1 << 50, u64::MAX] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        for (bytes, text) in
            [(0, "0 bytes"), (1000, "1000 bytes"), (48 << 20, "48 MiB"), (1536, "1536 bytes")]
        {
            assert_eq!(shown_size(bytes), text);
        }
        assert_eq!(format_size(3 << 30), "3GiB");
    }
}
