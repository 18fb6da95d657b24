//! One end of a connection: what the examples that try devices share.
#![allow(dead_code, reason = "no example uses all of it")]

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use ringfab_fabric::rdma::{
    ListenParameters, ProtectionDomain, QueuePairAttributes, QueuePairId, Rnic, RnicConfig, RnicEvent,
    SendRequest, Work,
};
use ringfab_memory::{Buffer, ClassLayout, Pool};
use ringfab_reactor::{Reactor, ReactorConfig, Wait};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an address that is in use is tried again.
const BIND_PATIENCE: Duration = Duration::from_secs(5);

pub(crate) type Failure = String;

/// What an end has of memory and of queues.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Of each buffer of the pool.
    pub(crate) buffer_bytes: usize,
    /// Buffers of the pool.
    pub(crate) count: usize,
    /// Requests in the send queue, and receives.
    pub(crate) depth: u32,
    /// The largest message to receive.
    pub(crate) receive_bytes_max: u32,
}

/// A loop, an RNIC, and memory.
pub(crate) struct Node {
    pub(crate) reactor: Reactor,
    pub(crate) rnic: Rnic,
    pub(crate) pool: Pool,
    pub(crate) domain: ProtectionDomain,
    pub(crate) events: VecDeque<RnicEvent>,
    layout: Layout,
}

impl Node {
    pub(crate) fn new(seed: u8, layout: Layout) -> std::io::Result<Self> {
        let reactor = ReactorConfig { entries: 256, spin: Duration::ZERO, descriptors_max: 256 };
        let mut config = RnicConfig::new(0, [seed; 32]);
        config.close_timeout = Duration::from_secs(1);
        let mut rnic = Rnic::new(config)?;
        let domain = rnic.allocate_domain();
        let classes = [ClassLayout { buffer_bytes: layout.buffer_bytes, count: layout.count }];
        let pool = Pool::new(&classes).map_err(std::io::Error::other)?;
        Ok(Self { reactor: Reactor::new(&reactor)?, rnic, pool, domain, events: VecDeque::new(), layout })
    }

    pub(crate) fn attributes(&self, domain: ProtectionDomain) -> QueuePairAttributes {
        QueuePairAttributes {
            domain,
            send_depth: self.layout.depth,
            receive_depth: self.layout.depth,
            receive_bytes_max: self.layout.receive_bytes_max,
            pool: self.pool.clone(),
            initiator_depth: 4,
            responder_resources: 4,
        }
    }

    /// Listens, if need be after some tries: the ring of whoever had the address may keep it for some time after its
    /// end.
    pub(crate) fn listen(&mut self, parameters: &ListenParameters) -> Result<(), Failure> {
        let started = Instant::now();
        loop {
            match self.rnic.listen(&mut self.reactor, parameters) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::AddrInUse && started.elapsed() < BIND_PATIENCE => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// One turn of the loop; what happened is in `events` then.
    pub(crate) fn step(&mut self) -> Result<(), Failure> {
        self.rnic.turn(&mut self.reactor, Wait::No).map_err(|error| error.to_string())?;
        self.events.extend(std::iter::from_fn(|| self.rnic.next_event()));
        Ok(())
    }

    /// Turns until `pick` takes an event; those that it leaves are gone. The end of the connection is a failure.
    pub(crate) fn until<R>(
        &mut self,
        what: &str,
        mut pick: impl FnMut(RnicEvent) -> Option<R>,
    ) -> Result<R, Failure> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            self.step()?;
            while let Some(event) = self.events.pop_front() {
                match event {
                    RnicEvent::Disconnected { reason, .. } => return Err(format!("{what}: {reason}")),
                    RnicEvent::ConnectFailed { error, .. } => return Err(format!("{what}: {error}")),
                    RnicEvent::Rejected { .. } => return Err(format!("{what}: rejected")),
                    event => {
                        if let Some(found) = pick(event) {
                            return Ok(found);
                        }
                    }
                }
            }
        }
        Err(format!("never: {what}"))
    }

    pub(crate) fn filled(&self, bytes: usize, with: u8) -> Buffer {
        let mut buffer = self.pool.take(bytes).expect("the pool is large enough");
        buffer.fill(with);
        buffer
    }

    pub(crate) fn post(&mut self, queue_pair: QueuePairId, id: u64, work: Work) -> Result<(), Failure> {
        let request = SendRequest { id, work, signaled: true };
        self.rnic.post_send(queue_pair, request).map_err(|error| error.to_string())
    }
}
