//! A small writer of SVG: axes, lines, dots and labels, in light and dark.

use std::fmt::Write as _;

pub(crate) const WIDTH: f64 = 860.0;
/// The space around the plot.
const TOP: f64 = 52.0;
const BOTTOM: f64 = 52.0;

/// The colours of redlatch and of the other peers. Each colour is readable on a light and on a dark
/// background.
const COLOURS: [&str; 13] = [
    "#1f7ae0", "#d9480f", "#8250df", "#bf8700", "#1a9c86", "#c2529c", "#6e7781", "#5a9e2f",
    "#b35c1e", "#5566cc", "#0b8aa8", "#a03fb0", "#8a8f2a",
];

const STYLE: &str = "\
.ground{fill:#fff}.text{fill:#1f2328;font:13px system-ui,sans-serif}.small{font-size:12px}\
.title{font-size:16px;font-weight:600}.grid{stroke:#d8dee4;stroke-width:1}\
.mark{stroke:#57606a;stroke-width:1;stroke-dasharray:4 3}\
.line{fill:none;stroke-width:1.6;stroke-linejoin:round}.ours{stroke-width:3.2}\
@media(prefers-color-scheme:dark){.ground{fill:#0d1117}.text{fill:#e6edf3}.grid{stroke:#30363d}\
.mark{stroke:#9198a1}}";

/// An axis of the plot.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) log: bool,
    pub(crate) title: &'static str,
    pub(crate) ticks: Vec<(f64, String)>,
}

impl Axis {
    fn part(&self, value: f64) -> f64 {
        let of = |value: f64| if self.log { value.max(1e-300).ln() } else { value };
        ((of(value) - of(self.low)) / (of(self.high) - of(self.low))).clamp(0.0, 1.0)
    }
}

pub(crate) struct Picture {
    x: Axis,
    y: Axis,
    left: f64,
    right: f64,
    width: f64,
    height: f64,
    body: String,
    /// The labels on the right of the plot: the height, the text, and the colour.
    labels: Vec<(f64, String, usize)>,
}

impl Picture {
    /// `left` and `labels` are the widths on the left and on the right of the plot.
    pub(crate) fn new(
        title: &str,
        (width, height): (f64, f64),
        (left, labels): (f64, f64),
        x: Axis,
        y: Axis,
    ) -> Self {
        let (right, body, bottom) = (width - labels, String::new(), height - BOTTOM);
        let mut it = Self { x, y, left, right, width, height, body, labels: Vec::new() };
        it.text((20.0, 28.0), "title", "start", title);
        for (value, label) in it.x.ticks.clone() {
            let (x, _) = it.at((value, it.y.low));
            it.stroke("grid", &[(x, TOP), (x, bottom)]);
            it.text((x, bottom + 18.0), "small", "middle", &label);
        }
        for (value, label) in it.y.ticks.clone() {
            let (_, y) = it.at((it.x.low, value));
            it.stroke("grid", &[(left, y), (right, y)]);
            it.text((left - 10.0, y + 4.0), "small", "end", &label);
        }
        it.text(((left + right) / 2.0, height - 12.0), "small", "middle", it.x.title);
        it.text((left, TOP - 8.0), "small", "start", it.y.title);
        it
    }

    /// Returns the position of a point in the picture.
    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let bottom = self.height - BOTTOM;
        let x = self.left + self.x.part(x) * (self.right - self.left);
        (x, bottom - self.y.part(y) * (bottom - TOP))
    }

    /// Draws a line with a label at its end, and with gaps for NaN. `whose` is 0 for redlatch.
    pub(crate) fn line(&mut self, points: &[(f64, f64)], label: &str, whose: usize) {
        let Some(end) = points.iter().rfind(|point| !point.1.is_nan()) else { return };
        self.labels.push((self.at(*end).1, label.to_owned(), whose));
        let class = if whose == 0 { "line ours" } else { "line" };
        for points in points.split(|point| point.1.is_nan()).filter(|points| !points.is_empty()) {
            let places: Vec<_> = points.iter().map(|point| self.at(*point)).collect();
            let _ = writeln!(
                self.body,
                "<polyline class=\"{class}\" stroke=\"{}\" points=\"{}\"/>",
                COLOURS[whose % COLOURS.len()],
                written(&places)
            );
        }
    }

    pub(crate) fn dot(&mut self, point: (f64, f64), whose: usize, radius: f64) {
        let (x, y) = self.at(point);
        let colour = COLOURS[whose % COLOURS.len()];
        let _ = writeln!(
            self.body,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{colour}\" \
             fill-opacity=\"0.65\"/>"
        );
    }

    /// Draws a dashed vertical line with a word.
    pub(crate) fn mark(&mut self, x: f64, word: &str) {
        let (x, _) = self.at((x, self.y.low));
        self.stroke("mark", &[(x, TOP), (x, self.height - BOTTOM)]);
        self.text((x + 5.0, TOP + 14.0), "small", "start", word);
    }

    pub(crate) fn written(self) -> String {
        let size = (self.width, self.height);
        document(size, &self.body())
    }

    /// Returns the plot as a part of a picture.
    pub(crate) fn body(mut self) -> String {
        // The labels are placed from top to bottom, and do not overlap.
        self.labels.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (step, bottom) = (16.0, self.height - BOTTOM);
        let count = self.labels.len() as f64;
        let mut free = TOP;
        for (at, (y, label, whose)) in std::mem::take(&mut self.labels).into_iter().enumerate() {
            let last = bottom - (count - 1.0 - at as f64) * step;
            let place = y.max(free).min(last);
            free = place + step;
            let colour = COLOURS[whose % COLOURS.len()];
            let weight = if whose == 0 { " font-weight=\"600\"" } else { "" };
            let _ = writeln!(
                self.body,
                "<path class=\"line\" stroke=\"{colour}\" d=\"M{:.1} {y:.1}l14 {:.1}\"/>\
                 <text class=\"text small\" x=\"{:.1}\" y=\"{:.1}\"{weight}>{label}</text>",
                self.right + 2.0,
                place - y,
                self.right + 20.0,
                place + 4.0
            );
        }
        self.body
    }

    fn text(&mut self, (x, y): (f64, f64), class: &str, anchor: &str, text: &str) {
        let _ = writeln!(
            self.body,
            "<text class=\"text {class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    fn stroke(&mut self, class: &str, places: &[(f64, f64)]) {
        let _ = writeln!(self.body, "<polyline class=\"{class}\" points=\"{}\"/>", written(places));
    }
}

/// Returns a picture of this width and height.
pub(crate) fn document((width, height): (f64, f64), body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\">\n<style>{STYLE}</style>\n<rect class=\"ground\" \
         width=\"100%\" height=\"100%\"/>\n{body}</svg>\n"
    )
}

fn written(places: &[(f64, f64)]) -> String {
    let places: Vec<_> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    places.join(" ")
}
