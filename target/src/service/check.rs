//! `ringfab-target check`, and as whom it and `doctor` look.

use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};

use nix::unistd::geteuid;
use ringfab_process::log;

use super::{ServeError, confine, doctor};
use crate::config::Config;
use crate::machine::{self, ServiceUser};

/// What is checked beside the configuration and this machine, and what is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckOptions {
    /// Mistakes and warnings only.
    pub(super) quiet: bool,
    /// Whether servers and clusters answer.
    pub(super) backings: bool,
}

/// Prints what a configuration means, unless that is to be quiet, and warns of what is missing on this machine.
pub(super) fn check(path: &Path, options: CheckOptions, output: &mut impl Write) -> Result<(), ServeError> {
    let CheckOptions { quiet, backings } = options;
    let config = Config::look_at(path)?;
    if !quiet {
        output.write_all(config.to_toml().as_bytes()).map_err(ServeError::Output)?;
    }
    let found = machine::findings(&config, machine::server_of(&config)).into_iter();
    let found = found.chain(machine::no_state(&config));
    let backings = if backings { machine::backings::findings(&config) } else { Vec::new() };
    let found = found.chain(backings);
    // What holds for every configuration on this machine is no news to whoever wants to hear of mistakes.
    let of_machine = machine::unconfined(&config).into_iter().chain(machine::unseen(&config));
    for finding in found.chain(of_machine.filter(|_| !quiet)) {
        log::say(&format!("warning: {finding}"));
    }
    if let Some(restricted) = confine::restricted(&config).filter(|_| !quiet) {
        log::say(&format!("note: while it runs, {restricted}"));
    }
    log::flush();
    Ok(())
}

/// Goes on as the user that the command line names.
pub(super) fn assume(user: &str) -> Result<(), ServeError> {
    let assumed = ServiceUser::parse(user).and_then(|user| user.assume());
    assumed.map_err(|error| ServeError::Mistake(format!("cannot look as {user}: {error}")))
}

/// Runs the same command line once more as the user of the service, if this is root and the service is not. Returns
/// its exit code. None: this process is to look itself.
///
/// Another process does it, since one with threads cannot change its user without waiting for all of them, and one that
/// looks at a mount which does not answer would never come.
pub(super) fn as_service(path: &Path, quiet: bool) -> Option<ExitCode> {
    // What comes by a pipe can be read only once.
    if !geteuid().is_root() || !path.is_file() {
        return None;
    }
    let user = ServiceUser::of(&Config::look_at(path).ok()?, path)?;
    if !quiet {
        log::say(&format!("looking as {}, who runs the service; --as root looks as root", user.name()));
        log::flush();
    }
    let arguments = std::env::args_os().skip(1);
    let status = Command::new("/proc/self/exe").args(arguments).arg("--as").arg(user.to_string()).status();
    match status {
        Ok(status) => Some(code(status)),
        Err(error) => {
            log::say(&format!("warning: cannot look as {}: {error}", user.name()));
            None
        }
    }
}

/// The exit code of a process, or of one that a signal has ended, as shells have it.
fn code(status: std::process::ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Examines everything, and prints it.
pub(super) fn examine(
    path: &Path,
    socket: Option<&Path>,
    json: bool,
    output: &mut impl Write,
) -> Result<(), ServeError> {
    let looks = doctor::examine(path, socket);
    let text = if json { looks.to_json() + "\n" } else { looks.to_string() };
    output.write_all(text.as_bytes()).map_err(ServeError::Output)?;
    if looks.is_well() { Ok(()) } else { Err(ServeError::Unwell) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: CheckOptions = CheckOptions { quiet: true, backings: false };

    #[test]
    fn check_prints_a_configuration_that_can_be_used() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/full.toml");
        let mut output = Vec::new();
        check(path.as_ref(), QUIET, &mut output).unwrap();
        assert!(output.is_empty(), "asked for quiet");
        check(path.as_ref(), CheckOptions { quiet: false, ..QUIET }, &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        assert_eq!(Config::parse(&text, "output").unwrap(), Config::load(path.as_ref()).unwrap());
    }

    #[test]
    fn check_of_a_missing_file_is_a_mistake_of_the_caller() {
        let error = check("/nonexistent.toml".as_ref(), QUIET, &mut Vec::new()).unwrap_err();
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn a_user_that_is_not_there_is_a_mistake_of_the_caller() {
        let error = assume("nobody-here").unwrap_err();
        assert_eq!(
            (error.exit_code(), error.to_string().as_str()),
            (2, "cannot look as nobody-here: there is no user nobody-here")
        );
    }
}
