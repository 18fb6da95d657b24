//! Asks a discovery controller which subsystems there are, and attaches to each that it names.
//!
//! `cargo run -p ringfab-initiator --example discovery -- nvme+tcp://192.0.2.1`

use std::error::Error;

use ringfab_initiator::blocking::{Controller, EngineOptions};
use ringfab_initiator::discovery::discover;
use ringfab_initiator::{ConnectOptions, HostIdentity, Url};

#[expect(clippy::print_stdout, reason = "the output of a program")]
fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: discovery URL")?;
    for found in run(&url)? {
        println!("{}: {} bytes in {} namespaces", found.url, found.bytes, found.namespaces);
    }
    Ok(())
}

/// A subsystem that was found.
#[derive(Debug)]
pub(crate) struct Found {
    /// Its address.
    pub(crate) url: Url,
    /// Namespaces that this host may use.
    pub(crate) namespaces: usize,
    /// Bytes of all of them.
    pub(crate) bytes: u64,
}

/// The subsystems that can be attached.
pub(crate) fn run(url: &str) -> Result<Vec<Found>, Box<dyn Error>> {
    // An address without an NQN is that of discovery.
    let url: Url = url.parse()?;
    let host = HostIdentity::for_url(&url)?;
    let log = discover(ConnectOptions::new(url, host.clone()), EngineOptions::default())?;
    // An entry without an address uses a transport that is not ours, or is not well formed.
    let urls = log.entries.into_iter().filter_map(|entry| entry.url);
    urls.filter(|url| !url.is_discovery()).map(|url| look_at(url, host.clone())).collect()
}

/// Attaches and detaches.
fn look_at(url: Url, host: HostIdentity) -> Result<Found, Box<dyn Error>> {
    let options = ConnectOptions::new(url.clone(), host);
    let controller = Controller::connect(options, EngineOptions::default())?;
    let namespaces = controller.namespaces();
    let bytes = namespaces.iter().map(|namespace| namespace.bytes()).sum();
    controller.detach()?;
    Ok(Found { url, namespaces: namespaces.len(), bytes })
}
