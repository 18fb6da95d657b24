//! What an RNIC, its listeners and its connections are made from, and what an RNIC has done.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ringfab_memory::Pool;
use ringfab_reactor::{SPIN_DEFAULT, SocketOptions};

use super::ProtectionDomain;
use crate::CopiedBytes;

/// How an RNIC is built.
#[derive(Clone, Debug)]
pub struct RnicConfig {
    /// The `owner` of the tokens of its reactor operations; completions that bear it go to
    /// [`Rnic::on_completion`](super::Rnic::on_completion).
    pub owner: u8,
    /// Seed of the generator that makes keys; from the operating system, or from a simulation's seed.
    pub seed: [u8; 32],
    /// Whether we ask for MPA CRCs when we connect. They are used if either side asks.
    pub crc: bool,
    /// Highest MPA revision to speak when we connect, 1 or 2.
    pub mpa_revision: u8,
    /// The largest FPDU to send, in bytes.
    pub fpdu_bytes_max: u32,
    /// The longest that an MPA exchange may take.
    pub handshake_timeout: Duration,
    /// How long a disconnect may take: for what was posted to be sent, and for the peer to close.
    pub close_timeout: Duration,
    /// The most queue pairs at once, and the most accepted sockets in handshake.
    pub queue_pairs_max: u32,
    /// The most exposures at once.
    pub regions_max: u32,
    /// The longest that the completion queues of a verbs device are polled after the last completion before the core
    /// may sleep, see [`Spin`](ringfab_reactor::Spin).
    pub spin: Duration,
    /// Writes a capture of the software RNIC's own traffic here, as if it had been seen on a network.
    pub capture: Option<PathBuf>,
}

impl RnicConfig {
    /// The defaults: CRC on, MPA revision 2, FPDUs as large as the format allows, 5 s for a handshake.
    pub fn new(owner: u8, seed: [u8; 32]) -> Self {
        Self {
            owner,
            seed,
            crc: true,
            mpa_revision: 2,
            fpdu_bytes_max: 65_536,
            handshake_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(2),
            queue_pairs_max: 4096,
            regions_max: 8192,
            spin: SPIN_DEFAULT,
            capture: None,
        }
    }
}

/// What a queue pair needs.
#[derive(Clone, Debug)]
pub struct QueuePairAttributes {
    /// Memory that the peer may reach.
    pub domain: ProtectionDomain,
    /// The most outstanding send-queue work requests.
    pub send_depth: u32,
    /// Receive credits at the start: SENDs that the peer may have outstanding. More are given by
    /// [`Rnic::post_receive`](super::Rnic::post_receive).
    pub receive_depth: u32,
    /// The largest message to receive, head included.
    pub receive_bytes_max: u32,
    /// Where the part of a message after its first 64 bytes goes. While it is empty, receiving pauses.
    pub pool: Pool,
    /// The most RDMA READs that we will have outstanding (ORD).
    pub initiator_depth: u16,
    /// The most RDMA READs that the peer may have outstanding (IRD).
    pub responder_resources: u16,
}

/// A connection to make.
#[derive(Clone, Debug)]
pub struct ConnectParameters<'a> {
    /// To whom.
    pub address: SocketAddr,
    /// Through which provider.
    pub provider: ProviderChoice,
    /// The queue pair's needs.
    pub attributes: QueuePairAttributes,
    /// What to say to the peer; 512 bytes at most.
    pub private_data: &'a [u8],
    /// Bound on the whole, TCP connection and MPA exchange.
    pub timeout: Duration,
    /// Options of the software RNIC's socket. Devices have none.
    pub socket: SocketOptions,
}

/// A listener to open.
#[derive(Clone, Debug)]
pub struct ListenParameters {
    /// Port zero picks a free one.
    pub address: SocketAddr,
    /// Through which provider.
    pub provider: ProviderChoice,
    /// The most connections in handshake at once; a good many more wait their turn.
    pub half_open_max: u32,
    /// Whether we ask for MPA CRCs. They are used if either side asks.
    pub crc: bool,
    /// Highest MPA revision to speak, 1 or 2.
    pub mpa_revision: u8,
    /// Socket options of every accepted connection.
    pub socket: SocketOptions,
}

impl ListenParameters {
    /// The defaults at an address: the software RNIC, 1,024 connections in handshake, CRC on, MPA revision 2.
    pub fn new(address: SocketAddr) -> Self {
        let (provider, socket) = (ProviderChoice::Iwarp, SocketOptions::default());
        Self { address, provider, half_open_max: 1024, crc: true, mpa_revision: 2, socket }
    }
}

/// What an RNIC has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RnicCounters {
    /// Queue pairs that exist now.
    pub queue_pairs: u64,
    /// Regions exposed now.
    pub regions: u64,
    /// FPDUs received.
    pub received_fpdus: u64,
    /// FPDUs sent.
    pub sent_fpdus: u64,
    /// Payload bytes received straight into their final place.
    pub received_direct_bytes: u64,
    /// What was copied. With a device that does RDMA itself only the heads of messages are, which is not counted.
    pub copied_bytes: CopiedBytes,
    /// Connections ended by a violation of the peer.
    pub violations: u64,
}

/// The provider that a listener or a connection shall have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ProviderChoice {
    /// The verbs device that owns the local address, if there is one, and the software RNIC otherwise.
    #[default]
    Auto,
    /// The software RNIC: iWARP over a TCP socket, on any machine.
    Iwarp,
    /// A verbs device: a card, or the kernel's software ones.
    Verbs,
}

impl ProviderChoice {
    /// As configurations and addresses spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Iwarp => "iwarp",
            Self::Verbs => "verbs",
        }
    }
}

impl fmt::Display for ProviderChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ProviderChoice {
    type Err = UnknownProvider;

    fn from_str(text: &str) -> Result<Self, UnknownProvider> {
        let all = [Self::Auto, Self::Iwarp, Self::Verbs];
        all.into_iter().find(|choice| choice.name() == text).ok_or(UnknownProvider)
    }
}

/// A provider that there is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the provider is one of auto, iwarp and verbs")]
pub struct UnknownProvider;

/// What a listener speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkProtocol {
    /// InfiniBand.
    InfiniBand,
    /// RDMA over Converged Ethernet, version 1: without IP.
    RoceV1,
    /// RDMA over Converged Ethernet, version 2: over UDP.
    RoceV2,
    /// RDMA over TCP.
    Iwarp,
}

/// A listener of an RNIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenerId {
    /// Of the software RNIC.
    Iwarp(ringfab_reactor::ListenerId),
    /// Over verbs.
    Verbs(u32),
}

#[cfg(test)]
mod tests {
    use super::ProviderChoice;

    #[test]
    fn every_choice_is_spelt_as_it_is_read() {
        for choice in [ProviderChoice::Auto, ProviderChoice::Iwarp, ProviderChoice::Verbs] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("rxe".parse::<ProviderChoice>().is_err());
    }
}
