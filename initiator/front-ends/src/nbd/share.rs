//! How the engines share the connections. The one that listens gives each to the engine that has the fewest.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ringfab_reactor::{DetachedSocket, MailboxReceiver, Reactor, mailbox};

/// What the engines know of each other.
pub(crate) struct Shares {
    engines: Vec<Share>,
    /// Connections at once.
    connections_max: usize,
    /// Whether an engine ended while requests were waiting for the target.
    left_waiting: AtomicBool,
}

/// What is known of an engine.
#[derive(Default)]
struct Share {
    /// Connections that it has, or is about to have.
    connections: AtomicUsize,
    /// Takes connections, once it runs.
    sockets: OnceLock<ringfab_reactor::MailboxSender<DetachedSocket>>,
}

impl Shares {
    /// Of so many engines, which serve so many connections together.
    pub(crate) fn new(engines: usize, connections_max: usize) -> Self {
        Self {
            engines: (0..engines).map(|_| Share::default()).collect(),
            connections_max,
            left_waiting: AtomicBool::new(false),
        }
    }

    /// Connections that one engine serves at most.
    pub(crate) fn each_max(&self) -> usize {
        self.connections_max.div_ceil(self.engines.len())
    }

    /// An engine runs: what it is given arrives there.
    pub(crate) fn begin(&self, engine: usize, reactor: &Reactor) -> MailboxReceiver<DetachedSocket> {
        let (sender, receiver) = mailbox(reactor.waker());
        let first = self.engines[engine].sockets.set(sender).is_ok();
        assert!(first, "an engine begins once");
        receiver
    }

    /// The engine for the next connection, which is counted there; `None` when there are as many as may be.
    pub(crate) fn take(&self) -> Option<usize> {
        let count = |share: &Share| share.connections.load(Ordering::Relaxed);
        if self.engines.iter().map(count).sum::<usize>() >= self.connections_max {
            return None;
        }
        let running = self.engines.iter().enumerate().filter(|(_, share)| share.sockets.get().is_some());
        let (engine, share) = running.min_by_key(|(_, share)| count(share))?;
        share.connections.fetch_add(1, Ordering::Relaxed);
        Some(engine)
    }

    /// Gives an engine a connection that was counted there.
    pub(crate) fn give(&self, engine: usize, socket: DetachedSocket) {
        let Some(sockets) = self.engines[engine].sockets.get() else { return };
        if sockets.send(socket).is_err() {
            tracing::warn!("a client was refused: its engine has ended");
            self.release(engine);
        }
    }

    /// A connection of an engine has ended.
    pub(crate) fn release(&self, engine: usize) {
        self.engines[engine].connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// An engine ends while requests are waiting for the target.
    pub(crate) fn leave_waiting(&self) {
        self.left_waiting.store(true, Ordering::Release);
    }

    /// Whether one did.
    pub(crate) fn has_left_waiting(&self) -> bool {
        self.left_waiting.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringfab_reactor::ReactorConfig;

    use super::*;

    #[test]
    fn connections_are_spread_and_bounded_and_an_engine_that_does_not_run_gets_none() {
        let config = ReactorConfig { entries: 8, spin: Duration::ZERO, descriptors_max: 8 };
        let reactor = Reactor::new(&config).expect("a ring");
        let shares = Shares::new(2, 3);
        assert_eq!((shares.each_max(), shares.take()), (2, None), "none runs");
        let _first = shares.begin(0, &reactor);
        assert_eq!(shares.take(), Some(0));
        let _second = shares.begin(1, &reactor);
        assert_eq!([shares.take(), shares.take(), shares.take()], [Some(1), Some(0), None]);
        shares.release(1);
        assert_eq!([shares.take(), shares.take()], [Some(1), None]);
    }
}
