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

    /// A namespace of 2,048 blocks with nothing special about it.
    pub(crate) fn namespace() -> Namespace {
        let mut namespace = Namespace::new(3, 2048, 512);
        namespace.transfer_blocks_max = 256;
        namespace
    }
}
