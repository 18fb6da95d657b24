//! The number of a removed namespace is given to another disk.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ringfab_target::control::Manager;
use ringfab_tests::{PATIENCE, Service, TestTarget};
use serde_json::{Value, json};

use super::serve;

const BYTES: u64 = 1 << 20;
/// A subsystem is never empty.
const OTHER: &str = "[[subsystem.namespace]]\nnsid = 7\nmemory = \"1MiB\"\n";
/// EIO, as NBD counts.
const EIO: u32 = 5;

/// A client that uses an export by its name.
struct Client(UnixStream);

impl Client {
    fn open(service: &Service, name: &str) -> io::Result<Self> {
        let mut stream = UnixStream::connect(service.path("socket"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        // NBD_OPT_EXPORT_NAME: the shortest handshake.
        let length = (name.len() as u32).to_be_bytes();
        let option = [b"\0\0\0\x03IHAVEOPT\0\0\0\x01", &length[..], name.as_bytes()].concat();
        stream.write_all(&option)?;
        let mut answer = [0; 10];
        stream.read_exact(&mut answer)?;
        assert_eq!(answer[..8], BYTES.to_be_bytes());
        Ok(Self(stream))
    }

    /// The error of a request of one block.
    fn request(&mut self, command: u8, block: u64, payload: &[u8]) -> u32 {
        let head = [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, command][..], b"a cookie"].concat();
        let place = [&(block * 4096).to_be_bytes()[..], &4096_u32.to_be_bytes()].concat();
        self.0.write_all(&[&head, &place, payload].concat()).expect("asked");
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).expect("an answer");
        u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"))
    }

    fn write(&mut self, block: u64, byte: u8) -> u32 {
        self.request(1, block, &[byte; 4096])
    }

    fn read(&mut self, block: u64) -> Result<u8, u32> {
        match self.request(0, block, &[]) {
            0 => {
                let mut data = [0; 4096];
                self.0.read_exact(&mut data).expect("the data");
                Ok(data[0])
            }
            error => Err(error),
        }
    }

    fn flush(&mut self) -> u32 {
        self.request(3, 0, &[])
    }
}

fn disk(folder: &Path, name: &str, byte: u8) -> Value {
    let path = folder.join(name);
    fs::write(&path, vec![byte; BYTES as usize]).expect("a disk");
    let path = path.to_str().expect("UTF-8");
    json!({ "path": path, "nsid": 1, "block_bytes": 4096, "direct": false, "allow_page_cache": true })
}

/// Removes namespace 1, and adds a disk in its place.
fn replace(manager: &mut Manager, by: Value) {
    manager.remove(None, 1).expect("it is there");
    add(manager, by);
}

fn add(manager: &mut Manager, disk: Value) {
    let Value::Object(table) = disk else { panic!("a table") };
    // Its file may still be closing.
    let begun = Instant::now();
    while let Err(error) = manager.add(None, table.clone()) {
        assert!(begun.elapsed() < PATIENCE, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn says(service: &Service, text: &str) {
    let begun = Instant::now();
    while !service.log().contains(text) {
        assert!(begun.elapsed() < PATIENCE, "it does not say `{text}`: {}", service.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_client_never_reaches_the_disk_that_has_got_the_number_of_its_own_and_a_new_one_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = TestTarget::start(OTHER);
    let mut manager = target.manager();
    add(&mut manager, disk(folder.path(), "first", 1));
    let first = manager.list()[0].uuid.to_string();
    let service = serve(&target.url("").to_string());
    let mut old = Client::open(&service, "ns1").expect("served");
    assert_eq!((old.read(0), old.write(3, 9), old.flush()), (Ok(1), 0, 0));
    replace(&mut manager, disk(folder.path(), "second", 2));
    let second = manager.list()[0].uuid.to_string();
    says(&service, &format!("the number 1 by now: it was UUID {first}"));
    says(&service, &format!("is UUID {second}"));
    assert_eq!((old.read(0), old.write(0, 9), old.flush()), (Err(EIO), EIO, EIO));
    says(&service, "an I/O command has failed error=\"the target has removed this namespace");
    let mut new = Client::open(&service, "ns1").expect("served");
    assert_eq!((new.read(0), new.write(5, 7), new.flush()), (Ok(2), 0, 0));
    let bytes = fs::read(folder.path().join("second")).expect("the disk");
    assert!(bytes[5 * 4096..6 * 4096].iter().all(|byte| *byte == 7));
    assert!(bytes[..5 * 4096].iter().chain(&bytes[6 * 4096..]).all(|byte| *byte == 2));
    // The first one comes back, and is whose it was.
    let path = folder.path().join("first");
    let same = json!({
        "path": path.to_str().expect("UTF-8"), "nsid": 1, "block_bytes": 4096, "direct": false,
        "allow_page_cache": true, "uuid": first,
    });
    replace(&mut manager, same);
    let begun = Instant::now();
    while old.read(3) != Ok(9) {
        assert!(begun.elapsed() < PATIENCE, "it is not there again: {}", service.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(new.write(0, 8), EIO);
}

#[test]
fn a_client_that_writes_all_the_time_writes_to_no_disk_but_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = TestTarget::with_target("cores = 2\nspin_us = 20", OTHER);
    let mut manager = target.manager();
    add(&mut manager, disk(folder.path(), "own", 1));
    let service = serve(&target.url("").to_string());
    let mut client = Client::open(&service, "ns1").expect("served");
    let (over, written) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (begun, mut block) = (Instant::now(), 0);
            while !over.load(Ordering::Relaxed) && begun.elapsed() < PATIENCE {
                let worked = client.write(block % 256, 0xee) == 0;
                written.fetch_add(u32::from(worked), Ordering::Relaxed);
                block += 1;
            }
        });
        let begun = Instant::now();
        while written.load(Ordering::Relaxed) == 0 && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        for round in 0..8 {
            // Some writes are on their way.
            std::thread::sleep(Duration::from_millis(30));
            manager.remove(None, 1).expect("it is there");
            // So long the notice may take: what is sent before it comes goes to whoever has the number.
            std::thread::sleep(Duration::from_millis(500));
            add(&mut manager, disk(folder.path(), &format!("other-{round}"), 0));
        }
        // The last disk has the same time as the others.
        std::thread::sleep(Duration::from_millis(100));
        over.store(true, Ordering::Relaxed);
    });
    assert!(written.load(Ordering::Relaxed) > 0, "it wrote to its own");
    for round in 0..8 {
        let mut bytes = Vec::new();
        let read = File::open(folder.path().join(format!("other-{round}")));
        read.and_then(|mut file| file.read_to_end(&mut bytes)).expect("the disk");
        assert!(!bytes.contains(&0xee), "it wrote to the disk of round {round}");
    }
}
