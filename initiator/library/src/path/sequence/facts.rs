//! What the sequence learns about the controller.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ringfab_fabric::tcp::Psk;
use ringfab_reactor::Time;
use ringfab_spec::CompletionEntry;

use super::steps::SequenceStep;
use crate::error::Cause;
use crate::messages::OpenQueues;
use crate::namespace::{ControllerInfo, Namespace};
use crate::options::ConnectOptions;
use crate::retry::RetryDelays;
use crate::wire::answers;
use crate::wire::data::{AnswerData, Short};

/// Collected while the sequence runs.
#[derive(Debug, Default)]
pub(in crate::path) struct Facts {
    pub(super) cntlid: u16,
    pub(super) capabilities: answers::Capabilities,
    pub(super) version: (u16, u8, u8),
    pub(in crate::path) controller: answers::ControllerFacts,
    limits: answers::NvmLimits,
    /// Whether it tells when its discovery log page changes.
    pub(super) discovery_log_events: bool,
    /// What it says about trying again.
    pub(in crate::path) retry_delays: RetryDelays,
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
}

/// Data of one command at most, whatever the controller allows: a keyed descriptor has 24 bits for it.
const TRANSFER_BYTES_MAX: u32 = 8 << 20;

/// Blocks of one Write Zeroes at most: a target that limits writes counts them, and one with 65,536 blocks of 4 KiB
/// would wait for longer than a command may take.
const WRITE_ZEROES_BYTES_MAX: u32 = 32 << 20;

impl Facts {
    /// Remembers what an answer says. `data` came with it, where the step reads any.
    pub(super) fn learn(
        &mut self,
        step: SequenceStep,
        entry: &CompletionEntry,
        data: AnswerData<'_>,
        queues_wanted: u16,
    ) -> Result<(), Short> {
        let success = entry.status().is_success();
        match step {
            SequenceStep::Connect => self.cntlid = entry.connect_cntlid(),
            SequenceStep::Capabilities => self.capabilities = answers::parse_capabilities(entry.result()),
            SequenceStep::Version => self.version = answers::parse_version(entry.result()),
            SequenceStep::ReadyStatus | SequenceStep::ShutdownStatus => {
                self.last_status = answers::parse_status(entry.result());
            }
            SequenceStep::Identify => {
                self.controller = answers::parse_controller(data)?;
                // Until it knows that we honour them, its delays are none.
                self.retry_delays = RetryDelays { crdt: Default::default(), ..self.controller.retry_delays };
            }
            SequenceStep::EventConfig => {
                self.discovery_log_events = success && self.controller.discovery_log_notices;
            }
            SequenceStep::Limits => {
                self.limits = answers::NvmLimits::default();
                if success {
                    self.limits = answers::parse_nvm_limits(data)?;
                }
            }
            SequenceStep::HostBehavior if success => self.retry_delays = self.controller.retry_delays,
            SequenceStep::QueueCount => self.queues = answers::parse_queue_count(entry).min(queues_wanted),
            _ => {}
        }
        Ok(())
    }

    /// Whether it has delays for another try.
    pub(super) fn has_retry_delays(&self) -> bool {
        !self.controller.retry_delays.crdt[0].is_zero()
    }

    /// Whether to ask a discovery controller to tell when its log page changes.
    pub(super) fn wants_log_events(&self, options: &ConnectOptions) -> bool {
        options.persistent_discovery && self.controller.discovery_log_notices
    }

    /// How many I/O queues there are, and how many entries each has: as both ends can.
    ///
    /// # Errors
    /// There is not one for each engine.
    pub(super) fn decide_queues(&mut self, options: &ConnectOptions, engines: u16) -> Result<(), Cause> {
        if self.queues < engines {
            let queues = self.queues;
            let text =
                format!("the controller allows {queues} I/O queues, too few for {engines} engine threads");
            return Err(Cause::Unsupported(text));
        }
        let supported = self.capabilities.queue_entries_max;
        let commands = self.controller.maxcmd.checked_sub(1).map_or(u32::MAX, |less| u32::from(less) + 1);
        let wanted = u32::from(options.depth_wanted()) + 1;
        self.queue_size = wanted.min(supported).min(commands).clamp(2, 4096) as u16;
        self.in_capsule_bytes_max = self.announced_in_capsule_bytes();
        Ok(())
    }

    /// MDTS in bytes (Base 2.0, figure 275): a power of two of the smallest memory page.
    fn transfer_bytes_max(&self) -> Option<u32> {
        let page_shift = 12 + u32::from(self.capabilities.mpsmin);
        match self.controller.mdts {
            0 => None,
            mdts => Some(1_u32.checked_shl(page_shift + u32::from(mdts)).unwrap_or(u32::MAX)),
        }
    }

    /// In-capsule data of an I/O command. Without an offset in the descriptor there is none (RDMA Transport 1.0,
    /// section 3.2).
    fn announced_in_capsule_bytes(&self) -> u32 {
        let facts = &self.controller;
        if !facts.sgl_offset || facts.icdoff != 0 {
            return 0;
        }
        facts.ioccsz.saturating_mul(16).saturating_sub(64).min(1 << 20)
    }

    /// A namespace from its Identify data; `None` when it is not active.
    pub(super) fn namespace(&self, nsid: u32, data: AnswerData<'_>) -> Result<Option<Namespace>, Cause> {
        let facts = answers::parse_namespace(data);
        let facts = facts.map_err(|short| short.cause(SequenceStep::Namespace(0).command()))?;
        if facts.blocks == 0 {
            return Ok(None);
        }
        self.described(nsid, &facts).map(Some)
    }

    /// A namespace that has blocks.
    fn described(&self, nsid: u32, facts: &answers::NamespaceFacts) -> Result<Namespace, Cause> {
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
        Ok(Namespace {
            nsid,
            blocks: facts.blocks,
            block_bytes,
            identity: facts.identity,
            read_only: facts.read_only,
            transfer_blocks_max,
            write_zeroes_blocks_max: if self.controller.commands.write_zeroes {
                limit(self.limits.wzsl).min(WRITE_ZEROES_BYTES_MAX / block_bytes)
            } else {
                0
            },
            write_zeroes_deallocates: facts.write_zeroes_deallocates,
            compares: self.controller.commands.compare,
            verify_blocks_max: if self.controller.commands.verify { limit(self.limits.vsl) } else { 0 },
            discard_blocks_max: if self.controller.commands.discard {
                or_all(self.limits.dmrsl).min(u32::try_from(discard_total).unwrap_or(u32::MAX))
            } else {
                0
            },
            discard_total_blocks_max: discard_total,
            discard_ranges_max: if self.limits.dmrl == 0 { 256 } else { u32::from(self.limits.dmrl) },
            reports_allocation: self.controller.commands.lba_status && self.limits.allocation,
            deallocated_reads_zeroes: facts.deallocated_reads_zeroes,
            preferred_write_blocks: facts.preferred_write_blocks,
            ana_group: if self.controller.access_states { facts.ana_group } else { 0 },
        })
    }

    /// By what followers connect their queues.
    pub(in crate::path) fn plan(&self, address: SocketAddr, psks: Option<Arc<[Psk]>>) -> OpenQueues {
        OpenQueues {
            attempt: 0,
            address,
            psks,
            cntlid: self.cntlid,
            queues: self.queues,
            queue_size: self.queue_size,
            in_capsule_bytes_max: self.in_capsule_bytes_max,
        }
    }

    /// What the caller may know, when everything is known.
    pub(in crate::path) fn describe(&self, keep_alive: Option<Duration>) -> ControllerInfo {
        let controller = &self.controller;
        ControllerInfo {
            cntlid: self.cntlid,
            subsystem: controller.names.subsystem.clone(),
            serial: controller.names.serial.clone(),
            model: controller.names.model.clone(),
            firmware: controller.names.firmware.clone(),
            version: self.version,
            discovery: controller.discovery,
            discovery_log_events: self.discovery_log_events,
            transfer_bytes_max: self.transfer_bytes_max(),
            volatile_write_cache: controller.volatile_write_cache,
            in_capsule_bytes_max: self.in_capsule_bytes_max,
            queues: self.queues,
            queue_size: self.queue_size,
            keep_alive,
        }
    }
}
