//! The loop that keeps I/Os outstanding.

use std::mem;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use ringfab_fabric::{CopiedBytes, Events};
use ringfab_initiator::{HostEvent, IoDone, IoOperation, IoRequest};
use ringfab_memory::Buffer;
use ringfab_reactor::{Time, Wait};

use super::Plan;
use super::pattern::Pattern;
use super::verify::{Books, Expected, check, fill};
use crate::engine::Engine;
use crate::interrupt::Interrupt;

/// The longest latency that the histograms tell apart.
const LATENCY_MAX_NS: u64 = 100_000_000_000;
/// Mismatches that are told in full.
const MISMATCHES_TOLD: usize = 10;

/// What was measured.
pub(crate) struct Outcome {
    /// I/Os outstanding.
    pub(crate) outstanding: usize,
    pub(crate) elapsed: Duration,
    /// I/Os since the connection was made, those of the warm-up included.
    pub(crate) submitted: u64,
    pub(crate) reads: Direction,
    pub(crate) writes: Direction,
    pub(crate) user: Duration,
    pub(crate) system: Duration,
    /// What was copied here for all those submitted.
    pub(crate) copied: CopiedBytes,
    /// Times the connection was lost while running.
    pub(crate) losses: u64,
    /// Places read back after the run.
    pub(crate) verified: u64,
    pub(crate) mismatches: u64,
    /// The first of them.
    pub(crate) mismatch_texts: Vec<String>,
}

/// Reads or writes.
pub(crate) struct Direction {
    pub(crate) count: u64,
    /// In nanoseconds.
    pub(crate) latency: Histogram<u64>,
}

impl Outcome {
    /// Adds what another engine has measured at the same time. The processor time is that of the process already.
    pub(crate) fn add(&mut self, other: &Self) {
        self.elapsed = self.elapsed.max(other.elapsed);
        self.submitted += other.submitted;
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
        self.copied.received += other.copied.received;
        self.copied.sent += other.copied.sent;
        // Each engine sees each loss of the controller.
        self.losses = self.losses.max(other.losses);
        self.verified += other.verified;
        self.mismatches += other.mismatches;
        self.mismatch_texts.extend_from_slice(&other.mismatch_texts);
    }

    /// An error when something that was read was not what had been written.
    pub(crate) fn verdict(&self) -> Result<()> {
        match self.mismatch_texts.first() {
            None => Ok(()),
            Some(first) => {
                bail!("{} I/Os read something else than was written; the first: {first}", self.mismatches)
            }
        }
    }
}

impl Direction {
    fn new() -> Result<Self> {
        // All of its memory is made here; recording allocates nothing.
        let latency = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).context("make a histogram")?;
        Ok(Self { count: 0, latency })
    }

    #[inline]
    fn record(&mut self, latency: Duration) {
        self.count += 1;
        self.latency.saturating_record(latency.as_nanos() as u64);
    }

    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.latency += &other.latency;
    }

    fn reset(&mut self) {
        self.count = 0;
        self.latency.reset();
    }
}

/// An I/O outstanding; its tag is its index.
#[derive(Clone, Copy)]
struct Slot {
    started: Time,
    place: u64,
    generation: u32,
    is_read: bool,
}

struct Run<'a> {
    engine: &'a mut Engine,
    plan: &'a Plan,
    interrupt: &'a Interrupt,
    pattern: Pattern,
    slots: Vec<Slot>,
    /// What buffers are at hand for slots that have none in flight.
    spare: Vec<Buffer>,
    books: Option<Books>,
    reads: Direction,
    writes: Direction,
    outstanding: usize,
    submitted: u64,
    losses: u64,
    mismatches: u64,
    mismatch_texts: Vec<String>,
}

/// Runs the plan: warm-up, measurement, and reading back what was written.
pub(crate) fn measure(engine: &mut Engine, plan: &Plan, interrupt: &Interrupt) -> Result<Outcome> {
    let mut load = Run::new(engine, plan, interrupt)?;
    load.start()?;
    load.run(plan.warmup)?;
    load.reads.reset();
    load.writes.reset();
    let before = usage()?;
    let elapsed = load.run(plan.time)?;
    let after = usage()?;
    let counts = (load.reads.count, load.writes.count);
    let latencies = (load.reads.latency.clone(), load.writes.latency.clone());
    load.drain()?;
    let (submitted, copied) = (load.submitted, load.engine.host.copied_bytes());
    let verified = load.read_back()?;
    Ok(Outcome {
        outstanding: plan.outstanding,
        elapsed,
        submitted,
        reads: Direction { count: counts.0, latency: latencies.0 },
        writes: Direction { count: counts.1, latency: latencies.1 },
        user: after.0.saturating_sub(before.0),
        system: after.1.saturating_sub(before.1),
        copied,
        losses: load.losses,
        verified,
        mismatches: load.mismatches,
        mismatch_texts: load.mismatch_texts,
    })
}

/// Processor time of this process in user and system mode.
fn usage() -> Result<(Duration, Duration)> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("getrusage")?;
    let duration = |time: TimeVal| {
        Duration::new(time.tv_sec().unsigned_abs(), time.tv_usec().unsigned_abs() as u32 * 1000)
    };
    Ok((duration(usage.user_time()), duration(usage.system_time())))
}

impl<'a> Run<'a> {
    fn new(engine: &'a mut Engine, plan: &'a Plan, interrupt: &'a Interrupt) -> Result<Self> {
        let slot = Slot { started: Time::ZERO, place: 0, generation: 0, is_read: true };
        Ok(Self {
            engine,
            plan,
            interrupt,
            pattern: Pattern::new(plan),
            slots: vec![slot; plan.outstanding],
            spare: Vec::with_capacity(2 * plan.outstanding),
            books: plan.verify.then(|| Books::new(plan.places, plan.read_percent == 100)),
            reads: Direction::new()?,
            writes: Direction::new()?,
            outstanding: 0,
            submitted: 0,
            losses: 0,
            mismatches: 0,
            mismatch_texts: Vec::with_capacity(MISMATCHES_TOLD),
        })
    }

    fn start(&mut self) -> Result<()> {
        let now = self.engine.host.reactor().clock();
        for index in 0..self.slots.len() {
            self.issue(index, now)?;
        }
        Ok(())
    }

    /// Keeps the I/Os going for a time, and says how long it really was.
    fn run(&mut self, time: Duration) -> Result<Duration> {
        let start = self.engine.host.reactor().clock();
        let end = start + time;
        // The time ends though nothing is answered.
        self.engine.wake_after(time);
        let mut now = start;
        let mut events = Events::with_capacity(self.slots.len());
        while now < end {
            self.interrupt.check()?;
            self.engine.host.turn(Wait::Event).context("the ring")?;
            now = self.engine.host.reactor().clock();
            while self.engine.host.exchange_events(&mut events) {
                while let Some(event) = events.next_slot() {
                    if let Some(index) = self.on_event(event, now)? {
                        self.issue(index, now)?;
                    }
                }
            }
        }
        Ok(now.since(start))
    }

    /// Waits for what is outstanding.
    fn drain(&mut self) -> Result<()> {
        while self.outstanding > 0 {
            self.interrupt.check()?;
            self.engine.host.turn(Wait::Event).context("the ring")?;
            let now = self.engine.host.reactor().clock();
            while let Some(event) = self.engine.host.next_event() {
                self.on_event(&mut Some(event), now)?;
            }
        }
        Ok(())
    }

    /// The slot that came free, if the event was the end of an I/O, which is looked at where it lies.
    #[inline]
    fn on_event(&mut self, event: &mut Option<HostEvent>, now: Time) -> Result<Option<usize>> {
        if let Some(HostEvent::IoDone(done)) = event {
            return self.on_done(done, now).map(Some);
        }
        match event.take() {
            Some(HostEvent::Failed { error, .. }) => Err(error.into()),
            Some(HostEvent::Lost { error, .. }) => {
                tracing::debug!(%error, "lost");
                self.losses += 1;
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    #[inline]
    fn on_done(&mut self, done: &mut IoDone, now: Time) -> Result<usize> {
        self.outstanding -= 1;
        let index = done.tag as usize;
        let slot = self.slots[index];
        if done.result.is_err()
            && let Err(error) = mem::replace(&mut done.result, Ok(()))
        {
            let what = if slot.is_read { "read" } else { "write" };
            return Err(anyhow!(error).context(format!("{what} at LBA {}", self.lba(slot.place))));
        }
        let latency = now.since(slot.started);
        if slot.is_read {
            self.reads.record(latency);
        } else {
            self.writes.record(latency);
        }
        if self.books.is_some() {
            self.keep_books(slot, done.buffer.as_deref());
        }
        // A source that a send still holds goes back to the pool by itself.
        let buffer = done.buffer.take();
        let buffer = buffer.or_else(|| done.source.take().and_then(|source| source.into_unique().ok()));
        self.spare.extend(buffer);
        Ok(index)
    }

    fn keep_books(&mut self, slot: Slot, read: Option<&[u8]>) {
        let Some(books) = &mut self.books else { return };
        books.release(slot.place);
        if !slot.is_read {
            books.written(slot.place, slot.generation);
            return;
        }
        let expected = books.expected(slot.place);
        if let (Some(expected), Some(bytes)) = (expected, read) {
            self.compare(slot.place, expected, bytes.len(), |length| &bytes[..length]);
        }
    }

    fn compare<'b>(
        &mut self,
        place: u64,
        expected: Expected,
        length: usize,
        bytes: impl FnOnce(usize) -> &'b [u8],
    ) {
        let length = length.min(self.plan.io_bytes as usize);
        if let Err(error) = check(bytes(length), self.offset(place), expected, self.plan.seed) {
            self.mismatches += 1;
            if self.mismatch_texts.len() < MISMATCHES_TOLD {
                self.mismatch_texts.push(error.to_string());
            }
        }
    }

    /// Starts the next I/O of the pattern in a free slot.
    #[inline]
    fn issue(&mut self, index: usize, now: Time) -> Result<()> {
        let is_read = self.pattern.is_read();
        let mut place = self.pattern.place();
        let mut generation = 0;
        if let Some(books) = &mut self.books {
            place = books.occupy(place);
            generation = if is_read { 0 } else { books.next_generation(place) };
        }
        self.slots[index] = Slot { started: now, place, generation, is_read };
        self.submit(index)
    }

    #[inline]
    fn submit(&mut self, index: usize) -> Result<()> {
        let slot = self.slots[index];
        let length = self.plan.io_bytes as usize;
        let buffer = self.spare.pop().or_else(|| self.engine.host.pool().take(length));
        let Some(mut buffer) = buffer else { bail!("the pool has no buffer left for an I/O") };
        let (lba, nlb) = (self.lba(slot.place), self.plan.io_nlb);
        let operation = if slot.is_read {
            IoOperation::Read { lba, nlb, buffer }
        } else {
            if self.books.is_some() {
                fill(&mut buffer[..length], self.offset(slot.place), slot.generation, self.plan.seed);
            }
            IoOperation::Write { lba, nlb, source: buffer.share(), offset: 0, fua: false }
        };
        let request = IoRequest { nsid: self.plan.nsid, tag: index as u64, operation };
        let controller = self.engine.controller;
        self.engine.host.submit(controller, request).map_err(|refused| anyhow!(refused.reason))?;
        self.outstanding += 1;
        self.submitted += 1;
        Ok(())
    }

    /// Reads every place that was written, with all slots, and checks it.
    fn read_back(&mut self) -> Result<u64> {
        let (mut next, mut verified) = (0, 0);
        let mut free: Vec<usize> = (0..self.slots.len()).collect();
        loop {
            while let Some(index) = free.pop() {
                let Some(place) = self.books.as_ref().and_then(|books| books.next_written(next)) else {
                    break;
                };
                next = place + 1;
                verified += 1;
                let now = self.engine.host.reactor().clock();
                self.slots[index] = Slot { started: now, place, generation: 0, is_read: true };
                self.submit(index)?;
            }
            if self.outstanding == 0 {
                return Ok(verified);
            }
            self.interrupt.check()?;
            self.engine.host.turn(Wait::Event).context("the ring")?;
            let now = self.engine.host.reactor().clock();
            while let Some(event) = self.engine.host.next_event() {
                free.extend(self.on_event(&mut Some(event), now)?);
            }
        }
    }

    fn lba(&self, place: u64) -> u64 {
        self.plan.lba_first + place * u64::from(self.plan.io_nlb)
    }

    fn offset(&self, place: u64) -> u64 {
        self.lba(place) * u64::from(self.plan.block_bytes)
    }
}
