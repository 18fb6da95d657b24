//! One io_uring per core: event loop, timers, mailboxes and counters. It knows nothing of NVMe.
//!
//! A [`Reactor`] belongs to one thread. Its owner calls [`Reactor::turn`], then takes every completion with
//! [`Reactor::next_completion`] and hands it to the owner that its [`Token`] names. The methods that start operations
//! take what these need (buffers, batches) and give it back in the [`Completion`]. So no code can touch memory that the
//! kernel may still read or write.
//!
//! The methods have two backends: the kernel's io_uring, and a simulated [`sim::World`] with virtual time, sockets that
//! delay and cut, datagrams that are lost, and disks that fail and forget what was not flushed. Everything above this
//! crate runs unchanged on either.
//!
//! Not implemented here: a pool of threads, futures, and several rings for one loop.
#![allow(unsafe_code, reason = "this crate hands memory to the kernel; every block is argued")]

mod backend;
mod batch;
mod bell;
mod completion;
mod config;
mod datagram;
mod datagrams;
mod files;
mod idle;
mod mailbox;
mod monitor;
mod pin;
mod reactor;
mod receive;
mod record;
mod ring;
pub mod sim;
mod spin;
mod time;
mod token;

pub use batch::SendBatch;
pub use bell::Bell;
pub use completion::{
    Bind, Completion, DatagramSocketId, FileId, ListenerId, Payload, PeerAddr, SocketId, TimerId,
};
pub use config::{
    Allocate, FileInfo, FileOptions, FileRange, ListenAddr, OnClose, PreferredSizes, ReactorConfig,
    ReactorCounters, SocketOptions, Wait,
};
pub use datagram::Datagram;
pub use datagrams::Datagrams;
pub use files::Files;
pub use idle::run_when_idle;
pub use mailbox::{MailboxReceiver, MailboxSender, Waker, mailbox};
pub use monitor::Monitor;
pub use pin::pin_current_thread;
pub use reactor::{DetachedSocket, Reactor};
pub use receive::{Part, ReceiveOp, STRIDES_MAX, Strides};
pub use record::{TlsKeys, TlsRefusal, kernel_tls_is_prepared, prepare_kernel_tls};
pub use ring::{check_kind, clock, inspect_file};
pub use spin::{SPIN_DEFAULT, Spin};
pub use time::Time;
pub use token::Token;
