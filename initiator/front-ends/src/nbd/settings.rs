//! How namespaces are exported.

use anyhow::{Result, ensure};
use ringfab_initiator::Namespace;

use super::export::Export;
use crate::namespaces::{NO_NAMESPACE, only_namespace};

/// The longest name of an export (a string of the protocol).
const NAME_BYTES_MAX: usize = 4096;

/// How namespaces are exported.
#[derive(Clone, Debug)]
pub(crate) struct ExportSettings {
    /// The name of the only export, if it has one of its own.
    pub(crate) name: Option<String>,
    pub(crate) read_only: bool,
    pub(crate) peer: String,
    /// Whether there may be none at first.
    pub(crate) may_be_none: bool,
}

impl ExportSettings {
    /// The exports of namespaces.
    pub(crate) fn exports(&self, namespaces: &[Namespace]) -> Result<Vec<Export>> {
        if let Some(name) = &self.name {
            only_namespace(namespaces)?;
            ensure!(name.len() <= NAME_BYTES_MAX, "the name of an export has {NAME_BYTES_MAX} bytes at most");
        }
        ensure!(self.may_be_none || !namespaces.is_empty(), "{NO_NAMESPACE}");
        Ok(namespaces.iter().map(|namespace| self.export(namespace)).collect())
    }

    /// The export of a namespace that has come; none where the only one has a name of its own.
    pub(crate) fn of_new(&self, namespace: &Namespace) -> Option<Export> {
        self.name.is_none().then(|| self.export(namespace))
    }

    fn export(&self, namespace: &Namespace) -> Export {
        Export {
            name: self.name.clone().unwrap_or_else(|| format!("ns{}", namespace.nsid)),
            description: format!("namespace {} of {}", namespace.nsid, self.peer),
            read_only: self.read_only,
            namespace: namespace.clone(),
            removed: false,
        }
    }
}
