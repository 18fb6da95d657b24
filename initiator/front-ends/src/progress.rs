//! What a command shows on a terminal while it works or waits: one line at the end of the standard error, which
//! changes. Elsewhere it shows nothing; what the log says of a loss is there in any case.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ringfab_initiator::ConnectOptions;
use ringfab_initiator::blocking::{Connection, Controller};
use ringfab_process::terminal;

use crate::quantity::Bytes;

/// How often the line is drawn.
const DRAWN_EVERY: Duration = Duration::from_millis(200);
/// Nothing that is shorter is worth a word.
const SHORT: Duration = Duration::from_secs(1);
/// Letters of a bar.
const BAR: usize = 20;

/// Draws a line until it is dropped, which removes it.
struct Drawing {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drawing {
    /// Draws what `line` says, for the first time after `after`. Without a thread there is no line.
    fn start(after: Duration, mut line: impl FnMut() -> String + Send + 'static) -> Self {
        let (end, ended) = channel::<()>();
        if !terminal::is_terminal(terminal::Stream::Err) {
            return Self { end: None, thread: None };
        }
        let draw = move || {
            let mut pause = after;
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                terminal::show_status(&line());
                pause = DRAWN_EVERY;
            }
            terminal::clear_status();
        };
        let thread = thread::Builder::new().name("progress".to_owned()).spawn(draw).ok();
        Self { end: Some(end), thread }
    }
}

impl Drop for Drawing {
    fn drop(&mut self) {
        drop(self.end.take());
        // It has nothing to say about how it ended.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

/// Says that a controller is being connected to, if that takes longer than a moment, until it is dropped.
pub struct Connecting {
    _drawing: Drawing,
}

impl Connecting {
    /// Begins to wait.
    pub fn start(options: &ConnectOptions) -> Self {
        let (peer, limit, begun) = (options.url.peer(), options.timeouts.attach, Instant::now());
        let line = move || {
            let (waited, limit) = (begun.elapsed().as_secs(), limit.as_secs());
            format!("connecting to {peer} for {waited} s, for at most {limit} s")
        };
        Self { _drawing: Drawing::start(SHORT, line) }
    }
}

/// How far a copy is.
pub struct Progress {
    shared: Arc<Shared>,
    drawing: Drawing,
}

struct Shared {
    verb: &'static str,
    total: Option<u64>,
    done: AtomicU64,
    begun: Instant,
    /// Since when the target is asked; none while something else is waited for.
    asked: Mutex<Option<Instant>>,
    limits: Limits,
}

/// For how long what does not come is waited for.
#[derive(Clone, Copy)]
struct Limits {
    command: Duration,
    loss: Option<Duration>,
}

impl Progress {
    /// Begins a copy of so many bytes, if that is known. `verb` says what is done to them.
    pub fn start(
        verb: &'static str,
        total: Option<u64>,
        options: &ConnectOptions,
        controller: &Controller,
    ) -> Self {
        let policy = &options.reconnect;
        let loss = policy.controller_loss_timeout.into_iter().chain(policy.fast_io_fail_timeout).min();
        let now = Instant::now();
        let shared = Arc::new(Shared {
            verb,
            total,
            done: AtomicU64::new(0),
            begun: now,
            asked: Mutex::new(None),
            limits: Limits { command: options.timeouts.io, loss },
        });
        let (seen, controller) = (shared.clone(), controller.clone());
        let drawing = Drawing::start(DRAWN_EVERY, move || {
            seen.line(controller.connection(), Instant::now(), terminal::is_unicode())
        });
        Self { shared, drawing }
    }

    /// The target is asked now. What a file or a pipe takes is not its time.
    pub fn ask(&self) {
        *self.shared.asked() = Some(Instant::now());
    }

    /// The target has answered, and so many bytes are done.
    pub fn set(&self, done: u64) {
        self.shared.done.store(done, Ordering::Relaxed);
        *self.shared.asked() = None;
    }

    /// Ends it, and says how long it took.
    pub fn finish(self) -> Duration {
        drop(self.drawing);
        self.shared.begun.elapsed()
    }
}

impl Shared {
    fn asked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, connection: Connection, now: Instant, unicode: bool) -> String {
        let done = self.done.load(Ordering::Relaxed);
        let mut line = format!("{} {}", self.verb, Bytes(done));
        if let Some(total) = self.total {
            let _fits = write!(line, " of {}", Bytes(total));
        }
        let silent = self.asked().map_or(Duration::ZERO, |asked| now.saturating_duration_since(asked));
        if let Connection::Lost { since } = connection {
            // Of a clock that was set back, nothing can be said.
            let since = since.elapsed().unwrap_or_default();
            return line + ": " + &lost(since, self.limits.loss);
        }
        if silent > 2 * SHORT {
            let limit = self.limits.command;
            let (silent, limit) = (silent.as_secs(), limit.as_secs());
            return line + &format!(": the target has not answered for {silent} s; lost after {limit} s");
        }
        let elapsed = now.saturating_duration_since(self.begun).as_secs_f64();
        let rate = if elapsed > 0.0 { done as f64 / elapsed } else { 0.0 };
        if let Some(total) = self.total.filter(|total| *total > 0) {
            let part = (done as f64 / total as f64).min(1.0);
            let _fits = write!(line, " {} {:.0} %", bar(part, unicode), part * 100.0);
        }
        let _fits = write!(line, ", {}/s", Bytes(rate as u64));
        if let Some(left) = self.total.filter(|_| rate > 0.0).map(|total| total.saturating_sub(done)) {
            let _fits = write!(line, ", {} left", clock(Duration::from_secs_f64(left as f64 / rate)));
        }
        line
    }
}

/// What there is to say of a connection that has been lost for so long.
fn lost(since: Duration, limit: Option<Duration>) -> String {
    let since = since.as_secs();
    let outlook = limit.map_or_else(
        || "it is tried until it is back".to_owned(),
        |limit| format!("given up in {}", clock(limit.saturating_sub(Duration::from_secs(since)))),
    );
    format!("the connection has been lost for {since} s; {outlook}")
}

fn bar(part: f64, unicode: bool) -> String {
    let (full, empty) = if unicode { ("█", "░") } else { ("#", "-") };
    let filled = (part * BAR as f64) as usize;
    format!("[{}{}]", full.repeat(filled), empty.repeat(BAR - filled))
}

/// A time as people read it from a clock.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

/// The end of a copy: how long it took, and how fast it was.
pub fn summary(bytes: u64, time: Duration) -> String {
    let seconds = time.as_secs_f64().max(1e-6);
    format!("in {seconds:.2} s ({}/s)", Bytes((bytes as f64 / seconds) as u64))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn shared(now: Instant) -> Shared {
        Shared {
            verb: "read",
            total: Some(4 << 20),
            done: AtomicU64::new(1 << 20),
            begun: now,
            asked: Mutex::new(Some(now)),
            limits: Limits { command: Duration::from_secs(30), loss: Some(Duration::from_secs(600)) },
        }
    }

    #[test]
    fn a_copy_shows_what_is_done_how_fast_and_what_is_left() {
        let now = Instant::now();
        let line =
            |after: u64| shared(now).line(Connection::Connected, now + Duration::from_secs(after), false);
        assert_eq!(line(1), "read 1 MiB of 4 MiB [#####---------------] 25 %, 1 MiB/s, 0:03 left");
        assert_eq!(line(7), "read 1 MiB of 4 MiB: the target has not answered for 7 s; lost after 30 s");
        // The target is not to blame while a pipe is waited for.
        let endless = Shared { total: None, asked: Mutex::new(None), ..shared(now) };
        let line = endless.line(Connection::Connected, now + Duration::from_secs(64), true);
        assert_eq!(line, "read 1 MiB, 16 KiB/s");
    }

    #[test]
    fn a_loss_says_since_when_and_until_when() {
        let now = Instant::now();
        let connection = Connection::Lost { since: SystemTime::now() - Duration::from_secs(12) };
        let line = shared(now).line(connection, now, false);
        assert_eq!(line, "read 1 MiB of 4 MiB: the connection has been lost for 12 s; given up in 9:48");
        assert_eq!(
            lost(Duration::from_secs(3), None),
            "the connection has been lost for 3 s; it is tried until it is back"
        );
    }

    #[test]
    fn a_bar_is_as_long_as_the_part_and_a_time_is_one_of_a_clock() {
        assert_eq!(bar(1.0, true), format!("[{}]", "█".repeat(BAR)));
        assert_eq!(bar(0.0, false), format!("[{}]", "-".repeat(BAR)));
        assert_eq!(clock(Duration::from_secs(3725)), "1:02:05");
        assert_eq!(summary(10 << 20, Duration::from_secs(2)), "in 2.00 s (5 MiB/s)");
    }
}
