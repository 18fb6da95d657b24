//! A simulated world: hosts, links and disks in virtual time, everything drawn from one seed.
//!
//! [`World`] owns the clock, the links and the disks. Each core of a host is a reactor that was made by
//! [`Reactor::simulated`](crate::Reactor::simulated). The same seed and the same calls give the same world, byte by
//! byte; [`World::trace_hash`] is the proof.
//!
//! What is not simulated: Unix sockets, descriptors from outside (`poll_readable`, `Files::adopt`), congestion, and
//! the options of a socket (its link decides instead).

mod core;
mod datagrams;
mod disk;
mod disk_ops;
mod handshake;
mod machines;
mod net;
mod port;
mod port_parts;
mod post;
mod state;
mod stream;
mod world;

pub use disk::DiskFaults;
pub use net::LinkFaults;
pub(crate) use net::SocketHandle;
pub(crate) use port::Port;
pub use world::World;

/// A host of the world. A host has an address, disks, and a reactor for each of its cores.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub(crate) u32);
