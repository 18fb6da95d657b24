//! Man pages and completions, made of a program's own command line, for whoever installs the program.
//!
//! Not implemented here: any text that the command line does not have, but for files and other pages.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, Parser};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use crate::format::FileFormat;

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
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                clap_complete::generate_to(
                    shell,
                    &mut command.clone(),
                    command.get_name().to_owned(),
                    folder,
                )?;
            }
        }
        if let Some(folder) = &wanted.man {
            fs::create_dir_all(folder)?;
            let mut command = command.disable_help_subcommand(true);
            command.build();
            let exits = ends_of(&command).into_iter().find(|end| end.heading == EXIT_STATUS);
            self.pages(&command, &[], exits.as_ref(), folder)?;
            for format in self.formats {
                let name = format!("{}.{}", format.name, FileFormat::SECTION);
                format.page().to_writer(&mut File::create(folder.join(name))?)?;
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
        let man = Man::new(command.clone())
            .section(self.section.to_string())
            .source(format!("Ringfab {}", env!("CARGO_PKG_VERSION")))
            .manual("Ringfab");
        let mut page = File::create(folder.join(man.get_filename()))?;
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        if command.get_arguments().any(|argument| !argument.is_hide_set()) {
            man.render_options_section(&mut page)?;
        }
        let below: Vec<&Command> = command.get_subcommands().filter(|one| !one.is_hide_set()).collect();
        if !below.is_empty() {
            man.render_subcommands_section(&mut page)?;
        }
        let mut roff = Roff::default();
        let ends = ends_of(command);
        let own = ends.iter().filter(|end| end.heading != EXIT_STATUS);
        own.chain(exits).for_each(|end| end.render(&mut roff));
        self.render_files(&mut roff);
        self.render_others(above, &mut roff);
        roff.to_writer(&mut page)?;
        page.flush()?;
        let above = [above, &[command.get_display_name().unwrap_or(command.get_name()).to_owned()]].concat();
        below.into_iter().try_for_each(|command| self.pages(command, &above, exits, folder))
    }

    fn render_files(&self, roff: &mut Roff) {
        if !self.files.is_empty() {
            roff.control("SH", ["FILES"]);
        }
        for (file, meaning) in self.files {
            roff.control("TP", []);
            roff.text([italic(*file)]);
            roff.text([roman(*meaning)]);
        }
    }

    /// The pages above this one, and those of others.
    fn render_others(&self, above: &[String], roff: &mut Roff) {
        let ours = above.iter().rev().map(|name| (name.as_str(), self.section.to_string()));
        let theirs = self.see_also.iter().filter_map(|page| {
            let (name, section) = page.strip_suffix(')')?.split_once('(')?;
            Some((name, section.to_owned()))
        });
        let mut names: Vec<Inline> = Vec::new();
        for (name, section) in ours.chain(theirs) {
            let comma = if names.is_empty() { "" } else { ", " };
            names.extend([roman(comma), bold(name), roman(format!("({section})"))]);
        }
        if !names.is_empty() {
            roff.control("SH", ["SEE ALSO"]);
            roff.text(names);
        }
    }
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
    fn render(&self, roff: &mut Roff) {
        roff.control("SH", [self.heading.as_str()]);
        for line in &self.lines {
            match line.split_once("  ").filter(|_| self.heading == EXIT_STATUS) {
                Some((code, meaning)) => {
                    roff.control("TP", []);
                    roff.text([bold(code)]);
                    roff.text([roman(meaning.trim())]);
                }
                None if self.heading == "EXAMPLES" => {
                    roff.control("PP", []);
                    roff.text([bold(line.as_str())]);
                }
                None => {
                    roff.text([roman(line.as_str())]);
                }
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
        let inner = Command::new("one").about("Do one thing").subcommand(more);
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
        assert!(first.contains("some\\-tool\\-one(8)"), "{first}");
        assert!(first.contains(".SH NOTES\nColours are rare."), "{first}");
        let last = page("some-tool-one-more.8");
        for part in [
            ".TH some-tool-one-more 8",
            "some\\-tool one more",
            ".SH \"EXIT STATUS\"",
            ".TP\n\\fB2\\fR\nthe file is wrong",
            ".SH EXAMPLES\n.PP\n\\fBsome\\-tool one more \\-x\\fR",
            "\\fBsome\\-tool\\-one\\fR(8), \\fBsome\\-tool\\fR(8), \\fBsystemctl\\fR(1)",
        ] {
            assert!(last.contains(part), "{part}: {last}");
        }
    }

    #[test]
    fn each_shell_has_its_file_of_completions() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = written("--completions", folder.path());
        assert_eq!(names, ["_some-tool", "some-tool.bash", "some-tool.fish"]);
        let bash = fs::read_to_string(folder.path().join("some-tool.bash")).expect("a file");
        assert!(bash.contains("some__tool__subcmd__one,more"), "{bash}");
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
