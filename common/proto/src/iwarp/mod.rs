//! The software RNIC's protocol engine: MPA (RFC 5044), DDP (RFC 5041), RDMAP (RFC 5040) and enhanced MPA connection
//! establishment (RFC 6581).
//!
//! The life of a connection: [`mpa::Initiator`] or [`mpa::Responder`] turns the first bytes of a TCP stream into
//! [`mpa::Negotiated`] parameters; from there on an [`Engine`] owns the protocol state of the queue pair. Its owner
//! moves bytes: what [`Engine::transmit`] emits goes to the socket, what the socket delivers goes to
//! [`Engine::receive`], which tells a [`Receiver`] where each piece of payload belongs. Memory is named by handles `H`
//! that only the owner can resolve.
//!
//! ```
//! use ringfab_proto::iwarp::mpa::{Initiator, MpaConfig, Outcome, Responder};
//! use ringfab_proto::iwarp::{
//!     Engine, EngineConfig, Inline, Pause, Placement, ProtectionDomain, QueuePairId, Receiver, RegionTable, Requester,
//!     SendRequest, SendSegment, TxSink, WorkRequest,
//! };
//! use std::ops::{ControlFlow, Range};
//!
//! struct Wire(Vec<u8>);
//! impl TxSink<u32> for Wire {
//!     fn room(&mut self, len: usize) -> &mut [u8] {
//!         let start = self.0.len();
//!         self.0.resize(start + len, 0);
//!         &mut self.0[start..]
//!     }
//!     fn payload(&mut self, _: u32, _: u64, _: usize) {}
//!     fn crc(&mut self, _: u32, _: u64, _: usize, state: u32) -> u32 {
//!         state
//!     }
//! }
//!
//! #[derive(Default)]
//! struct Received(Vec<SendSegment>);
//! impl Receiver<u32> for Received {
//!     fn place(&mut self, _: Placement<u32>, _: Range<usize>) -> ControlFlow<()> {
//!         ControlFlow::Continue(())
//!     }
//!     fn send_segment(&mut self, segment: SendSegment) -> ControlFlow<()> {
//!         self.0.push(segment);
//!         ControlFlow::Continue(())
//!     }
//! }
//!
//! let mut initiator = Initiator::new(MpaConfig::default(), b"hello")?;
//! let mut responder = Responder::new(MpaConfig::default());
//! responder.receive(initiator.request())?;
//! let (theirs, reply) = responder.accept(b"welcome")?;
//! let (_, Some(Outcome::Accepted(ours))) = initiator.receive(&reply)? else { panic!("not accepted") };
//!
//! let requester = Requester { pd: ProtectionDomain(0), qp: QueuePairId(0) };
//! let mut regions = RegionTable::<u32>::new(16);
//! let mut one = Engine::new(EngineConfig::new(ours, requester));
//! let mut other = Engine::new(EngineConfig::new(theirs, requester));
//! other.post_recv(64)?;
//!
//! let inline = Inline::new(b"capsule");
//! one.post(1, WorkRequest::Send(SendRequest { inline, payload: None, invalidate: None, solicited: false }))?;
//! let mut wire = Wire(Vec::new());
//! let emitted = one.transmit(&regions, &mut wire);
//! one.transmitted(emitted);
//! assert_eq!(one.poll_completion().map(|done| done.wr_id), Some(1));
//!
//! let mut received = Received::default();
//! let (consumed, pause) = other.receive(&wire.0, &mut regions, &mut received)?;
//! assert!(consumed == wire.0.len() && matches!(pause, Pause::NeedMore(_)));
//! let [SendSegment { payload, last: true, .. }] = received.0.as_slice() else { panic!("not a whole Send") };
//! assert_eq!(&wire.0[payload.clone()], b"capsule");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What it does not do: MPA markers (refused during negotiation), shared receive queues, atomics (RFC 7306), and
//! remote reads into a sink that is itself checked against the region table, since the sink is named by the work
//! request that the owner posted.

pub use crate::crc;
mod engine;
mod error;
mod inbound;
mod messages;
pub mod mpa;
mod region;
mod rx;
mod send_queue;
mod terminate;
mod tx;
mod work;

pub use engine::{Continuation, Engine, EngineConfig, FpduCounts, Pause, Receiver, SendSegment};
pub use error::{EngineError, TerminateReceived, Violation};
pub use region::{
    Access, Placement, ProtectionDomain, QueuePairId, Region, RegionError, RegionErrorKind, RegionTable,
    RegisterError, Requester,
};
pub use ringfab_spec::iwarp::{RdmapOpcode, TerminateCode};
pub use rx::FPDU_LEN_MAX;
pub use tx::{TxSink, ULPDU_LEN_MAX};
pub use work::{
    Completion, Inline, Local, PostError, ReadRequest, RecvFull, SendRef, SendRequest, WorkKind, WorkRequest,
    WorkStatus, WriteRequest,
};
