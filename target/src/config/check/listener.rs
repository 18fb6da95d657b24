//! The tables `[[listener]]`.

use std::ops::Range;
use std::time::Duration;

use ringfab_fabric::{ZoneError, ZonedIp};

use super::{Errors, Reader, or, word};
use crate::config::ports::{PortOf, overlap};
use crate::config::{ListenerConfig, ListenerTls, Provider, Transport};
use crate::limits::IN_CAPSULE_BYTES_MAX;

/// The port that IANA gave to NVMe over RDMA and over TCP.
const PORT: u64 = 4420;
/// What is asked for of MPA unless a listener says otherwise.
const CRC: bool = true;
const MPA_REVISION: u8 = 2;

pub(super) fn listeners(root: &Reader<'_>, errors: &mut Errors<'_>) -> Vec<ListenerConfig> {
    let readers = root.tables("listener", errors);
    if readers.is_empty() {
        root.missing(&["listener"], "write at least one [[listener]] with an address");
    }
    let mut known: Vec<(ListenerConfig, Range<usize>)> = Vec::new();
    for reader in readers {
        let span = reader.any("address").map_or_else(|| reader.span().clone(), toml::Spanned::span);
        let key = reader.key("address");
        let Some(listener) = listener(reader, errors) else { continue };
        if let Some((other, first)) = known.iter().find(|(known, _)| excludes(known, &listener)) {
            let line = errors.line(first);
            let message = if other.address == listener.address {
                format!("is the same as in line {line}")
            } else {
                format!("and {} in line {line} cannot both have port {}", other.address.ip(), listener.port)
            };
            errors.add(&span, key, message);
        }
        known.push((listener, span));
    }
    known.into_iter().map(|(listener, _)| listener).collect()
}

/// Whether two listeners cannot be there at the same time, on any machine.
fn excludes(one: &ListenerConfig, other: &ListenerConfig) -> bool {
    let may_be_apart = match (one.port_of(), other.port_of()) {
        (PortOf::Kernel, PortOf::Kernel) => false,
        (PortOf::Kernel, _) | (_, PortOf::Kernel) => true,
        _ => false,
    };
    let [one, other] = [one, other].map(|listener| (&listener.address, listener.port));
    overlap(one, other) && (one.0 == other.0 || !may_be_apart)
}

/// One listener that is in no file.
pub(super) fn one_listener(reader: Reader<'_>, errors: &mut Errors<'_>) -> Option<ListenerConfig> {
    listener(reader, errors)
}

fn listener(reader: Reader<'_>, errors: &mut Errors<'_>) -> Option<ListenerConfig> {
    let address = address(&reader, errors);
    let transports = [Transport::Rdma, Transport::Tcp].map(|one| (one.name(), one));
    let transport = word(&reader, "transport", &transports, errors).unwrap_or_default();
    let (provider, crc, mpa_revision) = match transport {
        Transport::Rdma => of_rdma(&reader, errors),
        Transport::Tcp => {
            refuse_keys_of_rdma(&reader, errors);
            (Provider::default(), CRC, MPA_REVISION)
        }
    };
    let congestion = congestion(&reader, errors);
    let dscp = reader.integer("dscp", 0..=63, errors).map(|dscp| small(dscp.value));
    let user_timeout = seconds(&reader, "user_timeout_s", errors);
    let keep_alive = seconds(&reader, "keep_alive_s", errors);
    let in_capsule_bytes = in_capsule_bytes(&reader, errors);
    let queue_depth_max = small(or(reader.integer("queue_depth_max", 32..=1024, errors), 1024));
    let io_queues_max = small(or(reader.integer("io_queues_max", 1..=128, errors), 128));
    let discovery_only = or(reader.boolean("discovery_only", errors), false);
    let tls = tls(&reader, transport, errors);
    reader.finish(errors);
    let (address, port) = address?;
    Some(ListenerConfig {
        address,
        port,
        transport,
        provider,
        crc,
        mpa_revision,
        congestion,
        dscp,
        user_timeout,
        keep_alive,
        in_capsule_bytes,
        queue_depth_max,
        io_queues_max,
        discovery_only,
        tls,
    })
}

/// TLS is a part of NVMe/TCP; no other transport has it.
fn tls(reader: &Reader<'_>, transport: Transport, errors: &mut Errors<'_>) -> ListenerTls {
    let words = ListenerTls::ALL.map(|one| (one.name(), one));
    let tls = word(reader, "tls", &words, errors).unwrap_or_default();
    if let Some(value) = reader.any("tls").filter(|_| tls != ListenerTls::Off && transport != Transport::Tcp)
    {
        errors.add(&value.span(), reader.key("tls"), "is for transport = \"tcp\" only");
    }
    tls
}

/// Provider, CRCs and the revision of MPA.
fn of_rdma(reader: &Reader<'_>, errors: &mut Errors<'_>) -> (Provider, bool, u8) {
    let provider = provider(reader, errors);
    let crc = or(reader.boolean("crc", errors), CRC);
    let mpa_revision = reader.integer("mpa_revision", 1..=2, errors);
    (provider, crc, mpa_revision.map_or(MPA_REVISION, |revision| small(revision.value)))
}

/// What a listener for TCP would silently do without.
fn refuse_keys_of_rdma(reader: &Reader<'_>, errors: &mut Errors<'_>) {
    for key in ["provider", "crc", "mpa_revision"] {
        if let Some(value) = reader.any(key) {
            errors.add(&value.span(), reader.key(key), "is for transport = \"rdma\" only");
        }
    }
}

fn address(reader: &Reader<'_>, errors: &mut Errors<'_>) -> Option<(ZonedIp, u16)> {
    let port = reader.integer("port", 0..=65535, errors);
    let Some(text) = reader.string("address", errors) else {
        reader.missing(&["address"], "write an IP address, \"0.0.0.0\" or \"[::]\" for all");
        return None;
    };
    let bare = text.value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&text.value);
    let address = match bare.parse::<ZonedIp>() {
        Ok(address) => address,
        Err(why) => {
            let message = match why {
                ZoneError::Address => {
                    format!("is \"{}\", but must be an IP address; the port is a key of its own", text.value)
                }
                why => format!("is \"{}\", which {why}", text.value),
            };
            errors.add(&text.span, reader.key("address"), message);
            return None;
        }
    };
    Some((address, small(or(port, PORT))))
}

fn provider(reader: &Reader<'_>, errors: &mut Errors<'_>) -> Provider {
    let words =
        [Provider::Auto, Provider::Iwarp, Provider::Verbs].map(|provider| (provider.name(), provider));
    let provider = word(reader, "provider", &words, errors).unwrap_or_default();
    if provider == Provider::Verbs && cfg!(not(feature = "verbs")) {
        let message = "is \"verbs\", which this build does not have; write \"iwarp\" or \"auto\"";
        let span = reader.any("provider").map_or_else(|| reader.span().clone(), toml::Spanned::span);
        errors.add(&span, reader.key("provider"), message);
    }
    provider
}

fn seconds(reader: &Reader<'_>, key: &'static str, errors: &mut Errors<'_>) -> Option<Duration> {
    reader.integer(key, 1..=3600, errors).map(|time| Duration::from_secs(time.value))
}

/// The kernel knows algorithms by names of up to 15 characters; whether it has this one is found when listening.
fn congestion(reader: &Reader<'_>, errors: &mut Errors<'_>) -> Option<String> {
    let name = reader.string("congestion", errors)?;
    let plain = name.value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if name.value.is_empty() || name.value.len() > 15 || !plain {
        errors.add(
            &name.span,
            reader.key("congestion"),
            "must be the name of a TCP congestion control algorithm",
        );
        return None;
    }
    Some(name.value)
}

/// Capsules are sized in units of 16 bytes (IOCCSZ), and their data is received into one small buffer.
fn in_capsule_bytes(reader: &Reader<'_>, errors: &mut Errors<'_>) -> u32 {
    let default = 8 << 10;
    let Some(size) = reader.size("in_capsule_bytes", errors) else { return default };
    if size.value % 16 != 0 || size.value > u64::from(IN_CAPSULE_BYTES_MAX) {
        let message = format!("is {}, but must be a multiple of 16 up to {IN_CAPSULE_BYTES_MAX}", size.value);
        errors.add(&size.span, reader.key("in_capsule_bytes"), message);
        return default;
    }
    small(size.value)
}

/// A number whose range was checked.
fn small<T: TryFrom<u64>>(value: u64) -> T {
    T::try_from(value).ok().expect("the range was checked")
}
