//! What was measured, a column for each library.

use crate::support::stats::median;

/// Values and ratios of each round, by measure.
pub(crate) struct Figures {
    libraries: [&'static str; 3],
    rows: Vec<Row>,
}

struct Row {
    measure: &'static str,
    unit: &'static str,
    values: [Vec<f64>; 3],
    ratios: [Vec<f64>; 3],
}

impl Figures {
    pub(crate) fn new(libraries: [&'static str; 3]) -> Self {
        Self { libraries, rows: Vec::new() }
    }

    /// One round of a measure; one that warms up is not kept.
    pub(crate) fn add(
        &mut self,
        keep: bool,
        measure: &'static str,
        unit: &'static str,
        values: [f64; 3],
        ratios: [f64; 3],
    ) {
        if !keep {
            return;
        }
        let known = self.rows.iter().position(|row| row.measure == measure);
        let row = known.unwrap_or_else(|| {
            self.rows.push(Row { measure, unit, values: Default::default(), ratios: Default::default() });
            self.rows.len() - 1
        });
        let row = &mut self.rows[row];
        for library in 0..3 {
            row.values[library].push(values[library]);
            row.ratios[library].push(ratios[library]);
        }
    }

    /// The only or median figure of a measure. NaN is a ratio that there is none of.
    pub(crate) fn set(&mut self, measure: &'static str, unit: &'static str, values: [f64; 3], ratios: [f64; 3]) {
        self.add(true, measure, unit, values, ratios);
    }

    pub(crate) fn print(&self, json: bool) {
        if !json {
            let [first, second, third] = self.libraries;
            println!("{:28} {:9} {first:>20} {second:>20} {third:>20}", "measure (x raw)", "unit");
        }
        for row in &self.rows {
            let values = row.values.each_ref().map(|values| median(values.clone()));
            let ratios = row.ratios.each_ref().map(|ratios| median(ratios.clone()));
            if json {
                self.print_json(row, values, ratios);
                continue;
            }
            print!("{:28} {:9}", row.measure, row.unit);
            for (value, ratio) in values.into_iter().zip(ratios) {
                let ratio = if ratio.is_finite() { format!("({ratio:.2})") } else { String::new() };
                print!(" {value:10.2} {ratio:>9}");
            }
            println!();
        }
    }

    fn print_json(&self, row: &Row, values: [f64; 3], ratios: [f64; 3]) {
        let Row { measure, unit, .. } = row;
        for ((library, value), ratio) in self.libraries.iter().zip(values).zip(ratios) {
            let ratio = if ratio.is_finite() { format!("{ratio:.4}") } else { "null".to_owned() };
            println!(
                r#"{{"library":"{library}","measure":"{measure}","value":{value:.4},"unit":"{unit}","ratio":{ratio}}}"#
            );
        }
    }
}
