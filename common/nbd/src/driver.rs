//! An export as the target sees it: looked at by a worker, opened by each core.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringfab_block::{BlockDevice, Detail, DiskTokens, Driver, OpenError, Seen};
use ringfab_proto::nbd::{ExportInfo, Wanted, export};
use ringfab_reactor::Reactor;

use crate::address::NbdAddress;
use crate::device::NbdDevice;
use crate::link::Link;
use crate::options::NbdOptions;
use crate::relay::Relay;
use crate::session::{Session, Target};
use crate::stream::Stream;

/// How often an export is asked for its size that allows several connections.
const SIZE_INTERVAL: Duration = Duration::from_secs(5);

/// How long a look waits for the only connection to come back, and how often it looks.
const RETURN_LIMIT: Duration = Duration::from_millis(300);
const RETURN_LOOK: Duration = Duration::from_millis(10);

/// An export of an NBD server as a device.
#[derive(Debug)]
pub struct NbdDriver {
    session: Arc<Session>,
    relay: Arc<Relay>,
    /// When its size was asked for last.
    sized: Mutex<Option<Instant>>,
}

impl NbdDriver {
    /// An export that has not been looked at.
    pub fn new(address: NbdAddress, options: NbdOptions) -> Self {
        let session = Arc::new(Session::new(address, options));
        Self { session, relay: Arc::default(), sized: Mutex::new(None) }
    }

    /// An export of which is known what it is, so that nobody has to look at it first: a look may wait, which nobody
    /// may in a simulation.
    ///
    /// # Errors
    /// The address has a name that cannot be looked up, or the export cannot be a disk.
    pub fn known(address: NbdAddress, options: NbdOptions, info: ExportInfo) -> io::Result<Self> {
        let this = Self::new(address, options);
        this.session.resolve()?;
        this.session.admit(info).map_err(|refusal| io::Error::other(refusal.to_string()))?;
        Ok(this)
    }

    /// Asks the server what the export is.
    fn ask(&self) -> io::Result<ExportInfo> {
        let mut last = None;
        for target in self.session.resolve()? {
            match Stream::connect(&target, self.session.address.export(), Wanted::Info) {
                Ok((_, info)) => return Ok(info),
                Err(error) => last = Some(at(&target, &error)),
            }
        }
        Err(last.expect("there is an address at least"))
    }

    fn look_first(&self) -> io::Result<ExportInfo> {
        let info = self.ask().and_then(|info| match self.session.admit(info) {
            Ok(()) => Ok(info),
            Err(refusal) => Err(io::Error::other(refusal.to_string())),
        });
        info.inspect_err(|error| self.session.note_fault(&error.to_string()))
    }

    /// Looks at an export that was served, and perhaps still is.
    fn look_again(&self, info: ExportInfo) -> io::Result<ExportInfo> {
        let several = info.has(export::CAN_MULTI_CONN);
        if self.session.is_away() && !several {
            return self.wait_until_connected(info);
        }
        if several && (self.session.is_away() || self.is_to_be_sized()) {
            let before = self.session.fault();
            let now = self.ask().map_err(|error| match before {
                Some(fault) => io::Error::new(error.kind(), fault),
                None => error,
            })?;
            // The namespace goes on with what it has, as far as that is still there.
            if let Err(refusal) = self.session.admit(now) {
                tracing::error!(server = %self.session.address, %refusal, "an NBD export has changed");
            }
        }
        Ok(self.session.info().unwrap_or(info))
    }

    /// The only connection is to come back: nobody else may ask the server meanwhile.
    fn wait_until_connected(&self, info: ExportInfo) -> io::Result<ExportInfo> {
        // The name may have another address by now.
        self.session.resolve()?;
        let begun = Instant::now();
        while let Some(fault) = self.session.fault() {
            if begun.elapsed() >= RETURN_LIMIT {
                return Err(io::Error::new(io::ErrorKind::NotConnected, fault));
            }
            std::thread::sleep(RETURN_LOOK);
        }
        Ok(self.session.info().unwrap_or(info))
    }

    /// Whether the export is to be asked for its size now. Only one that allows several connections can be: another one
    /// may be unable to answer, or end because of it.
    fn is_to_be_sized(&self) -> bool {
        let mut sized = self.sized.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = sized.is_none_or(|at| at.elapsed() >= SIZE_INTERVAL);
        if is_due {
            *sized = Some(Instant::now());
        }
        is_due
    }
}

impl Driver for NbdDriver {
    fn name(&self) -> String {
        self.session.address.to_string()
    }

    fn look(&self) -> io::Result<Seen> {
        let info = match self.session.info() {
            None => self.look_first()?,
            Some(info) => self.look_again(info)?,
        };
        Ok(Seen::default().with_bytes(self.session.properties(&info).bytes))
    }

    fn fault(&self) -> Option<String> {
        self.session.fault()
    }

    fn details(&self) -> Vec<Detail> {
        self.session.details()
    }

    fn open(&self, reactor: &mut Reactor, tokens: DiskTokens) -> Result<Box<dyn BlockDevice>, OpenError> {
        let refused = |reason: String| OpenError::Device { name: self.name(), reason };
        let info = self.session.info().ok_or_else(|| refused("it has not been looked at".to_owned()))?;
        let relay = self.session.shares_connection(&info).then(|| Arc::clone(&self.relay));
        let link = Link::new(Arc::clone(&self.session), relay, tokens, reactor.now());
        let device = link.and_then(|link| NbdDevice::open(link, &info, reactor));
        Ok(Box::new(device.map_err(|error| refused(error.to_string()))?))
    }
}

/// The error with the server that it is about.
fn at(target: &Target, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the server at {target}: {error}"))
}
