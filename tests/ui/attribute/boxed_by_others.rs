use std::pin::Pin;

use lock_core::{Error, distributed_lock};

type Boxed = Pin<Box<dyn Future<Output = Result<u64, Error>>>>;

struct Later;

impl Later {
    fn pin(work: impl Future<Output = Result<u64, Error>> + 'static) -> Boxed {
        Box::pin(async { work.await })
    }
}

#[distributed_lock(key = "goods:<id>")]
fn by_another_pin(id: u64) -> Pin<Box<dyn Future<Output = Result<u64, Error>>>> {
    Later::pin(async move { Ok(id) })
}

#[distributed_lock(key = "goods:<id>")]
fn by_another_function_of_box(id: u64) -> Pin<Box<dyn Future<Output = Result<u64, Error>>>> {
    Box::into_pin(Box::new(async move { Ok(id) }))
}

#[distributed_lock(key = "goods:<id>")]
fn with_something_added(id: u64) -> Pin<Box<dyn Future<Output = Result<u64, Error>>>> {
    Box::pin(async move { Ok(id) }.into_future())
}

fn main() {}
