//! Man pages, made of a program's own command line, for whoever installs the program. Completions are in
//! `completions.rs`.
//!
//! Not implemented here: any text that the command line does not have, but for files and other pages.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Arg, Command, Parser};

use crate::completions::{self, Words};
use crate::format::FileFormat;
use crate::roff::{Page, Piece, bold, italic, roman};

/// The command that asks for them. It is for packages and `make install`, so no page and no shell offers it.
const COMMAND: &str = "manual";

/// Write man pages and completions.
#[derive(Debug, Parser)]
#[command(name = COMMAND)]
struct Wanted {
    /// Write a man page for the program and each of its commands to this folder
    #[arg(long, value_name = "FOLDER")]
    man: Option<PathBuf>,
    /// Write completions for bash, zsh and fish to this folder, by the names that these shells look for
    #[arg(long, value_name = "FOLDER")]
    completions: Option<PathBuf>,
}

/// What the pages of a program have beside its command line.
#[derive(Clone, Copy, Debug)]
pub struct Manual {
    /// The section of all its pages: 1 for commands, 8 for what administrators use.
    pub section: u8,
    /// Files that it reads or writes, and what they are.
    pub files: &'static [(&'static str, &'static str)],
    /// Pages of others, as `name(section)`.
    pub see_also: &'static [&'static str],
    /// Files that have a page of their own.
    pub formats: &'static [FileFormat],
    /// Arguments whose values only the program knows.
    pub words: &'static [Words],
}

impl Manual {
    /// Writes what was asked for, where the arguments of the program ask for that. `command` is all else that it does.
    pub fn answer(&self, command: Command, arguments: &[OsString]) -> Option<io::Result<()>> {
        let arguments = arguments.get(1..).filter(|rest| rest.first().is_some_and(|one| one == COMMAND))?;
        let wanted = Wanted::try_parse_from(arguments).map_err(io::Error::other);
        Some(wanted.and_then(|wanted| self.write(command, &wanted)))
    }

    fn write(&self, command: Command, wanted: &Wanted) -> io::Result<()> {
        if let Some(folder) = &wanted.completions {
            fs::create_dir_all(folder)?;
            completions::write(&command, self.words, folder)?;
        }
        if let Some(folder) = &wanted.man {
            fs::create_dir_all(folder)?;
            let mut command = command.disable_help_subcommand(true);
            command.build();
            let exits = ends_of(&command).into_iter().find(|end| end.heading == EXIT_STATUS);
            self.pages(&command, &[], exits.as_ref(), folder)?;
            for format in self.formats {
                let name = format!("{}.{}", format.name, FileFormat::SECTION);
                fs::write(folder.join(name), format.page())?;
            }
        }
        Ok(())
    }

    /// The page of a command, and those of its commands. `above` are the names of the pages above it.
    fn pages(
        &self,
        command: &Command,
        above: &[String],
        exits: Option<&End>,
        folder: &Path,
    ) -> io::Result<()> {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let mut page = Page::new(name, &self.section.to_string(), "Ringfab");
        page.section("NAME");
        page.name_line(name, &command.get_about().map(ToString::to_string).unwrap_or_default());
        page.section("SYNOPSIS");
        page.text(&synopsis(command));
        page.section("DESCRIPTION");
        let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
        for paragraph in about.unwrap_or_default().split("\n\n") {
            page.paragraph();
            page.text(&[roman(sentence(paragraph))]);
        }
        options(command, &mut page);
        let below: Vec<&Command> = command.get_subcommands().filter(|one| !one.is_hide_set()).collect();
        if !below.is_empty() {
            page.section("COMMANDS");
        }
        for one in &below {
            let name = one.get_display_name().unwrap_or(one.get_name());
            let about = one.get_about().map(ToString::to_string).unwrap_or_default();
            page.item(&[bold(name), roman(format!("({})", self.section))], &[roman(sentence(&about))]);
        }
        let ends = ends_of(command);
        let own = ends.iter().filter(|end| end.heading != EXIT_STATUS);
        own.chain(exits).for_each(|end| end.render(&mut page));
        if !self.files.is_empty() {
            page.section("FILES");
        }
        for (file, meaning) in self.files {
            page.item(&[italic(*file)], &[roman(*meaning)]);
        }
        let ours = above.iter().rev().map(|name| format!("{name}({})", self.section));
        page.see_also(&ours.chain(self.see_also.iter().map(ToString::to_string)).collect::<Vec<_>>());
        fs::write(folder.join(format!("{name}.{}", self.section)), page.into_text())?;
        let above = [above, &[name.to_owned()]].concat();
        below.into_iter().try_for_each(|command| self.pages(command, &above, exits, folder))
    }
}

/// A text that ends with a full stop.
fn sentence(text: &str) -> String {
    let text = text.trim();
    let ends = text.is_empty() || text.ends_with(['.', ':', '!', '?']);
    format!("{text}{}", if ends { "" } else { "." })
}

/// How a command is called: its arguments with their values. Options that several commands share, which the help has
/// below a heading, are named by that heading.
fn synopsis(command: &Command) -> Vec<Piece> {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let mut pieces = vec![bold(name)];
    let shown = || command.get_arguments().filter(|one| !one.is_hide_set());
    for one in
        shown().filter(|one| !one.is_positional() && one.get_help_heading().is_none() && !is_common(one))
    {
        let (open, close) = if one.is_required_set() { ("", "") } else { ("[", "]") };
        pieces.push(roman(format!(" {open}")));
        pieces.extend(form(one, "|"));
        let repeats = matches!(one.get_action(), clap::ArgAction::Append | clap::ArgAction::Count);
        pieces.push(roman(format!("{close}{}", if repeats { "..." } else { "" })));
    }
    for heading in headings(command) {
        pieces.extend([roman(" ["), italic(group_name(heading)), roman("]...")]);
    }
    for one in positionals(command) {
        let (open, close) = if one.is_required_set() { ("", "") } else { ("[", "]") };
        let several = one.get_num_args().is_some_and(|count| count.max_values() > 1);
        let behind = if one.is_last_set() { " --" } else { "" };
        pieces.push(roman(format!("{behind} {open}")));
        pieces.extend(form(one, "|"));
        pieces.push(roman(format!("{close}{}", if several { "..." } else { "" })));
    }
    if command.get_subcommands().any(|one| !one.is_hide_set()) {
        let needed = command.is_subcommand_required_set();
        let (open, close) = if needed { ("", "") } else { ("[", "]") };
        pieces.extend([roman(format!(" {open}")), italic("COMMAND"), roman(format!("{close} ..."))]);
    }
    pieces
}

/// The arguments without names, in their order.
fn positionals(command: &Command) -> Vec<&Arg> {
    let mut all: Vec<&Arg> = command.get_positionals().filter(|one| !one.is_hide_set()).collect();
    all.sort_by_key(|one| one.get_index());
    all
}

/// Whether all commands have this option.
fn is_common(argument: &Arg) -> bool {
    argument.is_global_set() || ["help", "version"].contains(&argument.get_id().as_str())
}

/// The headings that the help has, in its order.
fn headings(command: &Command) -> Vec<&str> {
    let mut headings: Vec<&str> = Vec::new();
    for one in command.get_arguments().filter(|one| !one.is_hide_set()) {
        headings.extend(one.get_help_heading().filter(|heading| !headings.contains(heading)));
    }
    headings
}

/// What a group of options is called.
fn group_name(heading: &str) -> String {
    if heading.ends_with("options") { heading.to_owned() } else { format!("{heading} options") }
}

/// How an argument is written, with its value, and with `between` its short name and its long one.
fn form(argument: &Arg, between: &str) -> Vec<Piece> {
    let values = || {
        let names = argument.get_value_names().unwrap_or_default().iter();
        let names = names.map(|name| name.to_string()).collect::<Vec<_>>().join(" ");
        if names.is_empty() { argument.get_id().to_string().to_uppercase() } else { names }
    };
    let mut pieces = match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(long)) => {
            vec![bold(format!("-{short}")), roman(between), bold(format!("--{long}"))]
        }
        (Some(short), None) => vec![bold(format!("-{short}"))],
        (None, Some(long)) => vec![bold(format!("--{long}"))],
        (None, None) => return vec![italic(values())],
    };
    if argument.get_action().takes_values() {
        pieces.extend([roman(" "), italic(values())]);
    }
    pieces
}

/// The arguments with what they mean, in the order and the groups of the help.
fn options(command: &Command, page: &mut Page) {
    let arguments = positionals(command);
    if !arguments.is_empty() {
        page.section("ARGUMENTS");
    }
    arguments.into_iter().for_each(|one| page.item(&form(one, ", "), &[roman(meaning(one))]));
    let shown = || command.get_arguments().filter(|one| !one.is_hide_set());
    let mut group = |title: &str, of: &dyn Fn(&&Arg) -> bool| {
        let mut all = shown().filter(of).peekable();
        if all.peek().is_some() {
            page.section(title);
        }
        all.for_each(|one| page.item(&form(one, ", "), &[roman(meaning(one))]));
    };
    let own = |one: &&Arg| !one.is_positional() && one.get_help_heading().is_none() && !is_common(one);
    group("OPTIONS", &own);
    for heading in headings(command) {
        group(&group_name(heading).to_uppercase(), &|one| {
            !one.is_positional() && one.get_help_heading() == Some(heading)
        });
    }
    group("OPTIONS OF ALL COMMANDS", &|one| {
        !one.is_positional() && one.get_help_heading().is_none() && is_common(one)
    });
}

/// What an argument means, with its choices and its default.
fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
    let mut text = sentence(&help.unwrap_or_default());
    let choices: Vec<String> =
        match argument.is_hide_possible_values_set() || !argument.get_action().takes_values() {
            true => Vec::new(),
            false => {
                let all = argument.get_possible_values();
                all.iter().filter(|one| !one.is_hide_set()).map(|one| one.get_name().to_owned()).collect()
            }
        };
    if !choices.is_empty() {
        text += &format!(" One of {}.", choices.join(", "));
    }
    let defaults: Vec<_> = argument.get_default_values().iter().map(|one| one.to_string_lossy()).collect();
    if !defaults.is_empty() && argument.get_action().takes_values() && !argument.is_hide_default_value_set() {
        text += &format!(" The default is {}.", defaults.join(" "));
    }
    text.trim_start().to_owned()
}

const EXIT_STATUS: &str = "EXIT STATUS";

/// A part of what a help text ends with: a heading with a list, or words without one.
struct End {
    heading: String,
    lines: Vec<String>,
}

/// The parts. An empty line is between them, and a heading is a line that ends with a colon.
fn ends_of(command: &Command) -> Vec<End> {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let parts = text.split("\n\n").filter(|part| !part.trim().is_empty());
    parts
        .map(|part| {
            let mut lines: Vec<String> = part.lines().map(|line| line.trim().to_owned()).collect();
            let heading = match lines[0].strip_suffix(':') {
                Some("Exit codes") => EXIT_STATUS.to_owned(),
                Some(heading) => heading.to_uppercase(),
                None => return End { heading: "NOTES".to_owned(), lines },
            };
            lines.remove(0);
            End { heading, lines }
        })
        .collect()
}

impl End {
    fn render(&self, page: &mut Page) {
        page.section(&self.heading);
        if self.heading == "EXAMPLES" {
            return page.literal(self.lines.iter().map(String::as_str));
        }
        for line in &self.lines {
            match line.split_once("  ").filter(|_| self.heading == EXIT_STATUS) {
                Some((code, meaning)) => page.item(&[bold(code)], &[roman(meaning.trim())]),
                None => page.text(&[roman(line.as_str())]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANUAL: Manual = Manual {
        section: 8,
        files: &[("/etc/some", "what it reads")],
        see_also: &["systemctl(1)"],
        formats: &[SOME],
        words: &[],
    };

    const SOME: FileFormat = FileFormat {
        name: "some.toml",
        about: "what it does",
        path: "/etc/some",
        example: "# How many.\nnumber = 1\n",
        documents: "/usr/share/doc/some-tool",
        see_also: &["some-tool(8)"],
    };

    fn command() -> Command {
        let more = Command::new("more").about("Do more").after_help("Examples:\n  some-tool one more -x");
        let level =
            Arg::new("level").long("level").short('l').value_name("N").default_value("3").help("How much");
        let group = Arg::new("far").long("far").help("Go far").help_heading("Connection options");
        let hidden = Command::new("step").about("A step").hide(true);
        let short = Arg::new("short").short('x').value_name("X");
        let inner = Command::new("one").arg(short).about("Do one thing").subcommand(more).subcommand(hidden);
        let inner =
            inner.arg(level).arg(group.action(clap::ArgAction::SetTrue)).arg(Arg::new("where").index(2));
        let inner = inner.arg(Arg::new("what").index(1).required(true));
        let help = "Exit codes:\n  0    done\n  2    the file is wrong\n\nColours are rare.";
        Command::new("some-tool").version("1").about("A tool").after_help(help).subcommand(inner)
    }

    fn asked(arguments: &[&str]) -> Option<io::Result<()>> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        MANUAL.answer(command(), &arguments)
    }

    fn written(option: &str, folder: &Path) -> Vec<String> {
        let path = folder.display().to_string();
        asked(&["some-tool", "manual", option, &path]).expect("asked").expect("written");
        let names = fs::read_dir(folder).expect("made").map(|file| file.expect("a file").file_name());
        let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().expect("a folder");
        let man = folder.path().join("man");
        let names = written("--man", &man);
        assert_eq!(names, ["some-tool-one-more.8", "some-tool-one.8", "some-tool.8", "some.toml.5"]);
        let page = |name: &str| fs::read_to_string(man.join(name)).expect("a page");
        let first = page("some-tool.8");
        assert!(first.contains(".TP\n\\fBsome\\-tool\\-one\\fR(8)\nDo one thing.\n"), "{first}");
        assert!(first.contains(".SH \"NOTES\"\nColours are rare."), "{first}");
        let middle = page("some-tool-one.8");
        let groups = ".TP\n\\fB\\-l\\fR, \\fB\\-\\-level\\fR \\fIN\\fR\nHow much. The default is 3.\n\
                      .SH \"CONNECTION OPTIONS\"\n.TP\n\\fB\\-\\-far\\fR\nGo far.\n.SH \"OPTIONS OF ALL COMMANDS\"\n";
        assert!(middle.contains(groups), "{middle}");
        let joined = middle.replace('\n', " ");
        let called = "\\fBsome\\-tool\\fR \\fBone\\fR [\\fB\\-x\\fR \\fIX\\fR] \
                      [\\fB\\-l\\fR|\\fB\\-\\-level\\fR \\fIN\\fR]";
        assert!(joined.contains(called), "{middle}");
        assert!(
            joined.contains("[\\fIConnection\\fR \\fIoptions\\fR]... \\fIWHAT\\fR [\\fIWHERE\\fR]"),
            "{middle}"
        );
        assert!(!middle.contains("step"), "{middle}");
        let last = page("some-tool-one-more.8");
        for part in [
            ".TH SOME\\-TOOL\\-ONE\\-MORE 8",
            "\\fBsome\\-tool\\fR \\fBone\\fR \\fBmore\\fR",
            ".SH \"EXIT STATUS\"",
            ".TP\n\\fB2\\fR\nthe file is wrong",
            ".SH \"EXAMPLES\"\n.RS 4\n.nf\n\\fBsome\\-tool one more \\-x\\fR\n.fi\n.RE\n",
            "\\fBsome\\-tool\\-one\\fR(8), \\fBsome\\-tool\\fR(8), \\fBsystemctl\\fR(1)",
        ] {
            assert!(last.contains(part), "{part}: {last}");
        }
    }

    #[test]
    fn other_commands_are_left_alone_and_wrong_options_named() {
        assert!(asked(&["some-tool"]).is_none());
        assert!(asked(&["some-tool", "one", "manual"]).is_none());
        let error = asked(&["some-tool", "manual", "--colour"]).expect("asked").expect_err("refused");
        assert!(error.to_string().contains("--colour"), "{error}");
        let error = asked(&["some-tool", "manual", "--man", "/dev/null/x"]).expect("asked");
        assert!(error.is_err(), "nothing can be written there");
    }
}
