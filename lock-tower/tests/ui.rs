//! What does not compile, and what the user reads then: one mistake per file, each with its exact message.
//!
//! The messages that are the compiler's own change with its version: run with `TRYBUILD=overwrite`, read what changed.

#[test]
fn bad_input_66_a_layer_without_a_key_does_not_compile_nor_do_other_mistakes() {
    trybuild::TestCases::new().compile_fail("tests/ui/fail/*.rs");
}
