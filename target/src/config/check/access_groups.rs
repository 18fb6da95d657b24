//! The tables `[[subsystem.ana]]`, and which namespace is in which group.

use std::net::SocketAddr;

use super::{Errors, Reader, Unique, word};
use crate::config::access_groups::{
    ANA_GROUP_MAX, ANA_STATES, AccessGroup, AccessGroups, DEFAULT_ANA_GROUP, OnLostDisk,
};
use crate::config::reader::At;
use crate::limits::CONTROLLER_ID_MAX;

/// The group of a namespace.
pub(super) fn group_of(reader: &Reader<'_>, errors: &mut Errors<'_>) -> u32 {
    let group = reader.integer("ana_group", 1..=u64::from(ANA_GROUP_MAX), errors);
    group.and_then(|group| u32::try_from(group.value).ok()).unwrap_or(DEFAULT_ANA_GROUP)
}

/// The groups of which something is said.
pub(super) fn access_groups(reader: &Reader<'_>, errors: &mut Errors<'_>) -> AccessGroups {
    let (mut groups, mut once) = (AccessGroups::new(), Unique::new());
    for table in reader.tables("ana", errors) {
        let group = table.integer("group", 1..=u64::from(ANA_GROUP_MAX), errors);
        match &group {
            Some(group) => once.insert(group.value, &group.span, table.key("group"), errors),
            None => table.missing(&["group"], "write its identifier, 1 to 128"),
        }
        let default = AccessGroup::default();
        let state = word(&table, "state", &ANA_STATES, errors).unwrap_or(default.state);
        let on_lost_disk = word(&table, "on_lost_disk", &OnLostDisk::ALL, errors).unwrap_or_default();
        let mut found = AccessGroup { state, on_lost_disk, ..default };
        ways(&table, &mut found, errors);
        table.finish(errors);
        // What is said by default needs no entry, so that both ways to write it mean the same.
        if let Some(group) = group.and_then(|group| u32::try_from(group.value).ok())
            && found != AccessGroup::default()
        {
            groups.insert(group, found);
        }
    }
    groups
}

fn ways(reader: &Reader<'_>, group: &mut AccessGroup, errors: &mut Errors<'_>) {
    let mut once = Unique::new();
    for table in reader.tables("way", errors) {
        let address = address(&table, errors);
        let state = word(&table, "state", &ANA_STATES, errors);
        if table.any("state").is_none() {
            table.missing(&["state"], "write the state of the group by this way");
        }
        if let Some(address) = &address {
            once.insert(address.value, &address.span, table.key("listener"), errors);
        }
        table.finish(errors);
        if let (Some(address), Some(state)) = (address, state)
            && state != group.state
        {
            group.ways.insert(address.value, state);
        }
    }
}

fn address(reader: &Reader<'_>, errors: &mut Errors<'_>) -> Option<At<SocketAddr>> {
    let Some(text) = reader.string("listener", errors) else {
        reader.missing(&["listener"], "write its address with its port: \"192.0.2.1:4420\"");
        return None;
    };
    parsed(&text, reader.key("listener"), errors)
}

/// An address with a port.
pub(super) fn parsed(text: &At<String>, key: String, errors: &mut Errors<'_>) -> Option<At<SocketAddr>> {
    let parsed = text.value.parse().ok();
    if parsed.is_none() {
        let message = "must be an address with its port: \"192.0.2.1:4420\" or \"[2001:db8::1]:4420\"";
        errors.add(&text.span, key, message);
    }
    parsed.map(|value| At { value, span: text.span.clone() })
}

/// The range of controller identifiers that this process gives.
pub(super) fn controller_ids(reader: &Reader<'_>, errors: &mut Errors<'_>) -> Option<(u16, u16)> {
    let text = reader.string("controller_ids", errors)?;
    let range = text.value.split_once('-').and_then(|(first, last)| {
        let (first, last) = (first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?);
        let valid = (1..=CONTROLLER_ID_MAX).contains(&first) && first <= last && last <= CONTROLLER_ID_MAX;
        valid.then_some((first, last))
    });
    if range.is_none() {
        let message =
            format!("must be \"FIRST-LAST\", of 1 to {CONTROLLER_ID_MAX}, the first one not above the last");
        errors.add(&text.span, reader.key("controller_ids"), message);
    }
    range
}

/// The listeners that discovery names for the subsystem; none means all.
pub(super) fn discovered(reader: &Reader<'_>, errors: &mut Errors<'_>) -> Vec<SocketAddr> {
    let Some(list) = reader.strings("discovery_listeners", errors) else { return Vec::new() };
    let mut once = Unique::new();
    if list.value.is_empty() {
        let message = "is empty, so that no host would find it; leave the key out for all listeners";
        errors.add(&list.span, reader.key("discovery_listeners"), message);
    }
    let mut all = Vec::new();
    for (index, text) in list.value.iter().enumerate() {
        let key = format!("{}[{index}]", reader.key("discovery_listeners"));
        if let Some(address) = parsed(text, key.clone(), errors) {
            once.insert(address.value, &address.span, key, errors);
            all.push(address.value);
        }
    }
    all.sort_unstable();
    all
}
