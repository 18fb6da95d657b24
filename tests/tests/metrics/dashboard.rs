//! The dashboard of `configs`: Prometheus has data for every panel, in its unit, and with the labels of its legend.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ringfab_tests::wait_until;
use serde_json::Value;

use crate::prometheus::{Prometheus, Series, configs, prometheus};
use crate::target::{HOST, Seen};

/// Data of each command here.
const BYTES: usize = 16 << 10;

/// What a panel asks for.
#[derive(Debug)]
struct Query {
    panel: String,
    unit: String,
    expression: String,
    legend: String,
}

fn panels() -> Vec<Value> {
    let text = fs::read_to_string(configs("grafana-dashboard.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    dashboard["panels"].as_array().expect("panels").clone()
}

/// Every query of every panel.
fn queries() -> Vec<Query> {
    let of_panel = |panel: &Value| -> Vec<Query> {
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{value} in {panel}")).to_owned();
        let query = |target: &Value| Query {
            panel: text(&panel["title"]),
            unit: text(&panel["fieldConfig"]["defaults"]["unit"]),
            // As Grafana does; with a scrape a second it would be less.
            expression: text(&target["expr"]).replace("$__rate_interval", "20s"),
            legend: text(&target["legendFormat"]),
        };
        panel["targets"].as_array().expect("targets").iter().map(query).collect()
    };
    panels().iter().flat_map(of_panel).collect()
}

/// The colour that a panel gives a number, as Grafana chooses it: that of the last step that the number reaches.
fn colour(panel: &Value, number: f64) -> String {
    let steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"].as_array();
    let steps = steps.unwrap_or_else(|| panic!("no thresholds: {panel}")).iter();
    let mut reached = steps.filter(|step| step["value"].as_f64().is_none_or(|value| value <= number));
    reached.next_back().expect("a first step")["color"].as_str().expect("a colour").to_owned()
}

/// Works on both disks, one command at a time, until told to stop.
fn work(target: &Seen, over: &AtomicBool) {
    let host = target.attach(HOST);
    let mut data = vec![3; BYTES];
    while !over.load(Ordering::Relaxed) {
        for nsid in [1, 2] {
            host.write_at(nsid, 0, &data, false).expect("a write");
            host.read_at(nsid, 0, &mut data).expect("a read");
        }
    }
}

/// The answers to all queries at one time, once each has one.
fn answers(prometheus: &Prometheus, queries: &[Query]) -> Vec<Vec<Series>> {
    let has_data = |series: Vec<Series>| series.iter().any(|one| one.value.is_finite());
    for query in queries {
        wait_until(&query.expression, || prometheus.query(&query.expression, None).is_some_and(has_data));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let answer = |query: &Query| prometheus.query(&query.expression, Some(now)).expect("an answer");
    queries.iter().map(answer).collect()
}

/// Whether an expression is about what a unit counts.
fn fits(unit: &str, expression: &str) -> bool {
    let seconds = expression.contains("_seconds");
    match unit {
        "s" => seconds,
        "Bps" => expression.contains("rate(") && expression.contains("_bytes_total["),
        "iops" => expression.contains("rate(") && expression.contains("_commands_total["),
        "percentunit" => expression.contains(" / ") && !seconds,
        "none" => !seconds && !expression.contains("_bytes") && !expression.contains("rate("),
        _ => false,
    }
}

/// The names that a legend takes from labels: `{{name}}`.
fn names(legend: &str) -> Vec<&str> {
    legend.split("{{").skip(1).map(|rest| rest.split("}}").next().expect("closed")).collect()
}

/// What the panels say, by their titles; a panel with several queries has several answers.
struct Panels(BTreeMap<String, Vec<Vec<Series>>>);

impl Panels {
    fn get(&self, title: &str, query: usize) -> &[Series] {
        &self.0.get(title).unwrap_or_else(|| panic!("there is no panel {title}"))[query]
    }

    fn one(&self, title: &str) -> f64 {
        let [Series { value, .. }] = self.get(title, 0) else { panic!("{title}: {:?}", self.get(title, 0)) };
        *value
    }

    /// The same series of two queries, each a panel's title and a number.
    fn pairs(&self, one: (&str, usize), other: (&str, usize)) -> Vec<(f64, f64)> {
        let other = self.get(other.0, other.1);
        let same = |series: &Series| other.iter().find(|other| other.labels == series.labels);
        let pair = |series: &Series| (series.value, same(series).expect("the other panel has it").value);
        self.get(one.0, one.1).iter().map(pair).collect()
    }

    fn check_states(&self) {
        // One file is missing.
        assert_eq!(self.one("Namespaces not ready"), 1.0);
        assert_eq!(self.one("Disks to reopen or restore"), 0.0);
        assert_eq!(self.one("Cores that do not answer"), 0.0);
        assert_eq!(self.one("Disks and files that do not answer"), 0.0);
        assert_eq!(self.one("Failures of disks"), 0.0);
        assert_eq!(self.one("Controllers"), 1.0);
        assert!((0.0..600.0).contains(&self.one("Up")), "seconds since a moment ago");
        assert!(
            self.get("Queues by core", 0).iter().all(|one| one.value >= 2.0),
            "an admin and an I/O queue"
        );
        let used = self.get("Buffers in use", 0);
        assert!(used.iter().all(|one| (0.0..=1.0).contains(&one.value)), "{used:?}");
        assert_eq!(self.one("Commands that fail, by host"), 0.0);
    }

    /// Data is commands times their size, and no latency is longer than what a host with one command waits for all.
    fn check_rates_and_times(&self) {
        for by in ["namespace", "host"] {
            let (commands, data) = (format!("Commands by {by}"), format!("Data by {by}"));
            for (bytes, commands) in self.pairs((&data, 0), (&commands, 0)) {
                assert!((bytes - commands * BYTES as f64).abs() <= bytes * 0.05, "{bytes} of {commands}");
            }
            let rate: f64 = self.get(&commands, 0).iter().map(|series| series.value).sum();
            let latency = format!("Latency by {by}");
            for (median, p99) in self.pairs((&latency, 0), (&latency, 1)) {
                // A bucket ends half an octave behind what is in it.
                assert!(median > 0.0 && median < 2.0 / rate, "{median} s at {rate} commands a second");
                assert!(median <= p99);
            }
            let waits = self.get(&format!("What commands wait for, by {by} (mean)"), 0);
            assert!(waits.iter().all(|one| one.value < 2.0 / rate), "{waits:?} at {rate} commands a second");
        }
    }
}

#[test]
fn every_panel_of_the_dashboard_has_data_in_its_unit_and_labels_for_its_legend() {
    if !prometheus() {
        return;
    }
    let queries = queries();
    assert!(queries.len() >= 10, "{queries:?}");
    let target = Seen::start();
    let prometheus = Prometheus::start(&target.address());
    let over = AtomicBool::new(false);
    let answers = std::thread::scope(|scope| {
        scope.spawn(|| work(&target, &over));
        let outcome = std::panic::catch_unwind(|| answers(&prometheus, &queries));
        over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let mut panels = Panels(BTreeMap::new());
    for (query, answer) in queries.iter().zip(answers) {
        assert!(fits(&query.unit, &query.expression), "{query:?}");
        for name in names(&query.legend) {
            assert!(answer.iter().all(|series| series.labels.contains_key(name)), "{query:?}: {answer:?}");
        }
        panels.0.entry(query.panel.clone()).or_default().push(answer);
    }
    panels.check_states();
    panels.check_rates_and_times();
}

/// Numbers that say how things are. With none of it, all is green; one is enough for another colour.
#[test]
fn a_number_that_is_bad_is_not_green() {
    let is_of = |panel: &Value, unit: &str| {
        panel["type"] == "stat" && panel["fieldConfig"]["defaults"]["unit"] == unit
    };
    let counts = panels().into_iter().filter(|panel| is_of(panel, "none"));
    // Controllers are neither good nor bad.
    let (neutral, judged): (Vec<_>, Vec<_>) =
        counts.partition(|panel| panel["fieldConfig"]["defaults"]["color"]["mode"] == "fixed");
    assert_eq!(neutral.iter().map(|panel| &panel["title"]).collect::<Vec<_>>(), ["Controllers"]);
    assert!(judged.len() >= 4, "{judged:?}");
    for panel in &judged {
        assert_eq!(panel["fieldConfig"]["defaults"]["color"]["mode"], "thresholds", "{panel}");
        assert_eq!(colour(panel, 0.0), "green", "{panel}");
        assert_ne!(colour(panel, 1.0), "green", "{panel}");
        // A target that is gone has no number, which is not a good one.
        assert!(!panel["targets"].to_string().contains("vector(0)"), "{panel}");
    }
    let up = panels().into_iter().find(|panel| is_of(panel, "s")).expect("for how long it is up");
    assert_ne!(colour(&up, 10.0), "green", "it has restarted");
    assert_eq!(colour(&up, 3600.0), "green");
}
