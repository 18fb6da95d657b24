//! What is asked of a server exactly, and answers that servers seldom give.

use std::io;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ringfab_block::{BlockError, Driver as _, Operation};
use ringfab_nbd::NbdOptions;
use ringfab_proto::nbd::{
    Command, Errno, Request, chunk, data_chunk, export, flag, none_chunk, simple_reply,
};

use crate::bench::{Bench, content};
use crate::scripted::{Client, Scripted};

/// Longer than a test waits.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// Options with which nothing is sent again within a test, unless the server knows of the end.
const NEVER_AGAIN: NbdOptions = NbdOptions {
    read_only: false,
    write_through: false,
    cores: 1,
    patience: FOR_EVER,
    replay_delay: FOR_EVER,
};

fn open(server: &Scripted, options: NbdOptions) -> Bench {
    let driver = server.driver(options);
    driver.look().expect("a look");
    Bench::open(&driver)
}

/// What was asked for, with the flags.
fn asked(server: &Scripted) -> Vec<(Command, u16)> {
    server.take_asked().into_iter().map(|Request { command, flags, .. }| (command, flags)).collect()
}

const ZEROES: Operation =
    Operation::WriteZeroes { offset: 0, length: 4096, deallocate: true, durable: false };
const TRIM: Operation = Operation::Discard { offset: 0, length: 4096 };

#[test]
fn what_is_to_be_durable_is_asked_for_as_the_export_can_do_it() {
    use Command::{Flush, Trim, Write, WriteZeroes};
    const ALL: u16 = export::SEND_FLUSH | export::SEND_FUA | export::SEND_TRIM | export::SEND_WRITE_ZEROES;
    let serve = |flags: u16| Scripted::start(flags, |_, client| client.acknowledge_all());
    let exercise = |bench: &mut Bench| {
        for durable in [false, true] {
            bench.write(0, &content(0, 512), durable).expect("written");
        }
        for operation in [ZEROES, TRIM] {
            bench.run(operation).expect("done");
        }
        bench.run(Operation::Flush).expect("flushed");
    };
    let server = serve(ALL);
    exercise(&mut open(&server, NbdOptions::default()));
    // What another process may have written before is made safe first.
    let written = [(Flush, 0), (Write, 0), (Write, flag::FUA), (WriteZeroes, 0), (Trim, 0), (Flush, 0)];
    assert_eq!(asked(&server), written);
    exercise(&mut open(&server, NbdOptions { write_through: true, ..NbdOptions::default() }));
    let through = [Write, Write, WriteZeroes, Trim].map(|command| (command, flag::FUA));
    assert_eq!(asked(&server), [&through[..], &[(Flush, 0)]].concat());
    // Zeroes are written, and what is durable is flushed behind it.
    let server = serve(export::SEND_FLUSH);
    exercise(&mut open(&server, NbdOptions::default()));
    assert_eq!(asked(&server), [Flush, Write, Write, Flush, Write, Flush].map(|command| (command, 0)));
    // What has no cache has nothing to flush.
    let server = serve(0);
    exercise(&mut open(&server, NbdOptions::default()));
    assert_eq!(asked(&server), [(Write, 0); 3]);
}

#[test]
fn a_durable_write_fails_with_its_flush() {
    let server = Scripted::start(export::SEND_FLUSH, |_, client| {
        client.answer_next(None)?;
        client.answer_next(Some(Errno::Io))
    });
    let mut bench = open(&server, NEVER_AGAIN);
    assert_eq!(bench.write(0, &content(0, 512), true), Err(BlockError::Write));
}

#[test]
fn parts_of_a_read_come_in_any_order() {
    const HALF: usize = 4096;
    let server = Scripted::start(0, |_, client| {
        let (read, _) = client.whole_request()?;
        client.send_data(read.cookie, HALF as u64, &content(HALF as u64, HALF))?;
        client.send_data(read.cookie, 0, &content(0, HALF))?;
        client.send(&none_chunk(read.cookie))?;
        // Twice the same, and nothing for the rest.
        let (read, _) = client.whole_request()?;
        for _ in 0..2 {
            client.send_data(read.cookie, HALF as u64, &content(HALF as u64, HALF))?;
        }
        client.send(&none_chunk(read.cookie))?;
        // A hole between bytes.
        let (read, _) = client.whole_request()?;
        client.send_data(read.cookie, 0, &content(0, 512))?;
        let hole = [&512_u64.to_be_bytes()[..], &(HALF as u32).to_be_bytes()];
        client.send_chunk(read.cookie, chunk::OFFSET_HOLE, &hole.concat())?;
        let at = 512 + HALF;
        client.send_data(read.cookie, at as u64, &content(at as u64, HALF - 512))?;
        client.send(&none_chunk(read.cookie))?;
        client.acknowledge_all()
    });
    let mut bench = open(&server, NEVER_AGAIN);
    assert!(bench.read(0, 2 * HALF).expect("read") == content(0, 2 * HALF));
    let bytes = bench.read(0, 2 * HALF).expect("read");
    assert!(bytes[..HALF].iter().all(|byte| *byte == 0), "what lay in the buffer before");
    assert!(bytes[HALF..] == content(HALF as u64, HALF));
    let bytes = bench.read(0, 2 * HALF).expect("read");
    let (hole, end) = (512..512 + HALF, 512 + HALF..2 * HALF);
    assert!(bytes[..512] == content(0, 512) && bytes[hole].iter().all(|byte| *byte == 0));
    assert!(bytes[end.clone()] == content(end.start as u64, end.len()));
}

#[test]
fn an_error_between_the_parts_of_a_read_is_the_reads() {
    let server = Scripted::start(0, |_, client| {
        let (read, _) = client.whole_request()?;
        client.send_data(read.cookie, 0, &content(0, 512))?;
        let text = b"a bad sector";
        let error = [&Errno::Io.number().to_be_bytes()[..], &(text.len() as u16).to_be_bytes(), text];
        let place = 512_u64.to_be_bytes();
        client.send_chunk(read.cookie, chunk::ERROR_OFFSET, &[&error.concat()[..], &place].concat())?;
        client.send(&none_chunk(read.cookie))?;
        let (read, _) = client.whole_request()?;
        client.send_data(read.cookie, 0, &content(0, 4096))?;
        client.send(&none_chunk(read.cookie))?;
        client.acknowledge_all()
    });
    let mut bench = open(&server, NEVER_AGAIN);
    assert_eq!(bench.read(0, 4096), Err(BlockError::Read));
    assert!(bench.read(0, 4096).expect("the next one is fine") == content(0, 4096));
}

#[test]
fn a_write_that_is_answered_before_it_was_sent_keeps_its_bytes_until_then() {
    let (read_on, may_read) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let server = Scripted::start(0, move |_, client| {
        let write = client.request()?;
        client.send(&simple_reply(None, write.cookie))?;
        may_read.recv().map_err(io::Error::other)?;
        tell.send(client.take_bytes(write.length as usize)?).map_err(io::Error::other)?;
        client.acknowledge_all()
    });
    let mut bench = open(&server, NEVER_AGAIN);
    // More than a socket takes at once.
    let bytes = content(0, 1 << 20);
    bench.start_write(0, &bytes);
    bench.turn_until_sent();
    assert_eq!(bench.in_flight(), 1, "its bytes are still being sent");
    read_on.send(()).expect("a server");
    assert!(bench.finish_all().iter().all(|finished| finished.result.is_ok()));
    assert!(told.recv().expect("what it got") == bytes);
}

/// Answers that end a connection, since nothing that follows can be trusted.
type Answer = fn(&Request, &mut Client) -> io::Result<()>;

#[test]
fn who_answers_what_nobody_asked_is_connected_to_anew_and_asked_again() {
    let answers: [(&str, Answer); 6] = [
        ("another cookie", |read, client| client.send(&simple_reply(None, read.cookie ^ 1 << 40))),
        ("no structure", |read, client| {
            client.send(&simple_reply(None, read.cookie))?;
            client.send(&content(0, 4096))
        }),
        ("bytes of another place", |read, client| client.send_data(read.cookie, 4096, &content(4096, 512))),
        ("more bytes", |read, client| client.send_data(read.cookie, 0, &content(0, 4608))),
        ("less bytes", |read, client| {
            client.send_data(read.cookie, 0, &content(0, 512))?;
            client.send(&none_chunk(read.cookie))
        }),
        ("no reply at all", |_, client| client.send(&[0x11; 64])),
    ];
    for (what, answer) in answers {
        let server = Scripted::start(0, move |number, client| {
            let (read, _) = client.whole_request()?;
            if number == 0 {
                answer(&read, client)?;
                // Until the other end has had enough.
                return client.request().map(drop);
            }
            client.send_data(read.cookie, 0, &content(0, 4096))?;
            client.send(&none_chunk(read.cookie))?;
            client.acknowledge_all()
        });
        // No change was on its way, so there is nothing to wait for.
        let mut bench = open(&server, NEVER_AGAIN);
        assert!(bench.read(0, 4096).expect(what) == content(0, 4096), "{what}");
        assert_eq!(asked(&server), [(Command::Read, 0); 2], "{what}");
    }
}

#[test]
fn changes_that_may_still_be_on_their_way_are_not_sent_again_at_once() {
    const DELAY: Duration = Duration::from_millis(700);
    // How the first connection ends, and whether the server knows.
    let ends: [(&str, Answer, bool); 3] = [
        ("the server closes it", |_, _| Ok(()), true),
        ("nonsense", |_, client| client.send(&[0x11; 64]).and_then(|()| client.request().map(drop)), false),
        (
            "the server is about to end",
            |write, client| {
                client.send(&simple_reply(Some(Errno::Shutdown), write.cookie))?;
                client.request().map(drop)
            },
            false,
        ),
    ];
    for (what, end, knows) in ends {
        let (tell, told) = mpsc::channel();
        let server = Scripted::start(0, move |number, client| {
            let (write, _) = client.whole_request()?;
            if number == 0 {
                tell.send(Instant::now()).map_err(io::Error::other)?;
                return end(&write, client);
            }
            tell.send(Instant::now()).map_err(io::Error::other)?;
            client.send(&simple_reply(None, write.cookie))?;
            client.acknowledge_all()
        });
        let replay_delay = if knows { FOR_EVER } else { DELAY };
        let mut bench = open(&server, NbdOptions { replay_delay, ..NEVER_AGAIN });
        bench.write(0, &content(0, 4096), false).expect(what);
        let [first, second] = [(); 2].map(|()| told.recv().expect("a time"));
        assert!(knows || second - first >= DELAY, "{what}: sent again after {:?}", second - first);
        assert_eq!(asked(&server), [(Command::Write, 0); 2], "{what}");
    }
}

#[test]
fn a_read_whose_bytes_end_in_the_middle_fails_when_the_server_does_not_come_back() {
    let server = Scripted::start(0, |_, client| {
        let request = client.request()?;
        client.send(&data_chunk(request.cookie, request.offset, request.length, true))?;
        client.send(&[7; 100_000])?;
        client.end_for_good()
    });
    let mut bench =
        open(&server, NbdOptions { patience: Duration::from_millis(300), ..NbdOptions::default() });
    assert_eq!(bench.read(0, 1 << 20), Err(BlockError::Removed));
}

#[test]
fn long_reads_are_received_in_place_and_what_is_not_is_counted() {
    let server = Scripted::start(0, |_, client| {
        loop {
            let request = client.request()?;
            client.send(&data_chunk(request.cookie, request.offset, request.length, true))?;
            client.send(&content(request.offset, request.length as usize))?;
        }
    });
    let mut bench = open(&server, NbdOptions::default());
    assert!(bench.read(0, 4096).expect("read") == content(0, 4096));
    let short = bench.disk.copied_bytes();
    assert!(short <= 4096, "{short}");
    const READS: u64 = 8;
    for at in 0..READS {
        assert!(bench.read(at << 20, 1 << 20).expect("read") == content(at << 20, 1 << 20));
    }
    // All of the first one that fits is received with its head.
    let most = (64 << 10) + (READS - 1) * 512;
    assert!(bench.disk.copied_bytes() - short <= most, "{}", bench.disk.copied_bytes());
}
