#[lock_core::test]
struct Shop;

fn main() {
    let _ = Shop;
}
