//! `ringfab-bench`: what Ringfab reaches on this machine, beside what loopback TCP and other programs reach in the same
//! run. docs/performance.md says how it measures.
//!
//! Not implemented here: several machines, networks and RDMA cards (everything is measured on one machine, over
//! loopback), and limits below which a run fails.

mod backings;
mod bars;
mod beside;
mod case;
mod chart;
mod charts;
mod compare;
mod cuttable;
mod disks;
mod fabric;
mod facts;
mod failover;
mod fio;
mod footprint;
mod held;
mod hold;
mod measure;
mod perf;
mod place;
mod plan;
mod quiet;
mod raw;
mod report;
mod run;
mod sample;
mod scale;
mod serve;
mod service;
mod shims;
mod target;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use case::Congestion;
use facts::Facts;
use plan::Extent;
use target::Setup;

/// Measures Ringfab, alternating with what it is held against.
#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures
    Run(RunArgs),
    /// Shows what changed from one run to another
    Compare {
        /// JSON of the first
        before: PathBuf,
        /// JSON of the second
        after: PathBuf,
    },
    /// Attaches controllers and does nothing with them, to be measured
    #[command(hide = true)]
    Hold(hold::HoldArgs),
    /// Serves with a number of threads, to be measured
    #[command(hide = true)]
    Serve(serve::ServeArgs),
    /// Lists the cases
    List {
        /// Those of the short form
        #[arg(long)]
        quick: bool,
    },
}

#[derive(Args)]
struct RunArgs {
    /// The short form: two minutes
    #[arg(long)]
    quick: bool,
    /// Rounds of all cases; 5, or 3 in the short form
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// How long each case runs in each round; 400, or 250 in the short form
    #[arg(long, value_name = "MILLISECONDS")]
    time: Option<u64>,
    /// How long each runs before that; 150, or 100 in the short form
    #[arg(long, value_name = "MILLISECONDS")]
    warmup: Option<u64>,
    /// Only cases whose name contains one of these
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// How long to wait in all for processors that others use, too, and to measure again
    #[arg(long, value_name = "SECONDS", default_value_t = 120, default_value_if("quick", "true", "30"))]
    patience: u64,
    /// Keep the system's congestion control on Ringfab's connections instead of cubic, with which the bars are set
    #[arg(long)]
    default_congestion: bool,
    /// Where to write run.json, report.md and its charts
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Where to make the file that a namespace is on
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    scratch: PathBuf,
    /// Folder of ringfab-target and ringfab; that of this program
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Date to write down instead of the clock's
    #[arg(long)]
    date: Option<String>,
}

fn main() -> ExitCode {
    match act(Line::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _nobody_reads = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act(line: Line) -> Result<()> {
    match line.command {
        Command::Run(args) => run(&args),
        Command::Compare { before, after } => {
            show(&compare::table(&compare::load(&before)?, &compare::load(&after)?))
        }
        Command::Hold(args) => hold::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::List { quick } => {
            let names: Vec<String> =
                plan::cases(extent(quick), 0).iter().map(case::Case::to_string).collect();
            show(&format!("{}\n", names.join("\n")))
        }
    }
}

fn extent(quick: bool) -> Extent {
    if quick { Extent::Quick } else { Extent::Full }
}

fn run(args: &RunArgs) -> Result<()> {
    let own = std::env::current_exe().context("where this program is")?;
    let beside = || own.parent().map(PathBuf::from).context("a folder");
    let (rounds, time_ms, warmup_ms) = if args.quick { (3, 250, 100) } else { (5, 400, 150) };
    let mut facts = Facts::gather(args.date.clone());
    facts.rounds = args.rounds.unwrap_or(rounds);
    facts.time_ms = args.time.unwrap_or(time_ms);
    facts.warmup_ms = args.warmup.unwrap_or(warmup_ms);
    let setup = Setup {
        programs: args.programs.clone().map_or_else(beside, Ok)?,
        warmup: Duration::from_millis(facts.warmup_ms),
        time: Duration::from_millis(facts.time_ms),
        congestion: if args.default_congestion { Congestion::Default } else { Congestion::Cubic },
        shares: false,
    };
    facts.congestion_control_used =
        setup.congestion.name().map_or_else(|| facts.congestion_control.clone(), str::to_owned);
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|text| name.contains(text));
    let cases = |round| {
        let all = plan::cases(extent(args.quick), round);
        all.into_iter().filter(|case| wanted(&case.to_string())).collect()
    };
    let run = measure::all(&setup, cases, facts, &args.scratch, Duration::from_secs(args.patience))?;
    if let Some(folder) = &args.out {
        measure::keep(&run, folder)?;
    }
    show(&report::bar_table(&run))?;
    not_run(&run);
    Ok(())
}

fn not_run(run: &run::Run) {
    for (what, why) in &run.not_run {
        let _nobody_reads = writeln!(std::io::stderr(), "NOT RUN: {what}: {why}");
    }
}

fn show(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("write to the standard output")
}
