//! The man page of a configuration file, made of an example that explains every key: so the page says what the example
//! says, and nothing else.

use std::mem::discriminant;

use crate::roff::{Page, italic, roman};

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
    fn text(&self) -> Option<&'a str> {
        match *self {
            Self::Empty => None,
            Self::Table(text) | Self::Prose(text) | Self::Setting(text) => Some(text),
        }
    }

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
    pub(crate) fn page(&self) -> String {
        let mut page = Page::new(self.name, Self::SECTION, "File Formats");
        page.section("NAME");
        page.name_line(self.name, self.about);
        page.section("SYNOPSIS");
        page.text(&[italic(self.path)]);
        page.section("DESCRIPTION");
        self.describe(&mut page);
        page.see_also(&self.see_also.iter().map(ToString::to_string).collect::<Vec<_>>());
        page.into_text()
    }

    fn describe(&self, page: &mut Page) {
        let lines: Vec<Line<'_>> = self.example.lines().map(Line::of).collect();
        for part in lines.chunk_by(|one, next| discriminant(one) == discriminant(next)) {
            let texts = part.iter().filter_map(|line| line.text());
            match part[0] {
                Line::Empty => {}
                Line::Table(_) => texts.for_each(|name| page.subsection(name)),
                Line::Prose(_) => {
                    page.paragraph();
                    // Who reads the page is in any folder.
                    let text = texts.collect::<Vec<_>>().join(" ");
                    page.text(&[roman(text.replace("docs/", &format!("{}/docs/", self.documents)))]);
                }
                Line::Setting(_) => page.literal(texts),
            }
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
        example: "# Every key,\n# with its default: docs/limits.md.\n\n[tool]\n# How many.\n\
        number = 1\nlist = [\n    2,\n]\n\n\
                  # A second one.\n[[part]]\n# '.' is a name, too.\n# name = \"a\\\\b\"\n",
        see_also: &["some-tool(8)", "toml(5)"],
    };

    #[test]
    fn the_page_has_all_that_the_example_says_in_its_order() {
        let page = FORMAT.page();
        let parts = [
            ".TH SOME.TOML 5",
            ".SH \"DESCRIPTION\"\nEvery key, with its default: /usr/share/doc/tool/docs/limits.md.\n.SS \"[tool]\"",
            "How many.\n.RS 4\n.nf\n",
            "number = 1",
            "list = [",
            "2,",
            ".fi\n.RE\n.PP\nA second one.\n.SS \"[[part]]\"\n\\(aq.\\(aq is a name, too.\n",
            "name = ",
            ".fi\n.RE\n.SH \"SEE ALSO\"\n\\fBsome\\-tool\\fR(8), \\fBtoml\\fR(5)",
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
