//! What the standard streams can show: how wide the terminal is, whether there are colours, which letters there are.
//!
//! A stream that is no terminal gets everything: no colour, and no line is made shorter.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ringfab_base::{visible, visible_lines};
use rustix::termios::tcgetwinsize;

/// When there are colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.
    #[default]
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

/// The option that says when there are colours, the same in all programs.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ColorOption {
    /// When there are colours: auto, which is on a terminal where NO_COLOR is not set; always; never
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true,
        value_parser = PossibleValuesParser::new(Color::NAMES).try_map(|name| name.parse::<Color>())
    )]
    pub color: Color,
}

/// A stream for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The standard output.
    Out,
    /// The standard error.
    Err,
}

/// What a text shall look like where there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// The head of a table.
    Head,
    /// All is well.
    Good,
    /// Something needs care.
    Care,
    /// Something is wrong.
    Bad,
}

/// What was chosen, as its place in [`Color::NAMES`]. A program that chooses nothing has no colours, nor have tests.
static CHOSEN: AtomicU8 = AtomicU8::new(Color::Never as u8);

impl Color {
    /// All, by their names.
    pub const NAMES: [&'static str; 3] = ["auto", "always", "never"];
    const ALL: [Self; 3] = [Self::Auto, Self::Always, Self::Never];

    /// The one that arguments ask for with `--color`, wherever it stands before `--`. A mistake is none: whoever parses
    /// the arguments tells it.
    pub fn of_arguments(arguments: &[OsString]) -> Self {
        let mut found = Self::Auto;
        let mut arguments = arguments.iter().map(OsString::as_os_str).take_while(|one| *one != "--");
        while let Some(argument) = arguments.next() {
            let value = match argument.to_str() {
                Some("--color") => arguments.next().and_then(OsStr::to_str),
                Some(text) => text.strip_prefix("--color="),
                None => None,
            };
            found = value.and_then(|value| value.parse().ok()).unwrap_or(found);
        }
        found
    }
}

impl std::str::FromStr for Color {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().position(|name| *name == text);
        found.map(|index| Self::ALL[index]).ok_or_else(|| format!("`{text}` is not auto, always or never"))
    }
}

/// Has the whole process use colours from now on as `color` says.
pub fn choose(color: Color) {
    CHOSEN.store(color as u8, Ordering::Relaxed);
}

/// Whether what goes to a stream has colours.
pub fn is_coloured(stream: Stream) -> bool {
    match Color::ALL[usize::from(CHOSEN.load(Ordering::Relaxed))] {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            let dumb = env::var_os("TERM").is_some_and(|value| value == "dumb");
            !refused && !dumb && is_terminal(stream)
        }
    }
}

/// What clap says of a command line, as it goes to a stream: to help, or to a mistake.
pub fn answer(stream: Stream, said: &clap::Error) -> String {
    let text = said.render();
    let text = if is_coloured(stream) { text.ansi().to_string() } else { text.to_string() };
    match said.kind() {
        ErrorKind::ValueValidation => plain(&text),
        _ => text,
    }
}

/// What is said of a command that is none of ours, where it is one of another program that many know: each of these,
/// and what to use here instead.
pub fn suggest(mut said: clap::Error, others: &[(&str, &'static str)]) -> clap::Error {
    let Some(ContextValue::String(typed)) = said.get(ContextKind::InvalidSubcommand) else { return said };
    let Some((_, instead)) = others.iter().find(|(name, _)| name == typed) else { return said };
    // A command that is only spelled alike is not meant.
    said.remove(ContextKind::SuggestedSubcommand);
    said.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*instead).into()]));
    said
}

/// What is wrong with a number, in the words of users instead of those of Rust.
fn plain(text: &str) -> String {
    const WORDS: [(&str, &str); 5] = [
        ("invalid digit found in string", "it is not a whole number"),
        ("cannot parse integer from empty string", "a whole number is needed"),
        ("number too large to fit in target type", "the number is too large"),
        ("number too small to fit in target type", "the number is too small"),
        (" is not in ", " is not one from "),
    ];
    let mut text = WORDS.iter().fold(text.to_owned(), |text, (from, to)| text.replacen(from, to, 1));
    if let Some(at) = text.find(" is not one from ") {
        let range = text.split_off(at);
        text += &range.replacen("..=", " to ", 1);
    }
    text
}

/// A text as it goes to a stream.
pub fn painted(stream: Stream, paint: Paint, text: &str) -> String {
    if is_coloured(stream) { in_colour(paint, text) } else { text.to_owned() }
}

fn in_colour(paint: Paint, text: &str) -> String {
    let code = match paint {
        Paint::Head => 1,
        Paint::Good => 32,
        Paint::Care => 33,
        Paint::Bad => 31,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// A text as it goes to a stream: with escapes for what a terminal would obey, or nobody sees. The ends of its lines
/// stay, and colours where the stream has them. A name in a line needs [`ringfab_base::visible`] before that, or it
/// could end the line.
pub fn visible_text(stream: Stream, text: &str) -> String {
    if !is_coloured(stream) {
        return visible_lines(text);
    }
    let mut parts = text.split("\x1b[");
    let mut shown = visible_lines(parts.next().unwrap_or_default());
    for part in parts {
        let rest = part.trim_start_matches(|one: char| one.is_ascii_digit() || one == ';');
        shown += if rest.starts_with('m') { "\x1b[" } else { "\\u{1b}[" };
        shown += &visible_lines(part);
    }
    shown
}

/// Whether a stream is a terminal.
pub fn is_terminal(stream: Stream) -> bool {
    match stream {
        Stream::Out => io::stdout().is_terminal(),
        Stream::Err => io::stderr().is_terminal(),
    }
}

/// How many letters a line of the terminal has that a stream goes to: as many as `COLUMNS` says, or else the terminal.
/// None where it is no terminal, or does not say: then a line may be as long as it likes.
pub fn width(stream: Stream) -> Option<usize> {
    if !is_terminal(stream) {
        return None;
    }
    let named = env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let size = match stream {
        Stream::Out => tcgetwinsize(io::stdout()),
        Stream::Err => tcgetwinsize(io::stderr()),
    };
    let own = size.ok().map(|size| usize::from(size.ws_col));
    named.or(own).filter(|columns| *columns > 0)
}

/// Whether letters beyond ASCII can be shown, as the locale says.
pub fn is_unicode() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| {
        let value = env::var(name).ok()?;
        (!value.is_empty()).then_some(value)
    });
    locale.is_some_and(|locale| has_unicode(&locale))
}

fn has_unicode(locale: &str) -> bool {
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// A text of at most so many letters: its middle goes, because names differ at their ends.
pub fn shortened(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let end = width.saturating_sub(1) / 2;
    let begin = width.saturating_sub(1) - end;
    let head: String = text.chars().take(begin).collect();
    let tail: String = text.chars().skip(count - end).collect();
    format!("{head}…{tail}")
}

/// Whether a line that changes stands at the end of the standard error's terminal.
static STATUS: Mutex<bool> = Mutex::new(false);

/// Shows a line that changes at the end of the standard error, in place of the one before. What is logged appears above
/// it. Nothing is shown where that is no terminal, cannot move its cursor, or takes nothing for now.
pub fn show_status(text: &str) {
    let dumb = env::var_os("TERM").is_none_or(|value| value == "dumb");
    // Who writes to a terminal that has stopped holds the lock for as long.
    let Ok(mut shown) = STATUS.try_lock() else { return };
    if dumb || !is_terminal(Stream::Err) || !takes_more() {
        return;
    }
    let columns = width(Stream::Err).unwrap_or(80).saturating_sub(1);
    let line: String = visible(text).to_string().chars().take(columns).collect();
    *shown |= nix::unistd::write(io::stderr(), format!("\r{line}\x1b[K").as_bytes()).is_ok();
}

/// Removes that line.
pub fn clear_status() {
    if let Ok(mut shown) = STATUS.try_lock() {
        clear(&mut shown);
    }
}

/// Writes to the standard error where the line that changes is, which is shown again later.
pub(crate) fn above_status<T>(write: impl FnOnce() -> T) -> T {
    let mut shown = STATUS.lock().unwrap_or_else(PoisonError::into_inner);
    clear(&mut shown);
    write()
}

fn clear(shown: &mut bool) {
    if std::mem::take(shown) && takes_more() {
        // A terminal that has gone shows nothing.
        let _gone = nix::unistd::write(io::stderr(), b"\r\x1b[K");
    }
}

/// Whether the standard error takes something at once.
fn takes_more() -> bool {
    let stderr = io::stderr();
    let mut asked = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut asked, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(arguments: &[&str]) -> Color {
        Color::of_arguments(&arguments.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn mistakes_with_numbers_are_told_in_plain_words() {
        let command = || {
            let number = clap::value_parser!(u16).range(1..=128);
            clap::Command::new("x").arg(clap::Arg::new("n").long("n").value_parser(number))
        };
        for (value, words) in [
            ("abc", "invalid value 'abc' for '--n <n>': it is not a whole number"),
            ("", "a whole number is needed"),
            ("0", "'--n <n>': 0 is not one from 1 to 128"),
            ("99999999999999999999", "the number is too large"),
        ] {
            let error = command().try_get_matches_from(["x", "--n", value]).expect_err("a mistake");
            let said = answer(Stream::Err, &error);
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn a_command_of_another_program_is_answered_with_ours() {
        let command = || clap::Command::new("x").subcommand(clap::Command::new("connect-all"));
        let others = [("connect", "`x connect-all` does that")];
        let said = |word: &str| {
            let error = command().try_get_matches_from(["x", word]).expect_err("a mistake");
            answer(Stream::Err, &suggest(error, &others))
        };
        assert!(said("connect").contains("tip: `x connect-all` does that"), "{}", said("connect"));
        assert!(!said("connect").contains("a similar subcommand"), "{}", said("connect"));
        assert!(said("connect-al").contains("a similar subcommand exists"), "{}", said("connect-al"));
        assert!(!said("nonsense").contains("tip:"), "{}", said("nonsense"));
    }

    #[test]
    fn the_colour_is_found_before_the_arguments_are_parsed() {
        assert_eq!(asked(&["x", "list", "--color", "always", "url"]), Color::Always);
        assert_eq!(asked(&["x", "--color=always", "--color=never"]), Color::Never);
        assert_eq!(asked(&["x", "--", "--color=never"]), Color::Auto);
        assert_eq!(asked(&["x", "--color"]), Color::Auto);
        assert_eq!(asked(&["x", "--color=green"]), Color::Auto);
        assert!("green".parse::<Color>().expect_err("no choice").contains("auto, always or never"));
        for (name, color) in Color::NAMES.iter().zip(Color::ALL) {
            assert_eq!(name.parse(), Ok(color));
        }
    }

    #[test]
    fn a_long_text_keeps_its_ends() {
        assert_eq!(shortened("0123456789", 10), "0123456789");
        assert_eq!(shortened("0123456789", 6), "012…89");
        assert_eq!(shortened("0123456789", 1), "…");
        assert_eq!(shortened("äöüß", 3), "ä…ß");
    }

    #[test]
    fn a_locale_says_whether_there_are_other_letters() {
        assert!(has_unicode("de_DE.UTF-8") && has_unicode("C.utf8"));
        assert!(!has_unicode("C") && !has_unicode("de_DE.ISO-8859-1"));
    }

    #[test]
    fn a_colour_ends_where_its_text_ends() {
        assert_eq!(in_colour(Paint::Bad, "no"), "\x1b[31mno\x1b[0m");
    }
}
