//! What devices report of their own accord: ports that go down, queue pairs that fail.
//!
//! All cores share a device's list of events, which blocks whoever reads it. A thread for each device reads it and
//! tells every core; it ends with the process.

use std::sync::{Mutex, PoisonError};

use ringfab_reactor::MailboxSender;

use super::sys::{AsyncEvent, AsyncEventKind, Context};

/// A device and the cores that use it.
struct Watched {
    context: Context,
    cores: Vec<MailboxSender<AsyncEvent>>,
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

/// Tells a core of everything that a device reports from now on.
pub(super) fn subscribe(context: Context, core: MailboxSender<AsyncEvent>) {
    let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(watched) = all.iter_mut().find(|watched| watched.context == context) {
        watched.cores.push(core);
        return;
    }
    all.push(Watched { context, cores: vec![core] });
    drop(all);
    let thread = std::thread::Builder::new().name("rdma-events".to_owned());
    if let Err(error) = thread.spawn(move || run(context)) {
        tracing::warn!(%error, "nobody reads the events of an RDMA device");
    }
}

fn run(context: Context) {
    let device = context.name();
    loop {
        match context.wait_async_event() {
            Ok(event) => tell(context, &device, event),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!(device, %error, "the events of an RDMA device cannot be read any more");
                return;
            }
        }
    }
}

fn tell(context: Context, device: &str, event: AsyncEvent) {
    match event.kind {
        AsyncEventKind::PortDown => tracing::warn!(device, "an RDMA port is down"),
        AsyncEventKind::PortUp => tracing::info!(device, "an RDMA port is up"),
        AsyncEventKind::Device => tracing::error!(device, event = event.number, "an RDMA device has failed"),
        AsyncEventKind::QueuePair | AsyncEventKind::Other => {
            tracing::debug!(device, event = event.number, "event of an RDMA device");
        }
    }
    let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(watched) = all.iter_mut().find(|watched| watched.context == context) {
        // A core that has ended is forgotten.
        watched.cores.retain(|core| core.send(event).is_ok());
    }
}
