struct Shop;

impl Shop {
    #[lock_test::test]
    async fn order_is_paid_once(&self) {}
}

fn main() {
    let _ = Shop;
}
