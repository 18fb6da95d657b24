//! Reads and writes a remote disk with a handle that any thread may use: calls that wait. It writes to the disk!
//!
//! `cargo run -p ringfab-initiator --example read_write -- nvme+tcp://192.0.2.1/nqn.2026-01.org.example:disk`

use std::error::Error;
use std::thread;

use ringfab_initiator::blocking::{Controller, Disk, EngineOptions};
use ringfab_initiator::{ConnectOptions, HostIdentity, IoError, Url};

/// Threads that use the handle at once.
const THREADS: u8 = 4;
/// Bytes that each of them writes, which take several commands.
const BYTES: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: read_write URL")?;
    run(&url)
}

/// Writes with several threads, and reads back what they wrote.
pub(crate) fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let url: Url = url.parse()?;
    let host = HostIdentity::for_url(&url)?;
    let controller = Controller::connect(ConnectOptions::new(url, host), EngineOptions::default())?;
    let disk = controller.disks().into_iter().next().ok_or("the controller has no namespace")?;
    thread::scope(|scope| {
        let threads: Vec<_> = (1..=THREADS)
            .map(|number| {
                // Clones are the same disk.
                let disk = disk.clone();
                scope.spawn(move || write_and_read(&disk, number))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread that does not panic"))
    })?;
    // What the last clone does when it is dropped, but with an answer.
    controller.detach()?;
    Ok(())
}

/// The handle splits calls into commands, and takes offsets and lengths that are no multiples of a block.
fn write_and_read(disk: &Disk, number: u8) -> Result<(), IoError> {
    let offset = u64::from(number) * 2 * BYTES as u64 + 10;
    let written = vec![number; BYTES];
    disk.write_at(offset, &written, false)?;
    disk.flush()?;
    let mut read = vec![0; BYTES];
    disk.read_at(offset, &mut read)?;
    assert!(read == written, "another one writes to this disk");
    Ok(())
}
