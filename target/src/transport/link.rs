//! A queue's end of its connection, whatever its transport.

use ringfab_memory::{Buffer, SharedBuffer};
use ringfab_spec::CompletionEntry;

use super::{CommandData, Endpoint, LinkError, Piece, Transports, rdma, tcp};
use crate::nvm::HostMemory;

/// A queue's end of its connection, with the room for what is in flight on it.
#[derive(Debug)]
pub(crate) struct Link {
    endpoint: Endpoint,
    depth: u32,
    used: u32,
    /// What was posted to answer commands, and what of it has been sent; both wrap around.
    posted: u32,
    sent: u32,
}

impl Link {
    /// What a queue of so many entries has in flight at most: a data transfer and a response for each. A command of
    /// many pieces waits until there is room for all of them.
    pub(crate) fn depth(entries: u16) -> u32 {
        u32::from(entries) * 2 + Self::PIECES_MAX + 1
    }

    /// The most pieces of one command's data.
    const PIECES_MAX: u32 = 64;

    pub(crate) fn new(endpoint: Endpoint, entries: u16) -> Self {
        Self { endpoint, depth: Self::depth(entries), used: 0, posted: 0, sent: 0 }
    }

    /// Its connection.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Whether the host's end of data can be of this kind.
    pub(crate) fn reaches(&self, memory: &HostMemory) -> bool {
        match memory {
            HostMemory::None | HostMemory::Capsule { .. } => true,
            HostMemory::Registered { .. } => matches!(self.endpoint, Endpoint::Rdma(_)),
            HostMemory::Transport => matches!(self.endpoint, Endpoint::Tcp(_)),
        }
    }

    /// Whether data may be sent from wherever they lie. A device reaches what was registered with it, and nothing else.
    pub(crate) fn sends_from_anywhere(&self) -> bool {
        match self.endpoint {
            Endpoint::Rdma(queue_pair) => !queue_pair.is_of_device(),
            Endpoint::Tcp(_) => true,
        }
    }

    /// Whether so much can be posted now.
    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.depth - self.used >= count as u32
    }

    /// Whether nothing is in flight to the host.
    pub(crate) fn is_idle(&self) -> bool {
        self.used == 0
    }

    /// So many things in flight have ended: their room is free again.
    pub(crate) fn completed(&mut self, count: u32) {
        // Data whose response was refused are counted when they have been sent, and never were before.
        self.used = self.used.saturating_sub(count);
    }

    /// So many of what was posted to answer commands have been sent.
    pub(crate) fn sent(&mut self, count: u32) {
        self.completed(count);
        self.sent = self.sent.wrapping_add(count);
    }

    /// How much was posted to answer commands so far.
    pub(crate) fn posted(&self) -> u32 {
        self.posted
    }

    /// Whether everything has been sent that was posted until then.
    pub(crate) fn has_sent(&self, posted: u32) -> bool {
        self.sent.wrapping_sub(posted) as i32 >= 0
    }

    /// Has the host's data moved into `sinks`. [`TransportHandler::on_fetched`](super::TransportHandler::on_fetched)
    /// follows for as many of them as are returned, beside what kept the others from being posted.
    pub(crate) fn fetch(
        &mut self,
        transports: &mut Transports,
        command: &CommandData,
        sinks: impl Iterator<Item = Piece<Buffer>>,
    ) -> (u16, Result<(), LinkError>) {
        let (posted, outcome) = match self.endpoint {
            Endpoint::Rdma(queue_pair) => rdma::fetch(&mut transports.rnic, queue_pair, command, sinks),
            Endpoint::Tcp(connection) => tcp::fetch(&mut transports.tcp, connection, command, sinks),
        };
        self.used += u32::from(posted);
        (posted, outcome)
    }

    /// Sends data, if there are any, and the response behind them, unless the last of `count` pieces says what it
    /// would.
    #[inline(always)]
    pub(crate) fn answer(
        &mut self,
        transports: &mut Transports,
        command: &CommandData,
        count: usize,
        data: impl Iterator<Item = Piece<SharedBuffer>>,
        entry: &CompletionEntry,
    ) -> Result<(), LinkError> {
        let response = match self.endpoint {
            Endpoint::Rdma(queue_pair) => {
                rdma::answer(&mut transports.rnic, queue_pair, command, data, entry)?;
                true
            }
            Endpoint::Tcp(connection) => {
                tcp::answer(&mut transports.tcp, connection, command, count, data, entry)?
            }
        };
        let count = count as u32 + u32::from(response);
        self.used += count;
        self.posted = self.posted.wrapping_add(count);
        Ok(())
    }

    /// Lets the host send another command.
    pub(crate) fn replenish(&self, transports: &mut Transports) {
        if let Endpoint::Rdma(queue_pair) = self.endpoint {
            transports.rnic.post_receive(queue_pair, 1);
        }
    }
}
