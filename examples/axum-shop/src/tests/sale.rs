//! The function of `docs/guarantees.md` that claims, reads and writes, on SQLite and PostgreSQL. A test of the workspace compares
//! it with the page.

use lock_core::FencingToken;
use sqlx::any::{AnyPoolOptions, install_default_drivers};
use sqlx::{AnyPool as Pool, query, query_scalar};
use tokio::task::JoinSet;

#[cfg(all(feature = "mariadb", feature = "postgres"))]
use super::server::Server;

/// Sells one unit. Returns whether it was sold: if not, none is left, or another claim has come, and the stock is as it was.
async fn sell(shop: &Pool, id: i64, fence: FencingToken) -> Result<bool, sqlx::Error> {
    let fence = fence.as_i64();
    let claim = "UPDATE goods SET fence = $1, claim = claim + 1 WHERE id = $2 AND fence <= $1 RETURNING stock, claim";
    let claimed: Option<(i64, i64)> = sqlx::query_as(claim).bind(fence).bind(id).fetch_optional(shop).await?;
    let Some((stock, claim)) = claimed else { return Ok(false) };
    if stock == 0 {
        return Ok(false);
    }
    let left = stock - 1; // the work, as long as it may take
    let write = "UPDATE goods SET stock = $1, claim = claim + 1 WHERE id = $2 AND fence = $3 AND claim = $4";
    let write = sqlx::query(write).bind(left).bind(id).bind(fence).bind(claim).execute(shop).await?;
    Ok(write.rows_affected() == 1)
}

#[tokio::test]
async fn sales_on_sqlite_that_claim_first_lose_no_update() {
    sales_that_claim_first_lose_no_update("sqlite::memory:").await;
}

#[cfg(all(feature = "mariadb", feature = "postgres"))]
#[tokio::test]
async fn sales_on_postgres_that_claim_first_lose_no_update() {
    let Some(server) = Server::postgres().await else { return };
    sales_that_claim_first_lose_no_update(server.url()).await;
}

async fn sales_that_claim_first_lose_no_update(database: &str) {
    install_default_drivers();
    // SQLite in memory belongs to its connection: there is one, and it stays.
    let connections = if database.starts_with("sqlite:") { 1 } else { 8 };
    let options = AnyPoolOptions::new().max_connections(connections).idle_timeout(None).max_lifetime(None);
    let shop = options.connect(database).await.unwrap();
    for statement in [
        "CREATE TABLE goods (id BIGINT PRIMARY KEY, stock BIGINT NOT NULL)",
        "ALTER TABLE goods ADD COLUMN fence BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE goods ADD COLUMN claim BIGINT NOT NULL DEFAULT 0",
        "INSERT INTO goods (id, stock) VALUES (7, 100)",
    ] {
        query(statement).execute(&shop).await.unwrap();
    }
    let left = async || query_scalar::<_, i64>("SELECT stock FROM goods WHERE id = 7").fetch_one(&shop).await.unwrap();

    // One after the other, and then one that is late.
    for (fence, is_sold) in [(33, true), (33, true), (34, true), (33, false)] {
        assert_eq!(sell(&shop, 7, FencingToken::new(fence)).await.unwrap(), is_sold, "{fence}");
    }
    assert_eq!(left().await, 97);

    // Tasks of several holders at once, in whichever order their statements come. What each was told is what is gone.
    let mut sales = JoinSet::new();
    for task in 0..30 {
        let shop = shop.clone();
        sales.spawn(async move { sell(&shop, 7, FencingToken::new(34 + task % 3)).await.unwrap() });
    }
    let sold: i64 = sales.join_all().await.into_iter().map(i64::from).sum();
    assert!(sold > 0, "the claim that comes last stands");
    assert_eq!(left().await, 97 - sold);
}
