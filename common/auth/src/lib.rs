//! Who a host is: in-band authentication and the keys for TLS, without clocks and threads, and but for reading the file
//! of a key, without I/O.
//!
//! | module | specification |
//! | --- | --- |
//! | `dhchap_key`, `interchange` | keys as text, `DHHC-1:` and `NVMeTLSkey-1:` (TCP Transport 1.1, section 3.6.1.5) |
//! | `host_keys` | a file with all keys of a host; none of the specifications say |
//! | `host_steps` | what a person types to use it |
//! | `key_source` | where keys are; none of the specifications say |
//! | `psk` | pre-shared keys for TLS and their identities (TCP Transport 1.1, section 3.6.1) |
//! | `message`, `controller`, `host` | DH-HMAC-CHAP (Base 2.2, section 8.3.4) |
//!
//! A transaction ([`ControllerTransaction`], [`HostTransaction`]) takes messages and gives messages. What takes long,
//! it returns as a [`Computation`]: a value that any thread runs, and whose result it takes later.
//!
//! Secrets are zeroed when they are dropped, compared in constant time, and not printed. Exponentiations,
//! multiplications of points and decapsulations take a time that does not depend on the secret. What the libraries
//! leave on the stack while they compute is overwritten. What the one for big numbers leaves in freed memory is not.
//!
//! Not implemented here: the commands that carry messages, time limits, TLS itself, and authentication with a
//! verification entity of its own.

#![forbid(unsafe_code)]

mod computation;
mod controller;
mod dhchap_key;
mod fingerprint;
mod group;
mod hash;
mod host;
mod host_keys;
mod host_steps;
mod interchange;
mod key_source;
mod keyring;
mod message;
mod outcome;
mod policy;
mod psk;
mod response;
mod secret;

pub use computation::{Computation, Computed};
pub use controller::{ControllerState, ControllerTransaction, Received};
pub use dhchap_key::DhchapKey;
pub use fingerprint::KeyFingerprint;
pub use group::{Group, UnknownGroup};
pub use hash::{Hash, UnknownHash};
pub use host::{HostState, HostStep, HostTransaction};
pub use host_keys::{HostKeys, KeyRole};
pub use host_steps::HostSteps;
pub use interchange::KeyError;
pub use key_source::KeySource;
pub use message::{
    Challenge, Failure, MESSAGE_BYTES_MAX, Message, MessageError, Negotiate, Proposal, Reply, Success1,
};
pub use outcome::{Authenticated, Refusal, RefusedBy, SequenceNumbers};
pub use policy::{Channel, Concatenation, Policy, PolicyError};
pub use psk::{
    CipherSuite, ConfiguredPsk, Derivation, IdentityTooLong, IdentityVersion, InputPsk, Names, Origin,
    ParsedIdentity, TlsPsk, UnknownIdentity,
};
pub use response::Parties;
pub use secret::{Secret, SecretText, system_random};

#[cfg(test)]
mod tests;
