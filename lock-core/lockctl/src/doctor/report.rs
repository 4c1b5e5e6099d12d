//! The report, in words and as JSON.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::verdict::{Level, Row, Verdict};
use crate::{
    describe::printable,
    terminal::{Look, Paint, wrap},
};

/// Writes a line for each check, or several if servers differ. On a terminal, long lines are wrapped.
pub(super) fn write(mut output: impl Write, rows: &[Row], width: Option<usize>, paint: Paint) -> io::Result<()> {
    let names = rows.iter().map(|row| row.check.len()).max().unwrap_or(0);
    let mut servers: Vec<_> = rows.iter().filter_map(|row| row.server.as_deref()).collect();
    servers.sort_unstable();
    servers.dedup();
    let is_one = servers.len() < 2;
    let mut written: Vec<&str> = Vec::new();
    for row in rows {
        if written.contains(&row.check) {
            continue;
        }
        written.push(row.check);
        let of_check: Vec<_> = rows.iter().filter(|other| other.check == row.check).collect();
        for (level, found, remedy) in merged(&of_check, is_one) {
            let (symbol, look) = match level {
                Level::Green => ('✓', Look::Green),
                Level::Amber => ('!', Look::Amber),
                Level::Red => ('✗', Look::Red),
            };
            let sign = paint.paint(look, &format!("{symbol} {:5}", level.name()));
            let begin = format!("{sign}  {}  ", paint.paint(Look::Bold, &format!("{:names$}", row.check)));
            let Some(width) = width else {
                let remedy = remedy.map_or_else(String::new, |remedy| format!("; {remedy}"));
                writeln!(output, "{begin}{found}{remedy}")?;
                continue;
            };
            // As wide as the beginning without its colours.
            let indent = " ".repeat(SIGN + names + 2);
            let room = width.saturating_sub(indent.len()).max(NARROW);
            writeln!(output, "{begin}{}", wrap(&found, room).join(&format!("\n{indent}")))?;
            if let Some(remedy) = remedy {
                let lines = wrap(&format!("→ {remedy}"), room);
                writeln!(output, "{indent}{}", lines.join(&format!("\n{indent}")))?;
            }
        }
    }
    let count = |level| rows.iter().filter(|row| row.verdict.level == level).count();
    let counts = Level::ALL.map(|level| format!("{} {}", count(level), level.name())).join(", ");
    writeln!(output, "{}", paint.paint(Look::Bold, &counts))?;
    output.flush()
}

/// Joins the verdicts of servers about one check that have the same level and remedy, the worst first. Servers are named if there are
/// several, and they differ.
fn merged(rows: &[&Row], is_one: bool) -> Vec<(Level, String, Option<String>)> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        let is_alike = |other: &Verdict| (other.level, &other.remedy) == (row.verdict.level, &row.verdict.remedy);
        match groups.iter_mut().find(|group| is_alike(&group[0].verdict)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group[0].verdict.level));
    let is_agreed = groups.len() == 1 && rows.iter().all(|row| row.verdict.found == rows[0].verdict.found);
    let text = |group: Vec<&Row>| {
        let first = &group[0].verdict;
        let mut all: Vec<(Vec<&str>, &str)> = Vec::new();
        for row in &group {
            let server = row.server.as_deref().filter(|_| !is_one && !is_agreed);
            match all.iter_mut().find(|(_, found)| *found == row.verdict.found) {
                Some((servers, _)) => servers.extend(server),
                None => all.push((server.into_iter().collect(), &row.verdict.found)),
            }
        }
        let found = all.into_iter().map(|(servers, found)| match servers.as_slice() {
            [] => found.to_owned(),
            _ => format!("{}: {found}", servers.join(", ")),
        });
        let found = found.collect::<Vec<_>>().join("; ");
        (first.level, printable(&found), first.remedy.as_deref().map(printable))
    };
    groups.into_iter().map(text).collect()
}

/// Returns the worst level.
pub(super) fn worst(rows: &[Row]) -> Level {
    rows.iter().map(|row| row.verdict.level).max().unwrap_or(Level::Green)
}

/// Returns the report for programs.
pub(super) fn json(rows: &[Row]) -> Value {
    let check = |row: &Row| {
        let Verdict { level, found, remedy } = &row.verdict;
        json!({ "check": row.check, "server": row.server, "level": level.name(), "found": found, "remedy": remedy })
    };
    json!({ "level": worst(rows).name(), "checks": rows.iter().map(check).collect::<Vec<_>>() })
}

/// The width of symbol and level, with the space behind.
const SIGN: usize = 9;

/// The least width of text beside the names.
const NARROW: usize = 30;
