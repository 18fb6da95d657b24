//! `ringfab bench`: measures a namespace on the engine itself, with no thread in between.
//!
//! Each engine thread runs a [`load::Load`]. It reads the clock once in each turn with answers, so
//! answers of one turn get the same time. At depth one that is once per I/O. Buffers, tables and histograms are
//! allocated before the first I/O.
//!
//! An engine counts in windows of a second, which the thread of the command gathers. So progress and the latency over
//! time cost the engine an exchange of two pointers each second.
//!
//! The part of the namespace that is used consists of extents: each has as many blocks as one I/O.

mod access_pattern;
mod bars;
mod compare;
mod gather;
mod load;
mod report;
mod svg;
mod verify;

use std::fs::File;
use std::io::{self, Write as _};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use ringfab_base::VisiblePath as _;
use ringfab_initiator::Namespace;
use ringfab_initiator::blocking::{Controller, EngineClient};
use ringfab_memory::ClassLayout;
use ringfab_process::log;
use ringfab_process::terminal::{self, Stream};

use crate::advice::Advised;
use crate::context::{Context, Usage};
use crate::engine::attach;
use crate::interrupt::{Cancelled, Interrupt};
use crate::namespaces::only_namespace;
use crate::options::ConnectArgs;
use crate::output;
use crate::overwriting::confirm_overwriting;
use crate::quantity::{Bytes, Span, cores};
use compare::CompareArgs;
use gather::Second;
use load::{Exchange, Load, Measurement, WINDOWS, Window};

/// The command `ringfab bench`: a measurement, or a comparison of two.
///
/// The address of a measurement and the name of the comparison stand in the same place, which the derived parser does
/// not know.
#[derive(Clone)]
pub enum BenchCommand {
    /// Measure.
    Measure(Box<BenchArgs>),
    /// Compare.
    Compare(CompareArgs),
}

const COMPARE: &str = "compare";

impl Args for BenchCommand {
    fn augment_args(command: Command) -> Command {
        let compare = Command::new(COMPARE)
            .about("Compare two results of `bench --json`, side by side")
            .after_help("Examples:\n  ringfab bench compare before.json after.json");
        BenchArgs::augment_args(command)
            .subcommand(
                CompareArgs::augment_args(compare)
                    .about("Compare two results of `bench --json`, side by side"),
            )
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for BenchCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        match matches.subcommand() {
            Some((COMPARE, matches)) => CompareArgs::from_arg_matches(matches).map(Self::Compare),
            Some((name, _)) => Err(clap::Error::raw(ErrorKind::InvalidSubcommand, name)),
            None => BenchArgs::from_arg_matches(matches).map(Box::new).map(Self::Measure),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The options of `ringfab bench`. Those that mean the same have the names of fio's, too.
#[derive(Args, Clone)]
pub struct BenchArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// What to do
    #[arg(long, visible_alias = "readwrite", value_enum, default_value_t = Kind::Randread)]
    rw: Kind,
    /// Reads of a hundred I/Os of rw and randrw
    #[arg(long, visible_alias = "rwmixread", value_name = "PERCENT", default_value_t = 70,
        value_parser = clap::value_parser!(u8).range(0..=100))]
    rwmix: u8,
    /// Bytes of one I/O
    #[arg(long, visible_alias = "blocksize", value_name = "SIZE", default_value = "4k")]
    bs: Bytes,
    /// How long to measure
    #[arg(long, visible_alias = "runtime", value_name = "TIME", default_value = "10s")]
    time: Span,
    /// How long to run before measuring
    #[arg(long, visible_alias = "ramp_time", value_name = "TIME", default_value = "2s")]
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
    #[arg(long, visible_alias = "randseed", value_name = "N")]
    seed: Option<u64>,
    /// Never sleep, only spin; overrides --spin
    #[arg(long)]
    poll: bool,
    /// Engine threads. Each has its own I/O queues of the controller, and its own part of the namespace. With --core,
    /// the threads are pinned to that core and the cores that follow
    #[arg(long, visible_alias = "numjobs", value_name = "N", default_value = "1", value_parser = cores)]
    cores: NonZeroU16,
    /// Draw the latency of each second, p50 and p99, as a picture (SVG) into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
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
    /// Reads and writes in order
    #[value(alias = "readwrite")]
    Rw,
}

impl Kind {
    /// Whether offsets are random.
    fn is_random(self) -> bool {
        !matches!(self, Kind::Read | Kind::Write | Kind::Rw)
    }

    /// Reads of a hundred I/Os.
    fn read_percent(self, mix: u8) -> u8 {
        match self {
            Kind::Randread | Kind::Read => 100,
            Kind::Randwrite | Kind::Write => 0,
            Kind::Randrw | Kind::Rw => mix,
        }
    }
}

/// What an engine does, checked against the namespace.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
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
    pub(crate) extents: u64,
    /// I/Os outstanding.
    pub(crate) outstanding: usize,
    pub(crate) time: Duration,
    pub(crate) warmup: Duration,
    pub(crate) verify: bool,
    pub(crate) seed: u64,
    /// That of the offsets of one engine.
    pub(crate) access_seed: u64,
}

/// The most extents that verify mode keeps a generation of.
const VERIFY_EXTENTS_MAX: u64 = 1 << 27;
/// Longer than any run: with it the ring never sleeps.
const SPIN_ALWAYS: Duration = Duration::from_secs(86_400);

/// Measures or compares, and prints that.
pub fn run(command: &BenchCommand, context: &Context) -> Result<()> {
    match command {
        BenchCommand::Measure(args) => run_measurement(args, context),
        BenchCommand::Compare(args) => compare::run(args, context),
    }
}

fn run_measurement(args: &BenchArgs, context: &Context) -> Result<()> {
    ensure_sensible(args)?;
    let options = args.connect.connect_options()?;
    let url = &options.url;
    let queues = Queues {
        count: usize::from(url.queues.unwrap_or(options.queues)),
        depth: usize::from(url.depth.unwrap_or(options.depth)),
        engines: usize::from(args.cores.get()),
    };
    let mut engine = args.connect.engine_options(context.interrupt.token());
    engine.threads = args.cores.get();
    // The first engines have as many queues as any.
    engine.client_buffers = buffers(args, queues.outstanding(0));
    if args.poll {
        engine.spin = SPIN_ALWAYS;
    }
    let seed = args.seed.map_or_else(random_seed, Ok)?;
    // A place that cannot be written to is told before the measurement.
    let picture = args
        .svg
        .as_ref()
        .map(|path| File::create(path).with_context(|| format!("create {}", path.visible())));
    let picture = picture.transpose()?;
    let controller = attach(options, engine, &context.interrupt)?;
    let info = controller.info();
    let measured = workloads(args, &controller, queues, seed).and_then(|workloads| {
        let measurement = measure(&controller, &workloads, &context.interrupt)?;
        Ok((workloads, measurement))
    });
    let detached = controller.detach().map_err(Advised).context("detach");
    let (workloads, (measurement, seconds)) = measured?;
    let result =
        report::Outcome { workloads: &workloads, measured: &measurement, seconds: &seconds, info: &info };
    if let Some(mut file) = picture {
        file.write_all(result.picture().as_bytes()).context("write the picture")?;
    }
    output::either(context.json, || result.document(), || result.lines())?;
    measurement.verdict()?;
    // What a signal has ended is a result, and no success.
    if measurement.interrupted { Err(Cancelled.into()) } else { detached }
}

/// The I/O queues of all engines.
#[derive(Clone, Copy)]
struct Queues {
    count: usize,
    depth: usize,
    engines: usize,
}

impl Queues {
    /// I/Os that one of the engines keeps outstanding: each has a queue at least.
    fn outstanding(self, engine: usize) -> usize {
        self.count.max(self.engines).saturating_sub(engine).div_ceil(self.engines) * self.depth
    }
}

/// What each engine does.
fn workloads(args: &BenchArgs, controller: &Controller, queues: Queues, seed: u64) -> Result<Vec<Workload>> {
    let namespace = only_namespace(&controller.namespaces())?;
    if args.rw.read_percent(args.rwmix) < 100 {
        confirm_overwriting(controller, &namespace, args.destroy_data)?;
    }
    let engines = 0..queues.engines;
    let each = engines.map(|engine| {
        let all = workload(args, &namespace, queues.outstanding(engine), seed)?;
        all.of_engine(engine as u64, queues.engines as u64)
    });
    each.collect()
}

/// Runs a load on each engine, until all of them are over or one has failed. On a terminal, each second is a line.
fn measure(
    controller: &Controller,
    workloads: &[Workload],
    interrupt: &Interrupt,
) -> Result<(Measurement, Vec<Second>)> {
    let (reports, reported) = sync_channel(workloads.len() * (WINDOWS + 1));
    let mut returns = Vec::new();
    for (engine, workload) in workloads.iter().enumerate() {
        let (full, empty) = sync_channel(WINDOWS);
        for _ in 1..WINDOWS {
            let _room = full.try_send(Box::new(Window::new()?));
        }
        returns.push(full);
        let (workload, interrupt) = (workload.clone(), interrupt.clone());
        let exchange = Exchange { engine, reports: reports.clone(), empty };
        controller.start_client(engine, move |host, _| {
            interrupt.wake(host.reactor().waker());
            let load = Load::new(workload, interrupt, exchange).map_err(io::Error::other)?;
            Ok((Box::new(load) as Box<dyn EngineClient>, ()))
        })?;
    }
    drop(reports);
    let first = &workloads[0];
    let live = terminal::is_terminal(Stream::Err);
    if live && !first.warmup.is_zero() {
        terminal::show_status(&format!("warming up for {:?}", first.warmup));
    }
    let result = gather::gather(&reported, &returns, |second| {
        if live {
            log::say(&report::second_line(second, first.io_bytes));
        }
    });
    terminal::clear_status();
    result
}

fn random_seed() -> Result<u64> {
    match getrandom::u64() {
        Ok(seed) => Ok(seed),
        Err(error) => bail!("the system has no random numbers: {error}"),
    }
}

impl Workload {
    /// The part of an engine: each has its own extents, so that none writes where another reads.
    fn of_engine(self, engine: u64, engines: u64) -> Result<Self> {
        let extents = self.extents / engines;
        ensure!(extents > 0, "the part of the namespace to use is too small for {engines} engine threads");
        let lba_first = self.lba_first + engine * extents * u64::from(self.io_nlb);
        // When verifying, no two I/Os are at the same extent at the same time.
        let outstanding = match self.verify {
            true => self.outstanding.min(extents.div_ceil(2) as usize),
            false => self.outstanding,
        };
        let access_seed = self.access_seed.wrapping_add(engine);
        Ok(Self { extents, lba_first, outstanding, access_seed, ..self })
    }

    /// The first block of an extent.
    fn lba(&self, extent: u64) -> u64 {
        self.lba_first + extent * u64::from(self.io_nlb)
    }

    /// The first byte of an extent.
    fn offset(&self, extent: u64) -> u64 {
        self.lba(extent) * u64::from(self.block_bytes)
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

/// How many extents the part of the namespace has that is used.
fn extents(args: &BenchArgs, namespace: &Namespace) -> Result<u64> {
    let block_bytes = u64::from(namespace.block_bytes);
    let io_bytes = args.bs.0;
    ensure!(
        io_bytes.is_multiple_of(block_bytes),
        "--bs {io_bytes} is not a multiple of the logical block of {block_bytes} bytes; try --bs {}",
        block_bytes.max(4096)
    );
    let most = namespace.transfer_bytes_max();
    ensure!(
        io_bytes <= u64::from(most),
        "one command carries {most} bytes at most, so --bs cannot be {io_bytes}"
    );
    let offset = args.offset.0;
    ensure!(
        offset.is_multiple_of(block_bytes),
        "--offset {offset} is not a multiple of the logical block of {block_bytes} bytes"
    );
    let rest = namespace.bytes().saturating_sub(offset);
    let size = args.size.map_or(rest, |size| size.0);
    ensure!(
        size <= rest,
        "--offset and --size reach beyond the {} bytes of the namespace",
        namespace.bytes()
    );
    let extents = size / io_bytes;
    ensure!(extents > 0, "the part of the namespace to use is smaller than one I/O");
    if args.verify {
        ensure!(
            extents <= VERIFY_EXTENTS_MAX,
            "verify remembers {VERIFY_EXTENTS_MAX} I/Os at most; use --size"
        );
    }
    Ok(extents)
}

fn workload(args: &BenchArgs, namespace: &Namespace, outstanding: usize, seed: u64) -> Result<Workload> {
    let read_percent = args.rw.read_percent(args.rwmix);
    let block_bytes = u64::from(namespace.block_bytes);
    let io_bytes = args.bs.0;
    let offset = args.offset.0;
    let extents = extents(args, namespace)?;
    Ok(Workload {
        kind: args.rw,
        read_percent,
        nsid: namespace.nsid,
        block_bytes: namespace.block_bytes,
        io_bytes: io_bytes as u32,
        io_nlb: (io_bytes / block_bytes) as u32,
        lba_first: offset / block_bytes,
        extents,
        outstanding,
        time: args.time.0,
        warmup: args.warmup.0,
        verify: args.verify,
        seed,
        access_seed: seed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn namespace() -> Namespace {
        let mut namespace = Namespace::new(1, 2048, 4096);
        namespace.transfer_blocks_max = 32;
        namespace
    }

    fn parsed(arguments: &[&str]) -> Result<BenchArgs> {
        let url = "nvme+rdma://127.0.0.1/nqn.2026-01.org.example:a";
        Ok(Line::try_parse_from([&["bench", url], arguments].concat())?.args)
    }

    fn checked(arguments: &[&str]) -> Result<Workload> {
        let args = parsed(arguments)?;
        ensure_sensible(&args)?;
        workload(&args, &namespace(), 128, 1)?.of_engine(0, 1)
    }

    #[test]
    fn a_workload_covers_exactly_the_part_that_was_asked_for() {
        let workload = checked(&["--bs", "8k", "--offset", "1M", "--size", "1M"]).expect("a workload");
        assert_eq!(
            (workload.lba_first, workload.extents, workload.io_nlb, workload.outstanding),
            (256, 128, 2, 128)
        );
        let workload = checked(&["--bs", "128k"]).expect("a workload");
        assert_eq!((workload.lba_first, workload.extents), (0, 64));
    }

    #[test]
    fn what_does_not_fit_the_namespace_is_refused_with_its_reason() {
        for (arguments, reason) in [
            (&["--bs", "512"][..], "not a multiple of the logical block"),
            (&["--bs", "256k"], "one command carries 131072 bytes at most"),
            (&["--offset", "1"], "--offset 1 is not a multiple"),
            (&["--size", "9M"], "beyond the 8388608 bytes"),
            (&["--offset", "8M"], "smaller than one I/O"),
            (&["--bs", "0"], "--bs is from"),
            (&["--time", "0"], "--time must be"),
        ] {
            let error = checked(arguments).expect_err(reason).to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert!(checked(&["--rw", "randwrite"]).is_ok());
    }

    #[test]
    fn a_write_that_a_send_still_holds_does_not_keep_the_next_from_having_a_buffer() {
        for kind in ["write", "randwrite", "randrw"] {
            let args = parsed(&["--rw", kind, "--bs", "4k"]).expect("arguments");
            assert!(buffers(&args, 128)[0].count >= 2 * 128, "{kind}");
        }
    }

    #[test]
    fn engines_have_extents_of_their_own_and_their_own_offsets() {
        let all =
            workload(&parsed(&["--bs", "8k"]).expect("arguments"), &namespace(), 128, 7).expect("a workload");
        let parts: Vec<Workload> =
            (0..3).map(|engine| all.clone().of_engine(engine, 3).expect("a part")).collect();
        assert_eq!(all.extents, 1024);
        for (part, lba_first) in parts.iter().zip([0, 682, 1364]) {
            assert_eq!((part.extents, part.lba_first, part.seed), (341, lba_first, 7));
        }
        assert_ne!(parts[0].access_seed, parts[1].access_seed);
        assert!(all.of_engine(0, 1025).expect_err("too many").to_string().contains("too small for 1025"));
    }

    #[test]
    fn verifying_leaves_extents_free_of_io() {
        let workload = checked(&["--verify", "--size", "64k", "--bs", "8k"]).expect("a workload");
        assert_eq!((workload.extents, workload.outstanding), (8, 4));
    }
}
