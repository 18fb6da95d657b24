//! What connections cost a target, and who gets in while others are greedy.

mod attack;
mod attacks;
mod memory;
mod room;
mod spread;
mod target;
