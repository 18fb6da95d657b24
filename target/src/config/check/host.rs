//! The table `[[host]]`.

use std::ops::RangeInclusive;

use ringfab_auth::{
    CipherSuite, ConfiguredPsk, Derivation, DhchapKey, Group, Hash, KeyError, KeySource, Policy,
    system_random,
};
use ringfab_process::limits;

use super::rate_limits::{host_nqn, limits_of};
use super::{Errors, Reader, Unique, word};
use crate::config::authentication::{
    ConfiguredKey, HostAuthentication, HostTls, is_unseen_credential, read_key,
};
use crate::config::error::Credentials;
use crate::config::rate_limits::{DEFAULT_SHARES, HostConfig};
use crate::config::reader::At;

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
    let authentication = authentication(&reader, errors);
    let tls = tls(&reader, errors);
    reader.finish(errors);
    HostConfig { nqn, shares, limits, authentication, tls }
}

/// The words for how keys for TLS are derived.
pub(in crate::config) const DERIVATIONS: [(&str, Derivation); 2] =
    [("specified", Derivation::Specified), ("libnvme-before-2025-07", Derivation::LibnvmeBefore202507)];

fn tls(reader: &Reader<'_>, errors: &mut Errors<'_>) -> Option<HostTls> {
    let key = key(reader, "tls_key", (ConfiguredPsk::parse, other_psk), errors);
    let derivation = word(reader, "tls_derivation", &DERIVATIONS, errors);
    if let Some(value) = reader.any("tls_derivation").filter(|_| reader.any("tls_key").is_none()) {
        errors.add(&value.span(), reader.key("tls_derivation"), "has no meaning without tls_key");
    }
    Some(HostTls { key: key?, derivation: derivation.unwrap_or_default() })
}

fn authentication(reader: &Reader<'_>, errors: &mut Errors<'_>) -> Option<HostAuthentication> {
    let key = key(reader, "dhchap_key", (DhchapKey::parse, other_dhchap_key), errors);
    let controller_key =
        self::key(reader, "dhchap_controller_key", (DhchapKey::parse, other_dhchap_key), errors);
    let hashes = words(reader, "dhchap_hashes", &HASHES, errors);
    let groups = words(reader, "dhchap_groups", &all_groups(), errors);
    if reader.any("dhchap_key").is_none() {
        for key in ["dhchap_controller_key", "dhchap_hashes", "dhchap_groups"] {
            if let Some(value) = reader.any(key) {
                errors.add(&value.span(), reader.key(key), "has no meaning without dhchap_key");
            }
        }
    }
    let default = Policy::at_least(Hash::Sha256, Group::Ffdhe2048);
    Some(HostAuthentication {
        key: key?,
        controller_key,
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

/// A key, which is read at once. Where a credential may be out of sight, another key stands for it.
fn key<K>(
    reader: &Reader<'_>,
    key: &'static str,
    (parse, other): (impl FnOnce(&str) -> Result<K, KeyError>, impl FnOnce() -> K),
    errors: &mut Errors<'_>,
) -> Option<ConfiguredKey<K>> {
    let At { value, span } = reader.string(key, errors)?;
    // Before there is anything to write into one.
    limits::forbid_core_files();
    let may_be_unseen = errors.credentials == Credentials::MayBeUnseen;
    let read = |source: KeySource| {
        let is_unseen = may_be_unseen && is_unseen_credential(&source);
        let key = if is_unseen { Ok(other()) } else { read_key(&source, parse) };
        key.map(|key| ConfiguredKey { source, key })
    };
    KeySource::parse(&value).and_then(read).map_err(|why| errors.add(&span, reader.key(key), why)).ok()
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
