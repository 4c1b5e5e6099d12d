// The compiler still sees that an argument is unused.
#![deny(unfulfilled_lint_expectations)]

use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods")]
#[expect(unused_variables)]
async fn sell(id: u64) -> Result<(), Error> {
    Ok(())
}

fn main() {
    drop(sell(1));
}
