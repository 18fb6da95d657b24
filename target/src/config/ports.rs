//! Which addresses cannot be had at the same time.

use std::fs;
use std::net::IpAddr;
use std::sync::LazyLock;

use ringfab_fabric::ZonedIp;

use super::{ListenerConfig, Provider, Transport};

/// Whose a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortOf {
    /// The kernel's TCP: of NVMe/TCP, the software RNIC, and the metrics.
    Kernel,
    /// An RDMA device.
    Device,
    /// An RDMA device's, if this machine has one for the address.
    Either,
}

impl ListenerConfig {
    /// Whose its port is.
    pub(crate) const fn port_of(&self) -> PortOf {
        match (self.transport, self.provider) {
            (Transport::Tcp, _) | (Transport::Rdma, Provider::Iwarp) => PortOf::Kernel,
            (Transport::Rdma, Provider::Verbs) => PortOf::Device,
            (Transport::Rdma, Provider::Auto) => PortOf::Either,
        }
    }
}

/// Whether somebody who connects to one address and port could mean the other one, too.
pub(crate) fn overlap(one: (&ZonedIp, u16), other: (&ZonedIp, u16)) -> bool {
    let [ip, other_ip] = [one.0, other.0].map(|zoned| zoned.ip().to_canonical());
    let all = takes_all_of(ip, other_ip) || takes_all_of(other_ip, ip);
    one.1 == other.1 && one.1 != 0 && (all || (ip == other_ip && one.0.zone() == other.0.zone()))
}

/// Whether one address stands for all addresses of the other's kind. That of IPv6 does so for IPv4, too, unless the
/// machine says otherwise.
fn takes_all_of(all: IpAddr, one: IpAddr) -> bool {
    static IPV6_ONLY: LazyLock<bool> = LazyLock::new(|| {
        fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "1")
    });
    all.is_unspecified() && (all.is_ipv4() == one.is_ipv4() || (all.is_ipv6() && !*IPV6_ONLY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_for_all_overlaps_with_each() {
        let at = |text: &str| text.parse::<ZonedIp>().expect("an address");
        let overlaps = |one: &str, other: &str| {
            let found = overlap((&at(one), 4420), (&at(other), 4420));
            assert_eq!(found, overlap((&at(other), 4420), (&at(one), 4420)));
            found
        };
        assert!(overlaps("127.0.0.1", "127.0.0.1") && overlaps("0.0.0.0", "127.0.0.1"));
        assert!(
            overlaps("::", "::1")
                && overlaps("::", "fe80::1%lo")
                && overlaps("::ffff:127.0.0.1", "127.0.0.1")
        );
        let v6_alone =
            fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "1");
        assert_eq!(overlaps("::", "127.0.0.1"), !v6_alone);
        assert!(!overlaps("127.0.0.1", "127.0.0.2") && !overlaps("0.0.0.0", "::1"));
        assert!(!overlaps("fe80::1%lo", "fe80::1%eth0"));
        assert!(
            !overlap((&at("::1"), 4420), (&at("::1"), 4421)) && !overlap((&at("::1"), 0), (&at("::1"), 0))
        );
    }
}
