//! What the queues of a core share: its ring, its transports, its disks and its buffers, the requests that wait for
//! them, and the way to the queues of other cores.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`hosts`] | what each host holds of the core's buffers, and its requests that wait for more |
//! | [`disks`] | the core's own disk of each namespace, and the table of namespaces |
//! | [`claims`], [`scope`] | claims, and what they are about; `claiming` passes them from core to core |
//! | [`held_back`] | requests that wait for a disk that does not answer |
//! | [`operations`] | operations of disks under way |
//! | [`flushes`] | flushes that the control side asks for; `flushing` starts and ends them |
//! | [`limited`] | commands that wait because a limit has been reached |
//! | [`turns`] | whose command is next, while several hosts are served |
//! | [`states`] | how many requests are in each state, and for how long |
//! | [`owner`] | whose a completion of the ring is |
//! | [`messages`] | messages from the queues of one core to those of another |

mod claiming;
pub(crate) mod claims;
pub(crate) mod disks;
pub(crate) mod flushes;
mod flushing;
pub(crate) mod held_back;
pub(crate) mod hosts;
pub(crate) mod limited;
pub(crate) mod messages;
pub(crate) mod operations;
pub(crate) mod owner;
mod request_id;
pub(crate) mod scope;
pub(crate) mod states;
pub(crate) mod turns;

use std::sync::Arc;

use ringfab_block::Shared;
use ringfab_fabric::rdma::ProtectionDomain;
use ringfab_memory::Pool;
use ringfab_reactor::Reactor;

use crate::controller::Controller;
use crate::limits::ADMIN_DATA_BYTES_MAX;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::model::{IoRecord, Served};
use crate::nvm::Action;
use crate::target::{Instances, Target};
use crate::transport::Transports;
use crate::worker::Workers;
use claims::Claims;
use disks::{Disks, Namespaces};
use held_back::HeldBackCommands;
use hosts::{Hosts, SharedPool};
use limited::{FlowKey, FlowLimits, LimitedCommands};
use messages::{AbortRequest, QueueMessage, QueueSender};
use operations::DiskOperations;
use states::RequestStates;
use turns::Turns;

pub(crate) use claims::ClaimId;
pub(crate) use disks::OpenDisk;
pub(crate) use hosts::HostId;
pub(crate) use request_id::{CoreRequestId, RequestId};

/// A core's ring, transports, disks and memory, and the way to the other cores.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) reactor: Reactor,
    pub(crate) transports: Transports,
    /// Of all queue pairs: nothing of ours is exposed, so that there is nothing to keep them from.
    pub(crate) domain: ProtectionDomain,
    /// Who is connected.
    pub(crate) target: Arc<Target>,
    /// What is served, as the control side sees it.
    pub(crate) served: Arc<Served>,
    /// Who does slow work.
    pub(crate) workers: Workers,
    /// The active namespaces.
    pub(crate) namespaces: Namespaces,
    /// Its own disks of these.
    pub(crate) disks: Disks,
    /// Operations that these have under way.
    pub(crate) disk_operations: DiskOperations,
    /// Where the requests of all queues are in their lives.
    pub(crate) states: RequestStates,
    /// What the disks share, those that are opened later among them.
    pub(crate) shared: Shared,
    /// Bytes of a piece of a command's data: the largest buffer of the pool.
    pub(crate) chunk_bytes: u32,
    pub(crate) core: usize,
    /// Who is connected here, with their shares of the pools and the requests that wait.
    pub(crate) hosts: Hosts,
    /// Commands that limits concern.
    pub(crate) limited: LimitedCommands,
    /// Whose turn it is, while there are several.
    pub(crate) turns: Turns,
    /// Claims of fused operations to blocks.
    pub(crate) claims: Claims,
    /// Commands that wait for disks that do not answer.
    pub(crate) held_back: HeldBackCommands,
    /// Controllers that are being reset: their I/O queues are ending.
    resetting: Vec<Arc<Controller>>,
    /// The way to the queues of all cores, those of this one included.
    pub(crate) cores: Vec<QueueSender>,
}

impl Resources {
    #[expect(clippy::too_many_arguments, reason = "the parts of a core, each named")]
    pub(crate) fn new(
        reactor: Reactor,
        mut transports: Transports,
        target: Arc<Target>,
        served: Arc<Served>,
        workers: Workers,
        namespaces: Namespaces,
        disks: Disks,
        shared: Shared,
        pool: Pool,
        admin_pool: Pool,
        compare_pool: Pool,
        core: usize,
        cores: Vec<QueueSender>,
    ) -> Self {
        let chunk_bytes = pool.buffer_bytes_max().min(admin_pool.buffer_bytes_max()) as u32;
        let pieces = |bytes: u32| bytes.div_ceil(chunk_bytes) as usize;
        let hosts = Hosts::new([
            // Data of admin commands is apart, so that they never starve.
            SharedPool { pool: admin_pool, least: pieces(ADMIN_DATA_BYTES_MAX) },
            // What commands need that have a buffer of `pool` while they wait for another, because their own data came
            // in the capsule: were that one of `pool` too, a pool full of them would wait for ever. A fused pair needs
            // three.
            SharedPool { pool: compare_pool, least: 3 },
            // The largest Compare needs all of its data twice.
            SharedPool { pool, least: 2 * pieces(TRANSFER_BYTES_MAX) },
        ]);
        let mut this = Self {
            reactor,
            domain: transports.rnic.allocate_domain(),
            transports,
            target,
            served,
            workers,
            namespaces,
            disks,
            disk_operations: DiskOperations::default(),
            states: RequestStates::default(),
            shared,
            chunk_bytes,
            core,
            hosts,
            limited: LimitedCommands::default(),
            turns: Turns::default(),
            claims: Claims::default(),
            held_back: HeldBackCommands::default(),
            resetting: Vec::new(),
            cores,
        };
        this.refresh_limits();
        this
    }

    /// Where a command's namespace is counted.
    #[inline(always)]
    pub(crate) fn io_of(&self, action: &Action) -> Option<&Arc<IoRecord>> {
        Some(&self.disks.get(action.disk()?)?.io)
    }

    /// Has what disks in memory have lent sent, as far as it can be at once, and copies the rest, before anybody waits.
    pub(crate) fn end_borrows(&mut self) {
        if !self.shared.borrowed_pages().is_empty() {
            self.reactor.send_borrowed();
            self.shared.borrowed_pages().end_all();
        }
    }

    /// A turn of the core's loop begins.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        let now = self.reactor.now();
        self.states.begin_turn(now);
        self.turns.begin_loop_turn(now);
    }

    /// A command about so many bytes has come. Returns whether no limit keeps it from beginning at once.
    pub(crate) fn passes_limits(&mut self, flow: FlowKey, command: RequestId, bytes: u64) -> bool {
        let Self { limited, hosts, disks, served, states, .. } = self;
        let limits = || limits_of(served, hosts, disks, &flow);
        !limited.are_possible() || limited.admit(flow, command, bytes, states.now(), limits)
    }

    /// A command that has begun is about so many bytes more than was known.
    pub(crate) fn charge(&mut self, flow: FlowKey, bytes: u64) {
        let Self { limited, hosts, disks, served, .. } = self;
        if limited.are_possible() {
            limited.charge(flow, bytes, || limits_of(served, hosts, disks, &flow));
        }
    }

    /// Something else is served: limits and shares may be others.
    pub(crate) fn refresh_limits(&mut self) {
        let Self { limited, turns, hosts, disks, served, states, .. } = self;
        let active = served.has_limits();
        if active || limited.are_possible() {
            limited.refresh(active, states.now(), |flow| limits_of(served, hosts, disks, flow));
        }
        turns.set_limited(active);
        hosts.named().for_each(|(id, nqn)| turns.set_shares(id, served.shares(nqn)));
    }

    /// Has every core end a controller's I/O queues, and the admin queue too when asked.
    pub(crate) fn end_queues(&self, controller: &Arc<Controller>, admin: bool) {
        for core in &self.cores {
            core.send(QueueMessage::EndQueues { controller: Arc::clone(controller), admin });
        }
    }

    /// A controller is reset: it is done when its I/O queues have ended, on all cores.
    pub(crate) fn begin_reset(&mut self, controller: &Arc<Controller>) {
        self.resetting.push(Arc::clone(controller));
        self.end_queues(controller, false);
    }

    /// Completes the resets whose I/O queues are all gone.
    pub(crate) fn finish_resets(&mut self) {
        let gone = |controller: &mut Arc<Controller>| controller.io_queues() == 0;
        for controller in self.resetting.extract_if(.., gone) {
            controller.state().registers.disabled_done();
        }
    }

    /// Ends a controller that has lost its host, and tells the host where it still can be told.
    pub(crate) fn lose(&self, controller: &Arc<Controller>) {
        controller.end();
        self.end_queues(controller, true);
        Instances(&self.target).tell_loss(controller);
    }

    /// Ends a controller whose host wants nothing of it to be done any more.
    pub(crate) fn fence(&self, controller: &Arc<Controller>) {
        controller.end();
        for core in &self.cores {
            core.send(QueueMessage::Fence(Arc::clone(controller)));
        }
    }

    /// Ends a controller in favour of another host.
    pub(crate) fn evict(&self, controller: &Arc<Controller>, reason: &str) {
        controller.log_ended(reason);
        controller.end();
        for core in &self.cores {
            core.send(QueueMessage::Evict(Arc::clone(controller)));
        }
    }

    /// Asks the core that has a command to abort it.
    pub(crate) fn abort(
        &self,
        controller: &Arc<Controller>,
        queue_id: u16,
        command_id: u16,
        asker: RequestId,
    ) {
        let asker = CoreRequestId { core: self.core, request: asker };
        let controller = Arc::clone(controller);
        let request = AbortRequest { queue_id, command_id, asker, controller };
        let core = request.controller.state().queues.core_of(queue_id);
        match core {
            Some(core) => self.cores[core].send(QueueMessage::Abort(request)),
            None => self.cores[self.core].send(QueueMessage::AbortAnswered { asker, aborted: false }),
        }
    }
}

/// What limits a flow.
fn limits_of(served: &Served, hosts: &Hosts, disks: &Disks, flow: &FlowKey) -> FlowLimits {
    let (Some(host), Some(open)) = (hosts.nqn(flow.host), disks.get(flow.namespace)) else {
        return FlowLimits::default();
    };
    let rates = served.rates(&open.subsystem, open.namespace.nsid(), host, flow.direction);
    FlowLimits { rates, shares: served.shares(host) }
}
