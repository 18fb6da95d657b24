//! The software RNIC's engine from outside: against itself, against golden bytes, and against hostile bytes.

mod continuation;
mod golden;
mod hostile;
mod mpa;
mod now;
mod pair;
mod regions;
mod support;
mod violations;
