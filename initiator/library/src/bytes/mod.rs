//! Bytes on a disk of blocks: what front ends have to do before a range of bytes is commands.
//!
//! Programs read and write bytes, commands move whole blocks. A range is [cut](Cut) into a part of a first block, whole
//! blocks and a part of a last one, and into [pieces](next_piece) that one command takes. Whoever changes a part of a
//! block reads the block, changes it and writes it, and [claims](BlockWriter) it meanwhile.
//!
//! [`blocking::Disk`](crate::blocking::Disk) does all of this. A front end on an engine's thread, which submits whole
//! blocks itself, uses what it needs of it.

mod claims;
mod cut;
mod pieces;

pub use claims::BlockWriter;
pub(crate) use claims::{Claims, Place};
pub use cut::{Cut, part_bytes, touched_blocks};
pub(crate) use pieces::discards;
pub use pieces::{block_pieces, next_piece};
