//! A whole run: rounds of all cases, and what came of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::facts::Facts;
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
            None => self.cases.push(Measured { name, samples: vec![sample] }),
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
