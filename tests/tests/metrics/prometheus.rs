//! Prometheus itself scrapes a target, and its tools check what the target and the rules say.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ringfab_tests::{have, not_run, run_bounded, wait_until};
use serde_json::Value;
use tempfile::TempDir;

use crate::target::{HOST, Seen};

pub(crate) fn configs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join("configs").join(name)
}

/// Whether Prometheus is here.
pub(crate) fn prometheus() -> bool {
    let found = have("prometheus") && have("promtool");
    if !found {
        not_run("metrics with Prometheus: prometheus and promtool are not installed");
    }
    found
}

/// A series of an answer.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

impl Series {
    fn of(answer: &Value) -> Option<Self> {
        let labels = answer["metric"].as_object()?.iter();
        let labels = labels.map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
        Some(Self {
            labels: labels.collect::<Option<_>>()?,
            value: answer["value"][1].as_str()?.parse().ok()?,
        })
    }
}

/// A Prometheus that scrapes one address every second.
pub(crate) struct Prometheus {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Prometheus {
    pub(crate) fn start(scraped: &str) -> Self {
        let (folder, port) = (tempfile::tempdir().expect("a folder"), ringfab_tests::free_port());
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n\
             - {{job_name: ringfab, static_configs: [{{targets: [\"{scraped}\"]}}]}}\n"
        );
        let at = |name: &str| folder.path().join(name).display().to_string();
        fs::write(at("prometheus.yml"), config).expect("a configuration");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", at("prometheus.yml")))
            .arg(format!("--storage.tsdb.path={}", at("data")))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=error")
            .stdin(Stdio::null())
            .spawn()
            .expect("Prometheus starts");
        Self { child, port, _folder: folder }
    }

    /// The series of a query, now or at a time in seconds since 1970; none before it answers.
    pub(crate) fn query(&self, query: &str, time: Option<f64>) -> Option<Vec<Series>> {
        let query_path: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let time = time.map_or(String::new(), |time| format!("&time={time}"));
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        write!(stream, "GET /api/v1/query?query={query_path}{time} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
        assert_ne!(answer["status"], "error", "{query}: {answer}");
        answer["data"]["result"].as_array()?.iter().map(Series::of).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It is an error that it has ended already, and that is what was wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn prometheus_has_the_counters() {
    if !prometheus() {
        return;
    }
    let target = Seen::start();
    drop(target.worked());
    let prometheus = Prometheus::start(&target.address());
    let counted = format!("ringfab_host_commands_total{{host={HOST:?},operation=\"read\"}}");
    let is_counted = |all: Vec<_>| matches!(&all[..], [Series { value: 400.0, .. }]);
    wait_until("Prometheus has a counter", || prometheus.query(&counted, None).is_some_and(is_counted));
}

#[test]
fn promtool_finds_nothing_wrong_with_the_metrics_and_the_rules() {
    if !prometheus() {
        return;
    }
    let target = Seen::start();
    let _host = target.worked();
    let file = target.service.path("ringfab.prom");
    let worked = || fs::read_to_string(&file).is_ok_and(|text| text.contains(HOST));
    wait_until("the file has what the host has done", worked);
    for text in [fs::read_to_string(&file).expect("the file"), target.get("/metrics", "text/plain")] {
        assert!(text.contains("ringfab_queue_phase_duration_seconds_bucket"));
        let mut check = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("promtool starts");
        check.stdin.take().expect("its input").write_all(text.as_bytes()).expect("it reads");
        let output = check.wait_with_output().expect("it ends");
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success() && said.iter().all(String::is_empty), "{said:?}");
    }
    let [rules, tests] = ["prometheus-alerts.yml", "prometheus-alerts.test.yml"]
        .map(|name| configs(name).display().to_string());
    run_bounded(30, "promtool", &["check", "rules", &rules]);
    run_bounded(30, "promtool", &["test", "rules", &tests]);
    let rules = fs::read_to_string(rules).expect("the rules");
    let tests = fs::read_to_string(tests).expect("the tests");
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 10, "{alerts:?}");
    for alert in alerts {
        // Without trouble it is silent, and with its trouble it is not.
        assert!(
            tests.contains(&format!("- {{alertname: {alert}, eval_time: 15m, exp_alerts: []}}")),
            "{alert}"
        );
        let fires = format!(
            "- alertname: {alert}\n        eval_time: 15m\n        exp_alerts:\n          - exp_labels"
        );
        assert!(tests.contains(&fires), "{alert}");
    }
}
