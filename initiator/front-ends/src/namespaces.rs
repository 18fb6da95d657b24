//! Which namespace a command is for.

use anyhow::{Result, bail};
use ringfab_initiator::Namespace;

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
            ana_group: 0,
        }
    }
}
