//! Percent-encoding.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::UrlError;

/// What is encoded: everything but letters, digits and a few signs.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b':').remove(b'~');

/// The text that was encoded.
pub(super) fn decode(text: &str) -> Result<String, UrlError> {
    let error = || UrlError::Encoding(text.to_owned());
    if !is_well_formed(text) {
        return Err(error());
    }
    percent_decode_str(text).decode_utf8().map(Into::into).map_err(|_| error())
}

/// Whether two hexadecimal digits follow each percent sign. The decoder lets others through as they are.
fn is_well_formed(text: &str) -> bool {
    let mut parts = text.split('%').skip(1).map(str::as_bytes);
    parts.all(|part| matches!(part, [high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit()))
}

/// The text, percent-encoded.
pub(super) fn encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};

    #[test]
    fn everything_but_letters_digits_and_five_signs_is_encoded_byte_by_byte() {
        assert_eq!(encode("aZ09.-_:~"), "aZ09.-_:~");
        assert_eq!(encode("a/b?c&d=e%f\u{e4} \n"), "a%2Fb%3Fc%26d%3De%25f%C3%A4%20%0A");
    }

    #[test]
    fn what_is_decoded_was_encoded_in_full() {
        assert_eq!(decode("a%2fb%2Fc+%C3%A4%25"), Ok("a/b/c+\u{e4}%".to_owned()));
        for text in ["%", "a%", "%2", "%2%", "%%20", "%g0", "%0g", "%+1", "%\u{e4}", "%C3", "%ff"] {
            assert!(decode(text).is_err(), "{text}");
        }
    }
}
