//! The table `[[host]]`.

use std::ops::RangeInclusive;

use ringfab_auth::{
    CipherSuite, ConfiguredPsk, Derivation, DhchapKey, Group, Hash, KeyError, KeyRole, KeySource, Policy,
    system_random,
};
use ringfab_process::limits;

use super::rate_limits::{host_nqn, limits_of};
use super::{Errors, Reader, Unique, word};
use crate::config::authentication::{
    ConfiguredKey, HostAuthentication, HostTls, OldKeys, is_unseen_credential, read_key,
};
use crate::config::error::Credentials;
use crate::config::rate_limits::{DEFAULT_SHARES, HostConfig};
use crate::config::reader::At;
use crate::config::until::{self, Until};

/// Shares, as control groups have them for I/O.
const SHARES: RangeInclusive<u64> = 1..=10_000;

const HASHES: [(&str, Hash); 3] =
    [("sha256", Hash::Sha256), ("sha384", Hash::Sha384), ("sha512", Hash::Sha512)];

/// All that there are. Those after ffdhe8192 are in no list unless it is configured.
fn all_groups() -> [(&'static str, Group); Group::ALL.len()] {
    Group::ALL.map(|group| (group.name(), group))
}

/// All hosts of which something is said.
pub(super) fn hosts(root: &Reader<'_>, errors: &mut Errors<'_>) -> Vec<HostConfig> {
    let mut names = Unique::new();
    root.tables("host", errors).into_iter().map(|reader| host(reader, &mut names, errors)).collect()
}

/// One host that is in no file.
pub(super) fn one_host(reader: Reader<'_>, errors: &mut Errors<'_>) -> HostConfig {
    host(reader, &mut Unique::new(), errors)
}

fn host(reader: Reader<'_>, names: &mut Unique<String>, errors: &mut Errors<'_>) -> HostConfig {
    let nqn = host_nqn(&reader, "nqn", names, errors);
    let shares = reader.integer("shares", SHARES, errors);
    let shares = shares.map_or(DEFAULT_SHARES, |shares| shares.value as u32);
    let limits = limits_of(&reader, errors);
    let authentication = authentication(&reader, &nqn, errors);
    let tls = tls(&reader, &nqn, errors);
    let old_keys_until = old_keys_until(&reader, errors);
    let config = HostConfig { nqn, shares, limits, authentication, tls, old_keys_until };
    if let Some(value) = reader.any(OLD_KEYS_UNTIL).filter(|_| !config.has_old_keys()) {
        let why = "has no meaning without an old key: dhchap_keys = [new, old], or tls_keys";
        errors.add(&value.span(), reader.key(OLD_KEYS_UNTIL), why);
    }
    reader.finish(errors);
    config
}

const OLD_KEYS_UNTIL: &str = "old_keys_until";

fn old_keys_until(reader: &Reader<'_>, errors: &mut Errors<'_>) -> Option<Until> {
    let value = reader.any(OLD_KEYS_UNTIL)?;
    let until = value.get_ref().as_datetime().and_then(|written| Until::new(*written));
    if until.is_none() {
        errors.add(&value.span(), reader.key(OLD_KEYS_UNTIL), until::EXPECTED);
    }
    until
}

/// The words for how keys for TLS are derived.
pub(in crate::config) const DERIVATIONS: [(&str, Derivation); 2] =
    [("specified", Derivation::Specified), ("libnvme-before-2025-07", Derivation::LibnvmeBefore202507)];

fn tls(reader: &Reader<'_>, host: &str, errors: &mut Errors<'_>) -> Option<HostTls> {
    let psk = Wanted { role: KeyRole::Tls, host, parse: ConfiguredPsk::parse, other: other_psk };
    let (key, old) = keys(reader, ["tls_key", "tls_keys"], &psk, errors);
    let derivation = word(reader, "tls_derivation", &DERIVATIONS, errors);
    let has_key = reader.any("tls_key").or(reader.any("tls_keys")).is_some();
    if let Some(value) = reader.any("tls_derivation").filter(|_| !has_key) {
        errors.add(&value.span(), reader.key("tls_derivation"), "has no meaning without tls_key");
    }
    Some(HostTls { key: key?, old, derivation: derivation.unwrap_or_default() })
}

fn authentication(reader: &Reader<'_>, host: &str, errors: &mut Errors<'_>) -> Option<HostAuthentication> {
    const CONTROLLER_KEYS: [&str; 2] = ["dhchap_controller_key", "dhchap_controller_keys"];
    let of = |role| Wanted { role, host, parse: DhchapKey::parse, other: other_dhchap_key };
    let (key, old) = keys(reader, ["dhchap_key", "dhchap_keys"], &of(KeyRole::Host), errors);
    let (controller_key, old_controller_key) =
        keys(reader, CONTROLLER_KEYS, &of(KeyRole::Controller), errors);
    if let Some(value) =
        reader.any(CONTROLLER_KEYS[1]).filter(|_| old_controller_key.is_some() && old.is_none())
    {
        let why =
            "has an old key, which is for hosts that show their old one: write dhchap_keys = [new, old]";
        errors.add(&value.span(), reader.key(CONTROLLER_KEYS[1]), why);
    }
    let hashes = words(reader, "dhchap_hashes", &HASHES, errors);
    let groups = words(reader, "dhchap_groups", &all_groups(), errors);
    if reader.any("dhchap_key").or(reader.any("dhchap_keys")).is_none() {
        for key in CONTROLLER_KEYS.into_iter().chain(["dhchap_hashes", "dhchap_groups"]) {
            if let Some(value) = reader.any(key) {
                errors.add(&value.span(), reader.key(key), "has no meaning without dhchap_key");
            }
        }
    }
    let default = Policy::at_least(Hash::Sha256, Group::Ffdhe2048);
    let old = old.map(|key| {
        let controller_key = old_controller_key.or_else(|| controller_key.clone());
        OldKeys { key, controller_key }
    });
    Some(HostAuthentication {
        key: key?,
        controller_key,
        old,
        hashes: hashes.unwrap_or_else(|| default.accepted_hashes().to_vec()),
        groups: groups.unwrap_or_else(|| default.accepted_groups().to_vec()),
    })
}

/// A key that nobody else has.
fn other_dhchap_key() -> DhchapKey {
    DhchapKey::generate(Hash::Sha256, None, &mut system_random())
}

/// A key that nobody else has.
fn other_psk() -> ConfiguredPsk {
    ConfiguredPsk::generate(CipherSuite::Aes128GcmSha256, &mut system_random())
}

/// A key of a host.
struct Wanted<'a, K> {
    role: KeyRole,
    host: &'a str,
    /// How it is read.
    parse: fn(&str) -> Result<K, KeyError>,
    /// Another one, which stands for a credential that is out of sight.
    other: fn() -> K,
}

/// A key, and the one before: `[single, list]` are the names of the two ways to write it.
fn keys<K: PartialEq>(
    reader: &Reader<'_>,
    [single, list]: [&'static str; 2],
    wanted: &Wanted<'_, K>,
    errors: &mut Errors<'_>,
) -> (Option<ConfiguredKey<K>>, Option<ConfiguredKey<K>>) {
    let one = reader.string(single, errors).and_then(|place| key(&place, reader.key(single), wanted, errors));
    let Some(At { value: places, span }) = reader.strings(list, errors) else { return (one, None) };
    if reader.any(single).is_some() {
        errors.add(&span, reader.key(list), format!("stands beside {single}: write one of the two"));
    }
    if !matches!(places.len(), 1 | 2) {
        errors.add(&span, reader.key(list), "must have one key, or two: the new one and the old one");
        return (one, None);
    }
    let name = |index: usize| format!("{}[{index}]", reader.key(list));
    let mut found = (0..).zip(&places).map(|(index, place)| key(place, name(index), wanted, errors));
    let (new, old) = (found.next().flatten(), found.next().flatten());
    drop(found);
    if let (Some(new), Some(old)) = (&new, &old)
        && new.key == old.key
    {
        errors.add(&span, name(1), "is the same key as the first one");
    }
    (new, old)
}

/// A key, which is read at once. Where a credential may be out of sight, another key stands for it.
fn key<K>(
    At { value, span }: &At<String>,
    name: String,
    wanted: &Wanted<'_, K>,
    errors: &mut Errors<'_>,
) -> Option<ConfiguredKey<K>> {
    // Before there is anything to write into one.
    limits::forbid_core_files();
    let may_be_unseen = errors.credentials == Credentials::MayBeUnseen;
    let read = |source: KeySource| {
        let is_unseen = may_be_unseen && is_unseen_credential(&source);
        let key = match is_unseen {
            true => Ok((wanted.other)()),
            false => read_key(&source, wanted.role, wanted.host, wanted.parse),
        };
        key.map(|key| ConfiguredKey { source, key })
    };
    KeySource::parse(value).and_then(read).map_err(|why| errors.add(span, name, why)).ok()
}

/// A list of some of these words, each once.
fn words<T: Copy>(
    reader: &Reader<'_>,
    key: &'static str,
    known: &[(&str, T)],
    errors: &mut Errors<'_>,
) -> Option<Vec<T>> {
    let At { value: list, span } = reader.strings(key, errors)?;
    let mut seen = Unique::new();
    let mut found = Vec::new();
    if list.is_empty() {
        errors.add(&span, reader.key(key), "is empty, so that no host could connect; leave the key out");
    }
    for (index, At { value, span }) in list.into_iter().enumerate() {
        let key = format!("{}[{index}]", reader.key(key));
        match known.iter().find(|(word, _)| *word == value) {
            Some((_, meant)) => found.push(*meant),
            None => {
                let words: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
                errors.add(
                    &span,
                    key.clone(),
                    format!("is \"{value}\", but must be one of {}", words.join(", ")),
                );
            }
        }
        seen.insert(value, &span, key, errors);
    }
    Some(found)
}

/// The words for what a host may use.
pub(in crate::config) fn words_of(
    authentication: &HostAuthentication,
) -> (Vec<&'static str>, Vec<&'static str>) {
    let word = |one: &Hash| HASHES.iter().find(|(_, hash)| hash == one).map_or("", |(word, _)| word);
    let groups = authentication.groups.iter().map(|group| group.name());
    (authentication.hashes.iter().map(word).collect(), groups.collect())
}
