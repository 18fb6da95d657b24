//! `ringfab-target freeze`.

use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::Place;
use crate::control::client::{AskError, Session};
use crate::control::freeze::{FREEZE_MAX, NamespaceName};
use crate::control::request::Request;

/// What is frozen, and what is run meanwhile.
#[derive(Debug, Args)]
pub struct FreezeArguments {
    /// A namespace: its identifier, or NQN/NSID. All disks of the snapshot are named.
    #[arg(required = true, value_name = "NAMESPACE", value_parser = parse_namespace)]
    namespaces: Vec<NamespaceName>,
    /// NQN of the subsystem of those that are identifiers only; not needed when there is only one.
    #[arg(long, value_name = "NQN")]
    subsystem: Option<String>,
    /// How long writes wait at most, with a unit: 5s, 500ms; 10s is the most. Running writes, the flush and the command
    /// have this time together.
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = parse_time)]
    limit: Duration,
    /// What is run while nothing changes, with its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// An identifier, perhaps with its subsystem before it. An NQN may have slashes.
fn parse_namespace(text: &str) -> Result<NamespaceName, String> {
    let (subsystem, nsid) = match text.rsplit_once('/') {
        Some((nqn, nsid)) => (Some(nqn.to_owned()), nsid),
        None => (None, text),
    };
    let nsid =
        nsid.parse().map_err(|_| format!("{nsid:?} is no identifier of a namespace: write 1, or NQN/1"))?;
    Ok(NamespaceName { subsystem, nsid })
}

/// Seconds or milliseconds.
fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s').unwrap_or_default(), 1000),
    };
    let number: u64 =
        number.parse().map_err(|_| "write a whole number with s or ms: 5s, 500ms".to_owned())?;
    let time = Duration::from_millis(number.saturating_mul(unit));
    match time.is_zero() || time > FREEZE_MAX {
        true => Err(format!("it is more than nothing, and at most {} s", FREEZE_MAX.as_secs())),
        false => Ok(time),
    }
}

/// Freezes namespaces, runs a command, and thaws them.
///
/// # Errors
/// When the target cannot be asked or refuses, when the command fails, and when the time was over before it ended.
pub fn freeze(place: &Place, arguments: &FreezeArguments, output: &mut impl Write) -> Result<(), AskError> {
    let FreezeArguments { namespaces, subsystem, limit, command } = arguments;
    let named = |one: &NamespaceName| NamespaceName {
        subsystem: one.subsystem.as_ref().or(subsystem.as_ref()).cloned(),
        nsid: one.nsid,
    };
    let namespaces = namespaces.iter().map(named).collect();
    let mut session = Session::connect(&place.socket)?;
    let milliseconds = limit.as_millis() as u64;
    let begun = session.ask(&Request::Freeze { namespaces, milliseconds })?;
    let ran = run(command);
    let thawed = session.ask(&Request::Thaw);
    let in_time = thawed.as_ref().is_ok_and(|answer| answer["in_time"] == json!(true));
    if let Ok(ended) = &thawed {
        tell(place.json, &begun, ended, output)?;
    }
    let status = ran?;
    if !status.success() {
        return Err(AskError::Command(format!("the command has failed: {status}")));
    }
    if !in_time {
        return Err(AskError::Command(format!(
            "the command took longer than the freeze, which ended after {limit:?}: what it made is of more than one \
             moment"
        )));
    }
    Ok(())
}

fn run(command: &[OsString]) -> Result<ExitStatus, AskError> {
    let (program, arguments) = command.split_first().expect("the command line demands one");
    let status = Command::new(program).args(arguments).status();
    status.map_err(|error| AskError::Command(format!("{} cannot be run: {error}", program.to_string_lossy())))
}

fn tell(json: bool, begun: &Value, ended: &Value, output: &mut impl Write) -> Result<(), AskError> {
    let text = match json {
        true => {
            json!({ "took_ms": begun["took_ms"], "held_ms": ended["held_ms"], "in_time": ended["in_time"] })
                .to_string()
        }
        false => format!("frozen for {} ms", ended["held_ms"]),
    };
    writeln!(output, "{text}").map_err(AskError::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_and_times_are_as_people_write_them() {
        let name = |nqn: Option<&str>, nsid| NamespaceName { subsystem: nqn.map(str::to_owned), nsid };
        assert_eq!(parse_namespace("7"), Ok(name(None, 7)));
        assert_eq!(
            parse_namespace("nqn.2026-11.org.ringfab:a/b/7"),
            Ok(name(Some("nqn.2026-11.org.ringfab:a/b"), 7))
        );
        assert!(parse_namespace("disk").is_err() && parse_namespace("nqn.x/").is_err());
        assert_eq!(parse_time("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "5", "s", "0s", "11s", "1.5s", "-1s", "18446744073709551615s"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
