//! The text of an event: its message and its fields, in one line of bounded length.

use std::fmt::{self, Write};

use ringfab_base::is_visible;
use tracing::Event;
use tracing::field::{Field, Visit};

/// The longest text of an event.
const TEXT_BYTES_MAX: usize = 4096;

/// The name of the field that holds the message.
pub(super) const MESSAGE: &str = "message";

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

struct Message<'a>(&'a mut Text);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == MESSAGE {
            write!(self.0, "{value:?}").expect("a text takes everything");
        }
    }
}

struct Fields<'a>(&'a mut Text);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() != MESSAGE {
            let space = if self.0.0.is_empty() { "" } else { " " };
            write!(self.0, "{space}{}={value:?}", field.name()).expect("a text takes everything");
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
}
