//! What a core has on one RDMA device.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use ringfab_reactor::{MailboxReceiver, Waker, mailbox};

use super::sys::{
    AsyncEvent, CmId, CompletionChannel, CompletionQueue, Context, DeviceLimits, EventChannel, WorkCompletion,
};
use super::watch;

/// The most completions that a core's queue on one device holds.
const COMPLETIONS_MAX: u32 = 32_768;

/// The most that are taken in one turn of the core's loop, so that nothing else starves.
const POLL_BATCHES: usize = 8;

/// A core's completion queue on a device. It is dropped after everything that reports to it.
#[derive(Debug)]
pub(super) struct Adapter {
    pub(super) context: Context,
    pub(super) limits: DeviceLimits,
    pub(super) name: String,
    pub(super) completions: CompletionQueue,
    channel: CompletionChannel,
    /// Completions that may be outstanding at once, by what was made so far.
    reserved: u32,
    capacity: u32,
    /// Whether the next completion notifies the channel.
    armed: bool,
    /// Whether the core's ring looks at the channel.
    pub(super) watched: bool,
    events: MailboxReceiver<AsyncEvent>,
    /// Keeps the device open.
    _anchor: CmId,
}

impl Adapter {
    /// Opens a queue on the device of `context`, which owns the address `local`.
    pub(super) fn new(
        context: Context,
        local: SocketAddr,
        channel: &Arc<EventChannel>,
        waker: Waker,
    ) -> io::Result<Self> {
        let anchor = CmId::new(channel)?;
        anchor.bind(SocketAddr::new(local.ip(), 0))?;
        let limits = context.limits()?;
        let name = context.name();
        if limits.shared_receives == 0 {
            return Err(io::Error::other(format!("the RDMA device {name} has no shared receive queues")));
        }
        if !limits.windows {
            tracing::warn!(
                device = name,
                "no memory windows: a controller reaches every buffer that was ever exposed to it, until its connection ends"
            );
        }
        let notify = CompletionChannel::new(context)?;
        let capacity = limits.completions.min(COMPLETIONS_MAX);
        let completions = CompletionQueue::new(context, capacity, &notify)?;
        let (sender, events) = mailbox(waker);
        watch::subscribe(context, sender);
        tracing::info!(device = name, capacity, ?limits, "RDMA device in use");
        Ok(Self {
            context,
            limits,
            name,
            completions,
            channel: notify,
            reserved: 0,
            capacity,
            armed: false,
            watched: false,
            events,
            _anchor: anchor,
        })
    }

    /// Readable when a completion came after [`Adapter::arm`].
    pub(super) fn descriptor(&self) -> RawFd {
        self.channel.descriptor()
    }

    /// Makes sure that so many more completions cannot overrun the queue.
    pub(super) fn reserve(&mut self, completions: u32) -> io::Result<()> {
        match self.reserved.checked_add(completions).filter(|reserved| *reserved <= self.capacity) {
            Some(reserved) => {
                self.reserved = reserved;
                Ok(())
            }
            None => {
                let why = format!("the completion queue of {} is fully reserved", self.name);
                Err(io::Error::new(io::ErrorKind::QuotaExceeded, why))
            }
        }
    }

    /// Gives back what was reserved.
    pub(super) fn release(&mut self, completions: u32) {
        self.reserved = self.reserved.saturating_sub(completions);
    }

    /// Takes what has completed; returns how much.
    pub(super) fn poll(&self, mut take: impl FnMut(&WorkCompletion)) -> usize {
        let mut batch = [WorkCompletion::default(); CompletionQueue::BATCH];
        let mut total = 0;
        for _ in 0..POLL_BATCHES {
            let count = match self.completions.poll(&mut batch) {
                Ok(count) => count,
                Err(error) => {
                    tracing::error!(device = self.name, %error, "completions are lost");
                    return total;
                }
            };
            batch[..count].iter().for_each(&mut take);
            total += count;
            if count < batch.len() {
                break;
            }
        }
        total
    }

    /// Asks to be notified. Returns whether it was not yet asked: what came before must be looked for once more.
    pub(super) fn arm(&mut self) -> bool {
        if self.armed {
            return false;
        }
        match self.completions.arm() {
            Ok(()) => self.armed = true,
            Err(error) => tracing::error!(device = self.name, %error, "no notification of completions"),
        }
        true
    }

    /// The channel was readable.
    pub(super) fn notified(&mut self) {
        self.channel.drain();
        (self.armed, self.watched) = (false, false);
    }

    /// What the device itself has reported.
    pub(super) fn next_event(&mut self) -> Option<AsyncEvent> {
        self.events.try_receive()
    }
}
