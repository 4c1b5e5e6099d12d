//! The code of `docs/cookbook.md` compiles and runs: every block of it stands in here too, line by line. What needs
//! a crate that nothing else here needs stands in `tests/recipes`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::http::StatusCode;
use lock_core::{ErrorKind, FencingToken, LockManager, key};
use lock_tests::text::compiled_blocks;

use crate::tour::Result;

#[test]
fn every_block_of_the_page_is_compiled_here() {
    let sources = [include_str!("cookbook.rs"), include_str!("../recipes/src/lib.rs")];
    let blocks = compiled_blocks(include_str!("../../docs/cookbook.md"), &sources);
    assert!(blocks >= 16, "only {blocks} blocks of code were found");
}

/// [`guarantees.md`](../../docs/guarantees.md) has the scripts that are run by a test.
#[test]
fn a_line_of_lua_is_one_of_the_tested_scripts() {
    let (page, tested) = (include_str!("../../docs/cookbook.md"), include_str!("../../docs/guarantees.md"));
    let mut scripts = page.split("```lua\n").skip(1).filter_map(|rest| rest.split("```").next()).peekable();
    assert!(scripts.peek().is_some(), "there is no script");
    assert!(scripts.all(|script| tested.contains(script)));
}

mod leader {
    use tokio::{
        signal::unix::{SignalKind, signal},
        sync::watch,
    };

    use super::*;

    /// Leads, or waits for its turn to lead, until it resigns.
    async fn stand(manager: LockManager, stop: watch::Receiver<bool>) -> Result {
        loop {
            let term = manager.lock("leader:billing").ttl(Duration::from_secs(5)).wait_forever();
            match term.run(async |lease| lead(lease.fencing_token(), stop.clone()).await).await {
                Ok(resigned) => return resigned,
                // The work has been cancelled, and another process may lead now.
                Err(error) if error.is_lost() => tracing::warn!("deposed: {error}"),
                Err(error) if error.kind() == ErrorKind::ShutDown => return Ok(()),
                Err(error) => match error.retry_after() {
                    // Redis is down, for all candidates.
                    Some(pause) => {
                        tracing::warn!("no election: {error}");
                        tokio::time::sleep(pause).await;
                    }
                    None => return Err(error.into()),
                },
            }
        }
    }

    /// Works for one term, until the process is told to stop.
    async fn lead(term: FencingToken, mut stop: watch::Receiver<bool>) -> Result {
        loop {
            bill(term).await?;
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
                () = tokio::time::sleep(Duration::from_secs(60)) => {}
            }
        }
    }

    #[tokio::main]
    async fn main() -> Result {
        let mut sigterm = signal(SignalKind::terminate())?; // before there is anything to release
        let manager = LockManager::connect("redis://127.0.0.1").await?;
        let (stop, stopped) = watch::channel(false);
        let mut standing = tokio::spawn(stand(manager.clone(), stopped));
        let ended = tokio::select! {
            ended = &mut standing => Some(ended),
            _ = sigterm.recv() => None,
            _ = tokio::signal::ctrl_c() => None,
        };
        stop.send_replace(true); // `lead` returns
        manager.shutdown(Duration::from_secs(5)).await; // also after a panic: the key is released
        match ended {
            Some(ended) => ended?,
            None => standing.await?,
        }
    }

    async fn bill(term: FencingToken) -> Result {
        if term.get() == 0 { Err("no term".into()) } else { Ok(()) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_resigns_when_it_is_told_to_stop_and_a_candidate_ends_with_its_manager() -> Result {
        let managers = [LockManager::connect("memory://terms").await?, LockManager::connect("memory://terms").await?];
        let (stop, stopped) = watch::channel(false);
        let leader = tokio::spawn(stand(managers[0].clone(), stopped));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (_stop, not_stopped) = watch::channel(false);
        let candidate = tokio::spawn(stand(managers[1].clone(), not_stopped));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!leader.is_finished() && !candidate.is_finished());

        assert_eq!(managers[1].shutdown(Duration::ZERO).await, 0);
        candidate.await??;
        assert!(managers[0].is_locked("leader:billing").await?);
        stop.send_replace(true);
        leader.await??;
        assert!(!managers[0].is_locked("leader:billing").await?);
        Ok(())
    }
}

mod schedule {
    use super::*;

    /// Runs the job unless another machine has begun this run of it.
    async fn nightly(manager: &LockManager, scheduled: &str) -> Result {
        let run = key::join(["jobs", "nightly", scheduled]);
        let run = manager.lock(run).ttl(Duration::from_secs(60)).at_least(Duration::from_secs(7 * 24 * 3600));
        // A run that has failed stays begun, so it is tried again while the lease is held.
        let work = async |_| {
            let mut left = 4;
            loop {
                match report(scheduled).await {
                    Err(error) if left > 0 => tracing::warn!("the run has failed, {left} tries are left: {error}"),
                    done => return done,
                }
                left -= 1;
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
        };
        match run.try_run(work).await? {
            Some(done) => done,
            None => Ok(()),
        }
    }

    /// The name of the run that is due, the same on all machines: the job comes once in each period, `due` after the period begins in UTC.
    fn tick(period: Duration, due: Duration) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        run_at(now, period, due)
    }

    fn run_at(now: Duration, period: Duration, due: Duration) -> String {
        let (now, period) = (now.saturating_sub(due).as_secs(), period.as_secs().max(1));
        (now - now % period).to_string()
    }

    /// Has the run done, by whatever machine. Every machine calls this when the run is due, and once more when it starts.
    async fn done_tonight(manager: &LockManager, scheduled: &str) -> Result {
        // Half an hour: longer than the longest report, and than the ttl.
        for _ in 0..60 {
            if let Err(error) = nightly(manager, scheduled).await {
                tracing::error!("the run has failed here: {error}");
            }
            if is_entered(scheduled).await.unwrap_or(false) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        Err("the run was not seen done within half an hour".into())
    }

    static RUNS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

    /// Stands still in the run `late`.
    async fn report(scheduled: &str) -> Result {
        if scheduled == "late" && !RUNS.lock().expect("no panic").contains("late begun") {
            RUNS.lock().expect("no panic").insert("late begun".to_owned());
            std::future::pending::<()>().await;
        }
        if scheduled == "fails" && RUNS.lock().expect("no panic").insert("failed".to_owned()) {
            return Err("the database was away".into());
        }
        RUNS.lock().expect("no panic").insert(scheduled.to_owned());
        Ok(())
    }

    async fn is_entered(scheduled: &str) -> Result<bool> {
        Ok(RUNS.lock().expect("no panic").contains(scheduled))
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_whose_machine_loses_its_lease_is_done_by_another_one_that_looks() -> Result {
        let managers = [LockManager::connect("memory://nights").await?, LockManager::connect("memory://nights").await?];
        let operator = managers[1].clone();
        let [first, second] = managers.map(|manager| tokio::spawn(async move { done_tonight(&manager, "late").await }));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!first.is_finished() && !second.is_finished() && !is_entered("late").await?);
        operator.force_release("jobs:nightly:late").await?;
        first.await??;
        second.await??;
        assert!(is_entered("late").await?);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_has_failed_is_tried_again() -> Result {
        let manager = LockManager::in_memory();
        done_tonight(&manager, "fails").await?;
        assert!(is_entered("fails").await? && manager.is_locked("jobs:nightly:fails").await?);
        Ok(())
    }

    #[tokio::test]
    async fn a_second_machine_finds_the_run_begun() -> Result {
        let manager = LockManager::in_memory();
        let scheduled = tick(Duration::from_secs(24 * 3600), Duration::from_secs(150 * 60));
        nightly(&manager, &scheduled).await?;
        assert!(manager.is_locked(format!("jobs:nightly:{scheduled}")).await?);
        nightly(&manager, &scheduled).await
    }

    #[test]
    fn a_run_is_named_by_the_time_at_which_it_was_due() {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        let at = |hour: u64, minute: u64| {
            run_at(minutes(20_000 * 24 * 60 + hour * 60 + minute), minutes(24 * 60), minutes(150))
        };
        assert_ne!(at(0, 30), at(2, 30), "the run of the day before");
        assert_eq!(at(2, 30), at(23, 59));
        assert_eq!(at(2, 30), at(24, 30), "a machine that catches up in the next night");
        assert_ne!(at(2, 30), at(26, 30));
        // Day 20,000 was a Friday, and four days after a Thursday is a Monday.
        let weekly = |day: u64| run_at(minutes(day * 24 * 60 + 180), minutes(7 * 24 * 60), minutes(4 * 24 * 60 + 150));
        let friday = 20_000;
        assert_eq!(weekly(friday), weekly(friday - 4), "the run of Monday, made up for on Friday");
        assert_ne!(weekly(friday), weekly(friday + 3), "the next Monday");
    }
}

mod fenced {
    use super::*;

    struct Goods {
        stock: i64,
        fence: i64,
        claim: i64,
    }

    struct Shop(Mutex<BTreeMap<&'static str, Goods>>);

    impl Shop {
        /// The first statement: the stock and the number of the claim. `None` if a later holder has claimed.
        async fn claim(&self, id: &str, fence: i64) -> Result<Option<(i64, i64)>> {
            let mut goods = self.0.lock().expect("no panic");
            let goods = goods.get_mut(id).ok_or("no such goods")?;
            if goods.fence > fence {
                return Ok(None);
            }
            (goods.fence, goods.claim) = (fence, goods.claim + 1);
            Ok(Some((goods.stock, goods.claim)))
        }

        /// The second statement. Returns whether the claim still stands.
        async fn write(&self, id: &str, stock: i64, fence: i64, claim: i64) -> Result<bool> {
            let mut goods = self.0.lock().expect("no panic");
            let goods = goods.get_mut(id).ok_or("no such goods")?;
            if (goods.fence, goods.claim) != (fence, claim) {
                return Ok(false);
            }
            (goods.stock, goods.claim) = (stock, claim + 1);
            Ok(true)
        }
    }

    /// Sells one unit. Returns whether it was sold: if not, none is left, or another claim has come.
    async fn sell(manager: &LockManager, shop: &Shop, id: &str) -> Result<bool> {
        let turn = manager.lock(key::join(["goods", id]));
        turn.run(async |lease| {
            let fence = lease.fencing_token().as_i64();
            let Some((stock, claim)) = shop.claim(id, fence).await? else { return Ok(false) }; // 1
            if stock == 0 {
                return Ok(false);
            }
            shop.write(id, stock - 1, fence, claim).await // 2, after work that may take long; `false`: no row
        })
        .await?
    }

    #[tokio::test]
    async fn units_are_sold_until_none_is_left_or_a_later_holder_has_claimed() -> Result {
        let manager = LockManager::in_memory();
        let shop = Shop(Mutex::new(BTreeMap::from([("7", Goods { stock: 1, fence: 0, claim: 0 })])));
        assert!(sell(&manager, &shop, "7").await?);
        assert!(!sell(&manager, &shop, "7").await?, "none is left");

        let (_, claim) = shop.claim("7", i64::MAX).await?.ok_or("rejected")?;
        assert!(shop.write("7", 5, i64::MAX, claim).await?);
        assert!(!sell(&manager, &shop, "7").await?, "a later holder has claimed");
        Ok(())
    }
}

mod orders {
    use super::*;

    struct Line {
        goods: &'static str,
        count: u64,
    }

    struct Shop(Mutex<BTreeMap<&'static str, u64>>);

    impl Shop {
        /// The whole order or nothing of it, in one transaction.
        async fn book(&self, order: impl Iterator<Item = (&Line, Option<FencingToken>)>) -> Result {
            let mut stock = self.0.lock().expect("no panic");
            for (Line { goods, count }, fence) in order {
                fence.ok_or("not under its lock")?;
                let left = stock.get_mut(goods).ok_or("no such goods")?;
                *left = left.checked_sub(*count).ok_or("sold out")?;
            }
            Ok(())
        }
    }

    async fn accept(manager: &LockManager, shop: &Shop, order: &[Line]) -> Result {
        let keys = order.iter().map(|line| key::join(["goods", line.goods]));
        manager
            .lock_all(keys)
            .run(async |leases| {
                let fence = |line: &Line| leases.fencing_token(&key::join(["goods", line.goods]));
                shop.book(order.iter().map(|line| (line, fence(line)))).await
            })
            .await?
    }

    #[tokio::test]
    async fn two_orders_of_the_same_goods_do_not_meet() -> Result {
        let manager = LockManager::in_memory();
        let shop = Shop(Mutex::new(BTreeMap::from([("a", 3), ("b", 2)])));
        let line = |goods| Line { goods, count: 1 };
        let (first, second) = ([line("a"), line("b"), line("a")], [line("b"), line("a")]);
        let (first, second) = tokio::join!(accept(&manager, &shop, &first), accept(&manager, &shop, &second));
        first.and(second)?;
        assert!(shop.0.lock().expect("no panic").values().all(|left| *left == 0));
        Ok(())
    }
}

mod accepted {
    use super::*;

    /// `POST /exports`: begins an export, unless one of this tenant runs.
    async fn begin(manager: &LockManager, tenant: &str) -> Result<StatusCode> {
        let request = manager.lock(key::join(["export", tenant])).max_hold(Duration::from_secs(3600));
        let Some(guard) = request.try_acquire().await? else {
            return Ok(StatusCode::CONFLICT);
        };
        tokio::spawn(async move {
            match guard.protect(export()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!("the export failed: {error}"),
                Err(error) => tracing::error!("the export was cancelled: {error}"),
            }
        });
        Ok(StatusCode::ACCEPTED)
    }

    async fn export() -> Result {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_export_is_refused_while_one_runs() -> Result {
        let manager = LockManager::in_memory();
        assert_eq!(begin(&manager, "7").await?, StatusCode::ACCEPTED);
        assert_eq!(begin(&manager, "7").await?, StatusCode::CONFLICT);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(begin(&manager, "7").await?, StatusCode::ACCEPTED);
        Ok(())
    }
}

mod tenants {
    use super::*;

    async fn import(manager: &LockManager, tenant: &str, file: &str) -> Result {
        let slot = manager.lock(key::join(["imports", tenant])).permits(3).wait(Duration::from_secs(30));
        slot.run(async |_| load(file).await).await?
    }

    async fn load(file: &str) -> Result {
        if file.is_empty() { Err("no file".into()) } else { Ok(()) }
    }

    #[tokio::test]
    async fn an_import_takes_a_permit() -> Result {
        let manager = LockManager::in_memory();
        let _others = manager.lock("imports:7").permits(3).take(2).await?;
        import(&manager, "7", "goods.csv").await
    }
}

mod cache {
    use super::*;

    #[derive(Default)]
    struct Cache(Mutex<BTreeMap<String, u64>>);

    impl Cache {
        async fn get(&self, id: &str) -> Option<u64> {
            self.0.lock().expect("no panic").get(id).copied()
        }

        async fn set(&self, id: &str, price: u64) {
            self.0.lock().expect("no panic").insert(id.to_owned(), price);
        }
    }

    async fn price(manager: &LockManager, cache: &Cache, id: &str) -> Result<u64> {
        if let Some(price) = cache.get(id).await {
            return Ok(price);
        }
        let fill = async || {
            let price = compute(id).await?;
            cache.set(id, price).await;
            Ok(price)
        };
        let filled = manager
            .lock(key::join(["price", id]))
            .wait(Duration::from_secs(2))
            .run(async |_| match cache.get(id).await {
                Some(price) => Ok(price), // another process has filled it meanwhile
                None => fill().await,
            })
            .await;
        // Here a lock saves work and protects nothing, so the service goes on without one.
        match filled {
            Ok(price) => price,
            Err(error) => {
                tracing::warn!("computed without a lock: {error}");
                fill().await
            }
        }
    }

    async fn compute(id: &str) -> Result<u64> {
        COMPUTED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        tokio::task::yield_now().await;
        Ok(id.parse()?)
    }

    static COMPUTED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

    #[tokio::test]
    async fn one_of_three_computes() -> Result {
        let (manager, cache) = (LockManager::in_memory(), Cache::default());
        let ask = || price(&manager, &cache, "7");
        let (one, two, three) = tokio::join!(ask(), ask(), ask());
        assert_eq!((one?, two?, three?), (7, 7, 7));
        assert_eq!(COMPUTED.load(std::sync::atomic::Ordering::Relaxed), 1);
        Ok(())
    }
}

mod start {
    use super::*;

    async fn prepare(manager: &LockManager) -> Result {
        let turn = manager.lock("migrations:shop").wait(Duration::from_secs(600));
        turn.run(async |_| migrate().await).await?
    }

    async fn migrate() -> Result {
        Ok(())
    }

    #[tokio::test]
    async fn all_instances_migrate_one_after_the_other() -> Result {
        let manager = LockManager::in_memory();
        let (one, other) = tokio::join!(prepare(&manager), prepare(&manager));
        one.and(other)
    }
}

mod webhook {
    use super::*;

    #[derive(Default)]
    struct Orders(Mutex<BTreeMap<String, u64>>);

    impl Orders {
        async fn has(&self, event: &str) -> Result<bool> {
            Ok(self.0.lock().expect("no panic").contains_key(event))
        }

        /// Enters the event and what follows from it, in one transaction; the event is the primary key.
        async fn pay(&self, event: &str, order: u64) -> Result {
            let before = self.0.lock().expect("no panic").insert(event.to_owned(), order);
            before.map_or(Ok(()), |_| Err("twice".into()))
        }
    }

    /// `POST /webhooks/payments`: the provider repeats an event until it gets 200.
    async fn paid(manager: &LockManager, orders: &Orders, event: &str, order: u64) -> Result<StatusCode> {
        let turn = manager.lock(key::join(["payment", event])).wait(Duration::from_secs(5));
        turn.run(async |_| {
            if !orders.has(event).await? {
                orders.pay(event, order).await?;
            }
            Ok(StatusCode::OK)
        })
        .await?
    }

    #[tokio::test]
    async fn an_event_that_comes_twice_is_paid_once() -> Result {
        let (manager, orders) = (LockManager::in_memory(), Orders::default());
        let (one, other) = tokio::join!(paid(&manager, &orders, "evt", 7), paid(&manager, &orders, "evt", 7));
        assert_eq!((one?, other?), (StatusCode::OK, StatusCode::OK));
        Ok(())
    }
}

mod clicks {
    use std::{fmt, sync::Arc};

    use axum::{Extension, Router, body::Body, extract::Request, routing::post};
    use lock_core::LeaseOptions;
    use lock_tower::{
        idempotency::{Answers, IdempotencyLayer, MemoryAnswers},
        key::{extension, scoped},
    };
    use tower::ServiceExt as _;

    use super::*;

    #[derive(Clone, Debug)]
    struct Customer(&'static str);

    impl fmt::Display for Customer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    fn payments(locks: &LockManager, answers: impl Answers) -> Router {
        // An outer layer has authenticated the customer, and put it into the extensions.
        let whose = scoped("payments", extension::<Customer>());
        let options = LeaseOptions::new().ttl(Duration::from_secs(5)).max_hold(Duration::from_secs(60));
        let once = IdempotencyLayer::http(locks.clone(), whose, answers)
            .wait(Duration::from_secs(10))
            .lock(|lock| lock.options(options).max_waiters_per_key(1_000));
        Router::new().route("/payments", post(pay)).route_layer(once)
    }

    async fn pay(Extension(paid): Extension<Arc<Mutex<Vec<String>>>>, Extension(customer): Extension<Customer>) {
        paid.lock().expect("no panic").push(customer.to_string());
    }

    #[tokio::test]
    async fn both_clicks_pay_once() -> Result {
        let paid = Arc::<Mutex<Vec<String>>>::default();
        let app = payments(&LockManager::in_memory(), MemoryAnswers::new()).layer(Extension(Arc::clone(&paid)));
        let click = || {
            let request = Request::post("/payments").header("idempotency-key", "1").extension(Customer("a"));
            request.body(Body::from("42")).map(|request| app.clone().oneshot(request))
        };
        let (first, second) = (click()?, click()?);
        let (first, second) = tokio::join!(first, second);
        assert_eq!((first?.status(), second?.status()), (StatusCode::OK, StatusCode::OK));
        assert_eq!(*paid.lock().expect("no panic"), ["a"]);
        Ok(())
    }
}

mod outbox {
    use super::*;

    struct Outbox(Mutex<Vec<u64>>);

    impl Outbox {
        async fn next(&self) -> Result<Vec<u64>> {
            let next = self.0.lock().expect("no panic").first().copied();
            next.map(|message| vec![message]).ok_or_else(|| "the test is over".into())
        }

        async fn mark_sent(&self, sent: &[u64]) -> Result {
            self.0.lock().expect("no panic").retain(|message| !sent.contains(message));
            Ok(())
        }
    }

    async fn relay(manager: &LockManager, outbox: &Outbox) -> Result {
        let turn = manager.lock("outbox:relay").wait_forever();
        turn.run(async |_| {
            loop {
                let messages = outbox.next().await?; // waits until there are some
                publish(&messages).await?;
                outbox.mark_sent(&messages).await?;
            }
        })
        .await?
    }

    async fn publish(messages: &[u64]) -> Result {
        if messages.is_empty() { Err("nothing".into()) } else { Ok(()) }
    }

    #[tokio::test]
    async fn messages_are_sent_in_order() -> Result {
        let (manager, outbox) = (LockManager::in_memory(), Outbox(Mutex::new(vec![1, 2, 3])));
        assert!(relay(&manager, &outbox).await.is_err_and(|error| error.to_string() == "the test is over"));
        assert!(outbox.0.lock().expect("no panic").is_empty());
        Ok(())
    }
}
