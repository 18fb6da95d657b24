//! Whether a listener can be bound.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};

use ringfab_fabric::rdma::ProviderChoice;

use super::process::described;
use super::{Finding, port};
use crate::config::ports::{PortOf, overlap};
use crate::config::{ListenerConfig, Transport};

/// Why a listener cannot be bound.
pub(super) fn finding(listener: &ListenerConfig, serving: Option<u32>) -> Option<Finding> {
    let found = |message: String, advice: &'static str| {
        let what = format!("listener {} {}", listener.transport.name(), listener.place());
        Some(Finding { what, message, advice: advice.into() })
    };
    let address = match listener.address.socket_address(listener.port) {
        Ok(address) => address,
        Err(error) => return found(error.to_string(), "`ip address` lists the interfaces"),
    };
    let verbs = listener.transport == Transport::Rdma && listener.provider == ProviderChoice::Verbs;
    if verbs && let Err(why) = device_for(address.ip()) {
        return found(why, "install the device's libraries, or choose provider = \"iwarp\"");
    }
    let unbound = unbound(address, serving, verbs);
    unbound.and_then(|(message, advice)| found(message, advice))
}

/// The listeners of RDMA that need a device, because another listener has the port of the kernel's TCP.
pub(super) fn overlaps(listeners: &[ListenerConfig]) -> Vec<Finding> {
    let has_devices = || fs::read_dir("/sys/class/infiniband").is_ok_and(|mut all| all.next().is_some());
    let by_device = listeners.iter().filter(|one| one.port_of() == PortOf::Either);
    let kernels = |one: &ListenerConfig| {
        let at = (&one.address, one.port);
        let mut others = listeners.iter().filter(|other| other.port_of() == PortOf::Kernel);
        others.find(|other| overlap(at, (&other.address, other.port)))
    };
    let found = by_device.filter_map(|one| Some((one, kernels(one)?)));
    let finding = |(one, other): (&ListenerConfig, &ListenerConfig)| Finding {
        what: format!("listener {} {}", one.transport.name(), one.place()),
        message: format!(
            "this machine has no RDMA device, and the software RNIC needs the port of listener {} {}",
            other.transport.name(),
            other.place()
        ),
        advice: "choose another port".into(),
    };
    let found: Vec<Finding> = found.map(finding).collect();
    if found.is_empty() || has_devices() { Vec::new() } else { found }
}

/// Why an address cannot be bound, and what to do. What a device does with it is unknown.
pub(super) fn unbound(
    address: SocketAddr,
    serving: Option<u32>,
    by_device: bool,
) -> Option<(String, &'static str)> {
    // Nothing is accepted, and nobody notices: the socket is closed at once.
    let error = TcpListener::bind(address).err()?;
    match error.kind() {
        ErrorKind::AddrNotAvailable => {
            Some(("this machine has no such address".to_owned(), "`ip address` lists those that it has"))
        }
        // That of a device is not the kernel's TCP.
        ErrorKind::AddrInUse if !by_device => in_use(address, serving)
            .map(|who| (format!("the port is in use by {who}"), "end that, or choose another port")),
        ErrorKind::PermissionDenied => {
            Some(("the port is for privileged users".to_owned(), "choose a port from 1024 on"))
        }
        _ if by_device => None,
        _ => Some((error.to_string(), "correct the address")),
    }
}

/// Who has a port, unless that is whom we check for.
fn in_use(address: SocketAddr, serving: Option<u32>) -> Option<String> {
    match port::listener_of(address.port()) {
        None if serving.is_some() => None,
        None => Some("a program of another user".to_owned()),
        found if found == serving => None,
        Some(process) => Some(described(process)),
    }
}

/// Whether an RDMA device could serve an address.
#[cfg(feature = "verbs")]
fn device_for(ip: IpAddr) -> Result<(), String> {
    let devices = ringfab_fabric::rdma::devices::list();
    let devices = devices.map_err(|error| format!("no RDMA device can be used: {error}"))?;
    if devices.is_empty() {
        return Err("this machine has no RDMA device".to_owned());
    }
    let usable: Vec<_> = devices.iter().filter(|device| device.trouble.is_none()).collect();
    if usable.is_empty() {
        let why = devices.iter().filter_map(|one| Some(format!("{}: {}", one.name, one.trouble.as_ref()?)));
        return Err(format!("no RDMA device can be used: {}", why.collect::<Vec<_>>().join("; ")));
    }
    let gid = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut ports = usable.iter().flat_map(|device| &device.ports);
    // An IPoIB address is no GID, so that only Ethernet says for sure which device has an address.
    let owns = ports.any(|port| {
        port.link != ringfab_fabric::rdma::devices::LinkLayer::Roce
            || port.addresses.iter().any(|address| address.gid == gid)
    });
    if owns || ip.is_unspecified() || ip.is_loopback() {
        return Ok(());
    }
    Err("no RDMA device has this address".to_owned())
}

#[cfg(not(feature = "verbs"))]
fn device_for(_: IpAddr) -> Result<(), String> {
    Err("this program is built without RDMA devices".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(table: &str) -> ListenerConfig {
        crate::Config::parse_listener(table).expect("a listener")
    }

    #[test]
    fn a_port_in_use_is_reported_with_its_process_unless_that_serves_already() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("its address").port();
        let listener = listener(&format!("address = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\""));
        let said = finding(&listener, None).expect("in use").to_string();
        let process = format!("the port is in use by process {} (", std::process::id());
        assert!(
            said.starts_with(&format!("listener tcp 127.0.0.1:{port}: ")) && said.contains(&process),
            "{said}"
        );
        assert_eq!(finding(&listener, Some(std::process::id())), None);
        drop(taken);
        assert_eq!(finding(&listener, None), None);
    }

    #[test]
    fn an_address_of_another_machine_and_a_missing_interface_are_reported() {
        let said = |table: &str| finding(&listener(table), None).expect("something").to_string();
        assert!(said("address = \"192.0.2.77\"").contains("this machine has no such address"));
        assert!(said("address = \"fe80::1%nope\"").contains("no network interface nope"));
    }

    #[test]
    fn without_a_device_the_port_of_another_listener_is_not_free_for_rdma() {
        let of = |tables: [&str; 2]| overlaps(&tables.map(listener));
        let tcp = "address = \"0.0.0.0\"\ntransport = \"tcp\"";
        let found = of(["address = \"127.0.0.1\"", tcp]);
        let has_devices = fs::read_dir("/sys/class/infiniband").is_ok_and(|mut all| all.next().is_some());
        assert_eq!(found.len(), usize::from(!has_devices));
        if let Some(found) = found.first() {
            let said = found.to_string();
            assert!(
                said.starts_with("listener rdma 127.0.0.1:4420: this machine has no RDMA device"),
                "{said}"
            );
            assert!(said.contains("listener tcp 0.0.0.0:4420"), "{said}");
        }
        assert_eq!(of(["address = \"127.0.0.1\"\nport = 4421", tcp]), []);
        assert_eq!(of(["address = \"127.0.0.1\"\nprovider = \"verbs\"", tcp]), []);
    }

    #[test]
    fn verbs_need_a_device() {
        if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut all| all.next().is_some()) {
            return;
        }
        let verbs = listener("address = \"127.0.0.1\"\nport = 0\nprovider = \"verbs\"");
        assert!(finding(&verbs, None).expect("no device").message.contains("RDMA device"));
    }
}
