//! A run as Markdown, for people.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::bars::{Bar, Limit, bars};
use crate::run::{Measured, Run};
use crate::sample::{Metric, Spread};

/// The whole report. Its charts are files beside it, given by name and title.
pub(crate) fn markdown(run: &Run, charts: &[(&str, String)]) -> String {
    let mut text = String::from("# Ringfab, measured\n\n");
    text.push_str(&facts(run));
    text.push_str("\n## The bars\n\n");
    text.push_str(&bar_table(run));
    for (file, title) in charts {
        let _infallible = write!(text, "\n![{title}]({file})\n");
    }
    text.push_str("\n## All figures\n\nMedians, with the least and the most of all rounds.\n");
    for (title, cases) in groups(run) {
        let _infallible = write!(text, "\n### {title}\n\n{}", case_table(&cases));
    }
    if !run.not_run.is_empty() {
        text.push_str("\n## NOT RUN\n\n");
        for (what, why) in &run.not_run {
            let _infallible = writeln!(text, "- {what}: {}", why.replace('\n', " "));
        }
    }
    text
}

fn facts(run: &Run) -> String {
    let rows = run.facts.rows().into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    table(&["what", "value"], rows)
}

/// Every bar with what was reached.
pub(crate) fn bar_table(run: &Run) -> String {
    let rows = bars().iter().map(|bar| bar_row(bar, run)).collect();
    table(&["what", "figure", "reference", "value", "bar", ""], rows)
}

fn bar_row(bar: &Bar, run: &Run) -> Vec<String> {
    let limit = match bar.limit {
        Limit::AtMost(limit) => format!("<= {limit}"),
        Limit::AtLeast(limit) => format!(">= {limit}"),
    };
    let unit = bar.figure.1.title();
    let Some(verdict) = bar.verdict(run) else {
        let nothing = || "-".to_owned();
        return vec![bar.what.clone(), nothing(), nothing(), nothing(), limit, "NOT RUN".to_owned()];
    };
    let reference = verdict.reference.map_or_else(|| "-".to_owned(), number);
    let met = if verdict.met { "met" } else { "missed" };
    let figure = format!("{} {unit}", number(verdict.figure));
    vec![bar.what.clone(), figure, reference, format!("{:.2}", verdict.value), limit, met.to_owned()]
}

/// Cases by what their names begin with, in their order.
fn groups(run: &Run) -> Vec<(String, Vec<&Measured>)> {
    let mut groups: Vec<(String, Vec<&Measured>)> = Vec::new();
    for case in &run.cases {
        let words =
            if ["raw ", "footprint "].iter().any(|begin| case.name.starts_with(begin)) { 1 } else { 2 };
        let title: Vec<&str> = case.name.split(' ').take(words).collect();
        let title = title.join(" ");
        match groups.iter_mut().find(|(known, _)| *known == title) {
            Some((_, cases)) => cases.push(case),
            None => groups.push((title, vec![case])),
        }
    }
    groups
}

fn case_table(cases: &[&Measured]) -> String {
    let samples = cases.iter().flat_map(|case| &case.samples);
    let metrics: BTreeSet<Metric> = samples.flat_map(|sample| sample.metrics()).collect();
    let head: Vec<&str> = ["case"].into_iter().chain(metrics.iter().map(|metric| metric.title())).collect();
    let row = |case: &&Measured| {
        let figures = metrics.iter().map(|metric| case.spread(*metric).map(spread).unwrap_or_default());
        [case.name.clone()].into_iter().chain(figures).collect()
    };
    table(&head, cases.iter().map(row).collect())
}

fn spread(spread: Spread) -> String {
    format!("{} ({}–{})", number(spread.median), number(spread.min), number(spread.max))
}

/// Three digits that count, and all of those before the point.
pub(crate) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    let whole = text.split('.').next().unwrap_or("").trim_start_matches('-').len();
    if whole <= 4 { text } else { grouped(&text) }
}

/// Thousands apart.
fn grouped(text: &str) -> String {
    let count = text.len();
    let mut grouped = String::with_capacity(count + count / 3);
    for (index, digit) in text.char_indices() {
        if index > 0 && (count - index).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

/// A Markdown table whose columns line up as text, too.
pub(crate) fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let head = head.iter().map(|cell| (*cell).to_owned()).collect();
    let lines: Vec<Vec<String>> = [head].into_iter().chain(rows).collect();
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..lines[0].len()).map(|column| width(column).max(3)).collect();
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        let _infallible = writeln!(text, "| {} |", cells.join(" | "));
        if index == 0 {
            let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            let _infallible = writeln!(text, "| {} |", rule.join(" | "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use crate::sample::Sample;

    #[test]
    fn numbers_are_as_long_as_they_are_worth() {
        for (value, text) in [
            (0.6543, "0.65"),
            (7.654, "7.65"),
            (12.34, "12.3"),
            (1234.5, "1234"),
            (54321.0, "54 321"),
            (1234567.8, "1 234 568"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_table_lines_up() {
        let text = table(&["a", "long head"], vec![vec!["µs".to_owned(), "1".to_owned()]]);
        assert_eq!(text, "| a   | long head |\n| --- | --------- |\n| µs  | 1         |\n");
    }

    #[test]
    fn what_was_not_measured_is_said_and_what_was_is_shown_with_its_spread() {
        let mut run = Run::new(Facts::default());
        run.not_run.insert("a thing".to_owned(), "no program".to_owned());
        for value in [3.0, 1.0, 2.0] {
            let mut sample = Sample::default();
            sample.set(Metric::P50, value);
            run.add("raw ping-pong 72/4136 cubic".to_owned(), sample);
        }
        let text = markdown(&run, &[("a.svg", "A".to_owned())]);
        assert!(text.contains("![A](a.svg)"), "{text}");
        assert!(text.contains("| raw ping-pong 72/4136 cubic | 2.00 (1.00–3.00) |"), "{text}");
        assert!(text.contains("- a thing: no program"), "{text}");
        assert_eq!(text.matches("NOT RUN").count(), bars().len() + 1);
    }
}
