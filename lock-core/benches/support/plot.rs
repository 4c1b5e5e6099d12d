//! Pictures of what was measured, as SVG.

pub(crate) mod peers;

use std::{fs, ops::Range, path::Path};

use hdrhistogram::Histogram;
use plotters::{
    coord::{
        Shift,
        ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter},
    },
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::{handoff::Handoffs, report::whole, stats::quantile};

/// Pairs a second of a number of tasks, and how many raw commands do.
pub(crate) struct Throughput {
    pub(crate) tasks: usize,
    pub(crate) ours: f64,
    pub(crate) raw: f64,
    pub(crate) ratio: f64,
}

/// What a number of held leases costs.
pub(crate) struct Cost {
    pub(crate) leases: usize,
    pub(crate) bytes: f64,
    /// Processor time for one renewal of one lease, in µs.
    pub(crate) processor: f64,
}

/// Draws how long handoffs take, beside PINGs of the same run.
pub(crate) fn handoff(file: &Path, played: &Handoffs) {
    let (ping, p50, p99) =
        (quantile(&played.pings, 0.5), quantile(&played.handoffs, 0.5), quantile(&played.handoffs, 0.99));
    let note = format!(
        "From just before the release in one to the lease in the other: {} in the median, {} at p99. A PING takes {}.",
        microseconds(p50),
        microseconds(p99),
        microseconds(ping)
    );
    let picture = Picture::new(file, "Handoff from process to process", &note);
    let longest = quantile(&played.handoffs, 0.999).max(8.0 * ping);
    let (handoffs, pings) = (shares(&played.handoffs), shares(&played.pings));
    let top = 1.15 * handoffs.iter().chain(&pings).map(|point| point.1).fold(0.0, f64::max);

    let x = Axis::logarithmic(ping / 2.0..longest, "time, on a logarithmic scale", microseconds);
    let mut chart =
        axes(&picture.below_title(), x, Axis::linear(0.0..top, "share of all, per 1/24 of a decade", percent));
    for (name, shares, colour) in [("PING", pings, THEIRS), ("handoff", handoffs, OURS)] {
        let peak = shares.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or_default();
        let area = AreaSeries::new(shares, 0.0, colour.mix(0.15)).border_style(colour.stroke_width(2));
        chart.draw_series(area).expect(DRAWS);
        write(&mut chart, name, (peak.0, peak.1 + top * 0.03), colour, HPos::Center);
    }
    picture.end();
}

/// Draws pairs a second against the number of tasks.
pub(crate) fn throughput(file: &Path, points: &[Throughput]) {
    let picture = Picture::new(
        file,
        "Acquire and release by many tasks, each on a key of its own",
        "Pairs a second over one connection; raw is SET NX PX and compare-and-delete. The numbers are ours to raw.",
    );
    let most = points.iter().map(|point| point.tasks).max().unwrap_or(1) as f64;
    let top = 1.15 * points.iter().map(|point| point.ours.max(point.raw)).fold(0.0, f64::max);
    let x = Axis::logarithmic(0.8..most * 2.2, "tasks, on a logarithmic scale", whole);
    let mut chart = axes(&picture.below_title(), x, Axis::linear(0.0..top, "pairs a second", whole));
    let of = |rate: fn(&Throughput) -> f64| points.iter().map(move |point| ((point.tasks as f64).log10(), rate(point)));
    line(&mut chart, of(|point| point.raw).collect(), THEIRS);
    line(&mut chart, of(|point| point.ours).collect(), OURS);
    if let Some(last) = points.last() {
        // Lines that end close together have their names apart.
        let apart = if last.raw >= last.ours { 0.07 } else { -0.07 } * top;
        let raw = if (last.raw - last.ours).abs() < apart.abs() { last.ours + apart } else { last.raw };
        let beside = (last.tasks as f64).log10() + 0.04;
        write(&mut chart, "raw", (beside, raw), THEIRS, HPos::Left);
        write(&mut chart, "lock-core", (beside, last.ours), OURS, HPos::Left);
    }
    for point in points {
        let above = if point.ratio >= 1.0 { 0.045 } else { -0.045 };
        let at = ((point.tasks as f64).log10(), point.ours + top * above);
        write(&mut chart, &format!("{:.2}", point.ratio), at, OURS, HPos::Center);
    }
    picture.end();
}

/// Draws memory and processor time of a lease against how many are held.
pub(crate) fn cost(file: &Path, points: &[Cost]) {
    let note = "ttl 30 s, renewed every 10 s, by the process that holds them.";
    let picture = Picture::new(file, "Cost of a held lease", note);
    let (left, right) = picture.below_title().split_horizontally(WIDTH as i32 / 2);
    let most = points.iter().map(|point| point.leases).max().unwrap_or(1) as f64;
    let leases = || Axis::logarithmic(800.0..most * 1.3, "held leases, on a logarithmic scale", whole);
    type Part = (&'static str, fn(&Cost) -> f64, fn(f64) -> String);
    let parts: [Part; 2] = [
        ("bytes a lease", |point| point.bytes, whole),
        ("µs of processor time a renewal", |point| point.processor, |time| trimmed(time, 1)),
    ];
    for (area, (name, value, label)) in [left, right].iter().zip(parts) {
        let top = 1.15 * points.iter().map(value).fold(0.0, f64::max);
        let mut chart = axes(area, leases(), Axis::linear(0.0..top, name, label));
        let values = points.iter().map(|point| ((point.leases as f64).log10(), value(point)));
        line(&mut chart, values.collect(), OURS);
    }
    picture.end();
}

/// The space of a file, with a title.
struct Picture<'a> {
    area: Area<'a>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Axis, Axis>>;

impl<'a> Picture<'a> {
    fn new(file: &'a Path, title: &str, note: &str) -> Self {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).expect("the folder for pictures can be made");
        }
        let area = SVGBackend::new(file, (WIDTH, HEIGHT)).into_drawing_area();
        area.fill(&WHITE).expect(DRAWS);
        let bold = TextStyle { font: (FONT, 22).into_font().style(FontStyle::Bold), ..style(22, INK, HPos::Left) };
        area.draw_text(title, &bold, (24, 30)).expect(DRAWS);
        area.draw_text(note, &style(SMALL, FAINT, HPos::Left), (24, 54)).expect(DRAWS);
        Self { area }
    }

    fn below_title(&self) -> Area<'a> {
        self.area.margin(76, 8, 8, 24)
    }

    fn end(self) {
        self.area.present().expect(DRAWS);
    }
}

/// What an axis spans and how it is marked. A logarithmic one counts in powers of ten.
struct Axis {
    span: Range<f64>,
    marks: Vec<f64>,
    name: &'static str,
    logarithmic: bool,
    label: fn(f64) -> String,
}

impl Axis {
    fn linear(span: Range<f64>, name: &'static str, label: fn(f64) -> String) -> Self {
        let rough = (span.end - span.start) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|step| *step >= rough * 0.8);
        let step = step.unwrap_or(rough);
        let marks = (0..).map(|mark| f64::from(mark) * step).take_while(|mark| *mark < span.end).collect();
        Self { span, marks, name, logarithmic: false, label }
    }

    fn logarithmic(span: Range<f64>, name: &'static str, label: fn(f64) -> String) -> Self {
        let wide = span.end / span.start > 1e3;
        let digits: &[f64] = if wide { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let powers = (span.start.log10().floor() as i32)..=(span.end.log10().ceil() as i32);
        let marks = powers.flat_map(|power| digits.iter().map(move |digit| (digit * 10f64.powi(power)).log10()));
        let span = span.start.log10()..span.end.log10();
        let marks = marks.filter(|mark| span.contains(mark)).collect();
        Self { span, marks, name, logarithmic: true, label }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let part = (value - self.span.start) / (self.span.end - self.span.start);
        from + (part * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.span.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        (self.label)(if self.logarithmic { 10f64.powf(*value) } else { *value })
    }
}

fn axes<'a>(area: &Area<'a>, x: Axis, y: Axis) -> Chart<'a> {
    let (x_name, y_name) = (x.name, y.name);
    let mut chart = ChartBuilder::on(area)
        .margin_right(16)
        .margin_top(8)
        .x_label_area_size(52)
        .y_label_area_size(88)
        .build_cartesian_2d(x, y)
        .expect(DRAWS);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(FAINT)
        .label_style(style(SMALL, FAINT, HPos::Left))
        .axis_desc_style(style(SMALL, FAINT, HPos::Left))
        .x_desc(x_name)
        .y_desc(y_name)
        .draw()
        .expect(DRAWS);
    chart
}

/// Draws a line with a dot at each point.
fn line(chart: &mut Chart<'_>, points: Vec<(f64, f64)>, colour: RGBColor) {
    chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2))).expect(DRAWS);
    chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, colour.filled()))).expect(DRAWS);
}

fn write(chart: &mut Chart<'_>, text: &str, at: (f64, f64), colour: RGBColor, side: HPos) {
    chart.draw_series([Text::new(text.to_owned(), at, style(SMALL, colour, side))]).expect(DRAWS);
}

fn style(size: u32, colour: RGBColor, side: HPos) -> TextStyle<'static> {
    (FONT, size).into_font().color(&colour).pos(Pos::new(side, VPos::Center))
}

/// Powers of ten, and the percentage of all times near them.
fn shares(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    let mut steps = std::collections::BTreeMap::<i32, u64>::new();
    for value in times.iter_recorded() {
        let power = (value.value_iterated_to() as f64 / 1e3).log10();
        *steps.entry((power * STEPS).round() as i32).or_default() += value.count_at_value();
    }
    let (Some(first), Some(last)) = (steps.keys().next().copied(), steps.keys().last().copied()) else {
        return Vec::new();
    };
    let share = |step| 100.0 * steps.get(&step).copied().unwrap_or(0) as f64 / times.len() as f64;
    (first - 1..=last + 1).map(|step| (f64::from(step) / STEPS, share(step))).collect()
}

fn microseconds(time: f64) -> String {
    if time < 1e3 {
        format!("{} µs", trimmed(time, usize::from(time < 10.0)))
    } else {
        format!("{} ms", trimmed(time / 1e3, 1))
    }
}

fn percent(share: f64) -> String {
    format!("{} %", trimmed(share, 1))
}

/// Without zeros at the end.
fn trimmed(number: f64, decimals: usize) -> String {
    let text = format!("{number:.decimals$}");
    if decimals == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

const WIDTH: u32 = 900;
const HEIGHT: u32 = 440;
const FONT: &str = "Helvetica, Arial, 'DejaVu Sans', sans-serif";
const SMALL: u32 = 16;
/// Of a decade, for distributions.
const STEPS: f64 = 24.0;
/// Only a file that can't be written can fail.
const DRAWS: &str = "the picture can be written";

/// Colours that colour-blind readers tell apart too (Okabe and Ito).
const OURS: RGBColor = RGBColor(0, 114, 178);
const THEIRS: RGBColor = RGBColor(230, 159, 0);
const INK: RGBColor = RGBColor(34, 34, 34);
const FAINT: RGBColor = RGBColor(107, 107, 107);
const GRID: RGBColor = RGBColor(230, 230, 230);
