//! The queue of lines and the thread that writes them.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::Level;

use super::fold::Folds;
use super::journal::Journal;
use super::output::Output;
use super::style::{Style, Written};
use crate::terminal;

/// Lines that may wait. With the longest text of an event these are some 4 MiB.
const LINES_MAX: usize = 1024;

/// How long the end of a process waits for a line to be written, and for all of them.
const FLUSH_LINE: Duration = Duration::from_secs(1);
const FLUSH_ALL: Duration = Duration::from_secs(5);

/// How long a descriptor that takes nothing for now is waited for, without a thread for that.
const POLL_MS: u16 = 1000;

/// The way into the queue.
#[derive(Clone, Debug)]
pub(super) struct Sink {
    sender: SyncSender<Message>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
enum Message {
    Line(String),
    /// Something was folded: look when that has to be told.
    Folded,
    /// Tell everything that was folded, and say when all of it is written.
    Flush,
}

/// What both sides of the queue know.
#[derive(Debug)]
struct Shared {
    folds: Arc<Folds>,
    /// Lines that found the queue full, until that is told.
    dropped: AtomicU64,
    progress: Mutex<Progress>,
    written: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    messages: u64,
    flushes: u64,
}

/// The standard error, without the lock that the standard library has around it: who waits for that would wait for a
/// reader.
struct Stderr;

impl Output for Stderr {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        match terminal::above_status(|| nix::unistd::write(io::stderr(), bytes)) {
            // Somebody else has made it non-blocking.
            Err(Errno::EAGAIN) => {
                wait_writable(PollTimeout::NONE);
                Ok(0)
            }
            Err(Errno::EINTR) => Ok(0),
            result => result,
        }
    }
}

impl Sink {
    /// Starts the thread that writes to the standard error, or to the journal.
    pub(super) fn start(style: Style) -> io::Result<Self> {
        match style.written {
            Written::JournalRecord => Self::with_output(style, Journal::of_system()?),
            Written::Text { .. } | Written::JournalLine | Written::Json => Self::with_output(style, Stderr),
        }
    }

    pub(super) fn with_output(style: Style, output: impl Output + Send + 'static) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(LINES_MAX);
        let shared = Arc::new(Shared {
            folds: Arc::new(Folds::new()),
            dropped: AtomicU64::new(0),
            progress: Mutex::default(),
            written: Condvar::new(),
        });
        let mut writer = Writer { style, output, shared: Arc::clone(&shared), lost: Lost::default() };
        thread::Builder::new().name("log".to_owned()).spawn(move || writer.run(&receiver))?;
        Ok(Self { sender, shared })
    }

    /// The kinds of events that are folded.
    pub(super) fn folds(&self) -> Arc<Folds> {
        Arc::clone(&self.shared.folds)
    }

    /// Puts a line into the queue, or counts it when there is no room.
    pub(super) fn push(&self, line: String) {
        if self.sender.try_send(Message::Line(line)).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Something was folded. A full queue keeps the thread awake anyway.
    pub(super) fn wake(&self) {
        let _full = self.sender.try_send(Message::Folded);
    }

    /// Waits until all that was logged before is written, as long as something is.
    pub(super) fn flush(&self) {
        let begin = Instant::now();
        let wanted = self.progress().flushes + 1;
        while self.sender.try_send(Message::Flush).is_err() {
            if !self.wait(begin, u64::MAX) {
                return;
            }
        }
        while self.wait(begin, wanted) {}
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.shared.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until so many flushes are done, or anything is written. Whether to wait once more.
    fn wait(&self, begin: Instant, flushes: u64) -> bool {
        let progress = self.progress();
        let before = progress.messages;
        let nothing = |now: &mut Progress| now.messages == before && now.flushes < flushes;
        let waited = self.shared.written.wait_timeout_while(progress, FLUSH_LINE, nothing);
        let (progress, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        progress.flushes < flushes && !timeout.timed_out() && begin.elapsed() < FLUSH_ALL
    }
}

/// The thread's side.
struct Writer<O> {
    style: Style,
    output: O,
    shared: Arc<Shared>,
    lost: Lost,
}

/// Lines that were not written, until that can be told.
#[derive(Debug, Default)]
struct Lost {
    lines: u64,
    why: Option<Errno>,
    /// Part of a line was written.
    torn: bool,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = self.why.map_or("they came faster than they could be written", Errno::desc);
        match self.lines {
            1 => write!(f, "1 line of the log was lost: {why}"),
            lines => write!(f, "{lines} lines of the log were lost: {why}"),
        }
    }
}

impl<O: Output> Writer<O> {
    /// Until nobody can log any more.
    fn run(&mut self, receiver: &Receiver<Message>) {
        let mut look_at = None;
        while let Ok(message) = next(receiver, look_at) {
            let flush = matches!(message, Some(Message::Flush));
            match message {
                Some(Message::Line(line)) => self.line(&line),
                Some(Message::Flush) => {
                    self.tell_lost();
                }
                Some(Message::Folded) | None => {}
            }
            look_at = self.tell_folded(flush);
            self.advance(flush);
        }
    }

    fn tell_folded(&mut self, all: bool) -> Option<Instant> {
        let (summaries, next) = self.shared.folds.summaries(Instant::now(), all);
        for summary in summaries {
            let line = self.style.line(summary.level, summary.target, &summary.text);
            self.line(&line);
        }
        next
    }

    fn advance(&self, flush: bool) {
        let mut progress = self.shared.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.messages += 1;
        progress.flushes += u64::from(flush);
        drop(progress);
        self.shared.written.notify_all();
    }

    /// Writes a line, and before it how many could not be written.
    fn line(&mut self, line: &str) {
        if !self.tell_lost() || !self.write(line) {
            self.lost.lines += 1;
        }
    }

    /// Tells how many lines could not be written. Whether nothing is left to tell.
    fn tell_lost(&mut self) -> bool {
        self.lost.lines += self.shared.dropped.swap(0, Ordering::Relaxed);
        if self.lost.lines == 0 {
            return true;
        }
        let told = self.style.line(Level::WARN, module_path!(), &self.lost.to_string());
        let written = self.write(&told);
        if written {
            (self.lost.lines, self.lost.why) = (0, None);
        }
        written
    }

    fn write(&mut self, line: &str) -> bool {
        let begun = std::mem::take(&mut self.lost.torn);
        let whole = if begun { format!("\n{line}") } else { line.to_owned() };
        let mut rest = whole.as_bytes();
        while !rest.is_empty() {
            match self.output.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) => {
                    self.lost.why = Some(error);
                    self.lost.torn = begun || rest.len() < whole.len();
                    return false;
                }
            }
        }
        true
    }
}

/// The next message; none when it is time to tell what was folded. An error when there will be no more.
fn next(receiver: &Receiver<Message>, look_at: Option<Instant>) -> Result<Option<Message>, RecvTimeoutError> {
    let Some(look_at) = look_at else {
        return receiver.recv().map(Some).map_err(|_| RecvTimeoutError::Disconnected);
    };
    match receiver.recv_timeout(look_at.saturating_duration_since(Instant::now())) {
        Err(RecvTimeoutError::Timeout) => Ok(None),
        result => result.map(Some),
    }
}

/// Writes a text where no thread can do it, if the standard error takes it within a second.
pub(super) fn write_now(text: &str) {
    if wait_writable(PollTimeout::from(POLL_MS)) {
        // A text is short enough for a pipe that takes anything at all; what it does not take nobody can be told.
        let _lost = nix::unistd::write(io::stderr(), text.as_bytes());
    }
}

fn wait_writable(timeout: PollTimeout) -> bool {
    let stderr = io::stderr();
    let mut wanted = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut wanted, timeout).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::log::Parts;

    const STYLE: Style = Style { written: Written::JournalLine, parts: Parts::Unnamed };

    /// What a line that is written finds: room for all, for some bytes, or an error.
    enum Meets {
        Room(usize),
        Error(Errno),
    }

    /// Takes a turn for each write; without one it waits as a reader that stalls makes it wait.
    struct Turns {
        turns: Receiver<Meets>,
        taken: Sender<String>,
    }

    impl Output for Turns {
        fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
            let turn = self.turns.recv().unwrap_or(Meets::Room(usize::MAX));
            let Meets::Room(room) = turn else {
                let Meets::Error(error) = turn else { unreachable!("there are two kinds") };
                return Err(error);
            };
            let taken = &bytes[..bytes.len().min(room)];
            self.taken.send(String::from_utf8_lossy(taken).into_owned()).expect("the test looks");
            Ok(taken.len())
        }
    }

    fn sink() -> (Sink, Sender<Meets>, Receiver<String>) {
        let ((turn, turns), (taken, texts)) = (channel(), channel());
        (Sink::with_output(STYLE, Turns { turns, taken }).expect("a thread"), turn, texts)
    }

    fn all(texts: &Receiver<String>) -> String {
        texts.try_iter().collect()
    }

    #[test]
    fn lines_that_a_full_disk_refuses_are_counted_and_told_when_there_is_room_again() {
        let (sink, turn, texts) = sink();
        for meets in [
            Meets::Room(usize::MAX),
            // Half of the second line, then nothing of it, of the third, and of what is to be told before the fourth.
            Meets::Room(3),
            Meets::Error(Errno::ENOSPC),
            Meets::Error(Errno::ENOSPC),
            Meets::Error(Errno::ENOSPC),
        ] {
            turn.send(meets).expect("the writer takes it");
        }
        drop(turn);
        for number in 1..=5 {
            sink.push(format!("line {number}\n"));
        }
        sink.flush();
        let lost = "<4>3 lines of the log were lost: No space left on device";
        assert_eq!(all(&texts), format!("line 1\nlin\n{lost}\nline 5\n"));
    }

    #[test]
    fn a_reader_that_stalls_blocks_nobody_and_is_told_what_it_has_missed() {
        let (sink, turn, texts) = sink();
        let begin = Instant::now();
        for number in 0..10 * LINES_MAX {
            sink.push(format!("{number}\n"));
        }
        sink.flush();
        assert!(begin.elapsed() < FLUSH_ALL + FLUSH_LINE, "a flush waits for a reader that stalls");
        assert_eq!(all(&texts), "");
        drop(turn);
        sink.flush();
        let text = all(&texts);
        let (told, lines): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.contains("lines of the log were lost"));
        // The writer may have one line more in its hand, and it is told then and at the end.
        assert!((LINES_MAX..=LINES_MAX + 2).contains(&lines.len()), "{}", lines.len());
        assert!((1..=2).contains(&told.len()), "{told:?}");
        let count =
            |line: &&str| -> usize { line["<4>".len()..].split(' ').next().unwrap().parse().unwrap() };
        let lost: usize = told.iter().map(count).sum();
        assert_eq!(lost + lines.len(), 10 * LINES_MAX, "each line was written or counted");
    }

    #[test]
    fn a_flush_writes_what_was_folded() {
        let (sink, turn, texts) = sink();
        drop(turn);
        sink.push("line\n".to_owned());
        sink.flush();
        assert_eq!(all(&texts), "line\n");
    }
}
