//! `ringfab bench`: measures a namespace on the engine itself, with no thread in between.
//!
//! The loop reads the clock once in each turn with answers, so answers of one turn get the same time. At depth one that
//! is once per I/O. Buffers, tables and histograms are allocated before the first I/O.

mod load;
mod pattern;
mod report;
mod verify;

use std::num::NonZeroU16;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use ringfab_initiator::Namespace;
use ringfab_memory::ClassLayout;

use crate::context::{Context, Usage};
use crate::engine::{Engine, EngineSetup, Engines, HURRIED, random};
use crate::interrupt::Interrupt;
use crate::namespaces::confirm_overwriting;
use crate::options::ConnectArgs;
use crate::output;
use crate::quantity::{Bytes, Span, cores};
use load::Outcome;

/// The options of `ringfab bench`.
#[derive(Args, Clone)]
pub struct BenchArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// What to do
    #[arg(long, value_enum, default_value_t = Kind::Randread)]
    rw: Kind,
    /// Reads of a hundred I/Os of randrw
    #[arg(long, value_name = "PERCENT", default_value_t = 70, value_parser = clap::value_parser!(u8).range(0..=100))]
    rwmix: u8,
    /// Bytes of one I/O
    #[arg(long, value_name = "SIZE", default_value = "4k")]
    bs: Bytes,
    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "10s")]
    time: Span,
    /// How long to run before measuring
    #[arg(long, value_name = "TIME", default_value = "2s")]
    warmup: Span,
    /// Use only this much of the namespace
    #[arg(long, value_name = "SIZE")]
    size: Option<Bytes>,
    /// Use the namespace from here on
    #[arg(long, value_name = "SIZE", default_value = "0")]
    offset: Bytes,
    /// Write blocks that contain their own offset, check every read, and read back everything that was written
    #[arg(long)]
    verify: bool,
    /// Seed of the offsets and of the pattern; by default a random one, which the report shows
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Never sleep, only spin; overrides --spin
    #[arg(long)]
    poll: bool,
    /// Engine threads. Each has its own I/O queues of the controller, and its own part of the namespace. With --core,
    /// the threads are pinned to that core and the cores that follow
    #[arg(long, value_name = "N", default_value = "1", value_parser = cores)]
    cores: NonZeroU16,
    /// Confirm that this namespace is overwritten
    #[arg(long, value_name = "NSID")]
    destroy_data: Option<u32>,
}

/// What the I/Os are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Reads at random offsets
    Randread,
    /// Writes at random offsets
    Randwrite,
    /// Reads in order
    Read,
    /// Writes in order
    Write,
    /// Reads and writes at random offsets
    Randrw,
}

impl Kind {
    /// Whether offsets are random.
    fn is_random(self) -> bool {
        !matches!(self, Kind::Read | Kind::Write)
    }

    /// Reads of a hundred I/Os.
    fn read_percent(self, mix: u8) -> u8 {
        match self {
            Kind::Randread | Kind::Read => 100,
            Kind::Randwrite | Kind::Write => 0,
            Kind::Randrw => mix,
        }
    }
}

/// What to do, checked against the namespace.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) read_percent: u8,
    pub(crate) nsid: u32,
    pub(crate) block_bytes: u32,
    /// Bytes of one I/O.
    pub(crate) io_bytes: u32,
    /// Blocks of one I/O.
    pub(crate) io_nlb: u32,
    /// First block used.
    pub(crate) lba_first: u64,
    /// I/Os that fit side by side.
    pub(crate) places: u64,
    /// I/Os outstanding.
    pub(crate) outstanding: usize,
    pub(crate) time: Duration,
    pub(crate) warmup: Duration,
    pub(crate) verify: bool,
    pub(crate) seed: u64,
    /// That of the offsets of one engine.
    pub(crate) pattern_seed: u64,
}

/// The most places that verify mode keeps a generation of.
const VERIFY_PLACES_MAX: u64 = 1 << 27;
/// Longer than any run: with it the ring never sleeps.
const SPIN_ALWAYS: Duration = Duration::from_secs(86_400);

/// Runs the measurement and prints it.
pub fn run(args: &BenchArgs, context: &Context) -> Result<()> {
    ensure_sensible(args)?;
    let options = args.connect.connect_options()?;
    let url = &options.url;
    let queues = usize::from(url.queues.unwrap_or(options.queues));
    let depth = usize::from(url.depth.unwrap_or(options.depth));
    let cores = usize::from(args.cores.get());
    // The first engines have as many queues as any.
    let outstanding = queues.div_ceil(cores) * depth;
    let mut setup = EngineSetup::new(&args.connect, buffers(args, outstanding));
    if args.poll {
        setup.spin = SPIN_ALWAYS;
    }
    let seed = args.seed.map_or_else(|| random().map(u64::from_le_bytes), Ok)?;
    let load = Load { args: args.clone(), seed, queues, depth, interrupt: context.interrupt.clone() };
    let others = load.clone();
    let mut engines = Engines::attach(options, &setup, args.cores, &context.interrupt, move |engine| {
        others.measure(engine).map(|(_, outcome)| outcome)
    })?;
    let info = engines.leader.host.info(engines.leader.controller).cloned();
    let result = load.measure(&mut engines.leader);
    if result.is_ok() {
        engines.wait()?;
    }
    let (detached, others) = engines.detach(&context.interrupt, Some(HURRIED));
    let (mut plan, mut outcome) = result?;
    for other in others? {
        plan.outstanding += other.outstanding;
        outcome.add(&other);
    }
    output::either(
        context.json,
        || report::document(&plan, &outcome, info.as_ref()),
        || report::lines(&plan, &outcome),
    )?;
    outcome.verdict()?;
    detached
}

/// What the engines share of a measurement.
#[derive(Clone)]
struct Load {
    args: BenchArgs,
    seed: u64,
    queues: usize,
    depth: usize,
    interrupt: Interrupt,
}

impl Load {
    /// Measures with one of the engines.
    fn measure(&self, engine: &mut Engine) -> Result<(Plan, Outcome)> {
        let engines = usize::from(self.args.cores.get());
        let queues = self.queues.max(engines).saturating_sub(engine.number).div_ceil(engines);
        let part = plan(&self.args, &engine.only_namespace()?, queues * self.depth, self.seed)?;
        let part = part.part(engine.number as u64, engines as u64)?;
        let outcome = load::measure(engine, &part, &self.interrupt)?;
        Ok((part, outcome))
    }
}

impl Plan {
    /// The part of an engine: each has its own places, so that none writes where another reads.
    fn part(self, engine: u64, engines: u64) -> Result<Self> {
        let places = self.places / engines;
        ensure!(places > 0, "the part of the namespace to use is too small for {engines} engine threads");
        let lba_first = self.lba_first + engine * places * u64::from(self.io_nlb);
        let outstanding = self.in_places(places);
        Ok(Self {
            places,
            lba_first,
            outstanding,
            pattern_seed: self.pattern_seed.wrapping_add(engine),
            ..self
        })
    }

    /// I/Os outstanding: when verifying, no two are at the same place at the same time.
    fn in_places(&self, places: u64) -> usize {
        if self.verify { self.outstanding.min(places.div_ceil(2) as usize) } else { self.outstanding }
    }
}

fn ensure_sensible(args: &BenchArgs) -> Result<()> {
    let problem = if args.bs.0 == 0 || args.bs.0 > 1 << 30 {
        "--bs is from a logical block to 1 GiB"
    } else if args.time.0.is_zero() {
        "--time must be longer than nothing"
    } else {
        return Ok(());
    };
    Err(Usage(problem.to_owned()).into())
}

/// A buffer per I/O; for writes as many again: the send that a write was in may hold its buffer until all that is
/// behind it has left, too, and by then the write may have completed and another one have begun.
fn buffers(args: &BenchArgs, outstanding: usize) -> Vec<ClassLayout> {
    let writes = args.rw.read_percent(args.rwmix) < 100;
    let count = if writes { 2 * outstanding } else { outstanding };
    vec![ClassLayout { buffer_bytes: args.bs.0 as usize, count: count + 8 }]
}

/// How many I/Os have a place of their own in the part of the namespace that is used.
fn places(args: &BenchArgs, namespace: &Namespace) -> Result<u64> {
    let block_bytes = u64::from(namespace.block_bytes);
    let io_bytes = args.bs.0;
    ensure!(
        io_bytes.is_multiple_of(block_bytes),
        "--bs is not a multiple of the logical block of {block_bytes} bytes"
    );
    let most = namespace.transfer_bytes_max();
    ensure!(
        io_bytes <= u64::from(most),
        "one command carries {most} bytes at most, so --bs cannot be {io_bytes}"
    );
    let offset = args.offset.0;
    ensure!(
        offset.is_multiple_of(block_bytes),
        "--offset is not a multiple of the logical block of {block_bytes} bytes"
    );
    let rest = namespace.bytes().saturating_sub(offset);
    let size = args.size.map_or(rest, |size| size.0);
    ensure!(
        size <= rest,
        "--offset and --size reach beyond the {} bytes of the namespace",
        namespace.bytes()
    );
    let places = size / io_bytes;
    ensure!(places > 0, "the part of the namespace to use is smaller than one I/O");
    if args.verify {
        ensure!(
            places <= VERIFY_PLACES_MAX,
            "verify keeps books on {VERIFY_PLACES_MAX} I/Os at most; use --size"
        );
    }
    Ok(places)
}

fn plan(args: &BenchArgs, namespace: &Namespace, outstanding: usize, seed: u64) -> Result<Plan> {
    let read_percent = args.rw.read_percent(args.rwmix);
    if read_percent < 100 {
        confirm_overwriting(namespace, args.destroy_data)?;
    }
    let block_bytes = u64::from(namespace.block_bytes);
    let io_bytes = args.bs.0;
    let offset = args.offset.0;
    let places = places(args, namespace)?;
    Ok(Plan {
        kind: args.rw,
        read_percent,
        nsid: namespace.nsid,
        block_bytes: namespace.block_bytes,
        io_bytes: io_bytes as u32,
        io_nlb: (io_bytes / block_bytes) as u32,
        lba_first: offset / block_bytes,
        places,
        outstanding,
        time: args.time.0,
        warmup: args.warmup.0,
        verify: args.verify,
        seed,
        pattern_seed: seed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespaces;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn namespace() -> Namespace {
        Namespace { nsid: 1, block_bytes: 4096, transfer_blocks_max: 32, ..namespaces::tests::namespace() }
    }

    fn parsed(arguments: &[&str]) -> Result<BenchArgs> {
        let url = "nvme+rdma://127.0.0.1/nqn.2026-01.org.example:a";
        Ok(Line::try_parse_from([&["bench", url], arguments].concat())?.args)
    }

    fn planned(arguments: &[&str]) -> Result<Plan> {
        let args = parsed(arguments)?;
        ensure_sensible(&args)?;
        plan(&args, &namespace(), 128, 1)?.part(0, 1)
    }

    #[test]
    fn a_plan_covers_exactly_the_part_that_was_asked_for() {
        let plan = planned(&["--bs", "8k", "--offset", "1M", "--size", "1M"]).expect("a plan");
        assert_eq!((plan.lba_first, plan.places, plan.io_nlb, plan.outstanding), (256, 128, 2, 128));
        let plan = planned(&["--bs", "128k"]).expect("a plan");
        assert_eq!((plan.lba_first, plan.places), (0, 64));
    }

    #[test]
    fn what_does_not_fit_the_namespace_is_refused_with_its_reason() {
        for (arguments, reason) in [
            (&["--bs", "512"][..], "not a multiple of the logical block"),
            (&["--bs", "256k"], "one command carries 131072 bytes at most"),
            (&["--offset", "1"], "--offset is not a multiple"),
            (&["--size", "9M"], "beyond the 8388608 bytes"),
            (&["--offset", "8M"], "smaller than one I/O"),
            (&["--bs", "0"], "--bs is from"),
            (&["--time", "0"], "--time must be"),
            (&["--rw", "randwrite"], "confirm it with --destroy-data 1"),
            (&["--rw", "randrw", "--destroy-data", "2"], "confirm it with --destroy-data 1"),
        ] {
            let error = planned(arguments).expect_err(reason).to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert!(planned(&["--rw", "randwrite", "--destroy-data", "1"]).is_ok());
    }

    #[test]
    fn a_write_that_a_send_still_holds_does_not_keep_the_next_from_having_a_buffer() {
        for kind in ["write", "randwrite", "randrw"] {
            let args = parsed(&["--rw", kind, "--bs", "4k"]).expect("arguments");
            assert!(buffers(&args, 128)[0].count >= 2 * 128, "{kind}");
        }
    }

    #[test]
    fn engines_have_places_of_their_own_and_their_own_offsets() {
        let all = plan(&parsed(&["--bs", "8k"]).expect("arguments"), &namespace(), 128, 7).expect("a plan");
        let parts: Vec<Plan> = (0..3).map(|engine| all.clone().part(engine, 3).expect("a part")).collect();
        assert_eq!(all.places, 1024);
        for (part, lba_first) in parts.iter().zip([0, 682, 1364]) {
            assert_eq!((part.places, part.lba_first, part.seed), (341, lba_first, 7));
        }
        assert_ne!(parts[0].pattern_seed, parts[1].pattern_seed);
        assert!(all.part(0, 1025).expect_err("too many").to_string().contains("too small for 1025"));
    }

    #[test]
    fn verifying_leaves_places_free_of_io() {
        let plan = planned(&["--verify", "--size", "64k", "--bs", "8k"]).expect("a plan");
        assert_eq!((plan.places, plan.outstanding), (8, 4));
    }
}
