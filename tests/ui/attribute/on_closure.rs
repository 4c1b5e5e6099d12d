// bad_input_63
use lock_core::{Error, distributed_lock};

fn main() {
    let _sell = #[distributed_lock(key = "goods:<id>")]
    async |id: u64| Ok::<_, Error>(id);
}
