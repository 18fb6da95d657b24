//! What the initiator knows of a controller and its namespaces.

use std::ops::Range;

use uuid::Uuid;

/// A range of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// First block.
    pub lba: u64,
    /// Blocks.
    pub nlb: u32,
}

impl BlockRange {
    /// The blocks, by number.
    pub fn blocks(&self) -> Range<u64> {
        self.lba..self.lba.saturating_add(self.nlb.into())
    }
}

/// A namespace as its Identify data describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Namespace {
    /// Its identifier within the subsystem.
    pub nsid: u32,
    /// Size in logical blocks (NSZE).
    pub blocks: u64,
    /// Bytes of a logical block, a power of two from 512 to 65536.
    pub block_bytes: u32,
    /// Who it is, to be compared after a reconnect.
    pub identity: NamespaceIdentity,
    /// Whether it may only be read (NSATTR).
    pub read_only: bool,
    /// The most blocks that one Read, Write or Compare can take here.
    pub transfer_blocks_max: u32,
    /// The most blocks of one Write Zeroes; zero when the controller does not do it.
    pub write_zeroes_blocks_max: u32,
    /// Whether Write Zeroes may deallocate (DLFEAT); where it may not, the engine leaves that out.
    pub write_zeroes_deallocates: bool,
    /// Whether the controller has Compare.
    pub compares: bool,
    /// The most blocks of one Verify; zero when the controller does not do it.
    pub verify_blocks_max: u32,
    /// The most blocks of one range of a Discard; zero when the controller does not do it.
    pub discard_blocks_max: u32,
    /// The most ranges of one Discard.
    pub discard_ranges_max: u32,
    /// The most blocks of all ranges of one Discard.
    pub discard_total_blocks_max: u64,
    /// Whether the controller says which blocks are allocated (Get LBA Status).
    pub reports_allocation: bool,
    /// Whether a deallocated block reads as zeroes (DLFEAT).
    pub deallocated_reads_zeroes: bool,
    /// Preferred granularity and alignment of writes, in blocks (NPWG), at least one.
    pub preferred_write_blocks: u32,
    /// The access group (ANAGRPID): namespaces of one group can be reached by the same paths. Zero where the controller
    /// tells no access states.
    pub ana_group: u32,
}

impl Namespace {
    /// A namespace without identifiers that can be read, written and flushed, and nothing else.
    pub fn new(nsid: u32, blocks: u64, block_bytes: u32) -> Self {
        Self {
            nsid,
            blocks,
            block_bytes,
            identity: NamespaceIdentity::default(),
            read_only: false,
            transfer_blocks_max: 65_536,
            write_zeroes_blocks_max: 0,
            write_zeroes_deallocates: false,
            compares: false,
            verify_blocks_max: 0,
            discard_blocks_max: 0,
            discard_ranges_max: 0,
            discard_total_blocks_max: 0,
            reports_allocation: false,
            deallocated_reads_zeroes: false,
            preferred_write_blocks: 1,
            ana_group: 0,
        }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_bytes))
    }

    /// The most bytes of one Read, Write or Compare.
    pub fn transfer_bytes_max(&self) -> u32 {
        self.transfer_blocks_max.saturating_mul(self.block_bytes)
    }
}

/// The namespace with an identifier, in a list that ascends by them: every I/O asks for one. Where they are numbered
/// from one on without gaps, as mostly, it is found at once.
pub(crate) fn find(namespaces: &[Namespace], nsid: u32) -> Option<&Namespace> {
    let likely = namespaces.get((nsid as usize).wrapping_sub(1));
    likely.filter(|namespace| namespace.nsid == nsid).or_else(|| {
        let index = namespaces.binary_search_by_key(&nsid, |namespace| namespace.nsid).ok()?;
        namespaces.get(index)
    })
}

/// The globally unique identifiers of a namespace; those that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NamespaceIdentity {
    /// Namespace Globally Unique Identifier.
    pub nguid: Option<[u8; 16]>,
    /// IEEE Extended Unique Identifier.
    pub eui64: Option<[u8; 8]>,
    /// Namespace UUID.
    pub uuid: Option<Uuid>,
}

impl NamespaceIdentity {
    /// Whether both can be the same namespace: no identifier that both have differs.
    pub fn agrees_with(&self, other: &Self) -> bool {
        fn agree<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> bool {
            one.as_ref().zip(other.as_ref()).is_none_or(|(one, other)| one == other)
        }
        agree(&self.nguid, &other.nguid) && agree(&self.eui64, &other.eui64) && agree(&self.uuid, &other.uuid)
    }
}

impl NamespaceIdentity {
    /// Whether both are known to be the same namespace: an identifier that both have says so, and none differs.
    pub fn is_known_by(&self, other: &Self) -> bool {
        let has = |one: bool, other: bool| one && other;
        let in_common = has(self.nguid.is_some(), other.nguid.is_some())
            || has(self.eui64.is_some(), other.eui64.is_some())
            || has(self.uuid.is_some(), other.uuid.is_some());
        in_common && self.agrees_with(other)
    }
}

impl std::fmt::Display for NamespaceIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let uuid = self.uuid.map(|uuid| format!("UUID {uuid}"));
        let nguid = self.nguid.map(|nguid| format!("NGUID {}", hex(&nguid)));
        let eui64 = self.eui64.map(|eui64| format!("EUI64 {}", hex(&eui64)));
        let known: Vec<String> = [uuid, nguid, eui64].into_iter().flatten().collect();
        f.write_str(if known.is_empty() { "no identifier" } else { "" })?;
        f.write_str(&known.join(", "))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A controller as its properties and Identify data describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControllerInfo {
    /// Controller identifier.
    pub cntlid: u16,
    /// The subsystem's NQN, as the controller reports it.
    pub subsystem: String,
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// Version: major, minor, tertiary.
    pub version: (u16, u8, u8),
    /// Whether it is a discovery controller.
    pub discovery: bool,
    /// Whether a discovery controller tells when its log page changes: it can, and this host has asked for that.
    pub discovery_log_events: bool,
    /// The most bytes of one command's data (MDTS); `None` when unlimited.
    pub transfer_bytes_max: Option<u32>,
    /// Whether it has a volatile write cache, so that Flush means something.
    pub volatile_write_cache: bool,
    /// In-capsule data of an I/O command, in bytes at most.
    pub in_capsule_bytes_max: u32,
    /// I/O queues connected.
    pub queues: u16,
    /// Entries of each I/O queue's submission queue. One less can be outstanding.
    pub queue_size: u16,
    /// Keep-alive timeout agreed on; `None` when off.
    pub keep_alive: Option<std::time::Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespaces(nsids: &[u32]) -> Vec<Namespace> {
        let identity = NamespaceIdentity::default();
        let plain = |nsid: &u32| Namespace {
            nsid: *nsid,
            blocks: 8,
            block_bytes: 4096,
            identity,
            read_only: false,
            transfer_blocks_max: 1,
            write_zeroes_blocks_max: 0,
            write_zeroes_deallocates: false,
            compares: false,
            verify_blocks_max: 0,
            discard_blocks_max: 0,
            discard_ranges_max: 1,
            discard_total_blocks_max: 0,
            reports_allocation: false,
            deallocated_reads_zeroes: true,
            preferred_write_blocks: 1,
            ana_group: 0,
        };
        nsids.iter().map(plain).collect()
    }

    #[test]
    fn an_identity_is_told_by_all_identifiers_that_it_has() {
        let none = NamespaceIdentity::default();
        let all = NamespaceIdentity { nguid: Some([1; 16]), eui64: Some([2; 8]), uuid: Some(Uuid::max()) };
        assert_eq!(none.to_string(), "no identifier");
        assert_eq!(
            all.to_string(),
            "UUID ffffffff-ffff-ffff-ffff-ffffffffffff, NGUID 01010101010101010101010101010101, EUI64 0202020202020202"
        );
    }

    #[test]
    fn a_namespace_is_found_with_and_without_gaps_before_it_and_none_that_is_not_there() {
        for there in [&[][..], &[1, 2, 3], &[2, 3, 7, 0xffff_fffe], &[1, 3, 4]] {
            let list = namespaces(there);
            for nsid in [0, 1, 2, 3, 4, 5, 7, 8, 0xffff_fffe, 0xffff_ffff] {
                let found = find(&list, nsid).map(|namespace| namespace.nsid);
                assert_eq!(found, there.contains(&nsid).then_some(nsid), "{nsid} in {there:?}");
            }
        }
    }
}
