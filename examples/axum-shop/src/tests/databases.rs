//! The service on MariaDB, and on PostgreSQL if it is installed, two instances at a time.

use lock_core::LockManager;
use tokio::task::JoinSet;

use super::instance;
use super::payments::of_two_payments_one_is_sent_away;
use super::server::Server;
use crate::shop::{Order, Problem};

#[tokio::test]
async fn two_instances_on_mariadb_sell_what_there_is_and_never_meet_another_version() {
    let server = Server::mariadb().await;
    two_instances_sell_what_there_is(server.url(), "mariadb").await;
}

#[tokio::test]
async fn two_instances_on_postgres_sell_what_there_is_and_never_meet_another_version() {
    let Some(server) = Server::postgres().await else { return };
    two_instances_sell_what_there_is(server.url(), "postgres").await;
}

async fn two_instances_sell_what_there_is(database: &str, store: &str) {
    let instances = [instance(database, store).await, instance(database, store).await];
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
async fn of_two_payments_at_once_on_mariadb_one_is_sent_away_and_later_ones_find_it_paid() {
    let server = Server::mariadb().await;
    of_two_payments_one_is_sent_away(server.url(), "payments-mariadb").await;
}

#[tokio::test]
async fn of_two_payments_at_once_on_postgres_one_is_sent_away_and_later_ones_find_it_paid() {
    let Some(server) = Server::postgres().await else { return };
    of_two_payments_one_is_sent_away(server.url(), "payments-postgres").await;
}

/// On MariaDB a transaction sees one state of the data (`REPEATABLE READ`): the view stays as it was, however long the
/// second one waits.
#[tokio::test]
async fn transaction_around_the_lock_on_mariadb_reads_old_stock_and_only_the_version_saves_it() {
    let server = Server::mariadb().await;
    transaction_around_the_lock_reads_old_stock(server.url(), 10).await;
}

/// On PostgreSQL each statement sees what is committed by then (`READ COMMITTED`): too late as well.
#[tokio::test]
async fn transaction_around_the_lock_on_postgres_reads_old_stock_and_only_the_version_saves_it() {
    let Some(server) = Server::postgres().await else { return };
    transaction_around_the_lock_reads_old_stock(server.url(), 9).await;
}

/// The wrong way round: begin, lock, read, write, release, commit. Both buyers find the last unit in stock, each under
/// its lock; only the version keeps the second from selling it again.
async fn transaction_around_the_lock_reads_old_stock(database: &str, seen_later: i64) {
    let (_, shop) = instance(database, "around").await;
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
    assert_eq!(shop.read(&mut second, 1).await.unwrap().unwrap().left, seen_later);
    assert!(!shop.write(&mut second, seen_by_second, seen_by_second.left - 1).await.unwrap());
    second.rollback().await.unwrap();
    lock.release().await.unwrap();
}

#[tokio::test]
async fn transaction_inside_the_lock_on_mariadb_reads_what_the_last_holder_wrote() {
    let server = Server::mariadb().await;
    transaction_inside_the_lock_reads_what_was_written(server.url()).await;
}

#[tokio::test]
async fn transaction_inside_the_lock_on_postgres_reads_what_the_last_holder_wrote() {
    let Some(server) = Server::postgres().await else { return };
    transaction_inside_the_lock_reads_what_was_written(server.url()).await;
}

/// The right way round, in the same steps: the second reads what the first has committed.
async fn transaction_inside_the_lock_reads_what_was_written(database: &str) {
    let (_, shop) = instance(database, "inside").await;
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
