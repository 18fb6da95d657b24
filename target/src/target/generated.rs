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

/// The most keys of one host for one subsystem: as many of its controllers can be between both connections.
const KEPT_OF_ONE_MAX: usize = 64;

/// The keys of each host for each subsystem: one for each controller, the newest.
#[derive(Debug, Default)]
pub(super) struct GeneratedPsks {
    kept: Mutex<Kept>,
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Kept {
    /// By host and subsystem, the oldest first.
    psks: BTreeMap<(String, String), Vec<Generated>>,
    next_look: Time,
}

#[derive(Debug)]
struct Generated {
    psk: TlsPsk,
    /// The identity of the TLS channel that has made it, instead of its own key.
    replaces: Option<String>,
    authenticated: Authenticated,
    /// When a controller used it last, as far as was looked.
    used: Time,
}

impl Generated {
    /// Whether it is the key of a TLS channel, or the one after that.
    fn is_of(&self, channel: &str) -> bool {
        self.psk.identity() == channel || self.replaces.as_deref() == Some(channel)
    }
}

impl Kept {
    fn count(&self) -> usize {
        self.psks.values().map(Vec::len).sum()
    }

    /// Forgets the key that was not used for the longest time: of these names, if they have as many as they may.
    /// Their own older one makes room for another, and nobody else's, as long as there is one.
    fn make_room(&mut self, names: &(String, String)) {
        let of_names = self.psks.get(names).map_or(0, Vec::len);
        if of_names < KEPT_OF_ONE_MAX && self.count() < KEPT_MAX {
            return;
        }
        let owner = match of_names {
            0 => self.psks.iter().min_by_key(|(_, all)| oldest(all)).map(|(owner, _)| owner.clone()),
            _ => Some(names.clone()),
        };
        let Some(all) = owner.as_ref().and_then(|owner| self.psks.get_mut(owner)) else { return };
        let least = oldest(all);
        let index = all.iter().position(|one| Some(one.used) == least);
        index.map(|index| all.remove(index));
        self.psks.retain(|_, all| !all.is_empty());
    }
}

/// When the one that was not used for the longest time was used last.
fn oldest(all: &[Generated]) -> Option<Time> {
    all.iter().map(|one| one.used).min()
}

impl GeneratedPsks {
    /// Keeps what an authentication has made: instead of the key of its TLS channel, if it went over one.
    pub(super) fn keep(
        &self,
        names: Names<'_>,
        authenticated: &Authenticated,
        channel: Option<&str>,
        now: Time,
    ) -> Option<TlsPsk> {
        let psk = authenticated.tls_psk(names)?;
        let mut kept = self.lock();
        let names = (names.host.as_str().to_owned(), names.subsystem.as_str().to_owned());
        if let (Some(all), Some(channel)) = (kept.psks.get_mut(&names), channel) {
            all.retain(|one| !one.is_of(channel));
        }
        kept.make_room(&names);
        let authenticated = Authenticated { generated_psk: None, ..authenticated.clone() };
        let replaces = channel.map(str::to_owned);
        let made = Generated { psk: psk.clone(), replaces, authenticated, used: now };
        kept.psks.entry(names).or_default().push(made);
        self.count.store(kept.count(), Ordering::Relaxed);
        Some(psk)
    }

    /// The key with an identity, and how its host has authenticated.
    pub(super) fn find(&self, names: Names<'_>, identity: &[u8]) -> Option<(TlsPsk, Authenticated)> {
        let names = (names.host.as_str().to_owned(), names.subsystem.as_str().to_owned());
        let kept = self.lock();
        let found = kept.psks.get(&names)?.iter().find(|one| one.psk.is_known_by(identity))?;
        Some((found.psk.clone(), found.authenticated.clone()))
    }

    /// Forgets the keys of a host, whose own key for authentication is another one now.
    pub(super) fn forget(&self, host: &str) {
        let mut kept = self.lock();
        kept.psks.retain(|(of, _), _| of != host);
        self.count.store(kept.count(), Ordering::Relaxed);
    }

    /// Forgets the keys that have not been used for some time; `in_use` says which TLS channels controllers have, by
    /// the identities of their keys.
    pub(super) fn expire(&self, now: Time, in_use: impl Fn(&str) -> bool) {
        if !self.is_any() {
            return;
        }
        let mut kept = self.lock();
        if now < kept.next_look {
            return;
        }
        kept.next_look = now + LOOK_INTERVAL;
        for all in kept.psks.values_mut() {
            all.retain_mut(|one| {
                let is_used = || in_use(one.psk.identity()) || one.replaces.as_deref().is_some_and(&in_use);
                if now >= one.used + UNUSED_LIMIT && is_used() {
                    one.used = now;
                }
                now < one.used + UNUSED_LIMIT
            });
        }
        kept.psks.retain(|_, all| !all.is_empty());
        self.count.store(kept.count(), Ordering::Relaxed);
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
pub(super) mod tests {
    use ringfab_auth::{
        Concatenation, ControllerTransaction, DhchapKey, Group, Hash, HostStep, HostTransaction, Parties,
        Policy, Received, SequenceNumbers, system_random,
    };
    use ringfab_spec::Nqn;
    use ringfab_spec::auth::SecureChannel;

    use super::*;

    const HOST: &str = "nqn.2024-01.org.example:host";
    const DISK: &str = "nqn.2024-01.org.example:disk";

    fn authenticate() -> Authenticated {
        authenticated(HOST, DISK)
    }

    /// What both ends have made.
    pub(in crate::target) fn authenticated(host: &str, subsystem: &str) -> Authenticated {
        let mut random = system_random();
        let (host, subsystem) = (Nqn::new(host).unwrap(), Nqn::new(subsystem).unwrap());
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

    fn names() -> Names<'static> {
        Names { host: Nqn::new(HOST).unwrap(), subsystem: Nqn::new(DISK).unwrap() }
    }

    #[test]
    fn a_key_is_kept_until_it_has_not_been_used_for_a_while() {
        let psks = GeneratedPsks::default();
        let psk = psks.keep(names(), &authenticate(), None, at(10)).unwrap();
        let (found, authenticated) = psks.find(names(), psk.identity().as_bytes()).unwrap();
        assert_eq!((found, authenticated.generated_psk), (psk.clone(), None));
        let is_kept = || psks.find(names(), psk.identity().as_bytes()).is_some();
        psks.expire(at(69), |_| false);
        assert!(is_kept());
        psks.expire(at(71), |identity| identity == psk.identity());
        assert!(is_kept(), "a controller uses it");
        psks.expire(at(130), |_| false);
        assert!(is_kept());
        psks.expire(at(132), |_| false);
        assert!(!is_kept() && !psks.is_any());
    }

    #[test]
    fn another_key_replaces_that_of_its_channel_and_no_other() {
        let psks = GeneratedPsks::default();
        let make = |channel: Option<&TlsPsk>| {
            let channel = channel.map(|psk| psk.identity().to_owned());
            psks.keep(names(), &authenticate(), channel.as_deref(), at(0)).unwrap()
        };
        let is_kept = |psk: &TlsPsk| psks.find(names(), psk.identity().as_bytes()).is_some();
        let (one, other) = (make(None), make(None));
        assert!(is_kept(&one) && is_kept(&other), "two controllers of one host");
        let second = make(Some(&one));
        assert!(!is_kept(&one) && is_kept(&second) && is_kept(&other));
        // The channel is still that of the first.
        let third = make(Some(&one));
        assert!(!is_kept(&second) && is_kept(&third) && is_kept(&other));
        psks.expire(at(71), |identity| identity == one.identity());
        assert!(is_kept(&third) && !is_kept(&other), "the controller with the first is there");
        // And of a channel with the third.
        let fourth = make(Some(&third));
        assert!(!is_kept(&third) && is_kept(&fourth));
    }

    #[test]
    fn a_host_has_room_for_so_many_keys_and_takes_no_other_ones() {
        let psks = GeneratedPsks::default();
        let other_names = Names { host: Nqn::new("nqn.2024-01.org.example:other").unwrap(), ..names() };
        let others = psks.keep(other_names, &authenticate(), None, at(0)).unwrap();
        let made: Vec<TlsPsk> = (0..KEPT_OF_ONE_MAX as u64 + 1)
            .map(|number| psks.keep(names(), &authenticate(), None, at(1 + number)).unwrap())
            .collect();
        let kept = made.iter().filter(|psk| psks.find(names(), psk.identity().as_bytes()).is_some());
        assert_eq!(kept.count(), KEPT_OF_ONE_MAX);
        assert!(psks.find(names(), made[0].identity().as_bytes()).is_none(), "the oldest has made room");
        assert!(psks.find(other_names, others.identity().as_bytes()).is_some());
    }

    #[test]
    fn the_keys_of_a_host_go_with_its_own() {
        let names = names();
        let psks = GeneratedPsks::default();
        let psk = psks.keep(names, &authenticate(), None, at(0)).unwrap();
        psks.forget("nqn.2024-01.org.example:other");
        assert!(psks.find(names, psk.identity().as_bytes()).is_some());
        psks.forget(HOST);
        assert!(psks.find(names, psk.identity().as_bytes()).is_none());
    }
}
