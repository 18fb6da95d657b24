//! Front ends, which serve or measure remote namespaces, and what the commands of `ringfab` share.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`quantity`] | sizes and times in options |
//! | [`output`] | text for people, JSON for programs |
//! | [`progress`] | what a terminal shows while a command waits |
//! | [`interrupt`] | signals |
//! | [`mdns`] | discovery controllers that say where they are |
//! | [`ready`] | how a service reports that it is ready |
//! | [`context`] | what every command gets |
//! | [`advice`] | what a user can do about a controller that is not attached |
//! | `precedence` | which of several places counts, where an option is given at more than one |
//! | [`paths`] | the options of several paths to one subsystem |
//! | `keys` | keys that options, addresses and the environment give |
//! | [`authentication`] | the options with which a host proves who it is |
//! | [`options`] | the options of a connection |
//! | `programs` | programs of others, and the packages that have them |
//! | `made_directories` | mount points and folders of sockets, while they are used |
//! | [`namespaces`] | which namespace a command is for |
//! | [`engine`] | the controller of a command, and its engine threads |
//! | `failures` | I/O commands that have failed, counted and logged |
//! | `mounts` | what the kernel has mounted, and who uses it |
//! | `registry` | what this machine has attached |
//! | [`overwriting`] | what is asked before a namespace is overwritten |
//! | [`bench`] | load, measured or verified |
//! | [`nbd`] | namespaces as network block devices |
//! | [`fuse`] | namespaces as files |
//! | [`connect_all`] | all subsystems that discovery shows, each by one of the two |
//! | [`volumes`] | file systems of namespaces: mounted, listed, and named in a file |
//! | `meant` | what a user means of what is attached |
//! | [`reset`] | the reset of a controller that is attached |
//! | [`path`] | paths of what is attached: shown, added and removed |
//! | [`prometheus`] | all that is attached, as metrics |
//!
//! Each module uses only those before it. A program that wants a remote disk needs none of this:
//! see [`ringfab_initiator`].
//!
//! Not implemented here: ublk and vhost-user, NBD over TLS, NBD's extended headers, and file systems of our own:
//! `volumes` mounts those that the kernel has.

pub mod advice;
pub mod authentication;
pub mod bench;
pub mod connect_all;
pub mod context;
mod engine;
mod failures;
pub mod fuse;
pub mod interrupt;
mod keys;
mod made_directories;
pub mod mdns;
mod meant;
mod mounts;
pub mod namespaces;
pub mod nbd;
pub mod options;
pub mod output;
pub mod overwriting;
pub mod path;
pub mod paths;
mod precedence;
mod programs;
pub mod progress;
pub mod prometheus;
pub mod quantity;
mod ready;
mod registry;
pub mod reset;
mod tls;
pub mod volumes;
