//! The two libraries, and all that is unsafe about them: what the other modules get owns what it names, and can only
//! be used as the libraries allow.
//!
//! The modules, each using only those before it: `library`, `connection`, `pool`, `image`, `answers`, `calls`.
#![allow(unsafe_code, reason = "the boundary to two C libraries; every block is argued")]

mod answers;
mod calls;
mod connection;
mod image;
mod library;
mod pool;
#[cfg(test)]
mod tests;

pub(crate) use calls::{Answered, Calls, Pending, Request};
pub(crate) use connection::{ConnectError, Connection, ConnectionOptions, LiveConnections};
pub(crate) use image::{Closer, Closing, Image, ImageName, LockOwner};
pub(crate) use library::{Errno, Library};
pub(crate) use pool::Pool;
