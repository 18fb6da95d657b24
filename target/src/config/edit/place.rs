//! Where tables stand in a file, and which comments are whose.

use toml_edit::{DocumentMut, Item, RawString, Table};

/// The root of a document is before all tables.
pub(super) const ROOT: isize = isize::MIN;

/// What the prefix of a new table begins with until the comments around it are settled.
const NEW: char = '\u{1}';

/// Comments of something that was removed.
pub(super) struct Orphan {
    /// Where it was.
    pub(super) position: isize,
    /// A line each.
    pub(super) comments: String,
}

/// Calls `look` with each table that has a header.
fn each(item: &Item, look: &mut impl FnMut(&Table)) {
    match item {
        Item::Table(table) => {
            if !table.is_dotted() && !table.is_implicit() {
                look(table);
            }
            table.iter().for_each(|(_, item)| each(item, look));
        }
        Item::ArrayOfTables(list) => {
            for table in list {
                look(table);
                table.iter().for_each(|(_, item)| each(item, look));
            }
        }
        Item::Value(_) | Item::None => {}
    }
}

fn each_mut(item: &mut Item, look: &mut impl FnMut(&mut Table)) {
    match item {
        Item::Table(table) => {
            if !table.is_dotted() && !table.is_implicit() {
                look(table);
            }
            table.iter_mut().for_each(|(_, item)| each_mut(item, look));
        }
        Item::ArrayOfTables(list) => {
            for table in list.iter_mut() {
                look(table);
                table.iter_mut().for_each(|(_, item)| each_mut(item, look));
            }
        }
        Item::Value(_) | Item::None => {}
    }
}

/// Calls `look` with each table of a document but its root.
fn each_of(document: &DocumentMut, mut look: impl FnMut(&Table)) {
    document.iter().for_each(|(_, item)| each(item, &mut look));
}

fn each_of_mut(document: &mut DocumentMut, mut look: impl FnMut(&mut Table)) {
    document.iter_mut().for_each(|(_, item)| each_mut(item, &mut look));
}

fn prefix(table: &Table) -> &str {
    table.decor().prefix().and_then(RawString::as_str).unwrap_or_default()
}

/// Where the last table of an item is.
pub(super) fn last_of(item: &Item) -> Option<isize> {
    let mut last = None;
    each(item, &mut |table| last = last.max(table.position()));
    last
}

/// Where the last one of a table and those below it is.
pub(super) fn last_of_table(table: &Table) -> isize {
    let below = table.iter().filter_map(|(_, item)| last_of(item)).max();
    below.max(table.position()).unwrap_or(ROOT)
}

/// Where the last table of a document is.
pub(super) fn last(document: &DocumentMut) -> isize {
    document.iter().filter_map(|(_, item)| last_of(item)).max().unwrap_or(0)
}

/// What stands before the header of a new table: an empty line, unless the file has none between its tables.
pub(super) fn gap(document: &DocumentMut) -> &'static str {
    let (mut count, mut gaps) = (0, 0);
    each_of(document, |table| {
        count += 1;
        gaps += usize::from(prefix(table).starts_with('\n') || prefix(table).contains("\n\n"));
    });
    if count < 2 || gaps > 0 { "\n" } else { "" }
}

/// Marks a table as new; `gap` stands before it.
pub(super) fn mark_new(table: &mut Table, place: isize, gap: &str) {
    table.set_position(Some(place));
    table.decor_mut().set_prefix(format!("{NEW}{gap}"));
}

/// Gives each comment a place: those of what was removed stay where it was, and those that follow the table before a
/// new one stay with that.
pub(super) fn settle(document: &mut DocumentMut, mut orphans: Vec<Orphan>) {
    let mut new = Vec::new();
    each_of(document, |table| {
        if prefix(table).starts_with(NEW) {
            new.push(table.position().unwrap_or(ROOT));
        }
    });
    for place in new {
        let mut head = Some(take_head(document, place));
        each_of_mut(document, |table| {
            let gap = prefix(table).strip_prefix(NEW).map(str::to_owned);
            if let Some(gap) = gap.filter(|_| table.position() == Some(place))
                && let Some(head) = head.take()
            {
                table.decor_mut().set_prefix(head + &gap);
            }
        });
    }
    orphans.sort_by_key(|orphan| std::cmp::Reverse(orphan.position));
    for orphan in orphans.into_iter().filter(|orphan| !orphan.comments.is_empty()) {
        change_after(document, orphan.position, |there| match there.starts_with('\n') || there.is_empty() {
            true if there.is_empty() => orphan.comments,
            true => format!("\n{}{there}", orphan.comments),
            false => format!("{}\n{there}", orphan.comments),
        });
    }
}

/// Takes the comments that follow the table at a place without an empty line: they are about that one.
fn take_head(document: &mut DocumentMut, place: isize) -> String {
    let is_last = next_after(document, place).is_none();
    let mut head = String::new();
    change_after(document, place, |there| {
        let length = there.split_inclusive('\n').take_while(|line| line.trim_start().starts_with('#'));
        let length = length.map(str::len).sum();
        let (first, rest) = there.split_at(length);
        if is_last || rest.trim_start_matches([' ', '\t']).starts_with('\n') {
            first.clone_into(&mut head);
            return rest.to_owned();
        }
        there.to_owned()
    });
    head
}

fn next_after(document: &DocumentMut, place: isize) -> Option<isize> {
    let mut next: Option<isize> = None;
    each_of(document, |table| {
        if let Some(position) = table.position().filter(|position| *position > place) {
            next = Some(next.map_or(position, |next| next.min(position)));
        }
    });
    next
}

/// Changes what stands before the table after a place, or at the end of the file.
fn change_after(document: &mut DocumentMut, place: isize, change: impl FnOnce(&str) -> String) {
    let Some(next) = next_after(document, place) else {
        let changed = change(document.trailing().as_str().unwrap_or_default());
        document.set_trailing(changed);
        return;
    };
    let mut change = Some(change);
    each_of_mut(document, |table| {
        if table.position() == Some(next)
            && let Some(change) = change.take()
        {
            let changed = change(prefix(table));
            table.decor_mut().set_prefix(changed);
        }
    });
}
