//! What does not compile, and what the user reads then: one mistake per file, each with its exact message.
//!
//! The messages that are the compiler's own change with its version, so they are compared with one version only. After an
//! upgrade, run with `TRYBUILD=overwrite`, read what changed, and name the new version here.
//!
//! What compiles, and is silent, stands in `warnings.rs` and `remedies.rs` of the tests of lock-macros and lock-tower: a file here
//! that passes would have everything built once more.

use std::{
    env,
    io::{Write, stderr},
    process::Command,
};

/// The Rust whose messages are in the `.stderr` files.
const RUST: &str = "1.95";

/// Whether this is another Rust; then the test says that it is left out.
fn is_another_rust() -> bool {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().expect("there is a compiler");
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_another = !version.starts_with(&format!("rustc {RUST}.")) && env::var_os("TRYBUILD").is_none();
    if is_another {
        // Unlike `eprintln!`, this is not captured.
        let _ = writeln!(
            stderr(),
            "left out: messages of mistakes are compared with Rust {RUST}: this is {}",
            version.trim()
        );
    }
    is_another
}

#[test]
fn wrong_use_is_refused_at_the_tokens_at_fault() {
    if !is_another_rust() {
        trybuild::TestCases::new().compile_fail("attribute/*.rs");
    }
}

#[test]
fn bad_input_66_a_layer_without_a_key_does_not_compile_nor_do_other_mistakes() {
    if !is_another_rust() {
        trybuild::TestCases::new().compile_fail("layer/*.rs");
    }
}
