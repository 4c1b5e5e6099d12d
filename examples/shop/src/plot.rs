//! The stock over time as a picture: a panel for each strategy, a line for each good.

use std::fmt::Write as _;

use crate::order::{GOODS, STOCK};
use crate::tally::Tally;

/// Writes one element; writing to a `String` does not fail.
macro_rules! draw {
    ($svg:expr, $($element:tt)*) => {
        let _ = writeln!($svg, $($element)*);
    };
}

/// Draws an SVG; the panels share the time axis, so that a slow strategy looks slow.
pub(crate) fn svg(tallies: &[Tally]) -> String {
    let columns = tallies.len().clamp(1, 2);
    let rows = tallies.len().div_ceil(columns);
    let (width, height) = (columns as f64 * PANEL.0 + 24.0, TOP + rows as f64 * PANEL.1 + 12.0);
    let seconds = tallies.iter().map(|tally| tally.took().as_secs_f64()).fold(1e-3, f64::max);

    let mut svg = String::new();
    draw!(svg, "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}'>");
    draw!(svg, "<style>{STYLE}</style>");
    draw!(svg, "<rect width='{width}' height='{height}' fill='white'/>");
    legend(&mut svg);
    for (at, tally) in tallies.iter().enumerate() {
        let left = (at % columns) as f64 * PANEL.0 + 56.0;
        let top = TOP + (at / columns) as f64 * PANEL.1 + 34.0;
        Panel::new(left, top, seconds, tally).draw(&mut svg);
    }
    svg.push_str("</svg>\n");
    svg
}

fn legend(svg: &mut String) {
    draw!(svg, "<text class='title' x='24' y='34'>Stock over time</text>");
    draw!(
        svg,
        "<text class='faint' x='24' y='54'>What is left of each good after all that was promised to buyers. \
         Below zero: promised, and not there.</text>"
    );
    for (at, colour) in COLOURS.iter().enumerate() {
        let (line, text, good) = (24 + 84 * at, 50 + 84 * at, at + 1);
        draw!(svg, "<path class='good' d='M{line} 74h20' stroke='{colour}'/>");
        draw!(svg, "<text x='{text}' y='78'>good {good}</text>");
    }
}

/// One strategy's place in the picture, and its scales.
struct Panel<'a> {
    tally: &'a Tally,
    /// Where the axes begin and end, in pixels from the left and the top.
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    /// The span of the time axis.
    seconds: f64,
    /// Units from one line of the grid to the next.
    step: f64,
    /// Where the stock axis ends: zero, or the next line of the grid below all that was oversold.
    lowest: f64,
}

impl<'a> Panel<'a> {
    fn new(left: f64, top: f64, seconds: f64, tally: &'a Tally) -> Self {
        let stock = tally.stock_over_time();
        let lowest = stock.iter().flat_map(|point| point.1).min().unwrap_or(0).min(0) as f64;
        let step = round_step((HIGHEST - lowest) / 5.0);
        let lowest = (lowest / step).floor() * step;
        Self { tally, left, right: left + PLOT.0, top, bottom: top + PLOT.1, seconds, step, lowest }
    }

    fn draw(&self, svg: &mut String) {
        self.heading(svg);
        self.axes(svg);
        let stock = self.tally.stock_over_time();
        let end = self.x(self.tally.took().as_secs_f64());
        for (good, colour) in COLOURS.iter().enumerate() {
            // Level until an order takes some, and on to the end of the sale.
            let mut path = format!("M{:.1} {:.1}", self.left, self.top);
            for (at, left) in &stock {
                let _ = write!(path, "H{:.1}V{:.1}", self.x(at.as_secs_f64()), self.y(left[good] as f64));
            }
            let y = self.y(stock.last().map_or(HIGHEST, |(_, left)| left[good] as f64));
            draw!(svg, "<path class='good' d='{path}H{end:.1}' stroke='{colour}'/>");
            draw!(svg, "<circle cx='{end:.1}' cy='{y:.1}' r='3.5' fill='{colour}'/>");
        }
    }

    fn heading(&self, svg: &mut String) {
        let Self { tally, left, right, .. } = self;
        let (name, sold, oversold) = (tally.strategy.name(), tally.sold(), tally.oversold());
        let y = self.top - 12.0;
        draw!(svg, "<text class='name' x='{left}' y='{y}'>{name}</text>");
        if oversold > 0 {
            draw!(svg, "<text class='alarm end' x='{right}' y='{y}'>oversold {oversold}</text>");
        } else {
            draw!(svg, "<text class='faint end' x='{right}' y='{y}'>sold {sold}, oversold none</text>");
        }
    }

    fn axes(&self, svg: &mut String) {
        let Self { left, right, bottom, .. } = self;
        let zero = self.y(0.0);
        let (width, below) = (right - left, bottom - zero);
        draw!(svg, "<rect class='below' x='{left}' y='{zero:.1}' width='{width}' height='{below:.1}'/>");
        for line in 0.. {
            let units = self.lowest + f64::from(line) * self.step;
            if units > HIGHEST {
                break;
            }
            let (x, y, units) = (left - 8.0, self.y(units), label(units));
            draw!(svg, "<path class='grid' d='M{left} {y:.1}H{right}'/>");
            draw!(svg, "<text class='faint end' x='{x}' y='{:.1}'>{units}</text>", y + 4.0);
        }
        draw!(svg, "<path class='zero' d='M{left} {zero:.1}H{right}'/>");
        let step = round_step(self.seconds / 4.0);
        for mark in 0.. {
            let second = f64::from(mark) * step;
            if second > self.seconds * 1.001 {
                break;
            }
            let (x, y, second) = (self.x(second), bottom + 18.0, label(second));
            draw!(svg, "<path class='mark' d='M{x:.1} {bottom}v4'/>");
            draw!(svg, "<text class='faint middle' x='{x:.1}' y='{y}'>{second} s</text>");
        }
    }

    fn x(&self, seconds: f64) -> f64 {
        self.left + PLOT.0 * seconds / self.seconds
    }

    fn y(&self, units: f64) -> f64 {
        self.top + PLOT.1 * (HIGHEST - units) / (HIGHEST - self.lowest)
    }
}

/// The next of 1, 2, 5, 10, 20, 50, … (and 0.1, 0.2, 0.5, …) that is at least `step`.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * power).find(|round| *round >= step * 0.999).unwrap_or(step)
}

/// A number on an axis, with a real minus and without zeros at the end.
fn label(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text.strip_prefix('-') {
        Some("0") => "0".to_owned(),
        Some(digits) => format!("−{digits}"),
        None => text.to_owned(),
    }
}

/// Width and height of a panel with its labels, and of what is inside its axes, in pixels.
const PANEL: (f64, f64) = (440.0, 250.0);
const PLOT: (f64, f64) = (360.0, 180.0);
/// Height of title and legend.
const TOP: f64 = 90.0;
/// Where the stock axis begins.
const HIGHEST: f64 = STOCK as f64;

/// Four colours that colour-blind readers tell apart too (Okabe and Ito).
const COLOURS: [&str; GOODS] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7"];

const STYLE: &str = "
    text { font: 12px Helvetica, Arial, 'DejaVu Sans', sans-serif; fill: #222 }
    .title { font-size: 18px; font-weight: bold }
    .name { font-size: 14px; font-weight: bold }
    .faint { fill: #6b6b6b }
    .alarm { fill: #c8102e; font-weight: bold }
    .end { text-anchor: end }
    .middle { text-anchor: middle }
    .good { fill: none; stroke-width: 2; stroke-linejoin: round }
    .below { fill: #c8102e; fill-opacity: 0.09 }
    .grid { stroke: #e6e6e6 }
    .zero { stroke: #222 }
    .mark { stroke: #6b6b6b }
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_an_axis_are_round() {
        let steps = [0.03, 0.2, 17.0, 20.0, 83.0, 600.0].map(round_step);
        assert_eq!(steps, [0.05, 0.2, 20.0, 20.0, 100.0, 1000.0]);
    }

    #[test]
    fn labels_of_an_axis_are_short() {
        assert_eq!([0.1, 0.25, 100.0, -50.0, -0.0].map(label), ["0.1", "0.25", "100", "−50", "0"]);
    }
}
