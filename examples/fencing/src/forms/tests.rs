//! On SQLite, in memory: each statement comes when a test says so.

use super::*;

const FIRST: FencingToken = FencingToken::new(33);
const SECOND: FencingToken = FencingToken::new(34);

/// A shop with one good of two units, [`CLAIMED`].
fn shop() -> Result<Connection> {
    let shop = Connection::open_in_memory()?;
    shop.execute_batch(SCHEMA)?;
    Ok(shop)
}

fn claim(shop: &Connection, fence: FencingToken) -> Result<Claim> {
    claim_and_read(shop, CLAIMED, fence.as_i64())?.context("too late")
}

/// Writes that one unit less is there than the claim has read; 1 if that was sold.
fn sell(shop: &Connection, fence: FencingToken, claim: &Claim) -> Result<i64> {
    Ok(i64::from(write(shop, CLAIMED, fence.as_i64(), claim, claim.stock - 1)?))
}

/// What a reader with a shared lease sends: it compares, and claims nothing.
const READ: &str = "SELECT stock FROM goods WHERE id = :id AND fence <= :fence";

/// Reads the stock of [`CLAIMED`]; `None` if a later holder has claimed the row.
fn read(shop: &Connection, fence: FencingToken) -> Result<Option<i64>> {
    let parameters = named_params! { ":id": CLAIMED, ":fence": fence.as_i64() };
    Ok(shop.query_row(READ, parameters, |row| row.get(0)).optional()?)
}

/// Two sellers, the second of which begins under a later lease, end in an order; hands out what each sold and what is left.
fn sales(first_ends_before: bool) -> Result<([[bool; 4]; 2], [i64; 4])> {
    let mut shop = shop()?;
    let (first, second) = (Sale::begin(&shop, FIRST)?, Sale::begin(&shop, SECOND)?);
    let sold = if first_ends_before {
        [first.end(&mut shop)?, second.end(&mut shop)?]
    } else {
        let second = second.end(&mut shop)?;
        [first.end(&mut shop)?, second]
    };
    let left = [0, 1, 2, 3].map(|good| stock(&shop, good).expect("the good is there"));
    Ok((sold, left))
}

/// The statements of the blocks of SQL, each on one line and without its comments.
fn statements(page: &str) -> Vec<String> {
    let mut statements = Vec::new();
    for block in page.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        let lines: Vec<_> = block.lines().filter_map(|line| line.split("--").next()).collect();
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        statements.extend(lines.join(" ").split(';').map(words).filter(|statement| !statement.is_empty()));
    }
    statements
}

#[test]
fn the_statements_are_those_of_the_pages() {
    let guarantees = statements(include_str!("../../../../docs/guarantees.md"));
    let cookbook = statements(include_str!("../../../../docs/cookbook.md"));
    let stands_in = |page: &[String], statement: &str| {
        assert!(page.iter().any(|one| one == statement), "{statement}: {page:#?}");
    };
    for statement in [CLAIM, WRITE] {
        stands_in(&guarantees, statement);
        stands_in(&cookbook, statement);
    }
    stands_in(&guarantees, CLAIM_NAME);
    for statement in SCHEMA.split(';').map(str::trim) {
        if statement.starts_with("ALTER") {
            stands_in(&guarantees, statement);
            stands_in(&cookbook, statement);
        } else if statement.contains("fences") {
            stands_in(&guarantees, statement);
        }
    }
}

#[test]
fn a_late_write_after_that_of_the_next_holder_is_rejected_by_each_form_with_a_token() -> Result<()> {
    let ([first, second], left) = sales(false)?;
    assert_eq!((first, second), ([false, false, false, true], [true; 4]));
    assert_eq!(left, [1, 1, 1, 1], "without the token two were sold, and one is gone");
    Ok(())
}

#[test]
fn a_late_write_between_read_and_write_of_the_next_holder_is_lost_unless_that_one_has_claimed() -> Result<()> {
    let ([first, second], left) = sales(true)?;
    assert_eq!((first, second), ([false, true, true, true], [true; 4]));
    // In the transaction the first one was early enough, and the second has read what it wrote.
    assert_eq!(left, [1, 0, 1, 1], "compared at the write only, two were sold, and one is gone");
    Ok(())
}

#[test]
fn the_short_form_loses_no_write_that_depends_on_nothing_that_was_read() -> Result<()> {
    let shop = shop()?;
    let writes = |change: &str, good: i64, fence: FencingToken| {
        let write = format!("UPDATE goods SET {change}, fence = :fence WHERE id = :id AND fence <= :fence");
        shop.execute(&write, named_params! { ":id": good, ":fence": fence.as_i64() })
    };
    let takes_one = |fence| writes("stock = stock - 1", COMPARED, fence);
    // The late one comes before the write of the next holder, and once more after it.
    assert_eq!([takes_one(FIRST)?, takes_one(SECOND)?, takes_one(FIRST)?], [1, 1, 0]);
    assert_eq!(stock(&shop, COMPARED)?, 0, "a late one counts, and none is lost");
    // Of blind writes the last holder's stays, whichever comes last.
    let sets = |good, fence: FencingToken| writes(&format!("stock = {fence}"), good, fence);
    assert_eq!([sets(CLAIMED, FIRST)?, sets(CLAIMED, SECOND)?], [1, 1]);
    assert_eq!([sets(UNFENCED, SECOND)?, sets(UNFENCED, FIRST)?], [1, 0]);
    assert_eq!([stock(&shop, CLAIMED)?, stock(&shop, UNFENCED)?], [34, 34]);
    Ok(())
}

#[test]
fn a_holder_that_claims_again_is_not_too_late_and_one_before_it_is() -> Result<()> {
    let mut shop = shop()?;
    Sale::begin(&shop, SECOND)?;
    assert!(Sale::begin(&shop, FIRST)?.claimed.is_none());
    assert!(Sale::begin(&shop, SECOND)?.end(&mut shop)?[0]);
    Ok(())
}

#[test]
fn a_claim_that_comes_last_loses_an_update() -> Result<()> {
    // What a transaction must not do: read, and claim with the write.
    let shop = shop()?;
    let seen = [stock(&shop, TRANSACTION)?, stock(&shop, TRANSACTION)?];
    for (fence, seen) in [FIRST, SECOND].into_iter().zip(seen) {
        assert!(claim_name(&shop, "goods:1", fence.as_i64())?);
        shop.execute("UPDATE goods SET stock = ?1 WHERE id = ?2", (seen - 1, TRANSACTION))?;
    }
    assert_eq!(stock(&shop, TRANSACTION)?, 1, "two were sold");
    Ok(())
}

#[test]
fn a_claim_by_a_plain_select_keeps_nobody_out_and_loses_an_update() -> Result<()> {
    // Each statement commits by itself: SQLite lets no transaction write that has read before another one wrote.
    let shop = shop()?;
    let looked = read(&shop, FIRST)?.context("too late")?;
    let next = claim(&shop, SECOND)?;
    shop.execute("UPDATE goods SET stock = ?1 WHERE id = ?2", (looked - 1, CLAIMED))?;
    assert_eq!(sell(&shop, SECOND, &next)?, 1, "its claim still stands");
    assert_eq!(stock(&shop, CLAIMED)?, 1, "two were sold, and one is gone");
    Ok(())
}

#[test]
fn a_reader_finds_no_row_once_a_later_writer_has_claimed_and_keeps_no_writer_out() -> Result<()> {
    assert!(include_str!("../../../../docs/guarantees.md").contains(READ));
    let shop = shop()?;
    let writer = claim(&shop, FIRST)?;
    assert_eq!(read(&shop, SECOND)?, Some(2));
    assert_eq!(sell(&shop, FIRST, &writer)?, 1, "a reader claims nothing");
    assert_eq!(read(&shop, SECOND)?, Some(1));
    claim(&shop, FencingToken::new(35))?;
    assert_eq!(read(&shop, SECOND)?, None);
    Ok(())
}

#[test]
fn of_two_tasks_with_one_token_the_one_that_claimed_last_sells() -> Result<()> {
    for first_writes_before in [true, false] {
        let shop = shop()?;
        // So it is with two holders, if tokens repeat after a loss of data.
        let (one, other) = (claim(&shop, FIRST)?, claim(&shop, FIRST)?);
        let sold = if first_writes_before {
            [sell(&shop, FIRST, &one)?, sell(&shop, FIRST, &other)?]
        } else {
            let other = sell(&shop, FIRST, &other)?;
            [sell(&shop, FIRST, &one)?, other]
        };
        assert_eq!(sold, [0, 1]);
        assert_eq!(stock(&shop, CLAIMED)?, 1);
    }
    Ok(())
}

#[test]
fn a_holder_that_begins_again_while_its_write_is_on_its_way_loses_no_update() -> Result<()> {
    // The client has given up on a write that the database has not executed yet: it comes before the next claim, between the next claim
    // and its write, or after that.
    for comes in 0..3 {
        let shop = shop()?;
        let given_up = claim(&shop, FIRST)?;
        let mut sold = 0;
        if comes == 0 {
            sold += sell(&shop, FIRST, &given_up)?;
        }
        let again = claim(&shop, FIRST)?;
        if comes == 1 {
            sold += sell(&shop, FIRST, &given_up)?;
        }
        sold += sell(&shop, FIRST, &again)?;
        if comes == 2 {
            sold += sell(&shop, FIRST, &given_up)?;
        }
        assert_eq!((comes, sold), (comes, if comes == 0 { 2 } else { 1 }));
        assert_eq!(stock(&shop, CLAIMED)?, 2 - sold);
    }
    Ok(())
}

#[test]
fn a_write_that_is_sent_twice_is_executed_once() -> Result<()> {
    let shop = shop()?;
    let claim = claim(&shop, FIRST)?;
    assert_eq!([sell(&shop, FIRST, &claim)?, sell(&shop, FIRST, &claim)?], [1, 0]);
    assert_eq!(stock(&shop, CLAIMED)?, 1);
    Ok(())
}

#[test]
fn a_holder_with_a_smaller_token_than_the_one_before_is_shut_out_and_loses_no_update() -> Result<()> {
    // The tokens fell, and the former holder claims again.
    let shop = shop()?;
    let next = claim(&shop, FIRST)?;
    let former = claim(&shop, SECOND)?;
    assert_eq!([sell(&shop, FIRST, &next)?, sell(&shop, SECOND, &former)?], [0, 1]);
    assert!(claim(&shop, FIRST).is_err(), "until the counter has passed the number");
    assert_eq!(stock(&shop, CLAIMED)?, 1);
    Ok(())
}

#[test]
fn a_name_is_claimed_whether_it_is_new_or_not() -> Result<()> {
    let shop = shop()?;
    let claims = |fence: FencingToken| claim_name(&shop, "order:7", fence.as_i64());
    assert!(claims(FIRST)? && claims(FIRST)? && claims(SECOND)?);
    assert!(!claims(FIRST)?);
    assert!(claim_name(&shop, "order:8", FIRST.as_i64())?, "each name by itself");
    Ok(())
}

#[test]
fn a_late_holder_does_not_restore_a_row_that_was_deleted() -> Result<()> {
    let mut shop = shop()?;
    let insert = "INSERT INTO goods (id, stock) VALUES (7, 2)";
    // The next holder deletes the row; the first one wakes up, and would insert it.
    let transaction = shop.transaction()?;
    assert!(claim_name(&transaction, "goods:7", SECOND.as_i64())?);
    transaction.execute("DELETE FROM goods WHERE id = 7", ())?;
    transaction.commit()?;
    assert!(!claim_name(&shop, "goods:7", FIRST.as_i64())?);

    // A fence that goes with its row does not keep it from that: the row begins at 0 again.
    shop.execute(insert, ())?;
    assert!(claim_and_read(&shop, 7, SECOND.as_i64())?.is_some());
    shop.execute("DELETE FROM goods WHERE id = 7", ())?;
    shop.execute(insert, ())?;
    assert!(claim_and_read(&shop, 7, FIRST.as_i64())?.is_some());
    Ok(())
}

#[test]
fn a_row_without_a_fence_is_refused_as_nobody_could_claim_it() -> Result<()> {
    let shop = shop()?;
    assert!(shop.execute("INSERT INTO goods (id, stock, fence) VALUES (7, 2, NULL)", ()).is_err());
    assert!(shop.execute("INSERT INTO fences (name, fence) VALUES ('goods:7', NULL)", ()).is_err());
    Ok(())
}
