//! Which namespace a command is for.

use anyhow::{Result, bail, ensure};
use ringfab_initiator::Namespace;

use crate::context::Usage;
use crate::quantity::Bytes;

/// Why nothing can be done.
pub(crate) const NO_NAMESPACE: &str = "the subsystem has no namespace; see the target's configuration, or, if the \
                                       address names no subsystem, `ringfab discover`";

/// The one namespace of a list.
///
/// # Errors
/// When there is none, or more than one.
pub fn only_namespace(namespaces: &[Namespace]) -> Result<Namespace> {
    match namespaces {
        [namespace] => Ok(namespace.clone()),
        [] => bail!("{NO_NAMESPACE}"),
        several => {
            let ids: Vec<String> = several.iter().map(|namespace| namespace.nsid.to_string()).collect();
            bail!("the subsystem has several namespaces; choose one with --nsid: {}", ids.join(", "))
        }
    }
}

/// Lets through who named this namespace as the one to overwrite.
///
/// # Errors
/// When it is read only, or `confirmed` does not name it.
pub fn confirm_overwriting(namespace: &Namespace, confirmed: Option<u32>) -> Result<()> {
    ensure!(!namespace.read_only, "namespace {} is read only", namespace.nsid);
    if confirmed == Some(namespace.nsid) {
        return Ok(());
    }
    let (nsid, size) = (namespace.nsid, Bytes(namespace.bytes()));
    let wrong = confirmed.map_or_else(String::new, |wrong| format!(", not with --destroy-data {wrong}"));
    Err(Usage(format!(
        "this overwrites namespace {nsid} ({size}); confirm it with --destroy-data {nsid}{wrong}"
    ))
    .into())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ringfab_initiator::NamespaceIdentity;

    /// A namespace of 2,048 blocks with nothing special about it.
    pub(crate) fn namespace() -> Namespace {
        Namespace {
            nsid: 3,
            blocks: 2048,
            block_bytes: 512,
            identity: NamespaceIdentity::default(),
            read_only: false,
            transfer_blocks_max: 256,
            write_zeroes_blocks_max: 0,
            write_zeroes_deallocates: true,
            compares: true,
            verify_blocks_max: 0,
            discard_blocks_max: 0,
            discard_ranges_max: 0,
            discard_total_blocks_max: u64::MAX,
            reports_allocation: false,
            deallocated_reads_zeroes: true,
            preferred_write_blocks: 1,
        }
    }

    #[test]
    fn nothing_is_overwritten_without_naming_the_namespace() {
        assert!(confirm_overwriting(&namespace(), Some(3)).is_ok());
        let error = confirm_overwriting(&namespace(), None).expect_err("not confirmed");
        assert!(error.is::<Usage>());
        assert_eq!(
            error.to_string(),
            "this overwrites namespace 3 (1 MiB); confirm it with --destroy-data 3"
        );
        assert!(confirm_overwriting(&namespace(), Some(1)).is_err());
        let read_only = Namespace { read_only: true, ..namespace() };
        assert!(confirm_overwriting(&read_only, Some(3)).is_err());
    }
}
