//! Figures as lines of JSON, or as a table for the eye.

use std::{
    env::{args_os, var_os},
    ffi::OsString,
    fmt,
    path::PathBuf,
};

/// What the bench was asked for: `--json`, `--plot FOLDER`.
pub(crate) struct Report {
    json: bool,
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

    /// One figure. The ratio is to raw commands in the same run; there is none where they have no such figure.
    pub(crate) fn figure(&mut self, measure: &str, value: f64, unit: &str, ratio: Option<f64>, target: Target) {
        let ratio = ratio.filter(|ratio| ratio.is_finite());
        if self.json {
            let ratio = ratio.map_or_else(|| "null".to_owned(), |ratio| format!("{ratio:.4}"));
            println!(r#"{{"measure":"{measure}","value":{value:.4},"unit":"{unit}","ratio":{ratio}}}"#);
            return;
        }
        if self.rows == 0 {
            println!("{:30} {:>12} {:10} {:>9}  {:14} reached", "measure", "value", "unit", "ratio", "target");
        }
        self.rows += 1;
        let shown = ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}"));
        let reached = target.reached(value, ratio).map_or("–", |reached| if reached { "yes" } else { "no" });
        println!("{measure:30} {value:12.2} {unit:10} {shown:>9}  {:14} {reached}", target.to_string());
    }

    /// A remark for those who read the table.
    pub(crate) fn remark(&self, remark: &str) {
        if !self.json {
            println!("  {remark}");
        }
    }
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
            Self::RatioAtMost(most) => write!(f, "≤ {most} x raw"),
            Self::RatioAtLeast(least) => write!(f, "≥ {least} x raw"),
            Self::None => write!(f, "–"),
        }
    }
}
