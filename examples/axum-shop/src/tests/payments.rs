//! Two clicks on one button, on whichever database; here on SQLite.

use super::instance;

#[tokio::test]
async fn of_two_payments_at_once_on_sqlite_one_is_sent_away_and_later_ones_find_it_paid() {
    of_two_payments_one_is_sent_away("sqlite::memory:", "payments-sqlite").await;
}

pub(super) async fn of_two_payments_one_is_sent_away(database: &str, store: &str) {
    let (url, _) = instance(database, store).await;
    let client = reqwest::Client::new();
    let pay = || async { client.post(format!("{url}/orders/7/pay")).send().await.unwrap() };
    let (first, second) = tokio::join!(pay(), pay());
    let mut answers = [first.status().as_u16(), second.status().as_u16()];
    answers.sort_unstable();
    assert_eq!(answers, [200, 409]);
    assert_eq!(pay().await.text().await.unwrap(), "order 7 was paid before\n");
}
