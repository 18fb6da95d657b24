//! Bytes in one direction.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::connection::Connection;
use crate::sample::{Metric, Sample};

/// Receives until the other end closes.
pub(super) fn drink(mut far: Connection) -> Result<()> {
    while far.receive()?.is_some() {}
    Ok(())
}

/// Offers `write_bytes` with each send. What the socket took is what counts: its buffer is full all the time.
pub(super) fn pour(
    mut near: Connection,
    write_bytes: usize,
    warmup: Duration,
    time: Duration,
) -> Result<Sample> {
    pour_for(&mut near, write_bytes, warmup)?;
    let begun = Instant::now();
    let sent = pour_for(&mut near, write_bytes, time)?;
    let mut sample = Sample::default();
    sample.set(Metric::Megabytes, sent as f64 / 1e6 / begun.elapsed().as_secs_f64());
    Ok(sample)
}

fn pour_for(near: &mut Connection, write_bytes: usize, time: Duration) -> Result<u64> {
    let begun = Instant::now();
    let mut sent = 0;
    while begun.elapsed() < time || sent == 0 {
        let more = if near.has_unsent() { 0 } else { write_bytes };
        sent += near.send(more)? as u64;
    }
    Ok(sent)
}
