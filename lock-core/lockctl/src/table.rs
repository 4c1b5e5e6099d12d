//! Rows in columns.

use std::io;

/// Writes the rows under their titles, each column as wide as its widest cell.
pub(crate) fn write<const N: usize>(
    mut output: impl io::Write,
    titles: [&str; N],
    rows: &[[String; N]],
) -> io::Result<()> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([titles[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    line(&mut output, &titles, &widths)?;
    for row in rows {
        line(&mut output, row, &widths)?;
    }
    output.flush()
}

fn line(output: &mut impl io::Write, cells: &[impl AsRef<str>], widths: &[usize]) -> io::Result<()> {
    let padded = cells.iter().zip(widths).map(|(cell, &width)| format!("{:width$}", cell.as_ref()));
    writeln!(output, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())
}
