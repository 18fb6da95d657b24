//! The verbs-shaped interface over the software RNIC: both ends in one thread.

mod ahead;
mod capture;
mod connect;
mod cores;
mod hostile;
mod limits;
mod reach;
mod support;
mod transfer;
mod violations;
mod worlds;
