//! On what a run was made.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The machine, the sources and the date.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// As given, or seconds of the epoch.
    pub(crate) date: String,
    /// `git describe` of the sources, if they are a checkout.
    pub(crate) sources: String,
    pub(crate) processor: String,
    pub(crate) processors: usize,
    pub(crate) kernel: String,
    /// The system's default.
    pub(crate) congestion_control: String,
    /// Of Ringfab's connections.
    pub(crate) congestion_control_used: String,
    /// Memory in KiB.
    pub(crate) memory_kib: u64,
    pub(crate) rounds: usize,
    pub(crate) time_ms: u64,
    pub(crate) warmup_ms: u64,
    /// Load average of the last minute when it began: a quiet machine says less than 0.1 or so.
    pub(crate) load_average: String,
    /// How many samples count, and how many of them were disturbed.
    #[serde(default)]
    pub(crate) samples: usize,
    #[serde(default)]
    pub(crate) disturbed: usize,
}

impl Facts {
    /// What the system says; how long the run is, is the caller's to add.
    pub(crate) fn gather(date: Option<String>) -> Self {
        Self {
            date: date.unwrap_or_else(now),
            sources: said("git", &["describe", "--always", "--dirty"]),
            processor: field("/proc/cpuinfo", "model name"),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: text("/proc/sys/kernel/osrelease"),
            congestion_control: text("/proc/sys/net/ipv4/tcp_congestion_control"),
            memory_kib: field("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0),
            load_average: text("/proc/loadavg").split(' ').next().unwrap_or("").to_owned(),
            ..Self::default()
        }
    }

    /// Names and values, for people.
    pub(crate) fn rows(&self) -> Vec<(&'static str, String)> {
        let congestion =
            format!("{} (the system's: {})", self.congestion_control_used, self.congestion_control);
        vec![
            ("date", self.date.clone()),
            ("sources", self.sources.clone()),
            ("processor", format!("{} x {}", self.processors, self.processor)),
            ("memory", format!("{} MiB", self.memory_kib >> 10)),
            ("kernel", self.kernel.clone()),
            ("congestion control", congestion),
            ("rounds", format!("{} of {} ms after {} ms", self.rounds, self.time_ms, self.warmup_ms)),
            ("load when it began", self.load_average.clone()),
            ("samples", format!("{}, of which {} were disturbed", self.samples, self.disturbed)),
        ]
    }
}

fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{} s of the epoch", since.as_secs())
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The value of the first line `name: value` of a file.
fn field(path: &str, name: &str) -> String {
    let text = text(path);
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    let found = pairs.find(|(key, _)| key.trim() == name);
    found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

/// What a command says; nothing when it fails.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
