//! Who does the work of a reactor.

use crate::ring::Ring;
use crate::sim::Port;

/// A core's ring, or its simulation. What a simulation has no need for is the ring's alone.
#[derive(Debug)]
pub(crate) enum Backend {
    Ring(Box<Ring>),
    Simulated(Box<Port>),
}

/// Calls the same method of whichever backend there is, or of the same part of it.
macro_rules! dispatch {
    ($backend:expr, $method:ident($($argument:expr),*)) => {
        match $backend {
            Backend::Ring(ring) => ring.$method($($argument),*),
            Backend::Simulated(port) => port.$method($($argument),*),
        }
    };
    ($backend:expr, part $part:ident, $method:ident($($argument:expr),*)) => {
        match $backend {
            Backend::Ring(ring) => ring.$part().$method($($argument),*),
            Backend::Simulated(port) => port.$part().$method($($argument),*),
        }
    };
}

pub(crate) use dispatch;
