//! From an event to a line in the queue.

use std::sync::Arc;
use std::time::Instant;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::fold::{Folds, NEVER_FOLDED, Verdict};
use super::line;
use super::sink::Sink;
use super::style::Style;

/// Takes the events that the filter lets through.
#[derive(Debug)]
pub(super) struct LogLayer {
    style: Style,
    sink: Sink,
    folds: Arc<Folds>,
}

impl LogLayer {
    pub(super) fn new(style: Style, sink: Sink) -> Self {
        Self { style, folds: sink.folds(), sink }
    }
}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // Whoever asks for details wants each of them.
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || metadata.name() == NEVER_FOLDED {
            return self.sink.push(self.style.event(event));
        }
        match self.folds.judge(event, Instant::now()) {
            Verdict::Show => self.sink.push(self.style.event(event)),
            Verdict::Fold => {}
            Verdict::FoldFirst(place) => {
                // Outside of the lock: the values of an event may do what they like when they are formatted.
                self.folds.describe(&place, line::text_of(event));
                self.sink.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use nix::errno::Errno;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::log::Parts;
    use crate::log::output::Output;
    use crate::log::style::Written;

    struct Collects(Sender<String>);

    impl Output for Collects {
        fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
            self.0.send(String::from_utf8_lossy(bytes).into_owned()).expect("the test looks");
            Ok(bytes.len())
        }
    }

    /// What is logged while `logs` runs.
    fn logged(logs: impl FnOnce()) -> Vec<String> {
        let style = Style { written: Written::JournalLine, parts: Parts::Unnamed };
        let (sender, texts): (_, Receiver<String>) = channel();
        let sink = Sink::with_output(style, Collects(sender)).expect("a thread");
        let subscriber = tracing_subscriber::registry().with(LogLayer::new(style, sink.clone()));
        tracing::subscriber::with_default(subscriber, logs);
        sink.flush();
        texts.try_iter().collect()
    }

    #[test]
    fn an_event_is_one_line_with_message_and_fields() {
        let lines = logged(|| tracing::warn!(peer = "a\nb", count = 3, "two\nlines"));
        assert_eq!(lines, ["<4>two\\nlines peer=\"a\\nb\" count=3\n"]);
    }

    #[test]
    fn events_that_repeat_are_folded_with_a_count() {
        let lines = logged(|| {
            for port in 0..1239 {
                let peer = std::net::SocketAddr::from(([192, 0, 2, 1], port));
                tracing::warn!(%peer, "refused");
            }
        });
        assert_eq!(lines.len(), 6, "{lines:?}");
        assert!(
            lines[5].starts_with("<4>refused peer=192.0.2.1:5 … 1,234 more like this within "),
            "{lines:?}"
        );
    }

    #[test]
    fn a_loud_peer_hides_no_other_and_ever_new_peers_are_bounded() {
        let refuse = |number: u32| {
            let peer = std::net::SocketAddr::from((std::net::Ipv4Addr::from(number), 1));
            tracing::warn!(%peer, host = "nqn", "refused");
        };
        let lines = logged(|| {
            (0..1000).for_each(|_| refuse(1));
            refuse(2);
        });
        assert_eq!(lines.len(), 7, "{lines:?}");
        assert!(lines[5].contains("peer=0.0.0.2:1"), "{lines:?}");
        let lines = logged(|| (0..100_000).for_each(refuse));
        assert!(lines.len() < 60, "{}", lines.len());
        assert!(lines.last().expect("one").contains(" more like this"), "{lines:?}");
        // Events of another place are not hidden by that.
        let lines = logged(|| {
            (0..1000).for_each(refuse);
            tracing::warn!("another");
        });
        assert!(lines.iter().any(|line| line == "<4>another\n"), "{lines:?}");
    }

    #[test]
    fn an_address_with_ever_new_names_hides_no_other() {
        let refuse = |peer: &str, host: u32| tracing::warn!(peer, host, "refused");
        let lines = logged(|| {
            (0..1000).for_each(|host| refuse("192.0.2.1:1", host));
            // Each of those that it has come with, and of all others together.
            (0..5).for_each(|_| refuse("192.0.2.2:1", 1));
            (0..30).for_each(|host| refuse("192.0.2.2:1", host));
        });
        let of = |peer: &str| lines.iter().filter(|line| line.contains(peer)).count();
        assert_eq!(of("192.0.2.1:1"), 3 + 20 + 1, "{lines:?}");
        assert!(lines[23].contains("192.0.2.2:1"), "{lines:?}");
        let hosts: Vec<_> = lines.iter().filter(|line| line.contains("192.0.2.2")).collect();
        assert_eq!(hosts.len(), 5 + 2 + 20 + 2, "{hosts:?}");
    }

    #[test]
    fn what_bears_the_name_is_never_folded_and_hides_nothing() {
        let lines = logged(|| {
            for number in 0..1000 {
                tracing::info!(name: NEVER_FOLDED, number, "a change is asked for");
            }
            tracing::info!("another");
        });
        assert_eq!(lines.len(), 1001);
        assert_eq!(lines[999], "<6>a change is asked for number=999\n");
    }

    #[test]
    fn details_are_never_folded() {
        let lines = logged(|| (0..100).for_each(|_| tracing::debug!("detail")));
        assert_eq!(lines.len(), 100);
    }
}
