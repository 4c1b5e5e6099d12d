//! Figures as lines of JSON, or as a table for the eye.

use std::{
    env::{args_os, var_os},
    ffi::OsString,
    fmt,
    path::PathBuf,
};

use super::stats::{Rounds, Spread};

/// What the bench was asked for: `--json`, `--plot FOLDER`.
pub(crate) struct Report {
    pub(crate) json: bool,
    /// Where pictures go.
    pub(crate) plots: Option<PathBuf>,
    rows: usize,
}

/// What a figure should reach.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    ValueAtMost(f64),
    ValueAtLeast(f64),
    RatioAtMost(f64),
    RatioAtLeast(f64),
    /// Nothing was asked for.
    None,
}

impl Report {
    pub(crate) fn from_arguments() -> Self {
        let (mut json, mut plots) = (false, None);
        let mut arguments = args_os().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.to_str() {
                Some("--json") => json = true,
                Some("--plot") => plots = Some(folder(arguments.next().expect("--plot FOLDER"))),
                // What cargo adds.
                Some("--bench") => {}
                _ => panic!("no such argument: {argument:?}; there are --json and --plot FOLDER"),
            }
        }
        Self { json, plots, rows: 0 }
    }

    /// One figure: the median of all rounds, and between what they lie. Ratios are to `against`, round by round.
    pub(crate) fn figure(&mut self, measure: &str, unit: &str, rounds: &Rounds, against: &str, target: Target) {
        let (value, ratio) = (rounds.value(), rounds.ratio().filter(|ratio| ratio.median.is_finite()));
        if self.json {
            let Spread { median, least, most } = value;
            let ratios = ratio.map_or_else(
                || r#""ratio":null"#.to_owned(),
                |Spread { median, least, most }| {
                    let range = format!(r#""ratio_min":{least:.4},"ratio_max":{most:.4}"#);
                    format!(r#""ratio":{median:.4},{range},"against":"{against}""#)
                },
            );
            let values = format!(r#""value":{median:.4},"min":{least:.4},"max":{most:.4},"unit":"{unit}""#);
            println!(r#"{{"measure":"{measure}",{values},{ratios}}}"#);
            return;
        }
        if self.rows == 0 {
            println!("{:33} {:>30} {:10} {:>22}", "measure", "median (min – max)", "unit", "ratio");
        }
        self.rows += 1;
        let shown = ratio.map_or_else(String::new, |ratio| format!("{} x {against}", told(ratio)));
        let reached = target.reached(value.median, ratio.map(|ratio| ratio.median));
        let reached = reached
            .map_or_else(String::new, |reached| format!("{target} {}", if reached { "reached" } else { "missed" }));
        println!("{measure:33} {:>30} {unit:10} {shown:>22}  {reached}", told(value));
    }

    /// A remark for those who read the table.
    pub(crate) fn remark(&self, remark: &str) {
        if !self.json {
            println!("  {remark}");
        }
    }
}

/// With as many digits as travel: two.
pub(crate) fn told(Spread { median, least, most }: Spread) -> String {
    if least == most { digits(median) } else { format!("{} ({} – {})", digits(median), digits(least), digits(most)) }
}

/// Two digits, and the commas of a large number.
pub(crate) fn digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let beyond = 1 - value.abs().log10().floor() as i32;
    if beyond >= 0 {
        return format!("{value:.*}", beyond as usize);
    }
    let scale = 10f64.powi(-beyond);
    whole((value / scale).round() * scale)
}

/// A whole number with a comma before every third digit from its end.
pub(crate) fn whole(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// Where the caller means: cargo starts a bench in the folder of its package, and leaves `PWD` alone.
fn folder(name: OsString) -> PathBuf {
    PathBuf::from(var_os("PWD").unwrap_or_default()).join(name)
}

impl Target {
    fn reached(self, value: f64, ratio: Option<f64>) -> Option<bool> {
        match self {
            Self::ValueAtMost(most) => Some(value <= most),
            Self::ValueAtLeast(least) => Some(value >= least),
            Self::RatioAtMost(most) => Some(ratio? <= most),
            Self::RatioAtLeast(least) => Some(ratio? >= least),
            Self::None => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ValueAtMost(most) => write!(f, "≤ {most}"),
            Self::ValueAtLeast(least) => write!(f, "≥ {least}"),
            Self::RatioAtMost(most) => write!(f, "≤ {most} x"),
            Self::RatioAtLeast(least) => write!(f, "≥ {least} x"),
            Self::None => write!(f, "–"),
        }
    }
}
