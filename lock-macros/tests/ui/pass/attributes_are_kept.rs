// Each expectation is fulfilled only if the attribute on the locked function is still there. bad-input 60
#![deny(unfulfilled_lint_expectations, unused_mut)]

use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "goods")]
#[deprecated]
async fn old() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "goods")]
#[must_use]
#[expect(non_snake_case)]
async fn Loud() -> Result<(), Error> {
    #![expect(unused_mut)]
    let mut done = ();
    Ok(done)
}

#[distributed_lock(key = "goods")]
fn boxed() -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>>>> {
    Box::pin(async move {
        #![expect(unused_mut)]
        let mut done = ();
        Ok(done)
    })
}

async fn ignore() {
    #[expect(deprecated)]
    drop(old());
    #[expect(unused_must_use)]
    Loud().await;
    drop(boxed());
}

fn main() {
    drop(ignore());
}
