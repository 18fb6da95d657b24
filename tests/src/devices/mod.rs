//! Devices that the block crate does not know, to hold its interface to what it promises.

pub mod drive;
pub mod library;
pub mod socket;
