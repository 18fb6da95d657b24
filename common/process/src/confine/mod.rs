//! A process gives up, for good, what it does not need: new privileges, capabilities, files, ports, other processes and
//! system calls.
//!
//! Each layer works where the kernel has it. Where it does not, or does not wholly, the [`Layer`] says so. Nothing here
//! ends a program: whoever asked decides what a missing layer means.
//!
//! A layer must hold for every thread, because threads share their memory: code in one that is confined can change
//! what another one does. So [`confine`] is called before the program starts its threads. There are two by then: the
//! system's first one and the program's own ([`stack::run`](crate::stack::run)). It waits a moment for others that are
//! about to end, and says how many have not.

mod capabilities;
mod landlocked;
mod system_calls;
mod threads;

use std::fmt;
use std::os::fd::OwnedFd;

use serde::Serialize;

pub use capabilities::{Capabilities, held as held_capabilities};
pub use system_calls::allowed_names as allowed_system_calls;

/// What may be done with a file, or with all below a folder. Nothing is ever executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    Read,
    /// Reading and writing what is there, and the controls of devices.
    Use,
    /// The same, and making and removing files and sockets.
    Manage,
}

/// A file or folder that stays in reach.
#[derive(Debug)]
pub struct Rule {
    /// Where: opened with `O_PATH`, so that it stays the same whatever its name becomes.
    pub place: OwnedFd,
    /// What for.
    pub access: Access,
}

/// TCP ports that stay in reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Those that it may listen on.
    pub listen: Vec<u16>,
    /// Those that it may connect to, on any machine.
    pub connect: Connect,
}

/// Where a program may connect to over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connect {
    /// These ports.
    To(Vec<u16>),
    /// Any port, because nobody knows which it will be.
    Anywhere,
}

impl Default for Connect {
    /// Nowhere.
    fn default() -> Self {
        Self::To(Vec::new())
    }
}

/// What a program keeps.
#[derive(Debug)]
pub struct Plan {
    /// The capabilities that it keeps, of those that it has; none to leave them alone.
    pub capabilities: Option<Capabilities>,
    /// The files that it keeps; none to leave them alone.
    pub files: Option<Vec<Rule>>,
    /// The TCP ports that it keeps; none to leave them alone.
    pub ports: Option<Ports>,
    /// Whether it loses signals to other processes.
    pub signals: bool,
    /// Whether it loses abstract Unix sockets of other processes.
    pub abstract_sockets: bool,
    /// Whether it loses system calls that it does not need.
    pub system_calls: bool,
}

/// A part of the confinement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layer {
    /// Which: `privileges`, `capabilities`, `files`, `network`, `processes` or `system_calls`.
    pub layer: &'static str,
    /// How it is.
    pub state: State,
    /// Why it does not simply hold.
    pub reason: Option<String>,
}

/// How a part of the confinement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It holds for all threads.
    Holds,
    /// Something of it does not.
    Partly,
    /// The kernel has not got it, or refuses.
    Missing,
    /// Nobody wants it.
    Off,
}

impl Layer {
    /// One that holds.
    pub const fn holds(layer: &'static str) -> Self {
        Self { layer, state: State::Holds, reason: None }
    }

    /// One of which something is missing.
    pub fn partly(layer: &'static str, reason: impl Into<String>) -> Self {
        Self { layer, state: State::Partly, reason: Some(reason.into()) }
    }

    /// One that is missing.
    pub fn missing(layer: &'static str, reason: impl Into<String>) -> Self {
        Self { layer, state: State::Missing, reason: Some(reason.into()) }
    }

    /// One that nobody wants.
    pub fn off(layer: &'static str, reason: impl Into<String>) -> Self {
        Self { layer, state: State::Off, reason: Some(reason.into()) }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "holds",
            Self::Partly => "partly",
            Self::Missing => "missing",
            Self::Off => "off",
        })
    }
}

/// Why a layer is off that nobody asked for.
const CONFIGURED: &str = "the configuration says so";

/// Confines the process, which has started no thread of its own yet. Says of each layer how it is.
pub fn confine(plan: &Plan) -> Vec<Layer> {
    let others = threads::wait_for_others();
    let mut layers = vec![privileges(others)];
    layers.push(match plan.capabilities {
        Some(keep) => capabilities::drop_all_but(keep, others),
        None => Layer::off("capabilities", CONFIGURED),
    });
    layers.extend(landlocked::restrict(plan, others));
    layers.push(if plan.system_calls {
        system_calls::restrict()
    } else {
        Layer::off("system_calls", CONFIGURED)
    });
    layers
}

/// What this kernel has of each part that not all kernels have. Tried on a thread that ends then: the process keeps
/// everything.
pub fn available() -> Vec<Layer> {
    let everything = Plan {
        capabilities: None,
        files: Some(Vec::new()),
        ports: Some(Ports::default()),
        signals: true,
        abstract_sockets: true,
        system_calls: true,
    };
    let tried = std::thread::spawn(move || landlocked::restrict_this_thread(&everything)).join();
    let mut layers = tried.map_or_else(|_| Vec::new(), Vec::from);
    layers.push(system_calls::available());
    layers
}

/// Takes away what only the start of the program needs: more rings, and another filter. All threads lose it, also
/// those that run already. Does nothing where the layer of system calls is not wanted.
///
/// # Errors
/// What the kernel refuses.
pub fn seal() -> Result<(), String> {
    system_calls::seal()
}

/// No program that this one could start has more privileges than it has. The other layers need this.
fn privileges(others: usize) -> Layer {
    let outcomes = threads::on_each(|| rustix::thread::set_no_new_privs(true));
    match outcomes.into_iter().find_map(Result::err) {
        Some(error) => Layer::missing("privileges", error.to_string()),
        None => threads::all_or_partly("privileges", others),
    }
}
