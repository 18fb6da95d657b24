//! What the process gives up once it has started.

use std::path::PathBuf;

/// Ports that listeners may have without being configured: those that IANA gave to NVMe over fabrics and to discovery.
pub const USUAL_PORTS: [u16; 2] = [4420, 8009];

/// Which parts of the confinement are wanted, and what stays in reach for later changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfinementConfig {
    /// Whether capabilities go that it does not need.
    pub capabilities: bool,
    /// Whether files go that it does not need.
    pub files: bool,
    /// Whether TCP ports go that it does not need, to listen on and to connect to.
    pub network: bool,
    /// Whether other processes are out of its reach.
    pub processes: bool,
    /// Whether system calls go that it does not need.
    pub system_calls: bool,
    /// Files that may be disks, and folders with such files, beside those that are configured. None for the folders of
    /// these.
    pub paths: Option<Vec<PathBuf>>,
    /// Ports that listeners may have, beside those that are configured and [`USUAL_PORTS`].
    pub ports: Vec<u16>,
    /// TCP ports of NBD servers that may be added later, beside those that are configured.
    pub connect_ports: Vec<u16>,
}

impl Default for ConfinementConfig {
    fn default() -> Self {
        Self {
            capabilities: true,
            files: true,
            network: true,
            processes: true,
            system_calls: true,
            paths: None,
            ports: Vec::new(),
            connect_ports: Vec::new(),
        }
    }
}

impl ConfinementConfig {
    /// The parts that are off, by their names.
    pub fn off(&self) -> impl Iterator<Item = &'static str> {
        let parts = [
            ("capabilities", self.capabilities),
            ("files", self.files),
            ("network", self.network),
            ("processes", self.processes),
            ("system_calls", self.system_calls),
        ];
        parts.into_iter().filter_map(|(name, on)| (!on).then_some(name))
    }
}
