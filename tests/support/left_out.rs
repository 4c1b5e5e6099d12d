//! What a machine cannot be asked for.

use std::{
    env,
    io::{self, Write},
};

/// Says that something is not tried here, and why, past what the harness of tests keeps to itself of those that pass.
///
/// # Panics
/// When `CI` is set and the machine `ought_to` be able to: there nobody reads what is left out.
pub fn left_out(what: &str, why: &str, ought_to: bool) {
    let told = format!("left out: {what}: {why}");
    assert!(!ought_to || env::var_os("CI").is_none(), "{told}");
    // Unlike `eprintln!`, this is not captured.
    let _ = writeln!(io::stderr(), "{told}");
}
