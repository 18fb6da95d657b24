//! What happened in a world, for whoever has to understand it.

use std::collections::VecDeque;

use ringfab_reactor::Time;

/// Lines that are kept to be shown when a test fails.
const LINES_KEPT: usize = 60;

/// The story of a world.
#[derive(Debug)]
pub struct Trace {
    seed: u64,
    print: bool,
    lines: VecDeque<String>,
    hash: u64,
}

impl Trace {
    /// An empty story. `print` shows each line as it is told.
    pub fn new(seed: u64, print: bool) -> Self {
        Self { seed, print, lines: VecDeque::new(), hash: 0xcbf2_9ce4_8422_2325 }
    }

    /// Adds a line.
    pub fn tell(&mut self, now: Time, what: &str) {
        for byte in now.as_nanos().to_le_bytes().iter().chain(what.as_bytes()) {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let line = format!("{:>14.6} ms  {what}", now.as_nanos() as f64 / 1e6);
        if self.print {
            show(&line);
        }
        if self.lines.len() == LINES_KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// A hash over all lines and their times.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            if !self.print {
                self.lines.iter().for_each(|line| show(line));
            }
            show(&format!(
                "the world of SEED={} failed; the same again: SEED={0} cargo test -p ringfab-tests --test simulation",
                self.seed
            ));
        }
    }
}

#[expect(clippy::print_stderr, reason = "a test's account of itself goes where the test harness collects it")]
fn show(line: &str) {
    eprintln!("{line}");
}
