#[lock_test::test]
struct Shop;

fn main() {
    let _ = Shop;
}
