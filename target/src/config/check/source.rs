//! What stands behind a namespace: the keys of `[[subsystem.namespace]]` that say so.

use std::ops::Range;
use std::time::Duration;

use ringfab_nbd::AddressError;
use ringfab_rbd::{ImageSpec, SpecError};

use super::process::absolute_path;
use super::subsystem::Once;
use super::{Errors, Reader, or};
use crate::config::reader::At;
use crate::config::{NbdBacking, RbdBacking, Source};
use crate::disk_identity::Sharing;

/// The keys that say how an NBD export is used.
const NBD_KEYS: [&str; 3] = ["write_through", "reconnect_delay_s", "replay_delay_s"];

/// Those of an RBD image.
const RBD_KEYS: [&str; 1] = ["cluster"];

/// The kinds, of which there is exactly one.
const KINDS: [&str; 5] = ["path", "nbd", "rbd", "memory", "null"];

/// What stands behind the namespace of a table.
pub(super) fn source(
    reader: &Reader<'_>,
    block: u32,
    read_only: bool,
    shared: Option<&At<bool>>,
    once: &mut Once<'_>,
    errors: &mut Errors<'_>,
) -> Option<Source> {
    let written = KINDS.map(|key| reader.any(key).map(|value| (key, value.span())));
    let written: Vec<_> = written.into_iter().flatten().collect();
    let direct = direct(reader, errors);
    let sharing = Sharing::new(read_only, shared.is_some_and(|shared| shared.value));
    for (kind, keys) in [("nbd", &NBD_KEYS[..]), ("rbd", &RBD_KEYS[..])] {
        let is_kind = matches!(written.as_slice(), [(one, _)] if *one == kind);
        let own = keys.iter().filter_map(|key| Some((*key, reader.any(key)?.span())));
        for (key, span) in own.filter(|_| !is_kind) {
            errors.add(&span, reader.key(key), format!("has no meaning without {kind}"));
        }
    }
    match written.as_slice() {
        [] => {
            let what = "write one of path, nbd = \"nbd://HOST/EXPORT\", rbd = \"POOL/IMAGE\", \
                        memory = \"1GiB\" or null = \"1TiB\"";
            reader.missing(&KINDS, what);
            None
        }
        [("path", _)] => file(reader, or(direct, true), sharing, once, errors),
        [(key @ ("nbd" | "rbd"), _)] => {
            if let Some(direct) = direct {
                errors.add(&direct.span, reader.key("direct"), format!("has no meaning with {key}"));
            }
            match *key {
                "nbd" => nbd(reader, sharing, once, errors),
                _ => rbd(reader, sharing, once, errors),
            }
        }
        [(key, _)] => {
            if let Some(direct) = direct {
                errors.add(&direct.span, reader.key("direct"), format!("has no meaning with {key}"));
            }
            if let Some(shared) = shared {
                errors.add(&shared.span, reader.key("shared"), format!("has no meaning with {key}"));
            }
            let bytes = whole_blocks(reader, key, block, errors)?;
            Some(if *key == "memory" { Source::Memory(bytes) } else { Source::Null(bytes) })
        }
        [(first, _), (second, span), ..] => {
            errors.add(span, reader.key(second), format!("contradicts {first}; keep one of them"));
            None
        }
    }
}

fn file(
    reader: &Reader<'_>,
    direct: bool,
    sharing: Sharing,
    once: &mut Once<'_>,
    errors: &mut Errors<'_>,
) -> Option<Source> {
    let path = absolute_path(reader, "path", errors)?;
    let span: Range<usize> = reader.any("path").map_or_else(|| reader.span().clone(), toml::Spanned::span);
    once.disk(&path, sharing, (&span, reader.key("path")), errors);
    Some(Source::File { path, direct })
}

/// An export of an NBD server, and the keys that only that has.
fn nbd(
    reader: &Reader<'_>,
    sharing: Sharing,
    once: &mut Once<'_>,
    errors: &mut Errors<'_>,
) -> Option<Source> {
    let write_through = or(reader.boolean("write_through", errors), false);
    let mut delay = |key| {
        let seconds = reader.integer(key, 0..=3600, errors);
        seconds.map_or(NbdBacking::DELAY, |at| Duration::from_secs(at.value))
    };
    let (reconnect_delay, replay_delay) = (delay("reconnect_delay_s"), delay("replay_delay_s"));
    let text = reader.string("nbd", errors)?;
    match text.value.parse() {
        Ok(address) => {
            once.remote(&text, sharing, reader.key("nbd"), errors);
            let backing = NbdBacking { address, write_through, reconnect_delay, replay_delay };
            Some(Source::Nbd(Box::new(backing)))
        }
        Err(error) => {
            errors.add(&text.span, reader.key("nbd"), AddressError::to_string(&error));
            None
        }
    }
}

/// An image of a Ceph cluster. A snapshot is said to be one for reading, since nobody can write to it.
fn rbd(
    reader: &Reader<'_>,
    sharing: Sharing,
    once: &mut Once<'_>,
    errors: &mut Errors<'_>,
) -> Option<Source> {
    let cluster = reader.string("cluster", errors);
    let cluster = cluster.map_or_else(|| RbdBacking::CLUSTER.to_owned(), |cluster| cluster.value);
    let text = reader.string("rbd", errors)?;
    let image: ImageSpec = match text.value.parse() {
        Ok(image) => image,
        Err(error) => {
            errors.add(&text.span, reader.key("rbd"), SpecError::to_string(&error));
            return None;
        }
    };
    if image.snapshot().is_some() && sharing != Sharing::ReadOnly {
        errors.add(
            &text.span,
            reader.key("rbd"),
            "is a snapshot, which nobody can write: add read_only = true",
        );
    }
    let backing = RbdBacking { image, cluster };
    once.remote(&At { value: backing.to_string(), span: text.span }, sharing, reader.key("rbd"), errors);
    Some(Source::Rbd(Box::new(backing)))
}

/// The page cache costs memory and hides errors until a flush: who wants it says so twice.
fn direct(reader: &Reader<'_>, errors: &mut Errors<'_>) -> Option<At<bool>> {
    let direct = reader.boolean("direct", errors);
    let allowed = reader.boolean("allow_page_cache", errors);
    // One that is neither true nor false was noted already.
    let denied = allowed.map_or(reader.any("allow_page_cache").is_none(), |allowed| !allowed.value);
    if let Some(At { value: false, span }) = &direct
        && denied
    {
        let message = "is false, which puts the page cache between; if so meant, add allow_page_cache = true";
        errors.add(span, reader.key("direct"), message);
    }
    direct
}

fn whole_blocks(reader: &Reader<'_>, key: &'static str, block: u32, errors: &mut Errors<'_>) -> Option<u64> {
    let size = reader.size(key, errors)?;
    // The block layer takes offsets as a signed 64-bit number of bytes.
    if size.value == 0 || size.value % u64::from(block) != 0 || i64::try_from(size.value).is_err() {
        let message =
            format!("is {} bytes, but must be a positive multiple of block_bytes = {block}", size.value);
        errors.add(&size.span, reader.key(key), message);
        return None;
    }
    Some(size.value)
}
