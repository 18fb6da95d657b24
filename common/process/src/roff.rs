//! Man pages in the language of man(7), as `mandoc -T lint` likes them: short lines, a date, and nothing empty.

/// The date of the pages: of this version of the programs. The pages that are files (configs/man) have the same.
pub(crate) const DATE: &str = "2026-11-27";

/// The longest line of text. What reads pages may take 80 bytes.
const LINE_BYTES_MAX: usize = 78;

/// A piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// As text is.
    Roman(String),
    /// What is typed as it stands.
    Bold(String),
    /// What is replaced by something.
    Italic(String),
}

pub(crate) fn roman(text: impl Into<String>) -> Piece {
    Piece::Roman(text.into())
}

pub(crate) fn bold(text: impl Into<String>) -> Piece {
    Piece::Bold(text.into())
}

pub(crate) fn italic(text: impl Into<String>) -> Piece {
    Piece::Italic(text.into())
}

/// A page that is being written.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    text: String,
    /// Whether a paragraph may begin: something stands below the last heading.
    is_open: bool,
}

impl Page {
    pub(crate) fn new(name: &str, section: &str, manual: &str) -> Self {
        let (name, version) = (escaped(&name.to_uppercase()), env!("CARGO_PKG_VERSION"));
        let text = format!(".TH {name} {section} {DATE} \"Ringfab {version}\" \"{manual}\"\n");
        Self { text, is_open: false }
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }

    fn request(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    pub(crate) fn section(&mut self, title: &str) {
        self.request(&format!(".SH \"{}\"", escaped(title)));
        self.is_open = false;
    }

    pub(crate) fn subsection(&mut self, title: &str) {
        self.request(&format!(".SS \"{}\"", escaped(title)));
        self.is_open = false;
    }

    /// What the page is about, as programs that list pages read it.
    pub(crate) fn name_line(&mut self, name: &str, about: &str) {
        self.text(&[roman(format!("{name} - {}", about.trim_end_matches('.')))]);
    }

    /// Begins a paragraph, unless a heading has just done that.
    pub(crate) fn paragraph(&mut self) {
        if self.is_open {
            self.request(".PP");
        }
    }

    /// A term and what it means.
    pub(crate) fn item(&mut self, term: &[Piece], meaning: &[Piece]) {
        self.request(".TP");
        let line = words(term).join(" ");
        self.request(&line);
        self.text(meaning);
    }

    /// Text in lines that are short enough.
    pub(crate) fn text(&mut self, pieces: &[Piece]) {
        let mut line = String::new();
        for word in words(pieces) {
            if !line.is_empty() && line.len() + 1 + word.len() > LINE_BYTES_MAX {
                self.request(&std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            } else if word.starts_with('.') {
                line.push_str("\\&");
            }
            line.push_str(&word);
        }
        if !line.is_empty() {
            self.request(&line);
        }
        self.is_open = true;
    }

    /// Lines as they are, such as commands and settings.
    pub(crate) fn literal<'a>(&mut self, lines: impl IntoIterator<Item = &'a str>) {
        self.request(".RS 4\n.nf");
        for line in lines {
            let line = format!("\\fB{}\\fR", escaped(line));
            self.request(&continued(&line));
        }
        self.request(".fi\n.RE");
        self.is_open = true;
    }

    /// Other pages, each as `name(section)`.
    pub(crate) fn see_also(&mut self, pages: &[String]) {
        if pages.is_empty() {
            return;
        }
        self.section("SEE ALSO");
        let last = pages.len() - 1;
        let pieces = pages.iter().enumerate().flat_map(|(index, page)| {
            let (name, section) = page.split_at(page.find('(').unwrap_or(page.len()));
            [bold(name), roman(format!("{section}{}", if index < last { ", " } else { "" }))]
        });
        self.text(&pieces.collect::<Vec<_>>());
    }
}

/// A line that is continued by others where it is too long.
fn continued(line: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for word in line.split_inclusive(' ') {
        match parts.last_mut() {
            Some(part) if part.len() + word.len() < LINE_BYTES_MAX => part.push_str(word),
            _ => parts.push(word.to_owned()),
        }
    }
    parts.join("\\\n")
}

/// The words of a text, escaped, with their fonts. What has no space between it is one word.
fn words(pieces: &[Piece]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut is_new = true;
    for piece in pieces {
        let (font, text) = match piece {
            Piece::Roman(text) => (None, text),
            Piece::Bold(text) => (Some('B'), text),
            Piece::Italic(text) => (Some('I'), text),
        };
        for part in text.split_inclusive(char::is_whitespace) {
            let word = part.trim_end();
            if !word.is_empty() {
                let word = match font {
                    Some(font) => format!("\\f{font}{}\\fR", escaped(word)),
                    None => escaped(word),
                };
                match words.last_mut() {
                    Some(last) if !is_new => last.push_str(&word),
                    _ => words.push(word),
                }
                is_new = false;
            }
            is_new |= word.len() < part.len();
        }
    }
    words
}

/// A text in which nothing has a meaning for roff.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('"', "\\(dq")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(write: impl FnOnce(&mut Page)) -> String {
        let mut page = Page::new("some-tool", "8", "Ringfab");
        write(&mut page);
        page.into_text().split_once('\n').expect("a title").1.to_owned()
    }

    #[test]
    fn a_page_has_a_title_with_a_date() {
        let text = Page::new("some-tool", "8", "Ringfab").into_text();
        assert!(text.starts_with(".TH SOME\\-TOOL 8 20") && text.ends_with(" \"Ringfab\"\n"), "{text}");
    }

    #[test]
    fn text_is_in_short_lines_and_what_belongs_together_stays_so() {
        let text = page(|page| page.text(&[roman("word ".repeat(40)), bold("--nsid"), roman("=1, and")]));
        assert!(text.lines().all(|line| line.len() <= LINE_BYTES_MAX), "{text}");
        assert!(text.contains("\\fB\\-\\-nsid\\fR=1, and\n"), "{text}");
        assert_eq!(text.split_whitespace().filter(|word| *word == "word").count(), 40);
    }

    #[test]
    fn nothing_in_a_text_is_a_request() {
        let text = page(|page| page.text(&[roman(".PP it's \"a\\b\"")]));
        assert_eq!(text, "\\&.PP it\\(aqs \\(dqa\\eb\\(dq\n");
    }

    #[test]
    fn a_paragraph_is_never_empty() {
        let text = page(|page| {
            page.section("NOTES");
            page.paragraph();
            page.text(&[roman("one")]);
            page.paragraph();
            page.text(&[roman("two")]);
        });
        assert_eq!(text, ".SH \"NOTES\"\none\n.PP\ntwo\n");
    }

    #[test]
    fn a_literal_line_is_continued_where_it_is_too_long() {
        let line = format!("tool {}", "--an-option ".repeat(12).trim_end());
        let text = page(|page| page.literal([line.as_str(), "  short"]));
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        let whole = text.replace("\\\n", "");
        assert!(whole.contains(&format!("\\fB{}\\fR\n", escaped(&line))), "{text}");
        assert!(
            whole.starts_with(".RS 4\n.nf\n") && whole.ends_with("\\fB  short\\fR\n.fi\n.RE\n"),
            "{text}"
        );
    }
}
