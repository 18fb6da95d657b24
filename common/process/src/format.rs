//! The man page of a configuration file, made of an example that explains every key: so the page says what the example
//! says, and nothing else.

use clap_mangen::roff::{Roff, bold, italic, roman};

/// A configuration file.
#[derive(Clone, Copy, Debug)]
pub struct FileFormat {
    /// The name of its page, and of the file.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Where it is.
    pub path: &'static str,
    /// The example. Comments come before what they explain.
    pub example: &'static str,
    /// The folder with the documents that comments name, which begin with `docs/`.
    pub documents: &'static str,
    /// Pages of others, as `name(section)`.
    pub see_also: &'static [&'static str],
}

/// What a line of the example is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line<'a> {
    Empty,
    /// `[table]` or `[[table]]`.
    Table(&'a str),
    /// A part of a comment.
    Prose(&'a str),
    /// A setting, also one in a comment, or what goes on from the line before.
    Setting(&'a str),
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Self {
        let Some(comment) = line.strip_prefix('#') else {
            return match line {
                "" => Self::Empty,
                table if table.starts_with('[') => Self::Table(table),
                setting => Self::Setting(setting),
            };
        };
        let text = comment.trim();
        let key = text.split_once(" = ").map(|(key, _)| key);
        let is_key =
            |key: &str| key.chars().all(|letter| letter.is_ascii_lowercase() || "_.".contains(letter));
        if key.is_some_and(is_key) { Self::Setting(text) } else { Self::Prose(text) }
    }
}

impl FileFormat {
    /// Section 5 of the manual: file formats.
    pub(crate) const SECTION: &'static str = "5";

    /// The page.
    pub(crate) fn page(&self) -> Roff {
        let mut roff = Roff::default();
        let source = format!("Ringfab {}", env!("CARGO_PKG_VERSION"));
        roff.control("TH", [self.name, Self::SECTION, "", &source, "File Formats"]);
        roff.control("SH", ["NAME"]);
        roff.text([roman(self.name), roman(" - "), roman(self.about)]);
        roff.control("SH", ["SYNOPSIS"]);
        roff.text([italic(self.path)]);
        roff.control("SH", ["DESCRIPTION"]);
        self.describe(&mut roff);
        roff.control("SH", ["SEE ALSO"]);
        for (number, page) in self.see_also.iter().enumerate() {
            let comma = if number + 1 < self.see_also.len() { "," } else { "" };
            let (name, section) = page.split_at(page.find('(').unwrap_or(page.len()));
            roff.text([bold(name), roman(section), roman(comma)]);
        }
        roff
    }

    fn describe(&self, roff: &mut Roff) {
        let mut before = Line::Empty;
        for line in self.example.lines().map(Line::of) {
            let settings = matches!(before, Line::Setting(_));
            if settings && !matches!(line, Line::Setting(_)) {
                roff.control("fi", []);
                roff.control("RE", []);
            }
            match line {
                Line::Empty => {}
                Line::Table(name) => {
                    roff.control("SS", [name]);
                }
                Line::Prose(text) => {
                    if !matches!(before, Line::Prose(_)) {
                        roff.control("PP", []);
                    }
                    // Who reads the page is in any folder.
                    roff.text([roman(text.replace("docs/", &format!("{}/docs/", self.documents)))]);
                }
                Line::Setting(text) => {
                    if !settings {
                        roff.control("RS", ["4"]);
                        roff.control("nf", []);
                    }
                    roff.text([bold(text)]);
                }
            }
            before = line;
        }
        if matches!(before, Line::Setting(_)) {
            roff.control("fi", []);
            roff.control("RE", []);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: FileFormat = FileFormat {
        name: "some.toml",
        about: "what a tool does",
        path: "/etc/some.toml",
        documents: "/usr/share/doc/tool",
        example: "# Every key,\n# with its default: docs/tool.md.\n\n[tool]\n# How many.\n\
        number = 1\nlist = [\n    2,\n]\n\n\
                  # A second one.\n[[part]]\n# '.' is a name, too.\n# name = \"a\\\\b\"\n",
        see_also: &["some-tool(8)", "toml(5)"],
    };

    #[test]
    fn the_page_has_all_that_the_example_says_in_its_order() {
        let page = FORMAT.page().to_roff();
        let parts = [
            ".TH some.toml 5",
            ".SH DESCRIPTION\n.PP\nEvery key,\nwith its default: /usr/share/doc/tool/docs/tool.md.\n.SS [tool]",
            ".PP\nHow many.\n.RS 4\n.nf\n",
            "number = 1",
            "list = [",
            "2,",
            ".fi\n.RE\n.PP\nA second one.\n.SS [[part]]\n.PP\n",
            "name = ",
            ".fi\n.RE\n.SH \"SEE ALSO\"\n\\fBsome\\-tool\\fR(8),\n\\fBtoml\\fR(5)",
        ];
        let mut rest = page.as_str();
        for part in parts {
            let place = rest.find(part).unwrap_or_else(|| panic!("{part:?} is not next in: {page}"));
            rest = &rest[place + part.len()..];
        }
    }

    #[test]
    fn a_comment_with_a_setting_is_told_from_prose() {
        assert_eq!(Line::of("# tls_key = \"file:/k\""), Line::Setting("tls_key = \"file:/k\""));
        assert_eq!(
            Line::of("# Twice: direct = false and more."),
            Line::Prose("Twice: direct = false and more.")
        );
        assert_eq!(Line::of("    \"a\","), Line::Setting("    \"a\","));
        assert_eq!(Line::of("[[listener]]"), Line::Table("[[listener]]"));
    }
}
