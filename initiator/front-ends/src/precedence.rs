//! Which of several places counts, where an option is given at more than one of them.
//!
//! What is said last and nearest to the person wins: the command line, then the address, then the environment, then
//! `volumes.toml`. A default counts where nobody has said anything. Where two places differ, a line says which holds.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches, Id};

/// The options that the command line has, and not just their defaults. Among the fields of an `Args` type it stands
/// before all others, because each takes its own value out of what was parsed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given(BTreeSet<String>);

impl Given {
    /// The value, if the option was given.
    pub(crate) fn only<T>(&self, option: &str, value: T) -> Option<T> {
        self.0.contains(option).then_some(value)
    }
}

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |id: &&Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        Ok(Self(matches.ids().filter(is_given).map(Id::to_string).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// An option that the address has, too, by its name there.
pub(crate) struct Twin {
    /// As the command line has it.
    pub(crate) option: &'static str,
    /// As the address has it.
    pub(crate) in_address: &'static str,
}

impl Twin {
    pub(crate) const fn new(option: &'static str, in_address: &'static str) -> Self {
        Self { option, in_address }
    }

    /// Which of the two holds: what is given, and otherwise what the address says. `shown`: as both write it.
    pub(crate) fn settle<T: PartialEq>(
        &self,
        given: Option<T>,
        in_address: Option<T>,
        shown: impl Fn(&T) -> String,
    ) -> Option<T> {
        match (given, in_address) {
            (Some(given), Some(other)) if given != other => {
                let (option, name) = (self.option, self.in_address);
                say(
                    format_args!("--{option} {}", shown(&given)),
                    format_args!("{name}={} of the address", shown(&other)),
                );
                Some(given)
            }
            (given, in_address) => given.or(in_address),
        }
    }
}

/// Says, once, which of two places holds.
pub(crate) fn say(holds: impl fmt::Display, other: impl fmt::Display) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let line = format!("{holds} holds, and not {other}");
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
        tracing::warn!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        given: Given,
        #[arg(long, default_value_t = 7)]
        depth: u16,
    }

    #[test]
    fn a_default_is_not_given_and_the_same_value_on_the_command_line_is() {
        let parsed = |arguments: &[&str]| {
            let cli = Cli::try_parse_from([&["test"], arguments].concat()).expect("valid");
            (cli.depth, cli.given.only("depth", cli.depth))
        };
        assert_eq!(parsed(&[]), (7, None));
        assert_eq!(parsed(&["--depth=7"]), (7, Some(7)));
    }

    #[test]
    fn what_is_given_holds_and_without_it_the_address() {
        let twin = Twin::new("depth", "depth");
        let settle = |given, address| twin.settle(given, address, u16::to_string);
        assert_eq!(settle(Some(1), Some(256)), Some(1));
        assert_eq!(
            (settle(None, Some(256)), settle(Some(1), None), settle(None, None)),
            (Some(256), Some(1), None)
        );
    }
}
