//! Names that others chose, as people read them.
//!
//! A name of a host, of a file or of an interface may have characters that a terminal obeys, that end a line, that
//! turn the direction of writing, or that nobody sees. Whoever prints such a name prints [`visible`]: these
//! characters appear as escapes, `\u{202e}`, and everything else as it is. JSON has escapes of its own and gets the
//! name as it is.

use std::fmt::{self, Write};
use std::path::Path;

/// What is shown with escapes for the characters that are not [visible](is_visible).
///
/// ```
/// use ringfab_base::visible;
///
/// assert_eq!(visible("/srv/\u{1b}[31mred\n").to_string(), "/srv/\\u{1b}[31mred\\n");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Visible<T>(T);

/// Shows a text, or whatever has one, with escapes.
pub fn visible<T: fmt::Display>(shown: T) -> Visible<T> {
    Visible(shown)
}

/// Paths as people read them.
pub trait VisiblePath {
    /// The path, with escapes for what is not visible. What is not UTF-8 appears as U+FFFD.
    fn visible(&self) -> Visible<std::path::Display<'_>>;
}

impl VisiblePath for Path {
    fn visible(&self) -> Visible<std::path::Display<'_>> {
        Visible(self.display())
    }
}

impl<T: fmt::Display> fmt::Display for Visible<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f, |_| false), "{}", self.0)
    }
}

/// A text of several lines, with escapes for what is not visible. The ends of its lines stay, and tabs.
///
/// This is for texts as a whole, before they are written. A name in a line needs [`visible`] before that, or it could
/// end the line.
pub fn visible_lines(text: &str) -> String {
    let mut lines = String::with_capacity(text.len());
    write!(Escaping(&mut lines, |one| matches!(one, '\n' | '\t')), "{text}")
        .expect("a text takes everything");
    lines
}

/// Whether a character is one that people see and a terminal only shows: no control character, none that separates
/// lines or sets the direction of writing, and none that Unicode says to show nothing for
/// (`Default_Ignorable_Code_Point`).
pub fn is_visible(character: char) -> bool {
    !character.is_control() && !is_format(character) && !is_ignorable(character)
}

/// Separators of lines and paragraphs, the direction of writing (bidirectional formatting), and annotations.
fn is_format(character: char) -> bool {
    matches!(character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        | '\u{fff9}'..='\u{fffb}')
}

/// `Default_Ignorable_Code_Point` of Unicode 17.0.
fn is_ignorable(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Writes with escapes, but for what may stay.
struct Escaping<'a, W: ?Sized>(&'a mut W, fn(char) -> bool);

impl<W: Write + ?Sized> Write for Escaping<'_, W> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let Self(inner, stays) = self;
        for character in part.chars() {
            if is_visible(character) || stays(character) {
                inner.write_char(character)?;
            } else {
                write!(inner, "{}", character.escape_default())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_and_what_nobody_sees_is_escaped() {
        for (text, expected) in [
            ("nqn.2026-11.org.example:h-\"1\"\\'", "nqn.2026-11.org.example:h-\"1\"\\'"),
            ("/srv/größe-日本.img", "/srv/größe-日本.img"),
            ("/srv/\u{1b}[31mred\n\u{85}\t", "/srv/\\u{1b}[31mred\\n\\u{85}\\t"),
            ("a\u{202e}b\u{200b}\u{feff}\u{61c}\u{2069}", "a\\u{202e}b\\u{200b}\\u{feff}\\u{61c}\\u{2069}"),
            ("a\u{2028}b\u{e0041}", "a\\u{2028}b\\u{e0041}"),
        ] {
            assert_eq!(visible(text).to_string(), expected);
        }
    }

    #[test]
    fn a_path_is_shown_in_the_same_way() {
        use std::os::unix::ffi::OsStrExt as _;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/a\x1b\n\xff"));
        assert_eq!(path.visible().to_string(), "/a\\u{1b}\\n\u{fffd}");
    }

    #[test]
    fn the_lines_of_a_text_stay_lines() {
        assert_eq!(visible_lines("a\tb\n\u{1b}c\r\n"), "a\tb\n\\u{1b}c\\r\n");
    }

    #[test]
    fn the_ends_of_each_range_are_not_visible_and_their_neighbours_are() {
        for (first, last) in [
            ('\u{200b}', '\u{200f}'),
            ('\u{2028}', '\u{202e}'),
            ('\u{2060}', '\u{206f}'),
            ('\u{fff0}', '\u{fffb}'),
            ('\u{fe00}', '\u{fe0f}'),
            ('\u{e0000}', '\u{e0fff}'),
            ('\u{7f}', '\u{9f}'),
        ] {
            assert!(!is_visible(first) && !is_visible(last), "{first:?} to {last:?}");
            let beside = [u32::from(first) - 1, u32::from(last) + 1].map(char::from_u32);
            assert!(beside.into_iter().flatten().all(is_visible), "beside {first:?} to {last:?}");
        }
    }
}
