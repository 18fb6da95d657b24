//! What an operation's owner wrote on it.

/// Says whom a completion is for. The owner of a loop gives each part of itself an `owner` number and hands it
/// all completions that bear it; the other fields are that part's own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token {
    /// Which part of the loop's owner started the operation.
    pub owner: u8,
    /// What the operation is, in that part's own numbering.
    pub kind: u8,
    /// Generation of the slot `index`, so that a late completion is recognised.
    pub generation: u16,
    /// Slot of the thing that the operation serves.
    pub index: u32,
}

impl Token {
    /// A token of all four parts.
    pub const fn new(owner: u8, kind: u8, generation: u16, index: u32) -> Self {
        Self { owner, kind, generation, index }
    }
}
