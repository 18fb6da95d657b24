//! What changes the configuration of a target that runs: `subsystem`, `host`, `listener`, `log`, `reload`, `config`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Subcommand};
use ringfab_base::VisiblePath as _;
use serde_json::{Map, Value};

use super::limits::LimitArguments;
use super::{Place, examples, list, text};
use crate::config::{Config, places};
use crate::control::client::{AskError, ask};
use crate::control::request::Request;

/// What to do with subsystems.
#[derive(Debug, Subcommand)]
pub enum SubsystemCommand {
    /// Serve one more subsystem, at first without namespaces.
    #[command(after_help = examples::SUBSYSTEM_ADD)]
    #[command(group(ArgGroup::new("access").args(["host", "allow_any_host"]).required(true)))]
    Add {
        /// Its NQN.
        nqn: String,
        /// Let every host use it.
        #[arg(long)]
        allow_any_host: bool,
        /// NQN of a host that may use it; may be given several times.
        #[arg(long, value_name = "NQN")]
        host: Vec<String>,
        /// Its serial number, instead of one made from its NQN.
        #[arg(long)]
        serial: Option<String>,
        /// Its model number.
        #[arg(long)]
        model: Option<String>,
        /// Whether its hosts have to authenticate in band.
        #[arg(long, value_name = "WHETHER", value_parser = ["required", "optional"])]
        authentication: Option<String>,
        /// Whether its hosts have to come over TLS.
        #[arg(long, value_name = "WHETHER", value_parser = ["required", "optional"])]
        tls: Option<String>,
    },
    /// Serve a subsystem no longer: its hosts are disconnected. Commands that have begun go on.
    #[command(after_help = examples::SUBSYSTEM_REMOVE)]
    Remove {
        /// Its NQN.
        nqn: String,
    },
}

/// What to do with hosts.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// Let one more host use a subsystem.
    #[command(after_help = examples::HOST_ALLOW)]
    Allow(HostArguments),
    /// Let a host use a subsystem no longer: it is disconnected from it.
    #[command(after_help = examples::HOST_DENY)]
    Deny(HostArguments),
    /// Disconnect a host. It may come back at once.
    #[command(after_help = examples::HOST_KICK)]
    Kick(HostArguments),
    /// Take away the key that a host had before: connections that use it end.
    #[command(after_help = examples::HOST_REVOKE)]
    Revoke {
        /// NQN of the host.
        host: String,
    },
    /// Give a host shares and limits. Whatever is not named has its default again.
    #[command(after_help = examples::HOST_SET)]
    Set {
        /// NQN of the host.
        host: String,
        /// How much it gets in relation to other hosts where several wait for the same; 100 by default.
        #[arg(long, value_name = "N")]
        shares: Option<u32>,
        /// What it may do on all namespaces together.
        #[command(flatten)]
        limits: LimitArguments,
    },
}

/// Which host, and where.
#[derive(Debug, Args)]
pub struct HostArguments {
    /// NQN of the host.
    host: String,
    /// NQN of the subsystem; not needed when there is only one. `kick` without it means all.
    #[arg(long, value_name = "NQN")]
    subsystem: Option<String>,
}

/// What to do with listeners.
#[derive(Debug, Subcommand)]
pub enum ListenerCommand {
    /// Let hosts connect at one more address.
    #[command(after_help = examples::LISTENER_ADD)]
    Add {
        /// The address, for instance 192.0.2.1 or [::].
        address: String,
        /// The port.
        #[arg(long, default_value_t = 4420)]
        port: u16,
        /// How hosts talk to it: rdma or tcp.
        #[arg(long, default_value = "rdma")]
        transport: String,
        /// Who does RDMA: auto, iwarp or verbs.
        #[arg(long)]
        provider: Option<String>,
        /// Whether connections have TLS, of transport tcp.
        #[arg(long, value_name = "WHETHER", value_parser = ["required", "allowed", "off"])]
        tls: Option<String>,
        /// Only discovery is served there.
        #[arg(long)]
        discovery_only: bool,
    },
    /// Let hosts connect at an address no longer: those that came there are disconnected.
    #[command(after_help = examples::LISTENER_REMOVE)]
    Remove {
        /// The address with its port, as `status` shows it.
        address: SocketAddr,
    },
}

/// What to log.
#[derive(Debug, Args)]
pub struct LogArguments {
    /// A level (error, warn, info, debug, trace, off), or a filter such as `info,ringfab_target=debug`.
    filter: String,
}

/// How to read the configuration file again.
#[derive(Debug, Args)]
pub struct ReloadArguments {
    /// Only show what is different, and whether it needs a restart.
    #[arg(long)]
    dry_run: bool,
}

/// What to do with the configuration that runs.
#[derive(Debug, Args)]
pub struct ConfigArguments {
    /// Write it to the file that the target reads at its start. The old file stays beside it, with `.old` at the end of
    /// its name; comments are not kept.
    #[arg(long)]
    save: bool,
}

/// The keys that are given.
fn named<const N: usize>(texts: [(&str, Option<String>); N]) -> impl Iterator<Item = (String, Value)> {
    texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), Value::from(text?))))
}

/// Adds or removes a subsystem.
///
/// # Errors
/// When the target cannot be asked or refuses.
pub fn subsystem(place: &Place, command: SubsystemCommand, output: &mut impl Write) -> Result<(), AskError> {
    let request = match command {
        SubsystemCommand::Remove { nqn } => Request::SubsystemRemove { subsystem: nqn },
        SubsystemCommand::Add { nqn, allow_any_host, host, serial, model, authentication, tls } => {
            let mut table = Map::from_iter([("nqn".to_owned(), Value::from(nqn))]);
            if allow_any_host {
                table.insert("allow_any_host".to_owned(), Value::from(true));
            } else {
                table.insert("allowed_hosts".to_owned(), Value::from(host));
            }
            let texts =
                [("serial", serial), ("model", model), ("authentication", authentication), ("tls", tls)];
            table.extend(named(texts));
            table.insert("namespace".to_owned(), Value::Array(Vec::new()));
            Request::SubsystemAdd { subsystem: table }
        }
    };
    place.show(&request, output, change_lines)
}

/// Allows, denies, disconnects or limits a host.
///
/// # Errors
/// When the target cannot be asked or refuses.
pub fn host(place: &Place, command: HostCommand, output: &mut impl Write) -> Result<(), AskError> {
    let request = match command {
        HostCommand::Allow(HostArguments { host, subsystem }) => Request::HostAllow { subsystem, host },
        HostCommand::Deny(HostArguments { host, subsystem }) => Request::HostDeny { subsystem, host },
        HostCommand::Revoke { host } => Request::HostRevoke { host },
        HostCommand::Set { host, shares, limits } => {
            let mut table = Map::from_iter([("nqn".to_owned(), Value::from(host))]);
            table.extend(shares.map(|shares| ("shares".to_owned(), Value::from(shares))));
            let limits = limits.into_table();
            if !limits.is_empty() {
                table.insert("limits".to_owned(), Value::from(limits));
            }
            Request::HostSet { host: table }
        }
        HostCommand::Kick(HostArguments { host, subsystem }) => {
            let request = Request::HostKick { subsystem, host };
            return place.show(&request, output, |answer| {
                format!("{} controllers ended\n", text(answer, "controllers"))
            });
        }
    };
    place.show(&request, output, change_lines)
}

/// Adds or removes a listener.
///
/// # Errors
/// When the target cannot be asked or refuses.
pub fn listener(place: &Place, command: ListenerCommand, output: &mut impl Write) -> Result<(), AskError> {
    let (request, what) = match command {
        ListenerCommand::Remove { address } => (Request::ListenerRemove { address }, "removed"),
        ListenerCommand::Add { address, port, transport, provider, tls, discovery_only } => {
            let address = address.trim_start_matches('[').trim_end_matches(']');
            let mut table = Map::from_iter([
                ("address".to_owned(), Value::from(address)),
                ("port".to_owned(), Value::from(port)),
                ("transport".to_owned(), Value::from(transport)),
            ]);
            table.extend(named([("provider", provider), ("tls", tls)]));
            if discovery_only {
                table.insert("discovery_only".to_owned(), Value::from(true));
            }
            (Request::ListenerAdd { listener: table }, "added")
        }
    };
    place.show(&request, output, |answer| format!("listener {} {what}\n", text(answer, "address")))
}

/// Changes what is logged.
///
/// # Errors
/// When the target cannot be asked or refuses.
pub fn log(place: &Place, arguments: LogArguments, output: &mut impl Write) -> Result<(), AskError> {
    place.show(&Request::Log { filter: arguments.filter }, output, change_lines)
}

/// Has the configuration file read again.
///
/// # Errors
/// When the target cannot be asked or refuses.
pub fn reload(place: &Place, arguments: &ReloadArguments, output: &mut impl Write) -> Result<(), AskError> {
    let mut refused = None;
    place.show(&Request::Reload { dry_run: arguments.dry_run }, output, |answer| {
        refused = answer["refused"].as_str().map(str::to_owned);
        change_lines(answer)
    })?;
    refused.map_or(Ok(()), |why| Err(AskError::Refused(format!("a reload would be refused: {why}"))))
}

/// Prints the configuration that runs, or writes it to its file.
///
/// # Errors
/// When the target cannot be asked, or the file cannot be written.
pub fn config(place: &Place, arguments: &ConfigArguments, output: &mut impl Write) -> Result<(), AskError> {
    if !arguments.save {
        return place.show(&Request::Config, output, |answer| toml_of(answer).to_owned());
    }
    let answer = ask(&place.socket, &Request::Config)?;
    let Some(file) = answer["file"].as_str() else {
        return Err(AskError::Refused("the target was started without a configuration file".to_owned()));
    };
    // Nobody's work is written over, and no comment is lost for nothing.
    let exists = Path::new(file).exists();
    if exists {
        refuse_edited(place, file)?;
    }
    if exists && list(&answer, "unsaved").is_empty() {
        let text = format!("{file} has all of it already, and stays as it is\n");
        return place.show(&Request::Config, output, |_| text);
    }
    let toml = toml_of(&answer).to_owned();
    // What cannot be read again must not be there at the next start.
    let config = Config::look_at_text(&toml, "the configuration that runs")
        .map_err(|error| AskError::Refused(error.to_string()))?;
    refuse_named(Path::new(file), &config)?;
    let written = replace(Path::new(file), &toml);
    let old = written.map_err(|error| AskError::Refused(format!("cannot write {file}: {error}")))?;
    // Somebody may have changed something meanwhile. That must not be taken back.
    let different = ask(&place.socket, &Request::Reload { dry_run: true })?;
    if !list(&different, "changes").is_empty() {
        let lines = change_lines(&different);
        return Err(AskError::Refused(format!(
            "{file} is written, and something was changed meanwhile:\n{lines}"
        )));
    }
    // The target knows now that what runs is in its file.
    ask(&place.socket, &Request::Reload { dry_run: false })?;
    let old = old.map(|old| format!("; the old one is {}", old.visible())).unwrap_or_default();
    place.show(&Request::Config, output, |_| format!("{file} is written{old}\n"))
}

/// Refuses to write over a file that somebody has changed and not reloaded, or broken.
fn refuse_edited(place: &Place, file: &str) -> Result<(), AskError> {
    let preview = ask(&place.socket, &Request::Reload { dry_run: true }).map_err(|error| match error {
        AskError::Refused(why) => AskError::Refused(format!(
            "{file} was changed and not reloaded: correct it, or move it away:\n{why}"
        )),
        error => error,
    })?;
    let edited = list(&preview, "edited");
    if edited.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = edited.iter().map(|change| format!("\n{}", change_line(change))).collect();
    let lines = lines.concat();
    Err(AskError::Refused(format!("{file} was changed and not reloaded: reload it, or move it away:{lines}")))
}

/// Refuses to write where something is that the configuration names: a disk may be beside its file.
fn refuse_named(file: &Path, config: &Config) -> Result<(), AskError> {
    let places = [("its new file", NEW), ("the copy of its old file", OLD)];
    let conflict = places.into_iter().find_map(|(what, suffix)| {
        places::conflict_at(places::Place::new(what, &beside(&real_path(file), suffix)), config, None)
    });
    conflict.map_or(Ok(()), |conflict| Err(AskError::Refused(conflict.sentence())))
}

/// What a link leads to is exchanged, and the link stays.
fn real_path(file: &Path) -> PathBuf {
    fs::canonicalize(file).unwrap_or_else(|_| file.to_owned())
}

fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// What the names of the file end in that is not whole yet, and of the one that was there.
const NEW: &str = ".new";
const OLD: &str = ".old";

/// The configuration that runs, as a file.
fn toml_of(answer: &Value) -> &str {
    answer["toml"].as_str().unwrap_or_default()
}

/// Exchanges a file, which is whole at any moment, and keeps the old one, if there is one, beside it. Returns where.
fn replace(file: &Path, content: &str) -> io::Result<Option<PathBuf>> {
    let file = &real_path(file);
    let (new, old) = (beside(file, NEW), beside(file, OLD));
    let before = match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        before => Some(before?),
    };
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    // One that was left behind when somebody else was interrupted is of no use.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mode = before.as_ref().map_or(0o644, |before| before.permissions().mode() & 0o777);
    let mut options = OpenOptions::new();
    let mut writer = options.write(true).create_new(true).mode(mode).open(&new)?;
    if let Some(before) = &before {
        // Who may not give it away is its owner already, or leaves it to the group that he has.
        let _same = chown(&new, Some(before.uid()), Some(before.gid()));
    }
    if let Err(error) = writer.write_all(content.as_bytes()).and_then(|()| writer.sync_all()) {
        let _half = fs::remove_file(&new);
        return Err(error);
    }
    if before.is_some() {
        match fs::remove_file(&old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::hard_link(file, &old)?;
    }
    fs::rename(&new, file)?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()?;
    Ok(before.map(|_| old))
}

/// What is different, a line each.
pub(super) fn change_lines(answer: &Value) -> String {
    let changes = list(answer, "changes");
    if changes.is_empty() {
        return "nothing is different\n".to_owned();
    }
    changes.iter().map(|change| change_line(change) + "\n").collect()
}

/// One change of an answer.
pub(super) fn change_line(change: &Value) -> String {
    let sign = match change["kind"].as_str() {
        Some("added") => '+',
        Some("removed") => '-',
        _ => '~',
    };
    let [what, detail] = ["what", "detail"].map(|key| text(change, key));
    let detail = if detail.is_empty() { detail } else { format!(": {detail}") };
    let restart = if change["needs_restart"] == true { " (needs a restart)" } else { "" };
    format!("{sign} {what}{detail}{restart}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_exchanged_with_its_permissions_and_the_old_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("target.toml");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        for (content, before) in [("new", "old"), ("newer", "new")] {
            replace(&file, content).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), content);
            assert_eq!(fs::read_to_string(folder.path().join("target.toml.old")).unwrap(), before);
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left behind");
        // A link stays one, and what is gone is written again.
        let link = folder.path().join("link.toml");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let old = replace(&link, "newest").unwrap().unwrap();
        assert!(link.is_symlink() && fs::read_to_string(&file).unwrap() == "newest");
        assert_eq!(fs::read_to_string(old).unwrap(), "newer");
        fs::remove_file(&file).unwrap();
        assert_eq!(replace(&file, "again").unwrap(), None);
        assert_eq!(fs::read_to_string(&file).unwrap(), "again");
        assert_eq!(fs::read_to_string(folder.path().join("target.toml.old")).unwrap(), "newer");
    }
}
