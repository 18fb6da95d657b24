//! Asking discovery controllers for the subsystems that they know.

mod paths;
mod watch;

use std::net::IpAddr;

use ringfab_fabric::{ZonedIp, is_link_local};
use ringfab_spec::FromBytes;
use ringfab_spec::log::{
    DiscoveryLogEntry, DiscoveryLogHeader, LogId, SecureChannel, SubsystemType, TcpSecurityType,
    TransportType,
};

use crate::blocking::{Controller, EngineOptions};
use crate::error::{Cause, ConnectError, IoError, Step};
use crate::options::ConnectOptions;
use crate::url::{HostName, Transport, Url};
use crate::wire::answers;
use crate::wire::data::AnswerData;
pub use paths::{PathDiscovery, ShownPaths, paths_of};
pub use watch::{DiscoveryTrouble, DiscoveryWatch};

/// An entry of the discovery log page (Base 2.0, section 5.16.1.23).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// `rdma`, `tcp`, `fc`, `loop`, or the number.
    pub transport: String,
    /// `ipv4`, `ipv6`, `ib`, `fc`, `loop`, or the number.
    pub address_family: String,
    /// Subsystem type, by its specified name: a subsystem, a referral, or the current discovery subsystem.
    pub subsystem_type: String,
    /// Transport address (TRADDR).
    pub address: String,
    /// Transport service (TRSVCID): the port.
    pub service: String,
    /// The subsystem's NQN.
    pub subsystem: String,
    /// Port identifier.
    pub port_id: u16,
    /// Controller identifier, `0xffff` when dynamic.
    pub cntlid: u16,
    /// The largest admin submission queue, in entries.
    pub admin_queue_size_max: u16,
    /// Whether a secure channel is required (TREQ).
    pub secure_channel_required: bool,
    /// How to attach it, when we can.
    pub url: Option<Url>,
}

impl DiscoveryEntry {
    /// Whether it is a subsystem for I/O.
    pub fn is_subsystem(&self) -> bool {
        self.subsystem_type == SubsystemType::NVM.to_string()
    }

    /// Whether it is another discovery subsystem, which may know more.
    pub fn is_referral(&self) -> bool {
        self.subsystem_type == SubsystemType::REFERRAL.to_string()
    }
}

/// What a discovery controller knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryLog {
    /// Generation counter: changes with the content.
    pub generation: u64,
    /// The entries, in order.
    pub entries: Vec<DiscoveryEntry>,
}

/// Connects to the discovery controller at `options.url`, reads its log page and disconnects. Referrals are entries;
/// following them is the caller's choice.
///
/// It blocks as [`Controller::connect`], the reads of the log page, and [`Controller::detach`] do.
///
/// ```no_run
/// use ringfab_initiator::blocking::EngineOptions;
/// use ringfab_initiator::discovery::discover;
/// use ringfab_initiator::{ConnectOptions, HostIdentity, Url};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let url: Url = "nvme+tcp://192.0.2.1".parse()?;
/// let options = ConnectOptions::new(url.clone(), HostIdentity::for_url(&url)?);
/// for entry in discover(options, EngineOptions::default())?.entries {
///     println!("{} at {}:{}", entry.subsystem, entry.address, entry.service);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Which step failed, and why; also a log page that changes faster than it can be read, or has over 16,384 entries.
pub fn discover(options: ConnectOptions, engine: EngineOptions) -> Result<DiscoveryLog, ConnectError> {
    let template = options.url.clone();
    let controller = DiscoveryController { controller: Controller::connect(options, engine)?, template };
    let log = controller.log();
    controller.detach();
    log
}

/// A discovery controller that stays connected, with a keep-alive of its own. A lost connection is made again as for
/// every controller; what is asked meanwhile fails. [`DiscoveryWatch`] stays connected to several.
#[derive(Debug)]
pub struct DiscoveryController {
    controller: Controller,
    template: Url,
}

impl DiscoveryController {
    /// Connects to the discovery controller at `options.url`.
    ///
    /// # Errors
    /// Which step failed, and why.
    pub fn connect(options: ConnectOptions, engine: EngineOptions) -> Result<Self, ConnectError> {
        let template = options.url.clone();
        let options = ConnectOptions { persistent_discovery: true, ..options };
        Ok(Self { controller: Controller::connect(options, engine)?, template })
    }

    /// Reads the log page.
    ///
    /// # Errors
    /// As [`discover`].
    pub fn log(&self) -> Result<DiscoveryLog, ConnectError> {
        read_log(&self.controller, &self.template).map_err(|cause| self.failed(cause))
    }

    /// Whether the controller tells when its log page changes. Of one that does not, one has to ask for the
    /// [`generation`](Self::generation).
    pub fn sends_events(&self) -> bool {
        self.controller.info().discovery_log_events
    }

    /// Reads the generation counter, which changes with the log page.
    ///
    /// # Errors
    /// The command's.
    pub fn generation(&self) -> Result<u64, ConnectError> {
        let header = read_header(&self.controller).map_err(|cause| self.failed(cause))?;
        Ok(header.genctr.get())
    }

    /// Leaves it.
    pub fn detach(self) {
        if let Err(error) = self.controller.detach() {
            tracing::debug!(%error, "the discovery controller was not left in an orderly way");
        }
    }

    fn failed(&self, cause: Cause) -> ConnectError {
        ConnectError { peer: self.template.peer(), step: Step::Live, cause }
    }
}

/// Entries that we read at most; a discovery service has a few.
const ENTRIES_MAX: u64 = 16_384;
/// How often the log page may change while it is read.
const ATTEMPTS_MAX: u32 = 5;

/// Reads the page until its generation is the same before and after.
fn read_log(controller: &Controller, template: &Url) -> Result<DiscoveryLog, Cause> {
    for _ in 0..ATTEMPTS_MAX {
        let before = read_header(controller)?;
        let count = before.numrec.get();
        if before.recfmt.get() != 0 {
            return Err(Cause::Unsupported("the discovery log page has an unknown format".to_owned()));
        }
        if count > ENTRIES_MAX {
            return Err(Cause::Unsupported(format!("the discovery log page says it has {count} entries")));
        }
        let bytes =
            read_page(controller, DiscoveryLogHeader::SIZE as u64, count as usize * DiscoveryLogEntry::SIZE)?;
        let generation = before.genctr.get();
        if read_header(controller)?.genctr.get() == generation {
            let entries = bytes.chunks_exact(DiscoveryLogEntry::SIZE);
            let entries = entries.filter_map(|bytes| DiscoveryLogEntry::read_from_bytes(bytes).ok());
            let entries = entries.map(|entry| describe(&entry, template)).collect();
            return Ok(DiscoveryLog { generation, entries });
        }
    }
    Err(Cause::Unsupported("the discovery log page changes faster than it can be read".to_owned()))
}

fn read_header(controller: &Controller) -> Result<DiscoveryLogHeader, Cause> {
    let bytes = read_page(controller, 0, DiscoveryLogHeader::SIZE)?;
    DiscoveryLogHeader::read_from_bytes(&bytes).map_err(|_| Cause::Protocol("a short discovery log page"))
}

fn read_page(controller: &Controller, offset: u64, length: usize) -> Result<Vec<u8>, Cause> {
    let command = "Get Log Page (discovery)";
    let data = controller.log_page(LogId::DISCOVERY.0, 0, offset, length).map_err(|error| match error {
        IoError::Status(status) | IoError::Exhausted { status, .. } => Cause::Status { command, status },
        IoError::Cancelled => Cause::Cancelled,
        error => Cause::Local(error.to_string()),
    })?;
    AnswerData::new(&data, data.len()).require(length).map_err(|short| short.cause(command))?;
    Ok(data)
}

fn describe(entry: &DiscoveryLogEntry, template: &Url) -> DiscoveryEntry {
    let subsystem = answers::nqn_text(&entry.subnqn);
    let (address, service) = (entry.traddr.to_string(), entry.trsvcid.to_string());
    DiscoveryEntry {
        transport: entry.trtype.to_string(),
        address_family: entry.adrfam.to_string(),
        subsystem_type: entry.subtype.to_string(),
        url: url_of(entry, &address, &service, &subsystem, template),
        address,
        service,
        subsystem,
        port_id: entry.portid.get(),
        cntlid: entry.cntlid.get(),
        admin_queue_size_max: entry.asqsz.get(),
        secure_channel_required: entry.treq.secure_channel() == SecureChannel::REQUIRED,
    }
}

/// The address of an entry that we can attach, with the options of the discovery's own.
fn url_of(
    entry: &DiscoveryLogEntry,
    address: &str,
    service: &str,
    subsystem: &str,
    template: &Url,
) -> Option<Url> {
    let transport = match entry.trtype {
        TransportType::RDMA => Transport::Rdma,
        TransportType::TCP => Transport::Tcp,
        _ => return None,
    };
    let address = reachable(address.parse().ok()?, &template.host)?;
    let port = service.parse().ok().filter(|port| *port != 0)?;
    let subsystem = match entry.subtype {
        // A discovery subsystem answers to the name that all have, whether or not it has one of its own.
        SubsystemType::REFERRAL | SubsystemType::CURRENT_DISCOVERY => None,
        _ => Some(crate::url::check_nqn(subsystem.to_owned()).ok()?),
    };
    let template = template.with_transport(transport);
    let tls = if transport == Transport::Tcp { tls_of(entry, template.tls) } else { None };
    Some(Url { host: address.into(), port, subsystem, namespace: None, tls, ..template })
}

/// Whether an entry is attached over TLS: where it is required, as it says. Where it may be, a key decides, whatever
/// was said for discovery.
fn tls_of(entry: &DiscoveryLogEntry, of_discovery: Option<bool>) -> Option<bool> {
    let has_tls = entry.tcp().is_some_and(|tcp| tcp.sectype == TcpSecurityType::TLS_1_3);
    match entry.treq.secure_channel() {
        SecureChannel::REQUIRED => Some(true),
        SecureChannel::NOT_REQUIRED if has_tls => of_discovery.filter(|tls| *tls),
        _ => of_discovery,
    }
}

/// The address of an entry as we reach it. The log cannot say which of our interfaces leads to a link-local one: the
/// one that led to the discovery controller does.
fn reachable(ip: IpAddr, discovery: &HostName) -> Option<ZonedIp> {
    let zone = match discovery {
        HostName::Address(address) if is_link_local(ip) => address.zone(),
        _ => None,
    };
    ZonedIp::new(ip, zone).ok()
}
