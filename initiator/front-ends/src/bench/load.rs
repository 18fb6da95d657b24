//! The client of an engine that keeps I/Os outstanding.

use std::io;
use std::mem;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use ringfab_fabric::CopiedBytes;
use ringfab_initiator::blocking::{EngineClient, Turn};
use ringfab_initiator::{ControllerId, Host, HostEvent, IoDone, IoOperation, IoRequest};
use ringfab_memory::Buffer;
use ringfab_reactor::{Time, Token};

use super::Workload;
use super::access_pattern::AccessPattern;
use super::verify::{Expected, ExtentTable, check, fill};
use crate::advice::Advised;
use crate::interrupt::{Cancelled, Interrupt};

/// The longest latency that the histograms tell apart.
const LATENCY_MAX_NS: u64 = 100_000_000_000;
/// Mismatches that are told in full.
const MISMATCHES_TOLD: usize = 10;
/// The timer that ends a phase though nothing is answered.
const PHASE_END: Token = Token::new(Host::OWNER_FOREIGN_FIRST, 0, 0, 0);

/// How long a window is. An engine swaps windows that often, and looks at the clock for that no more than without.
const WINDOW: Duration = Duration::from_secs(1);
/// Windows of an engine: one is filled while the other is looked at.
pub(crate) const WINDOWS: usize = 2;

/// What an engine says while it measures.
pub(crate) enum Report {
    /// A window is full.
    Window {
        /// By which engine.
        engine: usize,
        window: Box<Window>,
    },
    /// It is over.
    Over(Result<Box<Measurement>>),
}

/// The I/Os that have ended within a second of the measurement. Where nobody has taken the one before in time, it is
/// longer.
pub(crate) struct Window {
    /// The second that it begins with, counted from zero.
    pub(crate) number: u32,
    pub(crate) time: Duration,
    pub(crate) reads: LatencyStats,
    pub(crate) writes: LatencyStats,
}

/// How an engine exchanges windows. Nothing of it allocates or waits.
pub(crate) struct Exchange {
    pub(crate) engine: usize,
    /// It has room for all windows, and the end.
    pub(crate) reports: SyncSender<Report>,
    /// Windows that are empty again.
    pub(crate) empty: Receiver<Box<Window>>,
}

/// What was measured.
pub(crate) struct Measurement {
    /// I/Os outstanding.
    pub(crate) outstanding: usize,
    pub(crate) elapsed: Duration,
    /// Whether a signal ended it before its time.
    pub(crate) interrupted: bool,
    /// I/Os since the connection was made, those of the warm-up included.
    pub(crate) submitted: u64,
    /// The number of the last window of an engine, and how long it was.
    pub(crate) last: Option<(u32, Duration)>,
    /// An engine has the last window here; whoever gathers windows adds the others.
    pub(crate) reads: LatencyStats,
    pub(crate) writes: LatencyStats,
    pub(crate) cpu: CpuTime,
    /// What was copied here for all those submitted.
    pub(crate) copied: CopiedBytes,
    /// Times the connection was lost while running.
    pub(crate) losses: u64,
    /// Extents read back after the run.
    pub(crate) verified: u64,
    pub(crate) mismatches: u64,
    /// The first of them.
    pub(crate) mismatch_texts: Vec<String>,
}

/// The reads or the writes.
#[derive(Clone)]
pub(crate) struct LatencyStats {
    pub(crate) count: u64,
    /// In nanoseconds.
    pub(crate) latency: Histogram<u64>,
}

/// Processor time of this process.
#[derive(Clone, Copy, Default)]
pub(crate) struct CpuTime {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

impl Measurement {
    /// Adds what another engine has measured at the same time. The processor time is that of the process already.
    pub(crate) fn add(&mut self, other: &Self) {
        self.outstanding += other.outstanding;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.interrupted |= other.interrupted;
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

#[cfg(test)]
impl Measurement {
    /// Without I/O.
    pub(crate) fn of_nothing() -> Result<Self> {
        Ok(Self {
            outstanding: 0,
            elapsed: Duration::ZERO,
            interrupted: false,
            last: None,
            submitted: 0,
            reads: LatencyStats::new()?,
            writes: LatencyStats::new()?,
            cpu: CpuTime::default(),
            copied: CopiedBytes::default(),
            losses: 0,
            verified: 0,
            mismatches: 0,
            mismatch_texts: Vec::new(),
        })
    }
}

impl Window {
    /// An empty one.
    pub(crate) fn new() -> Result<Self> {
        let (reads, writes) = (LatencyStats::new()?, LatencyStats::new()?);
        Ok(Self { number: 0, time: Duration::ZERO, reads, writes })
    }

    /// Makes it empty again.
    pub(crate) fn reset(&mut self) {
        self.reads.reset();
        self.writes.reset();
    }
}

impl LatencyStats {
    pub(crate) fn new() -> Result<Self> {
        // All of its memory is made here; recording allocates nothing.
        let latency = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).context("make a histogram")?;
        Ok(Self { count: 0, latency })
    }

    #[inline]
    pub(crate) fn record(&mut self, latency: Duration) {
        self.count += 1;
        self.latency.saturating_record(latency.as_nanos() as u64);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.latency += &other.latency;
    }

    pub(crate) fn reset(&mut self) {
        self.count = 0;
        self.latency.reset();
    }
}

impl CpuTime {
    fn now() -> Result<Self> {
        let usage = getrusage(UsageWho::RUSAGE_SELF).context("getrusage")?;
        let duration = |time: TimeVal| {
            Duration::new(time.tv_sec().unsigned_abs(), time.tv_usec().unsigned_abs() as u32 * 1000)
        };
        Ok(Self { user: duration(usage.user_time()), system: duration(usage.system_time()) })
    }

    fn since(self, before: Self) -> Self {
        Self {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
        }
    }
}

/// What a run is at. Each phase leads to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No I/O was submitted.
    New,
    /// I/Os are kept outstanding, until a time.
    WarmUp,
    /// The same, and it counts.
    Measure,
    /// The I/Os that are outstanding end.
    Drain,
    /// What was written is read and checked.
    ReadBack,
}

/// An I/O outstanding; its tag is its index.
#[derive(Clone, Copy)]
struct InFlight {
    started: Time,
    extent: u64,
    generation: u32,
    is_read: bool,
}

/// A phase that lasts for some time.
#[derive(Clone, Copy)]
struct Period {
    start: Time,
    end: Time,
    cpu: CpuTime,
    /// When the window began that is being filled, and when it is full.
    window_start: Time,
    window_end: Time,
}

/// The load of one engine: warm-up, measurement, and reading back what was written.
pub(crate) struct Load {
    workload: Workload,
    interrupt: Interrupt,
    exchange: Exchange,
    phase: Phase,
    period: Period,
    /// The time at which the events of this turn are looked at: what was answered together is timed together.
    now: Option<Time>,
    error: Option<anyhow::Error>,
    pattern: AccessPattern,
    ios: Vec<InFlight>,
    /// Buffers of I/Os that have ended.
    spare: Vec<Buffer>,
    outstanding: usize,
    submitted: u64,
    losses: u64,
    window: Box<Window>,
    verifier: Verifier,
    /// Until all is read back.
    measured: Option<Measurement>,
}

/// Checks what is read, in verify mode.
struct Verifier {
    extents: Option<ExtentTable>,
    /// I/Os that have ended, while what was written is read back.
    idle: Vec<usize>,
    /// The next extent to read back.
    next: u64,
    verified: u64,
    mismatches: u64,
    mismatch_texts: Vec<String>,
}

impl Load {
    /// A load whose result is sent when it is over.
    pub(crate) fn new(workload: Workload, interrupt: Interrupt, exchange: Exchange) -> Result<Self> {
        let io = InFlight { started: Time::ZERO, extent: 0, generation: 0, is_read: true };
        let outstanding = workload.outstanding;
        let (zero, cpu) = (Time::ZERO, CpuTime::default());
        Ok(Self {
            interrupt,
            exchange,
            phase: Phase::New,
            period: Period { start: zero, end: zero, cpu, window_start: zero, window_end: zero },
            now: None,
            error: None,
            pattern: AccessPattern::new(&workload),
            ios: vec![io; outstanding],
            spare: Vec::with_capacity(2 * outstanding),
            outstanding: 0,
            submitted: 0,
            losses: 0,
            window: Box::new(Window::new()?),
            verifier: Verifier {
                extents: workload
                    .verify
                    .then(|| ExtentTable::new(workload.extents, workload.read_percent == 100)),
                idle: Vec::with_capacity(outstanding),
                next: 0,
                verified: 0,
                mismatches: 0,
                mismatch_texts: Vec::with_capacity(MISMATCHES_TOLD),
            },
            measured: None,
            workload,
        })
    }

    /// Goes on to the next phase when this one is over. The measurement comes at the end of the last.
    fn advance(&mut self, host: &mut Host, controller: ControllerId) -> Result<Option<Measurement>> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.interrupt.is_interrupted() {
            return self.give_up(host).map(Some);
        }
        if self.phase == Phase::New {
            let now = host.reactor().clock();
            for index in 0..self.ios.len() {
                self.issue(index, now, host, controller)?;
            }
            self.now = Some(self.begin(Phase::WarmUp, self.workload.warmup, host)?);
        }
        if let Some(now) = self.now.take().filter(|now| *now >= self.period.window_end) {
            self.on_full_window(now, host)?;
        }
        if self.phase == Phase::Drain && self.outstanding == 0 {
            self.count_moved(host);
            self.verifier.idle.extend(0..self.ios.len());
            self.phase = Phase::ReadBack;
        }
        if self.phase == Phase::ReadBack {
            self.read_back(host, controller)?;
            if self.outstanding == 0 {
                return Ok(self.measured.take().map(|measured| self.complete(measured)));
            }
        }
        Ok(None)
    }

    /// A window, and perhaps the phase, is over.
    #[cold]
    fn on_full_window(&mut self, now: Time, host: &mut Host) -> Result<()> {
        let is_over = now >= self.period.end;
        match self.phase {
            Phase::WarmUp if is_over => {
                self.window.reset();
                self.begin(Phase::Measure, self.workload.time, host)?;
            }
            Phase::Measure if is_over => {
                self.measured = Some(self.measurement(now.since(self.period.start), false)?);
                self.phase = Phase::Drain;
            }
            Phase::Measure => self.next_window(now),
            _ => {}
        }
        Ok(())
    }

    /// Hands the window over and goes on with an empty one. If there is none, the window becomes longer.
    fn next_window(&mut self, now: Time) {
        let Period { start, end, window_start, .. } = self.period;
        if let Ok(mut full) = self.exchange.empty.try_recv() {
            mem::swap(&mut self.window, &mut full);
            full.time = now.since(window_start);
            let report = Report::Window { engine: self.exchange.engine, window: full };
            // Nobody gathers them where another engine has failed.
            let _gone = self.exchange.reports.try_send(report);
            self.window.number = now.since(start).as_secs() as u32;
            self.period.window_start = now;
        }
        let next = start + Duration::from_secs(now.since(start).as_secs()) + WINDOW;
        self.period.window_end = next.min(end);
    }

    /// A signal came: what was measured so far is the result, if anything was.
    fn give_up(&mut self, host: &mut Host) -> Result<Measurement> {
        if self.phase == Phase::Measure {
            let elapsed = host.reactor().clock().since(self.period.start);
            self.measured = Some(self.measurement(elapsed, true)?);
        }
        self.count_moved(host);
        let measured = self.measured.take().ok_or(Cancelled)?;
        Ok(Measurement { interrupted: true, ..self.complete(measured) })
    }

    /// What is known once the last I/O has ended.
    fn count_moved(&mut self, host: &Host) {
        if let Some(measured) = &mut self.measured {
            measured.submitted = self.submitted;
            measured.copied = host.copied_bytes();
        }
    }

    /// Begins a phase that lasts for some time, and says when.
    fn begin(&mut self, phase: Phase, time: Duration, host: &mut Host) -> Result<Time> {
        let cpu = CpuTime::now()?;
        let start = host.reactor().clock();
        let end = start + time;
        host.reactor().set_timer(end, PHASE_END);
        self.phase = phase;
        let window_end = if phase == Phase::Measure { end.min(start + WINDOW) } else { end };
        self.period = Period { start, end, cpu, window_start: start, window_end };
        Ok(start)
    }

    /// What was measured in the period that has ended; of I/Os, what is in the last window.
    fn measurement(&mut self, elapsed: Duration, interrupted: bool) -> Result<Measurement> {
        self.window.time = elapsed.saturating_sub(self.period.window_start.since(self.period.start));
        Ok(Measurement {
            outstanding: self.workload.outstanding,
            elapsed,
            interrupted,
            last: Some((self.window.number, self.window.time)),
            submitted: 0,
            reads: self.window.reads.clone(),
            writes: self.window.writes.clone(),
            cpu: CpuTime::now()?.since(self.period.cpu),
            copied: CopiedBytes::default(),
            losses: 0,
            verified: 0,
            mismatches: 0,
            mismatch_texts: Vec::new(),
        })
    }

    /// Adds what is known at the end only.
    fn complete(&mut self, measured: Measurement) -> Measurement {
        Measurement {
            losses: self.losses,
            verified: self.verifier.verified,
            mismatches: self.verifier.mismatches,
            mismatch_texts: mem::take(&mut self.verifier.mismatch_texts),
            ..measured
        }
    }

    /// The end of an I/O is looked at where it lies.
    #[inline]
    fn take_event(
        &mut self,
        event: &mut HostEvent,
        now: Time,
        host: &mut Host,
        controller: ControllerId,
    ) -> Result<()> {
        match event {
            HostEvent::IoDone(done) => {
                let index = self.on_done(done, now)?;
                match self.phase {
                    Phase::WarmUp | Phase::Measure => self.issue(index, now, host, controller)?,
                    Phase::ReadBack => self.verifier.idle.push(index),
                    Phase::New | Phase::Drain => {}
                }
            }
            HostEvent::Failed { error, .. } => return Err(Advised(error.clone()).into()),
            HostEvent::Lost { .. } => self.losses += 1,
            _ => {}
        }
        Ok(())
    }

    #[inline]
    fn on_done(&mut self, done: &mut IoDone, now: Time) -> Result<usize> {
        self.outstanding -= 1;
        let index = done.tag as usize;
        let io = self.ios[index];
        if let Err(error) = done.result {
            let what = if io.is_read { "read" } else { "write" };
            return Err(anyhow!(error).context(format!("{what} at LBA {}", self.workload.lba(io.extent))));
        }
        let latency = now.since(io.started);
        if io.is_read {
            self.window.reads.record(latency);
        } else {
            self.window.writes.record(latency);
        }
        if self.verifier.extents.is_some() {
            self.verifier.on_done(io, done.buffer.as_deref(), &self.workload);
        }
        // A source that a send still holds goes back to the pool by itself.
        let buffer = done.buffer.take();
        let buffer = buffer.or_else(|| done.source.take().and_then(|source| source.into_unique().ok()));
        self.spare.extend(buffer);
        Ok(index)
    }

    /// Starts the next I/O of the pattern in the place of one that has ended.
    #[inline]
    fn issue(&mut self, index: usize, now: Time, host: &mut Host, controller: ControllerId) -> Result<()> {
        let is_read = self.pattern.is_read();
        let mut extent = self.pattern.next_extent();
        let mut generation = 0;
        if let Some(extents) = &mut self.verifier.extents {
            extent = extents.acquire(extent);
            generation = if is_read { 0 } else { extents.next_generation(extent) };
        }
        self.ios[index] = InFlight { started: now, extent, generation, is_read };
        self.submit(index, host, controller)
    }

    #[inline]
    fn submit(&mut self, index: usize, host: &mut Host, controller: ControllerId) -> Result<()> {
        let (io, workload) = (self.ios[index], &self.workload);
        let length = workload.io_bytes as usize;
        let buffer = self.spare.pop().or_else(|| host.pool().take(length));
        let Some(mut buffer) = buffer else { bail!("the pool has no buffer left for an I/O") };
        let (lba, nlb) = (workload.lba(io.extent), workload.io_nlb);
        let operation = if io.is_read {
            IoOperation::Read { lba, nlb, buffer }
        } else {
            if self.verifier.extents.is_some() {
                fill(&mut buffer[..length], workload.offset(io.extent), io.generation, workload.seed);
            }
            IoOperation::Write { lba, nlb, source: buffer.share(), offset: 0, fua: false }
        };
        let request = IoRequest { nsid: workload.nsid, tag: index as u64, operation };
        host.submit(controller, request).map_err(|refused| anyhow!(refused.reason))?;
        self.outstanding += 1;
        self.submitted += 1;
        Ok(())
    }

    /// Reads extents that were written, as many at once as there are I/Os.
    fn read_back(&mut self, host: &mut Host, controller: ControllerId) -> Result<()> {
        while let Some(extent) = self.verifier.next_written() {
            let Some(index) = self.verifier.idle.pop() else { return Ok(()) };
            self.verifier.next = extent + 1;
            self.verifier.verified += 1;
            let started = host.reactor().clock();
            self.ios[index] = InFlight { started, extent, generation: 0, is_read: true };
            self.submit(index, host, controller)?;
        }
        Ok(())
    }
}

impl Verifier {
    /// An I/O has ended, which has read these bytes if it was a read.
    fn on_done(&mut self, io: InFlight, read: Option<&[u8]>, workload: &Workload) {
        let Some(extents) = &mut self.extents else { return };
        extents.release(io.extent);
        if !io.is_read {
            return extents.written(io.extent, io.generation);
        }
        if let (Some(expected), Some(bytes)) = (extents.expected(io.extent), read) {
            self.compare(io.extent, expected, bytes, workload);
        }
    }

    fn compare(&mut self, extent: u64, expected: Expected, bytes: &[u8], workload: &Workload) {
        let bytes = &bytes[..bytes.len().min(workload.io_bytes as usize)];
        if let Err(error) = check(bytes, workload.offset(extent), expected, workload.seed) {
            self.mismatches += 1;
            if self.mismatch_texts.len() < MISMATCHES_TOLD {
                self.mismatch_texts.push(error.to_string());
            }
        }
    }

    /// The next extent that was written and not read back.
    fn next_written(&self) -> Option<u64> {
        self.extents.as_ref()?.next_written(self.next)
    }
}

impl EngineClient for Load {
    fn turn(&mut self, host: &mut Host, controller: ControllerId) -> io::Result<Turn> {
        let result = self.advance(host, controller);
        let Some(result) = result.transpose() else { return Ok(Turn::Idle) };
        // Whoever asked waits for it, unless another engine has failed.
        let _gone = self.exchange.reports.try_send(Report::Over(result.map(Box::new)));
        Ok(Turn::Over)
    }

    #[inline]
    fn on_event(&mut self, event: &mut HostEvent, host: &mut Host, controller: ControllerId) {
        let now = *self.now.get_or_insert_with(|| host.reactor().clock());
        if self.error.is_none()
            && let Err(error) = self.take_event(event, now, host, controller)
        {
            self.error = Some(error);
        }
    }
}
