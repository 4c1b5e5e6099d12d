//! The service on real databases, over real sockets, two instances at a time.

mod mariadb;

use lock_core::LockManager;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use self::mariadb::MariaDb;
use crate::app::App;
use crate::shop::{Order, Problem, Shop};

#[tokio::test]
async fn two_instances_on_mariadb_sell_what_there_is_and_never_meet_another_version() {
    let server = MariaDb::start().await;
    let instances = [instance(&server, "mariadb").await, instance(&server, "mariadb").await];
    let client = reqwest::Client::new();
    let mut buyers = JoinSet::new();
    for buyer in 0..30 {
        let url = &instances[buyer % 2].0;
        // Single units of good 1, and orders that want it among others.
        let request = match buyer % 3 {
            0 => client.post(format!("{url}/orders")).json(&Order::from([(1, 1), (2, 1)])),
            _ => client.post(format!("{url}/goods/1/sell")),
        };
        buyers.spawn(async move { request.send().await.unwrap().status().as_u16() });
    }
    let mut answers = buyers.join_all().await;
    answers.sort_unstable();
    assert_eq!(answers, [vec![200; 10], vec![409; 20]].concat());

    let stock = instances[0].1.stock().await.unwrap();
    assert_eq!((stock[0].left, stock[0].version), (0, 10));
    assert_eq!(stock[1].left, 10 - stock[1].version, "an order went through in part");
}

#[tokio::test]
async fn of_two_payments_at_once_one_is_sent_away_and_later_ones_find_it_paid() {
    let server = MariaDb::start().await;
    let (url, _) = instance(&server, "payments").await;
    let client = reqwest::Client::new();
    let pay = || async { client.post(format!("{url}/orders/7/pay")).send().await.unwrap() };
    let (first, second) = tokio::join!(pay(), pay());
    let mut answers = [first.status().as_u16(), second.status().as_u16()];
    answers.sort_unstable();
    assert_eq!(answers, [200, 409]);
    assert_eq!(pay().await.text().await.unwrap(), "order 7 was paid before\n");
}

/// The wrong way round: begin, lock, read, write, release, commit. Both buyers find the last unit in stock, each under
/// its lock; only the version keeps the second from selling it again.
#[tokio::test]
async fn transaction_around_the_lock_reads_old_stock_and_only_the_version_saves_it() {
    let server = MariaDb::start().await;
    let (_, shop) = instance(&server, "around").await;
    let manager = LockManager::in_memory();

    let mut first = shop.begin().await.unwrap();
    let lock = manager.lock("goods:1").await.unwrap();
    let seen_by_first = shop.read(&mut first, 1).await.unwrap().unwrap();
    assert!(shop.write(&mut first, seen_by_first, seen_by_first.left - 1).await.unwrap());
    lock.release().await.unwrap(); // and nothing is committed yet

    let mut second = shop.begin().await.unwrap();
    let lock = manager.lock("goods:1").await.unwrap();
    let seen_by_second = shop.read(&mut second, 1).await.unwrap().unwrap();
    first.commit().await.unwrap();
    assert_eq!(seen_by_second.left, seen_by_first.left, "the same unit, seen under the lock by both");
    // The view stays as it was, however long the second one waits.
    assert_eq!(shop.read(&mut second, 1).await.unwrap().unwrap().left, seen_by_first.left);
    assert!(!shop.write(&mut second, seen_by_second, seen_by_second.left - 1).await.unwrap());
    second.rollback().await.unwrap();
    lock.release().await.unwrap();
}

/// The right way round, in the same steps: the second reads what the first has committed.
#[tokio::test]
async fn transaction_inside_the_lock_reads_what_the_last_holder_wrote() {
    let server = MariaDb::start().await;
    let (_, shop) = instance(&server, "inside").await;
    let manager = LockManager::in_memory();
    for expected in [10, 9, 8] {
        let sold = manager.lock("goods:1").run(async |_| {
            let mut transaction = shop.begin().await?;
            let row = shop.read(&mut transaction, 1).await?.ok_or(Problem::NoSuchGood)?;
            assert_eq!(row.left, expected);
            let written = shop.write(&mut transaction, row, row.left - 1).await?;
            transaction.commit().await?;
            Ok::<_, Problem>(written)
        });
        assert!(sold.await.unwrap().unwrap());
    }
}

/// Starts one instance; its locks are in the store of this name, which others of the same name share.
async fn instance(server: &MariaDb, store: &str) -> (String, Shop) {
    let manager = LockManager::connect(&format!("memory://{store}")).await.unwrap();
    let shop = Shop::open(&server.url()).await.unwrap();
    shop.lay_out().await.unwrap();
    // Not installed: other tests of this process count as well.
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = App { manager, shop: shop.clone(), metrics }.service();
    tokio::spawn(async move { axum::serve(listener, service).await });
    (url, shop)
}
