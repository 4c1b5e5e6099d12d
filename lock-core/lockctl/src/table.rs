//! Rows in columns.

use std::io;

use unicode_width::UnicodeWidthStr as _;

use crate::terminal::clip;

/// Writes the rows under their titles, each column as wide as its widest cell. If they are wider than a terminal, the first two columns are
/// clipped. `paint` gets the number of a row, if it is not that of the titles, and of a column, with the text.
pub(crate) fn write<const N: usize>(
    mut output: impl io::Write,
    titles: [&str; N],
    rows: &[[String; N]],
    terminal: Option<usize>,
    paint: impl Fn(Option<usize>, usize, &str) -> String,
) -> io::Result<()> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].width());
        cells.chain([titles[column].width()]).max().unwrap_or(0)
    };
    let mut widths: [usize; N] = std::array::from_fn(width);
    if let Some(terminal) = terminal {
        fit(&mut widths, terminal);
    }
    let line = |number: Option<usize>, cells: &[&str; N]| {
        let mut line = String::new();
        let last = cells.iter().rposition(|cell| !cell.is_empty()).unwrap_or(0);
        for (column, (cell, width)) in cells.iter().zip(widths).enumerate().take(last + 1) {
            let cell = clip(cell, width);
            line += &paint(number, column, &cell);
            if column < last {
                line.extend(std::iter::repeat_n(' ', width - cell.width() + GAP));
            }
        }
        line
    };
    writeln!(output, "{}", line(None, &titles))?;
    for (number, row) in rows.iter().enumerate() {
        writeln!(output, "{}", line(Some(number), &row.each_ref().map(String::as_str)))?;
    }
    output.flush()
}

/// Makes the wider of the first two columns narrower until a line fits, or both are as narrow as can be read.
fn fit<const N: usize>(widths: &mut [usize; N], terminal: usize) {
    let mut excess = (widths.iter().sum::<usize>() + GAP * N.saturating_sub(1)).saturating_sub(terminal);
    while excess > 0 {
        let Some(widest) = widths.iter_mut().take(2).max() else { return };
        if *widest <= NARROW {
            return;
        }
        *widest -= 1;
        excess -= 1;
    }
}

/// The spaces between two columns.
const GAP: usize = 2;

/// The least width of a clipped column.
const NARROW: usize = 12;
