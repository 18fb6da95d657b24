//! How to connect, and what to do when a connection is lost.

use std::time::Duration;

use ringfab_auth::KeyRole;

use crate::authentication::{Authentication, Key, Keys};
use crate::identity::HostIdentity;
use crate::tls::{Tls, TlsKey};
use crate::url::{Transport, Url};

/// Everything about one attached controller that its user decides.
///
/// ```
/// use std::time::Duration;
///
/// use ringfab_initiator::{ConnectOptions, HostIdentity, Url, Uuid};
///
/// # fn main() -> Result<(), ringfab_initiator::UrlError> {
/// let url: Url = "nvme+tcp://192.0.2.1/nqn.2026-01.org.example:disk?depth=64".parse()?;
/// let host = HostIdentity { nqn: "nqn.2026-01.org.example:me".to_owned(), id: Uuid::from_u128(1) };
/// let mut options = ConnectOptions::new(url, host);
/// options.queues = 4;
/// options.reconnect.fast_io_fail_timeout = Some(Duration::from_secs(5));
/// // What the address says wins over these.
/// assert_eq!((options.url.depth, options.depth), (Some(64), 128));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// Where it is; `queues`, `depth` and `keep_alive` there win over those here.
    pub url: Url,
    /// Further addresses of the same subsystem. Each is a path of its own, attached as the first one is. The first path
    /// that is ready is enough; the others are tried again as after a loss. See [`ConnectOptions::at`].
    pub further_urls: Vec<Url>,
    /// How several paths are used, and where more come from.
    pub paths: PathPolicy,
    /// Who we are.
    pub host: HostIdentity,
    /// How this host proves who it is, if it can; see docs/authentication.md.
    pub authentication: Option<Authentication>,
    /// The key for TLS, if there is one; see docs/tls.md.
    pub tls: Option<Tls>,
    /// Whether authentication makes the key for TLS (secure channel concatenation) when the address does not say. The
    /// admin queue authenticates in clear text then, and all queues are connected over TLS with the new key; one in
    /// `tls` is not used. Each connection makes another key.
    pub concatenation: bool,
    /// I/O queues to ask for when the address does not say.
    pub queues: u16,
    /// Commands outstanding per I/O queue when the address does not say, 1 to 1024.
    pub depth: u16,
    /// Keep-alive timeout when the address does not say; zero turns it off.
    pub keep_alive: Duration,
    /// Whether to stay connected to a discovery controller: with keep-alive, and with the events of its log page where
    /// it has them.
    pub persistent_discovery: bool,
    /// Requests that may wait beyond the depth of all queues.
    pub waiting_max: usize,
    /// Limits on how long things take.
    pub timeouts: Timeouts,
    /// What to do when the connection is lost.
    pub reconnect: ReconnectPolicy,
    /// How long commands that change blocks wait after the end of a lost connection, where nothing else says that the
    /// controller executes none of them any more; what the address says wins. `None`: as long as it takes until that
    /// is sure, see docs/failover.md. A shorter time risks that an older write undoes a
    /// newer one.
    pub replay_delay: Option<Duration>,
    /// What a test of a protection switches off.
    #[doc(hidden)]
    pub protections: Protections,
}

/// What protects data when paths are lost. A test that switches one off has to find what goes wrong then.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protections {
    /// Commands that change blocks wait until the lost controller executes none of them any more.
    pub hold_changes: bool,
}

impl Protections {
    /// All of them.
    pub const ALL: Self = Self { hold_changes: true };
}

impl ConnectOptions {
    /// The defaults for an address: one I/O queue of depth 128, keep-alive 10 s, 4096 waiting requests, and the keys
    /// that the address names. A `dhchap_controller_key` there is of use with a `dhchap_key` only. A file with all keys
    /// is another thing: [`ConnectOptions::read_keys`].
    pub fn new(url: Url, host: HostIdentity) -> Self {
        let controller = url.dhchap_controller_key.clone().map(Key::At);
        let keys = url.dhchap_key.clone().map(|source| Keys { host: Key::At(source), controller });
        let tls = url.tls_key.clone().map(|source| Tls::new(TlsKey::At(source)));
        Self {
            url,
            further_urls: Vec::new(),
            paths: PathPolicy::default(),
            host,
            authentication: keys.map(Authentication::new),
            tls,
            concatenation: false,
            queues: 1,
            depth: 128,
            keep_alive: Duration::from_secs(10),
            persistent_discovery: false,
            waiting_max: 4096,
            timeouts: Timeouts::default(),
            reconnect: ReconnectPolicy::default(),
            replay_delay: None,
            protections: Protections::ALL,
        }
    }

    /// Takes the keys that neither these options nor the address have from the file that the address names
    /// ([`Url::keys`]). It waits for the file system. The keys are read anew for each connection; which ones there are
    /// is seen now.
    ///
    /// # Errors
    /// Why it cannot be read, or what is wrong with it. The message has nothing of the keys.
    pub fn read_keys(&mut self) -> Result<(), String> {
        let Some(source) = &self.url.keys else { return Ok(()) };
        let keys = source.read_host_keys()?;
        let at = |role| keys.has(role).then(|| Key::At(source.clone()));
        if self.authentication.is_none()
            && let Some(host) = at(KeyRole::Host)
        {
            self.authentication =
                Some(Authentication::new(Keys { host, controller: at(KeyRole::Controller) }));
        }
        if self.tls.is_none() && keys.has(KeyRole::Tls) {
            self.tls = Some(Tls::new(TlsKey::At(source.clone())));
        }
        Ok(())
    }

    /// The same for another address of the subsystem, a path of its own. Keys that this address names are its own. What
    /// it does not say of the namespace, of queues, their depth and keep-alive is as the first address says.
    #[must_use]
    pub fn at(&self, url: Url) -> Self {
        let own = Self::new(url.clone(), self.host.clone());
        let first = &self.url;
        let url = Url {
            namespace: url.namespace.or(first.namespace),
            queues: url.queues.or(first.queues),
            depth: url.depth.or(first.depth),
            keep_alive_s: url.keep_alive_s.or(first.keep_alive_s),
            ..url
        };
        Self {
            url,
            further_urls: Vec::new(),
            authentication: own.authentication.or_else(|| self.authentication.clone()),
            tls: own.tls.or_else(|| self.tls.clone()),
            ..self.clone()
        }
    }

    /// Whether connections are over TLS: when the address says so, or there is a key or will be one, and the address
    /// does not say otherwise. Then none is made without, but the first one of concatenation.
    pub fn uses_tls(&self) -> bool {
        let has_key = self.tls.is_some() || self.concatenates();
        self.url.transport == Transport::Tcp && self.url.tls.unwrap_or(has_key)
    }

    /// Whether authentication makes the key for TLS: when the address says so, or [`ConnectOptions::concatenation`]
    /// does and the address has no other key and is not for clear text.
    ///
    /// A discovery controller makes one only if it demands that. What it says is checked where it leads to.
    pub fn concatenates(&self) -> bool {
        let wanted = self.url.concatenation.unwrap_or(self.concatenation && self.url.tls_key.is_none());
        wanted && self.url.transport == Transport::Tcp && self.url.tls != Some(false)
    }

    /// I/O queues to ask for, 1 to 128.
    pub(crate) fn queues_wanted(&self) -> u16 {
        self.url.queues.unwrap_or(self.queues).clamp(1, 128)
    }

    /// Commands outstanding per I/O queue, 1 to 1024.
    pub(crate) fn depth_wanted(&self) -> u16 {
        self.url.depth.unwrap_or(self.depth).clamp(1, 1024)
    }

    /// How long changes wait after a loss where nothing else says that what was sent before is over; `None` for the
    /// rule.
    pub(crate) fn replay_delay_wanted(&self) -> Option<Duration> {
        self.url.replay_delay_ms.map(|ms| Duration::from_millis(ms.into())).or(self.replay_delay)
    }

    /// Keep-alive timeout; zero for off. A discovery controller that is only asked once is not kept.
    pub(crate) fn keep_alive_wanted(&self) -> Duration {
        if self.url.is_discovery() && !self.persistent_discovery {
            return Duration::ZERO;
        }
        self.url.keep_alive_s.map_or(self.keep_alive, |seconds| Duration::from_secs(seconds.into()))
    }
}

/// How several paths to one subsystem are used, and where more of them come from.
///
/// Access states decide first, as the controllers tell them (ANA): optimized paths, or else those that are not. Among
/// equal ones the chooser does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathPolicy {
    /// Which of the best paths has the next command.
    pub chooser: PathChooser,
    /// How long a path that was lost must be well before it is used again, while another one can be: a path that comes
    /// and goes hurts nobody so.
    pub well_for: Duration,
    /// Whether each address of a name is a path. Names are looked up once then.
    pub all_addresses: bool,
    /// Whether a discovery controller is to be asked for more paths. The engine does not:
    /// [`discovery::PathDiscovery`](crate::discovery::PathDiscovery) does.
    pub discover: bool,
}

impl PathPolicy {
    /// Round robin, five seconds, the addresses that are given.
    pub const DEFAULT: Self = Self {
        chooser: PathChooser::RoundRobin,
        well_for: Duration::from_secs(5),
        all_addresses: false,
        discover: false,
    };
}

impl Default for PathPolicy {
    /// [`PathPolicy::DEFAULT`].
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Which of the best paths has the next command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathChooser {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest commands without an answer.
    LeastOutstanding,
    /// Always the same one, until it is lost.
    OneInUse,
}

impl PathChooser {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::RoundRobin, Self::LeastOutstanding, Self::OneInUse];

    /// Its name in options and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::LeastOutstanding => "least-outstanding",
            Self::OneInUse => "one-in-use",
        }
    }
}

impl std::fmt::Display for PathChooser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for PathChooser {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|chooser| chooser.name() == text);
        let names = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("`{text}` is no way to choose a path: {}", names()))
    }
}

/// Limits on how long things take. All must be longer than zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// Host name to address.
    pub resolve: Duration,
    /// One connection, TCP and MPA together.
    pub connect: Duration,
    /// An admin command.
    pub admin: Duration,
    /// An I/O command, before it is aborted; and again this long before the connection is given up for lost.
    pub io: Duration,
    /// Orderly shutdown, all of it.
    pub shutdown: Duration,
    /// Attaching, all of its steps, from the address to the last namespace. The controller's own time to become ready
    /// (CAP.TO) comes on top, and a quarter of a second for each namespace.
    pub attach: Duration,
}

impl Default for Timeouts {
    /// Resolve 5 s, connect 5 s, admin 15 s, I/O 30 s, shutdown 10 s, attach 60 s.
    fn default() -> Self {
        Self {
            resolve: Duration::from_secs(5),
            connect: Duration::from_secs(5),
            admin: Duration::from_secs(15),
            io: Duration::from_secs(30),
            shutdown: Duration::from_secs(10),
            attach: Duration::from_secs(60),
        }
    }
}

/// What happens between the loss of a controller and its return, and to commands that are told to come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReconnectPolicy {
    /// Delay before the first attempt.
    pub delay: Duration,
    /// Each further delay is longer by this factor, in percent: 200 doubles it.
    pub factor_percent: u32,
    /// No delay is longer.
    pub delay_max: Duration,
    /// Give the controller up this long after its loss; `None` never does. A controller that comes back and answers no
    /// command is still lost.
    pub controller_loss_timeout: Option<Duration>,
    /// Fail outstanding and new I/O this long after the loss of each path, while reconnecting goes on; `None` lets it
    /// wait.
    pub fast_io_fail_timeout: Option<Duration>,
    /// How often a command is tried again that was answered with a status that allows it.
    pub retries: u8,
}

impl ReconnectPolicy {
    /// First after 0.5 s, then doubling up to 10 s, given up after 10 minutes; I/O waits. Five retries.
    pub const DEFAULT: Self = Self {
        delay: Duration::from_millis(500),
        factor_percent: 200,
        delay_max: Duration::from_secs(10),
        controller_loss_timeout: Some(Duration::from_secs(600)),
        fast_io_fail_timeout: None,
        retries: 5,
    };

    /// The same policy, with another delay before the first attempt.
    #[must_use]
    pub const fn with_delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// The same policy, with another time after which a controller is given up.
    #[must_use]
    pub const fn with_controller_loss_timeout(self, timeout: Option<Duration>) -> Self {
        Self { controller_loss_timeout: timeout, ..self }
    }

    /// The same policy, with another time after which I/O fails.
    #[must_use]
    pub const fn with_fast_io_fail_timeout(self, timeout: Option<Duration>) -> Self {
        Self { fast_io_fail_timeout: timeout, ..self }
    }
}

impl Default for ReconnectPolicy {
    /// [`ReconnectPolicy::DEFAULT`].
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use ringfab_auth::KeySource;
    use uuid::Uuid;

    use super::*;

    fn options(text: &str) -> ConnectOptions {
        let host = HostIdentity { nqn: "nqn.2026-01.org.example:me".to_owned(), id: Uuid::from_u128(1) };
        ConnectOptions::new(format!("nvme+tcp://192.0.2.1/a{text}").parse().expect("an address"), host)
    }

    #[test]
    fn keys_that_an_address_names_are_used() {
        let at = |path: &str| KeySource::File(path.into());
        let named = options("?dhchap_key=file:/h&dhchap_controller_key=file:/c&tls_key=file:/t");
        assert_eq!(named.tls, Some(Tls::new(TlsKey::At(at("/t")))));
        assert!(named.uses_tls() && !options("?tls=off&tls_key=file:/t").uses_tls());
        assert!(!named.concatenates());
        let keys = named.authentication.expect("keys").keys;
        assert_eq!((keys.host, keys.controller), (Key::At(at("/h")), Some(Key::At(at("/c")))));
        let none = options("");
        assert!(none.authentication.is_none() && none.tls.is_none() && !none.uses_tls());
    }

    #[test]
    fn concatenation_is_asked_for_by_the_address_or_else_by_the_option() {
        let rows = [
            ("", false, false),
            ("", true, true),
            ("?concat=on", false, true),
            ("?concat=off", true, false),
            ("?tls=off", true, false),
            ("?tls=on", true, true),
            ("?tls_key=file:/t", true, false),
        ];
        for (address, option, expected) in rows {
            let mut options = options(address);
            options.concatenation = option;
            assert_eq!(options.concatenates(), expected, "{address}, {option}");
            assert_eq!(options.uses_tls(), expected || address.contains("tls_key"), "{address}, {option}");
        }
    }

    #[test]
    fn a_file_with_all_keys_says_who_this_host_is_and_what_nothing_else_says() {
        use std::os::unix::fs::PermissionsExt as _;

        const DHCHAP: &str = "DHHC-1:00:ycnJycnJycnJycnJycnJycnJycnJycnJycnJycnJyclx132H:";
        const TLS: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("host.keys");
        let write = |text: &str| {
            std::fs::write(&path, format!("host = \"nqn.2026-01.org.example:me\"\n{text}")).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("for few eyes");
        };
        let address = format!("?keys={}", path.display());
        let at = || KeySource::File(path.clone());
        write(&format!("dhchap_key = \"{DHCHAP}\"\ntls_key = \"{TLS}\"\n"));
        let mut all = options(&address);
        all.read_keys().expect("keys");
        assert_eq!(all.tls, Some(Tls::new(TlsKey::At(at()))));
        let keys = all.authentication.expect("keys").keys;
        assert_eq!((keys.host.clone(), keys.controller), (Key::At(at()), None));
        assert!(keys.host.get(KeyRole::Host).is_ok() && all.tls.expect("a key").key.get().is_ok());
        let mut some = options(&format!("{address}&tls_key=file:/t"));
        some.read_keys().expect("keys");
        assert_eq!(some.tls, Some(Tls::new(TlsKey::At(KeySource::File("/t".into())))));
        let url =
            |more: &str| format!("nvme+tcp://192.0.2.1/a{address}{more}").parse::<Url>().expect("an address");
        assert_eq!(url("").to_string().parse::<Url>().expect("the same"), url(""));
        let me = HostIdentity::for_url(&url("")).expect("a name");
        assert_eq!(me.nqn, "nqn.2026-01.org.example:me");
        let other = url("&hostnqn=nqn.2026-01.org.example:other");
        let refused = HostIdentity::for_url(&other).expect_err("another host").to_string();
        assert!(refused.contains("are those of \"nqn.2026-01.org.example:me\""), "{refused}");
        write("dhchap_key = 1\n");
        let refused = options(&address).read_keys().expect_err("no key");
        assert!(refused.contains("host.keys: line 2: "), "{refused}");
    }
}
