//! Asynchronous events (NVM Express Base 2.0, section 5.2): what happened, which requests wait, and what is
//! masked until the host has read the log page that goes with it.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringfab_spec::log::{AsyncEvent, ErrorInfo, LogId};

/// Asynchronous Event Request Limit, zero's based as Identify Controller has it.
pub(crate) const REQUESTS_MAX_Z: u8 = 3;

/// Different kinds of event are few; each is pending at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An internal error of ours ended a command (type Error Status, Transient Internal Error).
    InternalError,
    /// Namespaces appeared, vanished or changed size (type Notice).
    NamespaceAttributeChanged,
    /// Access groups have other states or namespaces (type Notice).
    AccessChanged,
    /// The discovery log page changed (type Notice).
    DiscoveryLogChanged,
    /// The reset of another controller is over, after its command was answered (type Notice).
    CrossControllerResetCompleted,
    /// Another controller has lost this host, or has quiesced after that (type Notice).
    LostHostCommunication,
}

impl Event {
    /// Dword 0 of the completion: type, information and log page.
    pub(crate) fn dw0(self) -> u32 {
        let event = match self {
            Self::InternalError => AsyncEvent::error(ErrorInfo::TRANSIENT_INTERNAL_ERROR),
            Self::NamespaceAttributeChanged => AsyncEvent::namespace_attribute_changed(),
            Self::AccessChanged => AsyncEvent::ana_change(),
            Self::DiscoveryLogChanged => AsyncEvent::discovery_log_change(),
            Self::CrossControllerResetCompleted => AsyncEvent::cross_controller_reset_completed(),
            Self::LostHostCommunication => AsyncEvent::lost_host_communication(),
        };
        event.bits()
    }

    /// The log page whose reading lets the next event of this kind through.
    fn log_page(self) -> LogId {
        match self {
            Self::InternalError => LogId::ERROR_INFORMATION,
            Self::NamespaceAttributeChanged => LogId::CHANGED_NAMESPACE_LIST,
            Self::AccessChanged => LogId::ANA,
            Self::DiscoveryLogChanged => LogId::DISCOVERY,
            Self::CrossControllerResetCompleted => LogId::CROSS_CONTROLLER_RESET,
            Self::LostHostCommunication => LogId::LOST_HOST_COMMUNICATION,
        }
    }

    /// The bit of the Asynchronous Event Configuration that lets it through; none when nothing stops it.
    fn configuration_bit(self) -> Option<u32> {
        match self {
            Self::InternalError => None,
            Self::NamespaceAttributeChanged => Some(8),
            Self::AccessChanged => Some(11),
            Self::DiscoveryLogChanged => Some(31),
            Self::CrossControllerResetCompleted => Some(20),
            Self::LostHostCommunication => Some(21),
        }
    }
}

/// The optional events that a controller has, as OAES of Identify Controller and as the configuration.
pub(crate) fn supported(discovery: bool) -> u32 {
    const IO: &[Event] = &[
        Event::NamespaceAttributeChanged,
        Event::AccessChanged,
        Event::CrossControllerResetCompleted,
        Event::LostHostCommunication,
    ];
    let events = if discovery { &[Event::DiscoveryLogChanged] } else { IO };
    events.iter().filter_map(|event| event.configuration_bit()).fold(0, |bits, bit| bits | 1 << bit)
}

/// Tells the core of the admin queue that [`AsyncEvents::next`] has something. It is called from any thread, and must
/// not call back into the controller.
pub(crate) type Wake = Box<dyn Fn() + Send + Sync>;

/// The events of one controller, under a lock of their own, and what tells its core of them.
#[derive(Default)]
pub(crate) struct AsyncEvents {
    events: Mutex<Events>,
    wake: Mutex<Option<Wake>>,
}

impl AsyncEvents {
    /// Asynchronous Event Configuration.
    pub(crate) fn configuration(&self) -> u32 {
        self.events().configuration
    }

    pub(crate) fn configure(&self, configuration: u32) {
        self.events().configuration = configuration;
    }

    /// Whether the host has asked for events of a kind.
    pub(crate) fn wants(&self, event: Event) -> bool {
        event.configuration_bit().is_none_or(|bit| self.configuration() & 1 << bit != 0)
    }

    /// Parks a request. False when as many wait as may.
    pub(crate) fn park(&self, command_id: u16) -> bool {
        self.events().park(command_id)
    }

    /// Takes a parked request back, which no event will complete. False when it was not parked.
    pub(crate) fn unpark(&self, command_id: u16) -> bool {
        self.events().unpark(command_id)
    }

    /// A request to complete, and dword 0 of its completion.
    pub(crate) fn next(&self) -> Option<(u16, u32)> {
        self.events().next()
    }

    /// Something happened.
    pub(crate) fn post(&self, event: Event) {
        let deliverable = self.events().post(event);
        self.wake_if(deliverable);
    }

    /// A namespace appeared, vanished or changed size.
    pub(crate) fn namespace_changed(&self, nsid: u32) {
        let deliverable = {
            let mut events = self.events();
            events.changed_namespaces.insert(nsid);
            events.post(Event::NamespaceAttributeChanged)
        };
        self.wake_if(deliverable);
    }

    /// The namespaces that have changed since the host has read of them.
    pub(crate) fn changed_namespaces(&self) -> BTreeSet<u32> {
        self.events().changed_namespaces.clone()
    }

    /// The host has read a log page without Retain Asynchronous Event: what it says is not news any more.
    pub(crate) fn log_read(&self, log_page: LogId) {
        let deliverable = self.events().log_read(log_page);
        self.wake_if(deliverable);
    }

    /// Has the core of the admin queue look at the controller.
    pub(crate) fn wake(&self) {
        self.wake_if(true);
    }

    /// The controller was reset: the requests are gone with it.
    pub(crate) fn reset(&self) {
        *self.events() = Events::default();
    }

    /// Sets what tells the core of the admin queue.
    pub(crate) fn set_wake(&self, wake: Option<Wake>) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = wake;
    }

    /// Called without the lock of the events, which whoever is woken takes.
    fn wake_if(&self, deliverable: bool) {
        if deliverable && let Some(wake) = &*self.wake.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AsyncEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncEvents").field("events", &*self.events()).finish_non_exhaustive()
    }
}

/// One controller's events.
#[derive(Debug, Default)]
struct Events {
    configuration: u32,
    parked: VecDeque<u16>,
    pending: Vec<Event>,
    masked: Vec<Event>,
    /// What the Changed Namespace List says.
    changed_namespaces: BTreeSet<u32>,
}

impl Events {
    fn park(&mut self, command_id: u16) -> bool {
        if self.parked.len() > usize::from(REQUESTS_MAX_Z) {
            return false;
        }
        self.parked.push_back(command_id);
        true
    }

    fn unpark(&mut self, command_id: u16) -> bool {
        let index = self.parked.iter().position(|parked| *parked == command_id);
        index.is_some_and(|index| self.parked.remove(index).is_some())
    }

    /// Returns whether a parked request can be completed with what happened.
    fn post(&mut self, event: Event) -> bool {
        let wanted = event.configuration_bit().is_none_or(|bit| self.configuration & 1 << bit != 0);
        if wanted && !self.pending.contains(&event) {
            self.pending.push(event);
        }
        self.is_deliverable()
    }

    fn next(&mut self) -> Option<(u16, u32)> {
        let index = self.first_unmasked()?;
        let command_id = self.parked.pop_front()?;
        let event = self.pending.remove(index);
        self.masked.push(event);
        Some((command_id, event.dw0()))
    }

    /// Returns whether the reading of the page lets an event through.
    fn log_read(&mut self, log_page: LogId) -> bool {
        if log_page == LogId::CHANGED_NAMESPACE_LIST {
            self.changed_namespaces.clear();
        }
        self.masked.retain(|event| event.log_page() != log_page);
        self.pending.retain(|event| event.log_page() != log_page);
        self.is_deliverable()
    }

    fn is_deliverable(&self) -> bool {
        self.first_unmasked().is_some() && !self.parked.is_empty()
    }

    fn first_unmasked(&self) -> Option<usize> {
        self.pending.iter().position(|event| !self.masked.contains(event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Events of a controller, and how often its core was woken.
    fn events(discovery: Option<bool>) -> (AsyncEvents, Arc<AtomicUsize>) {
        let (events, woken) = (AsyncEvents::default(), Arc::<AtomicUsize>::default());
        let count = Arc::clone(&woken);
        events.set_wake(Some(Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        })));
        events.configure(discovery.map_or(0, supported));
        (events, woken)
    }

    #[test]
    fn an_event_waits_for_a_request_and_a_request_for_an_event() {
        let (events, woken) = events(Some(false));
        events.post(Event::NamespaceAttributeChanged);
        assert_eq!((events.next(), woken.load(Ordering::Relaxed)), (None, 0));
        assert!(events.park(7));
        assert_eq!(events.next(), Some((7, 0x0004_0002)));
        assert!(events.park(8));
        assert_eq!(events.next(), None);
    }

    #[test]
    fn the_same_event_comes_again_only_after_its_log_page_was_read() {
        let (events, woken) = events(Some(false));
        for command_id in 0..3 {
            assert!(events.park(command_id));
        }
        events.namespace_changed(3);
        assert_eq!(events.next().map(|(id, _)| id), Some(0));
        events.namespace_changed(5);
        assert_eq!((events.next(), woken.load(Ordering::Relaxed)), (None, 1));
        assert_eq!(events.changed_namespaces(), BTreeSet::from([3, 5]));
        events.log_read(LogId::CHANGED_NAMESPACE_LIST);
        assert!(events.changed_namespaces().is_empty());
        events.namespace_changed(5);
        assert_eq!(events.next().map(|(id, _)| id), Some(1));
        assert_eq!(woken.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn an_event_that_the_host_did_not_ask_for_is_not_kept() {
        let (events, woken) = events(None);
        assert!(events.park(1));
        events.post(Event::NamespaceAttributeChanged);
        assert_eq!(woken.load(Ordering::Relaxed), 0);
        events.post(Event::InternalError);
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        assert_eq!(events.next(), Some((1, 0x0001_0400)));
    }

    #[test]
    fn one_request_more_than_the_limit_is_refused() {
        let (events, _) = events(Some(false));
        for command_id in 0..=u16::from(REQUESTS_MAX_Z) {
            assert!(events.park(command_id));
        }
        assert!(!events.park(100));
        assert!(events.unpark(2));
        assert!(!events.unpark(2));
        assert!(events.park(100));
    }

    #[test]
    fn a_reset_forgets_requests_and_configuration_and_not_whom_to_wake() {
        let (events, woken) = events(Some(false));
        assert!(events.park(1));
        events.namespace_changed(1);
        events.reset();
        assert_eq!((events.next(), events.configuration()), (None, 0));
        assert!(events.changed_namespaces().is_empty());
        events.configure(supported(false));
        assert!(events.park(2));
        events.namespace_changed(1);
        assert_eq!(woken.load(Ordering::Relaxed), 2);
        assert_eq!(events.next().map(|(id, _)| id), Some(2));
    }

    #[test]
    fn a_discovery_controller_reports_its_log_page() {
        let (events, _) = events(Some(true));
        assert!(events.park(3));
        events.post(Event::DiscoveryLogChanged);
        assert_eq!(events.next(), Some((3, 0x0070_f002)));
    }
}
