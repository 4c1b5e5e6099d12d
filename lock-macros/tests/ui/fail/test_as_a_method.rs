struct Shop;

impl Shop {
    #[lock_core::test]
    async fn order_is_paid_once(&self) {}
}

fn main() {
    let _ = Shop;
}
