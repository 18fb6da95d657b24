//! Protocol engines without I/O, clocks or threads: bytes in, bytes out, buffers named by handle and never touched.

#![forbid(unsafe_code)]

mod first_uses;
pub mod iwarp;
mod ring;
pub mod tcp;

pub use ringfab_crc as crc;
