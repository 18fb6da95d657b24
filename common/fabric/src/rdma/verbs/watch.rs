//! What devices report of their own accord: ports that go down, queue pairs that fail.
//!
//! All cores share a device's list of events. A thread for each device reads it and tells every core; it ends when the
//! last core has let go of the device.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use ringfab_reactor::MailboxSender;

use super::sys::{AsyncEvent, AsyncEventKind, Context};

/// A device and the cores that use it.
struct Watched {
    context: Context,
    cores: Vec<(u64, MailboxSender<AsyncEvent>)>,
    /// Ends the thread.
    stop: Arc<EventFd>,
    thread: JoinHandle<()>,
    lost: bool,
}

/// The devices, and the number of the next subscription.
static WATCHED: Mutex<(Vec<Watched>, u64)> = Mutex::new((Vec::new(), 0));

/// A core that is told; dropping it ends that. Nobody reads from the device when the last is gone.
#[derive(Debug)]
pub(super) struct Subscription {
    context: Context,
    number: u64,
}

/// Tells a core of everything that a device reports from now on.
///
/// # Errors
/// When there can be no thread to read it.
pub(super) fn subscribe(context: Context, core: MailboxSender<AsyncEvent>) -> io::Result<Subscription> {
    let mut guard = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let (all, next) = &mut *guard;
    let number = *next;
    if let Some(watched) = all.iter_mut().find(|watched| watched.context == context) {
        watched.cores.push((number, core));
    } else {
        let stop = Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?);
        let stopped = Arc::clone(&stop);
        context.make_events_nonblocking()?;
        let builder = std::thread::Builder::new().name("rdma-events".to_owned());
        let thread = builder.spawn(move || run(context, &stopped))?;
        all.push(Watched { context, cores: vec![(number, core)], stop, thread, lost: false });
    }
    *next += 1;
    Ok(Subscription { context, number })
}

impl Subscription {
    /// Whether no other core uses the device, which was not in use before then.
    pub(super) fn is_first(&self) -> bool {
        let guard = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = guard.0.iter().find(|watched| watched.context == self.context);
        watched.is_some_and(|watched| watched.cores.first().is_some_and(|(number, _)| *number == self.number))
    }

    /// Its core finds that the device is lost. Returns whether no other core has found that.
    pub(super) fn note_lost(&self) -> bool {
        let mut guard = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = guard.0.iter_mut().find(|watched| watched.context == self.context);
        watched.is_none_or(|watched| !std::mem::replace(&mut watched.lost, true))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut guard = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        let all = &mut guard.0;
        let Some(index) = all.iter().position(|watched| watched.context == self.context) else { return };
        all[index].cores.retain(|(number, _)| *number != self.number);
        if !all[index].cores.is_empty() {
            return;
        }
        let ended = all.swap_remove(index);
        // The thread may be waiting for the list.
        drop(guard);
        if let Err(error) = ended.stop.write(1) {
            tracing::error!(%error, "the reader of a device's events cannot be stopped");
            return;
        }
        // It was told to end, and waits for nothing else.
        let _ended = ended.thread.join();
    }
}

fn run(context: Context, stop: &EventFd) {
    let device = context.name();
    loop {
        match next_event(context, stop) {
            Ok(Some(event)) => tell(context, &device, event),
            Ok(None) => return,
            // An event that is pending goes away with the queue pair that it is of.
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => {
                tracing::debug!(device, %error, "the events of an RDMA device cannot be read any more");
                return;
            }
        }
    }
}

/// Waits for an event; none when the thread shall end.
fn next_event(context: Context, stop: &EventFd) -> io::Result<Option<AsyncEvent>> {
    let mut both =
        [PollFd::new(stop.as_fd(), PollFlags::POLLIN), PollFd::new(context.events(), PollFlags::POLLIN)];
    poll(&mut both, PollTimeout::NONE)?;
    if both[0].any().unwrap_or(true) {
        return Ok(None);
    }
    context.next_async_event().map(Some)
}

fn tell(context: Context, device: &str, event: AsyncEvent) {
    match event.kind {
        AsyncEventKind::PortDown => tracing::warn!(device, "an RDMA port is down"),
        AsyncEventKind::PortUp => tracing::info!(device, "an RDMA port is up"),
        AsyncEventKind::Device | AsyncEventKind::QueuePair | AsyncEventKind::Other => {
            tracing::debug!(device, event = event.number, "event of an RDMA device");
        }
    }
    let mut guard = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(watched) = guard.0.iter_mut().find(|watched| watched.context == context) {
        for (_, core) in &watched.cores {
            // A core that has ended will not read it.
            let _unread = core.send(event);
        }
    }
}
