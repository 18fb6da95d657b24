//! Peers by their addresses, and who of them has most of what all share.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use crate::zone::is_link_local;

/// The address that stands for a peer: one with IPv6 has a whole /64 network to itself, except on its link, where all
/// have the same one. A name can be claimed by anyone.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        local if is_link_local(local) => local,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

/// How many of something each peer has, by [`network_of`] its address.
#[derive(Clone, Debug, Default)]
pub struct PeerCounts(BTreeMap<IpAddr, u32>);

impl PeerCounts {
    /// A peer has one more.
    pub fn enter(&mut self, address: IpAddr) {
        *self.0.entry(network_of(address)).or_default() += 1;
    }

    /// A peer has one fewer.
    pub fn leave(&mut self, address: IpAddr) {
        let network = network_of(address);
        if let Some(count) = self.0.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&network);
            }
        }
    }

    /// What a peer has.
    pub fn of(&self, address: IpAddr) -> u32 {
        self.0.get(&network_of(address)).copied().unwrap_or(0)
    }

    /// The peer that has most, and how many.
    pub fn largest(&self) -> Option<(IpAddr, u32)> {
        self.0.iter().max_by_key(|(_, count)| **count).map(|(network, count)| (*network, *count))
    }

    /// Who has to give one up when there is none left for a newcomer: the peer that has most, if it would still have no
    /// less than the newcomer then.
    pub fn eviction_candidate(&self, newcomer: IpAddr) -> Option<IpAddr> {
        let (network, count) = self.largest()?;
        (count > self.of(newcomer) + 1).then_some(network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn all_of_an_address_are_one_peer_and_so_is_a_network_of_ipv6() {
        assert_eq!(network_of(address("::ffff:10.0.0.1")), address("10.0.0.1"));
        assert_eq!(network_of(address("fd00::1")), network_of(address("fd00::ffff:1")));
        assert_ne!(network_of(address("fd00::1")), network_of(address("fd00:0:0:1::1")));
        assert_ne!(network_of(address("fe80::1")), network_of(address("fe80::2")), "two machines of a link");
    }

    #[test]
    fn the_greediest_gives_way_until_the_newcomer_has_as_much() {
        let mut shares = PeerCounts::default();
        (0..3).for_each(|_| shares.enter(address("10.0.0.1")));
        shares.enter(address("10.0.0.2"));
        assert_eq!(shares.largest(), Some((address("10.0.0.1"), 3)));
        assert_eq!(shares.eviction_candidate(address("10.0.0.3")), Some(address("10.0.0.1")));
        assert_eq!(shares.eviction_candidate(address("10.0.0.2")), Some(address("10.0.0.1")));
        assert_eq!(shares.eviction_candidate(address("10.0.0.1")), None, "nobody gives way to itself");
        shares.leave(address("10.0.0.1"));
        assert_eq!(
            shares.eviction_candidate(address("10.0.0.2")),
            None,
            "it would have less than the newcomer"
        );
        (0..2).for_each(|_| shares.leave(address("10.0.0.1")));
        assert_eq!((shares.of(address("10.0.0.1")), shares.largest()), (0, Some((address("10.0.0.2"), 1))));
    }
}
