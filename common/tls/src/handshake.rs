//! The handshake of either end.

use std::fmt;
use std::sync::Arc;

use rand_core::CryptoRng;
use ringfab_auth::{CipherSuite, Secret};

use crate::channel::{Channel, Incoming};
use crate::client::{self, Client};
use crate::error::{TlsError, Tried};
use crate::event::Event;
use crate::header::wanted;
use crate::keys::TrafficKeys;
use crate::psk::{Psk, PskStore};
use crate::server::{self, Server};
use crate::wire::Role;

/// What a handshake has led to.
#[derive(Debug)]
pub struct Session {
    /// The cipher suite.
    pub suite: CipherSuite,
    /// The identity of the key.
    pub identity: Vec<u8>,
    /// The key, to see later whether it is still the one with this identity.
    pub psk: Secret,
    /// The keys of what this end sends.
    pub send: TrafficKeys,
    /// The keys of what this end receives.
    pub receive: TrafficKeys,
}

/// One handshake of either end.
///
/// Its owner sends what [`Self::take_outgoing`] gives, reads as many bytes as [`Self::wanted`] says, and gives each
/// record to [`Self::receive`], until [`Self::is_complete`]. It limits the time of a handshake. The memory is bounded:
/// two messages of 16 KiB from the peer, and a record.
///
/// Key agreement takes about 0.1 ms with x25519 and longer with other groups, and a server does it only for a client
/// that has a key.
pub struct Handshake {
    channel: Channel,
    end: End,
    failed: Option<TlsError>,
}

#[derive(Debug)]
enum End {
    Client(Box<Client>),
    Server(Box<Server>),
}

impl Handshake {
    /// The client's, which offers these keys, the best one first.
    ///
    /// # Errors
    /// The keys cannot be offered: there are none or too many, or their identities are empty or too long.
    pub fn client(psks: Vec<Psk>, random: &mut dyn CryptoRng) -> Result<Self, TlsError> {
        let mut channel = Channel::new(Role::Client);
        let client = Client::start(psks, random, &mut channel)?;
        Ok(Self { channel, end: End::Client(Box::new(client)), failed: None })
    }

    /// The server's.
    pub fn server(store: Arc<dyn PskStore>, random: &mut dyn CryptoRng) -> Self {
        let end = End::Server(Box::new(Server::new(store, random)));
        Self { channel: Channel::new(Role::Server), end, failed: None }
    }

    /// Which end it is.
    pub fn role(&self) -> Role {
        self.channel.role()
    }

    /// How many more bytes of the stream complete the record that `unread` begins with: those of the header first, then
    /// those of the body, and never one of the next record. Zero: give it to [`Self::receive`].
    pub fn wanted(&self, unread: &[u8]) -> usize {
        wanted(unread)
    }

    /// What is waited for, for a time limit's message.
    pub fn awaited(&self) -> &'static str {
        match &self.end {
            End::Client(client) => client.state().awaited(),
            End::Server(server) => server.state().awaited(),
        }
    }

    /// The identity that a client has offered to this server, whoever it is: the one that was chosen, or the first. For
    /// whoever tells how the handshake has ended.
    pub fn offered(&self) -> Option<&[u8]> {
        match &self.end {
            End::Client(_) => None,
            End::Server(server) => server.offered(),
        }
    }

    /// Takes exactly one record, which is decrypted in place.
    ///
    /// # Errors
    /// The handshake has failed, now or earlier. [`Self::take_outgoing`] has the alert for the peer, if it gets one.
    pub fn receive(&mut self, record: &mut [u8]) -> Result<(), TlsError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.take(record).inspect_err(|error| {
            if let Some(alert) = error.alert() {
                self.channel.send_alert(alert);
            }
            self.failed = Some(error.clone());
        })
    }

    fn take(&mut self, record: &mut [u8]) -> Result<(), TlsError> {
        match self.channel.open(record)? {
            Incoming::ChangeCipherSpec => self.step(Event::ChangeCipherSpec, &[]),
            Incoming::Data => self.step(Event::Data, &[]),
            Incoming::Alert(alert) => {
                Err(TlsError::PeerAlert { peer: self.role().peer(), alert, tried: self.tried() })
            }
            Incoming::Handshake => {
                while let Some(message) = self.channel.message()? {
                    self.step(Event::of(&message), &message)?;
                }
                Ok(())
            }
        }
    }

    fn step(&mut self, event: Event, message: &[u8]) -> Result<(), TlsError> {
        match &mut self.end {
            End::Client(client) => client.take(event, message, &mut self.channel),
            End::Server(server) => server.take(event, message, &mut self.channel),
        }
    }

    fn tried(&self) -> Tried {
        Tried(match &self.end {
            End::Client(client) => Some(client.identities()),
            End::Server(server) => server.identity(),
        })
    }

    /// What has to be sent now: whole records.
    pub fn take_outgoing(&mut self) -> Option<Vec<u8>> {
        self.channel.take_outgoing()
    }

    /// Whether it has succeeded and everything that it sends was taken. The next byte from the peer belongs to what
    /// reads the session's records.
    pub fn is_complete(&self) -> bool {
        let over = match &self.end {
            End::Client(client) => client.state() == client::State::Complete,
            End::Server(server) => server.state() == server::State::Complete,
        };
        over && self.failed.is_none() && self.channel.is_drained()
    }

    /// The session.
    ///
    /// # Errors
    /// The handshake is not complete.
    pub fn finish(self) -> Result<Session, TlsError> {
        if !self.is_complete() {
            return Err(TlsError::Incomplete);
        }
        let role = self.role();
        let parts = match self.end {
            End::Client(client) => client.into_parts(),
            End::Server(server) => server.into_parts(),
        };
        let (agreed, keys) = parts.ok_or(TlsError::Incomplete)?;
        let (send, receive) = match role {
            Role::Client => (keys.client, keys.server),
            Role::Server => (keys.server, keys.client),
        };
        Ok(Session { suite: agreed.suite, identity: agreed.identity, psk: agreed.psk, send, receive })
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Handshake");
        debug.field("role", &self.role()).field("awaited", &self.awaited()).field("failed", &self.failed);
        debug.finish_non_exhaustive()
    }
}
