//! What the processor copies.

/// Bytes that were copied from one place of this process's memory to another. The kernel's own copies come on top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopiedBytes {
    /// From and in staging memory.
    pub received: u64,
    /// Into what is sent.
    pub sent: u64,
}
