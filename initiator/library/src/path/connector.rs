//! How a path connects its queues: to which address, and by which numbers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use ringfab_fabric::rdma::ProtectionDomain;
use ringfab_fabric::tcp::Psk;
use ringfab_fabric::{ZonedIp, zone_index};

use crate::error::{Cause, Step};
use crate::messages::{Found, OpenQueues, Resolved};
use crate::options::ConnectOptions;
use crate::queue::Queue;
use crate::request::PathHandle;
use crate::resources::Resources;
use crate::tls::TlsFailure;
use crate::transport::Connect;
use crate::url::HostName;

/// Which of the controller's I/O queues an engine has. Several engines share them in turn, so that each has as many as
/// another, or one less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueShare {
    /// Number of this engine, from zero.
    pub(crate) engine: u16,
    /// Engines that share the controller.
    pub(crate) engines: u16,
}

impl QueueShare {
    /// How many queues that is of `total`.
    pub(crate) fn count(self, total: u16) -> u16 {
        total.saturating_sub(self.engine).div_ceil(self.engines)
    }

    /// NVMe queue identifier of this engine's queue with a number, which counts from one; zero for the admin queue.
    pub(crate) fn qid(self, number: u16) -> u16 {
        if number == 0 { 0 } else { 1 + self.engine + (number - 1) * self.engines }
    }

    /// Whether this engine has the admin queue.
    pub(crate) fn leads(self) -> bool {
        self.engine == 0
    }
}

/// What a path connects its queues with.
#[derive(Debug)]
pub(super) struct Connector {
    path: PathHandle,
    options: Arc<ConnectOptions>,
    share: QueueShare,
    domain: ProtectionDomain,
    attempts: Attempts,
    /// Counts the questions to the resolver, so that a late answer is recognised.
    question: u32,
}

/// What is tried in turn: each address of the name, and there all keys for TLS, then the last one alone. Where
/// authentication makes the key, each address is first tried in clear text.
///
/// There are peers that look at the first identity only (tlshd with GnuTLS 3.8), and to which the key has the older
/// one.
#[derive(Debug)]
struct Attempts {
    /// Where the controller may be.
    addresses: Vec<SocketAddr>,
    /// The keys for TLS, if connections are over TLS.
    psks: Option<Arc<[Psk]>>,
    /// Those that are offered now.
    offered: Option<Arc<[Psk]>>,
    /// The address that is tried.
    current: usize,
}

impl Attempts {
    fn new(addresses: Vec<SocketAddr>, psks: Option<Arc<[Psk]>>) -> Self {
        Self { addresses, offered: psks.clone(), psks, current: 0 }
    }

    /// Goes on after `step` has failed. Says whether something is left to try.
    fn next(&mut self, step: Step) -> bool {
        if step == Step::Tls
            && let Some([_, .., last]) = self.offered.as_deref()
        {
            self.offered = Some([last.clone()].into());
            return true;
        }
        let another = self.current + 1 < self.addresses.len();
        if another {
            self.current += 1;
            self.offered = self.psks.clone();
        }
        another
    }
}

impl Connector {
    /// Of a path. Its queues are those of one engine.
    pub(super) fn new(
        path: PathHandle,
        options: Arc<ConnectOptions>,
        share: QueueShare,
        resources: &mut Resources,
    ) -> Self {
        let domain = resources.transports.rnic.allocate_domain();
        let attempts = Attempts::new(Vec::new(), None);
        Self { path, options, share, domain, attempts, question: 0 }
    }

    /// The queues of this engine.
    pub(super) fn share(&self) -> QueueShare {
        self.share
    }

    /// Looks for the address, and the key for TLS. Says whether they are known already; otherwise a thread answers.
    ///
    /// # Errors
    /// What cannot be had.
    pub(super) fn resolve(&mut self, resources: &Resources) -> Result<bool, Cause> {
        self.question += 1;
        let (mailbox, is_simulated) = (&resources.mailbox, resources.reactor.is_simulated());
        let known = crate::resolve::resolve(&self.options, self.path, self.question, mailbox, is_simulated)?;
        let is_known = known.is_some();
        known.into_iter().for_each(|found| self.set(found));
        Ok(is_known)
    }

    /// Takes the resolver's answer; `None` when it is late.
    pub(super) fn on_resolved(&mut self, resolved: Resolved) -> Option<Result<(), Cause>> {
        if resolved.question != self.question {
            return None;
        }
        Some(resolved.result.map(|found| self.set(found)))
    }

    fn set(&mut self, found: Found) {
        self.attempts = Attempts::new(found.addresses, found.psks);
    }

    /// These are the address and the keys, as the leader has found them.
    pub(super) fn follow(&mut self, plan: &OpenQueues) {
        self.set(Found { addresses: vec![plan.address], psks: plan.psks.clone() });
    }

    /// The keys for TLS that are tried, or that the controller knows, if connections are over TLS.
    pub(super) fn psks(&self) -> Option<Arc<[Psk]>> {
        self.attempts.offered.clone()
    }

    /// The ends have made this key, on a connection in clear text or instead of an earlier one: all connections that
    /// begin from now on are over TLS with it.
    pub(super) fn secure(&mut self, psk: Psk) {
        self.attempts.offered = Some([psk].into());
    }

    /// What has failed. A key that authentication has made is nothing that people could compare.
    pub(super) fn explain(&self, cause: Cause) -> Cause {
        match cause {
            Cause::Tls(TlsFailure::Handshake(why)) if self.options.concatenates() => {
                Cause::Tls(TlsFailure::Generated(why))
            }
            cause => cause,
        }
    }

    /// Goes on to the older identity of the key, or to the next address, if there is one.
    pub(super) fn next_attempt(&mut self, failed: Step) -> bool {
        self.attempts.next(failed)
    }

    /// The address that is tried, or that the controller had last, once there was one.
    pub(super) fn known_address(&self) -> Option<SocketAddr> {
        self.attempts.addresses.get(self.attempts.current).copied()
    }

    /// The controller has one of several addresses of its name: the path stays with it. Returns the others.
    pub(super) fn keep_address(&mut self) -> Vec<HostName> {
        let addresses = &self.attempts.addresses;
        if !self.options.paths.all_addresses || addresses.len() < 2 {
            return Vec::new();
        }
        let Some(kept) = host_of(self.address()) else { return Vec::new() };
        let others = addresses.iter().filter_map(|address| host_of(*address)).filter(|host| *host != kept);
        let others = others.collect();
        let mut options = ConnectOptions::clone(&self.options);
        options.url.host = kept;
        self.options = Arc::new(options);
        others
    }

    /// The address that is tried, or that the controller has.
    pub(super) fn address(&self) -> SocketAddr {
        self.attempts.addresses[self.attempts.current]
    }

    /// Starts to connect a queue with `size` entries: the admin queue for number zero. The transport bounds how long it
    /// takes.
    ///
    /// # Errors
    /// When there is no connection left or the system has no socket.
    pub(super) fn connect(&self, resources: &mut Resources, number: u16, size: u16) -> io::Result<Queue> {
        let to = Connect {
            address: self.address(),
            url: &self.options.url,
            tls: self.attempts.offered.as_ref(),
            domain: self.domain,
            qid: self.share.qid(number),
            size,
            pool: &resources.pool,
            timeout: self.options.timeouts.connect,
        };
        let queue = Queue::connect(&mut resources.transports, &mut resources.reactor, &to)?;
        resources.routes.add(queue.endpoint(), self.path, number);
        Ok(queue)
    }

    /// The path has ended.
    pub(super) fn end(&self, resources: &mut Resources) {
        resources.transports.rnic.deallocate_domain(self.domain);
    }
}

/// An address as that of a machine.
fn host_of(address: SocketAddr) -> Option<HostName> {
    let zone = Some(zone_index(address)).filter(|index| *index != 0).map(|index| index.to_string());
    ZonedIp::new(address.ip(), zone.as_deref()).ok().map(HostName::from)
}

#[cfg(test)]
mod tests {
    use super::{Attempts, QueueShare, Step};
    use crate::tls::{Tls, TlsKey};
    use ringfab_auth::ConfiguredPsk;

    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    #[test]
    fn the_older_identity_is_offered_alone_where_tls_fails_and_both_at_the_next_address() {
        let tls = Tls::new(TlsKey::Known(ConfiguredPsk::parse(KEY).expect("a key")));
        let psks = tls.psks("nqn.psk-test-host", "nqn.psk-test-subsys").expect("keys");
        let addresses = ["[::1]:1", "[::1]:2"].map(|text| text.parse().expect("an address"));
        let mut attempts = Attempts::new(addresses.to_vec(), Some(psks.clone()));
        let offered = |attempts: &Attempts| {
            (attempts.current, attempts.offered.iter().flat_map(|all| all.iter()).count())
        };
        assert_eq!(offered(&attempts), (0, 2));
        assert!(attempts.next(Step::Tls));
        assert_eq!(offered(&attempts), (0, 1));
        assert!(attempts.offered.as_deref().is_some_and(|one| one[0].identity == psks[1].identity));
        assert!(attempts.next(Step::Tls));
        assert_eq!(offered(&attempts), (1, 2));
        assert!(!attempts.next(Step::Connect), "nobody listens, with whatever key");
        assert!(attempts.next(Step::Tls));
        assert_eq!(offered(&attempts), (1, 1));
        assert!(!attempts.next(Step::Tls));
    }

    #[test]
    fn engines_share_all_queues_and_none_twice() {
        for (engines, total) in [(1, 1), (1, 7), (2, 4), (2, 5), (3, 5), (4, 4), (3, 2)] {
            let shares = (0..engines).map(|engine| QueueShare { engine, engines });
            let mut all: Vec<u16> = shares
                .flat_map(|share| (1..=share.count(total)).map(move |number| share.qid(number)))
                .collect();
            all.sort_unstable();
            assert_eq!(all, (1..=total).collect::<Vec<_>>(), "{engines} engines, {total} queues");
        }
    }
}
