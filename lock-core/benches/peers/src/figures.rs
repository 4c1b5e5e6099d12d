//! The figures that were measured, a column for each library.

use std::path::Path;

use crate::support::{
    plot::peers::{self, Peer},
    report::{digits, told},
    stats::Rounds,
};

/// The rounds of each measure.
pub(crate) struct Figures {
    libraries: [&'static str; 3],
    rows: Vec<Row>,
}

struct Row {
    measure: String,
    unit: &'static str,
    columns: [Rounds; 3],
}

impl Figures {
    pub(crate) fn new(libraries: [&'static str; 3]) -> Self {
        Self { libraries, rows: Vec::new() }
    }

    /// All rounds of a measure.
    pub(crate) fn add(&mut self, measure: impl Into<String>, unit: &'static str, columns: [Rounds; 3]) {
        self.rows.push(Row { measure: measure.into(), unit, columns });
    }

    pub(crate) fn print(&self, json: bool) {
        if !json {
            let [first, second, third] = self.libraries;
            println!("{:28} {:9} {first:>34} {second:>34} {third:>34}", "median (min – max) [ratio]", "unit");
        }
        for row in &self.rows {
            if json {
                self.print_json(row);
                continue;
            }
            print!("{:28} {:9}", row.measure, row.unit);
            for rounds in &row.columns {
                let ratio = rounds.ratio().map_or_else(String::new, |ratio| format!("[{}]", digits(ratio.median)));
                print!(" {:>34}", format!("{} {ratio}", told(rounds.value())));
            }
            println!();
        }
    }

    /// Draws what there is of the passing between processes.
    pub(crate) fn draw(&self, file: &Path, processes: usize) {
        let median = |measure: &str, library: usize| {
            let row = self.rows.iter().find(|row| row.measure == measure).expect("the measure was taken");
            row.columns[library].value().median
        };
        let columns = (0..self.libraries.len()).map(|library| Peer {
            name: self.libraries[library],
            handoff_p50: median("handoff_p50", library),
            handoff_p99: median("handoff_p99", library),
            owner_changes: median("owner_changes_per_second", library),
        });
        peers::draw(file, processes, &columns.collect::<Vec<_>>());
    }

    fn print_json(&self, row: &Row) {
        let Row { measure, unit, columns } = row;
        for (library, rounds) in self.libraries.iter().zip(columns) {
            let (value, least, most) = (rounds.value().median, rounds.value().least, rounds.value().most);
            let ratio = rounds.ratio().map_or_else(|| "null".to_owned(), |ratio| format!("{:.4}", ratio.median));
            let values = format!(r#""value":{value:.4},"min":{least:.4},"max":{most:.4},"unit":"{unit}""#);
            println!(r#"{{"library":"{library}","measure":"{measure}",{values},"ratio":{ratio}}}"#);
        }
    }
}
