//! Recorded sessions, played again with something wrong: cut at every byte, bytes flipped, lengths at their limits.
//! Whatever comes, the other end closes that connection in time, and everything else goes on.

mod damage;
mod initiator;
mod target;
mod tcp;
