//! What does not compile, and what the user reads then: one mistake per file, each with its exact message.
//!
//! The messages that are the compiler's own change with its version: run with `TRYBUILD=overwrite`, read what changed.
//! What compiles, and is silent, stands in `warnings.rs`: a file here that passes would have everything built once more.

#[test]
fn wrong_use_is_refused_at_the_tokens_at_fault() {
    trybuild::TestCases::new().compile_fail("tests/ui/fail/*.rs");
}
