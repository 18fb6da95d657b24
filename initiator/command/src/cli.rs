//! The command line. `AFTER_HELP` has the exit codes, and docs/command-line.md.

mod ana_log;
mod complete;
mod decode;
#[cfg(feature = "verbs")]
mod devices;
mod discover;
mod doctor;
mod examples;
mod feature;
mod hostnqn;
mod identify;
mod keys;
mod list;
mod logs;
mod mount;
mod smart;
mod transfer;
mod trim;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use ringfab_base::shell_word;
use ringfab_front_ends::advice::Advised;
use ringfab_front_ends::context::{Context, Usage};
use ringfab_front_ends::interrupt::{Cancelled, EXIT_CANCELLED, HangUp, Interrupt};
use ringfab_front_ends::options::ConnectArgs;
use ringfab_front_ends::output::{self, ReaderGone};
use ringfab_front_ends::path::{self, PathCommand};
use ringfab_front_ends::progress::Connecting;
use ringfab_front_ends::prometheus;
use ringfab_front_ends::reset::{self, ResetArgs};
use ringfab_front_ends::volumes::{
    self, GrowArgs, MountArgs, StepArgs, UmountArgs, VolumeCommand, WritesLost,
};
use ringfab_front_ends::{bench, connect_all, fuse, nbd};
use ringfab_initiator::blocking::Controller;
use ringfab_process::manual::Manual;
use ringfab_process::terminal::{self, Color, ColorOption, Paint, Stream};
use ringfab_process::{limits, log, signals};

const EXIT_FAILED: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_WRITES_LOST: u8 = 3;

/// What users of nvme-cli and others type, and what to use here instead.
const COMMANDS_OF_OTHERS: [(&str, &str); 22] = [
    ("connect", CONNECT),
    ("attach", CONNECT),
    ("disconnect", DISCONNECT),
    ("disconnect-all", DISCONNECT),
    ("detach", DISCONNECT),
    ("unmount", "`ringfab umount` unmounts, and detaches the disk"),
    ("status", LIST),
    ("list-subsys", LIST),
    ("ls", LIST),
    ("ps", LIST),
    ("list-ns", "`ringfab list ADDRESS` shows a controller and its namespaces"),
    ("smart-log", "`ringfab smart` shows the SMART / Health Information log page"),
    ("changed-ns-list", "`ringfab changed-ns-list-log` shows the namespaces that have changed"),
    ("dsm", TRIM),
    ("write-zeroes", TRIM),
    ("discard", TRIM),
    (
        "gen-hostnqn",
        "`ringfab show-hostnqn` shows the name of this host; /etc/nvme/hostnqn has another one if you like",
    ),
    ("gen-dhchap-key", "`ringfab keys generate` makes a key for authentication"),
    ("gen-tls-key", "`ringfab keys generate --tls` makes a key for TLS"),
    ("check-dhchap-key", "`ringfab keys check` checks a key"),
    ("check-tls-key", "`ringfab keys check` checks a key"),
    ("version", "`ringfab --version` prints the version"),
];
const CONNECT: &str = "`ringfab mount` mounts a disk, `ringfab nbd` serves it as a block device, `ringfab fuse` as a \
                       file, `ringfab connect-all` all that discovery finds";
const DISCONNECT: &str = "`ringfab umount` unmounts and detaches a disk; `ringfab nbd`, `fuse` and `connect-all` end \
                          with SIGTERM";
const LIST: &str = "`ringfab list` shows what this machine has attached";
const TRIM: &str = "`ringfab trim` says that blocks are no longer needed, or zeroes them";

/// What the man pages have beside the command line.
const MANUAL: Manual = Manual {
    section: 1,
    files: &[
        ("/etc/nvme/hostnqn", "The name of this host, unless --hostnqn is given."),
        ("/etc/nvme/hostid", "The identifier of this host, unless --hostid is given."),
    ],
    see_also: &["volumes.toml(5)", "ringfab-target(8)", "nvme(1)"],
    formats: &[],
    words: &complete::WORDS,
};

/// The initiator of Ringfab: finds, shows, measures and uses NVMe over Fabrics namespaces.
#[derive(Parser)]
#[command(name = "ringfab", version, max_term_width = 110, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: Global,
}

/// A test compares the exit codes with those of docs/command-line.md.
const AFTER_HELP: &str = "\
Exit codes:
  0    done
  1    failed; one sentence on the standard error says why
  2    the command line is wrong
  3    `umount`: it is unmounted, and what was written may not be on the disk
  130  cancelled by SIGINT, SIGTERM or, where nothing is served, SIGHUP
  141  nobody reads the output any more (SIGPIPE, as shells show it)

NO_COLOR turns colours off, --color turns them on or off. RUST_LOG sets a filter for the log where there is no -v.

An option that is given at several places holds as the command line says it, then as the address does, then the
environment, then volumes.toml. Where two differ, a line on the standard error says which holds.";

#[derive(Args)]
struct Global {
    /// Print JSON for programs instead of text for people
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    color: ColorOption,
    /// Log more to the standard error: once for what happens to connections, twice for details
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// How the log is written: text, json, or auto (fields for the journal, else text)
    #[arg(long, global = true, value_name = "FORMAT", default_value = "auto")]
    log_format: log::Format,
}

#[derive(Subcommand)]
enum Command {
    /// List the subsystems that a discovery controller knows
    #[command(after_help = examples::DISCOVER)]
    Discover(discover::DiscoverArgs),
    /// Attach all subsystems that discovery controllers know, and serve each
    #[command(after_help = examples::CONNECT_ALL)]
    ConnectAll(connect_all::ConnectAllArgs),
    /// Walk from the name to a first read, with the time of each step, and say what to do where that ends
    #[command(after_help = examples::DOCTOR)]
    Doctor(doctor::DoctorArgs),
    /// Show a controller and its namespaces; without an address, what this machine has attached
    #[command(after_help = examples::LIST)]
    List(list::ListArgs),
    /// Mount the file system of a namespace: in the background, with all that it needs
    #[command(args_override_self = true, after_help = examples::MOUNT)]
    Mount(Box<MountArgs>),
    /// Unmount a file system that `ringfab mount` has mounted, and detach its disk
    #[command(after_help = examples::UMOUNT)]
    Umount(UmountArgs),
    /// Reset the controller of what this machine has attached: it is connected again, and I/O waits and goes on
    #[command(after_help = examples::RESET)]
    Reset(ResetArgs),
    /// The paths of what this machine has attached: shown, added and removed
    #[command(subcommand, after_help = examples::PATH)]
    Path(PathCommand),
    /// Print metrics of what this machine has attached, as Prometheus reads them
    #[command(after_help = examples::METRICS)]
    Metrics,
    /// Volumes: what /etc/ringfab/volumes.toml names
    #[command(subcommand, after_help = examples::VOLUME)]
    Volume(VolumeCommand),
    /// Show the NQN of this host, which a target has to allow
    #[command(after_help = examples::SHOW_HOSTNQN)]
    ShowHostnqn,
    /// Names for shells
    #[command(hide = true)]
    Complete(complete::CompleteArgs),
    /// The part of mounting that has a process of its own
    #[command(hide = true)]
    MountStep(StepArgs),
    /// The part of growing that has a process of its own
    #[command(hide = true)]
    MountGrow(GrowArgs),
    /// Show the Identify Controller data structure
    #[command(after_help = examples::ID_CTRL)]
    IdCtrl(identify::IdCtrlArgs),
    /// Show the Identify Namespace data structure
    #[command(after_help = examples::ID_NS)]
    IdNs(identify::IdNsArgs),
    /// Make and check keys for authentication and TLS
    #[command(subcommand, after_help = examples::KEYS)]
    Keys(keys::KeysCommand),
    /// Show the RDMA devices of this machine, and why one cannot be used
    #[cfg(feature = "verbs")]
    #[command(after_help = examples::DEVICES)]
    Devices,
    /// Show the SMART / Health Information log page
    #[command(after_help = examples::SMART)]
    Smart(ConnectArgs),
    /// Show the access state of each group of namespaces (Asymmetric Namespace Access log page)
    #[command(after_help = examples::ANA_LOG)]
    AnaLog(ConnectArgs),
    /// Show the Error Information log page
    #[command(after_help = examples::ERROR_LOG)]
    ErrorLog(logs::ErrorLogArgs),
    /// Show which commands the controller supports, and what they change (Commands Supported and Effects log page)
    #[command(visible_alias = "effects", after_help = examples::EFFECTS_LOG)]
    EffectsLog(logs::EffectsLogArgs),
    /// Show the namespaces that have changed (Changed Namespace List log page)
    #[command(visible_alias = "changed-ns", after_help = examples::CHANGED_NS_LIST_LOG)]
    ChangedNsListLog(ConnectArgs),
    /// Show features of the controller or of a namespace
    #[command(after_help = examples::GET_FEATURE)]
    GetFeature(feature::GetFeatureArgs),
    /// Copy bytes of a namespace to a file or the standard output
    #[command(after_help = examples::READ)]
    Read(transfer::ReadArgs),
    /// Copy a file or the standard input to a namespace
    #[command(after_help = examples::WRITE)]
    Write(transfer::WriteArgs),
    /// Say that blocks are no longer needed, or zero them
    #[command(after_help = examples::TRIM)]
    Trim(trim::TrimArgs),
    /// Measure a namespace, or write and verify it
    #[command(after_help = examples::BENCH)]
    Bench(bench::BenchCommand),
    /// Serve namespaces as a network block device
    #[command(after_help = examples::NBD)]
    Nbd(nbd::NbdArgs),
    /// Present namespaces as files
    #[command(after_help = examples::FUSE)]
    Fuse(fuse::FuseArgs),
}

/// Runs the command.
pub(crate) fn main() -> ExitCode {
    let helper = std::env::args_os().next().is_some_and(|program| volumes::arguments::is_helper(&program));
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // What is wrong with a command line has colours, too.
    terminal::choose(Color::of_arguments(&arguments));
    if !helper && let Some(written) = MANUAL.answer(Cli::command(), &arguments) {
        return conclude(written.context("write man pages and completions"), helper);
    }
    let parsed = mount::arguments(arguments).and_then(|arguments| match Cli::try_parse_from(&arguments) {
        Ok(cli) => mount::resolved(cli, arguments),
        Err(error) => Err(error.into()),
    });
    match parsed {
        Err(error) => match error.downcast() {
            Ok(error) => answer(&terminal::suggest(error, &COMMANDS_OF_OTHERS), helper),
            Err(error) => conclude(Err(error), helper),
        },
        Ok(cli) => {
            terminal::choose(cli.global.color.color);
            conclude(run(cli), helper)
        }
    }
}

/// Says why it failed, if it did.
fn conclude(result: Result<()>, helper: bool) -> ExitCode {
    let code = match result {
        Ok(()) => 0,
        Err(error) if error.is::<ReaderGone>() => signals::end_without_reader(),
        Err(error) => {
            complain(&error);
            if helper { mount::exit_code(&error) } else { exit_code(&error) }
        }
    };
    log::flush();
    ExitCode::from(code)
}

/// What is said to a command line that is wrong, or asks for help.
fn answer(error: &clap::Error, helper: bool) -> ExitCode {
    let stream = if error.use_stderr() { Stream::Err } else { Stream::Out };
    let text = terminal::answer(stream, error);
    let code = match stream {
        Stream::Err => {
            log::say(&without_keys(&text));
            // mount(8) has numbers of its own.
            if helper { EXIT_FAILED } else { EXIT_USAGE }
        }
        Stream::Out => match output::text(&text) {
            Ok(()) => 0,
            Err(error) if error.is::<ReaderGone>() => signals::end_without_reader(),
            Err(error) => {
                complain(&error);
                EXIT_FAILED
            }
        },
    };
    log::flush();
    ExitCode::from(code)
}

/// A text that repeats arguments, without the keys that were put where none belong.
fn without_keys(text: &str) -> String {
    let is_of_key = |one: char| one.is_ascii_alphanumeric() || "+/=:%".contains(one);
    let hide = |text: String, start: &str| {
        let mut parts = text.split(start);
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            shown = shown + start + "(hidden)" + part.trim_start_matches(is_of_key);
        }
        shown
    };
    ["DHHC-1:", "NVMeTLSkey-0:", "NVMeTLSkey-1:"].into_iter().fold(text.to_owned(), hide)
}

/// What is logged, by the number of `-v`. Without any, `RUST_LOG` goes before it.
fn log_filter(verbose: u8) -> &'static str {
    match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    }
}

/// What the command line says of the log goes before the environment.
fn prefer_verbose(verbose: u8) {
    let (filter, asked) = (log_filter(verbose), std::env::var(log::FILTER_VARIABLE).unwrap_or_default());
    if verbose > 0 && ![filter, ""].contains(&asked.trim()) && log::set_filter(filter).is_ok() {
        let option = format!("-{}", "v".repeat(usize::from(verbose)));
        tracing::warn!("{option} holds, and not {}={asked}", log::FILTER_VARIABLE);
    }
}

fn run(cli: Cli) -> Result<()> {
    let _log = log::start(log_filter(cli.global.verbose), cli.global.log_format, log::Parts::Unnamed)
        .context("start the log")?;
    prefer_verbose(cli.global.verbose);
    limits::raise_descriptors();
    let service = matches!(
        cli.command,
        Command::Nbd(_) | Command::Fuse(_) | Command::ConnectAll(_) | Command::Mount(_)
    );
    let survives = service || matches!(cli.command, Command::Umount(_) | Command::MountStep(_));
    // What others have mounted or connected to does not end with the terminal that it was started from, and what has
    // begun to be mounted or unmounted does not stop midway.
    let hang_up = if survives { HangUp::Survive } else { HangUp::End };
    let context = Context { json: cli.global.json, interrupt: Interrupt::install(hang_up)? };
    let result = execute(cli.command, &context);
    match result {
        // Whatever a wait that was ended by a signal says, the signal is the reason. For a service it is the
        // ordinary end, so what it says then is said.
        Err(error) if !service && context.interrupt.is_interrupted() && !error.is::<Usage>() => {
            Err(error.context(Cancelled))
        }
        result => result,
    }
}

fn execute(command: Command, context: &Context) -> Result<()> {
    match command {
        Command::Discover(args) => discover::run(&args, context),
        Command::ConnectAll(args) => connect_all::run(&args, context),
        Command::Doctor(args) => doctor::run(&args, context),
        Command::List(args) => list::run(&args, context),
        Command::IdCtrl(args) => identify::id_ctrl(&args, context),
        Command::IdNs(args) => identify::id_ns(&args, context),
        Command::Keys(command) => keys::run(&command, context),
        #[cfg(feature = "verbs")]
        Command::Devices => devices::run(context),
        Command::Smart(args) => smart::run(&args, context),
        Command::AnaLog(args) => ana_log::run(&args, context),
        Command::ErrorLog(args) => logs::errors(&args, context),
        Command::EffectsLog(args) => logs::effects(&args, context),
        Command::ChangedNsListLog(args) => logs::changed_namespaces(&args, context),
        Command::GetFeature(args) => feature::run(&args, context),
        Command::Read(args) => transfer::read(&args, context),
        Command::Write(args) => transfer::write(&args, context),
        Command::Trim(args) => trim::run(&args, context),
        Command::Bench(args) => bench::run(&args, context),
        Command::Nbd(args) => nbd::run(&args, context),
        Command::Fuse(args) => fuse::run(&args, context),
        Command::Mount(args) => volumes::mount(&args, context),
        Command::Umount(args) => volumes::umount(&args, context),
        Command::Reset(args) => reset::run(&args, context),
        Command::Path(command) => path::run(&command, context),
        Command::Metrics => prometheus::run(context),
        Command::Volume(command) => mount::volume(&command, context),
        Command::ShowHostnqn => hostnqn::run(context),
        Command::Complete(args) => complete::run(&args),
        Command::MountStep(args) => volumes::step(&args),
        Command::MountGrow(args) => volumes::grow(&args),
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if error.downcast_ref::<Usage>().is_some() {
        EXIT_USAGE
    } else if error.is::<WritesLost>() {
        EXIT_WRITES_LOST
    } else if error.downcast_ref::<Cancelled>().is_some() {
        EXIT_CANCELLED
    } else {
        EXIT_FAILED
    }
}

/// One sentence on the standard error.
fn complain(error: &anyhow::Error) {
    let sentence = if error.is::<Cancelled>() { Cancelled.to_string() } else { sentence(error) };
    log::say(&format!("{} {sentence}", terminal::painted(Stream::Err, Paint::Bad, "ringfab:")));
}

/// The chain of causes, each said once: many errors repeat their cause.
fn sentence(error: &anyhow::Error) -> String {
    let mut sentence = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if sentence.ends_with(&text) {
            continue;
        }
        if !sentence.is_empty() {
            sentence.push_str(": ");
        }
        sentence.push_str(&text);
    }
    sentence
}

/// Attaches a controller through the blocking handle.
pub(crate) fn attach(args: &ConnectArgs, context: &Context) -> Result<Controller> {
    let options = args.connect_options()?;
    let connecting = Connecting::start(&options);
    let controller = Controller::connect(options, args.engine_options(context.interrupt.token()));
    drop(connecting);
    context.interrupt.check()?;
    controller.map_err(|error| Advised(error).into())
}

/// Runs `work` with an attached controller and detaches it, also when the work failed.
pub(crate) fn with_controller<R>(
    args: &ConnectArgs,
    context: &Context,
    work: impl FnOnce(&Controller) -> Result<R>,
) -> Result<R> {
    let controller = attach(args, context)?;
    let result = work(&controller);
    if let Err(error) = controller.detach().map_err(Advised) {
        tracing::warn!(%error, "the controller was not detached in an orderly way");
    }
    if args.url.is_discovery() {
        // A user who has left out the subsystem is told of that.
        return result.with_context(|| {
            format!(
                "the address names no subsystem, and `ringfab discover {}` lists those there are",
                shell_word(&args.url)
            )
        });
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "nvme+rdma://127.0.0.1/nqn.2026-01.org.example:a";

    fn parse(arguments: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["ringfab"], arguments].concat())
    }

    #[test]
    fn the_command_line_is_consistent_in_itself() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_document_has_all_commands_and_an_option_is_written_in_one_way() {
        let document = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
        ringfab_process::options::assert_documented(&Cli::command(), &document);
        assert_eq!(ringfab_process::options::contradictions(&Cli::command()), [""; 0]);
    }

    #[test]
    fn a_wrong_address_is_a_usage_error_that_says_what_is_wrong() {
        let error = parse(&["list", "http://x/"]).err().expect("refused");
        assert_eq!(error.exit_code(), i32::from(EXIT_USAGE));
        assert!(error.to_string().contains("an address begins with nvme+rdma://"), "{error}");
    }

    #[test]
    fn what_is_suggested_for_a_command_of_others_is_one_of_ours() {
        for (other, instead) in COMMANDS_OF_OTHERS {
            let error = parse(&[other]).err().expect("none of ours");
            let said = terminal::answer(Stream::Err, &terminal::suggest(error, &COMMANDS_OF_OTHERS));
            assert!(said.contains(&format!("tip: {instead}")), "{other}: {said}");
            let named: Vec<&str> =
                instead.split("`ringfab ").skip(1).filter_map(|one| one.split('`').next()).collect();
            assert!(!named.is_empty(), "{other}");
            for name in
                named.iter().filter_map(|one| one.split(' ').next()).filter(|one| !one.starts_with('-'))
            {
                assert!(Cli::command().find_subcommand(name).is_some(), "{other}: {name} is no command");
            }
        }
    }

    #[test]
    fn words_are_of_the_first_arguments_of_commands() {
        for one in complete::WORDS {
            let command = Cli::command();
            let command = command.find_subcommand(one.command).expect("a command");
            let first = command.get_positionals().next().expect("an argument");
            assert_eq!(first.get_id().as_str(), one.argument);
            assert!(parse(&["complete", one.list]).is_ok());
        }
    }

    #[test]
    fn options_that_all_commands_share_may_stand_anywhere() {
        for command in
            [&["--json", "list", URL][..], &["list", "--json", URL], &["list", URL, "--json", "-vv"]]
        {
            assert!(parse(command).expect("valid").global.json);
        }
        assert!(parse(&["list", URL, "--ctrl-loss-timeout", "-1", "--no-crc", "--core", "1"]).is_ok());
        assert!(parse(&["list", URL, "--depth", "0"]).is_err());
        assert!(parse(&["list", URL, "--queues", "129"]).is_err());
        assert!(parse(&["list", URL, "--provider", "rxe"]).is_err());
    }

    #[test]
    fn an_option_of_a_command_is_under_no_heading_of_the_options_that_all_share() {
        use clap::{Args as _, CommandFactory as _};
        use ringfab_front_ends::options::Tuning;
        let shared = Tuning::augment_args(clap::Command::new("shared"));
        let shared: Vec<&str> = shared.get_arguments().filter_map(clap::Arg::get_long).collect();
        for command in Cli::command().get_subcommands() {
            let own =
                command.get_arguments().filter(|one| !one.get_long().is_some_and(|it| shared.contains(&it)));
            for option in own {
                assert_eq!(option.get_help_heading(), None, "{} of {}", option.get_id(), command.get_name());
            }
        }
    }

    #[test]
    fn the_address_that_is_attached_can_be_given_to_a_command_again() {
        for url in [URL, "nvme+tcp://[fd00::1]/nqn.2026-01.org.example:a?hdgst=on"] {
            let arguments =
                [url, "--no-crc", "--provider", "iwarp", "--hostnqn", "nqn.2026-01.org.example:host"];
            let cli = parse(&[&["list"], &arguments[..]].concat()).expect("valid");
            let Command::List(list) = cli.command else { panic!("another command") };
            let connect = ConnectArgs::new(list.url.expect("an address"), list.tuning);
            let shown = connect.connect_options().expect("complete").url.to_string();
            assert!(parse(&["list", &shown]).is_ok(), "{shown}");
        }
    }

    #[test]
    fn a_key_is_made_for_one_purpose_and_is_never_an_argument() {
        assert!(parse(&["keys", "generate", "--tls", "--hmac", "sha384"]).is_ok());
        assert!(parse(&["keys", "generate", "--dhchap", "--hmac", "3"]).is_ok());
        assert!(parse(&["keys", "generate", "--dhchap", "--tls"]).is_err());
        assert!(parse(&["keys", "generate", "--hmac", "md5"]).is_err());
        assert!(parse(&["keys", "check", "--key", "DHHC-1:00:"]).is_err());
        let identity = ["keys", "identity", "--host", "a", "--subsystem", "b", "--identity-version"];
        assert!(parse(&[&identity[..], &["0"]].concat()).is_ok());
        assert!(parse(&[&identity[..], &["2"]].concat()).is_err());
    }

    #[test]
    fn a_key_in_a_wrong_place_is_not_repeated() {
        let said =
            "error: invalid value 'nvme+tcp://a/b?dhchap_key=DHHC-1:00:ycn/J+%3d:' for '<URL>': DHHC-1:a: no";
        assert_eq!(
            without_keys(said),
            "error: invalid value 'nvme+tcp://a/b?dhchap_key=DHHC-1:(hidden)' for '<URL>': DHHC-1:(hidden) no"
        );
        assert_eq!(without_keys("plain"), "plain");
    }

    #[test]
    fn a_service_needs_exactly_one_place_to_listen() {
        assert!(parse(&["nbd", URL, "--socket", "/run/x"]).is_ok());
        assert!(parse(&["nbd", URL, "--listen", "127.0.0.1:10809"]).is_ok());
        assert!(parse(&["nbd", URL]).is_err());
        assert!(parse(&["nbd", URL, "--socket", "/run/x", "--listen", "127.0.0.1:1"]).is_err());
    }

    #[test]
    fn the_exit_code_tells_failures_from_usage_and_from_signals() {
        assert_eq!(exit_code(&anyhow::anyhow!("broken")), EXIT_FAILED);
        assert_eq!(exit_code(&Usage("both".to_owned()).into()), EXIT_USAGE);
        assert_eq!(exit_code(&Cancelled.into()), EXIT_CANCELLED);
        assert_eq!(exit_code(&anyhow::anyhow!("broken").context(Cancelled)), EXIT_CANCELLED);
    }

    #[test]
    fn a_chain_of_causes_is_one_sentence_without_repetition() {
        let error = anyhow::anyhow!("no such file").context("open x: no such file").context("read");
        assert_eq!(sentence(&error), "read: open x: no such file");
    }
}
