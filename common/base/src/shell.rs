//! Words as a POSIX shell reads them.

use std::borrow::Cow;
use std::fmt::Display;
use std::io;
use std::path::Path;

use crate::visible::is_visible;

/// A word as it can be pasted into a command line: with quotes where a shell would read it as something else. One with
/// characters that nobody sees has them as escapes, `$'a\nb'`, as bash, zsh and ksh read them.
pub fn shell_quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |letter: char| letter.is_alphanumeric() || "+,-./:=@_%".contains(letter);
    if !word.chars().all(is_visible) {
        return Cow::Owned(format!("$'{}'", word.chars().map(escaped).collect::<String>()));
    }
    // A word that begins so is the path of a command to zsh.
    let is_command = word.starts_with('=');
    match !word.is_empty() && !is_command && word.chars().all(is_plain) {
        true => Cow::Borrowed(word),
        false => Cow::Owned(format!("'{}'", word.replace('\'', r"'\''"))),
    }
}

/// The same of anything that is shown: an address, a name.
pub fn shell_word(word: impl Display) -> String {
    shell_quoted(&word.to_string()).into_owned()
}

/// What is added to the error of a file that cannot be made, if its folder is not there: the command that makes that.
pub fn without_folder(file: &Path, error: &io::Error) -> String {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    match folder.filter(|_| error.kind() == io::ErrorKind::NotFound) {
        Some(folder) => {
            format!("; its folder is not there: `mkdir -p {}` makes it", shell_word(folder.to_string_lossy()))
        }
        None => String::new(),
    }
}

/// A character between `$'` and `'`.
fn escaped(letter: char) -> String {
    match letter {
        '\'' | '\\' => format!("\\{letter}"),
        '\n' => "\\n".to_owned(),
        visible if is_visible(visible) => visible.to_string(),
        // Byte by byte: what `\u` makes depends on the locale.
        other => other.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("\\x{byte:02x}")).collect(),
    }
}

/// The words of the first command of a line: up to what ends one or leads elsewhere (`|`, `>`, `<`, `&`, `;`, `#`).
/// Variables and patterns stay as they are.
pub fn shell_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ' ' | '\t' => words.extend(word.take()),
            '|' | '>' | '<' | '&' | ';' => break,
            '#' if word.is_none() => break,
            '\'' => word.get_or_insert_default().extend(letters.by_ref().take_while(|next| *next != '\'')),
            '"' => word.get_or_insert_default().extend(letters.by_ref().take_while(|next| *next != '"')),
            '\\' => match letters.next() {
                // The line goes on.
                Some('\n') => {}
                next => word.get_or_insert_default().extend(next),
            },
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_read_as_it_was() {
        let url = "nvme+tcp://[fd00::1%25eth0]:4420/nqn.x?ns=1&queues=4";
        for word in [url, "", "it's", "a b", "$HOME", "plain", "*", "a\\b", "#", "=ls", "~"] {
            let quoted = shell_quoted(word);
            assert_eq!(shell_words(&format!("x {quoted} y")), ["x", word, "y"], "{quoted}");
        }
        assert_eq!(shell_quoted("nvme+tcp://192.0.2.1:4420/nqn.x:y"), "nvme+tcp://192.0.2.1:4420/nqn.x:y");
        assert_eq!(shell_quoted(url), format!("'{url}'"));
        assert_eq!(shell_word(format_args!("{url}")), format!("'{url}'"));
        assert_eq!((shell_word("=ls"), shell_word("a=b")), ("'=ls'".to_owned(), "a=b".to_owned()));
    }

    #[test]
    fn a_folder_that_is_not_there_is_told_with_what_makes_it() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        let file = Path::new("/no such/folder/file");
        let expected = "; its folder is not there: `mkdir -p '/no such/folder'` makes it";
        assert_eq!(without_folder(file, &missing), expected);
        assert_eq!(without_folder(file, &io::Error::from(io::ErrorKind::PermissionDenied)), "");
        assert_eq!(without_folder(Path::new("/proc/nothing"), &missing), "");
        assert_eq!(without_folder(Path::new("file"), &missing), "");
    }

    #[test]
    fn what_nobody_sees_is_pasted_as_escapes() {
        let word = "/mnt/\u{1b}[2J it's\n\\\u{202e}";
        let quoted = shell_quoted(word);
        assert_eq!(quoted, r"$'/mnt/\x1b[2J it\'s\n\\\xe2\x80\xae'");
        let read = std::process::Command::new("bash").args(["-c", &format!("printf %s {quoted}")]).output();
        assert_eq!(read.expect("bash").stdout, word.as_bytes());
    }

    #[test]
    fn a_command_ends_where_another_begins() {
        assert_eq!(shell_words("read 'a|b' \"c d\" e\\ f | gzip > x"), ["read", "a|b", "c d", "e f"]);
        assert_eq!(shell_words("list a#b  # as one sees"), ["list", "a#b"]);
        assert_eq!(shell_words("serve &"), ["serve"]);
        assert_eq!(shell_words("list \\\n  --json"), ["list", "--json"]);
    }
}
