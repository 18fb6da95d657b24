//! What a host can do wrong, and what the specification says it is told: the status with its Do Not Retry bit, the
//! place of the field in the Error Information log, or the end of that one connection. In every test a healthy
//! host works on beside the wrong one.

mod access;
mod admin;
mod bench;
mod cancel;
mod capsules;
mod cm;
mod connect;
mod fused;
mod io;
mod memory;
mod ranges;
mod resets;
