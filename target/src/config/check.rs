//! From a TOML document to a configuration that can only be valid.

mod access_groups;
mod ceph;
mod confinement;
mod discovery;
mod host;
mod listener;
mod process;
mod rate_limits;
mod source;
mod subsystem;

use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;

use ringfab_fabric::ZonedIp;
use toml::Spanned;
use toml::de::DeTable;

use super::error::{ConfigError, Credentials, Errors};
use super::places::{self, Conflict, Look, Named, Place};
use super::ports::{PortOf, overlap};
use super::reader::{At, Reader};
use super::{Config, HostConfig, ListenerConfig, ListenerTls, NamespaceConfig, RateLimits, SubsystemConfig};
use crate::disk_identity::DiskIdentity;

pub(super) use host::{DERIVATIONS, words_of};

/// Finds out which disk a path leads to, where one may look.
pub(super) type IdentifyDisk<'a> = &'a dyn Fn(&Path) -> Option<DiskIdentity>;

/// Checks a whole document. `file` is where it is, if that is known.
///
/// # Errors
/// All mistakes, in the order of the file; never an empty list.
pub(super) fn check(
    text: &str,
    file: Option<&Path>,
    look: Look<'_>,
    credentials: Credentials,
) -> Result<Config, Vec<ConfigError>> {
    let mut errors = Errors::new(text);
    errors.credentials = credentials;
    let document = parse(text, &mut errors);
    // What a broken file seems to lack may only be unreadable, so that its other mistakes wait.
    if !errors.is_empty() {
        return Err(errors.into_sorted());
    }
    let root = Reader::new(document.get_ref(), 0..0, String::new());
    let target = process::target(root.table("target", &mut errors), &mut errors);
    let memory = process::memory(root.table("memory", &mut errors), &mut errors);
    let control = root.table("control", &mut errors).map(|reader| process::control(reader, &mut errors));
    let metrics = root.table("metrics", &mut errors).map(|reader| process::metrics(reader, &mut errors));
    let confinement = confinement::confinement(root.table("confinement", &mut errors), &mut errors);
    let listeners = listener::listeners(&root, &mut errors);
    let ceph = ceph::clusters(&root, &mut errors);
    let subsystems = subsystem::subsystems(&root, &|path: &Path| look(path).file(), &mut errors);
    let hosts = host::hosts(&root, &mut errors);
    let discovery = discovery::discovery(root.table("discovery", &mut errors), &subsystems, &mut errors);
    if let Some(address) = metrics.as_ref().and_then(|metrics| metrics.address) {
        address_is_free(document.get_ref(), address, &listeners, &mut errors);
    }
    tls_can_be_had(&root, &listeners, &subsystems, &mut errors);
    root.finish(&mut errors);
    let config = Config {
        target,
        memory,
        control,
        metrics,
        confinement,
        listeners,
        subsystems,
        hosts,
        discovery,
        ceph,
    };
    ceph::are_known(document.get_ref(), &config, &mut errors);
    // What is not valid may be anywhere.
    if errors.is_empty() {
        files_are_different(document.get_ref(), &config, file, look, &mut errors);
    }
    if errors.is_empty() { Ok(config) } else { Err(errors.into_sorted()) }
}

/// The metrics are not where hosts connect. A device's port is not the kernel's.
fn address_is_free(
    document: &DeTable<'_>,
    address: SocketAddr,
    listeners: &[ListenerConfig],
    errors: &mut Errors<'_>,
) {
    let Ok(ip) = ZonedIp::new(address.ip(), None) else { return };
    let same = |one: &&ListenerConfig| {
        let is_taken = overlap((&one.address, one.port), (&ip, address.port()));
        is_taken && one.port_of() != PortOf::Device
    };
    if let Some(listener) = listeners.iter().find(same) {
        let span = value_at(document, "metrics", "address").unwrap_or_default();
        errors.add(
            &span,
            "metrics.address",
            format!("is the listener's {}; choose another port", listener.place()),
        );
    }
}

/// What the target makes is nothing else that the configuration names.
fn files_are_different(
    document: &DeTable<'_>,
    config: &Config,
    file: Option<&Path>,
    look: Look<'_>,
    errors: &mut Errors<'_>,
) {
    for Conflict { made, other } in places::conflicts(config, file, look) {
        let found = named_at(document, &made).map(|at| (at, &made, &other));
        let found = found.or_else(|| Some((named_at(document, &other)?, &other, &made)));
        let ((span, key), place, other) = found.unwrap_or_else(|| ((0..0, String::new()), &made, &other));
        errors.add(&span, key, Conflict::message(place, other));
    }
}

/// Where a document names a file: the value, and its key.
fn named_at(document: &DeTable<'_>, place: &Place) -> Option<(Range<usize>, String)> {
    match place.named {
        Named::Elsewhere => return None,
        Named::By(table, key) => {
            return Some((value_at(document, table, key)?, format!("{table}.{key}")));
        }
        Named::AsDisk => {}
    }
    let mut subsystems = tables_of(document, "subsystem");
    subsystems.find_map(|(one, subsystem)| {
        let found = tables_of(subsystem, "namespace").find_map(|(index, table)| {
            let path = table.get("path")?;
            (Path::new(path.get_ref().as_str()?) == place.path).then(|| (index, path.span()))
        });
        found.map(|(index, span)| (span, format!("subsystem[{one}].namespace[{index}].path")))
    })
}

/// Where the value of a key of a table is.
fn value_at(document: &DeTable<'_>, table: &str, key: &str) -> Option<Range<usize>> {
    Some(document.get(table)?.get_ref().as_table()?.get(key)?.span())
}

/// The tables of an array of tables.
fn tables_of<'a>(table: &'a DeTable<'a>, key: &str) -> impl Iterator<Item = (usize, &'a DeTable<'a>)> {
    let items = table.get(key).and_then(|value| value.get_ref().as_array());
    let items = items.into_iter().flat_map(|items| items.iter().enumerate());
    items.filter_map(|(index, item)| Some((index, item.get_ref().as_table()?)))
}

/// A subsystem that requires TLS has hosts only where a listener has it.
fn tls_can_be_had(
    root: &Reader<'_>,
    listeners: &[ListenerConfig],
    subsystems: &[SubsystemConfig],
    errors: &mut Errors<'_>,
) {
    let serves = |one: &ListenerConfig| one.tls != ListenerTls::Off && !one.discovery_only;
    let requires = subsystems.iter().find(|one| one.demands.tls);
    if let Some(one) = requires.filter(|_| !listeners.iter().any(serves)) {
        let message = format!("none has tls = \"allowed\" or \"required\", and {} requires TLS", one.nqn);
        errors.add(root.span(), "listener".to_owned(), message);
    }
}

/// Checks the table of one namespace. That it differs from the others is for the caller to know.
///
/// # Errors
/// All mistakes; never an empty list.
pub(super) fn check_namespace(text: &str) -> Result<NamespaceConfig, Vec<ConfigError>> {
    fragment(text, subsystem::one_namespace)
}

/// Checks the table of one subsystem, in which its namespaces are. That it differs from the others is for the caller to
/// know.
///
/// # Errors
/// All mistakes; never an empty list.
pub(super) fn check_subsystem(text: &str) -> Result<SubsystemConfig, Vec<ConfigError>> {
    fragment(text, |reader, errors| Some(subsystem::one_subsystem(reader, errors)))
}

/// Checks the table of one listener.
///
/// # Errors
/// All mistakes; never an empty list.
pub(super) fn check_listener(text: &str) -> Result<ListenerConfig, Vec<ConfigError>> {
    fragment(text, listener::one_listener)
}

/// Checks the table of one host.
///
/// # Errors
/// All mistakes; never an empty list.
pub(super) fn check_host(text: &str) -> Result<HostConfig, Vec<ConfigError>> {
    fragment(text, |reader, errors| Some(host::one_host(reader, errors)))
}

/// Checks one table of limits.
///
/// # Errors
/// All mistakes; never an empty list.
pub(super) fn check_limits(text: &str) -> Result<RateLimits, Vec<ConfigError>> {
    fragment(text, |reader, errors| Some(rate_limits::one_table(reader, errors)))
}

fn fragment<T>(
    text: &str,
    read: impl FnOnce(Reader<'_>, &mut Errors<'_>) -> Option<T>,
) -> Result<T, Vec<ConfigError>> {
    let mut errors = Errors::new(text);
    let document = parse(text, &mut errors);
    if !errors.is_empty() {
        return Err(errors.into_sorted());
    }
    let root = Reader::new(document.get_ref(), 0..0, String::new());
    match read(root, &mut errors) {
        Some(value) if errors.is_empty() => Ok(value),
        _ => Err(errors.into_sorted()),
    }
}

/// The document; of one that is broken, the first place is noted. What follows is mostly a consequence of it.
fn parse<'a>(text: &'a str, errors: &mut Errors<'_>) -> Spanned<DeTable<'a>> {
    let (document, syntax) = DeTable::parse_recoverable(text);
    let start = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
    if let Some(first) = syntax.iter().min_by_key(|error| start(error)) {
        errors.add(&first.span().unwrap_or(0..0), "", first.message().to_owned());
    }
    document
}

/// The words for whether something is demanded.
const REQUIRED: [(&str, bool); 2] = [("required", true), ("optional", false)];

/// Finds values that may appear only once in a file.
struct Unique<T>(Vec<(T, Range<usize>)>);

impl<T: PartialEq> Unique<T> {
    const fn new() -> Self {
        Self(Vec::new())
    }

    /// Notes a value; a second one like it is a mistake, which names the line of the first.
    fn insert(&mut self, value: T, span: &Range<usize>, key: String, errors: &mut Errors<'_>) {
        match self.0.iter().find(|(known, _)| *known == value) {
            Some((_, first)) => {
                let line = errors.line(first);
                errors.add(span, key, format!("is the same as in line {line}"));
            }
            None => self.0.push((value, span.clone())),
        }
    }

    fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(value, _)| value)
    }
}

/// The value, or a default when the key is missing (or was wrong, which is noted already).
fn or<T>(value: Option<At<T>>, default: T) -> T {
    value.map_or(default, |at| at.value)
}

/// One of a few words.
fn word<T: Copy>(
    reader: &Reader<'_>,
    key: &'static str,
    words: &[(&str, T)],
    errors: &mut Errors<'_>,
) -> Option<T> {
    let text = reader.string(key, errors)?;
    let found = words.iter().find(|(word, _)| *word == text.value);
    if found.is_none() {
        let known: Vec<_> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let message = format!("is \"{}\", but must be {}", text.value, known.join(" or "));
        errors.add(&text.span, reader.key(key), message);
    }
    found.map(|(_, value)| *value)
}
