//! The statements of `docs/guarantees.md` for a store that is claimed with the fencing token, on MariaDB and PostgreSQL, each holder over a
//! connection of its own.

use std::io::{Write as _, stderr};
use std::time::{Duration, Instant};

use sqlx::mysql::MySqlDatabaseError;
use sqlx::{AnyConnection, Connection as _, Row as _};
use tokio::time::sleep;

use super::server::Server;

const FIRST: i64 = 33;
const SECOND: i64 = 34;

/// The two dialects differ in how a claim reads, in how a name is claimed, and in their placeholders.
#[derive(Clone, Copy, PartialEq)]
enum Dialect {
    MariaDb,
    Postgres,
}

/// A holder of the lock, or one of its tasks, with its token.
struct Holder {
    connection: AnyConnection,
    dialect: Dialect,
    fence: i64,
}

/// What a holder has read of the row that it has claimed.
struct Claim {
    stock: i64,
    number: i64,
}

impl Holder {
    async fn connect(url: &str, dialect: Dialect, fence: i64) -> Self {
        Self { connection: AnyConnection::connect(url).await.unwrap(), dialect, fence }
    }

    async fn execute(&mut self, statement: &str) -> u64 {
        self.try_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    async fn try_execute(&mut self, statement: &str) -> Result<u64, sqlx::Error> {
        let statement = sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()));
        Ok(statement.execute(&mut self.connection).await?.rows_affected())
    }

    /// The numbers of the first row.
    async fn row<const COLUMNS: usize>(&mut self, query: &str) -> Result<Option<[i64; COLUMNS]>, sqlx::Error> {
        let query = sqlx::raw_sql(sqlx::AssertSqlSafe(query.to_owned()));
        let row = query.fetch_optional(&mut self.connection).await?;
        Ok(row.map(|row| std::array::from_fn(|column| row.get(column))))
    }

    async fn number(&mut self, query: &str) -> i64 {
        let [number] = self.row(query).await.unwrap().unwrap();
        number
    }

    /// Claims the row.
    async fn claim(&mut self) {
        let fence = self.fence;
        let claim = format!("UPDATE goods SET fence = {fence}, claim = claim + 1 WHERE id = 7 AND fence <= {fence}");
        self.execute(&claim).await;
    }

    /// Reads the row that it has claimed, if that is so: how a holder does on MariaDB.
    async fn read_claimed(&mut self) -> Option<Claim> {
        let read = format!("SELECT stock, claim FROM goods WHERE id = 7 AND fence = {}", self.fence);
        let [stock, number] = self.row(&read).await.unwrap()?;
        Some(Claim { stock, number })
    }

    /// Claims the row and reads it; `None` if a later holder has claimed.
    async fn claim_and_read(&mut self) -> Option<Claim> {
        if self.dialect == Dialect::MariaDb {
            self.claim().await;
            return self.read_claimed().await;
        }
        let fence = self.fence;
        let claim =
            "UPDATE goods SET fence = {}, claim = claim + 1 WHERE id = 7 AND fence <= {} RETURNING stock, claim";
        let [stock, number] = self.row(&claim.replace("{}", &fence.to_string())).await.unwrap()?;
        Some(Claim { stock, number })
    }

    /// Sells one of what the claim has read; 1 if that was written.
    async fn sell(&mut self, claim: &Claim) -> i64 {
        let (fence, Claim { stock, number }) = (self.fence, claim);
        let write = format!(
            "UPDATE goods SET stock = {}, claim = claim + 1 WHERE id = 7 AND fence = {fence} AND claim = {number}",
            stock - 1
        );
        self.execute(&write).await.try_into().unwrap()
    }

    async fn read(&mut self) -> i64 {
        self.number("SELECT stock FROM goods WHERE id = 7").await
    }

    async fn write(&mut self, stock: i64) {
        self.execute(&format!("UPDATE goods SET stock = {stock} WHERE id = 7")).await;
    }

    /// Compares at the write only: what is not enough.
    async fn compare_and_write(&mut self, stock: i64) -> bool {
        let fence = self.fence;
        let write = format!("UPDATE goods SET stock = {stock}, fence = {fence} WHERE id = 7 AND fence <= {fence}");
        self.execute(&write).await == 1
    }

    /// Claims the name of the key in a transaction that has begun; `false` if a later holder has claimed.
    async fn claim_name(&mut self) -> Result<bool, sqlx::Error> {
        let fence = self.fence;
        let claimed: Option<[i64; 1]> = if self.dialect == Dialect::MariaDb {
            let claim = format!("UPDATE fences SET fence = {fence} WHERE name = 'goods:7' AND fence <= {fence}");
            self.try_execute(&claim).await?;
            let look = format!("SELECT fence FROM fences WHERE name = 'goods:7' AND fence = {fence} FOR UPDATE");
            self.row(&look).await?
        } else {
            let claim = "INSERT INTO fences (name, fence) VALUES ('goods:7', {}) ON CONFLICT (name) \
                DO UPDATE SET fence = excluded.fence WHERE fences.fence <= excluded.fence RETURNING fence";
            self.row(&claim.replace("{}", &fence.to_string())).await?
        };
        Ok(claimed.is_some())
    }

    /// Makes the row of the key before the transaction, where that is needed.
    async fn begin(&mut self, begin: &str) {
        if self.dialect == Dialect::MariaDb {
            self.execute("INSERT IGNORE INTO fences (name, fence) VALUES ('goods:7', 0)").await;
        }
        self.execute(begin).await;
    }

    /// Claims, reads and writes, in a transaction that has begun, and commits. The read is `SELECT stock … {how}`.
    async fn sell_in_transaction(&mut self, how: &str) -> Result<(), sqlx::Error> {
        assert!(self.claim_name().await?);
        let stock = self.number(&format!("SELECT stock FROM goods WHERE id = 7 {how}")).await;
        self.write(stock - 1).await;
        self.execute("COMMIT").await;
        Ok(())
    }

    /// Returns when a connection of this server waits for a lock.
    async fn until_a_lock_is_awaited(&mut self) {
        let waiting = match self.dialect {
            // `innodb_trx` would show an old state for as long as it is asked for often.
            Dialect::MariaDb => {
                "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status \
                 WHERE variable_name = 'Innodb_row_lock_current_waits'"
            }
            Dialect::Postgres => "SELECT COUNT(*) FROM pg_locks WHERE NOT granted",
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.number(waiting).await == 0 {
            assert!(Instant::now() < deadline, "nobody waits for the row");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A shop with two units, and two that want to sell one, with these tokens.
async fn two_holders(url: &str, dialect: Dialect, fences: [i64; 2]) -> [Holder; 2] {
    let mut first = Holder::connect(url, dialect, fences[0]).await;
    for statement in [
        "DROP TABLE IF EXISTS goods, fences",
        "CREATE TABLE goods (id INT PRIMARY KEY, stock BIGINT NOT NULL)",
        "ALTER TABLE goods ADD COLUMN fence BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE goods ADD COLUMN claim BIGINT NOT NULL DEFAULT 0",
        "CREATE TABLE fences (name VARCHAR(255) PRIMARY KEY, fence BIGINT NOT NULL)",
        "INSERT INTO goods (id, stock) VALUES (7, 2)",
    ] {
        first.execute(statement).await;
    }
    [first, Holder::connect(url, dialect, fences[1]).await]
}

#[tokio::test]
async fn a_store_on_mariadb_that_is_claimed_first_loses_no_update() {
    let server = Server::mariadb().await;
    a_store_that_is_claimed_first_loses_no_update(server.url(), Dialect::MariaDb).await;

    // Of two tasks with one token that have both claimed before they read, one writes.
    let [mut one, mut other] = two_holders(server.url(), Dialect::MariaDb, [FIRST, FIRST]).await;
    one.claim().await;
    other.claim().await;
    let (by_one, by_other) = (one.read_claimed().await.unwrap(), other.read_claimed().await.unwrap());
    assert_eq!([one.sell(&by_one).await, other.sell(&by_other).await], [1, 0]);
    assert_eq!(one.read().await, 1);
}

#[tokio::test]
async fn a_store_on_postgres_that_is_claimed_first_loses_no_update() {
    let Some(server) = Server::postgres().await else { return };
    a_store_that_is_claimed_first_loses_no_update(server.url(), Dialect::Postgres).await;
}

async fn a_store_that_is_claimed_first_loses_no_update(url: &str, dialect: Dialect) {
    // The first one wakes up between the read and the write of the second.
    let [mut first, mut second] = two_holders(url, dialect, [FIRST, SECOND]).await;
    let seen = first.claim_and_read().await.unwrap();
    let seen_by_second = second.claim_and_read().await.unwrap();
    assert_eq!([first.sell(&seen).await, second.sell(&seen_by_second).await], [0, 1]);
    // It wakes up afterwards, and begins again.
    assert_eq!(first.sell(&seen).await, 0);
    assert!(first.claim_and_read().await.is_none());
    // One holder may claim twice.
    second.claim_and_read().await.unwrap();
    assert_eq!(second.claim_and_read().await.unwrap().stock, 1);

    equal_tokens_lose_no_update(url, dialect).await;

    // What is not enough: the late write is taken, and lost.
    let [mut first, mut second] = two_holders(url, dialect, [FIRST, SECOND]).await;
    let (seen, seen_by_second) = (first.read().await, second.read().await);
    assert!(first.compare_and_write(seen - 1).await);
    assert!(second.compare_and_write(seen_by_second - 1).await);
    assert_eq!(second.read().await, 1, "two were sold, and one is gone");

    // A transaction that begins with the claim keeps the next holder out until it commits, and that one reads what it wrote. So it is with
    // tokens that are equal.
    for fences in [[FIRST, SECOND], [FIRST, FIRST]] {
        let [mut first, mut second] = two_holders(url, dialect, fences).await;
        first.begin("BEGIN").await;
        second.begin("BEGIN").await;
        assert!(first.claim_name().await.unwrap());
        let seen = first.read().await;
        let waits = tokio::spawn(async move {
            second.sell_in_transaction("").await.unwrap();
            second
        });
        first.until_a_lock_is_awaited().await;
        first.write(seen - 1).await;
        first.execute("COMMIT").await;
        let mut second = waits.await.unwrap();
        assert_eq!(second.read().await, 0, "two were sold, and two are gone");
        // The first one comes back.
        first.begin("BEGIN").await;
        assert_eq!(first.claim_name().await.unwrap(), fences[0] == fences[1]);
        first.execute("ROLLBACK").await;
    }

    // A claim that comes last loses an update: the second has read before it claims.
    let [mut first, mut second] = two_holders(url, dialect, [FIRST, SECOND]).await;
    let (seen, seen_by_second) = (first.read().await, second.read().await);
    for (holder, seen) in [(&mut first, seen), (&mut second, seen_by_second)] {
        holder.begin("BEGIN").await;
        assert!(holder.claim_name().await.unwrap());
        holder.write(seen - 1).await;
        holder.execute("COMMIT").await;
    }
    assert_eq!(second.read().await, 1, "two were sold, and one is gone");

    // A claim by a plain SELECT keeps nobody out: the first has looked, the second claims, and the first writes as if it still held the row.
    let [mut first, mut second] = two_holders(url, dialect, [FIRST, SECOND]).await;
    first.execute("BEGIN").await;
    let looked = first.number("SELECT stock FROM goods WHERE id = 7 AND fence <= 33").await;
    second.execute("BEGIN").await;
    let seen_by_second = second.claim_and_read().await.unwrap();
    second.execute("COMMIT").await;
    first.write(looked - 1).await;
    first.execute("COMMIT").await;
    assert_eq!(second.sell(&seen_by_second).await, 1);
    assert_eq!(second.read().await, 1, "two were sold, and one is gone");
}

/// Two tasks of one holder, two holders after tokens repeated, and one that begins again while a write of its own is on its way.
async fn equal_tokens_lose_no_update(url: &str, dialect: Dialect) {
    for one_writes_first in [true, false] {
        let [mut one, mut other] = two_holders(url, dialect, [FIRST, FIRST]).await;
        let (by_one, by_other) = (one.claim_and_read().await.unwrap(), other.claim_and_read().await.unwrap());
        let sold = if one_writes_first {
            [one.sell(&by_one).await, other.sell(&by_other).await]
        } else {
            let other = other.sell(&by_other).await;
            [one.sell(&by_one).await, other]
        };
        assert_eq!(sold, [0, 1]);
        assert_eq!(one.read().await, 1);
    }

    // The client has given up on a write that waits for a lock, and begins again over another connection. The write is executed first, and
    // what is read then shows it.
    let [mut given_up, mut again] = two_holders(url, dialect, [FIRST, FIRST]).await;
    let claim = given_up.claim_and_read().await.unwrap();
    let mut backup = Holder::connect(url, dialect, FIRST).await;
    backup.execute("BEGIN").await;
    backup.number("SELECT stock FROM goods WHERE id = 7 FOR UPDATE").await;
    let late = tokio::spawn(async move { given_up.sell(&claim).await });
    again.until_a_lock_is_awaited().await;
    let begun_again = tokio::spawn(async move {
        let claim = again.claim_and_read().await.unwrap();
        (again.sell(&claim).await, again)
    });
    backup.execute("COMMIT").await;
    let (sold, mut again) = begun_again.await.unwrap();
    let sold = sold + late.await.unwrap();
    assert_eq!(again.read().await, 2 - sold, "{sold} were sold");

    // The same write twice, as a driver sends it that reconnects.
    let [mut one, mut repeated] = two_holders(url, dialect, [FIRST, FIRST]).await;
    let claim = one.claim_and_read().await.unwrap();
    assert_eq!([one.sell(&claim).await, repeated.sell(&claim).await], [1, 0]);
    assert_eq!(one.read().await, 1);
}

/// MySQL, and MariaDB before 11.6.2, as this server is started: no error says that a transaction reads what was there before its claim.
#[tokio::test]
async fn a_transaction_on_mariadb_that_reads_before_its_claim_loses_an_update_unless_it_reads_what_is_there() {
    let server = Server::mariadb().await;
    let read = "START TRANSACTION; SELECT COUNT(*) FROM goods";
    let view = "START TRANSACTION WITH CONSISTENT SNAPSHOT";
    for (level, begin, how, left) in [
        ("REPEATABLE READ", read, "", 1),
        ("REPEATABLE READ", view, "", 1),
        ("REPEATABLE READ", "START TRANSACTION", "", 0),
        ("REPEATABLE READ", read, "FOR UPDATE", 0),
        ("REPEATABLE READ", view, "FOR UPDATE", 0),
        ("READ COMMITTED", read, "", 0),
    ] {
        let [mut first, mut second] = two_holders(server.url(), Dialect::MariaDb, [FIRST, SECOND]).await;
        second.execute(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await;
        second.begin(begin).await;
        first.begin("START TRANSACTION").await;
        first.sell_in_transaction("").await.unwrap();
        second.sell_in_transaction(how).await.unwrap();
        assert_eq!(first.read().await, left, "two were sold: {level}, {begin}, {how}");
    }
}

/// As MariaDB is from 11.6.2 on.
#[tokio::test]
async fn a_claim_on_a_mariadb_that_refuses_old_views_fails_and_rolls_the_transaction_back() {
    let server = Server::mariadb().await;
    let [mut first, mut second] = two_holders(server.url(), Dialect::MariaDb, [FIRST, SECOND]).await;
    for holder in [&mut first, &mut second] {
        if holder.try_execute("SET SESSION innodb_snapshot_isolation = ON").await.is_err() {
            // Past the harness, which keeps what a test says to itself unless it fails.
            let _ = writeln!(stderr(), "left out: claims under an old view: this MariaDB does not refuse them");
            return;
        }
    }
    second.begin("START TRANSACTION; SELECT COUNT(*) FROM goods").await;
    first.begin("START TRANSACTION").await;
    first.sell_in_transaction("").await.unwrap();
    let error = second.claim_name().await.unwrap_err();
    let number = error.as_database_error().and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>());
    assert_eq!(number.map(MySqlDatabaseError::number), Some(1020), "{error}");
    // The transaction is over: a layer that repeated the statement would have its UPDATE committed alone, without a claim.
    assert_eq!(second.number("SELECT CAST(@@in_transaction AS SIGNED)").await, 0);

    // The transaction begins again, with the claim.
    second.begin("START TRANSACTION").await;
    second.sell_in_transaction("").await.unwrap();
    assert_eq!(second.read().await, 0);

    // A claim that has to wait for that of the holder before sees no old view: it comes first.
    let mut third = Holder::connect(server.url(), Dialect::MariaDb, SECOND + 1).await;
    third.execute("SET SESSION innodb_snapshot_isolation = ON").await;
    third.execute("UPDATE goods SET stock = 2 WHERE id = 7").await;
    second.begin("START TRANSACTION").await;
    third.begin("START TRANSACTION").await;
    assert!(second.claim_name().await.unwrap());
    let waits = tokio::spawn(async move { third.sell_in_transaction("").await });
    second.until_a_lock_is_awaited().await;
    second.write(1).await;
    second.execute("COMMIT").await;
    waits.await.unwrap().unwrap();
    assert_eq!(second.read().await, 0);
}

#[tokio::test]
async fn a_claim_on_postgres_under_an_old_view_fails_and_succeeds_when_the_transaction_begins_again() {
    let Some(server) = Server::postgres().await else { return };
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let begin = format!("BEGIN ISOLATION LEVEL {level}");
        let [mut first, mut second] = two_holders(server.url(), Dialect::Postgres, [FIRST, SECOND]).await;
        // The view is that of the first statement: here a read, there the claim itself.
        second.execute(&format!("{begin}; SELECT COUNT(*) FROM goods")).await;
        first.begin(&begin).await;
        first.sell_in_transaction("").await.unwrap();
        assert_serialization_failed(&second.claim_name().await.unwrap_err());
        second.execute("ROLLBACK").await;
        second.begin(&begin).await;
        second.sell_in_transaction("").await.unwrap();
        assert_eq!(first.read().await, 0);

        let [mut first, mut second] = two_holders(server.url(), Dialect::Postgres, [FIRST, SECOND]).await;
        first.begin(&begin).await;
        second.begin(&begin).await;
        assert!(first.claim_name().await.unwrap());
        let waits = tokio::spawn(async move { second.claim_name().await.unwrap_err() });
        first.until_a_lock_is_awaited().await;
        first.execute("COMMIT").await;
        assert_serialization_failed(&waits.await.unwrap());
    }
}

#[track_caller]
fn assert_serialization_failed(error: &sqlx::Error) {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    assert_eq!(code.as_deref(), Some("40001"), "{error}");
}
