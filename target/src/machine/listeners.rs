//! Whether a listener can be bound.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};

use ringfab_fabric::rdma::ProviderChoice;

use super::process::described;
use super::{Finding, port};
use crate::config::{ListenerConfig, Transport};

/// Why a listener cannot be bound.
pub(super) fn finding(listener: &ListenerConfig, serving: Option<u32>) -> Option<Finding> {
    let found = |message: String, advice| {
        let what = format!("listener {} {}", listener.transport.name(), listener.place());
        Some(Finding { what, message, advice })
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
    fn verbs_need_a_device() {
        if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut all| all.next().is_some()) {
            return;
        }
        let verbs = listener("address = \"127.0.0.1\"\nport = 0\nprovider = \"verbs\"");
        assert!(finding(&verbs, None).expect("no device").message.contains("RDMA device"));
    }
}
