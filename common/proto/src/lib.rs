//! Protocol engines without I/O, clocks or threads: bytes in, bytes out, buffers named by handle and never touched.
//!
//! Not implemented here: sockets, timers, memory (an engine knows only its handle), the meaning of commands, and the
//! markers of MPA.

#![forbid(unsafe_code)]

pub mod iwarp;
pub mod nbd;
mod ring;
pub mod tcp;
mod use_counter;

pub use ringfab_crc as crc;
