//! The tables `[target]`, `[memory]`, `[control]` and `[metrics]`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfab_process::log::{Format, check_filter};
use ringfab_reactor::SPIN_DEFAULT;
use toml::Spanned;
use toml::de::DeValue;

use super::{Errors, Reader, or};
use crate::config::reader::integer;
use crate::config::{ControlConfig, MemoryConfig, MetricsConfig, TargetConfig, available_cores};

const STATE_DIR: &str = "/var/lib/ringfab";
/// The largest Compare holds 16 of them and the source of zeroes one more. A command that needs more buffers than there
/// are would wait for ever, and all others behind it.
const LARGE_BUFFERS_MIN: u64 = 32;

/// What the kernel takes as the path of a Unix socket (`sun_path` less its NUL).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The largest pool of a core, so that a slip of the keyboard does not take the machine's memory.
const POOL_BYTES_MAX: u64 = 16 << 30;

pub(super) fn target(reader: Option<Reader<'_>>, errors: &mut Errors<'_>) -> TargetConfig {
    let mut config = TargetConfig {
        cores: available_cores(),
        state_dir: PathBuf::from(STATE_DIR),
        drain_timeout: Duration::from_secs(30),
        spin: SPIN_DEFAULT,
        log: "info".to_owned(),
        log_format: Format::Auto,
    };
    let Some(reader) = reader else { return config };
    if let Some(value) = reader.any("cores") {
        cores(&reader, value, &mut config.cores, errors);
    }
    if let Some(path) = absolute_path(&reader, "state_dir", errors) {
        config.state_dir = path;
    }
    let drain_timeout_s = or(reader.integer("drain_timeout_s", 0..=3600, errors), 30);
    config.drain_timeout = Duration::from_secs(drain_timeout_s);
    let spin_us = reader.integer("spin_us", 0..=1_000_000, errors);
    config.spin = spin_us.map_or(SPIN_DEFAULT, |spin_us| Duration::from_micros(spin_us.value));
    if let Some(filter) = reader.string("log", errors) {
        if let Err(error) = check_filter(&filter.value) {
            errors.add(&filter.span, reader.key("log"), error.to_string());
        }
        config.log = filter.value;
    }
    if let Some(format) = reader.string("log_format", errors) {
        match format.value.parse() {
            Ok(format) => config.log_format = format,
            Err(why) => errors.add(&format.span, reader.key("log_format"), why),
        }
    }
    reader.finish(errors);
    config
}

pub(super) fn memory(reader: Option<Reader<'_>>, errors: &mut Errors<'_>) -> MemoryConfig {
    let mut config = MemoryConfig {
        small_buffers: 1024,
        small_buffer_bytes: 8 << 10,
        large_buffers: 128,
        large_buffer_bytes: 128 << 10,
    };
    let Some(reader) = reader else { return config };
    config.small_buffers = count(&reader, "small_buffers", config.small_buffers, 16, errors);
    config.small_buffer_bytes =
        buffer_bytes(&reader, "small_buffer_bytes", config.small_buffer_bytes, 4 << 10, errors);
    config.large_buffers = count(&reader, "large_buffers", config.large_buffers, LARGE_BUFFERS_MIN, errors);
    config.large_buffer_bytes =
        buffer_bytes(&reader, "large_buffer_bytes", config.large_buffer_bytes, 128 << 10, errors);
    if config.large_buffer_bytes <= config.small_buffer_bytes {
        let message = "must be larger than small_buffer_bytes";
        errors.add(reader.span(), reader.key("large_buffer_bytes"), message);
    }
    let bytes: u64 = config.classes().iter().map(|class| (class.buffer_bytes * class.count) as u64).sum();
    if bytes > POOL_BYTES_MAX {
        let message = format!("asks for {} MiB per core, but at most {}", bytes >> 20, POOL_BYTES_MAX >> 20);
        errors.add(reader.span(), "memory", message);
    }
    reader.finish(errors);
    config
}

pub(super) fn control(reader: Reader<'_>, errors: &mut Errors<'_>) -> ControlConfig {
    let mut config = ControlConfig::default();
    config.enabled = or(reader.boolean("enabled", errors), config.enabled);
    if let Some(path) = absolute_path(&reader, "socket", errors) {
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            let span = reader.any("socket").map_or_else(|| reader.span().clone(), Spanned::span);
            let message = format!(
                "has {} bytes, but the path of a socket has at most {SOCKET_PATH_BYTES_MAX}",
                path.as_os_str().len()
            );
            errors.add(&span, reader.key("socket"), message);
        }
        config.socket = path;
    }
    if let Some(mode) = reader.string("mode", errors) {
        match u32::from_str_radix(&mode.value, 8) {
            // Nobody executes a socket, and its owner always may use it.
            Ok(bits) if bits & !0o666 == 0 && bits & 0o600 == 0o600 => config.mode = bits,
            _ => {
                let message =
                    format!("is \"{}\", but must be from \"0600\" to \"0666\", in octal", mode.value);
                errors.add(&mode.span, reader.key("mode"), message);
            }
        }
    }
    config.group = reader.string("group", errors).map(|group| group.value);
    reader.finish(errors);
    config
}

pub(super) fn metrics(reader: Reader<'_>, errors: &mut Errors<'_>) -> MetricsConfig {
    let mut address = None;
    if let Some(text) = reader.string("address", errors) {
        address = text.value.parse::<SocketAddr>().ok();
        if address.is_none() {
            let message =
                format!("is \"{}\", but must be like \"127.0.0.1:9420\" or \"[::1]:9420\"", text.value);
            errors.add(&text.span, reader.key("address"), message);
        }
    }
    let file = absolute_path(&reader, "file", errors);
    let file_interval_s = or(reader.integer("file_interval_s", 1..=3600, errors), 15);
    let queues = or(reader.boolean("queues", errors), false);
    if reader.any("address").is_none() && reader.any("file").is_none() {
        reader.missing(&["address", "file"], "metrics have an address, a file, or both");
    }
    reader.finish(errors);
    MetricsConfig { address, file, file_interval: Duration::from_secs(file_interval_s), queues }
}

/// A path from the root, because a service's working directory is nobody's business.
pub(super) fn absolute_path(
    reader: &Reader<'_>,
    key: &'static str,
    errors: &mut Errors<'_>,
) -> Option<PathBuf> {
    let path = reader.string(key, errors)?;
    let has_nul = path.value.contains('\0');
    if Path::new(&path.value).is_absolute() && !has_nul {
        return Some(PathBuf::from(path.value));
    }
    let what = if has_nul { "a path without NUL" } else { "an absolute path" };
    let message = format!("is \"{}\", but must be {what}", path.value.escape_debug());
    errors.add(&path.span, reader.key(key), message);
    None
}

/// How many processors, or which.
fn cores(reader: &Reader<'_>, value: &Spanned<DeValue<'_>>, cores: &mut Vec<usize>, errors: &mut Errors<'_>) {
    let available = std::mem::take(cores);
    let chosen = match value.get_ref() {
        DeValue::Array(list) => listed(list.iter().map(Spanned::get_ref), &available),
        other => first(integer(other), &available),
    };
    match chosen {
        Ok(chosen) => *cores = chosen,
        Err(message) => errors.add(&value.span(), reader.key("cores"), message),
    }
}

fn first(count: Option<i128>, available: &[usize]) -> Result<Vec<usize>, String> {
    let count = count.ok_or("must be a number of processors or a list of them")?;
    match usize::try_from(count) {
        Ok(count) if (1..=available.len()).contains(&count) => Ok(available[..count].to_vec()),
        _ => Err(format!("is {count}, but this process may run on {} processors", available.len())),
    }
}

fn listed<'a>(
    list: impl Iterator<Item = &'a DeValue<'a>>,
    available: &[usize],
) -> Result<Vec<usize>, String> {
    let mut chosen = Vec::new();
    for item in list {
        let number = integer(item).ok_or("must be a list of processor numbers")?;
        let core = usize::try_from(number).ok().filter(|core| available.contains(core));
        let core = core
            .ok_or_else(|| format!("names processor {number}, but this process may run on {available:?}"))?;
        if chosen.contains(&core) {
            return Err(format!("names processor {core} twice"));
        }
        chosen.push(core);
    }
    if chosen.is_empty() { Err("must name at least one processor".to_owned()) } else { Ok(chosen) }
}

fn count(reader: &Reader<'_>, key: &'static str, default: usize, min: u64, errors: &mut Errors<'_>) -> usize {
    let value = or(reader.integer(key, min..=1 << 20, errors), default as u64);
    usize::try_from(value).expect("bounded above")
}

/// A power of two of at least `min` bytes and at most 1 MiB, the largest transfer of a command.
fn buffer_bytes(
    reader: &Reader<'_>,
    key: &'static str,
    default: usize,
    min: u64,
    errors: &mut Errors<'_>,
) -> usize {
    let Some(size) = reader.size(key, errors) else { return default };
    if !size.value.is_power_of_two() || !(min..=1 << 20).contains(&size.value) {
        let message = format!("is {}, but must be a power of two from {min} to 1048576", size.value);
        errors.add(&size.span, reader.key(key), message);
        return default;
    }
    usize::try_from(size.value).expect("bounded above")
}
