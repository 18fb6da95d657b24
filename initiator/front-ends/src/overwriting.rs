//! What is asked before a namespace is overwritten.

use anyhow::{Result, bail, ensure};
use ringfab_base::shell_quoted;
use ringfab_initiator::Namespace;
use ringfab_initiator::blocking::Controller;

use crate::context::Usage;
use crate::quantity::Bytes;
use crate::registry::{self, Facts, Standing};

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
    match registry::mounts_of(&controller.info().subsystem, nsid, |_| true)?.first() {
        Some((mount, standing)) => bail!("{}", refusal(nsid, &mount.facts, standing)),
        None => Ok(()),
    }
}

/// Why nothing may write to a namespace, and what to do.
fn refusal(nsid: u32, facts: &Facts, standing: &Standing) -> String {
    let so = standing.of_namespace(nsid, facts);
    let destroys = "writing to it beside its file system would destroy that";
    match standing {
        Standing::Mounted(_) => {
            let at = standing.place(facts).to_string_lossy().into_owned();
            format!("{so}; {destroys}; `ringfab umount {}` first", shell_quoted(&at))
        }
        _ => format!("{so}; {destroys}"),
    }
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
        let mut read_only = namespace();
        read_only.read_only = true;
        assert!(confirm(&read_only, Some(3)).is_err());
    }
}
