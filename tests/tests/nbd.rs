//! `ringfab nbd` against libnbd, and against clients that break the rules.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfab_tests::cutter::Cutter;
use ringfab_tests::{
    NQN, PATIENCE, Service, TestTarget, file_target, free_port, have, not_run, program, run_bounded,
    wait_until,
};

const MEMORY: &str = "[[subsystem.namespace]]\nmemory = \"64MiB\"\nblock_bytes = 512\n";
const MEMORY_BYTES: u64 = 64 << 20;

fn serve(url: &str, more: &[&str]) -> Service {
    serve_with(url, more, &[])
}

fn serve_with(url: &str, more: &[&str], environment: &[(&str, &Path)]) -> Service {
    let arguments = |folder: &Path| {
        let socket = folder.join("socket").display().to_string();
        let common = ["nbd", url, "--socket", &socket, "--reconnect-delay", "50ms"];
        common.iter().chain(more).map(|argument| (*argument).to_owned()).collect()
    };
    Service::start_with("ringfab", arguments, environment)
}

/// A request without its payload.
fn head(command: u8, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, command].to_vec();
    bytes.extend_from_slice(b"a cookie");
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// A client in plain bytes.
struct Client(UnixStream);

impl Client {
    fn connect(service: &Service) -> Self {
        let stream = UnixStream::connect(service.path("socket")).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        stream.set_write_timeout(Some(PATIENCE)).expect("a limit");
        Self(stream)
    }

    /// The shortest handshake: the default export, simple replies.
    fn negotiated(service: &Service) -> Self {
        let mut client = Self::connect(service);
        assert_eq!(client.read::<18>()[..16], *b"NBDMAGICIHAVEOPT");
        client.write(&[0, 0, 0, 3]);
        client.write(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
        let answer = client.read::<10>();
        assert_eq!(answer[..8], MEMORY_BYTES.to_be_bytes());
        client
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("written");
    }

    fn read<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).expect("an answer");
        bytes
    }

    fn request(&mut self, command: u8, offset: u64, length: u32) {
        self.write(&head(command, offset, length));
    }

    /// The error of a simple reply.
    fn error(&mut self) -> u32 {
        let reply = self.read::<16>();
        assert_eq!((&reply[..4], &reply[8..]), (&[0x67, 0x44, 0x66, 0x98][..], &b"a cookie"[..]));
        u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"))
    }

    /// Writes and reads back.
    fn works(&mut self) {
        let block = [0x5a; 512];
        self.request(1, 4096, 512);
        self.write(&block);
        assert_eq!(self.error(), 0);
        self.request(0, 4096, 512);
        assert_eq!(self.error(), 0);
        assert!(self.read::<512>() == block, "other bytes came back");
    }

    /// Sixteen writes at once, and then sixteen reads, so many times.
    fn many(&mut self, rounds: u64) {
        const AT_ONCE: u64 = 16;
        let block = [0x5a; 4096];
        for round in 0..rounds {
            let offsets = (0..AT_ONCE).map(|index| (round * AT_ONCE + index) % 4096 * 4096);
            for offset in offsets.clone() {
                self.request(1, offset, 4096);
                self.write(&block);
            }
            (0..AT_ONCE).for_each(|_| assert_eq!(self.error(), 0));
            offsets.for_each(|offset| self.request(0, offset, 4096));
            for _ in 0..AT_ONCE {
                assert_eq!(self.error(), 0);
                assert!(self.read::<4096>() == block, "other bytes came back");
            }
        }
    }

    /// Whether the server closes the connection, whatever it says before.
    fn is_closed(&mut self) -> bool {
        let mut bytes = Vec::new();
        match self.0.read_to_end(&mut bytes) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Lines of `/proc`: the threads of a process that run engines, with the processor time that each has used, in ticks.
fn engine_ticks(process: u32) -> Vec<u64> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("its threads");
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    let ticks = stats.filter_map(|stat| {
        let (name, rest) = stat.split_once(") ")?;
        let fields: Vec<u64> = rest.split(' ').filter_map(|field| field.parse().ok()).collect();
        // The state is no number; user and system time are the tenth and eleventh of the numbers behind it.
        name.contains("(ringfab-").then(|| fields[10] + fields[11])
    });
    ticks.collect()
}

#[test]
fn connections_are_spread_over_engine_threads_with_queues_of_their_own() {
    for listener in ["transport = \"tcp\"\n", "transport = \"rdma\"\n"] {
        let target = TestTarget::with("cores = 2\nspin_us = 20", listener, MEMORY);
        let mut service = serve(&target.url("").to_string(), &["--cores", "3", "--connections-max", "6"]);
        assert_eq!(target.target.controllers().len(), 1, "one controller for all");
        assert_eq!(engine_ticks(service.id()).len(), 3, "each has a thread");
        let mut clients: Vec<Client> = (0..6).map(|_| Client::negotiated(&service)).collect();
        clients.iter_mut().for_each(Client::works);
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| client.many(400));
            }
        });
        assert!(engine_ticks(service.id()).iter().all(|ticks| *ticks > 0), "each engine has worked");
        let mut seventh = Client::connect(&service);
        assert!(seventh.is_closed(), "as many are connected as may");
        drop(clients);
        service.signal("TERM");
        assert!(service.wait(PATIENCE).success(), "{}", service.log());
        wait_until("it has left in order", || target.target.controllers().is_empty());
    }
}

#[test]
fn libnbd_gets_every_size_of_request_and_every_error_as_specified() {
    // Another Python may come first in the path than the one that libnbd's package serves.
    let has_libnbd = |python: &&str| {
        Command::new(python)
            .args(["-c", "import nbd"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    };
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(has_libnbd) else {
        return not_run("libnbd for Python (python3-libnbd) is missing");
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/nbd_client.py").display().to_string();
    for block in ["512", "4096"] {
        let target = TestTarget::start(&MEMORY.replace("512", block));
        let service = serve(&target.url("").to_string(), &[]);
        let output = run_bounded(120, python, &[&script, &service.ready(), block]);
        assert_eq!(output.trim(), "all passed", "blocks of {block}");
    }
}

/// Several clients of several engines write into the same blocks, each its own bytes.
#[test]
fn who_writes_a_part_of_a_block_loses_nobody_elses_bytes() {
    const BLOCK: u64 = 4096;
    const BLOCKS: u64 = 4;
    const ROUNDS: u8 = 60;
    const PARTS: u64 = 5;
    let target = TestTarget::with("cores = 2\nspin_us = 20", "", &MEMORY.replace("512", "4096"));
    let service = serve(&target.url("").to_string(), &["--cores", "2", "--queues", "4"]);
    std::thread::scope(|scope| {
        for part in 0..PARTS {
            let mut client = Client::negotiated(&service);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    for block in 0..BLOCKS {
                        let at = block * BLOCK + 50 + part * 800;
                        client.request(1, at, 800);
                        client.write(&[round + 1; 800]);
                        assert_eq!(client.error(), 0);
                        client.request(0, at, 800);
                        assert_eq!(client.error(), 0);
                        assert!(client.read::<800>() == [round + 1; 800], "its own bytes");
                    }
                }
            });
        }
    });
}

/// One client writes whole blocks while another changes parts of them: neither undoes what the other has written.
#[test]
fn a_whole_block_is_not_undone_by_who_changes_a_part_of_it() {
    const BLOCK: usize = 4096;
    let target = TestTarget::with("cores = 2\nspin_us = 20", "", &MEMORY.replace("512", "4096"));
    let service = serve(&target.url("").to_string(), &["--cores", "2", "--queues", "4"]);
    let (mut whole, mut part) = (Client::negotiated(&service), Client::negotiated(&service));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..200_u8 {
                whole.request(1, 0, BLOCK as u32);
                whole.write(&[round; BLOCK]);
                assert_eq!(whole.error(), 0);
                whole.request(0, 0, BLOCK as u32);
                assert_eq!(whole.error(), 0);
                let read = whole.read::<BLOCK>();
                assert!(read[200..] == [round; BLOCK - 200], "an older block came back");
            }
        });
        scope.spawn(move || {
            for round in 0..200_u8 {
                part.request(1, 100, 100);
                part.write(&[round; 100]);
                assert_eq!(part.error(), 0);
            }
        });
    });
}

#[test]
fn a_client_that_breaks_the_rules_ends_its_own_connection_and_no_other() {
    let target = TestTarget::start(MEMORY);
    let service = serve(&target.url("").to_string(), &[]);
    let mut good = Client::negotiated(&service);
    good.works();
    let flags = b"\0\0\0\x03";
    let handshakes: [&[u8]; 4] = [
        b"\xff\xff\xff\xff",
        b"\0\0\0\x03GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0\0\0\x03IHAVEOPT\0\0\0\x01\xff\xff\xff\xff",
        b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04none",
    ];
    for bytes in handshakes {
        let mut bad = Client::connect(&service);
        bad.write(bytes);
        assert!(bad.is_closed(), "{bytes:?}");
        good.works();
    }
    let mut bad = Client::negotiated(&service);
    bad.write(&[0; 28]);
    assert!(bad.is_closed(), "a request without its magic");
    // Clients that go away in the middle of anything.
    drop(Client::connect(&service));
    let mut half = Client::connect(&service);
    half.write(&flags[..2]);
    drop(half);
    for sent in [0, 1, 511, 512, 300_000] {
        let mut half = Client::negotiated(&service);
        // What arrived of it may be written; the good client looks elsewhere.
        half.request(1, 8 << 20, 1 << 20);
        half.write(&vec![7; sent]);
        drop(half);
        good.works();
    }
    assert!(!service.log().contains("panicked"), "{}", service.log());
}

#[test]
fn a_refused_write_is_read_to_its_end_and_the_connection_goes_on() {
    let target = TestTarget::start(MEMORY);
    let service = serve(&target.url("").to_string(), &["--read-only"]);
    let mut client = Client::negotiated(&service);
    client.request(1, 0, 1 << 20);
    client.write(&vec![7; 1 << 20]);
    assert_eq!(client.error(), 1, "EPERM");
    client.request(0, MEMORY_BYTES, 512);
    assert_eq!(client.error(), 22, "EINVAL");
    client.request(0, 0, 512);
    assert_eq!(client.error(), 0);
    assert_eq!(client.read::<512>(), [0; 512]);
}

/// Small payloads come with the heads around them, large ones straight to their place, and parts of both: wherever the
/// client cuts its stream, each byte is where it belongs.
#[test]
fn writes_of_all_sizes_arrive_whole_however_the_stream_is_cut() {
    const SIZES: [usize; 9] = [512, 4096, 16 << 10, 32 << 10, 36 << 10, 512, 64 << 10, 300 << 10, 1024];
    let target = TestTarget::start(MEMORY);
    let service = serve(&target.url("").to_string(), &[]);
    let mut client = Client::negotiated(&service);
    for (round, piece) in [977, 4124, 33_333, 262_144, usize::MAX].into_iter().enumerate() {
        let mut stream = Vec::new();
        let mut written = Vec::new();
        for (index, size) in SIZES.into_iter().enumerate() {
            let bytes: Vec<u8> = (0..size).map(|at| (at * 7 + at / 512 + index * 31 + round) as u8).collect();
            stream.extend_from_slice(&head(1, (index << 20) as u64, size as u32));
            stream.extend_from_slice(&bytes);
            written.push(bytes);
        }
        stream.chunks(piece.min(stream.len())).for_each(|chunk| client.write(chunk));
        SIZES.iter().for_each(|_| assert_eq!(client.error(), 0));
        for (index, bytes) in written.iter().enumerate() {
            client.request(0, (index << 20) as u64, bytes.len() as u32);
            assert_eq!(client.error(), 0);
            let mut found = vec![0; bytes.len()];
            client.0.read_exact(&mut found).expect("the data");
            assert!(found == *bytes, "write {index} in pieces of {piece} came back otherwise");
        }
    }
}

#[test]
fn clients_that_read_no_replies_do_not_keep_others_from_theirs() {
    let target = TestTarget::start(MEMORY);
    let service = serve(&target.url("").to_string(), &["--connections-max", "4"]);
    let mut deaf: Vec<Client> = (0..3).map(|_| Client::negotiated(&service)).collect();
    for client in &mut deaf {
        for _ in 0..200 {
            client.request(0, 0, 1 << 20);
        }
    }
    let mut good = Client::negotiated(&service);
    for _ in 0..100 {
        good.works();
    }
    let mut too_many = Client::connect(&service);
    assert!(too_many.is_closed(), "a fifth connection");
    drop(deaf);
    good.works();
}

#[test]
fn requests_wait_for_a_target_that_was_killed_and_nothing_acknowledged_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("disk.img");
    std::fs::File::create(&image).and_then(|file| file.set_len(MEMORY_BYTES)).expect("an image");
    let port = free_port();
    let mut target = file_target(port, &image);
    let service = serve(&format!("nvme+rdma://127.0.0.1:{port}/{NQN}"), &[]);
    let mut client = Client::negotiated(&service);
    for round in 0..3_u8 {
        let block = [round + 1; 4096];
        // The request is under way when the target dies, or comes while it is away.
        client.request(1, 4096 * u64::from(round), 4096);
        target.kill();
        client.write(&block);
        target = file_target(port, &image);
        assert_eq!(client.error(), 0);
        client.request(3, 0, 0);
        assert_eq!(client.error(), 0);
        client.request(0, 4096 * u64::from(round), 4096);
        assert_eq!(client.error(), 0);
        assert!(client.read::<4096>() == block, "other bytes came back in round {round}");
    }
    assert!(service.log().contains("connected again after"), "{}", service.log());
}

#[test]
fn requests_go_on_by_another_path_when_one_is_lost_for_good() {
    let listener = "[[listener]]\naddress = \"127.0.0.1\"\nport = 0\n";
    let target = TestTarget::start(&format!("{MEMORY}{listener}"));
    for policy in ["one-in-use", "round-robin", "least-outstanding"] {
        let cutter = Cutter::start(target.address());
        let url =
            target.url("").to_string().replace(&target.address().to_string(), &cutter.address.to_string());
        let other = format!("nvme+rdma://{}", target.other_addresses()[0]);
        let service = serve(&url, &["--path", &other, "--path-policy", policy, "--provider", "iwarp"]);
        let mut client = Client::negotiated(&service);
        client.works();
        wait_until("both paths are there", || target.target.controllers().len() == 2);
        // It is lost with a request under way.
        client.request(1, 8192, 4096);
        cutter.refuse();
        client.write(&[policy.len() as u8; 4096]);
        assert_eq!(client.error(), 0, "{policy}: {}", service.log());
        for _ in 0..20 {
            client.request(0, 8192, 4096);
            assert_eq!(client.error(), 0, "{policy}");
            assert!(client.read::<4096>() == [policy.len() as u8; 4096], "{policy}: other bytes");
        }
    }
    let refused = Command::new(program("ringfab"))
        .args(["nbd", &target.url("").to_string(), "--socket", "/dev/null", "--path"])
        .arg(format!("nvme+rdma://{}/nqn.2026-01.org.example:other", target.other_addresses()[0]))
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("of another subsystem"), "{said}");
}

#[test]
fn a_signal_ends_it_in_order_and_takes_the_socket_away() {
    let target = TestTarget::start(MEMORY);
    for signal in ["TERM", "INT"] {
        let mut service = serve(&target.url("").to_string(), &[]);
        let mut client = Client::negotiated(&service);
        client.works();
        let start = Instant::now();
        service.signal(signal);
        let status = service.wait(Duration::from_secs(15));
        assert_eq!(status.code(), Some(0), "{signal}: {}", service.log());
        assert!(client.is_closed());
        assert!(!service.path("socket").exists() && !service.path("ready").exists());
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}

#[test]
fn tcp_serves_as_well_and_tells_its_port() {
    if !have("nbdinfo") {
        return not_run("nbdinfo (libnbd-bin) is missing");
    }
    let target = TestTarget::start(MEMORY);
    let url = target.url("").to_string();
    let service = Service::start("ringfab", |_| {
        ["nbd", &url, "--listen", "127.0.0.1:0", "--export", "disk"].map(str::to_owned).to_vec()
    });
    assert!(service.ready().ends_with("/disk"), "{}", service.ready());
    assert_eq!(run_bounded(20, "nbdinfo", &["--size", &service.ready()]).trim(), MEMORY_BYTES.to_string());
}

/// Builds what counts a program's allocations.
fn counter(folder: &Path) -> PathBuf {
    let library = folder.join("count_allocations.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/count_allocations.c");
    let (library_name, source) = (library.display().to_string(), source.display().to_string());
    run_bounded(60, "cc", &["-shared", "-fPIC", "-O1", "-o", &library_name, &source]);
    library
}

#[test]
fn thousands_of_requests_allocate_nothing() {
    if !have("cc") {
        return not_run("there is no C compiler to build the counter with");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (library, counted) = (counter(folder.path()), folder.path().join("allocations"));
    std::fs::write(&counted, [0; 8]).expect("a file");
    let allocations = || {
        let bytes = std::fs::read(&counted).expect("the file");
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    };
    let target = TestTarget::start(MEMORY);
    let environment = [("LD_PRELOAD", library.as_path()), ("ALLOCATIONS", counted.as_path())];
    let service = serve_with(&target.url("").to_string(), &[], &environment);
    let mut client = Client::negotiated(&service);
    // Until every table and list has the size that it keeps.
    client.many(100);
    let before = allocations();
    assert!(before > 0, "the count counts");
    client.many(200);
    assert_eq!(allocations() - before, 0, "in {} requests", 200 * 32);
}
