//! Which options of a volume hold: a person who mounts it may say something else, so may its address, and the
//! environment may have another key. All of these go before the file.

use std::env;
use std::ffi::OsString;

use clap::{Args as _, Command};
use ringfab_initiator::Url;

use super::MountArgs;
use super::file::Volume;
use crate::precedence;
use crate::{authentication, keys, tls};

/// The options that an address has, too, by the name there.
const IN_ADDRESS: [(&str, &str); 12] = [
    ("nsid", "ns"),
    ("hostnqn", "hostnqn"),
    ("hostid", "hostid"),
    ("keys", "keys"),
    ("dhchap-key", "dhchap_key"),
    ("dhchap-controller-key", "dhchap_controller_key"),
    ("tls", "tls"),
    ("tls-key", "tls_key"),
    ("queues", "queues"),
    ("depth", "depth"),
    ("keep-alive", "keepalive"),
    ("provider", "provider"),
];

/// The options that the environment has, too.
const IN_ENVIRONMENT: [(&str, &str); 4] = [
    ("keys", keys::KEYS_VARIABLE),
    ("dhchap-key", authentication::HOST_KEY_VARIABLE),
    ("dhchap-controller-key", authentication::CONTROLLER_KEY_VARIABLE),
    ("tls-key", tls::KEY_VARIABLE),
];

/// Lists of a person are added to those of the file, and the name is that of the file.
const ADDED: [&str; 2] = ["options", "volume"];

impl Volume {
    /// What the file says beside address and directory, as options of `ringfab mount`, as far as nothing goes before
    /// that: what a person has `given`, the address, the environment. Where one of them says something else, a line
    /// says which holds.
    pub fn options(&self, given: &[OsString]) -> Vec<String> {
        let address: Option<Url> = self.url().parse().ok();
        let goes_before = |option: &str, value: Option<&str>| {
            if ADDED.contains(&option) {
                return false;
            }
            let stronger = of_person(option, given)
                .or_else(|| of_address(option, address.as_ref()?))
                .or_else(|| of_environment(option));
            let Some((holds, other)) = stronger else { return false };
            if !is_same(value, other.as_deref()) {
                precedence::say(
                    holds,
                    format_args!("{} of volume {}", option.replace('-', "_"), self.name()),
                );
            }
            true
        };
        let split = |option: &str| {
            let (name, value) =
                option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
            !goes_before(name.trim_start_matches("--"), value)
        };
        self.said().iter().filter(|option| split(option)).cloned().collect()
    }
}

/// What holds, by its name, and its value. A switch has none.
type Stronger = (String, Option<String>);

/// An option on the command line, by any of its names.
fn of_person(option: &str, given: &[OsString]) -> Option<Stronger> {
    let command = MountArgs::augment_args(Command::new("mount"));
    let argument = command.get_arguments().find(|one| one.get_long() == Some(option))?;
    let has_value = argument.get_action().takes_values();
    let names = argument.get_long_and_visible_aliases().into_iter().flatten();
    let names: Vec<String> = names
        .chain(argument.get_all_aliases().into_iter().flatten())
        .map(|name| format!("--{name}"))
        .collect();
    given.iter().enumerate().rev().find_map(|(at, text)| {
        let text = text.to_str()?;
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let next = || given.get(at + 1)?.to_str();
        names.iter().any(|one| one == name).then(|| {
            let value = value.or_else(|| has_value.then(next).flatten()).map(str::to_owned);
            (format!("--{option}"), value)
        })
    })
}

fn of_address(option: &str, address: &Url) -> Option<Stronger> {
    let (_, name) = IN_ADDRESS.iter().find(|(known, _)| *known == option)?;
    let value = address.option(name)?;
    Some((format!("{name}={value} of its address"), Some(value)))
}

fn of_environment(option: &str) -> Option<Stronger> {
    let (_, variable) = IN_ENVIRONMENT.iter().find(|(known, _)| *known == option)?;
    let value = env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some((format!("${variable}"), Some(value)))
}

/// Whether two ways to write a value mean the same. A switch that is there is on, and a time without a unit is one of
/// seconds.
fn is_same(one: Option<&str>, other: Option<&str>) -> bool {
    let plain = |value: Option<&str>| value.unwrap_or("on").trim_end_matches('s').to_owned();
    plain(one) == plain(other)
}
