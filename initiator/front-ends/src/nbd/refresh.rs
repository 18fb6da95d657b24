//! Exports after the namespaces have changed.
//!
//! A namespace that comes is one more export, unless the only export has a name of its own.
//!
//! A target may give the number of a removed namespace to another disk. The new disk is another export with the same
//! name. Clients that connect get the new export. Clients of the old export keep it, and get errors.

use ringfab_initiator::Namespace;

use super::export::{Export, REMOVED};

/// Looks at all namespaces, which ascend. An export that nobody can use any more makes room for another.
pub(super) fn refresh(
    exports: &mut Vec<Export>,
    namespaces: &[Namespace],
    in_use: impl Fn(usize) -> bool,
    new: impl Fn(&Namespace) -> Option<Export>,
) {
    let find = |nsid: u32| {
        let index = namespaces.binary_search_by_key(&nsid, |namespace| namespace.nsid).ok()?;
        namespaces.get(index)
    };
    for export in &mut *exports {
        update(export, find(export.namespace.nsid));
    }
    for index in 0..exports.len() {
        let nsid = exports[index].namespace.nsid;
        let served = |other: &Export| other.namespace.nsid == nsid && !other.removed;
        let Some(namespace) = find(nsid).filter(|_| exports[index].removed) else { continue };
        if exports.iter().any(served) {
            continue;
        }
        log_replaced(&exports[index], namespace);
        let new = Export { namespace: namespace.clone(), removed: false, ..exports[index].clone() };
        put(exports, new, &in_use);
    }
    for namespace in namespaces {
        if exports.iter().any(|export| export.namespace.nsid == namespace.nsid) {
            continue;
        }
        if let Some(new) = new(namespace) {
            tracing::info!(export = new.name, bytes = new.bytes(), "the target has one more namespace");
            put(exports, new, &in_use);
        }
    }
}

/// Puts an export in the place of one that nobody can use any more, or behind the others.
fn put(exports: &mut Vec<Export>, new: Export, in_use: &impl Fn(usize) -> bool) {
    match (0..exports.len()).find(|index| exports[*index].removed && !in_use(*index)) {
        Some(index) => exports[index] = new,
        None => exports.push(new),
    }
}

fn log_replaced(export: &Export, other: &Namespace) {
    let (nsid, old, new) = (other.nsid, export.namespace.identity, other.identity);
    tracing::warn!(
        export = export.name,
        "another disk has the number {nsid} by now: it was {old}, and is {new}. Clients of the old one get errors; \
         those that connect get the new one"
    );
}

/// What has become of an export, whose number is that of `found` now.
fn update(export: &mut Export, found: Option<&Namespace>) {
    let (name, old) = (&export.name, &export.namespace);
    let same = found.filter(|found| found.identity.agrees_with(&old.identity));
    match (export.removed, same, found) {
        (false, None, None) => tracing::warn!(export = name, "{REMOVED}; its clients get errors"),
        (true, Some(_), _) => tracing::warn!(export = name, "the namespace is there again"),
        _ => {}
    }
    export.removed = same.is_none();
    let Some(namespace) = same else { return };
    if namespace.blocks != old.blocks {
        tracing::warn!(export = name, bytes = namespace.bytes(), "the size has changed");
    }
    export.namespace = namespace.clone();
}

#[cfg(test)]
mod tests {
    use super::super::export::tests::export;
    use super::*;
    use ringfab_initiator::NamespaceIdentity;

    fn namespace(nsid: u32, nguid: u8) -> Namespace {
        let identity = NamespaceIdentity { nguid: Some([nguid; 16]), ..NamespaceIdentity::default() };
        let mut namespace = export().namespace;
        (namespace.nsid, namespace.identity) = (nsid, identity);
        namespace
    }

    fn seen(exports: &[Export]) -> Vec<(u8, bool)> {
        exports.iter().map(|one| (one.namespace.identity.nguid.expect("one")[0], one.removed)).collect()
    }

    #[test]
    fn another_disk_under_a_number_is_another_export_of_its_name() {
        let mut exports: Vec<Export> =
            [1, 2].map(|nsid| Export { namespace: namespace(nsid, nsid as u8), ..export() }).to_vec();
        let mut refreshed = |namespaces: &[Namespace], used: &[usize]| {
            refresh(&mut exports, namespaces, |index| used.contains(&index), |_| None);
            seen(&exports)
        };
        assert_eq!(refreshed(&[namespace(2, 2)], &[0]), [(1, true), (2, false)], "removed");
        let both = [namespace(1, 3), namespace(2, 2)];
        assert_eq!(refreshed(&both, &[0]), [(1, true), (2, false), (3, false)], "its number is another's");
        assert_eq!(refreshed(&both, &[0]), [(1, true), (2, false), (3, false)], "once");
        let old = [namespace(1, 1), namespace(2, 2)];
        assert_eq!(refreshed(&old, &[0, 2]), [(1, false), (2, false), (3, true)], "the old one again");
        assert_eq!(refreshed(&[namespace(2, 4)], &[0]), [(1, true), (4, false), (3, true)], "nobody used it");
    }

    #[test]
    fn a_namespace_that_comes_is_one_more_export() {
        let mut exports = Vec::new();
        let mut refreshed = |namespaces: &[Namespace]| {
            refresh(
                &mut exports,
                namespaces,
                |_| false,
                |namespace| Some(Export { namespace: namespace.clone(), ..export() }),
            );
            seen(&exports)
        };
        assert_eq!(refreshed(&[namespace(2, 2)]), [(2, false)]);
        assert_eq!(refreshed(&[namespace(1, 1), namespace(2, 2)]), [(2, false), (1, false)]);
        assert_eq!(refreshed(&[namespace(1, 1)]), [(2, true), (1, false)]);
        assert_eq!(
            refreshed(&[namespace(1, 1), namespace(3, 3)]),
            [(3, false), (1, false)],
            "in a free place"
        );
    }
}
