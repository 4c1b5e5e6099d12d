//! The statements of `docs/guarantees.md` for a store that is claimed with the fencing token, on MariaDB and PostgreSQL, each holder over a
//! connection of its own.

use std::time::Duration;

use sqlx::{AnyConnection, Connection as _, Row as _};
use tokio::time::timeout;

use super::server::Server;

const FIRST: i64 = 33;
const SECOND: i64 = 34;

/// The two dialects differ in how a claim reads, and in their placeholders.
#[derive(Clone, Copy, PartialEq)]
enum Dialect {
    MariaDb,
    Postgres,
}

/// A holder of the lock, with its token.
struct Holder {
    connection: AnyConnection,
    dialect: Dialect,
    fence: i64,
}

impl Holder {
    async fn connect(url: &str, dialect: Dialect, fence: i64) -> Self {
        Self { connection: AnyConnection::connect(url).await.unwrap(), dialect, fence }
    }

    async fn execute(&mut self, statement: &str) -> u64 {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()))
            .execute(&mut self.connection)
            .await
            .unwrap()
            .rows_affected()
    }

    /// Claims the row and reads it; `None` if a later holder has claimed.
    async fn claim_and_read(&mut self) -> Option<i64> {
        let fence = self.fence;
        let claim = format!("UPDATE fenced SET fence = {fence} WHERE id = 7 AND fence <= {fence}");
        if self.dialect == Dialect::Postgres {
            return self.one(&format!("{claim} RETURNING stock")).await;
        }
        let claimed = self.execute(&claim).await;
        let read = self.one(&format!("SELECT stock FROM fenced WHERE id = 7 AND fence = {fence}")).await;
        assert!(claimed == 1 || read.is_none(), "rows that were found are counted");
        read
    }

    async fn read(&mut self) -> i64 {
        self.one("SELECT stock FROM fenced WHERE id = 7").await.unwrap()
    }

    async fn one(&mut self, query: &str) -> Option<i64> {
        let row =
            sqlx::raw_sql(sqlx::AssertSqlSafe(query.to_owned())).fetch_optional(&mut self.connection).await.unwrap();
        row.map(|row| row.get(0))
    }

    /// Writes what was computed after a claim.
    async fn write(&mut self, stock: i64) -> bool {
        let fence = self.fence;
        self.execute(&format!("UPDATE fenced SET stock = {stock} WHERE id = 7 AND fence = {fence}")).await == 1
    }

    /// Compares at the write only: what is not enough.
    async fn compare_and_write(&mut self, stock: i64) -> bool {
        let fence = self.fence;
        let write = format!("UPDATE fenced SET stock = {stock}, fence = {fence} WHERE id = 7 AND fence <= {fence}");
        self.execute(&write).await == 1
    }
}

async fn two_holders(url: &str, dialect: Dialect) -> [Holder; 2] {
    let mut first = Holder::connect(url, dialect, FIRST).await;
    first.execute("DROP TABLE IF EXISTS fenced").await;
    first
        .execute("CREATE TABLE fenced (id INT PRIMARY KEY, stock BIGINT NOT NULL, fence BIGINT NOT NULL DEFAULT 0)")
        .await;
    first.execute("INSERT INTO fenced (id, stock) VALUES (7, 2)").await;
    [first, Holder::connect(url, dialect, SECOND).await]
}

#[tokio::test]
async fn a_store_on_mariadb_that_is_claimed_first_loses_no_update() {
    let server = Server::mariadb().await;
    a_store_that_is_claimed_first_loses_no_update(server.url(), Dialect::MariaDb).await;
}

#[tokio::test]
async fn a_store_on_postgres_that_is_claimed_first_loses_no_update() {
    let Some(server) = Server::postgres().await else { return };
    a_store_that_is_claimed_first_loses_no_update(server.url(), Dialect::Postgres).await;
}

async fn a_store_that_is_claimed_first_loses_no_update(url: &str, dialect: Dialect) {
    // The first one wakes up between the read and the write of the second.
    let [mut first, mut second] = two_holders(url, dialect).await;
    let seen = first.claim_and_read().await.unwrap();
    let seen_by_second = second.claim_and_read().await.unwrap();
    assert!(!first.write(seen - 1).await);
    assert!(second.write(seen_by_second - 1).await);
    // It wakes up afterwards, and begins again.
    assert!(!first.write(seen - 1).await);
    assert_eq!(first.claim_and_read().await, None);
    // One holder may claim twice.
    assert_eq!(second.claim_and_read().await, Some(1));
    assert_eq!(second.claim_and_read().await, Some(1));

    // What is not enough: the late write is taken, and lost.
    let [mut first, mut second] = two_holders(url, dialect).await;
    let (seen, seen_by_second) = (first.read().await, second.read().await);
    assert!(first.compare_and_write(seen - 1).await);
    assert!(second.compare_and_write(seen_by_second - 1).await);
    assert_eq!(second.read().await, 1, "two were sold, and one is gone");

    // A transaction that begins with the claim keeps the next holder out until it commits, and that one reads what it wrote.
    let [mut first, mut second] = two_holders(url, dialect).await;
    first.execute("BEGIN").await;
    let seen = first.claim_and_read().await.unwrap();
    second.execute("BEGIN").await;
    let waits = async {
        let seen = second.claim_and_read().await.unwrap();
        assert!(second.write(seen - 1).await);
        second.execute("COMMIT").await;
    };
    tokio::pin!(waits);
    assert!(
        timeout(Duration::from_millis(300), &mut waits).await.is_err(),
        "the row is locked until the first commits"
    );
    assert!(first.write(seen - 1).await);
    first.execute("COMMIT").await;
    waits.await;
    assert_eq!(first.read().await, 0, "two were sold, and two are gone");

    // A claim that comes last loses an update: the second has read before it claims.
    let [mut first, mut second] = two_holders(url, dialect).await;
    let (seen, seen_by_second) = (first.read().await, second.read().await);
    first.claim_and_read().await.unwrap();
    assert!(first.write(seen - 1).await);
    second.claim_and_read().await.unwrap();
    assert!(second.write(seen_by_second - 1).await);
    assert_eq!(second.read().await, 1, "two were sold, and one is gone");

    // A claim by a plain SELECT keeps nobody out: the first has looked, the second claims, and the first writes as if it still held the row.
    let [mut first, mut second] = two_holders(url, dialect).await;
    first.execute("BEGIN").await;
    let looked = first.one("SELECT stock FROM fenced WHERE id = 7 AND fence <= 33").await.unwrap();
    let seen_by_second = second.claim_and_read().await.unwrap();
    first.execute(&format!("UPDATE fenced SET stock = {} WHERE id = 7", looked - 1)).await;
    first.execute("COMMIT").await;
    assert!(second.write(seen_by_second - 1).await);
    assert_eq!(second.read().await, 1, "two were sold, and one is gone");
}
