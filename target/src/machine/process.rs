//! Who a process is.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::sys::socket::{getsockopt, sockopt};

/// The process that listens on a control socket.
pub(super) fn serving_process(socket: &Path) -> Option<u32> {
    let stream = UnixStream::connect(socket).ok()?;
    let peer = getsockopt(&stream, sockopt::PeerCredentials).ok()?;
    u32::try_from(peer.pid()).ok()
}

/// A process as people know it.
pub(super) fn described(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm"));
    name.map_or_else(|_| format!("process {process}"), |name| format!("process {process} ({})", name.trim()))
}
