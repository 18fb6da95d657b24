//! Runs the cases, round by round, so that what is compared met the same machine.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

use crate::backings::Backings;
use crate::case::{Case, Namespace};
use crate::charts::charts;
use crate::facts::Facts;
use crate::quiet::Watch;
use crate::run::Run;
use crate::sample::Sample;
use crate::shims::Shims;
use crate::target::{NAMESPACE_BYTES, Setup, Target};
use crate::{beside, disks, fabric, failover, footprint, raw, report, scale};

/// Measures every case in every round, and again, for as long as `patience` in all, what was disturbed. One that fails
/// is noted and not tried again; nothing else stops.
pub(crate) fn all(
    setup: &Setup,
    cases: impl Fn(usize) -> Vec<Case>,
    facts: Facts,
    scratch: &Path,
    patience: Duration,
) -> Result<Run> {
    let mut bench = Bench::new(setup, &cases(0), scratch)?;
    let mut watch = Watch::new()?;
    let mut run = Run::new(facts);
    let begun = Instant::now();
    for round in 0..run.facts.rounds {
        watch.grant(patience / run.facts.rounds as u32);
        for case in cases(round) {
            let name = case.to_string();
            if run.not_run.contains_key(&name) {
                continue;
            }
            let measured = match case {
                // These take long, and hang on other things than the processors.
                Case::Footprint(_) | Case::Scale(_) | Case::Failover(_) => bench.measure(&case),
                _ => watch.measure(|| bench.measure(&case)),
            };
            match measured {
                Ok(sample) => run.add(name, sample),
                Err(error) => {
                    run.not_run.insert(name, format!("{error:#}"));
                }
            }
        }
        let seconds = begun.elapsed().as_secs();
        let _nobody_reads =
            writeln!(std::io::stderr(), "round {} of {}: {seconds} s", round + 1, run.facts.rounds);
    }
    run.sift();
    Ok(run)
}

/// What cases need besides themselves; what none of them needs is not there.
struct Bench<'a> {
    setup: &'a Setup,
    shims: Shims,
    backings: Backings,
    target: Option<Target>,
    /// What the file namespace is on.
    file: Option<NamedTempFile>,
}

impl<'a> Bench<'a> {
    fn new(setup: &'a Setup, cases: &[Case], scratch: &Path) -> Result<Self> {
        let reads_memory = |case: &Case| matches!(case, Case::Shim(_) | Case::Beside(_));
        let of = |wanted| move |case: &Case| matches!(case, Case::Fabric(one) if one.namespace == wanted);
        if cases.iter().all(|case| matches!(case, Case::Raw(_))) {
            return Ok(Self {
                setup,
                shims: Shims::default(),
                backings: Backings::default(),
                target: None,
                file: None,
            });
        }
        let disk = |case: &Case| matches!(case, Case::Disk(_));
        let file_is_read = cases.iter().any(of(Namespace::File)) || cases.iter().any(disk);
        let file = scratch_file(scratch, file_is_read)?;
        let target = Target::start(setup, file.path())?;
        if cases.iter().any(of(Namespace::Memory)) || cases.iter().any(reads_memory) {
            fabric::fill_memory(setup, &target)?;
        }
        Ok(Self {
            setup,
            shims: Shims::default(),
            backings: Backings::default(),
            target: Some(target),
            file: Some(file),
        })
    }

    fn file(&self) -> Result<&Path> {
        Ok(self.file.as_ref().context("a file")?.path())
    }

    fn measure(&mut self, case: &Case) -> Result<Sample> {
        match case {
            Case::Raw(case) => raw::measure(case, self.setup.warmup, self.setup.time),
            Case::Footprint(case) => footprint::measure(self.setup, case, self.file()?),
            Case::Disk(case) => disks::measure(self.setup, case, self.file()?),
            Case::Scale(case) => scale::measure(self.setup, case, self.file()?),
            Case::Fabric(case) => {
                fabric::measure(self.setup, self.target.as_ref().context("a target")?, case)
            }
            Case::Beside(case) => {
                beside::measure(self.setup, self.target.as_ref().context("a target")?, case)
            }
            Case::Failover(case) => failover::measure(self.setup, case, self.file()?),
            Case::Backing(case) => self.backings.measure(self.setup, case),
            Case::Shim(case) => {
                self.shims.measure(self.setup, self.target.as_ref().context("a target")?, case)
            }
        }
    }
}

/// A file, with all its blocks written if it is to be read: what was never written is not read from the disk.
fn scratch_file(folder: &Path, written: bool) -> Result<NamedTempFile> {
    const PIECE: usize = 1 << 20;
    let folder = folder.canonicalize().context("the folder for the file")?;
    let mut file = tempfile::Builder::new().prefix("ringfab-bench.").tempfile_in(folder)?;
    file.as_file().set_len(NAMESPACE_BYTES).context("make the file")?;
    if written {
        let piece = vec![0x5a; PIECE];
        for _ in 0..NAMESPACE_BYTES / PIECE as u64 {
            file.write_all(&piece).context("write the file")?;
        }
        file.as_file().sync_all().context("write the file")?;
    }
    Ok(file)
}

/// Writes the run, its charts and its report.
pub(crate) fn keep(run: &Run, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).context("the folder for the report")?;
    let json = serde_json::to_vec_pretty(run).context("make JSON")?;
    fs::write(folder.join("run.json"), json).context("write run.json")?;
    let mut drawn = Vec::new();
    for (name, chart) in charts(run) {
        if let Some(svg) = chart.svg() {
            fs::write(folder.join(name), svg).context("write a chart")?;
            drawn.push((name, chart.title));
        }
    }
    fs::write(folder.join("report.md"), report::markdown(run, &drawn)).context("write report.md")
}
