//! What commands and controllers may ask for at most. Identify tells hosts of most of these.

/// Bytes that one command may transfer: 2^8 units of the smallest page, as Identify says in MDTS.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// The largest data of an admin command, in bytes.
pub const ADMIN_DATA_BYTES_MAX: u32 = TRANSFER_BYTES_MAX;

/// The most bytes of data in a command capsule that a listener can allow.
pub const IN_CAPSULE_BYTES_MAX: u32 = 64 << 10;

/// Bytes of a fused Compare and Write: what a command's capsule can carry at most.
pub(crate) const FUSED_BYTES_MAX: u32 = IN_CAPSULE_BYTES_MAX;

/// Source ranges of a Copy (MSRC), bytes of one of them (MSSRL) and of all together (MCL).
pub(crate) const COPY_RANGES_MAX: u16 = 128;
pub(crate) const COPY_RANGE_BYTES_MAX: u32 = TRANSFER_BYTES_MAX;
pub(crate) const COPY_BYTES_MAX: u32 = 16 << 20;

/// Bytes that a Copy moves at a time.
pub(crate) const COPY_PIECE_BYTES: u32 = FUSED_BYTES_MAX;

/// Recommended ranges of a Dataset Management command (DMRL, which cannot say 256), blocks of one (DMRSL) and of all
/// (DMSL). Hosts that do not look at them send more, Linux before 5.13 for one.
pub(crate) const DSM_RANGES_MAX: u16 = 255;
pub(crate) const DSM_RANGE_BLOCKS_MAX: u32 = 4 << 20;
pub(crate) const DSM_BLOCKS_MAX: u64 = DSM_RANGES_MAX as u64 * DSM_RANGE_BLOCKS_MAX as u64;

/// The largest namespace identifier; small enough for tables that need no search on the data path.
pub const NSID_MAX: u32 = 4096;

/// The largest controller identifier that is given out; those above are reserved (Base 2.0, section 3.1.3).
pub const CONTROLLER_ID_MAX: u16 = 0xffef;

/// The value of a namespace identifier that means all of them.
pub const NSID_BROADCAST: u32 = u32::MAX;

/// The most subsystems; each has a row in the tables of the cores.
pub const SUBSYSTEMS_MAX: usize = 4096;
