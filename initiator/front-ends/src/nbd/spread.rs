//! How the connections spread over the engines. The one that listens gives each to the engine that has the fewest.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ringfab_reactor::{DetachedSocket, MailboxReceiver, MailboxSender, Reactor, mailbox};

/// The connections of all engines.
pub(crate) struct Spread {
    engines: Vec<EngineConnections>,
    connections_max: usize,
    /// Whether an engine ended while requests were waiting for the target.
    requests_left: AtomicBool,
}

/// Those of one engine.
#[derive(Default)]
struct EngineConnections {
    /// Connections that it has, or is about to have.
    count: AtomicUsize,
    /// Takes connections, once it serves.
    sockets: OnceLock<MailboxSender<DetachedSocket>>,
}

impl Spread {
    /// Of so many engines, which serve so many connections together.
    pub(crate) fn new(engines: usize, connections_max: usize) -> Self {
        Self {
            engines: (0..engines).map(|_| EngineConnections::default()).collect(),
            connections_max,
            requests_left: AtomicBool::new(false),
        }
    }

    /// Connections that one engine serves at most.
    pub(crate) fn per_engine_max(&self) -> usize {
        self.connections_max.div_ceil(self.engines.len())
    }

    /// An engine serves from now on: what it is given arrives there.
    pub(crate) fn open(&self, engine: usize, reactor: &Reactor) -> MailboxReceiver<DetachedSocket> {
        let (sender, receiver) = mailbox(reactor.waker());
        let first = self.engines[engine].sockets.set(sender).is_ok();
        assert!(first, "an engine begins once");
        receiver
    }

    /// The engine for the next connection, which is counted there; `None` when there are as many as may be.
    pub(crate) fn choose(&self) -> Option<usize> {
        let count = |engine: &EngineConnections| engine.count.load(Ordering::Relaxed);
        if self.engines.iter().map(count).sum::<usize>() >= self.connections_max {
            return None;
        }
        let open = self.engines.iter().enumerate().filter(|(_, engine)| engine.sockets.get().is_some());
        let (number, engine) = open.min_by_key(|(_, engine)| count(engine))?;
        engine.count.fetch_add(1, Ordering::Relaxed);
        Some(number)
    }

    /// Gives an engine a connection that was counted there.
    pub(crate) fn hand_over(&self, engine: usize, socket: DetachedSocket) {
        let Some(sockets) = self.engines[engine].sockets.get() else { return };
        if sockets.send(socket).is_err() {
            tracing::warn!("a client was refused: its engine has ended");
            self.release(engine);
        }
    }

    /// A connection of an engine has ended.
    pub(crate) fn release(&self, engine: usize) {
        self.engines[engine].count.fetch_sub(1, Ordering::Relaxed);
    }

    /// An engine ends while requests are waiting for the target.
    pub(crate) fn leave_requests(&self) {
        self.requests_left.store(true, Ordering::Release);
    }

    /// Whether one did.
    pub(crate) fn requests_were_left(&self) -> bool {
        self.requests_left.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringfab_reactor::ReactorConfig;

    use super::*;

    #[test]
    fn connections_are_spread_and_bounded_and_an_engine_that_does_not_serve_gets_none() {
        let config = ReactorConfig { entries: 8, spin: Duration::ZERO, descriptors_max: 8 };
        let reactor = Reactor::new(&config).expect("a ring");
        let spread = Spread::new(2, 3);
        assert_eq!((spread.per_engine_max(), spread.choose()), (2, None), "none serves");
        let _first = spread.open(0, &reactor);
        assert_eq!(spread.choose(), Some(0));
        let _second = spread.open(1, &reactor);
        assert_eq!([spread.choose(), spread.choose(), spread.choose()], [Some(1), Some(0), None]);
        spread.release(1);
        assert_eq!([spread.choose(), spread.choose()], [Some(1), None]);
    }
}
