//! Both ends, as they are used.

use ringfab_initiator::blocking::EngineOptions;
use ringfab_initiator::discovery::discover;
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
use ringfab_tests::{NQN, TestTarget};

use crate::{DIGESTS, MEMORY, TCP};

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

#[test]
fn what_was_written_is_read_back_whatever_its_size_and_the_digests() {
    for in_capsule in ["", "in_capsule_bytes = 0\n", "in_capsule_bytes = 65536\n"] {
        let target = TestTarget::with_listener(&format!("{TCP}{in_capsule}"), MEMORY);
        for (header, data) in DIGESTS {
            let options = format!("&hdgst={}&ddgst={}", on_off(header), on_off(data));
            let controller = target.attach_with(&options);
            for (index, bytes) in
                [512, 4096, 8192, 8704, 65_536, 131_072, 1 << 20, 3 << 20].into_iter().enumerate()
            {
                let written: Vec<u8> = (0..bytes).map(|byte| (byte * 31 + index) as u8).collect();
                let offset = 512 * (index as u64 + 1);
                controller.write_at(1, offset, &written, index % 2 == 0).expect("written");
                let mut read = vec![0; bytes];
                controller.read_at(1, offset, &mut read).expect("read");
                assert!(read == written, "{bytes} bytes came back changed with {options} {in_capsule}");
            }
            assert!(controller.compare(1, 512, &[0; 512]).is_ok());
            controller.write_zeroes(1, 0, 4096, true).expect("zeroed");
            controller.flush(1).expect("flushed");
            controller.detach().expect("detached");
        }
    }
}

#[test]
fn several_queues_are_served_by_their_cores() {
    let listener = format!("spin_us = 20\n{}", "cores = 2");
    let text = format!("{MEMORY}[[listener]]\naddress = \"::1\"\nport = 0\n{TCP}");
    let target = TestTarget::with_target(&listener, &text);
    let address = target.other_addresses()[0];
    let url: Url = format!("nvme+tcp://{address}/{NQN}?queues=4&depth=8").parse().expect("a URL");
    let host = HostIdentity::for_url(&url).expect("an identity");
    let controller = ringfab_initiator::blocking::Controller::connect(
        ConnectOptions::new(url, host),
        EngineOptions::default(),
    )
    .expect("attached over IPv6");
    let served = target.target.controllers();
    assert_eq!(served.iter().map(|one| one.io_queues()).max(), Some(4));
    let written = vec![0x5a; 1 << 20];
    controller.write_at(1, 0, &written, true).expect("written");
    let mut read = vec![0; 1 << 20];
    controller.read_at(1, 0, &mut read).expect("read");
    assert!(read == written);
    controller.detach().expect("detached");
}

#[test]
fn discovery_over_tcp_names_the_listeners_of_both_transports() {
    let text = format!("{MEMORY}[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n{TCP}");
    let target = TestTarget::start(&text);
    let address = target.other_addresses()[0];
    let url: Url = format!("nvme+tcp://{address}/").parse().expect("a URL");
    let host = HostIdentity::for_url(&url).expect("an identity");
    let log = discover(ConnectOptions::new(url, host), EngineOptions::default()).expect("a log page");
    let urls: Vec<String> =
        log.entries.iter().filter_map(|entry| Some(entry.url.as_ref()?.to_string())).collect();
    let [rdma, tcp] = [format!("nvme+rdma://{}", target.address()), format!("nvme+tcp://{address}")];
    assert_eq!(
        urls,
        [format!("{rdma}/"), format!("{tcp}/"), format!("{rdma}/{NQN}"), format!("{tcp}/{NQN}")]
    );
}

#[test]
fn a_host_is_told_why_what_listens_there_is_not_for_it() {
    let rdma = TestTarget::start(MEMORY);
    let url: Url = format!("nvme+tcp://{}/{NQN}", rdma.address()).parse().expect("a URL");
    let host = HostIdentity::for_url(&url).expect("an identity");
    let refused = ringfab_initiator::blocking::Controller::connect(
        ConnectOptions::new(url, host),
        EngineOptions::default(),
    );
    let text = refused.expect_err("no NVMe/TCP there").to_string();
    assert!(text.contains("ICReq: "), "{text}");
}
