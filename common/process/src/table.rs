//! Tables that fit a terminal.
//!
//! Where a table is wider than the terminal, names are shortened first, then columns are left out, and that is said
//! below the table. A shortened name is never like another one of its column. If all of that is not enough, nothing is
//! shortened or left out: each row becomes a paragraph with a line for each column.

use std::collections::BTreeSet;

use ringfab_base::visible;

use crate::terminal::{self, Paint, Stream, shortened};

/// How short names become before columns are left out, and after that.
const NAME_COMFORT: usize = 16;
const NAME_MIN: usize = 8;

/// What is between two columns.
const GAP: usize = 2;

/// What a column does where there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// It keeps its width.
    Whole,
    /// Its values become shorter.
    Shortened,
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    title: &'static str,
    room: Room,
    is_number: bool,
    /// How early it is left out: the largest one first, and 0 never.
    spare: u8,
}

impl Column {
    /// Text, which is never shortened.
    pub const fn text(title: &'static str) -> Self {
        Self { title, room: Room::Whole, is_number: false, spare: 0 }
    }

    /// A name that may be shortened.
    pub const fn name(title: &'static str) -> Self {
        Self { room: Room::Shortened, ..Self::text(title) }
    }

    /// A number, to the right.
    pub const fn number(title: &'static str) -> Self {
        Self { is_number: true, ..Self::text(title) }
    }

    /// The same column, left out where there is no room: those with a larger number first.
    pub const fn spare(self, order: u8) -> Self {
        Self { spare: order, ..self }
    }

    /// What stands above it.
    pub const fn title(self) -> &'static str {
        self.title
    }

    /// Whether it has numbers.
    pub const fn is_number(self) -> bool {
        self.is_number
    }
}

/// The cells of a column as they are shown.
#[derive(Clone, Debug)]
struct Fitted {
    column: Column,
    cells: Vec<String>,
    width: usize,
    /// As short as it becomes, now and at last.
    comfort: usize,
    least: usize,
}

/// A table as it is shown in lines of some width.
#[derive(Clone, Debug)]
pub struct Layout {
    columns: Vec<Fitted>,
    rows: usize,
    left_out: Vec<&'static str>,
    fits: bool,
}

impl Layout {
    /// Fits rows into lines of at most `width`.
    pub fn new(columns: &[Column], rows: &[Vec<String>], width: usize) -> Self {
        let cells = |index: usize| rows.iter().map(|row| row[index].clone()).collect();
        let all = columns.iter().enumerate().map(|(index, column)| Fitted::new(*column, cells(index)));
        let mut this = Self { columns: all.collect(), rows: rows.len(), left_out: Vec::new(), fits: true };
        let mut removed = Vec::new();
        while this.least_width(|one| one.comfort) > width {
            let spare = this.columns.iter().map(|one| one.column.spare).max().filter(|spare| *spare > 0);
            let Some(spare) = spare else { break };
            let last = this.columns.iter().rposition(|one| one.column.spare == spare).expect("it has it");
            removed.push(this.columns.remove(last).column.title);
        }
        let in_order = columns.iter().map(|one| one.title).filter(|title| removed.contains(title));
        this.left_out = in_order.collect();
        this.fits = this.least_width(|one| one.least) <= width;
        this.shrink(width);
        this
    }

    fn least_width(&self, of: impl Fn(&Fitted) -> usize) -> usize {
        self.columns.iter().map(of).sum::<usize>() + GAP * self.columns.len().saturating_sub(1)
    }

    /// Shortens the widest names, one character after the other.
    fn shrink(&mut self, width: usize) {
        let mut excess = self.least_width(|one| one.width).saturating_sub(width);
        while excess > 0 {
            let widest = self.widest(|one| one.comfort).or_else(|| self.widest(|one| one.least));
            let Some(widest) = widest else { break };
            self.columns[widest].width -= 1;
            excess -= 1;
        }
        for one in &mut self.columns {
            if let Some(forms) = distinct_forms(&one.cells, one.width) {
                one.cells = forms;
            }
        }
    }

    /// The widest column that is wider than it must be.
    fn widest(&self, least: impl Fn(&Fitted) -> usize) -> Option<usize> {
        let wider = self.columns.iter().enumerate().filter(|(_, one)| one.width > least(one));
        wider.max_by_key(|(_, one)| one.width).map(|(index, _)| index)
    }

    /// Whether no line is longer than it may be.
    pub fn fits(&self) -> bool {
        self.fits
    }

    /// The titles of the columns that are not shown.
    pub fn left_out(&self) -> &[&'static str] {
        &self.left_out
    }

    /// The titles, and then a line for each row.
    pub fn lines(&self) -> Vec<String> {
        let line = |cell: &dyn Fn(&Fitted) -> String| {
            let filled = self.columns.iter().map(|one| one.fill(&cell(one)));
            filled.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let titles = line(&|one| one.column.title.to_owned());
        let rows = (0..self.rows).map(|row| line(&|one: &Fitted| one.cells[row].clone()));
        [titles].into_iter().chain(rows).collect()
    }
}

impl Fitted {
    fn new(column: Column, cells: Vec<String>) -> Self {
        let title = column.title.chars().count();
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0).max(title);
        let least = |comfort: usize| match column.room {
            Room::Whole => width,
            Room::Shortened => shortest(&cells, comfort).max(title).min(width),
        };
        Self { comfort: least(NAME_COMFORT), least: least(NAME_MIN), column, cells, width }
    }

    fn fill(&self, cell: &str) -> String {
        let width = self.width;
        if self.column.is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
    }
}

/// The least width from `from` on in which no two different names look alike.
fn shortest(names: &[String], from: usize) -> usize {
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    (from..longest).find(|width| distinct(names, *width).is_some()).unwrap_or(longest)
}

/// The names in so many characters, or fewer where only then no two look alike.
fn distinct_forms(names: &[String], width: usize) -> Option<Vec<String>> {
    (1..=width).rev().find_map(|width| distinct(names, width))
}

/// The names in at most so many characters, if no two different ones look alike then.
fn distinct(names: &[String], width: usize) -> Option<Vec<String>> {
    let all: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let long: Vec<&str> = all.iter().copied().filter(|name| name.chars().count() > width).collect();
    if long.is_empty() {
        return Some(names.to_vec());
    }
    let common = common_beginning(&long);
    (0..=width + 1).find_map(|way| {
        let form = |name: &str| form(name, common, width, way);
        let forms: BTreeSet<String> = all.iter().map(|name| form(name)).collect();
        (forms.len() == all.len()).then(|| names.iter().map(|name| form(name)).collect())
    })
}

/// How many characters several names begin with alike. One alone has no common beginning.
fn common_beginning(names: &[&str]) -> usize {
    let [first, others @ ..] = names else { return 0 };
    let alike = |other: &&str| first.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    others.iter().map(alike).min().unwrap_or(0)
}

/// One of the ways to write a name in so many characters: first without what all of them begin with, then without its
/// middle, then with ever more of what comes after the common beginning.
fn form(name: &str, common: usize, width: usize, way: usize) -> String {
    let count = name.chars().count();
    if count <= width {
        return name.to_owned();
    }
    let rest = count - common;
    if common == 0 && way == 0 {
        return shortened(name, width);
    }
    if rest < width && way <= 1 || way == 1 {
        return tail(name, width);
    }
    let (before, room) =
        if common == 0 { ("", width.saturating_sub(1)) } else { ("…", width.saturating_sub(2)) };
    let head = if way == 0 { room.div_ceil(2) } else { (way - 1).min(room) };
    let beginning: String = name.chars().skip(common).take(head).collect();
    let end: String = name.chars().skip(count - (room - head)).collect();
    format!("{before}{beginning}…{end}")
}

/// The end of a name.
fn tail(name: &str, width: usize) -> String {
    let end: String = name.chars().skip((name.chars().count() + 1).saturating_sub(width)).collect();
    format!("…{end}")
}

/// Each row as a paragraph: a line for each column. A value for which there is no room beside the title has a line of
/// its own. Nothing is shortened.
pub fn paragraphs(columns: &[Column], rows: &[Vec<String>], width: usize) -> String {
    let titles = columns.iter().map(|column| column.title.chars().count()).max().unwrap_or(0);
    let rows = rows.iter().map(|row| {
        let said = columns.iter().zip(row).filter(|(_, cell)| !cell.is_empty());
        let lines = said.map(|(column, cell)| {
            let title = terminal::painted(Stream::Out, Paint::Head, column.title);
            let padding = titles - column.title.chars().count();
            match cell.chars().count() {
                long if titles + GAP + long <= width => format!("{title}{:padding$}  {cell}\n", ""),
                long if GAP + long <= width => format!("{title}\n  {cell}\n"),
                _ => format!("{title}\n{cell}\n"),
            }
        });
        lines.collect::<String>()
    });
    rows.collect::<Vec<_>>().join("\n")
}

/// The columns that are not shown, in lines of at most so many characters.
pub fn left_out_lines(left_out: &[&str], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    if left_out.is_empty() {
        return lines;
    }
    let last = left_out.len() - 1;
    let titles = left_out.iter().enumerate().flat_map(|(index, title)| {
        let comma = if index < last { "," } else { "" };
        format!("{title}{comma}").split(' ').map(str::to_owned).collect::<Vec<_>>()
    });
    for word in ["too", "narrow", "for:"].into_iter().map(str::to_owned).chain(titles) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(format!("  {word}")),
        }
    }
    lines
}

/// A table as text for the standard output, in lines of at most `width`. What could not be seen in a cell is escaped,
/// or a name could make a row.
pub fn text(columns: &[Column], rows: &[Vec<String>], width: usize) -> String {
    let escaped = |row: &Vec<String>| row.iter().map(|cell| visible(cell).to_string()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(escaped).collect();
    let layout = Layout::new(columns, &rows, width);
    if !layout.fits() {
        return paragraphs(columns, &rows, width);
    }
    let mut lines = layout.lines().into_iter();
    let titles = terminal::painted(Stream::Out, Paint::Head, &lines.next().unwrap_or_default());
    let all = [titles].into_iter().chain(lines).chain(left_out_lines(layout.left_out(), width));
    all.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(all: &[&[&str]]) -> Vec<Vec<String>> {
        all.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect()
    }

    fn lines(columns: &[Column], all: &[&[&str]], width: usize) -> Vec<String> {
        Layout::new(columns, &rows(all), width).lines()
    }

    const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:0123456789";

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let columns = [Column::name("host"), Column::number("IOPS")];
        let all = lines(&columns, &[&[HOST, "12"], &["short", "3456789"]], usize::MAX);
        assert_eq!(all[0], format!("{:<42}  {:>7}", "host", "IOPS"));
        assert_eq!(all[2], format!("{:<42}  3456789", "short"));
    }

    #[test]
    fn one_long_name_loses_its_middle() {
        let columns = [Column::name("host"), Column::number("IOPS")];
        let all = lines(&columns, &[&[HOST, "12"], &["short", "3456789"]], 40);
        assert!(all.iter().all(|line| line.chars().count() <= 40), "{all:?}");
        assert!(all[1].starts_with("nqn.2014-08.org") && all[1].contains("456789  "), "{all:?}");
        // What cannot be shortened stays, however narrow the terminal is.
        let layout = Layout::new(&columns, &rows(&[&[HOST, "12"], &["short", "3456789"]]), 3);
        assert!(!layout.fits());
        assert_eq!(layout.lines()[2], format!("{:<8}  3456789", "short"));
    }

    #[test]
    fn names_lose_what_all_of_them_begin_with() {
        let names = ["/srv/ringfab/images/database-1.img", "/srv/ringfab/images/database-2.img"];
        let all = lines(&[Column::name("DISK")], &[&[names[0]], &[names[1]]], 16);
        assert_eq!(all[1..], ["…/database-1.img", "…/database-2.img"]);
    }

    #[test]
    fn no_two_names_are_shown_alike() {
        // Different at the end, in the middle, at the beginning, and as the beginning of another.
        let sets = [
            ["/srv/ringfab/images/a-1", "/srv/ringfab/images/a-2", "/srv/ringfab/images/a-10"],
            ["/dev/disk/by-id/nvme-ALPHA-part1", "/dev/disk/by-id/nvme-BETA0-part1", "/dev/sda"],
            ["alpha/0123456789/0123456789", "beta/0123456789/0123456789", "gamma/0123456789/0123456789"],
            ["nqn.2026-11.org.example:x:0000001:y", "nqn.2026-11.org.example:x:0000002:y", HOST],
            ["0123456789abcdef", "0123456789", "0123456789abcdef0123456789abcdef"],
            ["aaaaaaaaaaaaaaaaaaab", "aaaaaaaaaaaaaaaaaaac", "daaaaaaaaaaaaaaaaaac"],
        ];
        for set in sets {
            let names: Vec<Vec<String>> = set.iter().map(|name| vec![(*name).to_owned()]).collect();
            for width in 1..60 {
                let layout = Layout::new(&[Column::name("N")], &names, width);
                let shown = layout.lines()[1..].to_vec();
                assert_eq!(BTreeSet::from_iter(&shown).len(), 3, "{width}: {shown:?}");
                let longest = shown.iter().map(|name| name.chars().count()).max();
                assert_eq!(layout.fits(), longest <= Some(width), "{width}: {shown:?}");
                assert!(layout.fits() || width < 12, "{width}: {shown:?}");
            }
        }
    }

    #[test]
    fn columns_that_can_be_spared_are_left_out_and_named() {
        let columns = [Column::name("HOST"), Column::number("MORE").spare(1), Column::number("IOPS")];
        let all = rows(&[&["a-name-of-24-characters!", "1", "2"]]);
        let layout = |width| Layout::new(&columns, &all, width);
        assert_eq!(layout(36).lines()[1], "a-name-of-24-characters!     1     2");
        assert!(layout(28).lines()[0].contains("MORE") && layout(28).left_out().is_empty());
        assert_eq!(layout(27).lines()[1], "a-name-of-…haracters!     2");
        assert_eq!(layout(27).left_out(), ["MORE"]);
        assert_eq!(layout(20).lines()[1].chars().count(), 20);
        assert!(text(&columns, &all, 27).ends_with("\n  too narrow for: MORE\n"));
        assert!(!text(&columns, &all, 28).contains("too narrow"));
        let orders = [Column::text("A"), Column::text("BB").spare(1), Column::text("CC").spare(2)];
        assert_eq!(Layout::new(&orders, &rows(&[&["1", "2", "3"]]), 5).left_out(), ["CC"]);
    }

    #[test]
    fn what_is_left_out_is_said_in_lines_that_fit() {
        let titles = ["I/O BUFFERS (MOST)", "P50", "P99", "MEDIA ERRORS"];
        let lines = left_out_lines(&titles, 30);
        assert!(lines.len() > 1 && lines.iter().all(|line| line.chars().count() <= 30), "{lines:?}");
        let words: Vec<&str> = lines.iter().flat_map(|line| line.split_whitespace()).collect();
        assert_eq!(words.join(" "), "too narrow for: I/O BUFFERS (MOST), P50, P99, MEDIA ERRORS");
    }

    #[test]
    fn rows_without_room_are_paragraphs_with_all_of_them() {
        let columns = [Column::text("WHERE"), Column::text("STATE")];
        let all =
            rows(&[&["/mnt/a-long-directory", "ready for 5 min"], &["/b", "dead: `ringfab umount /b`"]]);
        assert_eq!(
            text(&columns, &all, 27),
            "WHERE\n  /mnt/a-long-directory\nSTATE  ready for 5 min\n\n\
             WHERE  /b\nSTATE\n  dead: `ringfab umount /b`\n"
        );
    }

    #[test]
    fn a_name_ends_no_line_and_moves_no_cursor() {
        let evil = "/mnt/\u{1b}[2J\nmount  forged\u{202e}";
        let shown = text(&[Column::text("where")], &rows(&[&[evil]]), usize::MAX);
        assert_eq!(shown, "where\n/mnt/\\u{1b}[2J\\nmount  forged\\u{202e}\n");
    }
}
