//! The driver over the real ring: with servers of other people, and with one that does what a test says.

mod answers;
mod bench;
mod export;
mod scripted;
#[expect(dead_code, reason = "the tests of both ends use more of it")]
mod server;
