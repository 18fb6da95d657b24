//! The raw bound: what loopback TCP, or TLS over it, gives to two threads that exchange messages of our sizes
//! and do nothing else.
//!
//! Both ends are non-blocking and spin. The far end runs on [`TARGET_CORE`], the near one, which measures, on
//! [`INITIATOR_CORE`], as the programs do.

mod connection;
mod exchange;
mod protection;
mod stream;

use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};

use crate::case::{Raw, Shape};
use crate::place::{INITIATOR_CORE, TARGET_CORE, pin};
use crate::sample::Sample;
use connection::Connection;

/// Measures one shape for `time`, after `warmup`.
pub(crate) fn measure(case: &Raw, warmup: Duration, time: Duration) -> Result<Sample> {
    let (near, far) = Connection::pair(case.congestion.name(), case.tls)?;
    let shape = case.shape;
    let serving = thread::spawn(move || -> Result<()> {
        pin(TARGET_CORE)?;
        match shape {
            Shape::PingPong { sizes } | Shape::Pipeline { sizes, .. } => exchange::answer(far, sizes),
            Shape::Stream { .. } => stream::drink(far),
        }
    });
    let measuring = thread::spawn(move || -> Result<Sample> {
        pin(INITIATOR_CORE)?;
        match shape {
            Shape::PingPong { sizes } => exchange::ping(near, sizes, warmup, time),
            Shape::Pipeline { sizes, depth } => exchange::pipeline(near, sizes, depth, warmup, time),
            Shape::Stream { write_bytes } => stream::pour(near, write_bytes, warmup, time),
        }
    });
    let sample = measuring.join().map_err(|_| anyhow!("the near end panicked"))?;
    serving.join().map_err(|_| anyhow!("the far end panicked"))??;
    sample
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Congestion, Sizes};
    use crate::sample::Metric;

    fn measured(shape: Shape, tls: bool) -> Sample {
        let case = Raw { congestion: Congestion::Default, tls, shape };
        measure(&case, Duration::from_millis(5), Duration::from_millis(30)).expect("loopback works")
    }

    #[test]
    fn every_shape_moves_messages() {
        let sizes = Sizes { request_bytes: 72, response_bytes: 4136 };
        for tls in [false, true] {
            let ping = measured(Shape::PingPong { sizes }, tls);
            // No system call is as short as a microsecond, twice.
            assert!(ping.get(Metric::P50) > Some(1.0) && ping.get(Metric::P50) <= ping.get(Metric::P999));
            let pipeline = measured(Shape::Pipeline { sizes, depth: 32 }, tls);
            assert!(pipeline.get(Metric::Iops) > Some(0.0));
            let stream = measured(Shape::Stream { write_bytes: 128 << 10 }, tls);
            assert!(stream.get(Metric::Megabytes) > Some(0.0));
        }
    }
}
