//! What the sequence learns about the controller, until it is complete.

use ringfab_reactor::Time;

use super::Path;
use crate::error::Cause;
use crate::namespace::{ControllerInfo, Namespace};
use crate::wire::answers;

/// Collected while the sequence runs.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) cntlid: u16,
    pub(super) capabilities: answers::Capabilities,
    pub(super) version: (u16, u8, u8),
    pub(super) controller: answers::ControllerFacts,
    pub(super) limits: answers::NvmLimits,
    /// CSTS as last seen.
    pub(super) last_status: answers::ControllerStatus,
    /// When the controller must be ready.
    pub(super) ready_until: Time,
    /// I/O queues of all engines.
    pub(super) queues: u16,
    /// Entries of each.
    pub(super) queue_size: u16,
    /// In-capsule data of an I/O command.
    pub(super) in_capsule_bytes_max: u32,
    pub(super) list: Vec<u32>,
    pub(super) namespaces: Vec<Namespace>,
}

/// Data of one command at most, whatever the controller allows: a keyed descriptor has 24 bits for it.
const TRANSFER_BYTES_MAX: u32 = 8 << 20;
/// Namespaces at most.
pub(super) const NAMESPACES_MAX: usize = 4096;

impl Facts {
    /// MDTS in bytes (Base 2.0, figure 275): a power of two of the smallest memory page.
    pub(super) fn transfer_bytes_max(&self) -> Option<u32> {
        let page_shift = 12 + u32::from(self.capabilities.mpsmin);
        match self.controller.mdts {
            0 => None,
            mdts => Some(1_u32.checked_shl(page_shift + u32::from(mdts)).unwrap_or(u32::MAX)),
        }
    }

    /// In-capsule data of an I/O command. Without an offset in the descriptor there is none (RDMA Transport 1.0, section 3.2).
    pub(super) fn announced_in_capsule_bytes(&self) -> u32 {
        let facts = &self.controller;
        if !facts.sgl_offset || facts.icdoff != 0 {
            return 0;
        }
        facts.ioccsz.saturating_mul(16).saturating_sub(64).min(1 << 20)
    }

    /// A namespace from its Identify data; `None` when it is not active.
    pub(super) fn namespace(&self, nsid: u32, data: &[u8]) -> Result<Option<Namespace>, Cause> {
        let facts = answers::parse_namespace(data);
        if facts.blocks == 0 {
            return Ok(None);
        }
        if !(9..=16).contains(&facts.block_shift) || facts.metadata_bytes != 0 {
            let format = format!(
                "blocks of 2^{} bytes with {} bytes of metadata",
                facts.block_shift, facts.metadata_bytes
            );
            return Err(Cause::Unsupported(format!("namespace {nsid} has {format}, which is not supported")));
        }
        let block_bytes = 1_u32 << facts.block_shift;
        let transfer =
            self.transfer_bytes_max().map_or(TRANSFER_BYTES_MAX, |max| max.min(TRANSFER_BYTES_MAX));
        let page_shift = 12 + u32::from(self.capabilities.mpsmin);
        let transfer_blocks_max = (transfer / block_bytes).clamp(1, 65_536);
        let limit = |exponent: u8| match exponent {
            // A controller that tells no limits at all may have that of transfers here, too; Linux is as careful.
            0 if !self.limits.told => transfer_blocks_max,
            0 => 65_536,
            _ => ((1_u64 << (page_shift + u32::from(exponent)).min(40)) / u64::from(block_bytes)).min(65_536)
                as u32,
        };
        let discard_total = if self.limits.dmsl == 0 { u64::MAX } else { self.limits.dmsl };
        let or_all = |limit: u32| if limit == 0 { u32::MAX } else { limit };
        Ok(Some(Namespace {
            nsid,
            blocks: facts.blocks,
            block_bytes,
            identity: facts.identity,
            read_only: facts.read_only,
            transfer_blocks_max,
            write_zeroes_blocks_max: if self.controller.write_zeroes { limit(self.limits.wzsl) } else { 0 },
            write_zeroes_deallocates: facts.write_zeroes_deallocates,
            compares: self.controller.compare,
            verify_blocks_max: if self.controller.verify { limit(self.limits.vsl) } else { 0 },
            discard_blocks_max: if self.controller.discard {
                or_all(self.limits.dmrsl).min(u32::try_from(discard_total).unwrap_or(u32::MAX))
            } else {
                0
            },
            discard_total_blocks_max: discard_total,
            discard_ranges_max: if self.limits.dmrl == 0 { 256 } else { u32::from(self.limits.dmrl) },
            preferred_write_blocks: facts.preferred_write_blocks,
        }))
    }
}

impl Path {
    /// What the caller may know, when everything is.
    pub(super) fn describe(&self) -> ControllerInfo {
        let facts = &self.sequence.facts;
        let controller = &facts.controller;
        ControllerInfo {
            cntlid: facts.cntlid,
            subsystem: controller.subsystem.clone(),
            serial: controller.serial.clone(),
            model: controller.model.clone(),
            firmware: controller.firmware.clone(),
            version: facts.version,
            discovery: controller.discovery,
            transfer_bytes_max: facts.transfer_bytes_max(),
            volatile_write_cache: controller.volatile_write_cache,
            in_capsule_bytes_max: facts.in_capsule_bytes_max,
            queues: facts.queues,
            queue_size: facts.queue_size,
            keep_alive: self.keep_alive.interval.map(|interval| interval * 2),
        }
    }
}
