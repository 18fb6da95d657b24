//! The tables `[discovery]` and `[[discovery.referral]]`.

use std::net::IpAddr;

use ringfab_spec::nqn::DISCOVERY_NQN;

use super::{Errors, REQUIRED, Reader, Unique, or, word};
use crate::config::{DiscoveryConfig, Referral, SubsystemConfig, Transport};
use crate::nqn::check_nqn;

/// The port that IANA gave to NVMe discovery.
const PORT: u64 = 8009;

/// More than a host would follow.
const REFERRALS_MAX: usize = 64;

pub(super) fn discovery(
    reader: Option<Reader<'_>>,
    subsystems: &[SubsystemConfig],
    errors: &mut Errors<'_>,
) -> DiscoveryConfig {
    let Some(reader) = reader else { return DiscoveryConfig::default() };
    let nqn = nqn(&reader, errors);
    if let Some(nqn) = nqn.as_ref().filter(|nqn| subsystems.iter().any(|one| one.nqn == **nqn)) {
        errors.add(reader.span(), reader.key("nqn"), format!("is {nqn}, which a subsystem has already"));
    }
    let requires_authentication = word(&reader, "authentication", &REQUIRED, errors).unwrap_or(false);
    let mdns = or(reader.boolean("mdns", errors), false);
    let mut places = Unique::new();
    let tables = reader.tables("referral", errors);
    if tables.len() > REFERRALS_MAX {
        errors.add(reader.span(), reader.key("referral"), format!("has more than {REFERRALS_MAX} entries"));
    }
    let referrals = tables.into_iter().filter_map(|table| referral(table, &mut places, errors)).collect();
    reader.finish(errors);
    DiscoveryConfig { nqn, requires_authentication, referrals, mdns }
}

/// A name of its own: the one that all have is no such name.
fn nqn(reader: &Reader<'_>, errors: &mut Errors<'_>) -> Option<String> {
    let nqn = reader.string("nqn", errors)?;
    if let Err(message) = check_nqn(&nqn.value) {
        errors.add(&nqn.span, reader.key("nqn"), message);
    } else if nqn.value == DISCOVERY_NQN {
        errors.add(
            &nqn.span,
            reader.key("nqn"),
            "is the name of all discovery subsystems; leave the key out",
        );
    }
    Some(nqn.value)
}

fn referral(
    reader: Reader<'_>,
    places: &mut Unique<(&'static str, IpAddr, u64)>,
    errors: &mut Errors<'_>,
) -> Option<Referral> {
    let transports = [Transport::Rdma, Transport::Tcp].map(|one| (one.name(), one));
    let transport = word(&reader, "transport", &transports, errors).unwrap_or(Transport::Tcp);
    let port = or(reader.integer("port", 1..=65535, errors), PORT);
    let nqn = nqn(&reader, errors);
    let text = reader.string("address", errors);
    let address = text.as_ref().and_then(|text| {
        let bare =
            text.value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&text.value);
        let address: Option<IpAddr> = bare.parse().ok().filter(|address: &IpAddr| !address.is_unspecified());
        if address.is_none() {
            let message = format!("is \"{}\", but must be the IP address of another machine", text.value);
            errors.add(&text.span, reader.key("address"), message);
        }
        places.insert((transport.name(), address?, port), &text.span, reader.key("address"), errors);
        address
    });
    if text.is_none() {
        reader.missing(&["address"], "write the IP address of the other discovery subsystem");
    }
    reader.finish(errors);
    Some(Referral { transport, address: address?, port: u16::try_from(port).ok()?, nqn })
}
