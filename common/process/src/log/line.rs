//! The text of an event: its message and its fields, in one line of bounded length.
//!
//! A line is logfmt, so that the usual parsers take it. A field is `name=value`, with quotes around a value that has
//! spaces, quotes or equals signs, or nothing at all. The words of the message are names without values. A message that
//! has quotes or equals signs itself would be taken for fields, and nobody may forge one: it is the field `msg`.

use std::fmt::{self, Write};

use ringfab_base::is_visible;
use tracing::Event;
use tracing::field::{Field, Visit};

/// The longest text of an event.
const TEXT_BYTES_MAX: usize = 4096;

/// The name of the field that holds the message.
pub(super) const MESSAGE: &str = "message";

/// The field of a message that cannot stand in the line as it is.
const QUOTED_MESSAGE: &str = "msg";

/// The message, and then each field with its name.
pub(super) fn text_of(event: &Event<'_>) -> String {
    let mut text = Text::default();
    event.record(&mut Message(&mut text));
    event.record(&mut Fields(&mut text));
    text.0
}

/// A text of bounded length in which nothing can end a line.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = Text::default();
    escaped.write_str(text).expect("a text takes everything");
    escaped.0
}

/// A text of bounded length, as it is.
pub(super) fn bounded(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(TEXT_BYTES_MAX)])
}

/// A text into which names that peers chose can be written: what could end the line, move the cursor, turn the
/// direction of writing, or cannot be seen, is escaped.
#[derive(Debug, Default)]
struct Text(String);

impl Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        for character in part.chars() {
            if self.0.len() >= TEXT_BYTES_MAX {
                // Once: what follows finds the text longer than it may be.
                if !self.0.ends_with('…') {
                    self.0.push('…');
                }
                return Ok(());
            }
            if is_visible(character) {
                self.0.push(character);
            } else {
                self.0.extend(character.escape_default());
            }
        }
        Ok(())
    }
}

impl Text {
    fn is_full(&self) -> bool {
        self.0.len() >= TEXT_BYTES_MAX
    }

    /// A field. There is no half of one: its quotes end where the text must.
    fn push_field(&mut self, name: &str, value: &str, quoted: bool) {
        if self.is_full() {
            let _cut = self.write_str(" ");
            return;
        }
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        self.0.push_str(name);
        self.0.push('=');
        if !quoted && !needs_quotes(value) {
            self.write_str(value).expect("a text takes everything");
            return;
        }
        self.0.push('"');
        for character in value.chars() {
            if self.is_full() {
                self.0.push('…');
                break;
            }
            push_quoted(&mut self.0, character);
        }
        self.0.push('"');
    }
}

/// Whether a value cannot stand without quotes around it.
fn needs_quotes(value: &str) -> bool {
    let breaks = |one: char| one == '"' || one == '=' || one.is_whitespace() || !is_visible(one);
    value.is_empty() || value.contains(breaks)
}

/// A character between quotes, with the escapes of JSON.
fn push_quoted(text: &mut String, character: char) {
    match character {
        '"' | '\\' => text.extend(['\\', character]),
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        _ if is_visible(character) => text.push(character),
        _ => {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(text, "\\u{unit:04x}").expect("a string takes everything");
            }
        }
    }
}

struct Message<'a>(&'a mut Text);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() != MESSAGE {
            return;
        }
        let message = format!("{value:?}");
        if message.contains(['"', '=']) {
            self.0.push_field(QUOTED_MESSAGE, &message, true);
        } else {
            self.0.write_str(&message).expect("a text takes everything");
        }
    }
}

struct Fields<'a>(&'a mut Text);

impl Visit for Fields<'_> {
    /// Text has quotes always, so that a field looks the same whatever is in it.
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() != MESSAGE {
            self.0.push_field(field.name(), value, true);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() != MESSAGE {
            self.0.push_field(field.name(), &format!("{value:?}"), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(part: &str) -> String {
        let mut text = Text::default();
        text.write_str(part).expect("a text takes everything");
        text.0
    }

    #[test]
    fn what_could_forge_a_line_is_escaped() {
        assert_eq!(written("a\nb\x1b[2J"), "a\\nb\\u{1b}[2J");
        assert_eq!(written("\u{202e}x\u{2028}"), "\\u{202e}x\\u{2028}");
        assert_eq!(written("nqn.2026-11.com.example:Äpfel"), "nqn.2026-11.com.example:Äpfel");
    }

    #[test]
    fn a_text_is_bounded() {
        let long = written(&"x".repeat(10_000));
        assert_eq!(long.len(), TEXT_BYTES_MAX + '…'.len_utf8());
        assert!(long.ends_with("x…"));
    }

    fn field(value: &str, quoted: bool) -> String {
        let mut text = Text::default();
        text.push_field("a", value, quoted);
        text.0
    }

    #[test]
    fn a_value_has_quotes_where_a_parser_needs_them() {
        for (value, shown) in [
            ("8192", "a=8192"),
            ("[::1]:4420", "a=[::1]:4420"),
            ("C:\\d", "a=C:\\d"),
            ("8192 KiB", "a=\"8192 KiB\""),
            ("", "a=\"\""),
            ("x=y", "a=\"x=y\""),
            ("say \"no\"", "a=\"say \\\"no\\\"\""),
            ("two\nlines\\", "a=\"two\\nlines\\\\\""),
            ("\u{1b}\u{202e}\u{e0001}", "a=\"\\u001b\\u202e\\udb40\\udc01\""),
        ] {
            assert_eq!(field(value, false), shown);
        }
        assert_eq!(field("text", true), "a=\"text\"");
    }

    #[test]
    fn a_field_that_is_cut_has_both_quotes() {
        let long = field(&"\" ".repeat(TEXT_BYTES_MAX), false);
        assert!(long.ends_with("…\"") && long.len() < TEXT_BYTES_MAX + 10, "{}", long.len());
        let mut full = Text::default();
        full.write_str(&"x".repeat(TEXT_BYTES_MAX)).expect("a text takes everything");
        full.push_field("a", "more", true);
        full.push_field("b", "more", true);
        assert!(full.0.ends_with("xx…"), "{}", full.0.len());
    }
}
