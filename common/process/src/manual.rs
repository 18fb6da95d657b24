//! Man pages and completions, made of a program's own command line, for whoever installs the program.
//!
//! Not implemented here: any text that the command line does not have, but for exit statuses, files and other pages.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, Parser};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

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
    /// Exit statuses and their meaning.
    pub exit: &'static [(&'static str, &'static str)],
    /// Files that it reads or writes, and what they are.
    pub files: &'static [(&'static str, &'static str)],
    /// Pages of others, as `name(section)`.
    pub see_also: &'static [&'static str],
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
            self.pages(&command, &[], folder)?;
        }
        Ok(())
    }

    /// The page of a command, and those of its commands. `above` are the names of the pages above it.
    fn pages(&self, command: &Command, above: &[String], folder: &Path) -> io::Result<()> {
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
        self.write_ends(above, &mut page)?;
        page.flush()?;
        let above = [above, &[command.get_display_name().unwrap_or(command.get_name()).to_owned()]].concat();
        below.into_iter().try_for_each(|command| self.pages(command, &above, folder))
    }

    /// The sections at the end of each page.
    fn write_ends(&self, above: &[String], page: &mut impl Write) -> io::Result<()> {
        let mut roff = Roff::default();
        for (heading, rows) in [("EXIT STATUS", self.exit), ("FILES", self.files)] {
            if rows.is_empty() {
                continue;
            }
            roff.control("SH", [heading]);
            for (term, meaning) in rows {
                roff.control("TP", []);
                roff.text([if heading == "FILES" { italic(*term) } else { bold(*term) }]);
                roff.text([roman(*meaning)]);
            }
        }
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
        roff.to_writer(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANUAL: Manual = Manual {
        section: 8,
        exit: &[("0", "done"), ("2", "the file is wrong")],
        files: &[("/etc/some", "what it reads")],
        see_also: &["systemctl(1)"],
    };

    fn command() -> Command {
        let inner =
            Command::new("one").about("Do one thing").subcommand(Command::new("more").about("Do more"));
        Command::new("some-tool").version("1").about("A tool").subcommand(inner)
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
        assert_eq!(names, ["some-tool-one-more.8", "some-tool-one.8", "some-tool.8"]);
        let page = |name: &str| fs::read_to_string(man.join(name)).expect("a page");
        let first = page("some-tool.8");
        assert!(first.contains("some\\-tool\\-one(8)"), "{first}");
        let last = page("some-tool-one-more.8");
        for part in [
            ".TH some-tool-one-more 8",
            "some\\-tool one more",
            ".SH \"EXIT STATUS\"",
            "the file is wrong",
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
