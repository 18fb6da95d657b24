//! What changed from one run to another.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::report::{number, table as markdown};
use crate::run::{Measured, Run};
use crate::sample::{Metric, Spread};

/// What is compared, the first of these that a case has.
const COMPARED: [Metric; 5] =
    [Metric::Iops, Metric::Megabytes, Metric::P50, Metric::Millis, Metric::ResidentKib];

/// Reads a run that was kept.
pub(crate) fn load(path: &Path) -> Result<Run> {
    let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("{} is no run", path.display()))
}

/// The cases of both runs, with what changed. A change is marked when no sample of one run is as good as any of the
/// other.
pub(crate) fn table(before: &Run, after: &Run) -> String {
    let rows = before.cases.iter().filter_map(|old| row(old, after.case(&old.name)?)).collect();
    let head = format!("{} -> {}", before.facts.sources, after.facts.sources);
    markdown(&[&head, "before", "after", "change", ""], rows)
}

fn row(old: &Measured, new: &Measured) -> Option<Vec<String>> {
    let metric = COMPARED.into_iter().find(|metric| old.spread(*metric).is_some())?;
    let (before, after) = (old.spread(metric)?, new.spread(metric)?);
    let change = (after.median / before.median - 1.0) * 100.0;
    let figure = |spread: Spread| format!("{} {}", number(spread.median), metric.title());
    let mark = mark(metric, before, after).to_owned();
    Some(vec![old.name.clone(), figure(before), figure(after), format!("{change:+.1} %"), mark])
}

fn mark(metric: Metric, before: Spread, after: Spread) -> &'static str {
    let (rose, fell) = (after.min > before.max, after.max < before.min);
    match (rose, fell, metric.more_is_better()) {
        (true, _, true) | (_, true, false) => "better",
        (true, _, false) | (_, true, true) => "worse",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use crate::sample::Sample;

    fn run(metric: Metric, values: &[f64]) -> Run {
        let mut run = Run::new(Facts::default());
        for value in values {
            let mut sample = Sample::default();
            sample.set(metric, *value);
            run.add("a case".to_owned(), sample);
        }
        run
    }

    #[test]
    fn a_change_is_marked_only_when_the_runs_do_not_overlap() {
        let compare = |metric, before: &[f64], after: &[f64]| {
            table(&run(metric, before), &run(metric, after)).lines().nth(2).expect("a row").to_owned()
        };
        let faster = compare(Metric::Iops, &[100.0, 110.0], &[150.0, 165.0]);
        assert!(faster.contains("+50.0 %") && faster.contains("better"), "{faster}");
        assert!(compare(Metric::P50, &[10.0], &[12.0]).contains("worse"));
        let noise = compare(Metric::Iops, &[100.0, 160.0], &[90.0, 150.0]);
        assert!(!noise.contains("better") && !noise.contains("worse"), "{noise}");
    }

    #[test]
    fn cases_of_one_run_only_are_left_out() {
        let text = table(&run(Metric::Iops, &[1.0]), &Run::new(Facts::default()));
        assert_eq!(text.lines().count(), 2);
    }
}
