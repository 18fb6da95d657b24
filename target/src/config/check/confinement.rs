//! The table `[confinement]`.

use std::path::{Path, PathBuf};

use toml::Spanned;

use super::{Errors, Reader, or};
use crate::config::ConfinementConfig;
use crate::config::reader::integer;

pub(super) fn confinement(reader: Option<Reader<'_>>, errors: &mut Errors<'_>) -> ConfinementConfig {
    let Some(reader) = reader else { return ConfinementConfig::default() };
    let config = ConfinementConfig {
        capabilities: or(reader.boolean("capabilities", errors), true),
        files: or(reader.boolean("files", errors), true),
        network: or(reader.boolean("network", errors), true),
        processes: or(reader.boolean("processes", errors), true),
        system_calls: or(reader.boolean("system_calls", errors), true),
        paths: paths(&reader, errors),
        ports: ports(&reader, "ports", errors),
        connect_ports: ports(&reader, "connect_ports", errors),
    };
    reader.finish(errors);
    config
}

fn paths(reader: &Reader<'_>, errors: &mut Errors<'_>) -> Option<Vec<PathBuf>> {
    let list = reader.strings("paths", errors)?;
    let mut paths = Vec::new();
    for (index, path) in list.value.into_iter().enumerate() {
        let wrong = match Path::new(&path.value) {
            at if !at.is_absolute() => "an absolute path",
            at if at.parent().is_none() => "less than everything; to restrict no files, write files = false",
            _ => {
                paths.push(PathBuf::from(path.value));
                continue;
            }
        };
        let message = format!("is \"{}\", but must be {wrong}", path.value);
        errors.add(&path.span, format!("{}[{index}]", reader.key("paths")), message);
    }
    Some(paths)
}

fn ports(reader: &Reader<'_>, key: &'static str, errors: &mut Errors<'_>) -> Vec<u16> {
    let Some(value) = reader.any(key) else { return Vec::new() };
    let port = |item: &Spanned<toml::de::DeValue<'_>>| {
        let number = integer(item.get_ref()).and_then(|number| u16::try_from(number).ok());
        number.filter(|port| *port > 0)
    };
    let ports = value.get_ref().as_array().and_then(|list| list.iter().map(port).collect());
    ports.unwrap_or_else(|| {
        errors.add(&value.span(), reader.key(key), "must be a list of ports, from 1 to 65535");
        Vec::new()
    })
}
