//! NVMe/TCP: the commands of an ordinary host, and hosts that are none.

mod attach;
mod commands;
mod dissect;
mod hostile;
mod replay;
mod reset;
mod slow;
mod tampered;

const MEMORY: &str = "[[subsystem.namespace]]\nmemory = \"64MiB\"\nblock_bytes = 512\n";

const TCP: &str = "transport = \"tcp\"\n";

/// All choices of digests: header, data.
const DIGESTS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];
