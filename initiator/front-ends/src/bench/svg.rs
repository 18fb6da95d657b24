//! A picture of the latency over time: p50 and p99 of each second. Any browser shows it; it has no scripts and loads
//! nothing.

use std::fmt::Write as _;

use super::gather::Second;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 50.0;

/// A percentile that is drawn.
struct Curve {
    name: &'static str,
    colour: &'static str,
    value: fn(&Second) -> u64,
}

const CURVES: [Curve; 2] = [
    Curve { name: "p50", colour: "#1f77b4", value: |second| second.p50 },
    Curve { name: "p99", colour: "#d62728", value: |second| second.p99 },
];

/// Where seconds and latencies are: the latter on a logarithmic scale of whole decades.
struct Scale {
    seconds: f64,
    /// Powers of ten of nanoseconds.
    low: i32,
    high: i32,
}

impl Scale {
    fn of(seconds: &[Second]) -> Self {
        let all = || seconds.iter().flat_map(|second| [second.p50, second.p99]).filter(|value| *value > 0);
        let low = all().min().unwrap_or(1_000).ilog10() as i32;
        let high = (all().max().unwrap_or(1_000) as f64).log10().ceil() as i32;
        let last = seconds.last().map_or(0, |second| second.at);
        Self { seconds: f64::from(last) + 1.0, low, high: high.max(low + 1) }
    }

    /// The middle of a second.
    fn x(&self, at: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * at / self.seconds
    }

    fn y(&self, nanos: f64) -> f64 {
        let part = (nanos.max(1.0).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part.clamp(0.0, 1.0)
    }
}

/// Draws it.
pub(super) fn draw(title: &str, seconds: &[Second]) -> String {
    let scale = Scale::of(seconds);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{title}</text>\n",
        title = escaped(title)
    );
    axes(&mut svg, &scale);
    for (index, Curve { name, colour, value }) in CURVES.into_iter().enumerate() {
        let place = |second: &Second| {
            let (x, y) = (scale.x(f64::from(second.at) + 0.5), scale.y(value(second) as f64));
            format!("{x:.1},{y:.1}")
        };
        let points: Vec<String> = seconds.iter().map(place).collect();
        let x = WIDTH - RIGHT - 120.0 + 60.0 * index as f64;
        let _fits = write!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" stroke-linecap=\"round\" \
             points=\"{}\"/>\n<text x=\"{x}\" y=\"24\" fill=\"{colour}\">{name}</text>\n",
            points.join(" ")
        );
        // A line of one point cannot be seen.
        if let [only] = points.as_slice()
            && let Some((x, y)) = only.split_once(',')
        {
            let _fits = writeln!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>");
        }
    }
    svg + "</svg>\n"
}

fn axes(svg: &mut String, scale: &Scale) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for decade in scale.low..=scale.high {
        let y = scale.y(10_f64.powi(decade));
        let _fits = write!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{x}\" y=\"{middle:.1}\" text-anchor=\"end\">{label}</text>\n",
            x = LEFT - 8.0,
            middle = y + 4.0,
            label = power(decade)
        );
    }
    let step =
        [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14_400.0, 86_400.0];
    let step = step.into_iter().find(|step| scale.seconds / step <= 12.0).unwrap_or(scale.seconds);
    let mut at = 0.0;
    while at <= scale.seconds {
        let x = scale.x(at);
        let _fits = write!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#eee\"/>\n\
             <text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{at} s</text>\n",
            y = bottom + 20.0
        );
        at += step;
    }
}

/// A power of ten of nanoseconds.
fn power(decade: i32) -> String {
    let (unit, rest) = match decade {
        ..3 => ("ns", decade),
        3..6 => ("us", decade - 3),
        6..9 => ("ms", decade - 6),
        _ => ("s", decade - 9),
    };
    format!("{} {unit}", 10_u64.pow(rest.max(0) as u32))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(at: u32, p50: u64, p99: u64) -> Second {
        Second { at, iops: 1.0, mean: p50 as f64, p50, p99 }
    }

    #[test]
    fn each_second_is_a_point_of_each_line_and_higher_is_slower() {
        let svg = draw("a <b> & c", &[second(0, 10_000, 90_000), second(1, 20_000, 800_000)]);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &lt;b&gt; &amp; c") && !svg.contains("<script"));
        let lines: Vec<Vec<(f64, f64)>> = svg
            .split("points=\"")
            .skip(1)
            .map(|rest| {
                let points = rest.split('"').next().expect("points");
                let point = |text: &str| {
                    let (x, y) = text.split_once(',').expect("two numbers");
                    (x.parse().expect("a number"), y.parse().expect("a number"))
                };
                points.split(' ').map(point).collect()
            })
            .collect();
        assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
        for line in &lines {
            assert!(line[0].0 < line[1].0 && line[0].1 > line[1].1, "{line:?}");
        }
        // 10 us is the lowest decade, 1 ms the highest.
        assert!(svg.contains(">10 us<") && svg.contains(">1 ms<") && !svg.contains(">1 us<"), "{svg}");
        assert_eq!(lines[0][0].1, HEIGHT - BOTTOM);
    }

    #[test]
    fn one_second_and_none_can_be_drawn() {
        assert!(draw("one", &[second(0, 10_000, 10_000)]).contains("<circle"));
        assert!(draw("none", &[]).ends_with("</svg>\n"));
    }
}
