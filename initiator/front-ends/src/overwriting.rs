//! What is asked before a namespace is overwritten.

use anyhow::{Result, bail, ensure};
use ringfab_base::VisiblePath as _;
use ringfab_initiator::Namespace;
use ringfab_initiator::blocking::Controller;

use crate::context::Usage;
use crate::quantity::Bytes;
use crate::registry;

/// Lets through who named this namespace as the one to overwrite, unless this machine has it mounted.
///
/// # Errors
/// When it is read only, when `confirmed` does not name it, or when it is mounted here by `ringfab mount`.
pub fn confirm_overwriting(
    controller: &Controller,
    namespace: &Namespace,
    confirmed: Option<u32>,
) -> Result<()> {
    confirm(namespace, confirmed)?;
    let nsid = namespace.nsid;
    if let Some(mount) = registry::mounts_of(&controller.info().subsystem, nsid)?.first() {
        let at = mount.facts.directory.clone().unwrap_or_default();
        let at = at.visible();
        bail!(
            "namespace {nsid} is mounted on {at}; writing to it beside its file system would destroy that; \
             `ringfab umount {at}` first"
        );
    }
    Ok(())
}

fn confirm(namespace: &Namespace, confirmed: Option<u32>) -> Result<()> {
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
mod tests {
    use super::*;
    use crate::namespaces::tests::namespace;

    #[test]
    fn nothing_is_overwritten_without_naming_the_namespace() {
        assert!(confirm(&namespace(), Some(3)).is_ok());
        let error = confirm(&namespace(), None).expect_err("not confirmed");
        assert!(error.is::<Usage>());
        assert_eq!(
            error.to_string(),
            "this overwrites namespace 3 (1 MiB); confirm it with --destroy-data 3"
        );
        assert!(confirm(&namespace(), Some(1)).is_err());
        let read_only = Namespace { read_only: true, ..namespace() };
        assert!(confirm(&read_only, Some(3)).is_err());
    }
}
