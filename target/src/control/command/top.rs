//! `ringfab-target top`: what hosts do, live, in a terminal.

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, ValueEnum};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Paragraph;
use ringfab_process::table::left_out_lines;
use serde_json::Value;

use super::status::head;
use super::table::Table;
use super::{Place, tables};
use crate::control::client::AskError;
use crate::control::request::Request;

/// How to look.
#[derive(Debug, Args)]
pub struct TopArguments {
    /// What to show first.
    #[arg(long, value_enum, default_value_t = Shown::Hosts)]
    show: Shown,
    /// The column to sort by, as its title has it, for instance reads/s.
    #[arg(long, value_name = "COLUMN")]
    sort: Option<String>,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

/// A table to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shown {
    /// Hosts: a row for each controller.
    Hosts,
    /// Namespaces.
    Namespaces,
    /// Queues.
    Queues,
    /// Cores.
    Cores,
}

impl Shown {
    const ALL: [Self; 4] = [Self::Hosts, Self::Namespaces, Self::Queues, Self::Cores];

    fn title(self) -> &'static str {
        match self {
            Self::Hosts => "hosts",
            Self::Namespaces => "namespaces",
            Self::Queues => "queues",
            Self::Cores => "cores",
        }
    }

    fn table(self, status: &Value) -> Table {
        match self {
            Self::Hosts => tables::hosts(status),
            Self::Namespaces => tables::namespaces(status),
            Self::Queues => tables::queues(status),
            Self::Cores => tables::cores(status),
        }
    }

    /// The column that it is sorted by at first.
    fn first_column(self) -> usize {
        match self {
            Self::Hosts | Self::Namespaces => self.column("reads/s").unwrap_or(0),
            Self::Queues => self.column("reads").unwrap_or(0),
            Self::Cores => 0,
        }
    }

    /// A column by its title, in whatever case.
    fn column(self, title: &str) -> Option<usize> {
        let table = self.table(&Value::Null);
        table.columns().iter().position(|column| column.title().eq_ignore_ascii_case(title))
    }
}

/// What is looked at, and how.
struct Screen {
    status: Value,
    shown: Shown,
    sorted_by: usize,
    reversed: bool,
    first_row: usize,
    paused: bool,
    /// Why there is nothing newer.
    error: Option<String>,
}

/// Shows what hosts do until `q`.
///
/// # Errors
/// When there is no terminal, no such column, or no target at the start.
pub fn top(place: &Place, arguments: &TopArguments) -> Result<(), AskError> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let instead = "top needs a terminal; `status` prints the same once";
        return Err(AskError::Refused(instead.to_owned()));
    }
    let mut screen = Screen::new(arguments, place.ask(&Request::Status)?)?;
    let failed = |error: io::Error| AskError::Refused(format!("the terminal cannot be used: {error}"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let outcome = run(&mut terminal, &mut screen, place, Duration::from_secs(arguments.interval));
    ratatui::restore();
    outcome.map_err(failed)
}

fn run(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    place: &Place,
    interval: Duration,
) -> io::Result<()> {
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| screen.draw(frame, SystemTime::now()))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            if let Event::Key(key) = event::read()?
                && !screen.press(key)
            {
                return Ok(());
            }
            continue;
        }
        next = Instant::now() + interval;
        if !screen.paused {
            screen.take(place.ask(&Request::Status));
        }
    }
}

impl Screen {
    fn new(arguments: &TopArguments, status: Value) -> Result<Self, AskError> {
        let shown = arguments.show;
        let sorted_by = match &arguments.sort {
            None => shown.first_column(),
            Some(title) => shown.column(title).ok_or_else(|| {
                let table = shown.table(&Value::Null);
                let titles: Vec<_> = table.columns().iter().map(|one| one.title().to_lowercase()).collect();
                AskError::Refused(format!("there is no column {title}; there are {}", titles.join(", ")))
            })?,
        };
        Ok(Self { status, shown, sorted_by, reversed: false, first_row: 0, paused: false, error: None })
    }

    /// A target that restarts is shown as it was until it answers again.
    fn take(&mut self, answer: Result<Value, AskError>) {
        match answer {
            Ok(status) => (self.status, self.error) = (status, None),
            Err(error) => self.error = Some(error.to_string()),
        }
    }

    /// Does what a key means. Whether to go on.
    fn press(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        let columns = self.shown.table(&Value::Null).columns().len();
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('h') => self.show(Shown::Hosts),
            KeyCode::Char('n') => self.show(Shown::Namespaces),
            KeyCode::Char('u') => self.show(Shown::Queues),
            KeyCode::Char('c') => self.show(Shown::Cores),
            KeyCode::Tab => {
                let now = Shown::ALL.iter().position(|one| *one == self.shown).unwrap_or(0);
                self.show(Shown::ALL[(now + 1) % Shown::ALL.len()]);
            }
            KeyCode::Right | KeyCode::Char('>') => self.sorted_by = (self.sorted_by + 1) % columns,
            KeyCode::Left | KeyCode::Char('<') => self.sorted_by = (self.sorted_by + columns - 1) % columns,
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Down => self.first_row += 1,
            KeyCode::Up => self.first_row = self.first_row.saturating_sub(1),
            KeyCode::PageDown => self.first_row += 20,
            KeyCode::PageUp => self.first_row = self.first_row.saturating_sub(20),
            KeyCode::Home => self.first_row = 0,
            _ => {}
        }
        true
    }

    fn show(&mut self, shown: Shown) {
        (self.shown, self.sorted_by, self.reversed, self.first_row) = (shown, shown.first_column(), false, 0);
    }

    fn draw(&mut self, frame: &mut Frame<'_>, now: SystemTime) {
        let head = head(&self.status, now);
        let head_lines = u16::try_from(head.lines().count().min(8)).unwrap_or(8);
        let parts = [
            Constraint::Length(head_lines),
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
        ];
        let [top, bar, middle, bottom] = Layout::vertical(parts).areas(frame.area());
        frame.render_widget(Paragraph::new(head), top);
        frame.render_widget(Line::from(self.bar()), bar);
        frame.render_widget(self.rows(usize::from(middle.width), usize::from(middle.height)), middle);
        let keys = "q quit  TAB or h n u c table  ←→ sort  r reverse  ↑↓ scroll  p pause";
        frame.render_widget(Line::styled(keys, Style::new().add_modifier(Modifier::DIM)), bottom);
    }

    /// The tables to choose from, and whether what is shown is of now.
    fn bar(&self) -> Vec<Span<'_>> {
        let mut spans = Vec::new();
        for one in Shown::ALL {
            let style =
                if one == self.shown { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            spans.extend([Span::styled(format!(" {} ", one.title()), style), Span::raw(" ")]);
        }
        if self.paused {
            spans.push(Span::styled("paused ", Style::new().add_modifier(Modifier::BOLD)));
        }
        if let Some(error) = &self.error {
            spans.push(Span::styled(error.as_str(), Style::new().add_modifier(Modifier::BOLD)));
        }
        spans
    }

    /// The table, sorted, from the row on to which it is scrolled.
    fn rows(&mut self, width: usize, height: usize) -> Text<'static> {
        let mut table = self.shown.table(&self.status);
        table.sort(self.sorted_by, self.reversed);
        let layout = table.layout(width);
        let left_out = left_out_lines(layout.left_out(), width);
        let rows_max = height.saturating_sub(1 + left_out.len());
        self.first_row = self.first_row.min(table.rows.len().saturating_sub(rows_max));
        let title = table.columns().get(self.sorted_by).map_or("", |column| column.title());
        let mut lines = layout.lines().into_iter();
        let titles = lines.next().unwrap_or_default();
        let rows = lines.skip(self.first_row).take(rows_max).map(Line::from);
        let dim = Style::new().add_modifier(Modifier::DIM);
        let left_out = left_out.into_iter().map(|line| Line::styled(line, dim));
        [marked(&titles, title)].into_iter().chain(rows).chain(left_out).collect()
    }
}

/// The titles, with the one that the table is sorted by marked.
fn marked(titles: &str, title: &str) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let is_whole = |at: &usize| {
        let (before, after) = (&titles[..*at], &titles[at + title.len()..]);
        before.chars().next_back().is_none_or(char::is_whitespace)
            && after.chars().next().is_none_or(char::is_whitespace)
    };
    let found = titles.match_indices(title).map(|(at, _)| at).find(is_whole);
    let Some(at) = found.filter(|_| !title.is_empty()) else { return Line::styled(titles.to_owned(), bold) };
    let (before, after) = (&titles[..at], &titles[at + title.len()..]);
    let reversed = bold.add_modifier(Modifier::REVERSED);
    let span = |text: &str, style| Span::styled(text.to_owned(), style);
    Line::from(vec![span(before, bold), span(title, reversed), span(after, bold)])
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn status() -> Value {
        let host = |name: &str, reads: u64, writes: u64| {
            let bytes = json!({ "read": 4096, "written": 0 });
            let work = json!({ "commands": { "read": reads, "write": writes }, "bytes": bytes });
            json!({
                "host": name, "subsystem": "nqn.x", "address": "10.0.0.1", "transport": "tcp", "connected_seconds": 5,
                "per_second": work, "total": work, "errors": 0,
                "queues": [{ "id": 0, "core": 0, "entries": 32, "peer": "10.0.0.1:1", "total": {} }],
            })
        };
        json!({
            "version": "0.1.0", "uptime_seconds": 5, "configuration": { "file": "/x", "generation": 1 },
            "controllers": [host("slow", 10, 900), host("quick", 5000, 3)],
            "namespaces": [{ "subsystem": "nqn.x", "nsid": 1, "state": "ready", "bytes": 4096, "source": "memory" }],
        })
    }

    fn screen() -> Screen {
        let arguments = TopArguments { show: Shown::Hosts, sort: None, interval: 1 };
        Screen::new(&arguments, status()).expect("a screen")
    }

    /// What a terminal of this size shows, a string for each line.
    fn seen(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| screen.draw(frame, SystemTime::now())).expect("drawn");
        let cells: Vec<&str> =
            terminal.backend().buffer().content().iter().map(|cell| cell.symbol()).collect();
        cells.chunks(usize::from(width)).map(|line| line.concat().trim_end().to_owned()).collect()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> bool {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    /// The first word of the rows below the titles.
    fn order(screen: &mut Screen) -> Vec<String> {
        let lines = seen(screen, 160, 10);
        let titles = lines.iter().position(|line| line.contains("SUBSYSTEM")).expect("titles");
        let rows = lines[titles + 1..].iter().take_while(|line| !line.is_empty());
        rows.map(|line| line.split(' ').next().expect("a word").to_owned()).collect()
    }

    #[test]
    fn the_busiest_host_comes_first_and_keys_choose_another_order() {
        let mut screen = screen();
        assert_eq!(order(&mut screen), ["quick", "slow"]);
        assert!(press(&mut screen, KeyCode::Right), "writes each second");
        assert_eq!(order(&mut screen), ["slow", "quick"]);
        assert!(press(&mut screen, KeyCode::Char('r')));
        assert_eq!(order(&mut screen), ["quick", "slow"]);
        assert!(!press(&mut screen, KeyCode::Char('q')));
        assert!(!screen.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }

    #[test]
    fn every_table_can_be_shown_in_any_terminal() {
        let mut screen = screen();
        for (key, found) in [('n', "memory"), ('u', "10.0.0.1:1"), ('c', "CORE"), ('h', "quick")] {
            assert!(press(&mut screen, KeyCode::Char(key)));
            assert!(seen(&mut screen, 160, 10).iter().any(|line| line.contains(found)), "{key}");
            for (width, height) in [(1, 1), (20, 3), (80, 24)] {
                assert_eq!(seen(&mut screen, width, height).len(), usize::from(height));
            }
        }
        let first = screen.shown;
        (0..Shown::ALL.len()).for_each(|_| assert!(press(&mut screen, KeyCode::Tab)));
        assert_eq!(screen.shown, first);
    }

    #[test]
    fn a_target_that_does_not_answer_is_shown_as_it_was() {
        let mut screen = screen();
        screen.take(Err(AskError::Refused("it is gone".to_owned())));
        let lines = seen(&mut screen, 160, 10);
        assert!(
            lines.iter().any(|line| line.contains("it is gone"))
                && lines.iter().any(|line| line.contains("quick"))
        );
        screen.take(Ok(status()));
        assert!(!seen(&mut screen, 160, 10).iter().any(|line| line.contains("it is gone")));
    }

    #[test]
    fn a_column_is_chosen_by_its_title() {
        let mut arguments =
            TopArguments { show: Shown::Hosts, sort: Some("writes/s".to_owned()), interval: 1 };
        let mut screen = Screen::new(&arguments, status()).expect("a screen");
        assert_eq!(order(&mut screen), ["slow", "quick"]);
        arguments.sort = Some("colour".to_owned());
        let error = Screen::new(&arguments, status()).err().expect("no such column").to_string();
        assert!(error.contains("there are host, subsystem, "), "{error}");
    }
}
