//! The software RNIC: MPA, DDP and RDMAP over a TCP socket of the core's reactor, in user space.
//!
//! The protocol itself lives in [`ringfab_proto::iwarp`], which sees bytes and handles only. Here is the memory behind
//! the handles; the socket and time are the stream's. One core's `Device` holds everything in tables:
//!
//! - `half_open`: accepted sockets until their MPA request is complete; then they wait, detached, for an answer. And
//!   sockets that still have a rejection to deliver.
//! - `queue_pair`: a queue pair; `opening` is its MPA exchange, `receive` and `transmit` what it does with messages.
//! - `regions` and `work`: the shared buffers behind exposed memory and behind work requests.
//! - `capture`: what went over the wire, as a file that packet analysers read.

mod capture;
mod device;
mod half_open;
mod message;
mod opening;
mod queue_pair;
mod receive;
mod regions;
mod transmit;
mod work;

pub(crate) use device::Device;
pub(crate) use half_open::PendingAccept;
