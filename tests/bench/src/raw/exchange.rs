//! Requests and responses.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use super::connection::Connection;
use crate::case::Sizes;
use crate::sample::{Metric, Sample};

/// The longest latency that is told apart.
const LATENCY_MAX_NS: u64 = 10_000_000_000;

/// Answers every complete request of one receive with one send, until the other end closes.
pub(super) fn answer(mut far: Connection, sizes: Sizes) -> Result<()> {
    let mut partial = 0;
    while let Some(received) = far.receive()? {
        partial += received;
        far.send(partial / sizes.request_bytes * sizes.response_bytes)?;
        partial %= sizes.request_bytes;
    }
    Ok(())
}

/// One request at a time; each exchange is timed.
pub(super) fn ping(mut near: Connection, sizes: Sizes, warmup: Duration, time: Duration) -> Result<Sample> {
    let mut latency = Histogram::<u64>::new_with_bounds(1, LATENCY_MAX_NS, 3).context("a histogram")?;
    let begun = Instant::now() + warmup;
    let mut now = Instant::now();
    while now < begun + time || latency.is_empty() {
        let started = now;
        exchange_one(&mut near, sizes)?;
        now = Instant::now();
        if started >= begun {
            latency.saturating_record(now.duration_since(started).as_nanos() as u64);
        }
    }
    let mut sample = Sample::default();
    sample.set(Metric::Iops, latency.len() as f64 / now.duration_since(begun).as_secs_f64());
    sample.set_latency(&latency);
    Ok(sample)
}

fn exchange_one(near: &mut Connection, sizes: Sizes) -> Result<()> {
    near.send(sizes.request_bytes)?;
    let mut received = 0;
    while received < sizes.response_bytes {
        if near.has_unsent() {
            near.send(0)?;
        }
        received += near.receive()?.context("the far end closed")?;
    }
    Ok(())
}

/// `depth` requests outstanding; each receive's complete responses make as many new requests, in one send.
pub(super) fn pipeline(
    mut near: Connection,
    sizes: Sizes,
    depth: usize,
    warmup: Duration,
    time: Duration,
) -> Result<Sample> {
    near.send(depth * sizes.request_bytes)?;
    let mut partial = 0;
    exchange_for(&mut near, sizes, &mut partial, warmup)?;
    let begun = Instant::now();
    let count = exchange_for(&mut near, sizes, &mut partial, time)?;
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    let mut sample = Sample::default();
    sample.set(Metric::Iops, rate);
    sample.set(Metric::Megabytes, rate * (sizes.request_bytes + sizes.response_bytes) as f64 / 1e6);
    Ok(sample)
}

/// Responses that came within `time`, or until the first one.
fn exchange_for(near: &mut Connection, sizes: Sizes, partial: &mut usize, time: Duration) -> Result<u64> {
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < time || count == 0 {
        *partial += near.receive()?.context("the far end closed")?;
        let complete = *partial / sizes.response_bytes;
        *partial %= sizes.response_bytes;
        near.send(complete * sizes.request_bytes)?;
        count += complete as u64;
    }
    Ok(count)
}
