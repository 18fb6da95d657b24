//! Events that repeat are folded: the first few are shown, the others are counted.
//!
//! Two events are alike when they come from the same place of the program and are about the same peer: the same address
//! (without its port; with IPv6 the /64 network), host, subsystem, namespace, device or file. So a loud peer hides no
//! other.
//!
//! Everything is bounded. An address that comes with ever new names has one entry for most of them, so that these
//! leave room for other addresses. When there are too many, the others share one entry for each place of the program.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, RandomState};
use std::fmt::{self, Write as _};
use std::hash::{BuildHasher as _, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};

/// The name of an event that is a line of its own however often it comes: what an administrator asks for and what
/// becomes of it, and the start and end of the service. Nothing that a peer can cause bears it.
///
/// ```
/// use ringfab_process::log::NEVER_FOLDED;
///
/// tracing::info!(name: NEVER_FOLDED, request = "host allow", "a change is asked for");
/// ```
pub const NEVER_FOLDED: &str = "never folded";

/// Events of a kind that are shown within a [`PERIOD`].
const SHOWN_MAX: u32 = 5;
const PERIOD: Duration = Duration::from_secs(60);

/// How often it is told how many were folded.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Peers that are told apart at one place of the program. All others share one entry, of which more is shown.
const KEYS_MAX: usize = 32;

/// What is told apart of one address: so many names, and all others of it together.
const NAMES_MAX: usize = 3;
const OTHERS_SHOWN_MAX: u32 = 20;

/// The longest description of a kind of event.
const DESCRIPTION_BYTES_MAX: usize = 512;

/// Fields that say whom an event is about.
const KEYS: [&str; 9] =
    ["peer", "address", "host", "subsystem", "nqn", "nsid", "device", "path", "processor"];

/// What becomes of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is logged.
    Show,
    /// It is counted.
    Fold,
    /// It is the first that is counted, and shall be described at this place.
    FoldFirst(Place),
}

/// An entry, by the place of the program and by whom its events are about.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    site: Identifier,
    key: Option<Key>,
}

/// Whom an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    /// The address that it names.
    address: Option<u64>,
    /// All that it names. None: many names of one address.
    names: Option<u64>,
}

/// All kinds of events that were seen.
#[derive(Debug)]
pub(super) struct Folds {
    hasher: RandomState,
    /// By the place of the program, of which there are only so many. Held for a few comparisons, and never while
    /// anything is formatted or written.
    sites: Mutex<HashMap<Identifier, Site>>,
}

/// A place of the program that logs.
#[derive(Debug)]
struct Site {
    metadata: &'static Metadata<'static>,
    entries: Vec<Entry>,
    others: Entry,
}

/// Events of one kind, about one peer.
#[derive(Debug)]
struct Entry {
    key: Option<Key>,
    shown: u32,
    period_begin: Instant,
    told_at: Instant,
    folded: u64,
    description: Option<String>,
}

/// How many events of a kind were folded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) level: Level,
    pub(super) target: &'static str,
    pub(super) text: String,
}

impl Folds {
    pub(super) fn new() -> Self {
        Self { hasher: RandomState::new(), sites: Mutex::default() }
    }

    /// What becomes of an event.
    pub(super) fn judge(&self, event: &Event<'_>, now: Instant) -> Verdict {
        let mut fields =
            KeyFields { new: &self.hasher, hasher: self.hasher.build_hasher(), address: None, found: false };
        event.record(&mut fields);
        let key = fields.found.then(|| Key { address: fields.address, names: Some(fields.hasher.finish()) });
        self.judge_key(event.metadata(), key, now)
    }

    fn judge_key(&self, metadata: &'static Metadata<'static>, key: Option<Key>, now: Instant) -> Verdict {
        let site = metadata.callsite();
        let mut sites = self.lock();
        let entry =
            sites.entry(metadata.callsite()).or_insert_with(|| Site::new(metadata, now)).entry(key, now);
        if entry.is_shown(now) {
            return Verdict::Show;
        }
        entry.folded += 1;
        if entry.folded > 1 { Verdict::Fold } else { Verdict::FoldFirst(Place { site, key: entry.key }) }
    }

    /// Says what the events of an entry are.
    pub(super) fn describe(&self, place: &Place, mut text: String) {
        if text.len() > DESCRIPTION_BYTES_MAX {
            text.truncate(text.floor_char_boundary(DESCRIPTION_BYTES_MAX));
            text.push('…');
        }
        if let Some(entry) = self.lock().get_mut(&place.site).and_then(|site| site.find(place.key)) {
            entry.description = Some(text);
        }
    }

    /// What is to be told now, and when there is more. With `all`, everything that was not told yet.
    pub(super) fn summaries(&self, now: Instant, all: bool) -> (Vec<Summary>, Option<Instant>) {
        let (mut summaries, mut next) = (Vec::new(), None::<Instant>);
        for site in self.lock().values_mut() {
            let metadata = site.metadata;
            for entry in site.entries.iter_mut().chain([&mut site.others]).filter(|entry| entry.folded > 0) {
                let due = entry.told_at + TOLD_EVERY;
                if all || now >= due {
                    summaries.push(entry.summary(metadata, now));
                } else {
                    next = Some(next.map_or(due, |next| next.min(due)));
                }
            }
        }
        (summaries, next)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Identifier, Site>> {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Site {
    fn new(metadata: &'static Metadata<'static>, now: Instant) -> Self {
        Self { metadata, entries: Vec::new(), others: Entry::new(None, now) }
    }

    /// The entry of a key: its own, or that of its address, or one that has had nothing to tell for a while, or that of
    /// all others.
    fn entry(&mut self, key: Option<Key>, now: Instant) -> &mut Entry {
        let Some(key) = key else { return &mut self.others };
        let find = |this: &Self, key| this.entries.iter().position(|entry| entry.key == Some(key));
        let index = find(self, key).or_else(|| {
            let key = if self.has_many_names(key.address, now) { Key { names: None, ..key } } else { key };
            find(self, key).or_else(|| self.make(Some(key), now))
        });
        match index {
            Some(index) => &mut self.entries[index],
            None => &mut self.others,
        }
    }

    fn has_many_names(&self, address: Option<u64>, now: Instant) -> bool {
        let counts = |entry: &Entry, key: Key| {
            key.address == address && key.names.is_some() && !(entry.folded == 0 && entry.is_over(now))
        };
        let names = self.entries.iter().filter(|entry| entry.key.is_some_and(|key| counts(entry, key)));
        address.is_some() && names.count() >= NAMES_MAX
    }

    fn make(&mut self, key: Option<Key>, now: Instant) -> Option<usize> {
        if self.entries.len() < KEYS_MAX {
            self.entries.push(Entry::new(key, now));
            return Some(self.entries.len() - 1);
        }
        let stale = self.entries.iter().position(|entry| entry.folded == 0 && entry.is_over(now))?;
        self.entries[stale] = Entry::new(key, now);
        Some(stale)
    }

    fn find(&mut self, key: Option<Key>) -> Option<&mut Entry> {
        if key.is_none() {
            return Some(&mut self.others);
        }
        self.entries.iter_mut().find(|entry| entry.key == key)
    }
}

impl Entry {
    fn new(key: Option<Key>, now: Instant) -> Self {
        Self { key, shown: 0, period_begin: now, told_at: now, folded: 0, description: None }
    }

    fn is_over(&self, now: Instant) -> bool {
        now >= self.period_begin + PERIOD
    }

    /// Whether one more is shown, which counts it.
    fn is_shown(&mut self, now: Instant) -> bool {
        if self.folded == 0 && self.is_over(now) {
            (self.shown, self.period_begin) = (0, now);
        }
        let is_one = self.key.is_some_and(|key| key.names.is_some());
        let shown_max = if is_one { SHOWN_MAX } else { OTHERS_SHOWN_MAX };
        let shows = self.folded == 0 && self.shown < shown_max;
        if shows {
            self.shown += 1;
            self.told_at = now;
        }
        shows
    }

    fn summary(&mut self, metadata: &'static Metadata<'static>, now: Instant) -> Summary {
        let folded = std::mem::take(&mut self.folded);
        let seconds = (now - self.told_at).as_secs().max(1);
        self.told_at = now;
        let what = self.description.take().unwrap_or_else(|| metadata.name().to_owned());
        let text = format!("{what} … {} more like this within {seconds} s", thousands(folded));
        Summary { level: *metadata.level(), target: metadata.target(), text }
    }
}

/// Hashes the fields that say whom an event is about, without keeping them.
struct KeyFields<'a> {
    new: &'a RandomState,
    hasher: DefaultHasher,
    address: Option<u64>,
    found: bool,
}

impl Visit for KeyFields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let name = field.name();
        if !KEYS.contains(&name) {
            return;
        }
        self.found = true;
        self.hasher.write(name.as_bytes());
        if matches!(name, "peer" | "address") {
            let mut text = Short::default();
            // What does not fit is no address, and its beginning will do.
            let _cut = write!(text, "{value:?}");
            let mut hasher = self.new.build_hasher();
            hasher.write_address(text.as_str());
            let address = hasher.finish();
            self.address = Some(address);
            self.hasher.write_u64(address);
        } else {
            write!(Hashing(&mut self.hasher), "{value:?}").expect("a hasher takes everything");
        }
    }
}

trait WriteAddress: Hasher {
    /// An address without its port; of IPv6 the network, since a host has all addresses of that, but for the one of a
    /// link, which all have there.
    fn write_address(&mut self, text: &str) {
        match text.trim_matches('"').parse::<SocketAddr>().map(|address| address.ip().to_canonical()) {
            Ok(IpAddr::V4(address)) => self.write(&address.octets()),
            Ok(IpAddr::V6(address)) if address.is_unicast_link_local() => self.write(&address.octets()),
            Ok(IpAddr::V6(address)) => self.write(&address.octets()[..8]),
            Err(_) => self.write(text.as_bytes()),
        }
    }
}

impl<H: Hasher> WriteAddress for H {}

struct Hashing<'a, H>(&'a mut H);

impl<H: Hasher> fmt::Write for Hashing<'_, H> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.0.write(part.as_bytes());
        Ok(())
    }
}

/// A text of an address without an allocation.
struct Short {
    bytes: [u8; SHORT_BYTES],
    length: usize,
}

/// The longest address with its scope and port has 58 bytes.
const SHORT_BYTES: usize = 64;

impl Default for Short {
    fn default() -> Self {
        Self { bytes: [0; SHORT_BYTES], length: 0 }
    }
}

impl Short {
    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl fmt::Write for Short {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let taken = part.len().min(SHORT_BYTES - self.length);
        self.bytes[self.length..self.length + taken].copy_from_slice(&part.as_bytes()[..taken]);
        self.length += taken;
        if taken == part.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// 1234567 as 1,234,567.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use tracing::Callsite as _;
    use tracing::callsite::DefaultCallsite;
    use tracing::field::FieldSet;
    use tracing::metadata::Kind;

    use super::*;

    static CALLSITE: DefaultCallsite = DefaultCallsite::new(&METADATA);
    static METADATA: Metadata<'static> = Metadata::new(
        "event",
        "part",
        Level::WARN,
        None,
        None,
        None,
        FieldSet::new(&["message"], Identifier(&CALLSITE)),
        Kind::EVENT,
    );

    fn key(names: u64) -> Option<Key> {
        Some(Key { address: None, names: Some(names) })
    }

    #[test]
    fn a_kind_is_shown_again_a_minute_later_and_counted_meanwhile() {
        let (folds, begin) = (Folds::new(), Instant::now());
        let metadata = CALLSITE.metadata();
        let mut shown = 0;
        let mut told = 0;
        for second in 0..59 {
            let now = begin + Duration::from_secs(second);
            shown += u32::from(folds.judge_key(metadata, key(1), now) == Verdict::Show);
            told += folds.summaries(now, false).0.len();
        }
        assert_eq!(shown, SHOWN_MAX);
        assert_eq!(told, 5, "one line each ten seconds");
        let (rest, _) = folds.summaries(begin + Duration::from_secs(69), false);
        assert_eq!(rest.len(), 1);
        assert_eq!(folds.judge_key(metadata, key(1), begin + Duration::from_secs(70)), Verdict::Show);
    }

    #[test]
    fn a_number_has_its_digits_in_groups() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn an_address_is_the_same_with_another_port_or_of_the_same_network() {
        let folds = Folds::new();
        let hash = |text: &str| {
            let mut hasher = folds.hasher.build_hasher();
            hasher.write_address(text);
            hasher.finish()
        };
        assert_eq!(hash("192.0.2.1:1"), hash("192.0.2.1:2"));
        assert_ne!(hash("192.0.2.1:1"), hash("192.0.2.2:1"));
        assert_eq!(hash("[2001:db8::1]:1"), hash("[2001:db8::2]:2"));
        assert_ne!(hash("[2001:db8::1]:1"), hash("[2001:db8:0:1::1]:1"));
        assert_eq!(hash("[fe80::1%2]:1"), hash("[fe80::1%2]:2"));
        assert_ne!(hash("[fe80::1%2]:1"), hash("[fe80::2%2]:1"), "two machines of a link");
        assert_eq!(hash("[::ffff:192.0.2.1]:1"), hash("192.0.2.1:2"));
    }
}
