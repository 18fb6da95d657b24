//! A whole run: rounds of all cases, and what came of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::quiet::{Conditions, disturbed};
use crate::sample::{Metric, Sample, Spread};

/// What a run found, as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) facts: Facts,
    /// In the order in which they first ran.
    pub(crate) cases: Vec<Measured>,
    /// What could not be measured, and why.
    pub(crate) not_run: BTreeMap<String, String>,
}

/// All samples of one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) samples: Vec<Sample>,
    /// Those that say little, because others had the processors, too. They do not count where there are better ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) disturbed: Vec<Sample>,
}

impl Measured {
    /// One figure over its samples.
    pub(crate) fn spread(&self, metric: Metric) -> Option<Spread> {
        Spread::of(self.samples.iter().filter_map(|sample| sample.get(metric)))
    }
}

impl Run {
    /// One that has measured nothing yet.
    pub(crate) fn new(facts: Facts) -> Self {
        Self { facts, cases: Vec::new(), not_run: BTreeMap::new() }
    }

    /// Adds a sample to a case.
    pub(crate) fn add(&mut self, name: String, sample: Sample) {
        match self.cases.iter_mut().find(|case| case.name == name) {
            Some(case) => case.samples.push(sample),
            None => self.cases.push(Measured { name, samples: vec![sample], disturbed: Vec::new() }),
        }
    }

    /// Sets aside what was disturbed, now that the best conditions are known. A case that has nothing else keeps it.
    pub(crate) fn sift(&mut self) {
        let best = Conditions::best_of(self.cases.iter().flat_map(|case| &case.samples));
        let bad = |sample: &Sample| disturbed(sample, best);
        for case in &mut self.cases {
            if case.samples.iter().all(bad) {
                self.facts.disturbed += case.samples.len();
            } else {
                case.disturbed.extend(case.samples.extract_if(.., |sample| bad(sample)));
            }
            self.facts.samples += case.samples.len();
        }
    }

    /// A case that was measured.
    pub(crate) fn case(&self, name: &str) -> Option<&Measured> {
        self.cases.iter().find(|case| case.name == name)
    }

    /// One figure of one case over all rounds.
    pub(crate) fn spread(&self, name: &str, metric: Metric) -> Option<Spread> {
        self.case(name)?.spread(metric)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_disturbed_counts_only_where_there_is_nothing_else() {
        let mut run = Run::new(Facts::default());
        for (case, iops, pace) in [("a", 10.0, 100.0), ("a", 5.0, 59.0), ("b", 7.0, 50.0), ("b", 8.0, 55.0)] {
            let mut sample = Sample::default();
            sample.set(Metric::Iops, iops);
            sample.set(Metric::Pace, pace);
            sample.set(Metric::RoundTrip, 100.0);
            run.add(case.to_owned(), sample);
        }
        run.add("of no pace".to_owned(), Sample::default());
        run.sift();
        let of = |case: &str| (run.case(case).expect("it ran").samples.len(), run.spread(case, Metric::Iops));
        assert_eq!(of("a"), (1, Spread::of([10.0])));
        assert_eq!(of("b"), (2, Spread::of([7.0, 8.0])));
        assert_eq!((run.facts.samples, run.facts.disturbed), (4, 2));
        assert_eq!(run.case("a").map(|case| case.disturbed.len()), Some(1));
    }
}
