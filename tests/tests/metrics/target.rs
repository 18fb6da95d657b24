//! A target with metrics, and a host that works on it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
use ringfab_tests::{NQN, PATIENCE, Service};

pub(crate) const HOST: &str = "nqn.2026-11.org.ringfab:host";

pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text;version=1.0.0";

/// A target with a namespace in memory, one on a file and one whose file is missing.
pub(crate) struct Seen {
    pub(crate) service: Service,
    port: u16,
    metrics_port: u16,
}

impl Seen {
    pub(crate) fn start() -> Self {
        let (port, metrics_port) = (ringfab_tests::free_port(), ringfab_tests::free_port());
        let service = Service::start("ringfab-target", |folder| {
            let at = |name| folder.join(name);
            fs::File::create(at("disk")).and_then(|file| file.set_len(1 << 20)).expect("a disk");
            let text = format!(
                "[target]\nstate_dir = {:?}\ncores = [0]\n[control]\nsocket = {:?}\n\
                 [metrics]\naddress = \"127.0.0.1:{metrics_port}\"\nfile = {:?}\nfile_interval_s = 1\nqueues = true\n\
                 [[listener]]\naddress = \"127.0.0.1\"\nport = {port}\ntransport = \"tcp\"\n\
                 [[subsystem]]\nnqn = {NQN:?}\nallow_any_host = true\n[[subsystem.namespace]]\nmemory = \"4MiB\"\n\
                 [[subsystem.namespace]]\npath = {:?}\ndirect = false\nallow_page_cache = true\n\
                 [[subsystem.namespace]]\npath = {:?}\n",
                at("state"),
                at("control.sock"),
                at("ringfab.prom"),
                at("disk"),
                at("missing"),
            );
            fs::write(at("target.toml"), text).expect("a configuration");
            ["serve", "--config", &at("target.toml").display().to_string()].map(str::to_owned).to_vec()
        });
        Self { service, port, metrics_port }
    }

    pub(crate) fn attach(&self, name: &str) -> Controller {
        let url: Url = format!("nvme+tcp://127.0.0.1:{}/{NQN}", self.port).parse().expect("a URL");
        let host = HostIdentity { nqn: name.to_owned(), ..HostIdentity::for_url(&url).expect("an identity") };
        Controller::connect(ConnectOptions::new(url, host), EngineOptions::default()).expect("attached")
    }

    /// A host that has worked on both disks.
    pub(crate) fn worked(&self) -> Controller {
        let host = self.attach(HOST);
        let mut data = vec![3; 64 << 10];
        for nsid in [1, 2] {
            for _ in 0..200 {
                host.write_at(nsid, 0, &data, false).expect("a write");
                host.read_at(nsid, 0, &mut data).expect("a read");
            }
        }
        host
    }

    /// Where its metrics are.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.metrics_port)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.metrics_port)).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// The head and the body of an answer.
    pub(crate) fn request(&self, request: &str) -> (String, String) {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    }

    /// What is at a path.
    pub(crate) fn get(&self, path: &str, accept: &str) -> String {
        let (head, body) = self.request(&format!("GET {path} HTTP/1.1\r\nAccept: {accept}\r\n\r\n"));
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        body
    }
}
