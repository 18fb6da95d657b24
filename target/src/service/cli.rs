//! The command line of `ringfab-target`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory as _, Parser, Subcommand};

use ringfab_process::format::FileFormat;
use ringfab_process::manual::Manual;
use ringfab_process::terminal::{self, Color, ColorOption, Stream};
use ringfab_process::{log, signals};

use super::check::CheckOptions;
use super::{Running, ServeError, ServeOptions, check, serve};
use crate::config::Config;
use crate::control::client::AskError;
use crate::control::command::{
    self, AnaCommand, ConfigArguments, FreezeArguments, HostCommand, ListenerCommand, LogArguments,
    NamespaceCommand, Place, ReloadArguments, SubsystemCommand, TopArguments, examples,
};
use crate::target::Target;

/// An NVMe over Fabrics target: serves files, block devices and memory to other machines.
#[derive(Debug, Parser)]
#[command(name = "ringfab-target", version, max_term_width = 110, after_help = AFTER_HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    color: ColorOption,
}

/// A test compares the exit codes with those of docs/command-line.md.
const AFTER_HELP: &str = "\
Exit codes:
  0    done
  1    failed, refused by the target, or something is wrong that doctor has found
  2    the command line is wrong, or the configuration file
  141  nobody reads the output any more (SIGPIPE, as shells show it)

NO_COLOR turns colours off, --color turns them on or off. RUST_LOG sets a filter for the log.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a configuration until SIGTERM or SIGINT. A second signal ends at once, without a drain.
    #[command(after_help = examples::SERVE)]
    Serve {
        #[command(flatten)]
        config: ConfigFile,
        /// Write one line `address:port` per listener here, once hosts can connect.
        #[arg(long, value_name = "PATH")]
        ready_file: Option<PathBuf>,
        /// How the log is written: text, json, or auto (fields for the journal, else text). The default is what
        /// the configuration says.
        #[arg(long, value_name = "FORMAT")]
        log_format: Option<log::Format>,
    },
    /// Print all mistakes of a configuration file with line and key. If there are none, print it with all defaults.
    /// Then look at the machine, and warn of what is missing there: addresses, ports, RDMA devices, disks.
    #[command(after_help = examples::CHECK)]
    Check {
        #[command(flatten)]
        config: ConfigFile,
        /// Print mistakes and warnings only.
        #[arg(long, short)]
        quiet: bool,
        /// Ask the servers of NBD exports, too: whether each answers, and has what is named.
        #[arg(long)]
        backings: bool,
        #[command(flatten)]
        user: AsUser,
    },
    /// Look at the configuration, the machine and the target that runs, and say what to do.
    #[command(after_help = examples::DOCTOR)]
    Doctor {
        #[command(flatten)]
        config: ConfigFile,
        /// The control socket of the target, if it is not the one that the configuration names.
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
        /// Print JSON for programs.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        user: AsUser,
    },
    #[command(flatten)]
    Ask(Ask),
}

/// As whom a command looks at files and devices.
#[derive(Debug, clap::Args)]
struct AsUser {
    /// Look as this user, in these groups. For root, the default is the user of the service.
    #[arg(long = "as", value_name = "USER[:GROUP,...]")]
    user: Option<String>,
}

impl AsUser {
    /// Has `look` look as this user, in this process or in another one. Unless it is `quiet`, it says as whom.
    fn look(&self, config: &Path, quiet: bool, look: impl FnOnce() -> Result<(), ServeError>) -> ExitCode {
        match &self.user {
            Some(user) => conclude(check::assume(user).and_then(|()| look())),
            None => check::as_service(config, quiet).unwrap_or_else(|| conclude(look())),
        }
    }
}

/// Where the configuration is when the command line does not say so.
const CONFIG_FILE: &str = "/etc/ringfab/target.toml";

/// Which configuration is meant.
#[derive(Debug, clap::Args)]
struct ConfigFile {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = CONFIG_FILE, conflicts_with = "file")]
    config: PathBuf,
    /// The configuration file, as with --config.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

impl ConfigFile {
    fn path(self) -> PathBuf {
        self.file.unwrap_or(self.config)
    }
}

/// What asks a target that runs.
#[derive(Debug, Subcommand)]
enum Ask {
    /// Add, remove and resize namespaces of a target that runs.
    #[command(after_help = examples::NAMESPACE)]
    Namespace {
        #[command(flatten)]
        place: Place,
        #[command(subcommand)]
        command: NamespaceCommand,
    },
    /// Add and remove subsystems of a target that runs.
    #[command(after_help = examples::SUBSYSTEM)]
    Subsystem {
        #[command(flatten)]
        place: Place,
        #[command(subcommand)]
        command: SubsystemCommand,
    },
    /// Allow, deny and disconnect hosts of a target that runs.
    #[command(after_help = examples::HOST)]
    Host {
        #[command(flatten)]
        place: Place,
        #[command(subcommand)]
        command: HostCommand,
    },
    /// Add and remove the addresses at which hosts connect to a target that runs.
    #[command(after_help = examples::LISTENER)]
    Listener {
        #[command(flatten)]
        place: Place,
        #[command(subcommand)]
        command: ListenerCommand,
    },
    /// Show and change the states of paths to the namespaces of a target that runs.
    #[command(after_help = examples::ANA)]
    Ana {
        #[command(flatten)]
        place: Place,
        #[command(subcommand)]
        command: AnaCommand,
    },
    /// Hold all writes to some namespaces for a moment, flush them, and run a command that makes a snapshot of what is
    /// beneath them: all are of one instant then. Hosts see a pause. Writes go on when the command ends, and in any
    /// case after the time.
    #[command(after_help = examples::FREEZE)]
    Freeze {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        arguments: FreezeArguments,
    },
    /// Change what a target that runs logs.
    #[command(after_help = examples::LOG)]
    Log {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        arguments: LogArguments,
    },
    /// Have a target that runs read its configuration file again, and apply what is different: all of it, or nothing.
    #[command(after_help = examples::RELOAD)]
    Reload {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        arguments: ReloadArguments,
    },
    /// Print the configuration that a target runs with, as a file, or write it to its file.
    #[command(after_help = examples::CONFIG)]
    Config {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        arguments: ConfigArguments,
    },
    /// Print what a target that runs is doing: who is connected, what is served, and what its cores have in use.
    #[command(after_help = examples::STATUS)]
    Status {
        #[command(flatten)]
        place: Place,
    },
    /// Show the same live, in a terminal: hosts, namespaces, queues and cores, sorted by any column.
    #[command(after_help = examples::TOP)]
    Top {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        arguments: TopArguments,
    },
}

/// What users of nvmetcli, of SPDK's rpc.py and of other services type, and what to use here instead.
const COMMANDS_OF_OTHERS: [(&str, &str); 19] = [
    ("ls", SHOW),
    ("list", SHOW),
    ("show", SHOW),
    ("info", SHOW),
    ("nvmf_get_subsystems", SHOW),
    ("create", CREATE),
    ("add", CREATE),
    ("nvmf_create_subsystem", CREATE),
    ("nvmf_subsystem_add_ns", "`ringfab-target namespace add` adds a namespace"),
    ("nvmf_subsystem_remove_ns", "`ringfab-target namespace remove` removes a namespace"),
    ("nvmf_subsystem_add_listener", "`ringfab-target listener add` adds a listener"),
    ("nvmf_subsystem_add_host", "`ringfab-target host allow` allows a host"),
    ("save", "`ringfab-target config --save` writes what is served to its file"),
    ("saveconfig", "`ringfab-target config --save` writes what is served to its file"),
    ("restore", "`ringfab-target reload` applies the configuration file"),
    (
        "start",
        "`systemctl start ringfab-target` starts the service, `ringfab-target serve` serves in the foreground",
    ),
    ("run", "`ringfab-target serve` serves in the foreground"),
    ("stop", "`systemctl stop ringfab-target` stops the service, and SIGTERM what serves in the foreground"),
    ("version", "`ringfab-target --version` prints the version"),
];
const SHOW: &str =
    "`ringfab-target status` shows what is served, `ringfab-target namespace list` the namespaces";
const CREATE: &str =
    "`ringfab-target subsystem add`, `namespace add` and `listener add` add to a target that runs";

/// What the man pages have beside the command line.
const MANUAL: Manual = Manual {
    section: 8,
    files: &[
        ("/etc/ringfab/target.toml", "The configuration."),
        ("/var/lib/ringfab/identity", "The identity of this installation. Hosts know every namespace by it."),
        ("/run/ringfab/control.sock", "Where a target that runs takes requests."),
        ("/srv/ringfab", "Files that serve as disks."),
    ],
    see_also: &["target.toml(5)", "ringfab(1)", "systemctl(1)", "journalctl(1)"],
    formats: &[TARGET_TOML],
    words: &[],
};

/// The page of the configuration is made of the example that explains every key.
const TARGET_TOML: FileFormat = FileFormat {
    name: "target.toml",
    about: "what a Ringfab target serves to whom",
    path: "/etc/ringfab/target.toml",
    example: include_str!("../../../configs/full.toml"),
    documents: "/usr/share/doc/ringfab-target",
    see_also: &["ringfab-target(8)", "ringfab-target-check(8)", "ringfab-target-serve(8)"],
};

/// Runs a command line; `start` starts the cores of `serve`. The exit code is 0 when all went well, 2 when the command
/// line or the configuration is wrong, and 1 for all else.
pub fn run<R: Running>(
    arguments: impl IntoIterator<Item = OsString>,
    start: impl FnOnce(&Arc<Target>, &Config) -> io::Result<R>,
) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // What is wrong with a command line has colours, too.
    terminal::choose(Color::of_arguments(&arguments));
    if let Some(written) = MANUAL.answer(Arguments::command(), &arguments) {
        return conclude(written.map_err(ServeError::Output));
    }
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            return answer(&terminal::suggest(error, &COMMANDS_OF_OTHERS));
        }
    };
    terminal::choose(arguments.color.color);
    let mut output = UntilClosed(io::stdout());
    let outcome = match arguments.command {
        Command::Serve { config, ready_file, log_format } => {
            serve(&ServeOptions { config: config.path(), ready_file, log_format }, start)
        }
        Command::Check { config, quiet, backings, user } => {
            let config = config.path();
            let options = CheckOptions { quiet, backings };
            return user.look(&config, quiet, || check::check(&config, options, &mut output));
        }
        Command::Doctor { config, socket, json, user } => {
            let config = config.path();
            return user
                .look(&config, json, || check::examine(&config, socket.as_deref(), json, &mut output));
        }
        Command::Ask(question) => ask(question, &mut output).map_err(ServeError::from),
    };
    conclude(outcome)
}

/// Says why it failed, if it did.
fn conclude(outcome: Result<(), ServeError>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::say(&error.to_string());
            log::flush();
            ExitCode::from(error.exit_code())
        }
    }
}

/// Asks a target that runs.
fn ask(question: Ask, output: &mut impl Write) -> Result<(), AskError> {
    match question {
        Ask::Namespace { place, command } => command::namespace(&place, command, output),
        Ask::Subsystem { place, command } => command::subsystem(&place, command, output),
        Ask::Host { place, command } => command::host(&place, command, output),
        Ask::Listener { place, command } => command::listener(&place, command, output),
        Ask::Ana { place, command } => command::ana(&place, command, output),
        Ask::Freeze { place, arguments } => command::freeze(&place, &arguments, output),
        Ask::Log { place, arguments } => command::log(&place, arguments, output),
        Ask::Reload { place, arguments } => command::reload(&place, &arguments, output),
        Ask::Config { place, arguments } => command::config(&place, &arguments, output),
        Ask::Status { place } => command::status(&place, output),
        Ask::Top { place, arguments } => command::top(&place, &arguments),
    }
}

/// An output whose reader may go away (`ringfab-target status | head -1`): then the program ends as others do.
struct UntilClosed<W>(W);

impl<W: Write> Write for UntilClosed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        unless_closed(self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        unless_closed(self.0.flush())
    }
}

fn unless_closed<T>(result: io::Result<T>) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => signals::end_without_reader(),
        result => result,
    }
}

/// What is said to a command line that is wrong, or asks for help.
fn answer(error: &clap::Error) -> ExitCode {
    let stream = if error.use_stderr() { Stream::Err } else { Stream::Out };
    let text = terminal::answer(stream, error);
    let mut code = 2;
    match stream {
        Stream::Err => log::say(&text),
        Stream::Out => match UntilClosed(io::stdout()).write_all(text.as_bytes()) {
            Ok(()) => code = 0,
            Err(error) => {
                log::say(&ServeError::Output(error).to_string());
                code = 1;
            }
        },
    }
    log::flush();
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use ringfab_process::options;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_document_has_all_commands_and_an_option_is_written_in_one_way() {
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/options-target.md");
        options::assert_documented(&Arguments::command(), &document);
        assert_eq!(options::contradictions(&Arguments::command()), [""; 0]);
    }

    /// Calls `look` with every command that can be run, and its name.
    fn each(command: &clap::Command, name: &str, look: &mut impl FnMut(&str, &clap::Command)) {
        for one in command.get_subcommands().filter(|one| one.get_name() != "help") {
            let name = format!("{name} {}", one.get_name());
            look(&name, one);
            each(one, &name, look);
        }
    }

    #[test]
    fn every_command_has_examples_that_parse_and_fit_a_terminal() {
        use clap::CommandFactory;
        let mut count = 0;
        each(&Arguments::command(), "ringfab-target", &mut |name, command| {
            let help = command.clone().term_width(80).render_long_help().to_string();
            let examples = help.split_once("Examples:\n").unwrap_or_else(|| panic!("{name} has none")).1;
            let examples = examples.split("\n\n").next().unwrap().replace("\\\n", "");
            for line in examples.lines() {
                let words = ringfab_base::shell_words(line);
                assert!(words.join(" ").starts_with(name), "{name}: {line}");
                Arguments::try_parse_from(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
                count += 1;
            }
            let takes = help.contains("<SIZE>");
            assert_eq!(help.contains("\nSIZE is a number of bytes"), takes, "{name}");
        });
        assert!(count > 30, "{count}");
    }

    #[test]
    fn the_page_of_the_configuration_says_all_that_the_example_says() {
        use clap::CommandFactory;
        let folder = tempfile::tempdir().unwrap();
        let words =
            ["ringfab-target", "manual", "--man", folder.path().to_str().unwrap()].map(OsString::from);
        MANUAL.answer(Arguments::command(), &words).expect("asked").unwrap();
        let page = std::fs::read_to_string(folder.path().join("target.toml.5")).unwrap();
        let plain = [("\\\n", ""), ("\\fB", ""), ("\\fI", ""), ("\\fR", ""), ("\\&", ""), ("\\-", "-")];
        let quotes = [("\\(aq", "'"), ("\\(dq", "\""), ("\\e", "\\")];
        let page = plain.iter().chain(&quotes).fold(page, |page, (from, to)| page.replace(from, to));
        let joined = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let page = joined(&page);
        // Documents are named with where they are installed.
        let page = page.replace(&format!("{}/docs/", TARGET_TOML.documents), "docs/");
        let mut count = 0;
        for line in TARGET_TOML.example.lines().map(|line| line.trim_start_matches('#').trim()) {
            assert!(page.contains(&joined(line)), "the page does not say `{line}`");
            count += usize::from(!line.is_empty());
        }
        assert!(count > 150, "{count}");
        assert!(page.contains("spin_us = 100") && page.contains("[[subsystem.namespace]]"), "{page}");
    }

    #[test]
    fn what_is_suggested_for_a_command_of_others_is_one_of_ours() {
        for (other, instead) in COMMANDS_OF_OTHERS {
            let error = Arguments::try_parse_from(["ringfab-target", other]).expect_err("none of ours");
            let said = terminal::answer(Stream::Err, &terminal::suggest(error, &COMMANDS_OF_OTHERS));
            assert!(said.contains(&format!("tip: {instead}")), "{other}: {said}");
            for named in
                instead.split('`').skip(1).step_by(2).filter(|one| one.starts_with("ringfab-target "))
            {
                let words: Vec<&str> = named.split(' ').skip(1).collect();
                let command = Arguments::command();
                let found = words.iter().try_fold(&command, |command, word| match word.starts_with('-') {
                    true => Some(command),
                    false => command.find_subcommand(word),
                });
                assert!(found.is_some(), "{other}: {named} is no command");
            }
        }
    }

    #[test]
    fn every_command_with_a_configuration_names_it_in_the_same_ways() {
        for command in ["serve", "check", "doctor"] {
            let config = |more: &[&str]| {
                let arguments = ["ringfab-target", command].into_iter().chain(more.iter().copied());
                let parsed = Arguments::try_parse_from(arguments).map_err(|error| error.to_string())?;
                Ok::<_, String>(match parsed.command {
                    Command::Serve { config, .. }
                    | Command::Check { config, .. }
                    | Command::Doctor { config, .. } => config.path(),
                    Command::Ask(_) => panic!("{command} asks nobody"),
                })
            };
            assert_eq!(config(&[]), Ok(PathBuf::from(CONFIG_FILE)));
            assert_eq!(config(&["a.toml"]), Ok(PathBuf::from("a.toml")));
            assert_eq!(config(&["--config", "a.toml"]), Ok(PathBuf::from("a.toml")));
            assert!(
                config(&["--config", "a.toml", "b.toml"])
                    .is_err_and(|why| why.contains("cannot be used with"))
            );
        }
    }
}
