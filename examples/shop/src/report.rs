//! The printed report: a table with its verdict, or a line of JSON for each strategy.

use std::fmt::Write as _;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::args::Args;
use crate::order::{GOODS, STOCK};
use crate::strategies::Strategy;
use crate::tally::Tally;

/// The result of a strategy, as `--json` prints it.
///
/// `sold` are the units promised in accepted orders, `left` those that the database shows at the end, `oversold`
/// those promised beyond the 100 of each good.
#[derive(Debug, Serialize)]
struct Line {
    strategy: Strategy,
    instances: usize,
    orders: usize,
    sold: u32,
    left: u32,
    oversold: u32,
    retries: u64,
    seconds: f64,
    wait_p50_ms: f64,
    wait_p99_ms: f64,
}

/// One line of JSON.
///
/// # Errors
/// Never in practice: all values are numbers and names.
pub(crate) fn json(tally: &Tally) -> serde_json::Result<String> {
    let thousandths = |value: f64| (value * 1e3).round() / 1e3;
    serde_json::to_string(&Line {
        strategy: tally.strategy,
        instances: tally.instances,
        orders: tally.orders(),
        sold: tally.sold(),
        left: tally.left(),
        oversold: tally.oversold(),
        retries: tally.retries(),
        seconds: thousandths(tally.took().as_secs_f64()),
        wait_p50_ms: thousandths(tally.wait(50).as_secs_f64() * 1e3),
        wait_p99_ms: thousandths(tally.wait(99).as_secs_f64() * 1e3),
    })
}

/// Says in two sentences what is about to happen.
pub(crate) fn heading(args: &Args) -> String {
    let buyers = plural(args.buyers, "buyer");
    let instances = plural(args.instances, "instance");
    let locks = match args.redis {
        None => "locks in memory",
        Some(_) => "each a process, locks in Redis",
    };
    format!(
        "{GOODS} goods, {STOCK} of each. {buyers}, {} each, at {instances} of the service ({locks}).\n\
         A sale reads the stock, thinks for {} ms, and writes it.\n\n",
        plural(args.rounds, "order"),
        args.pause_ms,
    )
}

/// The table of all strategies, and what it shows in words.
pub(crate) fn table(tallies: &[Tally]) -> String {
    let mut rows = vec![HEAD.map(|title| (title.to_owned(), Style::new().dimmed())).to_vec()];
    rows.extend(tallies.iter().map(row));
    let widths: Vec<_> = (0..HEAD.len()).map(|at| rows.iter().map(|row| row[at].0.chars().count()).max()).collect();

    let mut text = String::new();
    for row in rows {
        for (at, ((cell, style), width)) in row.into_iter().zip(&widths).enumerate() {
            let width = width.unwrap_or_default();
            let gap = if at == 0 { "" } else { "  " };
            let cell = if at < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
            let _ = write!(text, "{gap}{style}{cell}{style:#}");
        }
        text.push('\n');
    }
    text.push('\n');
    tallies.iter().filter_map(verdict).for_each(|line| text.push_str(&line));
    let right: Vec<_> = tallies.iter().filter(|tally| tally.is_right()).map(|tally| tally.strategy.name()).collect();
    if !right.is_empty() {
        let _ = writeln!(text, "{GOOD}{}{GOOD:#} sold no more than there was.", right.join(", "));
    }
    text.push_str(LEGEND);
    text
}

/// An error and its causes in one line; a cause that was named already is left out.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            let _ = write!(text, ": {cause}");
        }
    }
    text
}

fn row(tally: &Tally) -> Vec<(String, Style)> {
    let oversold = tally.oversold() > 0;
    let plain = Style::new();
    let mark = if tally.is_right() { ("✓", GOOD) } else { ("✗", BAD) };
    let name = if oversold { BAD } else { plain.bold() };
    vec![
        (mark.0.into(), mark.1),
        (tally.strategy.name().into(), name),
        (tally.orders().to_string(), plain),
        (tally.accepted().to_string(), plain),
        (tally.sold().to_string(), plain),
        (tally.left().to_string(), plain),
        (tally.oversold().to_string(), if oversold { BAD } else { GOOD }),
        (tally.retries().to_string(), plain),
        (format!("{:.2} s", tally.took().as_secs_f64()), plain),
        (millis(tally.wait(50)), plain),
        (millis(tally.wait(99)), plain),
    ]
}

/// Says what a reader must not overlook about one strategy.
fn verdict(tally: &Tally) -> Option<String> {
    let name = tally.strategy.name();
    let (sold, left, oversold) = (tally.sold(), tally.left(), tally.oversold());
    let mut text = String::new();
    if oversold > 0 {
        let _ = writeln!(
            text,
            "{BAD}{name}{BAD:#} promised {sold} units, {oversold} more than there were; the database still shows {left} left."
        );
    } else if !tally.adds_up() {
        let _ =
            writeln!(text, "{BAD}{name}{BAD:#} lost a write: {sold} sold and {left} left do not add up to the stock.");
    }
    if tally.is_broken() {
        let _ = writeln!(text, "{BAD}{name} promises that this does not happen.{BAD:#}");
    }
    if tally.turned_away() > 0 {
        let _ = writeln!(
            text,
            "{name} turned {} away, which could not get the lock in time or lost it.",
            plural(tally.turned_away() as u32, "order")
        );
    }
    (!text.is_empty()).then_some(text)
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn plural(count: u32, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

const HEAD: [&str; 11] =
    ["", "strategy", "orders", "accepted", "sold", "left", "oversold", "retries", "time", "wait p50", "wait p99"];

const LEGEND: &str = "
sold      units promised to buyers in accepted orders
left      units that the database shows at the end
oversold  units promised beyond the 100 of each good
wait      what an order took on top of its sale: waiting for the lock, retries, HTTP
";

const BAD: Style = AnsiColor::Red.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_has_the_documented_fields_in_order() {
        let tally = Tally::new(Strategy::LockCore, 3, Vec::new(), &[]);
        let line = json(&tally).unwrap();
        assert_eq!(
            line,
            r#"{"strategy":"lock-core","instances":3,"orders":0,"sold":0,"left":0,"oversold":0,"retries":0,"seconds":0.0,"wait_p50_ms":0.0,"wait_p99_ms":0.0}"#
        );
    }
}
