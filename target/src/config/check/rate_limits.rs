//! The keys `limits` and `host_limits`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Errors, Reader, Unique};
use crate::config::rate_limits::{NamespaceLimits, RateLimits};
use crate::config::reader::At;
use crate::nqn::check_host_nqn;

/// Commands in a second: more than any target does.
const IOPS: RangeInclusive<u64> = 1..=1_000_000_000;

/// Bytes in a second, a tebibyte at most.
const BYTES_PER_S: RangeInclusive<u64> = 1..=1 << 40;

/// Milliseconds of a burst.
const BURST_MS: RangeInclusive<u64> = 1..=60_000;

/// `limits` and `host_limits` of a namespace.
pub(super) fn of_namespace(reader: &Reader<'_>, errors: &mut Errors<'_>) -> NamespaceLimits {
    let mut names = Unique::new();
    let mut hosts = BTreeMap::new();
    for table in reader.tables("host_limits", errors) {
        let nqn = host_nqn(&table, "host", &mut names, errors);
        let limits = limits(&table, errors);
        if limits.is_unlimited() {
            table.missing(
                &["read_iops", "write_iops", "read_bytes_per_s", "write_bytes_per_s"],
                "write a limit",
            );
        }
        table.finish(errors);
        hosts.insert(nqn, limits);
    }
    NamespaceLimits { all: limits_of(reader, errors), hosts }
}

pub(super) fn host_nqn(
    reader: &Reader<'_>,
    key: &'static str,
    names: &mut Unique<String>,
    errors: &mut Errors<'_>,
) -> String {
    let Some(At { value, span }) = reader.string(key, errors) else {
        match key {
            "host" => reader.missing(&["host"], "write the NQN of a host"),
            _ => reader.missing(&["nqn"], "write the NQN of the host"),
        }
        return String::new();
    };
    match check_host_nqn(&value) {
        Err(message) => errors.add(&span, reader.key(key), message),
        Ok(()) => names.insert(value.clone(), &span, reader.key(key), errors),
    }
    value
}

/// The key `limits`.
pub(super) fn limits_of(reader: &Reader<'_>, errors: &mut Errors<'_>) -> RateLimits {
    let table = reader.table("limits", errors);
    table.map_or_else(RateLimits::default, |table| one_table(table, errors))
}

/// A table of limits alone.
pub(super) fn one_table(reader: Reader<'_>, errors: &mut Errors<'_>) -> RateLimits {
    let limits = limits(&reader, errors);
    reader.finish(errors);
    limits
}

fn limits(reader: &Reader<'_>, errors: &mut Errors<'_>) -> RateLimits {
    let mut iops = |key| reader.integer(key, IOPS, errors).map(|at| at.value);
    let (read_iops, write_iops) = (iops("read_iops"), iops("write_iops"));
    let mut bytes_per_s = |key| {
        let At { value, span } = reader.size(key, errors)?;
        if !BYTES_PER_S.contains(&value) {
            errors.add(&span, reader.key(key), format!("is {value} bytes, but must be from 1 to 1TiB"));
        }
        Some(value)
    };
    let (read_bytes_per_s, write_bytes_per_s) =
        (bytes_per_s("read_bytes_per_s"), bytes_per_s("write_bytes_per_s"));
    let mut limits =
        RateLimits { read_iops, write_iops, read_bytes_per_s, write_bytes_per_s, ..RateLimits::default() };
    if let Some(At { value, span }) = reader.integer("burst_ms", BURST_MS, errors) {
        if limits.is_unlimited() {
            errors.add(&span, reader.key("burst_ms"), "has no meaning without a limit");
        } else {
            limits.burst = Duration::from_millis(value);
        }
    }
    limits
}
