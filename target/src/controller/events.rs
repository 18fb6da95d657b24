//! Asynchronous events (NVM Express Base 2.0, section 5.2): what happened, which requests wait, and what is
//! masked until the host has read the log page that goes with it.

use std::collections::VecDeque;

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
    /// The discovery log page changed (type Notice).
    DiscoveryLogChanged,
}

impl Event {
    /// Dword 0 of the completion: type, information and log page.
    pub(crate) fn dw0(self) -> u32 {
        let event = match self {
            Self::InternalError => AsyncEvent::error(ErrorInfo::TRANSIENT_INTERNAL_ERROR),
            Self::NamespaceAttributeChanged => AsyncEvent::namespace_attribute_changed(),
            Self::DiscoveryLogChanged => AsyncEvent::discovery_log_change(),
        };
        event.bits()
    }

    /// The log page whose reading lets the next event of this kind through.
    fn log_page(self) -> LogId {
        match self {
            Self::InternalError => LogId::ERROR_INFORMATION,
            Self::NamespaceAttributeChanged => LogId::CHANGED_NAMESPACE_LIST,
            Self::DiscoveryLogChanged => LogId::DISCOVERY,
        }
    }

    /// The bit of the Asynchronous Event Configuration that lets it through; none when nothing stops it.
    fn configuration_bit(self) -> Option<u32> {
        match self {
            Self::InternalError => None,
            Self::NamespaceAttributeChanged => Some(8),
            Self::DiscoveryLogChanged => Some(31),
        }
    }
}

/// The optional events that a controller has, as OAES of Identify Controller and as the configuration.
pub(crate) fn supported(discovery: bool) -> u32 {
    let event = if discovery { Event::DiscoveryLogChanged } else { Event::NamespaceAttributeChanged };
    1 << event.configuration_bit().expect("notices have a bit")
}

/// One controller's events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    configuration: u32,
    parked: VecDeque<u16>,
    pending: Vec<Event>,
    masked: Vec<Event>,
}

impl Events {
    pub(crate) fn configuration(&self) -> u32 {
        self.configuration
    }

    pub(crate) fn configure(&mut self, configuration: u32) {
        self.configuration = configuration;
    }

    /// Parks a request. False when as many wait as may.
    pub(crate) fn park(&mut self, command_id: u16) -> bool {
        if self.parked.len() > usize::from(REQUESTS_MAX_Z) {
            return false;
        }
        self.parked.push_back(command_id);
        true
    }

    /// Takes a parked request back because it is aborted.
    pub(crate) fn unpark(&mut self, command_id: u16) -> bool {
        let index = self.parked.iter().position(|parked| *parked == command_id);
        index.is_some_and(|index| self.parked.remove(index).is_some())
    }

    /// Something happened. Returns whether a parked request can be completed with it.
    pub(crate) fn post(&mut self, event: Event) -> bool {
        let wanted = event.configuration_bit().is_none_or(|bit| self.configuration & 1 << bit != 0);
        if wanted && !self.pending.contains(&event) {
            self.pending.push(event);
        }
        self.deliverable().is_some() && !self.parked.is_empty()
    }

    /// A request to complete, and with what.
    pub(crate) fn next(&mut self) -> Option<(u16, u32)> {
        let index = self.deliverable()?;
        let command_id = self.parked.pop_front()?;
        let event = self.pending.remove(index);
        self.masked.push(event);
        Some((command_id, event.dw0()))
    }

    /// The host has read a log page without Retain Asynchronous Event. Returns whether that lets an event through.
    pub(crate) fn log_read(&mut self, log_page: LogId) -> bool {
        self.masked.retain(|event| event.log_page() != log_page);
        self.pending.retain(|event| event.log_page() != log_page);
        self.deliverable().is_some() && !self.parked.is_empty()
    }

    /// The controller was reset: the requests are gone with it.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    fn deliverable(&self) -> Option<usize> {
        self.pending.iter().position(|event| !self.masked.contains(event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listening() -> Events {
        let mut events = Events::default();
        events.configure(supported(false));
        events
    }

    #[test]
    fn an_event_waits_for_a_request_and_a_request_for_an_event() {
        let mut events = listening();
        assert!(!events.post(Event::NamespaceAttributeChanged));
        assert_eq!(events.next(), None);
        assert!(events.park(7));
        assert_eq!(events.next(), Some((7, 0x0004_0002)));
        assert!(events.park(8));
        assert_eq!(events.next(), None);
    }

    #[test]
    fn the_same_event_comes_again_only_after_its_log_page_was_read() {
        let mut events = listening();
        for command_id in 0..3 {
            assert!(events.park(command_id));
        }
        assert!(events.post(Event::NamespaceAttributeChanged));
        assert_eq!(events.next().map(|(id, _)| id), Some(0));
        assert!(!events.post(Event::NamespaceAttributeChanged));
        assert_eq!(events.next(), None);
        events.log_read(LogId::CHANGED_NAMESPACE_LIST);
        assert!(events.post(Event::NamespaceAttributeChanged));
        assert_eq!(events.next().map(|(id, _)| id), Some(1));
    }

    #[test]
    fn an_event_that_the_host_did_not_ask_for_is_not_kept() {
        let mut events = Events::default();
        assert!(events.park(1));
        assert!(!events.post(Event::NamespaceAttributeChanged));
        assert!(events.post(Event::InternalError));
        assert_eq!(events.next(), Some((1, 0x0001_0400)));
    }

    #[test]
    fn one_request_more_than_the_limit_is_refused() {
        let mut events = listening();
        for command_id in 0..=u16::from(REQUESTS_MAX_Z) {
            assert!(events.park(command_id));
        }
        assert!(!events.park(100));
        assert!(events.unpark(2));
        assert!(!events.unpark(2));
        assert!(events.park(100));
    }

    #[test]
    fn a_discovery_controller_reports_its_log_page() {
        let mut events = Events::default();
        events.configure(supported(true));
        assert!(events.park(3));
        assert!(events.post(Event::DiscoveryLogChanged));
        assert_eq!(events.next(), Some((3, 0x0070_f002)));
    }
}
