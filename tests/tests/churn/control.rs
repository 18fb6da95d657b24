//! Namespaces that come, grow and go, by the program as people use it.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringfab_tests::world::content::Random;
use ringfab_tests::{PATIENCE, program};
use serde_json::Value;

use super::busy::BusyTarget;

/// The most namespaces beside those that stay.
const NAMESPACES_MAX: usize = 6;

const MIB: u64 = 1 << 20;

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Did {
    added: u64,
    resized: u64,
    removed: u64,
}

/// What was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Memory,
    Null,
    File { bytes: u64 },
}

struct Manager<'a> {
    target: &'a BusyTarget,
    random: Random,
    present: BTreeMap<u64, Source>,
    files: u64,
    did: Did,
}

/// Adds, resizes and removes until it is over; then all that was added is removed.
pub(crate) fn work(target: &BusyTarget, seed: u64, over: &AtomicBool) -> Did {
    let random = Random::new(seed, 2000);
    let mut manager = Manager { target, random, present: BTreeMap::new(), files: 0, did: Did::default() };
    while !over.load(Ordering::Relaxed) {
        match manager.random.below(3) {
            0 if manager.present.len() < NAMESPACES_MAX => manager.add(),
            1 => manager.grow(),
            _ => manager.remove(),
        }
        manager.compare();
        std::thread::sleep(Duration::from_millis(manager.random.below(40)));
    }
    while !manager.present.is_empty() {
        manager.remove();
    }
    manager.wait_until_closed();
    manager.did
}

impl Manager<'_> {
    fn add(&mut self) {
        let size = MIB * (1 + self.random.below(4));
        let text = size.to_string();
        let path = self.target.path(&format!("added-{}", self.files));
        let path = path.to_str().expect("UTF-8");
        let (source, arguments) = match self.random.below(3) {
            0 => (Source::Memory, vec!["--memory", &text]),
            1 => (Source::Null, vec!["--null", &text]),
            _ => {
                File::create(path).and_then(|file| file.set_len(size)).expect("a file");
                self.files += 1;
                (Source::File { bytes: size }, vec![path, "--page-cache"])
            }
        };
        let added = self.run(&[&["add"], &arguments[..]].concat());
        assert_eq!(added["state"], "ready", "{added}");
        let nsid = added["nsid"].as_u64().expect("its number");
        assert_eq!(self.present.insert(nsid, source), None, "{added}");
        self.did.added += 1;
    }

    fn grow(&mut self) {
        let files = self.present.iter_mut().filter_map(|(nsid, source)| match source {
            Source::File { bytes } => Some((*nsid, bytes)),
            _ => None,
        });
        let mut files: Vec<_> = files.collect();
        if files.is_empty() {
            return;
        }
        let index = self.random.below(files.len() as u64) as usize;
        let (nsid, bytes) = &mut files[index];
        **bytes += MIB;
        let (nsid, size) = (nsid.to_string(), bytes.to_string());
        let grown = self.run(&["resize", &nsid, "--size", &size]);
        assert_eq!(grown["bytes"].to_string(), size);
        self.did.resized += 1;
    }

    fn remove(&mut self) {
        let all: Vec<u64> = self.present.keys().copied().collect();
        if all.is_empty() {
            return;
        }
        let nsid = self.random.pick(&all);
        self.run(&["remove", &nsid.to_string()]);
        self.present.remove(&nsid);
        self.did.removed += 1;
    }

    /// What is listed is what was added, beside the two that stay; others are on their way out.
    fn compare(&self) {
        let list = self.list();
        let ready = list.iter().filter(|one| one["state"] == "ready");
        let ready: Vec<u64> = ready.map(|one| one["nsid"].as_u64().expect("a number")).collect();
        let expected: Vec<u64> = [1, 2].into_iter().chain(self.present.keys().copied()).collect();
        assert_eq!(ready, expected);
    }

    fn wait_until_closed(&self) {
        let begun = Instant::now();
        while self.list().len() > 2 {
            assert!(begun.elapsed() < PATIENCE, "never closed: {:?}", self.list());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn list(&self) -> Vec<Value> {
        self.run(&["list"]).as_array().expect("a list").clone()
    }

    fn run(&self, arguments: &[&str]) -> Value {
        let mut command = Command::new(program("ringfab-target"));
        command.arg("namespace").args(arguments).arg("--json").arg("--socket").arg(self.target.socket());
        let output = command.output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}
