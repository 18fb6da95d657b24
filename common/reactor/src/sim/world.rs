//! The handle of a world, for whoever drives it.

use std::cell::RefCell;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::disk::{Disk, DiskFaults};
use super::disk_ops::assert_whole_sectors;
use super::net::{Direction, LinkFaults};
use super::state::State;
use super::{HostId, Port};
use crate::Time;

/// Hosts, links, disks and a clock, all from one seed. Cheap to clone; every clone is the same world.
///
/// Its driver turns the reactors until none has anything to do ([`World::has_ready`]), then lets time pass
/// ([`World::advance`]). A path, host or range that does not exist is an error of the driver and panics.
#[derive(Clone)]
pub struct World(Rc<RefCell<State>>);

impl World {
    /// An empty world at one second after the epoch.
    pub fn new(seed: u64) -> Self {
        Self(Rc::new(RefCell::new(State::new(seed))))
    }

    /// Adds a host and gives it an address.
    pub fn add_host(&self, name: &str) -> HostId {
        self.0.borrow_mut().machines.add_host(name)
    }

    /// Gives a host one more address. What is returned stands for this way to it, in links and for its address; the
    /// links of its other addresses are others. It is no host: disks and cores are the host's.
    pub fn add_way(&self, host: HostId, name: &str) -> HostId {
        self.0.borrow_mut().machines.add_way(host, name)
    }

    /// A new core of a host.
    pub(crate) fn port(&self, host: HostId) -> Port {
        Port::new(Rc::clone(&self.0), host)
    }

    /// The address of a host. Every host also reaches itself by the loopback addresses.
    pub fn address(&self, host: HostId) -> IpAddr {
        self.0.borrow().machines.hosts[host.0 as usize].address
    }

    /// The address of a host with a port number.
    pub fn socket_address(&self, host: HostId, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(host), port)
    }

    /// What a host was named.
    pub fn host_name(&self, host: HostId) -> String {
        self.0.borrow().machines.hosts[host.0 as usize].name.clone()
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.0.borrow().machines.core.now
    }

    /// Moves the clock to the next event (an arrival, the end of a disk operation, a timer of any port) and lets
    /// it happen. Returns false when nothing is left to happen and no port has anything to collect.
    pub fn advance(&self) -> bool {
        self.0.borrow_mut().advance(Time::MAX)
    }

    /// As [`World::advance`], but not beyond `limit`: when nothing happens before, the clock goes there, and
    /// the answer is false unless a port has something to collect.
    pub fn advance_until(&self, limit: Time) -> bool {
        let mut state = self.0.borrow_mut();
        let happened = state.advance(limit);
        if !happened {
            state.machines.core.now = state.machines.core.now.max(limit);
        }
        happened
    }

    /// Whether a turn of some port would collect something now.
    pub fn has_ready(&self) -> bool {
        self.0.borrow().machines.has_ready()
    }

    /// A random number below `bound`, which is not zero, from the world's own generator.
    pub fn random_below(&self, bound: u64) -> u64 {
        self.0.borrow_mut().machines.core.below(bound)
    }

    /// A random number of 64 bits.
    pub fn random(&self) -> u64 {
        self.0.borrow_mut().machines.core.next_u64()
    }

    /// True with this probability.
    pub fn chance(&self, probability: f64) -> bool {
        self.0.borrow_mut().machines.core.chance(probability)
    }

    /// A hash over everything that has happened: two runs of one seed agree on it at every step.
    pub fn trace_hash(&self) -> u64 {
        self.0.borrow().machines.core.trace()
    }

    /// Sets the behaviour of every link that has none of its own.
    pub fn set_default_link(&self, faults: LinkFaults) {
        self.0.borrow_mut().net.default_link = faults;
    }

    /// Sets the behaviour of the link between two hosts, in both directions, from now on.
    pub fn set_link(&self, a: HostId, b: HostId, faults: LinkFaults) {
        self.0.borrow_mut().net.link(a, b).faults = Some(faults);
    }

    /// Resets every connection between two hosts. What is on its way may be lost.
    pub fn cut_links(&self, a: HostId, b: HostId) {
        let state = &mut *self.0.borrow_mut();
        state.net.cut_links(&mut state.machines, a, b);
    }

    /// The first of two hosts gives up every connection to the second, which has not answered for too long. The second
    /// learns of it as late as their link is, and takes until then what is on its way.
    pub fn time_out_links(&self, from: HostId, to: HostId) {
        let state = &mut *self.0.borrow_mut();
        state.net.time_out_links(&mut state.machines, from, to);
    }

    /// Stalls everything between two hosts, silently, or ends that: what was stalled then arrives.
    pub fn partition(&self, a: HostId, b: HostId, partitioned: bool) {
        self.partition_one_way(a, b, partitioned);
        self.partition_one_way(b, a, partitioned);
    }

    /// The same for what one of them sends to the other. What comes back still arrives.
    pub fn partition_one_way(&self, from: HostId, to: HostId, partitioned: bool) {
        let state = &mut *self.0.borrow_mut();
        state.net.partition(&mut state.machines, Direction { from, to }, partitioned);
    }

    /// How many connections the world knows of, those on their way out included.
    pub fn connections(&self) -> usize {
        self.0.borrow().net.connections.len()
    }

    /// From now on a message to a core of this host is on its way for a time between these. Those for one mailbox stay
    /// in order. What a core sends to itself arrives at once.
    pub fn set_mailbox_delay(&self, host: HostId, delay_min: Duration, delay_max: Duration) {
        self.0.borrow_mut().machines.hosts[host.0 as usize].mailbox_delay = (delay_min, delay_max);
    }

    /// Gives a host a disk of `bytes` zeroes at a path. Sizes are whole sectors of 512 bytes.
    pub fn add_disk(&self, host: HostId, path: impl AsRef<Path>, bytes: u64, faults: DiskFaults) {
        assert_whole_sectors(bytes, faults.alignment);
        let mut state = self.0.borrow_mut();
        let path = path.as_ref().to_owned();
        assert!(state.disks.find(host, &path).is_none(), "one disk at a path");
        state.disks.disks.push(Disk::new(host, path, bytes, faults));
    }

    /// Gives another host the same disk, at a path of its own. It does not lose power with any of them from then on.
    pub fn share_disk(&self, from: (HostId, &Path), with: (HostId, &Path)) {
        assert!(self.0.borrow().disks.find(with.0, with.1).is_none(), "one disk at a path");
        self.with_disk(from.0, from.1, |disk| disk.places.push((with.0, with.1.to_owned())));
    }

    /// Changes the behaviour of a disk from now on.
    pub fn set_disk_faults(&self, host: HostId, path: impl AsRef<Path>, faults: DiskFaults) {
        self.with_disk(host, path.as_ref(), |disk| {
            assert_whole_sectors(disk.bytes, faults.alignment);
            disk.faults = faults;
        });
    }

    /// From now on a disk can be opened so many times, and then fails with `EMFILE`; or always.
    pub fn set_opens_left(&self, host: HostId, path: impl AsRef<Path>, opens_left: Option<u32>) {
        self.with_disk(host, path.as_ref(), |disk| disk.opens_left = opens_left);
    }

    /// How often a disk is open now.
    pub fn open_files(&self, host: HostId, path: impl AsRef<Path>) -> usize {
        let state = self.0.borrow();
        let index = state.disks.find(host, path.as_ref()).expect("a disk of this host");
        let files = state.machines.ports.iter().flat_map(|port| port.files.values());
        files.filter(|file| file.disk == index).count()
    }

    /// What a reader of the disk would see now.
    pub fn read_disk(&self, host: HostId, path: impl AsRef<Path>, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.with_disk(host, path.as_ref(), |disk| disk.read(offset, &mut bytes));
        bytes
    }

    /// What would be left on the disk if a crash lost everything that it may.
    pub fn read_stable(&self, host: HostId, path: impl AsRef<Path>, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.with_disk(host, path.as_ref(), |disk| disk.read_stable(offset, &mut bytes));
        bytes
    }

    /// Puts bytes on a disk, stable at once, for the start of a test.
    pub fn fill_disk(&self, host: HostId, path: impl AsRef<Path>, offset: u64, bytes: &[u8]) {
        self.with_disk(host, path.as_ref(), |disk| {
            disk.write(offset, bytes, || true);
            disk.settle_range(offset, bytes.len());
        });
    }

    /// What a disk was given and not told to sync cannot be written back, and is lost. Each file that is open there
    /// says so once, with its next sync.
    pub fn fail_write_back(&self, host: HostId, path: impl AsRef<Path>) {
        self.with_disk(host, path.as_ref(), Disk::fail_write_back);
    }

    /// The power of a host goes. Its ports are dead, with everything in flight on them; its peers are reset after
    /// a delay; of what its disks were given and not told to sync, every sector survives or does not.
    /// [`Reactor::simulated`](crate::Reactor::simulated) boots it again.
    pub fn crash(&self, host: HostId) {
        self.0.borrow_mut().crash(host);
    }

    fn with_disk<R>(&self, host: HostId, path: &Path, act: impl FnOnce(&mut Disk) -> R) -> R {
        let mut state = self.0.borrow_mut();
        let index = state.disks.find(host, path).expect("a disk of this host");
        act(&mut state.disks.disks[index])
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("now", &self.now()).finish_non_exhaustive()
    }
}
