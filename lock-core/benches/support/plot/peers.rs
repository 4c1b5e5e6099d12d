//! A picture of lock-core beside other libraries: a row for each of them, a point for each figure.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::{
    Area, Axis, DRAWS, FAINT, GRID, INK, OURS, Picture, SMALL, THEIRS, WIDTH, microseconds, style, whole, write,
};

/// What was measured of a library.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// From a release in one process to the lease in another, in µs.
    pub(crate) handoff_p50: f64,
    pub(crate) handoff_p99: f64,
    /// How often a second the key passes from one process to another.
    pub(crate) owner_changes: f64,
}

/// Draws the time of a handoff and the changes of the owner, for each library; lock-core comes first.
pub(crate) fn draw(file: &Path, processes: usize, peers: &[Peer]) {
    let note =
        format!("Left: two processes, shorter is better. Right: {processes} processes on one key, more is better.");
    let picture = Picture::new(file, "Passing a key from process to process", &note);
    let (left, right) = picture.below_title().split_horizontally(WIDTH as i32 * 11 / 20);
    let handoffs = || peers.iter().map(|peer| [peer.handoff_p50, peer.handoff_p99]);
    rows(&left, peers, handoffs().collect(), "time of a handoff, p50 to p99, on a logarithmic scale", microseconds);
    let changes = || peers.iter().map(|peer| [peer.owner_changes; 2]);
    rows(&right, peers, changes().collect(), "changes of the owner a second, on a logarithmic scale", whole);
    picture.end();
}

/// Draws a row for each library, from its one value to its other.
fn rows(area: &Area<'_>, peers: &[Peer], values: Vec<[f64; 2]>, name: &'static str, label: fn(f64) -> String) {
    let all = || values.iter().flatten().copied();
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    let x = Axis::logarithmic(least / 2.5..most * 4.0, name, label);
    let y = 0.0..peers.len() as f64;
    let start = x.span.start;
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_left(24)
        .x_label_area_size(52)
        .build_cartesian_2d(x, Axis::linear(y, "", whole))
        .expect(DRAWS);
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(FAINT)
        .label_style(style(SMALL, FAINT, HPos::Left))
        .axis_desc_style(style(SMALL, FAINT, HPos::Left))
        .x_desc(name)
        .draw()
        .expect(DRAWS);
    for (row, (peer, [low, high])) in peers.iter().zip(values).enumerate() {
        let colour = if row == 0 { OURS } else { THEIRS };
        let height = (peers.len() - row) as f64 - 0.65;
        let (from, to) = ((low.log10(), height), (high.log10(), height));
        chart.draw_series([PathElement::new([from, to], colour.stroke_width(2))]).expect(DRAWS);
        chart.draw_series([from, to].map(|at| Circle::new(at, 6, colour.filled()))).expect(DRAWS);
        let text = if low == high { label(low) } else { format!("{} – {}", label(low), label(high)) };
        write(&mut chart, peer.name, (start, height + 0.3), INK, HPos::Left);
        write(&mut chart, &text, ((low * high).sqrt().log10(), height - 0.2), INK, HPos::Center);
    }
}
