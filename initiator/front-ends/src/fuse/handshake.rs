//! What the kernel and we agree on when it mounts.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{InitFlags, KernelConfig};

use super::ring::PAYLOAD_BYTES;

/// The longest write of the kernel at once by `/dev/fuse`; by the channel it is the payload of an entry.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Asynchronous requests that the kernel may have outstanding.
pub(super) const BACKGROUND_MAX: u16 = 128;

/// What is offered, and whether the kernel took it.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    channel_offered: bool,
    channel_agreed: AtomicBool,
}

impl Handshake {
    /// With or without the io_uring channel.
    pub(super) fn new(channel_offered: bool) -> Self {
        Self { channel_offered, channel_agreed: AtomicBool::new(false) }
    }

    /// Whether the kernel agreed on the channel. It sends nothing then until the channel is registered.
    pub(super) fn channel_agreed(&self) -> bool {
        self.channel_agreed.load(Ordering::Acquire)
    }

    /// Answers the kernel's offer. Where its limits are lower, its own hold.
    pub(super) fn agree(&self, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        // Opening with O_TRUNC is told apart from truncating, since only that is harmless. Shared mappings are
        // possible in spite of direct I/O: the kernel then keeps mapped pages, reads and writes in step.
        let useful =
            InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_ATOMIC_O_TRUNC | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        let mut wanted = useful & offered;
        let channel = self.channel_offered && offered.contains(InitFlags::FUSE_OVER_IO_URING);
        let mut most = WRITE_BYTES_MAX;
        if channel {
            wanted |= InitFlags::FUSE_OVER_IO_URING;
            most = PAYLOAD_BYTES as u32;
            // The kernel may ask for as much as it reads ahead, and an entry must hold that, too.
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_write(most);
        let _ = config.set_max_background(BACKGROUND_MAX);
        self.channel_agreed.store(channel, Ordering::Release);
        config.add_capabilities(wanted).map_err(|_| io::ErrorKind::Unsupported.into())
    }
}
