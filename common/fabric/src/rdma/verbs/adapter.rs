//! What a core has on one RDMA device.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use ringfab_reactor::{MailboxReceiver, Waker, mailbox};

use super::posted::Outstanding;
use super::sys::{
    AsyncEvent, Batch, CmEvent, CmId, CompletionChannel, CompletionQueue, Context, DeviceLimits,
    EventChannel, WorkCompletion,
};
use super::watch::{self, Subscription};
use crate::zone::at_port;

/// The most completions that a core's queue on one device holds.
const COMPLETIONS_MAX: u32 = 32_768;

/// The most that are taken in one turn of the core's loop, so that nothing else starves.
const POLL_BATCHES: usize = 8;

/// A core's completion queues on a device. It is dropped after everything that reports to them.
#[derive(Debug)]
pub(super) struct Adapter {
    pub(super) context: Context,
    pub(super) limits: DeviceLimits,
    pub(super) name: String,
    /// What the requests that were posted will report.
    pub(super) outstanding: Outstanding,
    sends: NotifyingQueue,
    receives: NotifyingQueue,
    batch: Batch,
    channel: CompletionChannel,
    /// Completions that may be outstanding at once, by what was made so far.
    reserved: u32,
    capacity: u32,
    /// Whether the core's ring looks at the channel.
    pub(super) watched: bool,
    /// The device is gone, or of no use any more; this waits only for the ring to let go of the channel.
    pub(super) lost: bool,
    events: MailboxReceiver<AsyncEvent>,
    pub(super) subscription: Subscription,
    /// Keeps the device open, and is told when it is removed.
    anchor: CmId,
}

/// A completion queue that notifies the channel once for each time that it is armed.
#[derive(Debug)]
struct NotifyingQueue {
    completions: CompletionQueue,
    armed: bool,
}

impl NotifyingQueue {
    fn new(context: Context, capacity: u32, channel: &CompletionChannel) -> io::Result<Self> {
        Ok(Self { completions: CompletionQueue::new(context, capacity, channel)?, armed: false })
    }

    /// Takes what has completed. Returns how much.
    fn poll(&self, batch: &mut Batch, device: &str, mut take: impl FnMut(&WorkCompletion)) -> usize {
        let mut total = 0;
        for _ in 0..POLL_BATCHES {
            match self.completions.poll(batch, &mut take) {
                Ok(Batch::LENGTH) => total += Batch::LENGTH,
                Ok(count) => return total + count,
                Err(error) => {
                    tracing::error!(device, %error, "completions are lost");
                    break;
                }
            }
        }
        total
    }

    /// Returns whether it was not yet armed.
    fn arm(&mut self, device: &str) -> bool {
        if self.armed {
            return false;
        }
        match self.completions.arm() {
            Ok(()) => self.armed = true,
            Err(error) => tracing::error!(device, %error, "no notification of completions"),
        }
        true
    }
}

impl Adapter {
    /// Opens the queues on the device of `context`, which owns the address `local`.
    pub(super) fn new(
        context: Context,
        local: SocketAddr,
        channel: &Arc<EventChannel>,
        waker: Waker,
    ) -> io::Result<Self> {
        let mut anchor = CmId::new(channel)?;
        anchor.set_context(u64::MAX);
        anchor.bind(at_port(local, 0))?;
        let limits = context.limits()?;
        let name = context.name();
        if limits.shared_receives == 0 {
            return Err(io::Error::other(format!("the RDMA device {name} has no shared receive queues")));
        }
        let notify = CompletionChannel::new(context)?;
        let capacity = limits.completions.min(COMPLETIONS_MAX);
        let sends = NotifyingQueue::new(context, capacity, &notify)?;
        let receives = NotifyingQueue::new(context, capacity, &notify)?;
        let (sender, events) = mailbox(waker);
        let subscription = watch::subscribe(context, sender)?;
        // Once for all cores.
        if subscription.is_first() {
            tracing::info!(device = name, capacity, ?limits, "RDMA device in use");
            if !limits.windows {
                tracing::warn!(
                    device = name,
                    "no memory windows: a controller reaches every buffer that was ever exposed to it, until its \
                     connection ends"
                );
            }
        }
        Ok(Self {
            context,
            limits,
            name,
            outstanding: Outstanding::default(),
            sends,
            receives,
            batch: Batch::new(),
            channel: notify,
            reserved: 0,
            capacity,
            watched: false,
            lost: false,
            events,
            subscription,
            anchor,
        })
    }

    /// Where requests of ours report.
    pub(super) fn sends(&self) -> &CompletionQueue {
        &self.sends.completions
    }

    /// Where messages of peers are reported.
    pub(super) fn receives(&self) -> &CompletionQueue {
        &self.receives.completions
    }

    /// Whether an event is of the identifier that keeps the device open.
    pub(super) fn is_of(&self, event: &CmEvent) -> bool {
        event.names(&self.anchor)
    }

    /// Readable when a completion came after [`Adapter::arm`].
    pub(super) fn descriptor(&self) -> RawFd {
        self.channel.descriptor()
    }

    /// Makes sure that so many more completions, of either kind, cannot overrun a queue.
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

    /// Takes what has completed, our own requests first: new commands may need what they held. Returns how much.
    pub(super) fn poll(&mut self, mut take: impl FnMut(&WorkCompletion)) -> usize {
        let Self { sends, receives, batch, name, .. } = self;
        [sends, receives].map(|queue| queue.poll(batch, name, &mut take)).iter().sum()
    }

    /// Asks to be notified of messages, and of our own requests if somebody waits for them. Returns whether it was not
    /// yet asked: what came before must be looked for once more.
    pub(super) fn arm(&mut self) -> bool {
        let receives = self.receives.arm(&self.name);
        let sends = !self.outstanding.can_wait() && self.sends.arm(&self.name);
        receives || sends
    }

    /// The channel was readable.
    pub(super) fn notified(&mut self) {
        self.watched = false;
        while self.sends.armed || self.receives.armed {
            let Some(queue) = self.channel.take() else { return };
            for notified in [&mut self.sends, &mut self.receives] {
                notified.armed &= !notified.completions.is(queue);
            }
        }
    }

    /// What the device itself has reported.
    pub(super) fn next_event(&mut self) -> Option<AsyncEvent> {
        self.events.try_receive()
    }
}
