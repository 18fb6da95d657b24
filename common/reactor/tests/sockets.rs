//! Sockets over the real kernel.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use ringfab_reactor::{
    ListenAddr, Payload, PeerAddr, Reactor, ReceiveOp, SendBatch, SocketId, SocketOptions, Strides, Wait,
};
use support::*;

#[test]
fn thousands_of_pieces_of_random_sizes_arrive_unchanged_and_in_order() {
    const TOTAL: usize = 24 << 20;
    let mut reactor = reactor();
    let (near, far) = connected_pair(&mut reactor);
    let pool = pool(65536, 32);
    let mut random = Random(7);
    let (mut written, mut pieces) = (0_usize, 0_usize);
    let mut fill = |batch: &mut SendBatch, written: &mut usize| {
        batch.clear();
        while *written < TOTAL && batch.has_room(256, 2) && batch.bytes() < 200_000 {
            let header = 1 + random.below(255);
            pattern(batch.push_room(header), *written);
            *written += header;
            let Some(mut buffer) = pool.take(1 + random.below(65536)) else { break };
            let start = random.below(buffer.len());
            let length = buffer.len() - start;
            pattern(&mut buffer[start..], *written);
            batch.push_shared(buffer.share(), start, length);
            *written += length;
            pieces += 2;
        }
    };
    let mut batch = SendBatch::new(8192, 64);
    fill(&mut batch, &mut written);
    reactor.send(near, batch, token(1));
    reactor.receive(far, receive(100_000), token(2));
    let mut read = 0;
    while read < TOTAL.max(written) {
        let completion = next(&mut reactor);
        let bytes = completion.result.expect("no error on this connection") as usize;
        match completion.payload {
            Payload::Send(mut batch) => {
                assert_eq!(bytes, batch.bytes());
                fill(&mut batch, &mut written);
                if !batch.is_empty() {
                    reactor.send(near, batch, token(1));
                }
            }
            Payload::Receive(mut operation) => {
                assert!(bytes > 0 && operation.staging_received() == bytes);
                assert_pattern(&operation.staging()[..bytes], read);
                read += bytes;
                operation.set_target(None, 0, 1 + (read % 99_999));
                reactor.receive(far, operation, token(2));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(pieces > 500, "{pieces} pieces");
    assert_eq!(read, written);
}

#[test]
fn a_batch_has_room_for_as_many_pieces_as_it_says() {
    let pool = pool(64, 1);
    let shared_buffer = pool.take(64).expect("a buffer").share();
    let mut batch = SendBatch::new(16, 2);
    assert!(batch.is_empty() && batch.has_room(16, 2) && !batch.has_room(17, 2) && !batch.has_room(16, 3));
    batch.push_bytes(b"four");
    batch.push_bytes(b"more");
    assert!(batch.has_room(8, 1), "what was copied is one piece");
    assert!(!batch.has_room(8, 2) && !batch.has_room(9, 1));
    batch.push_shared(shared_buffer.clone(), 10, 20);
    assert_eq!((batch.bytes(), batch.copied_bytes()), (28, 8));
    assert!(batch.has_room(8, 0) && !batch.has_room(1, 1));
    batch.clear();
    assert!(batch.is_empty() && batch.has_room(16, 2));
    assert!(shared_buffer.is_unique(), "it holds nothing any more");
}

#[test]
fn a_payload_lands_in_its_place_and_the_rest_in_the_staging() {
    let mut reactor = reactor();
    let (near, far) = connected_pair(&mut reactor);
    let pool = pool(8192, 1);
    let mut operation = ReceiveOp::new(4096);
    operation.set_target(Some((pool.take(8192).expect("buffer").share(), 100, 5000)), 10, 4000);
    let mut batch = SendBatch::new(6000, 4);
    pattern(batch.push_room(6000), 0);
    // All bytes are there before the receive starts, so that one receive takes them.
    reactor.send(near, batch, token(1));
    expect(&mut reactor, token(1));
    reactor.receive(far, operation, token(2));
    let completion = expect(&mut reactor, token(2));
    assert_eq!(completion.result.expect("received"), 6000);
    let Payload::Receive(mut operation) = completion.payload else { panic!("not a receive") };
    assert_eq!((operation.direct_received(), operation.staging_received()), (5000, 1000));
    operation
        .take_direct()
        .expect("the shared_buffer")
        .with_bytes(100..5100, |bytes| assert_pattern(bytes, 0));
    assert_pattern(&operation.staging()[10..1010], 5000);
}

/// However the bytes are divided among receives, they are where the strides say.
#[test]
fn strides_land_behind_the_place_and_their_gaps_in_the_staging() {
    for length in [0, 1, 500, 1000, 1003, 1010, 1011, 1500, 1760, 1770, 1771, 2000, 3000] {
        let mut reactor = reactor();
        let (near, far) = connected_pair(&mut reactor);
        let pool = pool(8192, 1);
        let shared_buffer = pool.take(8192).expect("buffer").share();
        let mut operation = ReceiveOp::new(4096);
        operation.set_target(Some((shared_buffer.clone(), 100, 1000)), 5, 1200);
        operation.add_strides(Strides { gap: 10, step: 750, total: 1000 });
        let mut batch = SendBatch::new(6000, 4);
        pattern(batch.push_room(length.max(1)), 0);
        reactor.send(near, batch, token(1));
        expect(&mut reactor, token(1));
        reactor.receive(far, operation, token(2));
        let Payload::Receive(operation) = expect(&mut reactor, token(2)).payload else { panic!("a receive") };
        let parts = operation.parts();
        let mut at = 0;
        for part in &parts {
            shared_buffer.with_bytes(part.placed.clone(), |bytes| assert_pattern(bytes, at));
            at += part.placed.len();
            assert_pattern(&operation.staging()[part.staged.clone()], at);
            at += part.staged.len();
        }
        assert_eq!(at, length.max(1), "{parts:?}");
        assert_eq!(operation.direct_received() + operation.staging_received(), at);
        if length == 3000 {
            let ranges = parts.map(|part| (part.placed, part.staged));
            let expected = [(100..1100, 5..15), (1100..1850, 15..25), (1850..2100, 25..1005), (0..0, 0..0)];
            assert_eq!(ranges, expected);
        }
    }
}

#[test]
fn strides_that_do_not_fit_are_left_out() {
    let pool = pool(8192, 1);
    let shared_buffer = pool.take(8192).expect("buffer").share();
    let mut reactor = reactor();
    let (near, far) = connected_pair(&mut reactor);
    let mut operation = ReceiveOp::new(4096);
    // Room for two gaps, and for a part of a third.
    operation.set_target(Some((shared_buffer, 0, 100)), 0, 25);
    operation.add_strides(Strides { gap: 10, step: 100, total: 5000 });
    let mut batch = SendBatch::new(6000, 4);
    pattern(batch.push_room(1000), 0);
    reactor.send(near, batch, token(1));
    expect(&mut reactor, token(1));
    reactor.receive(far, operation, token(2));
    let completion = expect(&mut reactor, token(2));
    assert_eq!(completion.result.expect("received"), 325);
    let Payload::Receive(operation) = completion.payload else { panic!("a receive") };
    let ranges = operation.parts().map(|part| (part.placed, part.staged));
    assert_eq!(ranges, [(0..100, 0..10), (100..200, 10..20), (200..300, 20..25), (0..0, 0..0)]);
}

#[test]
fn a_send_to_a_slow_reader_completes_only_when_everything_was_taken() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let (mut bytes, mut read) = (vec![0; 30_000], 0);
        loop {
            let count = stream.read(&mut bytes).expect("read");
            if count == 0 {
                return read;
            }
            assert_pattern(&bytes[..count], read);
            read += count;
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    let mut reactor = reactor();
    let options = SocketOptions { buffer_bytes: Some(8192), ..SocketOptions::default() };
    let socket = reactor.connect(address, &options, token(1)).expect("a socket");
    expect(&mut reactor, token(1)).result.expect("connected");
    let pool = pool(1 << 20, 8);
    let mut batch = SendBatch::new(0, 8);
    for index in 0..8 {
        let mut buffer = pool.take(1 << 20).expect("buffer");
        pattern(&mut buffer, index << 20);
        batch.push_shared(buffer.share(), 0, 1 << 20);
    }
    reactor.send(socket, batch, token(2));
    // The end of the stream waits for the send in flight.
    reactor.shutdown_write(socket);
    let completion = expect(&mut reactor, token(2));
    assert_eq!(completion.result.expect("all of it"), 8 << 20);
    assert_eq!(reader.join().expect("the reader"), 8 << 20);
}

#[test]
fn closing_with_operations_in_flight_gives_everything_back() {
    let mut reactor = reactor();
    let (near, far) = connected_pair(&mut reactor);
    let pool = pool(1 << 20, 9);
    let mut batch = SendBatch::new(0, 8);
    for _ in 0..8 {
        batch.push_shared(pool.take(1 << 20).expect("buffer").share(), 0, 1 << 20);
    }
    let mut operation = ReceiveOp::new(64);
    operation.set_target(Some((pool.take(4096).expect("buffer").share(), 0, 4096)), 0, 64);
    reactor.receive(near, operation, token(1));
    reactor.send(near, batch, token(2));
    for _ in 0..10 {
        reactor.turn(Wait::No).expect("a turn");
    }
    assert!(reactor.next_completion().is_none(), "nobody reads, and 8 MiB do not fit");
    reactor.close_socket(near);
    for _ in 0..2 {
        let completion = next(&mut reactor);
        let error = completion.result.expect_err("it was cancelled");
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED), "{:?}", completion.token);
    }
    assert_eq!(pool.usage().taken, 0);
    // The handle is dead, and the peer learns of it after what was sent.
    reactor.receive(near, receive(64), token(3));
    let completion = expect(&mut reactor, token(3));
    assert_eq!(completion.result.expect_err("dead").raw_os_error(), Some(libc::ECANCELED));
    let mut drained = 0;
    reactor.receive(far, receive(1 << 20), token(4));
    loop {
        let completion = expect(&mut reactor, token(4));
        match completion.result {
            Ok(0) => break,
            Ok(bytes) => drained += bytes,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
                break;
            }
        }
        let Payload::Receive(operation) = completion.payload else { panic!("not a receive") };
        reactor.receive(far, operation, token(4));
    }
    assert!(drained > 0 && drained < 8 << 20, "{drained}");
}

#[test]
fn an_operation_closed_before_it_was_submitted_is_given_back_too() {
    let mut reactor = reactor();
    let (near, _far) = connected_pair(&mut reactor);
    reactor.receive(near, receive(64), token(1));
    reactor.close_socket(near);
    let completion = expect(&mut reactor, token(1));
    assert_eq!(completion.result.expect_err("cancelled").raw_os_error(), Some(libc::ECANCELED));
}

#[test]
fn a_refused_connection_and_a_closed_attempt_complete_with_their_error() {
    let mut reactor = reactor();
    // No outgoing connection gets a port that low, as it may one that is merely free.
    let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let socket = reactor.connect(nobody, &SocketOptions::default(), token(1)).expect("a socket");
    let completion = expect(&mut reactor, token(1));
    assert_eq!(completion.result.expect_err("refused").raw_os_error(), Some(libc::ECONNREFUSED));
    reactor.close_socket(socket);
    // A listener whose queue is full answers nothing, so the attempt hangs until it is closed.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    full.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().expect("an address").into()).expect("bound");
    full.listen(0).expect("listening");
    let address = full.local_addr().expect("an address").as_socket().expect("TCP");
    let _first = TcpStream::connect(address).expect("the queue takes one");
    let hanging = reactor.connect(address, &SocketOptions::default(), token(2)).expect("a socket");
    for _ in 0..10 {
        reactor.turn(Wait::No).expect("a turn");
    }
    reactor.close_socket(hanging);
    let completion = expect(&mut reactor, token(2));
    assert_eq!(completion.result.expect_err("closed").raw_os_error(), Some(libc::ECANCELED));
}

#[test]
fn an_unknown_congestion_control_is_an_error_that_names_it() {
    let mut reactor = reactor();
    let options = SocketOptions { congestion: Some("no-such-thing".into()), ..SocketOptions::default() };
    let address = "127.0.0.1:1".parse().expect("an address");
    let error = reactor.connect(address, &options, token(1)).expect_err("an unknown name");
    assert!(error.to_string().contains("no-such-thing"), "{error}");
}

#[test]
fn accepting_connecting_and_closing_goes_on_under_load_and_no_slot_is_lost() {
    const ROUNDS: usize = 4000;
    const AT_ONCE: usize = 32;
    let mut reactor = reactor();
    let (_bind, address) = listen(&mut reactor, token(0));
    let connect = |reactor: &mut Reactor| {
        reactor.connect(address, &SocketOptions::default(), token(1)).expect("a socket")
    };
    let mut connecting: std::collections::VecDeque<SocketId> =
        (0..AT_ONCE).map(|_| connect(&mut reactor)).collect();
    let (mut started, mut connected, mut accepted) = (AT_ONCE, 0, 0);
    while accepted < ROUNDS || connected < ROUNDS {
        let completion = next(&mut reactor);
        completion.result.expect("no failure");
        if let Payload::Accepted(socket, PeerAddr::Tcp(_)) = completion.payload {
            accepted += 1;
            reactor.close_socket(socket);
        } else {
            connected += 1;
            // Completions come in any order; closing the oldest cancels one now and then, which is part of the load.
            let oldest = connecting.pop_front().expect("one is connecting");
            if connected % 16 == 0 {
                reactor.receive(oldest, receive(16), token(2));
                let mut got = None;
                while got.is_none() {
                    let completion = next(&mut reactor);
                    match completion.payload {
                        Payload::Accepted(socket, _) => {
                            accepted += 1;
                            reactor.close_socket(socket);
                        }
                        Payload::Receive(_) => got = Some(completion.result),
                        _ => connected += 1,
                    }
                }
            }
            reactor.close_socket(oldest);
            if started < ROUNDS {
                started += 1;
                connecting.push_back(connect(&mut reactor));
            }
        }
    }
}

#[test]
fn a_socket_moves_to_another_reactor_on_another_thread() {
    let mut reactor = reactor();
    let (near, far) = connected_pair(&mut reactor);
    let detached = reactor.detach_socket(far);
    let other = std::thread::spawn(move || {
        let mut reactor = support::reactor();
        let socket = reactor.attach_socket(detached).expect("a slot");
        reactor.receive(socket, receive(100), token(1));
        let completion = expect(&mut reactor, token(1));
        assert_eq!(completion.result.expect("received"), 5);
        let (local, peer) = reactor.socket_addresses(socket).expect("connected");
        (local, peer)
    });
    let mut batch = SendBatch::new(16, 1);
    batch.push_bytes(b"hello");
    reactor.send(near, batch, token(2));
    expect(&mut reactor, token(2)).result.expect("sent");
    let (local, peer) = other.join().expect("the other thread");
    assert_eq!(reactor.socket_addresses(near).expect("connected"), (peer, local));
    assert!(reactor.socket_addresses(far).is_err(), "a detached handle is dead");
}

#[test]
fn a_stale_unix_socket_is_replaced_but_a_live_one_and_a_file_are_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let address = ListenAddr::Unix(path.clone());
    let mut reactor = reactor();
    drop(UnixListener::bind(&path).expect("bound"));
    assert!(path.exists(), "a closed listener leaves its file");
    let bind = reactor.listen(&address, &SocketOptions::default(), token(1)).expect("the stale one goes");
    let mut stream = UnixStream::connect(&path).expect("connected");
    stream.write_all(b"ping").expect("written");
    let completion = expect(&mut reactor, token(1));
    let Payload::Accepted(socket, PeerAddr::Unix) = completion.payload else { panic!("{completion:?}") };
    reactor.receive(socket, receive(100), token(2));
    let completion = expect(&mut reactor, token(2));
    assert_eq!(completion.result.expect("received"), 4);

    let again = reactor.listen(&address, &SocketOptions::default(), token(3));
    assert_eq!(again.expect_err("it is in use").kind(), std::io::ErrorKind::AddrInUse);
    reactor.close_listener(bind.listener);
    assert!(!path.exists(), "a closed listener takes its file along");
    std::fs::write(&path, b"precious").expect("written");
    let onto_file = reactor.listen(&address, &SocketOptions::default(), token(4));
    assert_eq!(onto_file.expect_err("a file").kind(), std::io::ErrorKind::AddrInUse);
    assert_eq!(std::fs::read(&path).expect("read"), b"precious");
}

#[test]
fn more_operations_than_the_queue_holds_all_complete() {
    let mut reactor = reactor();
    let (bind, address) = listen(&mut reactor, token(0));
    let mut sockets = Vec::new();
    for _ in 0..200 {
        sockets.push(reactor.connect(address, &SocketOptions::default(), token(1)).expect("a socket"));
    }
    let mut peers = Vec::new();
    for _ in 0..400 {
        let completion = next(&mut reactor);
        completion.result.expect("no failure");
        if let Payload::Accepted(socket, _) = completion.payload {
            peers.push(socket);
        }
    }
    for (index, socket) in sockets.iter().enumerate() {
        reactor.receive(*socket, receive(8), token(index as u32));
    }
    for socket in &peers {
        reactor.close_socket(*socket);
    }
    let mut seen = vec![false; sockets.len()];
    for _ in 0..sockets.len() {
        let completion = next(&mut reactor);
        assert_eq!(completion.result.expect("the end of the stream"), 0);
        assert!(!std::mem::replace(&mut seen[completion.token.index as usize], true));
    }
    reactor.close_listener(bind.listener);
}

#[test]
fn urgent_bytes_are_bytes_of_the_stream_like_all_others() {
    let mut reactor = reactor();
    let (bind, address) = listen(&mut reactor, token(900));
    let far = TcpStream::connect(address).expect("connected");
    let Payload::Accepted(near, _) = next(&mut reactor).payload else { panic!("no connection") };
    reactor.close_listener(bind.listener);
    reactor.receive(near, receive(4096), token(1));
    for number in 0..200_u8 {
        assert_eq!(socket2::SockRef::from(&far).send_out_of_band(&[number]).expect("sent"), 1);
        let completion = expect(&mut reactor, token(1));
        let Payload::Receive(mut operation) = completion.payload else { panic!("no receive") };
        assert_eq!(operation.staging()[..operation.staging_received()], [number]);
        operation.set_target(None, 0, 4096);
        reactor.receive(near, operation, token(1));
    }
}
