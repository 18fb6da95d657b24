//! `ringfab devices`.

use std::io;

use anyhow::{Context as _, Result};
use ringfab_fabric::rdma::devices::{self, Address, DeviceInfo, PortInfo};
use serde_json::{Value, json};

use ringfab_front_ends::context::Context;
use ringfab_front_ends::output;

/// Shows the RDMA devices of this machine.
pub(crate) fn run(context: &Context) -> Result<()> {
    let found = match devices::list() {
        Ok(found) => found,
        // A kernel without any RDMA driver has no list.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported) => {
            Vec::new()
        }
        Err(error) => return Err(error).context("look for RDMA devices"),
    };
    output::either(context.json, || Value::Array(found.iter().map(device).collect()), || lines(&found))
}

fn device(device: &DeviceInfo) -> Value {
    json!({
        "name": device.name,
        "usable": device.trouble.is_none(),
        "trouble": device.trouble,
        "memory_windows": device.memory_windows,
        "reads_in_max": device.responder_resources,
        "reads_out_max": device.initiator_depth,
        "send_requests_max": device.send_requests,
        "shared_receives_max": device.shared_receives,
        "ports": device.ports.iter().map(port).collect::<Vec<_>>(),
    })
}

fn port(port: &PortInfo) -> Value {
    json!({
        "number": port.number,
        "link": port.link.to_string(),
        "active": port.active,
        "mtu": port.mtu,
        "addresses": port.addresses.iter().map(address).collect::<Vec<_>>(),
    })
}

fn address(address: &Address) -> Value {
    json!({
        "index": address.index,
        "gid": address.gid.to_string(),
        "ip": address.ip().map(|ip| ip.to_string()),
        "kind": address.kind,
        "interface": address.interface,
    })
}

fn lines(found: &[DeviceInfo]) -> String {
    if found.is_empty() {
        return "no RDMA devices: connections use the software RNIC (provider iwarp)\n".to_owned();
    }
    found.iter().map(describe).collect::<Vec<_>>().join("\n")
}

fn describe(device: &DeviceInfo) -> String {
    let windows = if device.memory_windows {
        "memory windows: a peer reaches only the buffers of commands in flight"
    } else {
        "no memory windows: a controller reaches every buffer that was ever exposed to it"
    };
    let usable =
        device.trouble.as_ref().map_or_else(|| "usable".to_owned(), |why| format!("not usable: {why}"));
    let limits = format!(
        "{} READs in, {} READs out, {} work requests, {} shared receives",
        device.responder_resources, device.initiator_depth, device.send_requests, device.shared_receives
    );
    let mut text = output::pairs(&[
        ("device", device.name.clone()),
        ("state", usable),
        ("limits", limits),
        ("memory", windows.to_owned()),
    ]);
    for port in &device.ports {
        let state = if port.active { "up" } else { "down" };
        text.push_str(&format!("port {}   {}, {state}, MTU {}\n", port.number, port.link, port.mtu));
        for address in &port.addresses {
            let kind = address.kind.as_deref().unwrap_or("");
            let place = address.interface.as_deref().unwrap_or("-");
            let ip = address.ip().map_or_else(|| address.gid.to_string(), |ip| ip.to_string());
            text.push_str(format!("  gid {:<3} {ip} on {place} {kind}", address.index).trim_end());
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use ringfab_fabric::rdma::devices::LinkLayer;

    use super::*;

    #[test]
    fn a_device_says_why_it_cannot_be_used_and_where_it_is() {
        let gid = std::net::Ipv4Addr::new(192, 0, 2, 7).to_ipv6_mapped();
        let address =
            Address { index: 1, gid, kind: Some("RoCE v2".to_owned()), interface: Some("eth7".to_owned()) };
        let port =
            PortInfo { number: 1, link: LinkLayer::Roce, active: false, mtu: 1024, addresses: vec![address] };
        let found = DeviceInfo {
            name: "rxe0".to_owned(),
            responder_resources: 128,
            initiator_depth: 128,
            send_requests: 4096,
            memory_windows: true,
            shared_receives: 1024,
            ports: vec![port],
            trouble: Some("no port is up".to_owned()),
        };
        let text = lines(std::slice::from_ref(&found));
        for part in ["rxe0", "not usable: no port is up", "RoCE, down", "192.0.2.7 on eth7 RoCE v2"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(device(&found)["ports"][0]["addresses"][0]["ip"], "192.0.2.7");
        assert!(lines(&[]).contains("software RNIC"));
    }
}
