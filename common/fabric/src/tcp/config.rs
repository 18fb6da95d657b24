//! What a core's NVMe/TCP, its listeners and its connections are made with.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ringfab_memory::Pool;
use ringfab_reactor::SocketOptions;
use ringfab_tls::Psk;

use super::Digests;
use crate::stream::ListenerTls;

/// How a core's NVMe/TCP is built.
#[derive(Clone, Copy, Debug)]
pub struct TcpConfig {
    /// The `owner` of the tokens of its reactor operations; completions that bear it go to
    /// [`super::TcpStack::on_completion`].
    pub owner: u8,
    /// The longest from an accepted connection to the first command.
    pub handshake_timeout: Duration,
    /// How long a disconnect may take: for what was given to be sent, and for the peer to close.
    pub close_timeout: Duration,
    /// The most connections at once, those in handshake included.
    pub connections_max: u32,
    /// Seed of the generator that makes the secrets of TLS handshakes; from the operating system, or from a
    /// simulation's seed.
    pub seed: [u8; 32],
    /// Whether the kernel protects connections over TLS, where it can. Otherwise this process does it.
    pub kernel_tls: bool,
}

impl TcpConfig {
    /// The defaults: 5 s for a handshake, 2 s for a close, and TLS by the kernel where it can.
    pub fn new(owner: u8, seed: [u8; 32]) -> Self {
        let (handshake_timeout, close_timeout) = (Duration::from_secs(5), Duration::from_secs(2));
        Self { owner, handshake_timeout, close_timeout, connections_max: 8192, seed, kernel_tls: true }
    }
}

/// A listener to open.
#[derive(Clone, Debug)]
pub struct ListenParameters {
    /// Port zero picks a free one.
    pub address: SocketAddr,
    /// The most connections in handshake at once; a good many more wait their turn.
    pub half_open_max: u32,
    /// Digests that a host gets when it asks for them.
    pub digests: Digests,
    /// Whether connections are protected by TLS.
    pub tls: ListenerTls,
    /// Socket options of every accepted connection.
    pub socket: SocketOptions,
}

impl ListenParameters {
    /// The defaults at an address: 1,024 connections in handshake, both digests for who wants them, no TLS.
    pub fn new(address: SocketAddr) -> Self {
        let digests = Digests::default().with_header(true).with_data(true);
        let socket = SocketOptions::default();
        Self { address, half_open_max: 1024, digests, tls: ListenerTls::Off, socket }
    }
}

/// What an adopted connection needs.
#[derive(Clone, Debug)]
pub struct AcceptParameters {
    /// Commands that the host may have outstanding.
    pub commands_max: u16,
    /// The most data of a command capsule.
    pub capsule_bytes_max: u32,
    /// Where in-capsule data go. While it is empty, receiving pauses.
    pub pool: Pool,
}

/// A connection to make.
#[derive(Clone, Debug)]
pub struct ConnectParameters {
    /// To whom.
    pub address: SocketAddr,
    /// Digests that shall be used.
    pub digests: Digests,
    /// The keys to offer for TLS, the best one first. `None`: the connection is in clear text.
    pub tls: Option<Arc<[Psk]>>,
    /// Slots for commands. A command's slot is the low bits of its identifier, as many as the slots need.
    pub commands_max: u16,
    /// Socket options.
    pub socket: SocketOptions,
    /// Bound on the whole: TCP connection, TLS handshake and ICResp.
    pub timeout: Duration,
}
