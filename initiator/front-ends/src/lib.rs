//! What serves or measures remote namespaces, and what the commands share.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`quantity`] | sizes and times as people write them |
//! | [`output`] | text for people, JSON for programs |
//! | [`interrupt`] | signals |
//! | [`ready`] | how a service says that it serves |
//! | [`context`] | what every command is given |
//! | [`options`] | the options of a connection |
//! | [`namespaces`] | which namespace a command is for |
//! | [`engine`] | the controller of a command, and its engine threads |
//! | [`bench`] | load, measured or verified |
//! | [`nbd`] | namespaces as network block devices |
//! | [`fuse`] | namespaces as files |
//!
//! Each module uses only those before it. A program that wants a remote disk needs none of this:
//! see [`ringfab_initiator`].

pub mod bench;
pub mod context;
mod engine;
pub mod fuse;
pub mod interrupt;
pub mod namespaces;
pub mod nbd;
pub mod options;
pub mod output;
pub mod quantity;
mod ready;
