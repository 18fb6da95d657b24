//! Keys for TLS that secure channel concatenation has made: a host authenticates in clear text, and comes back over
//! TLS with the key that both ends have made.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringfab_auth::{Authenticated, Names, TlsPsk};
use ringfab_reactor::Time;

/// How long a key is kept that no controller uses: between one connection of a host and the next.
const UNUSED_LIMIT: Duration = Duration::from_secs(60);

/// How often it is seen which keys have not been used for so long.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The most keys. Only hosts that have authenticated have one, for each subsystem that they use.
const KEPT_MAX: usize = 4096;

/// The newest key of each host for each subsystem.
#[derive(Debug, Default)]
pub(super) struct GeneratedPsks {
    kept: Mutex<Kept>,
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Kept {
    /// By host and subsystem.
    psks: BTreeMap<(String, String), Generated>,
    next_look: Time,
}

#[derive(Debug)]
struct Generated {
    psk: TlsPsk,
    authenticated: Authenticated,
    /// When a controller used it last, as far as was looked.
    used: Time,
}

impl GeneratedPsks {
    /// Keeps what an authentication has made, instead of what an earlier one has.
    pub(super) fn keep(&self, names: Names<'_>, authenticated: &Authenticated, now: Time) -> Option<TlsPsk> {
        let psk = authenticated.tls_psk(names)?;
        let mut kept = self.lock();
        let names = (names.host.as_str().to_owned(), names.subsystem.as_str().to_owned());
        // Its own older one makes room for it, and nobody else's.
        if kept.psks.len() >= KEPT_MAX && !kept.psks.contains_key(&names) {
            let oldest = kept.psks.iter().min_by_key(|(_, one)| one.used).map(|(names, _)| names.clone());
            oldest.map(|names| kept.psks.remove(&names));
        }
        let authenticated = Authenticated { generated_psk: None, ..authenticated.clone() };
        kept.psks.insert(names, Generated { psk: psk.clone(), authenticated, used: now });
        self.count.store(kept.psks.len(), Ordering::Relaxed);
        Some(psk)
    }

    /// The key with an identity, and how its host has authenticated.
    pub(super) fn find(&self, names: Names<'_>, identity: &[u8]) -> Option<(TlsPsk, Authenticated)> {
        let names = (names.host.as_str().to_owned(), names.subsystem.as_str().to_owned());
        let kept = self.lock();
        let found = kept.psks.get(&names).filter(|one| one.psk.is_known_by(identity))?;
        Some((found.psk.clone(), found.authenticated.clone()))
    }

    /// Forgets the keys of a host, whose own key for authentication is another one now.
    pub(super) fn forget(&self, host: &str) {
        let mut kept = self.lock();
        kept.psks.retain(|(of, _), _| of != host);
        self.count.store(kept.psks.len(), Ordering::Relaxed);
    }

    /// Forgets the keys that have not been used for some time; `in_use` says which controllers use, by host and
    /// subsystem.
    pub(super) fn expire(&self, now: Time, in_use: impl Fn(&str, &str) -> bool) {
        if !self.is_any() {
            return;
        }
        let mut kept = self.lock();
        if now < kept.next_look {
            return;
        }
        kept.next_look = now + LOOK_INTERVAL;
        kept.psks.retain(|(host, subsystem), one| {
            if now >= one.used + UNUSED_LIMIT && in_use(host, subsystem) {
                one.used = now;
            }
            now < one.used + UNUSED_LIMIT
        });
        self.count.store(kept.psks.len(), Ordering::Relaxed);
    }

    /// Whether there are any.
    pub(super) fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use ringfab_auth::{
        Concatenation, ControllerTransaction, DhchapKey, Group, Hash, HostStep, HostTransaction, Parties,
        Policy, Received, SequenceNumbers, system_random,
    };
    use ringfab_spec::Nqn;
    use ringfab_spec::auth::SecureChannel;

    use super::*;

    const HOST: &str = "nqn.2024-01.org.example:host";
    const DISK: &str = "nqn.2024-01.org.example:disk";

    /// What both ends have made.
    fn authenticate() -> Authenticated {
        let mut random = system_random();
        let (host, subsystem) = (Nqn::new(HOST).unwrap(), Nqn::new(DISK).unwrap());
        let key = DhchapKey::generate(Hash::Sha256, None, &mut random);
        let parties = Parties::new(host, subsystem, &key, None);
        let policy = std::sync::Arc::new(Policy::new(&[Hash::Sha256], &[Group::Ffdhe2048]).unwrap());
        let allowed = Concatenation::Allowed(ringfab_auth::Channel::Clear);
        let mut controller = ControllerTransaction::new(Some(parties.clone()), policy.clone(), allowed);
        let numbers = SequenceNumbers::new(&mut random);
        let (mut transaction, mut message) =
            HostTransaction::start(parties, policy, SecureChannel::NEW_TLS_PSK, 1).unwrap();
        loop {
            if let Some(computation) = controller.on_send(&message, &numbers, &mut random) {
                controller.on_computed(computation.run());
            }
            let Received::Message(answer) = controller.on_receive(4096) else { panic!("no message") };
            let mut step = transaction.on_message(&answer, &numbers, &mut random);
            while let HostStep::Compute(computation) = step {
                step = transaction.on_computed(computation.run());
            }
            match step {
                HostStep::Exchange(next) => message = next,
                _ => break,
            }
        }
        let authenticated = controller.outcome().unwrap().unwrap().clone();
        let names = Names { host, subsystem };
        let of_host = transaction.outcome().unwrap().unwrap();
        assert_eq!(of_host.tls_psk(names), authenticated.tls_psk(names));
        authenticated
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn the_newest_key_is_kept_until_it_has_not_been_used_for_a_while() {
        let names = Names { host: Nqn::new(HOST).unwrap(), subsystem: Nqn::new(DISK).unwrap() };
        let psks = GeneratedPsks::default();
        let first = psks.keep(names, &authenticate(), at(0)).unwrap();
        let second = psks.keep(names, &authenticate(), at(10)).unwrap();
        assert_eq!(psks.find(names, first.identity().as_bytes()), None);
        let (found, authenticated) = psks.find(names, second.identity().as_bytes()).unwrap();
        assert_eq!((found, authenticated.generated_psk), (second.clone(), None));
        let is_kept = || psks.find(names, second.identity().as_bytes()).is_some();
        psks.expire(at(69), |_, _| false);
        assert!(is_kept());
        psks.expire(at(71), |host, subsystem| (host, subsystem) == (HOST, DISK));
        assert!(is_kept(), "a controller uses it");
        psks.expire(at(130), |_, _| false);
        assert!(is_kept());
        psks.expire(at(132), |_, _| false);
        assert!(!is_kept());
    }

    #[test]
    fn the_keys_of_a_host_go_with_its_own() {
        let names = Names { host: Nqn::new(HOST).unwrap(), subsystem: Nqn::new(DISK).unwrap() };
        let psks = GeneratedPsks::default();
        let psk = psks.keep(names, &authenticate(), at(0)).unwrap();
        psks.forget("nqn.2024-01.org.example:other");
        assert!(psks.find(names, psk.identity().as_bytes()).is_some());
        psks.forget(HOST);
        assert!(psks.find(names, psk.identity().as_bytes()).is_none());
    }
}
