//! From a TCP connect to the MPA reply.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use ringfab_proto::iwarp::mpa::{Initiator, MpaConfig, MpaError, Outcome, Revision};
use ringfab_reactor::Reactor;

use super::connection::{Connection, End, Phase};
use super::kind;
use super::shared::Shared;
use crate::rdma::{ConnectError, ConnectParameters, QueuePairAttributes, RnicConfig};

/// How long the peer may take to answer our first message before it is nudged; each time twice as long.
const NUDGE_AFTER: Duration = Duration::from_millis(100);

/// How often it is nudged.
const NUDGES_MAX: u32 = 6;

/// A connection on its way.
#[derive(Debug)]
pub(super) struct Dial {
    address: SocketAddr,
    private_data: Vec<u8>,
    timeout: Duration,
    revision: Revision,
    mpa: Initiator,
    /// Whether anything of a reply has come.
    answered: bool,
    /// Whether to try again with revision 1 once this attempt is closed.
    retry: bool,
}

/// The highest revision that we speak.
pub(super) fn revision(highest: u8) -> Revision {
    if highest <= 1 { Revision::One } else { Revision::Two }
}

/// What we bring to an MPA exchange.
pub(super) fn mpa_config(config: &RnicConfig, attributes: &QueuePairAttributes) -> MpaConfig {
    MpaConfig {
        revision: revision(config.mpa_revision),
        crc: config.crc,
        ird: attributes.responder_resources,
        ord: attributes.initiator_depth,
        peer_to_peer: None,
    }
}

impl Dial {
    pub(super) fn new(config: &RnicConfig, parameters: &ConnectParameters<'_>) -> io::Result<Self> {
        let mpa = mpa_config(config, &parameters.attributes);
        let initiator = Initiator::new(mpa, parameters.private_data);
        Ok(Self {
            address: parameters.address,
            private_data: parameters.private_data.to_vec(),
            timeout: parameters.timeout,
            revision: mpa.revision,
            mpa: initiator.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?,
            answered: false,
            retry: false,
        })
    }
}

impl Connection {
    /// Starts the TCP connection.
    pub(super) fn start_connect(&mut self, shared: &mut Shared, reactor: &mut Reactor) -> io::Result<()> {
        let Some(dial) = &self.dial else { return Ok(()) };
        let token = shared.token(kind::CONNECT, self.key);
        self.socket = Some(reactor.connect(dial.address, &shared.config.socket, token)?);
        self.connecting = true;
        self.phase = Phase::Connecting;
        Ok(())
    }

    /// Bounds the whole exchange.
    pub(super) fn start_connect_timer(&mut self, shared: &Shared, reactor: &mut Reactor) {
        if let Some(timeout) = self.dial.as_ref().map(|dial| dial.timeout) {
            self.set_timer(shared, reactor, timeout);
        }
    }

    /// The TCP connection was made or refused.
    pub(super) fn on_connected(
        &mut self,
        shared: &mut Shared,
        reactor: &mut Reactor,
        result: io::Result<u32>,
    ) {
        self.connecting = false;
        if self.phase == Phase::Closing {
            return self.try_finish(shared, reactor);
        }
        let addresses = result.and_then(|_| match self.socket {
            Some(socket) => reactor.socket_addresses(socket),
            None => Err(io::ErrorKind::NotConnected.into()),
        });
        match addresses {
            Ok(addresses) => {
                self.addresses = addresses;
                self.send_request(shared, reactor);
            }
            Err(error) => self.close(shared, reactor, End::Failed(ConnectError::Connect(error))),
        }
    }

    fn send_request(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        self.open_tap(shared, reactor, true);
        self.phase = Phase::Requesting;
        let Some(dial) = self.dial.take() else { return };
        self.send_frame(shared, reactor, dial.mpa.request());
        self.dial = Some(dial);
        let mut receive = self.receive.take().unwrap_or_else(|| shared.take_receive());
        self.unread = 0..0;
        receive.aim(None, 0, receive.staging().len());
        self.receive = Some(receive);
        self.arm(shared, reactor);
    }

    /// Bytes of the reply are in the staging memory.
    pub(super) fn on_reply(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        let (Some(dial), Some(receive)) = (&mut self.dial, &mut self.receive) else { return };
        dial.answered = true;
        match dial.mpa.receive(&receive.staging()[self.unread.clone()]) {
            Ok((consumed, outcome)) => {
                self.unread.start += consumed;
                let private_data = Bytes::copy_from_slice(dial.mpa.private_data());
                match outcome {
                    None => self.await_reply(shared, reactor),
                    Some(Outcome::Accepted(negotiated)) => {
                        self.establish(shared, reactor, negotiated, private_data);
                    }
                    Some(Outcome::Rejected) => self.close(shared, reactor, End::Rejected(private_data)),
                }
            }
            Err(MpaError::OnlyRevisionOne) => self.retry_with_revision_one(shared, reactor),
            Err(error) => self.close(shared, reactor, End::Failed(ConnectError::Mpa(error.to_string()))),
        }
    }

    fn await_reply(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if let Some(receive) = &mut self.receive {
            self.unread = 0..0;
            receive.aim(None, 0, receive.staging().len());
        }
        self.arm(shared, reactor);
    }

    /// The stream ended before the reply. Some peers answer a revision that they do not know in this way.
    pub(super) fn on_reply_missing(&mut self, shared: &mut Shared, reactor: &mut Reactor, why: &str) {
        let silent = self.dial.as_ref().is_some_and(|dial| !dial.answered && dial.revision == Revision::Two);
        if silent {
            return self.retry_with_revision_one(shared, reactor);
        }
        self.close(shared, reactor, End::Failed(ConnectError::MpaEnded(why.to_owned())));
    }

    fn retry_with_revision_one(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        if let Some(dial) = &mut self.dial {
            dial.retry = true;
        }
        self.close_socket(shared, reactor);
        self.try_finish(shared, reactor);
    }

    /// Starts the second attempt, if one is due. Nothing of the first is in flight.
    pub(super) fn try_retry(&mut self, shared: &mut Shared, reactor: &mut Reactor) -> bool {
        let Some(dial) = self.dial.as_mut().filter(|dial| dial.retry) else { return false };
        if self.end.is_some() {
            return false;
        }
        dial.retry = false;
        dial.revision = Revision::One;
        let config = MpaConfig { revision: Revision::One, ..mpa_config(&shared.config, &self.attributes) };
        let restarted = match Initiator::new(config, &dial.private_data) {
            Ok(mpa) => {
                dial.mpa = mpa;
                self.start_connect(shared, reactor)
            }
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidInput, error)),
        };
        match restarted {
            Ok(()) => true,
            Err(error) => {
                self.end = Some(End::Failed(ConnectError::Connect(error)));
                false
            }
        }
    }

    /// Looks after a while whether the peer has said anything since its MPA reply.
    pub(super) fn await_first_answer(&mut self, shared: &Shared, reactor: &mut Reactor) {
        if self.nudges < NUDGES_MAX {
            self.set_timer(shared, reactor, NUDGE_AFTER * 2_u32.pow(self.nudges));
        }
    }

    /// It is time to look.
    pub(super) fn nudge(&mut self, shared: &mut Shared, reactor: &mut Reactor) {
        let Some(engine) = self.engine.as_mut().filter(|engine| engine.fpdu_counts().received == 0) else {
            return;
        };
        if engine.nudge() {
            tracing::debug!(peer = %self.addresses.1, "no answer to our first message yet: nudged");
            self.mark_dirty(shared);
        }
        self.nudges += 1;
        self.await_first_answer(shared, reactor);
    }

    /// A connection attempt took too long.
    pub(super) fn timed_out(&self, step: &'static str, handshake_timeout: Duration) -> End {
        let limit = self.dial.as_ref().map_or(handshake_timeout, |dial| dial.timeout);
        End::Failed(ConnectError::TimedOut { step, seconds: limit.as_secs() })
    }
}
