//! The Connect command (NVM Express Base 2.0, section 6.3): a queue joins a controller, or makes one.

use std::net::SocketAddr;
use std::sync::Arc;

use ringfab_auth::{Channel, Concatenation, Names};
use ringfab_reactor::Time;
use ringfab_spec::{FromBytes as _, Nqn, NqnError, NqnField, Status, SubmissionEntry};

use super::Target;
use super::pools::NewController;
use crate::command::{Command, connect_data as data, connect_field as field};
use crate::config::{Demands, HostAuthentication, ListenerTls};
use crate::controller::{Controller, ControllerParameters, Host};
use crate::failure::Failure;
use crate::model::queue_record::{QueueParameters, QueueRecord};
use crate::model::{
    Authentication, AuthenticationTerms, ControllerLimits, Served, Subsystem, TlsChannel, Way,
};

/// A Connect command that arrived on a new queue.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest<'a> {
    /// What is served.
    pub served: &'a Served,
    /// The command; its opcode and Fabrics type were checked.
    pub command: &'a SubmissionEntry,
    /// The Connect data, 1024 bytes; what follows is not looked at.
    pub data: &'a [u8],
    /// The queue identifier that the transport's connection was made for.
    pub queue_id: u16,
    /// The most commands, in entries, that the transport's connection was made for.
    pub queue_entries: u32,
    /// The core that serves the queue.
    pub core: usize,
    /// By which the host came.
    pub way: &'a Way,
    /// The host's address.
    pub peer: SocketAddr,
    /// The TLS of the connection, unless it is in clear text.
    pub tls: Option<&'a Arc<TlsChannel>>,
}

/// What a queue has joined.
#[derive(Clone, Debug)]
pub struct Attached {
    /// The controller; dword 0 of the completion is its identifier.
    pub controller: Arc<Controller>,
    /// The queue's own record.
    pub queue: Arc<QueueRecord>,
    /// The controller that had to make room. Its queues are still to be ended by their cores.
    pub evicted: Option<Arc<Controller>>,
    /// What the host has to do before it may go on.
    pub authentication: Authentication,
}

/// Bytes of the Connect data.
const DATA_BYTES: usize = 1024;

/// The controller identifier that asks for any: ours are made when a host connects (the dynamic controller model).
const CNTLID_DYNAMIC: u16 = 0xffff;

/// CATTR: the host does without SQ flow control.
const DISABLE_SQ_FLOW_CONTROL: u8 = 1 << 2;

/// Bits of CATTR that are defined: priority class, flow control, individual queue deletion.
const CATTR_DEFINED: u8 = 0b1111;

/// What a host lacks that does not come over TLS.
const IN_CLEAR_TEXT: &str = "the connection is in clear text: the host has not used its tls_key (ringfab: --tls-key, \
                             Linux: nvme connect --tls)";

/// The fields of a Connect, each checked by itself.
struct Connect {
    queue_id: u16,
    entries: u32,
    flow_control: bool,
    keep_alive_ms: u32,
    controller_id: u16,
    host: Host,
    subsystem_nqn: String,
}

impl Target {
    /// Takes a Connect command: the admin queue makes a controller, an I/O queue joins the one it names.
    ///
    /// # Errors
    /// The status of the completion, with the place of a wrong parameter in its dword 0.
    pub fn connect(&self, request: &ConnectRequest<'_>, now: Time) -> Result<Attached, Failure> {
        let limits = request.served.listener_of(request.way).limits();
        let connect = Connect::parse(request, limits)?;
        let subsystem = self.find_subsystem(request.served, &connect)?;
        self.expire_psks(now);
        if self.channel_trouble(request, &connect.host.nqn, &connect.subsystem_nqn).is_some() {
            return Err(Failure::new(Status::CONNECT_INVALID_HOST));
        }
        let authentication = Self::authentication(request, &connect, &subsystem);
        if matches!(authentication, Authentication::Impossible) {
            return Err(Failure::new(Status::AUTHENTICATION_REQUIRED));
        }
        if limits.discovery_only && !subsystem.is_discovery() {
            return Err(Failure::invalid_connect_data(data::SUBNQN));
        }
        let queue = Arc::new(QueueRecord::new(QueueParameters {
            id: connect.queue_id,
            entries: connect.entries,
            flow_control: connect.flow_control,
            core: request.core,
            listener: request.way.local,
            peer: request.peer,
            host_id: connect.host.id,
            protected_by: request.tls.map(|tls| tls.protected_by()),
        }));
        let (controller, evicted) = match connect.queue_id {
            0 => {
                let unproved = matches!(authentication, Authentication::Needed(_));
                self.create_controller(connect, subsystem, limits, request, now, unproved)?
            }
            _ => (self.find_controller(&connect, &subsystem)?, None),
        };
        if let Some(tls) = request.tls.filter(|tls| tls.is_generated()) {
            controller.state().authenticated = self.authenticated_before(tls);
        }
        // Whoever has yet to prove who it is must not keep the host itself out: an I/O queue is taken then. The admin
        // queue has a controller of its own.
        match authentication {
            Authentication::Needed(_) if queue.id() != 0 => controller.state().check_free(queue.id())?,
            _ => controller.attach(&queue)?,
        }
        Ok(Attached { controller, queue, evicted, authentication })
    }

    /// Why a host may not use a subsystem over a connection with this TLS, or without TLS.
    pub(super) fn channel_trouble(
        &self,
        request: &ConnectRequest<'_>,
        host_nqn: &str,
        subsystem_nqn: &str,
    ) -> Option<String> {
        let served = request.served;
        let Some(tls) = request.tls else {
            if served.listener_of(request.way).config().tls == ListenerTls::Required {
                return Some(format!("the listener requires TLS, and {IN_CLEAR_TEXT}"));
            }
            let demands = served.find(subsystem_nqn).map(|one| one.demands());
            let refused = demands.is_some_and(|demands| demands.tls)
                && concatenation(request, host_nqn, subsystem_nqn) == Concatenation::Refused;
            return refused.then(|| format!("the subsystem requires TLS, and {IN_CLEAR_TEXT}"));
        };
        if (tls.host(), tls.subsystem()) != (host_nqn, subsystem_nqn) {
            let (host, subsystem) = (tls.host(), tls.subsystem());
            return Some(format!("the TLS key of the connection is that of {host} for {subsystem}"));
        }
        // It may have become another one since the handshake began.
        match self.psks(served, tls.identity().as_bytes()) {
            Ok(psks) if psks.iter().any(|psk| tls.has_key(psk)) => None,
            Ok(_) => Some(format!("the host {host_nqn} has another tls_key now")),
            Err(why) => Some(why.to_string()),
        }
    }

    /// What a host has to do before it may go on.
    fn authentication(
        request: &ConnectRequest<'_>,
        connect: &Connect,
        subsystem: &Arc<Subsystem>,
    ) -> Authentication {
        let served = request.served.of(subsystem);
        let discovery = request.served.discovery_authenticates();
        let required = served.map_or(discovery, |one| one.demands().authentication);
        // Before its key was made, the host has proved who it is. It may do so again, for another key.
        let done = request.tls.is_some_and(|tls| tls.is_generated());
        if done && connect.queue_id != 0 || subsystem.is_discovery() && !required {
            return Authentication::NotNeeded;
        }
        let (host_nqn, subsystem_nqn) = (&connect.host.nqn, &connect.subsystem_nqn);
        let concatenation = concatenation(request, host_nqn, subsystem_nqn);
        let names = (Nqn::new(host_nqn), Nqn::new(subsystem_nqn));
        let terms = match (request.served.config_of(host_nqn), names) {
            (Some(configured), (Ok(host), Ok(subsystem))) => {
                AuthenticationTerms::new(configured, Names { host, subsystem }, concatenation)
            }
            _ => None,
        };
        match terms {
            Some(terms) if done => Authentication::Possible(terms),
            Some(terms) => Authentication::Needed(terms),
            None if required => Authentication::Impossible,
            None => Authentication::NotNeeded,
        }
    }

    fn find_subsystem(&self, served: &Served, connect: &Connect) -> Result<Arc<Subsystem>, Failure> {
        if self.is_discovery(&connect.subsystem_nqn) {
            return Ok(Arc::clone(&self.discovery));
        }
        let subsystem =
            served.find(&connect.subsystem_nqn).ok_or(Failure::invalid_connect_data(data::SUBNQN))?;
        if !subsystem.allows(&connect.host.nqn) {
            return Err(Failure::new(Status::CONNECT_INVALID_HOST));
        }
        Ok(Arc::clone(subsystem.subsystem()))
    }

    fn create_controller(
        &self,
        connect: Connect,
        subsystem: Arc<Subsystem>,
        limits: ControllerLimits,
        request: &ConnectRequest<'_>,
        now: Time,
        unproved: bool,
    ) -> Result<(Arc<Controller>, Option<Arc<Controller>>), Failure> {
        if connect.controller_id != CNTLID_DYNAMIC {
            return Err(Failure::invalid_connect_data(data::CNTLID));
        }
        let io_queues_max = if subsystem.is_discovery() { 0 } else { limits.io_queues_max };
        let address = request.peer.ip();
        let mut table = self.table();
        let newcomer =
            NewController { address, nqn: &connect.host.nqn, discovery: subsystem.is_discovery(), unproved };
        let id = table.next_id(|id| request.served.may_give(&subsystem, id))?;
        let evicted = table.make_room(&newcomer, now)?;
        // Whoever does not find it any more may rely on it to take no queue.
        evicted.iter().for_each(|evicted| evicted.end());
        let controller = Arc::new(Controller::new(ControllerParameters {
            id,
            subsystem,
            host: connect.host,
            address,
            way: request.way.clone(),
            limits: ControllerLimits { io_queues_max, ..limits },
            keep_alive_ms: connect.keep_alive_ms,
            now,
            epoch: Arc::clone(&self.epoch),
            unproved,
        }));
        table.insert(Arc::clone(&controller));
        Ok((controller, evicted))
    }

    /// The controller of an I/O queue. It has to be the one that this very host made in this subsystem.
    fn find_controller(
        &self,
        connect: &Connect,
        subsystem: &Arc<Subsystem>,
    ) -> Result<Arc<Controller>, Failure> {
        let found = self.table().find(connect.controller_id);
        let controller = found.ok_or(Failure::invalid_connect_data(data::CNTLID))?;
        if !Arc::ptr_eq(controller.subsystem(), subsystem) {
            return Err(Failure::invalid_connect_data(data::CNTLID));
        }
        if controller.host().nqn != connect.host.nqn {
            return Err(Failure::invalid_connect_data(data::HOSTNQN));
        }
        if controller.host().id != connect.host.id {
            return Err(Failure::invalid_connect_data(data::HOSTID));
        }
        // All queues of a controller are over TLS, or none: the names in their keys are those of the controller.
        if controller.host().tls.is_some() != connect.host.tls.is_some() {
            return Err(Failure::new(Status::CONNECT_INVALID_HOST));
        }
        Ok(controller)
    }
}

/// Whether an admin queue may make a key for TLS: over NVMe/TCP, where the host can come back over TLS and has a key
/// for authentication that can make one.
fn concatenation(request: &ConnectRequest<'_>, host_nqn: &str, subsystem_nqn: &str) -> Concatenation {
    let served = request.served;
    let demands = served.find(subsystem_nqn).map_or_else(Demands::default, |one| one.demands());
    let listener = served.listener_of(request.way).config().tls;
    let makes_keys = served.authentication_of(host_nqn).is_some_and(HostAuthentication::can_make_keys);
    let admin = Command::new(request.command).u16(field::QID) == 0;
    let has_tls = listener != ListenerTls::Off;
    if !(admin && makes_keys && has_tls && demands.concatenation) {
        return Concatenation::Refused;
    }
    match request.tls {
        Some(_) => Concatenation::Allowed(Channel::Tls),
        None if demands.tls => Concatenation::Required(Channel::Clear),
        None => Concatenation::Allowed(Channel::Clear),
    }
}

impl Connect {
    fn parse(request: &ConnectRequest<'_>, limits: ControllerLimits) -> Result<Self, Failure> {
        let command = Command::new(request.command);
        if request.data.len() < DATA_BYTES {
            return Err(Failure::new(Status::DATA_SGL_LENGTH_INVALID));
        }
        if command.u16(field::RECFMT) != 0 {
            return Err(Failure::at(Status::CONNECT_INCOMPATIBLE_FORMAT, field::RECFMT));
        }
        let queue_id = command.u16(field::QID);
        if queue_id != request.queue_id {
            return Err(Failure::invalid_connect_command(field::QID));
        }
        let cattr = command.u8(field::CATTR);
        if cattr & !CATTR_DEFINED != 0 {
            return Err(Failure::invalid_connect_command(field::CATTR));
        }
        let name = |offset| nqn(request.data, offset).map_err(|_| Failure::invalid_connect_data(offset));
        Ok(Self {
            queue_id,
            entries: entries(command, request.queue_entries.min(limits.queue_entries_max))?,
            flow_control: cattr & DISABLE_SQ_FLOW_CONTROL == 0,
            keep_alive_ms: command.u32(field::KATO),
            controller_id: u16::from_le_bytes(bytes(request.data, data::CNTLID)),
            host: Host {
                nqn: name(data::HOSTNQN)?,
                id: bytes(request.data, data::HOSTID),
                tls: request.tls.cloned(),
            },
            subsystem_nqn: name(data::SUBNQN)?,
        })
    }
}

/// SQSIZE is zero's based, and a queue of one entry could never be filled.
fn entries(command: Command<'_>, entries_max: u32) -> Result<u32, Failure> {
    let sqsize_z = u32::from(command.u16(field::SQSIZE));
    if sqsize_z == 0 || sqsize_z + 1 > entries_max {
        return Err(Failure::invalid_connect_command(field::SQSIZE));
    }
    Ok(sqsize_z + 1)
}

/// A name in the Connect data. That of a host has the form of the specification (see [`ringfab_spec::nqn`]), wherever
/// it connects: one that has no name cannot be told from others where it is to be allowed, limited or found again.
pub(super) fn nqn(all: &[u8], offset: u16) -> Result<String, NqnError> {
    let field =
        NqnField::read_from_bytes(&bytes::<{ NqnField::SIZE }>(all, offset)).expect("the field's size");
    let name = field.parse()?;
    let name = if offset == data::HOSTNQN { Nqn::with_form(name.as_str())? } else { name };
    Ok(name.as_str().to_owned())
}

fn bytes<const N: usize>(all: &[u8], offset: u16) -> [u8; N] {
    let offset = usize::from(offset);
    all[offset..offset + N].try_into().expect("the data has all its bytes")
}
