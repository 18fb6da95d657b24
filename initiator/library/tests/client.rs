//! A client on the engine's thread, beside the calls of the handle.

#[allow(dead_code, reason = "each test program uses its part")]
mod support;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ringfab_initiator::blocking::{Controller, EngineClient, EngineOptions, Turn};
use ringfab_initiator::{
    ConnectOptions, ControllerId, Host, HostEvent, IoDone, IoError, IoOperation, IoRequest, SubmitError,
};
use ringfab_memory::ClassLayout;
use ringfab_reactor::Token;
use support::host::options;
use support::{BLOCK, Peer};

const PATIENCE: Duration = Duration::from_secs(20);
const TIMER: Token = Token::new(Host::OWNER_FOREIGN_FIRST, 3, 0, 0);
/// More than the engine has of them for itself.
const BUFFER_BYTES: usize = 1 << 20;

/// A controller in a thread of its own, and what ends it.
fn peer() -> (Arc<AtomicBool>, JoinHandle<()>, ConnectOptions) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let (sender, receiver) = channel();
    let thread = std::thread::spawn(move || {
        let mut peer = Peer::new();
        sender.send(options(&peer)).expect("somebody listens");
        while !stopped.load(Ordering::Acquire) {
            peer.turn();
            std::thread::yield_now();
        }
    });
    (stop, thread, receiver.recv().expect("its address"))
}

/// What a client tells the test.
#[derive(Debug, PartialEq)]
enum Told {
    Read(u8),
    Failed(IoError),
    Fired,
    Lost,
    Dropped,
}

/// Reads block after block with a pause in between, until it is told to stop or a read fails.
struct Reader {
    tell: Sender<Told>,
    stop: Arc<AtomicBool>,
    next: bool,
    over: bool,
}

impl EngineClient for Reader {
    fn turn(&mut self, host: &mut Host, controller: ControllerId) -> io::Result<Turn> {
        if self.over || self.stop.load(Ordering::Acquire) {
            return Ok(Turn::Over);
        }
        if std::mem::take(&mut self.next) {
            let buffer = host.pool().take(BUFFER_BYTES).expect("a buffer that was asked for");
            let operation = IoOperation::Read { lba: 2, nlb: 1, buffer };
            if let Err(refused) = host.submit(controller, IoRequest { nsid: 1, tag: 9, operation }) {
                assert_eq!(refused.reason, SubmitError::Gone);
                self.over = true;
                let _gone = self.tell.send(Told::Failed(refused.reason.into()));
            }
            return Ok(Turn::Busy);
        }
        Ok(Turn::Idle)
    }

    fn on_event(&mut self, event: &mut HostEvent, host: &mut Host, _controller: ControllerId) {
        match event {
            HostEvent::IoDone(done) => self.read_done(done, host),
            HostEvent::Foreign(completion) => {
                assert_eq!(completion.token, TIMER);
                self.next = true;
                let _gone = self.tell.send(Told::Fired);
            }
            HostEvent::Lost { .. } => drop(self.tell.send(Told::Lost)),
            _ => {}
        }
    }
}

impl Reader {
    fn read_done(&mut self, done: &IoDone, host: &mut Host) {
        assert_eq!(done.tag, 9);
        match done.result {
            Ok(()) => {
                let byte = done.buffer.as_ref().expect("it comes back")[0];
                let _gone = self.tell.send(Told::Read(byte));
            }
            Err(error) => {
                let _gone = self.tell.send(Told::Failed(error));
            }
        }
        let at = host.reactor().clock() + Duration::from_millis(5);
        host.reactor().set_timer(at, TIMER);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _gone = self.tell.send(Told::Dropped);
    }
}

/// A controller with a reader as its client, and what the reader tells.
fn reading(options: ConnectOptions) -> (Controller, Arc<AtomicBool>, Receiver<Told>) {
    let layout = ClassLayout { buffer_bytes: BUFFER_BYTES, count: 1 };
    let mut engine = EngineOptions::default();
    engine.client_buffers = vec![layout];
    let controller = Controller::connect(options, engine).expect("attached");
    controller.write_at(1, 2 * BLOCK as u64, &[7; BLOCK], false).expect("written");
    let (tell, told) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let started = controller.start_client(0, move |_, _| {
        Ok((Box::new(Reader { tell, stop: stopped, next: true, over: false }), ()))
    });
    started.expect("the engine runs");
    (controller, stop, told)
}

/// Waits until the client tells this.
fn await_told(told: &Receiver<Told>, expected: &Told) {
    while told.recv_timeout(PATIENCE).expect("the client tells something") != *expected {}
}

#[test]
fn a_client_does_its_io_beside_the_calls_until_it_is_over() {
    let (end, peer, options) = peer();
    let (controller, stop, told) = reading(options);
    await_told(&told, &Told::Read(7));
    await_told(&told, &Told::Fired);
    // Both have what they asked for, whatever the other does.
    for value in 10..40 {
        controller.write_at(1, 2 * BLOCK as u64, &[value; BLOCK], false).expect("written");
        let mut back = [0; BLOCK];
        controller.read_at(1, 2 * BLOCK as u64, &mut back).expect("read");
        assert_eq!(back, [value; BLOCK]);
    }
    await_told(&told, &Told::Read(39));
    stop.store(true, Ordering::Release);
    await_told(&told, &Told::Dropped);
    let again = controller.start_client::<()>(0, |_, _| panic!("there was one"));
    assert_eq!(again.expect_err("there was one").kind(), io::ErrorKind::NotConnected);
    controller.flush(1).expect("the engine goes on without it");
    controller.detach().expect("detached in an orderly way");
    end.store(true, Ordering::Release);
    peer.join().expect("the controller did not panic");
}

#[test]
fn a_client_stays_when_the_controller_is_given_up_and_goes_when_it_is_detached() {
    let (end, peer, mut options) = peer();
    options.reconnect.controller_loss_timeout = Some(Duration::from_millis(300));
    let (controller, stop, told) = reading(options);
    await_told(&told, &Told::Read(7));
    end.store(true, Ordering::Release);
    peer.join().expect("the controller did not panic");
    await_told(&told, &Told::Lost);
    // What is outstanding fails first, or nothing was; then nothing is taken any more.
    await_told(&told, &Told::Failed(SubmitError::Gone.into()));
    await_told(&told, &Told::Dropped);
    assert!(controller.flush(1).is_err() && !stop.load(Ordering::Acquire));
    assert!(controller.detach().is_err(), "it was given up");
}

#[test]
fn a_client_that_has_nothing_to_do_goes_with_the_handle() {
    let (end, peer, options) = peer();
    let (controller, _stop, told) = reading(options);
    await_told(&told, &Told::Read(7));
    controller.detach().expect("detached in an orderly way");
    await_told(&told, &Told::Dropped);
    end.store(true, Ordering::Release);
    peer.join().expect("the controller did not panic");
}
