//! How capsules and data travel. The rest of the crate knows only what a [`Transport`] offers, and what it reports to a
//! [`TransportHandler`].

pub(crate) mod rdma;
pub(crate) mod tcp;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ringfab_fabric::rdma::{DisconnectReason, ProtectionDomain};
use ringfab_fabric::tcp::Psk;
pub(crate) use ringfab_fabric::{Endpoint, Transports};
use ringfab_memory::Pool;
use ringfab_reactor::{Reactor, SocketOptions};
use ringfab_spec::CompletionEntry;

use crate::command::Command;
use crate::error::{Cause, Step};
use crate::url::{self, Url};
use rdma::RdmaQueue;
use tcp::TcpQueue;

/// What a transport says of a response beside its entry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrival {
    /// The key of ours that it invalidated.
    pub(crate) invalidated: Option<u32>,
    /// Bytes of data that came for the command, from the first one on; `None` where the transport does not say.
    pub(crate) received: Option<u32>,
}

/// Acts on what has happened on connections.
pub(crate) trait TransportHandler {
    /// The controller has answered a command: by reference, since this comes for every command and would be moved once
    /// for each place that it passes through. `entry` is `None` when the capsule was no response.
    fn on_response(&mut self, endpoint: Endpoint, entry: Option<&CompletionEntry>, arrival: Arrival);

    /// Anything else.
    fn on_event(&mut self, endpoint: Endpoint, event: ConnectionEvent);
}

/// A step in the life of a connection.
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    /// It is connected, to a controller that can receive so many commands; none when it did not say.
    Established {
        /// How many.
        credits: Option<u16>,
    },
    /// The controller refused the connection.
    Rejected(String),
    /// It could not be made.
    ConnectFailed {
        /// Where.
        step: Step,
        /// Why.
        cause: Cause,
    },
    /// It has ended, and nothing of it is in flight.
    Disconnected(DisconnectReason),
}

/// What a connection is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connect<'a> {
    pub(crate) address: SocketAddr,
    /// For the options of the transport.
    pub(crate) url: &'a Url,
    /// The keys for TLS, if the connection must be over TLS.
    pub(crate) tls: Option<&'a Arc<[Psk]>>,
    pub(crate) domain: ProtectionDomain,
    /// Queue identifier, zero for the admin queue.
    pub(crate) qid: u16,
    /// Entries of the submission queue.
    pub(crate) size: u16,
    pub(crate) pool: &'a Pool,
    pub(crate) timeout: Duration,
}

impl Connect<'_> {
    /// What the address asks of the kernel's TCP.
    fn socket_options(&self) -> SocketOptions {
        let options = &self.url.tcp;
        let seconds = |count: Option<u16>| count.map(|count| Duration::from_secs(count.into()));
        SocketOptions {
            congestion: options.congestion.clone(),
            dscp: options.dscp,
            user_timeout: seconds(options.user_timeout_s),
            keep_alive: seconds(options.keep_alive_s),
            ..SocketOptions::default()
        }
    }
}

/// Why a command was not sent. It is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotSent {
    /// No room for another work request or another region; one will come free.
    Busy,
    /// The connection has ended; its last event follows.
    Ended,
}

/// The transport's end of an NVMe queue.
#[derive(Debug)]
pub(crate) enum Transport {
    Rdma(RdmaQueue),
    Tcp(TcpQueue),
}

impl Transport {
    /// Starts to connect.
    ///
    /// # Errors
    /// When there is no connection left or the system has no socket.
    pub(crate) fn connect(
        transports: &mut Transports,
        reactor: &mut Reactor,
        to: &Connect<'_>,
    ) -> io::Result<Self> {
        match to.url.transport {
            url::Transport::Rdma => RdmaQueue::connect(&mut transports.rnic, reactor, to).map(Self::Rdma),
            url::Transport::Tcp => TcpQueue::connect(&mut transports.tcp, reactor, to).map(Self::Tcp),
        }
    }

    /// Its connection.
    pub(crate) fn endpoint(&self) -> Endpoint {
        match self {
            Self::Rdma(queue) => Endpoint::Rdma(queue.queue_pair()),
            Self::Tcp(queue) => Endpoint::Tcp(queue.connection()),
        }
    }

    /// Lets short writes travel in the capsule.
    pub(crate) fn set_in_capsule(&mut self, bytes_max: u32) {
        match self {
            Self::Rdma(queue) => queue.set_in_capsule(bytes_max),
            Self::Tcp(queue) => queue.set_in_capsule(bytes_max),
        }
    }

    /// Sends a command under an identifier. On an error nothing of it is exposed or in flight.
    pub(crate) fn send(
        &self,
        transports: &mut Transports,
        command: &mut Command,
        cid: u16,
    ) -> Result<(), NotSent> {
        match self {
            Self::Rdma(queue) => queue.send(&mut transports.rnic, command, cid),
            Self::Tcp(queue) => queue.send(&mut transports.tcp, command, cid),
        }
    }

    /// Takes the memory of an answered command back. Returns whether what the response invalidated was its own.
    #[must_use]
    pub(crate) fn reclaim(
        &self,
        transports: &mut Transports,
        command: &mut Command,
        invalidated: Option<u32>,
    ) -> bool {
        match self {
            Self::Rdma(_) => RdmaQueue::reclaim(&mut transports.rnic, command, invalidated),
            Self::Tcp(_) => true,
        }
    }

    /// Ends the controller's access to the command's memory. Over TCP it ends with the connection, before that says so.
    pub(crate) fn withdraw(&self, transports: &mut Transports, command: &mut Command) {
        if let Self::Rdma(_) = self {
            RdmaQueue::withdraw(&mut transports.rnic, command);
        }
    }

    /// Gives the controller the right to send one more response.
    pub(crate) fn replenish(&self, transports: &mut Transports) {
        if let Self::Rdma(queue) = self {
            queue.replenish(&mut transports.rnic);
        }
    }

    /// Ends the connection; its last event follows.
    pub(crate) fn disconnect(&self, transports: &mut Transports, reactor: &mut Reactor) {
        transports.disconnect(reactor, self.endpoint());
    }

    /// Ends the connection without sending what was posted; its last event follows.
    pub(crate) fn abort(&self, transports: &mut Transports, reactor: &mut Reactor) {
        transports.abort(reactor, self.endpoint());
    }
}
