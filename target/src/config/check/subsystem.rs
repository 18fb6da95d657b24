//! The tables `[[subsystem]]` and `[[subsystem.namespace]]`.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ringfab_spec::nqn::DISCOVERY_NQN;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::source::source;
use super::{Errors, IdentifyDisk, REQUIRED, Reader, Unique, access_groups, or, rate_limits, word};
use crate::config::reader::At;
use crate::config::{Access, Demands, NamespaceConfig, SubsystemConfig};
use crate::disk_identity::{DiskIdentity, Sharing};
use crate::limits::NSID_MAX;
use crate::nqn::{check_host_nqn, check_nqn};

/// What may appear only once in the whole file.
pub(super) struct Once<'a> {
    nqns: Unique<String>,
    serials: Unique<String>,
    disks: Vec<KnownDisk>,
    /// What is on other machines, by its address.
    remote: Vec<(String, Sharing, Range<usize>)>,
    identifiers: Unique<[u8; 16]>,
    identify_disk: IdentifyDisk<'a>,
}

/// A file or device of the configuration.
struct KnownDisk {
    path: PathBuf,
    /// None where nobody looked, or there is nothing to see.
    identity: Option<DiskIdentity>,
    sharing: Sharing,
    span: Range<usize>,
}

impl<'a> Once<'a> {
    fn new(identify_disk: IdentifyDisk<'a>) -> Self {
        Self {
            nqns: Unique::new(),
            serials: Unique::new(),
            disks: Vec::new(),
            remote: Vec::new(),
            identifiers: Unique::new(),
            identify_disk,
        }
    }

    /// Notes a disk; a second use of the same, by whatever name, is a mistake unless both say that they share it.
    pub(super) fn disk(
        &mut self,
        path: &Path,
        sharing: Sharing,
        at: (&Range<usize>, String),
        errors: &mut Errors<'_>,
    ) {
        let (span, key) = at;
        let path: PathBuf = path.components().collect();
        let identity = (self.identify_disk)(&path);
        let same = |known: &&KnownDisk| {
            let is_same = known.path == path || (identity.is_some() && known.identity == identity);
            is_same && !known.sharing.allows(sharing)
        };
        if let Some(first) = self.disks.iter().find(same) {
            let line = errors.line(&first.span);
            let what = match identity {
                Some(identity) if first.path != path => {
                    format!("is the same disk as in line {line} ({identity})")
                }
                _ => format!("is the same as in line {line}"),
            };
            errors.add(span, key, format!("{what}; write shared = true for both if that is meant"));
        }
        self.disks.push(KnownDisk { path, identity, sharing, span: span.clone() });
    }

    /// Notes what is on another machine, by its address. The same rules hold for it as for a disk.
    pub(super) fn remote(
        &mut self,
        address: &At<String>,
        sharing: Sharing,
        key: String,
        errors: &mut Errors<'_>,
    ) {
        let same =
            self.remote.iter().find(|(known, other, _)| *known == address.value && !other.allows(sharing));
        if let Some((_, _, span)) = same {
            let line = errors.line(span);
            let message =
                format!("is the same as in line {line}; write shared = true for both if that is meant");
            errors.add(&address.span, key, message);
        }
        self.remote.push((address.value.clone(), sharing, address.span.clone()));
    }
}

/// One namespace that is in no file.
pub(super) fn one_namespace(reader: Reader<'_>, errors: &mut Errors<'_>) -> Option<NamespaceConfig> {
    namespace(reader, &mut Unique::new(), &mut Once::new(&|_| None), errors)
}

/// One subsystem that is in no file. Its namespaces may come later.
pub(super) fn one_subsystem(reader: Reader<'_>, errors: &mut Errors<'_>) -> SubsystemConfig {
    subsystem(reader, &mut Once::new(&|_| None), errors)
}

pub(super) fn subsystems(
    root: &Reader<'_>,
    identify_disk: IdentifyDisk<'_>,
    errors: &mut Errors<'_>,
) -> Vec<SubsystemConfig> {
    let readers = root.tables("subsystem", errors);
    if readers.is_empty() {
        root.missing(&["subsystem"], "write at least one [[subsystem]] with an nqn");
    }
    let mut once = Once::new(identify_disk);
    readers.into_iter().map(|reader| subsystem(reader, &mut once, errors)).collect()
}

fn subsystem(reader: Reader<'_>, once: &mut Once<'_>, errors: &mut Errors<'_>) -> SubsystemConfig {
    let nqn = nqn(&reader, once, errors);
    let serial = serial(&reader, &nqn, once, errors);
    let model = text(&reader, "model", 40, errors).map_or_else(|| "Ringfab".to_owned(), |at| at.value);
    let access = access(&reader, errors);
    let demands = demands(&reader, errors);
    let controller_ids = access_groups::controller_ids(&reader, errors);
    let discovery_listeners = access_groups::discovered(&reader, errors);
    let ana_groups = access_groups::access_groups(&reader, errors);
    let mut nsids = Unique::new();
    let mut namespaces = Vec::new();
    for table in reader.tables("namespace", errors) {
        namespaces.extend(namespace(table, &mut nsids, once, errors));
    }
    if reader.any("namespace").is_none() {
        reader.missing(&["namespace"], "write at least one [[subsystem.namespace]]");
    }
    reader.finish(errors);
    namespaces.sort_by_key(|namespace: &NamespaceConfig| namespace.nsid);
    SubsystemConfig {
        nqn,
        serial,
        model,
        access,
        demands,
        controller_ids,
        discovery_listeners,
        ana_groups,
        namespaces,
    }
}

fn demands(reader: &Reader<'_>, errors: &mut Errors<'_>) -> Demands {
    let mut required = |key| word(reader, key, &REQUIRED, errors).unwrap_or(false);
    let (authentication, tls) = (required("authentication"), required("tls"));
    let words = [("allowed", true), ("refused", false)];
    let concatenation = word(reader, "concatenation", &words, errors).unwrap_or(true);
    Demands { authentication, tls, concatenation }
}

fn nqn(reader: &Reader<'_>, once: &mut Once<'_>, errors: &mut Errors<'_>) -> String {
    let Some(nqn) = reader.string("nqn", errors) else {
        reader.missing(&["nqn"], "write a name such as \"nqn.2024-01.org.example:disk\"");
        return String::new();
    };
    if let Err(message) = check_nqn(&nqn.value) {
        errors.add(&nqn.span, reader.key("nqn"), message);
    } else if nqn.value == DISCOVERY_NQN {
        errors.add(&nqn.span, reader.key("nqn"), "is the discovery subsystem's, which is always there");
    } else {
        once.nqns.insert(nqn.value.clone(), &nqn.span, reader.key("nqn"), errors);
    }
    nqn.value
}

/// The serial number; a missing one is made from the name, so that it is stable and differs between subsystems.
fn serial(reader: &Reader<'_>, nqn: &str, once: &mut Once<'_>, errors: &mut Errors<'_>) -> String {
    match text(reader, "serial", 20, errors) {
        Some(serial) => {
            once.serials.insert(serial.value.clone(), &serial.span, reader.key("serial"), errors);
            serial.value
        }
        None => Sha256::digest(nqn.as_bytes()).iter().take(10).map(|byte| format!("{byte:02X}")).collect(),
    }
}

/// Printable ASCII of a bounded length, as Identify Controller has it.
fn text(
    reader: &Reader<'_>,
    key: &'static str,
    bytes_max: usize,
    errors: &mut Errors<'_>,
) -> Option<At<String>> {
    let text = reader.string(key, errors)?;
    let printable = text.value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if printable && !text.value.trim().is_empty() && text.value.len() <= bytes_max {
        return Some(text);
    }
    errors.add(&text.span, reader.key(key), format!("must be 1 to {bytes_max} printable ASCII characters"));
    None
}

fn access(reader: &Reader<'_>, errors: &mut Errors<'_>) -> Access {
    let any = reader.boolean("allow_any_host", errors);
    let hosts = reader.strings("allowed_hosts", errors);
    match (any, hosts) {
        (Some(At { value: true, .. }), None) => Access::AnyHost,
        (Some(At { value: false, .. }) | None, Some(hosts)) => {
            // An empty list is a subsystem that waits for its first host.
            hosts_of(reader, "allowed_hosts", &hosts, None, errors)
        }
        (Some(At { value: true, span }), Some(_)) => {
            let message = "contradicts allowed_hosts; keep one of them";
            errors.add(&span, reader.key("allow_any_host"), message);
            Access::AnyHost
        }
        (any, None) => {
            // One that is neither true nor false was noted already.
            if any.is_some() || reader.any("allow_any_host").is_none() {
                let what = "list the hosts' NQNs, or write allow_any_host = true";
                reader.missing(&["allowed_hosts", "allow_any_host"], what);
            }
            Access::Hosts(BTreeSet::new())
        }
    }
}

/// A list of hosts. `nobody` is what an empty one would mean, where it may not be empty.
fn hosts_of(
    reader: &Reader<'_>,
    key: &'static str,
    hosts: &At<Vec<At<String>>>,
    nobody: Option<&str>,
    errors: &mut Errors<'_>,
) -> Access {
    let mut seen = Unique::new();
    for (index, host) in hosts.value.iter().enumerate() {
        let key = format!("{}[{index}]", reader.key(key));
        if let Err(message) = check_host_nqn(&host.value) {
            errors.add(&host.span, key.clone(), message);
        }
        seen.insert(host.value.clone(), &host.span, key, errors);
    }
    if let Some(nobody) = nobody.filter(|_| hosts.value.is_empty()) {
        errors.add(&hosts.span, reader.key(key), format!("is empty, so that {nobody}"));
    }
    Access::Hosts(hosts.value.iter().map(|host| host.value.clone()).collect())
}

fn namespace(
    reader: Reader<'_>,
    nsids: &mut Unique<u64>,
    once: &mut Once<'_>,
    errors: &mut Errors<'_>,
) -> Option<NamespaceConfig> {
    // The numbers of those that have other mistakes are taken, too.
    let next = nsids.values().max().unwrap_or(&0) + 1;
    let nsid = reader.integer("nsid", 1..=u64::from(NSID_MAX), errors);
    // Instead of one that is not valid there is none: another namespace may have the next number.
    let written = nsid.is_some() || reader.any("nsid").is_none();
    let nsid = nsid.unwrap_or(At { value: next, span: reader.span().clone() });
    if written {
        nsids.insert(nsid.value, &nsid.span, reader.key("nsid"), errors);
    }
    let block_bytes = block_bytes(&reader, errors);
    let read_only = or(reader.boolean("read_only", errors), false);
    let shared = reader.boolean("shared", errors);
    let source = source(&reader, block_bytes, read_only, shared.as_ref(), once, errors);
    let shared = or(shared, false);
    let uuid = identifier(&reader, "uuid", once, errors).map(Uuid::from_bytes);
    let nguid = identifier(&reader, "nguid", once, errors);
    let hosts = match reader.strings("hosts", errors) {
        Some(hosts) => {
            let nobody = "no host would see it; leave the key out for all";
            hosts_of(&reader, "hosts", &hosts, Some(nobody), errors)
        }
        None => Access::AnyHost,
    };
    let limits = rate_limits::of_namespace(&reader, errors);
    let ana_group = access_groups::group_of(&reader, errors);
    reader.finish(errors);
    let nsid = u32::try_from(nsid.value).ok()?;
    let source = source?;
    Some(NamespaceConfig {
        nsid,
        source,
        block_bytes,
        read_only,
        shared,
        uuid,
        nguid,
        ana_group,
        hosts,
        limits,
    })
}

fn block_bytes(reader: &Reader<'_>, errors: &mut Errors<'_>) -> u32 {
    match reader.size("block_bytes", errors) {
        Some(At { value: 4096, .. }) => 4096,
        Some(At { value: 512, .. }) | None => 512,
        Some(At { value, span }) => {
            errors.add(&span, reader.key("block_bytes"), format!("is {value}, but must be 512 or 4096"));
            512
        }
    }
}

/// Sixteen bytes in hexadecimal, with or without hyphens.
fn identifier(
    reader: &Reader<'_>,
    key: &'static str,
    once: &mut Once<'_>,
    errors: &mut Errors<'_>,
) -> Option<[u8; 16]> {
    let text = reader.string(key, errors)?;
    match Uuid::try_parse(&text.value) {
        Ok(uuid) if !uuid.is_nil() => {
            once.identifiers.insert(*uuid.as_bytes(), &text.span, reader.key(key), errors);
            Some(*uuid.as_bytes())
        }
        _ => {
            let message = "must be 32 hexadecimal digits, not all zero; hyphens may stand as in a UUID";
            errors.add(&text.span, reader.key(key), message);
            None
        }
    }
}
