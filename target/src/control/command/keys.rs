//! `ringfab-target host add` and `host rekey`: keys of a host, from their making to the lines for the host.
//!
//! The keys are in one file, which the target reads and of which the host has a copy. The command makes it for the
//! user of the target, tells the target, and keeps what is new in the configuration file. What can be refused is
//! refused before the file is made, and a file that the target refuses goes again.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use ringfab_auth::{
    CipherSuite, ConfiguredPsk, DhchapKey, Hash, HostKeys, HostSteps, KeyRole, KeySource, SecretText,
    system_random,
};
use ringfab_base::{VisiblePath as _, shell_quoted, visible};
use ringfab_process::made_file::MadeFile;
use ringfab_process::secret_file;
use ringfab_process::terminal::{self, Stream};
use serde_json::{Map, Value, json};

use super::changes::change_lines;
use super::save::{check_file, file_of, refused, save, toml_of};
use super::{Place, absolute, tell_warnings};
use crate::config::{Access, Config, HostConfig, ListenerConfig, ListenerTls, SubsystemConfig, Transport};
use crate::control::client::{AskError, ask, user_of};
use crate::control::request::Request;

/// Whether the hosts of a subsystem have to come over TLS.
const ALLOWED: &str = "allowed";
const REQUIRED: &str = "required";

/// Which host comes, and with what.
#[derive(Debug, Args)]
pub struct AddArguments {
    /// NQN of the host.
    host: String,
    /// NQN of the subsystem; not needed when there is only one.
    #[arg(long, value_name = "NQN")]
    subsystem: Option<String>,
    /// Make keys with which the host and the target prove who they are, in one file, and print what to do with it.
    #[arg(long)]
    with_keys: bool,
    /// Make a key for TLS, too. Where no listener has TLS, those of NVMe/TCP allow it from now on. With --tls=required,
    /// all hosts of the subsystem have to come over TLS, and others are disconnected.
    #[arg(long, value_name = "WHETHER", value_parser = [ALLOWED, REQUIRED], requires = "with_keys")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = ALLOWED)]
    tls: Option<String>,
    /// Where and whether something is kept.
    #[command(flatten)]
    keeping: KeepingArguments,
}

/// Which host gets other keys.
#[derive(Debug, Args)]
pub struct RekeyArguments {
    /// NQN of the host.
    host: String,
    /// How long its old keys count, for instance 2026-12-31T00:00:00Z; until `host revoke` when left out.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Keep the key of the controller. A Linux host needs that: it takes one key after the other.
    #[arg(long)]
    keep_controller_key: bool,
    /// Where and whether something is kept.
    #[command(flatten)]
    keeping: KeepingArguments,
}

/// Where keys are, and whether the configuration file has what is new.
#[derive(Debug, Args)]
pub(crate) struct KeepingArguments {
    /// The folder for the file with the keys; by default `keys` beside the configuration file. It is made, for the
    /// target's user alone, if it is not there.
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Leave the configuration file as it is: the change is gone after a reload or a restart. Without it, the file gets
    /// all that was changed by command, as with `config --save`.
    #[arg(long)]
    no_save: bool,
}

/// A target that was asked what it is.
struct Running<'a> {
    place: &'a Place,
    config: Config,
    /// As whom it runs.
    user: u32,
    keeping: &'a KeepingArguments,
    folder: Option<PathBuf>,
}

/// A file with keys that was made. It goes again unless the target takes it.
struct KeysFile {
    /// NQN of the host.
    host: String,
    path: String,
    name: String,
    made: MadeFile,
}

/// Lets a host use a subsystem.
///
/// # Errors
/// When the target cannot be asked or refuses; nothing is left behind then. When the configuration file cannot be
/// written, the host is let in all the same.
pub(super) fn add(place: &Place, arguments: &AddArguments, output: &mut impl Write) -> Result<(), AskError> {
    let AddArguments { host, with_keys, .. } = arguments;
    let (tls, tls_required) = (arguments.tls.is_some(), arguments.tls.as_deref() == Some(REQUIRED));
    let running = Running::look(place, &arguments.keeping)?;
    let subsystem = running.subsystem(arguments.subsystem.as_deref())?.nqn.clone();
    let mut table = Map::from_iter([("nqn".to_owned(), Value::from(host.as_str()))]);
    let request = |table| Request::HostAdd { subsystem: Some(subsystem.clone()), host: table, tls_required };
    if !*with_keys {
        let answer = ask(&place.socket, &request(table))?;
        return running.tell(&answer, None, output);
    }
    running.check(host)?;
    let keys = HostKeys::new(host, [Some(new_key()), Some(new_key()), tls.then(new_psk)]);
    let file = running.make(&keys)?;
    for role in [KeyRole::Host, KeyRole::Controller, KeyRole::Tls].into_iter().filter(|role| keys.has(*role))
    {
        table.insert(role.name().to_owned(), Value::from(format!("file:{}", file.path)));
    }
    let answer = file.unless_refused(ask(&place.socket, &request(table)))?;
    let at = running.listener(tls);
    let mut steps = at.steps([host, &subsystem], &file, [true, tls]).text();
    if tls && !tls_required && !running.subsystem(Some(&subsystem))?.demands.tls {
        steps +=
            &format!("\n{} takes hosts in clear text, too: --tls=required ends that.\n", visible(&subsystem));
    }
    running.tell(&answer, Some((&file, steps)), output)
}

/// Gives a host other keys. Those that it has are its old ones from then on.
///
/// # Errors
/// As [`add`].
pub(super) fn rekey(
    place: &Place,
    arguments: &RekeyArguments,
    output: &mut impl Write,
) -> Result<(), AskError> {
    let nqn = &arguments.host;
    let running = Running::look(place, &arguments.keeping)?;
    let before = running.config.host(nqn);
    // The target says why it cannot be, before there is a file.
    let none = Request::HostRekey {
        host: Map::from_iter([("nqn".to_owned(), Value::from(nqn.as_str()))]),
        old_keys_until: None,
    };
    if before.key_sources().next().is_none() || before.has_old_keys() {
        let changed_meanwhile = |_| Err(refused("the keys of the host have changed meanwhile: try again"));
        return ask(&place.socket, &none).and_then(changed_meanwhile);
    }
    running.check(nqn)?;
    let (keys, table) = new_keys(&before, arguments)?;
    let file = running.make(&keys)?;
    let table = table.into_iter().map(|(key, places)| (key, with_file(places, &file.path)));
    let request = Request::HostRekey { host: table.collect(), old_keys_until: arguments.until.clone() };
    let answer = file.unless_refused(ask(&place.socket, &request))?;
    let subsystem = running.config.subsystems.iter().find(|one| allows(one, nqn)).map_or("", |one| &one.nqn);
    let (revoke, has) =
        (revoke_lines(place, &before), [before.authentication.is_some(), before.tls.is_some()]);
    let one_by_one = arguments.keep_controller_key || !keys.has(KeyRole::Controller);
    let at = running.listener(before.tls.is_some());
    let steps = at.steps([nqn, subsystem], &file, has).changed(&revoke, one_by_one);
    running.tell(&answer, Some((&file, steps)), output)
}

/// What stands for the file that is still to be made.
const NEW: &str = "";

/// New keys instead of those that a host has, and what `[[host]]` says of them.
fn new_keys(
    before: &HostConfig,
    arguments: &RekeyArguments,
) -> Result<(HostKeys, Map<String, Value>), AskError> {
    let mut table = Map::from_iter([("nqn".to_owned(), Value::from(before.nqn.as_str()))]);
    let mut keys = [None, None, None];
    let mut both = |role: KeyRole, old: &KeySource| {
        table.insert(format!("{}s", role.name()), json!([NEW, old.to_string()]));
    };
    if let Some(now) = &before.authentication {
        keys[0] = Some(new_key());
        both(KeyRole::Host, &now.key.source);
        if let Some(controller) = &now.controller_key {
            keys[1] = Some(if arguments.keep_controller_key { controller.key.to_text() } else { new_key() });
            if !arguments.keep_controller_key {
                both(KeyRole::Controller, &controller.source);
            }
        }
    }
    if let Some(tls) = &before.tls {
        keys[2] = Some(new_psk());
        both(KeyRole::Tls, &tls.key.source);
    }
    if keys[1].is_some() && arguments.keep_controller_key {
        table.insert(KeyRole::Controller.name().to_owned(), Value::from(NEW));
    }
    if before.unseen_credentials().next().is_some() && arguments.keep_controller_key {
        let why = "its key of the controller is a credential of the service, which this command cannot read: leave \
                   --keep-controller-key out";
        return Err(refused(why));
    }
    Ok((HostKeys::new(&before.nqn, keys), table))
}

fn with_file(places: Value, path: &str) -> Value {
    match places {
        Value::String(text) if text == NEW => Value::from(format!("file:{path}")),
        Value::Array(all) => all.into_iter().map(|one| with_file(one, path)).collect(),
        other => other,
    }
}

/// How the old keys go, with the files that nothing else names.
fn revoke_lines(place: &Place, before: &HostConfig) -> String {
    let files = before.key_sources().filter_map(|source| match source {
        KeySource::File(path) => Some(shell_quoted(&path.to_string_lossy()).into_owned()),
        _ => None,
    });
    let files: std::collections::BTreeSet<String> = files.collect();
    let socket = place.option();
    let mut lines = format!(
        "ringfab-target host revoke {}{socket} && ringfab-target config --save{socket}",
        shell_quoted(&before.nqn)
    );
    if !files.is_empty() {
        lines += &format!("\nrm {}", files.into_iter().collect::<Vec<_>>().join(" "));
    }
    lines
}

fn new_key() -> SecretText {
    DhchapKey::generate(Hash::Sha256, None, &mut system_random()).to_text()
}

fn new_psk() -> SecretText {
    ConfiguredPsk::generate(CipherSuite::Aes128GcmSha256, &mut system_random()).to_text()
}

impl<'a> Running<'a> {
    /// Asks, and refuses what could not be kept.
    fn look(place: &'a Place, keeping: &'a KeepingArguments) -> Result<Self, AskError> {
        let answer = ask(&place.socket, &Request::Config)?;
        if !keeping.no_save {
            let file = file_of(&answer).map_err(|error| refused(format!("{error}: give --no-save")))?;
            check_file(place, file)?;
        }
        let beside = answer["file"].as_str().and_then(|file| Some(Path::new(file).parent()?.join("keys")));
        let folder = keeping.directory.clone().or(beside);
        // Before a key is in memory.
        ringfab_process::limits::forbid_core_files();
        let config =
            Config::look_at_text(toml_of(&answer), "the configuration that runs").map_err(refused)?;
        Ok(Self { place, config, user: user_of(&place.socket)?, keeping, folder })
    }

    fn subsystem(&self, nqn: Option<&str>) -> Result<&SubsystemConfig, AskError> {
        let all = &self.config.subsystems;
        let found = match (nqn, all.as_slice()) {
            (None, [only]) => Some(only),
            (None, _) => None,
            (Some(nqn), _) => all.iter().find(|one| one.nqn == nqn),
        };
        found.ok_or_else(|| {
            let names: Vec<String> = all.iter().map(|one| visible(&one.nqn).to_string()).collect();
            let names = names.join(", ");
            match nqn {
                None => refused(format!("name the subsystem with --subsystem: there are {names}")),
                Some(nqn) => refused(format!("there is no subsystem {}; there are {names}", visible(nqn))),
            }
        })
    }

    /// Refuses what would be refused once there is a file.
    fn check(&self, host: &str) -> Result<(), AskError> {
        crate::nqn::check_host_nqn(host).map_err(|why| refused(format!("the host {why}")))?;
        let me = secret_file::this_user();
        if me != 0 && me != self.user {
            return Err(refused(format!(
                "the target runs as user {}, and only root can give it a file: run this as root",
                self.user
            )));
        }
        if self.folder.is_none() {
            return Err(refused("name a folder for the keys with --directory"));
        }
        Ok(())
    }

    /// The file with these keys, for the target alone.
    fn make(&self, keys: &HostKeys) -> Result<KeysFile, AskError> {
        let folder = absolute(self.folder.as_deref().unwrap_or(Path::new("."))).map_err(refused)?;
        let shown = || Path::new(&folder).visible().to_string();
        let stem = secret_file::name_of(keys.host());
        let made = secret_file::folder_of(Path::new(&folder), self.user).and_then(|()| {
            secret_file::make(
                Path::new(&folder),
                [&stem, HostKeys::FILE_ENDING],
                self.user,
                keys.to_text().expose().as_bytes(),
            )
        });
        let (path, made) =
            made.map_err(|error| refused(format!("cannot make the keys in {}: {error}", shown())))?;
        Ok(KeysFile {
            host: keys.host().to_owned(),
            path: absolute(&path).map_err(refused)?,
            name: stem + HostKeys::FILE_ENDING,
            made,
        })
    }

    /// Where the host connects.
    fn listener(&self, tls: bool) -> Meeting {
        let of_tcp = |one: &&&ListenerConfig| one.transport == Transport::Tcp;
        let all: Vec<&ListenerConfig> =
            self.config.listeners.iter().filter(|one| !one.discovery_only).collect();
        let with_tls = all.iter().find(|one| one.tls != ListenerTls::Off);
        let found = if tls { with_tls.or(all.iter().find(of_tcp)) } else { all.first() };
        let Some(found) = found else {
            return Meeting { transport: Transport::Tcp, address: None, port: PORT };
        };
        let zone = found.address.zone().map(|zone| format!("%{zone}")).unwrap_or_default();
        let address = format!("{}{zone}", found.address.ip());
        Meeting {
            transport: found.transport,
            // Every address of this machine is none that a host knows.
            address: (!found.address.ip().is_unspecified()).then_some(address),
            port: if found.port == 0 { PORT } else { found.port },
        }
    }

    /// Keeps what is new, and says what was done.
    fn tell(
        &self,
        answer: &Value,
        keys: Option<(&KeysFile, String)>,
        output: &mut impl Write,
    ) -> Result<(), AskError> {
        let saved = if self.keeping.no_save {
            None
        } else {
            Some(save(self.place).map_err(|error| not_saved(&error))?)
        };
        let text = if self.place.json {
            let mut value = answer.clone();
            value["keys"] = keys.as_ref().map_or(Value::Null, |(file, _)| Value::from(file.path.as_str()));
            value["saved"] = Value::from(saved.is_some());
            format!("{value}\n")
        } else {
            tell_warnings(answer);
            let mut text = match &saved {
                Some(saved) => saved.text(),
                None => change_lines(answer),
            };
            if let Some((file, steps)) = keys {
                let file_name = Path::new(&file.path).visible();
                text = file.shortened(&text) + &format!("{file_name} has the keys\n\n{steps}");
            }
            terminal::visible_text(Stream::Out, &text)
        };
        output.write_all(text.as_bytes()).map_err(AskError::Output)
    }
}

/// The port of NVMe over Fabrics.
const PORT: u16 = 4420;

/// Where a host and the target meet.
struct Meeting {
    transport: Transport,
    /// None where no single address says it.
    address: Option<String>,
    port: u16,
}

impl Meeting {
    /// What a host does with its keys here. `has`: whether there are keys for authentication, and one for TLS.
    fn steps<'a>(
        &'a self,
        [host, subsystem]: [&'a str; 2],
        file: &'a KeysFile,
        [dhchap, tls]: [bool; 2],
    ) -> HostSteps<'a> {
        let (transport, address) = (self.transport.name(), self.address.as_deref());
        let (file, name) = (file.path.as_str(), file.name.as_str());
        HostSteps { host, subsystem, file, name, transport, address, port: self.port, dhchap, tls }
    }
}

fn allows(subsystem: &SubsystemConfig, host: &str) -> bool {
    match &subsystem.access {
        Access::AnyHost => true,
        Access::Hosts(hosts) => hosts.contains(host),
    }
}

/// The change holds, and the file does not have it.
fn not_saved(error: &AskError) -> AskError {
    refused(format!(
        "the target has the change, but its configuration file lacks it: correct this, and give `ringfab-target config \
         --save`: {error}"
    ))
}

impl KeysFile {
    /// Changes without the places of all keys of this host, which are told apart.
    fn shortened(&self, changes: &str) -> String {
        let begins = format!("~ host {}: ", visible(&self.host));
        let short = |line: &str| match line.starts_with(&begins) {
            true => format!("{begins}new keys\n"),
            false => format!("{line}\n"),
        };
        changes.lines().map(short).collect()
    }

    /// The target's answer. Where it refuses, the file goes.
    fn unless_refused(&self, answer: Result<Value, AskError>) -> Result<Value, AskError> {
        answer.map_err(|error| match (&error, self.made.remove()) {
            (AskError::Refused(_), Err(left)) => refused(format!(
                "{error}; and {} is left, which has keys that nobody uses: {left}",
                Path::new(&self.path).visible()
            )),
            _ => error,
        })
    }
}
