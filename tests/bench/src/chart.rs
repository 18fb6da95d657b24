//! Bar charts as SVG: a group of bars for each load, a colour for each who bore it, a line from the least to the most.

use std::fmt::Write as _;

use crate::report::number;
use crate::sample::Spread;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 340.0;
/// Room for the scale, the title and the names below.
const LEFT: f64 = 84.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 36.0;
/// Part of a group's width that its bars have.
const FILLED: f64 = 0.8;
const FONT: &str = r#"font-family="sans-serif" font-size="12""#;
/// Distinct for those who see few colours, too.
const COLOURS: [&str; 3] = ["#999999", "#0072b2", "#e69f00"];

/// What is drawn.
pub(crate) struct Chart {
    pub(crate) title: String,
    /// Of the scale.
    pub(crate) unit: &'static str,
    /// At most as many as there are colours.
    pub(crate) series: Vec<&'static str>,
    pub(crate) groups: Vec<Group>,
}

/// Bars side by side, one for each series that has one.
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) bars: Vec<Option<Spread>>,
}

impl Chart {
    /// The picture; `None` when there is nothing to draw.
    pub(crate) fn svg(&self) -> Option<String> {
        let bars = self.groups.iter().flat_map(|group| &group.bars).flatten();
        let top = round_up(bars.map(|bar| bar.max).fold(0.0, f64::max))?;
        let mut svg =
            format!(r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>"#);
        svg.push_str(r#"<rect width="100%" height="100%" fill="white"/>"#);
        text(&mut svg, LEFT, 20.0, "start", &format!("{} ({})", self.title, self.unit));
        self.legend(&mut svg);
        scale(&mut svg, top);
        let step = (WIDTH - LEFT) / self.groups.len() as f64;
        for (index, group) in self.groups.iter().enumerate() {
            self.group(&mut svg, group, LEFT + step * index as f64, step, top);
        }
        svg.push_str("</svg>\n");
        Some(svg)
    }

    fn legend(&self, svg: &mut String) {
        for (index, (name, colour)) in self.series.iter().zip(COLOURS).enumerate() {
            let x = LEFT + 130.0 * index as f64;
            rectangle(svg, (x, 32.0), (10.0, 10.0), colour);
            text(svg, x + 14.0, 41.0, "start", name);
        }
    }

    fn group(&self, svg: &mut String, group: &Group, left: f64, step: f64, top: f64) {
        text(svg, left + step / 2.0, HEIGHT - BOTTOM + 18.0, "middle", &group.name);
        let width = step * FILLED / self.series.len() as f64;
        let first = left + step * (1.0 - FILLED) / 2.0;
        for (index, (bar, colour)) in group.bars.iter().zip(COLOURS).enumerate() {
            let Some(bar) = bar else { continue };
            let x = first + width * index as f64;
            let (y, zero) = (height(bar.median, top), height(0.0, top));
            rectangle(svg, (x + 1.0, y), (width - 2.0, zero - y), colour);
            let middle = x + width / 2.0;
            line(svg, (middle, height(bar.min, top)), (middle, height(bar.max, top)), "black");
        }
    }
}

/// Lines across with their values.
fn scale(svg: &mut String, top: f64) {
    const STEPS: usize = 5;
    for step in 0..=STEPS {
        let value = top * step as f64 / STEPS as f64;
        let y = height(value, top);
        line(svg, (LEFT, y), (WIDTH, y), "#dddddd");
        text(svg, LEFT - 6.0, y + 4.0, "end", &number(value));
    }
}

/// Where a value stands.
fn height(value: f64, top: f64) -> f64 {
    let room = HEIGHT - TOP - BOTTOM;
    TOP + room * (1.0 - value / top)
}

/// The next value of which a fifth is a round number.
fn round_up(value: f64) -> Option<f64> {
    if !value.is_finite() || value <= 0.0 {
        return None;
    }
    let unit = 10f64.powf(value.log10().floor());
    [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
        .into_iter()
        .map(|times| times * unit)
        .find(|top| *top >= value)
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _infallible = write!(svg, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#);
}

fn rectangle(svg: &mut String, corner: (f64, f64), size: (f64, f64), colour: &str) {
    let ((x, y), (width, height)) = (corner, size);
    let _infallible = write!(
        svg,
        r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#
    );
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _infallible =
        write!(svg, r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}"/>"#);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_ends_at_or_above_what_it_shows() {
        for (value, top) in [(0.7, 0.8), (1.0, 1.0), (7.6, 8.0), (99.0, 100.0), (1_800_000.0, 2_000_000.0)] {
            let found = round_up(value).expect("a value");
            assert!((found - top).abs() < top * 1e-9, "{value}: {found}");
        }
        assert_eq!((round_up(0.0), round_up(f64::NAN)), (None, None));
    }

    #[test]
    fn every_bar_that_was_measured_is_drawn() {
        let bar = Some(Spread { median: 2.0, min: 1.0, max: 3.0 });
        let group = |bars| Group { name: "a < b".to_owned(), bars };
        let groups = vec![group(vec![bar, None]), group(vec![bar, bar])];
        let chart = Chart { title: "T".to_owned(), unit: "IOPS", series: vec!["one", "two"], groups };
        let svg = chart.svg().expect("bars");
        // The ground, two of the legend, and the bars.
        assert_eq!(svg.matches("<rect").count(), 1 + 2 + 3, "{svg}");
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        let nothing = Chart { groups: vec![group(vec![None, None])], ..chart };
        assert!(nothing.svg().is_none());
    }
}
