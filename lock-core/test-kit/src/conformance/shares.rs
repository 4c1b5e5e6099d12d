//! Checks of the modes: shared leases and permits beside exclusive ones.

use std::{sync::Arc, time::Duration};

use lock_core::{
    Mode,
    backend::{Acquire, Batch, BusyReason, Operation, Outcome, Place, Release, Token},
    key::LockKey,
};

use super::{LONG, SENT, SHORT, Span, Suite, acquire, in_time, release, renew};

impl Suite<'_> {
    pub(super) async fn shares_keys(&mut self) {
        self.excludes_writers_from_readers().await;
        in_time!(self.ends_each_share_with_its_own_ttl);
        self.renews_each_share_of_a_call().await;
        in_time!(self.leaves_a_share_to_expire);
        self.gives_readers_a_number_between_the_writers().await;
        in_time!(self.repeats_shares_without_harm);
        self.moves_shares_and_downgrades().await;
        self.frees_shared_keys_by_force().await;
        in_time!(self.counts_the_leases_of_a_key);
        self.takes_all_keys_of_a_batch_or_none().await;
        if self.backend.counts_permits().is_ok() {
            in_time!(self.gives_so_many_permits_and_no_more);
            self.refuses_another_total().await;
            in_time!(self.counts_the_permits_that_are_taken);
        }
        if self.waiters_can_be_told().await {
            self.grants_the_longest_run_that_fits().await;
            self.lets_no_reader_pass_a_writer_who_waits().await;
            self.passes_a_downgraded_key_on_to_readers().await;
            in_time!(self.lets_in_those_behind_a_reader_that_finds_the_key_expired);
            if self.backend.counts_permits().is_ok() {
                self.waits_for_another_total().await;
            }
        }
    }

    async fn excludes_writers_from_readers(&mut self) {
        let (key, writer, [one, two]) = (self.key(), self.token(), self.shared());
        assert!(self.acquire(&key, one, LONG).await.is_some(), "a free key is shared");
        assert!(self.acquire(&key, two, LONG).await.is_some(), "a shared key has room for another");
        assert!(self.acquire(&key, writer, LONG).await.is_none(), "a shared key is not held exclusively");
        assert!(self.is_busy(&key).await, "a shared key is held");
        assert_eq!(self.call(renew(&key, writer, LONG)).await, Outcome::Gone, "a stranger renews nothing");
        assert_eq!(self.call(release(&key, writer)).await, Outcome::Gone, "a stranger releases nothing");
        assert_eq!(self.call(release(&key, one)).await, Outcome::Released);
        assert_eq!(self.call(release(&key, one)).await, Outcome::Gone, "a second release finds nothing");
        assert_eq!(self.call(renew(&key, one, LONG)).await, Outcome::Gone, "a share that was released is not renewed");
        assert!(matches!(self.call(renew(&key, two, LONG)).await, Outcome::Renewed { .. }), "the other is held on");
        assert!(self.acquire(&key, writer, LONG).await.is_none(), "one reader is left");
        assert_eq!(self.call(release(&key, two)).await, Outcome::Released);
        assert!(!self.is_busy(&key).await, "without a reader the key is free");
        assert!(self.acquire(&key, writer, LONG).await.is_some(), "without a reader the key is free");
        assert!(self.acquire(&key, one, LONG).await.is_none(), "a key that is held exclusively is not shared");
        self.call(release(&key, writer)).await;
    }

    async fn ends_each_share_with_its_own_ttl(&mut self, short: Duration) -> Option<()> {
        let (key, writer, [one, two]) = (self.key(), self.token(), self.shared());
        self.acquire(&key, one, short).await;
        self.acquire(&key, two, LONG).await;
        tokio::time::sleep(short + short / 2).await;
        assert_eq!(self.call(renew(&key, one, LONG)).await, Outcome::Gone, "a share ends with its own ttl");
        assert_eq!(self.call(release(&key, one)).await, Outcome::Gone, "and is not there any longer");
        assert!(self.acquire(&key, writer, LONG).await.is_none(), "that of another goes on");
        self.call(release(&key, two)).await;
        assert!(self.acquire(&key, writer, LONG).await.is_some(), "a share that is over keeps nobody out");

        // The other way round: the one that ends last is released, and the other ends with its own ttl.
        let key = self.key();
        self.acquire(&key, one, LONG).await;
        self.acquire(&key, two, short).await;
        self.call(release(&key, one)).await;
        tokio::time::sleep(short + short / 2).await;
        assert!(self.acquire(&key, writer, LONG).await.is_some(), "a share that was released keeps nobody out");

        let key = self.key();
        let span = Span::begin(short);
        self.acquire(&key, one, short).await;
        for ttl in [LONG, short] {
            let renewed = self.call(renew(&key, one, ttl)).await;
            if ttl == LONG {
                span.lasts().then_some(())?;
            }
            match renewed {
                Outcome::Renewed { remaining, .. } => {
                    assert!(remaining > LONG / 2 && remaining <= LONG, "a renewal with {ttl:?} leaves {remaining:?}");
                }
                outcome => panic!("the holder of a share renews it, not {outcome:?}"),
            }
        }
        tokio::time::sleep(short + short / 2).await;
        assert!(self.acquire(&key, writer, LONG).await.is_none(), "renewed beyond its first ttl");
        Some(())
    }

    async fn renews_each_share_of_a_call(&mut self) {
        let (keys, writer, readers) = ([self.key(), self.key()], self.token(), self.shared());
        let ([over, longer], [alone, stranger]) = (self.shared(), self.shared());
        for token in readers {
            self.acquire(&keys[0], token, LONG / 3).await;
        }
        self.acquire(&keys[0], over, SHORT).await;
        self.acquire(&keys[0], longer, LONG * 3).await;
        self.acquire(&keys[1], alone, LONG / 3).await;
        let other = self.key();
        self.acquire(&other, writer, LONG / 3).await;
        tokio::time::sleep(SHORT + SHORT / 2).await;
        let renewals = [
            (&keys[0], readers[0], Some(LONG)),
            (&keys[0], over, None),
            (&other, writer, Some(LONG)),
            (&keys[0], stranger, None),
            (&keys[0], longer, Some(LONG * 3)),
            (&keys[1], alone, Some(LONG)),
            (&other, over, None),
            (&keys[0], readers[1], Some(LONG)),
        ];
        let batch = renewals.iter().map(|(key, token, _)| renew(key, *token, LONG)).collect();
        let answer = self.backend.call(batch).await.expect("a backend that works answers");
        assert_eq!(answer.outcomes.len(), renewals.len());
        for (number, (outcome, (.., left))) in answer.outcomes.iter().zip(&renewals).enumerate() {
            match (outcome, left) {
                (Ok(Outcome::Renewed { remaining, .. }), Some(left)) => {
                    assert!(
                        *remaining <= *left && *remaining > *left - LONG / 2,
                        "{number}: {remaining:?} of {left:?}"
                    );
                }
                (Ok(Outcome::Gone), None) => {}
                _ => panic!("renewal {number} is answered by {outcome:?}, and {left:?} should be left"),
            }
        }
        // The key lasts as long as the share that ends last, and each share as long as its own.
        self.call(release(&keys[0], longer)).await;
        for token in readers {
            assert_eq!(self.call(release(&keys[0], token)).await, Outcome::Released, "it was renewed");
        }
        assert!(!self.is_busy(&keys[0]).await, "nobody is left");
        self.call(release(&keys[1], alone)).await;
        self.call(release(&other, writer)).await;
    }

    async fn leaves_a_share_to_expire(&mut self, short: Duration) -> Option<()> {
        let (key, writer, [one, two]) = (self.key(), self.token(), self.shared());
        self.acquire(&key, one, LONG).await;
        let leave = Operation::Release(Release::new(key.clone(), one).after(short));
        let span = Span::begin(short);
        assert_eq!(self.call(leave).await, Outcome::Released);
        let is_kept_out = self.acquire(&key, writer, LONG).await.is_none();
        span.lasts().then_some(())?;
        assert!(is_kept_out, "a share that was left to expire is still there");
        assert!(self.acquire(&key, two, short).await.is_some(), "and others may share the key");
        tokio::time::sleep(short + short / 2).await;
        assert!(self.acquire(&key, writer, LONG).await.is_some(), "it is over when its time is");
        Some(())
    }

    async fn gives_readers_a_number_between_the_writers(&mut self) {
        let (key, writer, [one, two]) = (self.key(), self.token(), self.shared());
        let first = self.acquire(&key, writer, LONG).await.expect("a free key is held");
        self.call(release(&key, writer)).await;
        let read = self.acquire(&key, one, LONG).await.expect("a free key is shared");
        let too = self.acquire(&key, two, LONG).await.expect("a shared key has room");
        assert!(read > first && too >= read, "readers come after the last writer: {read} and {too} after {first}");
        self.call(release(&key, one)).await;
        self.call(release(&key, two)).await;
        let second = self.acquire(&key, writer, LONG).await.expect("the key is free");
        assert!(second > read && second > too, "the next writer comes after the readers: {second} after {read}, {too}");
    }

    async fn repeats_shares_without_harm(&mut self, short: Duration) -> Option<()> {
        let (key, writer, [one, _]) = (self.key(), self.token(), self.shared());
        let span = Span::begin(short);
        self.acquire(&key, one, short).await;
        let again = self.call(acquire(&key, one, LONG)).await;
        span.lasts().then_some(())?;
        assert!(matches!(again, Outcome::Held { .. }), "a repeated acquire holds again: {again:?}");
        assert!(!matches!(again, Outcome::Held { was_free: true, .. }), "it was held: {again:?}");
        tokio::time::sleep(short + short / 2).await;
        assert!(self.acquire(&key, writer, LONG).await.is_none(), "a repeated acquire has the full ttl");
        self.acquire(&key, one, short).await;
        assert_eq!(self.call(release(&key, one)).await, Outcome::Released, "and has one share");
        assert!(self.acquire(&key, writer, LONG).await.is_some(), "which is over");
        Some(())
    }

    async fn moves_shares_and_downgrades(&mut self) {
        let (key, [writer, stranger], [one, two]) = (self.key(), [self.token(), self.token()], self.shared());
        let take = |token, from| Operation::Acquire(Acquire::new(key.clone(), token, LONG).from(from));
        let refused = |outcome| matches!(outcome, Outcome::Gone | Outcome::Split { .. });
        let first = self.acquire(&key, writer, LONG).await.expect("a free key is held");
        match self.call(take(one, writer)).await {
            Outcome::Held { fence, was_free, .. } => assert!(fence >= first && !was_free, "{fence} after {first}"),
            outcome => panic!("an exclusive lease goes on as a shared one, not {outcome:?}"),
        }
        assert_eq!(self.call(renew(&key, writer, LONG)).await, Outcome::Gone, "and is exclusive no longer");
        let [three, _] = self.shared();
        assert!(self.acquire(&key, three, LONG).await.is_some(), "others may share the key then");
        assert!(refused(self.call(take(stranger, three)).await), "a share does not become exclusive");
        let moved = self.call(take(two, one)).await;
        assert!(
            matches!(moved, Outcome::Held { was_free: false, .. }),
            "a share goes on with another token: {moved:?}"
        );
        assert_eq!(self.call(renew(&key, one, LONG)).await, Outcome::Gone, "once");
        for token in [two, three] {
            assert_eq!(self.call(release(&key, token)).await, Outcome::Released);
        }
        assert!(!self.is_busy(&key).await, "nothing is left");
    }

    async fn frees_shared_keys_by_force(&mut self) {
        let (key, [one, two]) = (self.key(), self.shared());
        self.acquire(&key, one, LONG).await;
        self.acquire(&key, two, LONG).await;
        let listed = self.backend.list(key.wire().to_owned()).await.expect("the backend lists");
        assert_eq!(listed, std::slice::from_ref(&key), "a key that is shared is listed");
        let force = || Operation::Force { key: key.clone(), foreign: false };
        assert_eq!(self.call(force()).await, Outcome::Released);
        for token in [one, two] {
            assert_eq!(self.call(renew(&key, token, LONG)).await, Outcome::Gone, "a forced release ends all shares");
        }
        assert_eq!(self.call(force()).await, Outcome::Gone);
    }

    async fn counts_the_leases_of_a_key(&mut self, short: Duration) -> Option<()> {
        let (key, [one, two]) = (self.key(), self.shared());
        self.acquire(&key, one, LONG).await;
        let Shares { leases, permits, first, last } = self.look(&key).await;
        assert_eq!((leases, permits), (1, 0), "one reader, and no permits");
        // Nodes of a store that has several were asked one after the other.
        let is_one = first == last || first < last && self.backend.health().len() > 1;
        assert!(first > LONG / 2 && is_one && last <= LONG, "its end is the first and the last: {first:?}, {last:?}");
        let span = Span::begin(short);
        self.acquire(&key, two, short).await;
        let Shares { leases, permits, first, last } = self.look(&key).await;
        span.lasts().then_some(())?;
        assert_eq!((leases, permits), (2, 0), "two readers");
        assert!(first <= short && last > LONG / 2 && last <= LONG, "each with its own end: {first:?}, {last:?}");
        let renewed = self.call(renew(&key, two, LONG)).await;
        span.lasts().then_some(())?;
        assert!(matches!(renewed, Outcome::Renewed { .. }), "a share that is in force is renewed: {renewed:?}");
        let Shares { first, .. } = self.look(&key).await;
        assert!(first > short, "a renewal moves the end out: {first:?}");
        self.call(release(&key, two)).await;
        assert_eq!(self.look(&key).await.leases, 1, "a share that was released does not count");
        let [third, _] = self.shared();
        self.acquire(&key, third, short).await;
        tokio::time::sleep(short + short / 2).await;
        let Shares { leases, first, .. } = self.look(&key).await;
        assert_eq!(leases, 1, "a share that is over does not count");
        assert!(first > LONG / 2, "nor does its end: {first:?}");
        self.call(release(&key, one)).await;
        assert!(!self.is_busy(&key).await, "nobody is left");
        Some(())
    }

    async fn counts_the_permits_that_are_taken(&mut self, short: Duration) -> Option<()> {
        let (key, [one, two], five) = (self.key(), [1, 1].map(|take| self.permits(9, take)), self.permits(9, 5));
        let span = Span::begin(short);
        for (token, ttl, expected) in [(one, LONG, (1, 1)), (two, short, (2, 2)), (five, LONG, (3, 7))] {
            self.acquire(&key, token, ttl).await;
            let Shares { leases, permits, first, last } = self.look(&key).await;
            span.lasts().then_some(())?;
            assert_eq!((leases, permits), expected, "so many leases and permits");
            assert!(first <= ttl && last > LONG / 2, "each with its own end: {first:?}, {last:?}");
        }
        tokio::time::sleep(short + short / 2).await;
        let Shares { leases, permits, .. } = self.look(&key).await;
        assert_eq!((leases, permits), (2, 6), "permits that are over do not count");
        for token in [one, five] {
            self.call(release(&key, token)).await;
        }
        assert!(!self.is_busy(&key).await, "nobody is left");
        Some(())
    }

    async fn takes_all_keys_of_a_batch_or_none(&mut self) {
        let keys = [self.key(), self.key(), self.key()];
        let modes = [Mode::Exclusive, Mode::Shared, Mode::Exclusive];
        let tokens = modes.map(|mode| self.token().in_mode(mode));
        let together = || {
            let acquire = |(key, token): (&LockKey, &Token)| {
                Operation::Acquire(Acquire::new(key.clone(), *token, LONG).with_all())
            };
            Batch::from(keys.iter().zip(&tokens).map(acquire).collect::<Vec<_>>())
        };
        let is_held = |outcome: &Outcome| matches!(outcome, Outcome::Held { .. });
        for (number, other) in [Mode::Exclusive, Mode::Exclusive, Mode::Shared].into_iter().enumerate() {
            let holder = self.token().in_mode(other);
            self.acquire(&keys[number], holder, LONG).await;
            let outcomes = self.outcomes(together()).await;
            assert!(!outcomes.iter().all(is_held), "key {number} is held: {outcomes:?}");
            assert!(!is_held(&outcomes[number]), "key {number} is held: {outcomes:?}");
            // A store of several parts may have taken some of them.
            for (key, token) in keys.iter().zip(tokens) {
                let released = self.call(release(key, token)).await;
                let is_one = self.backend.health().len() == 1;
                assert!(!is_one || released == Outcome::Gone, "one server gives back what it took: {outcomes:?}");
            }
            assert_eq!(self.call(release(&keys[number], holder)).await, Outcome::Released);
        }
        let outcomes = self.outcomes(together()).await;
        assert!(outcomes.iter().all(is_held), "keys that are free are held: {outcomes:?}");
        for (key, token) in keys.iter().zip(tokens) {
            assert_eq!(self.call(release(key, token)).await, Outcome::Released);
        }
    }

    async fn outcomes(&self, batch: Batch) -> Vec<Outcome> {
        let answer = self.backend.call(batch).await.expect("the backend answers");
        answer.outcomes.into_iter().map(|outcome| outcome.expect("no item fails")).collect()
    }

    async fn gives_so_many_permits_and_no_more(&mut self, short: Duration) -> Option<()> {
        let (key, writer, [reader, _]) = (self.key(), self.token(), self.shared());
        let [one, two, three] = [1, 1, 1].map(|take| self.permits(3, take));
        let [double, triple] = [2, 3].map(|take| self.permits(3, take));
        let first = self.acquire(&key, one, LONG).await.expect("a free key has permits");
        let span = Span::begin(short);
        let second = self.acquire(&key, two, short).await.expect("a second permit");
        assert!(second > first, "each permit has a number of its own");
        let doubled = self.acquire(&key, double, LONG).await;
        let busy = self.call(acquire(&key, double, LONG)).await;
        span.lasts().then_some(())?;
        assert_eq!(doubled, None, "two are not left");
        assert!(
            matches!(busy, Outcome::Busy { remaining: Some(remaining), by: BusyReason::Permits, .. } if remaining <= short),
            "the first permit that ends may be enough: {busy:?}"
        );
        assert!(self.acquire(&key, three, LONG).await.is_some(), "a third permit");
        let fourth = self.permits(3, 1);
        for (token, why) in [(fourth, "there is no fourth"), (writer, "nor is the key free"), (reader, "nor shared")] {
            let refused = self.acquire(&key, token, LONG).await;
            span.lasts().then_some(())?;
            assert_eq!(refused, None, "{why}");
        }
        self.call(release(&key, one)).await;
        tokio::time::sleep(short + short / 2).await;
        assert!(self.acquire(&key, double, LONG).await.is_some(), "the permits of the dead and of the done are free");
        assert!(self.acquire(&key, fourth, LONG).await.is_none(), "two and one are three");
        assert_eq!(self.call(release(&key, double)).await, Outcome::Released, "two at once");
        assert!(self.acquire(&key, fourth, LONG).await.is_some());
        self.call(release(&key, three)).await;
        self.call(release(&key, fourth)).await;
        assert!(self.acquire(&key, triple, LONG).await.is_some(), "all of them");
        assert!(self.acquire(&key, one, LONG).await.is_none(), "leave none");
        self.call(release(&key, triple)).await;
        assert!(self.acquire(&key, writer, LONG).await.is_some(), "and then the key is free");
        Some(())
    }

    async fn refuses_another_total(&mut self) {
        let (key, one, other) = (self.key(), self.permits(3, 1), self.permits(5, 1));
        self.acquire(&key, one, LONG).await;
        let busy = self.call(acquire(&key, other, LONG)).await;
        assert!(
            matches!(busy, Outcome::Busy { by: BusyReason::OtherTotal { total: 3 }, position: None, .. }),
            "{busy:?}"
        );
        self.call(release(&key, one)).await;
        assert!(self.acquire(&key, other, LONG).await.is_some(), "a key that is free has no total");
    }

    async fn grants_the_longest_run_that_fits(&mut self) {
        let (key, writer, last) = (self.key(), self.token(), self.token());
        let [[one, two], [late, _]] = [self.shared(), self.shared()];
        let first = self.acquire(&key, writer, LONG).await.expect("a free key is held");
        for (token, place) in [(one, 1), (two, 2), (last, 3), (late, 4)] {
            let outcome = self.call(self.wait_for(&key, token)).await;
            assert!(matches!(outcome, Outcome::Busy { position: Some(at), .. } if at == place), "{outcome:?}");
        }
        self.call(release(&key, writer)).await;
        let counts_alone = self.backend.health().len() == 1;
        for token in [one, two] {
            let grant =
                self.granted(&key).await.expect("a release grants the key to all at the front who can share it");
            assert_eq!((&grant.key, grant.token), (&key, token), "in their order");
            assert!(grant.fence > first || !counts_alone, "a grant has a number: {grant:?}");
        }
        self.tells_nobody(&key, "and to nobody behind a writer").await;
        for token in [one, two] {
            let held = self.call(self.wait_for(&key, token)).await;
            assert!(matches!(held, Outcome::Held { .. }), "a share that was granted is held: {held:?}");
        }
        self.call(release(&key, one)).await;
        self.tells_nobody(&key, "one reader is left").await;
        self.call(release(&key, two)).await;
        assert_eq!(self.granted(&key).await.map(|grant| grant.token), Some(last), "then comes the writer");
        assert!(matches!(self.call(self.wait_for(&key, last)).await, Outcome::Held { .. }));
        self.call(release(&key, last)).await;
        assert_eq!(self.granted(&key).await.map(|grant| grant.token), Some(late), "then who came last");
        self.call(leave(&key, late)).await;
        if !counts_alone {
            return;
        }
        let (key, [one, two, three]) = (self.key(), [1, 2, 1].map(|take| self.permits(2, take)));
        self.acquire(&key, one, LONG).await;
        for token in [two, three] {
            let outcome = self.call(self.wait_for(&key, token)).await;
            assert!(matches!(outcome, Outcome::Busy { .. }), "few permits are not given before many: {outcome:?}");
        }
        self.call(release(&key, one)).await;
        assert_eq!(self.granted(&key).await.map(|grant| grant.token), Some(two), "two permits are free");
        self.tells_nobody(&key, "and no third").await;
        self.call(release(&key, two)).await;
        assert_eq!(self.granted(&key).await.map(|grant| grant.token), Some(three));
        self.call(leave(&key, three)).await;
        assert!(!self.is_busy(&key).await);
    }

    async fn waits_for_another_total(&mut self) {
        let (key, writer) = (self.key(), self.token());
        let [one, other, late] = [3, 5, 3].map(|total| self.permits(total, 1));
        self.acquire(&key, writer, LONG).await;
        for token in [one, other, late] {
            self.call(self.wait_for(&key, token)).await;
        }
        self.call(release(&key, writer)).await;
        assert_eq!(self.granted(&key).await.map(|grant| grant.token), Some(one), "the first has its permit");
        self.tells_nobody(&key, "the next wants another total").await;
        let waits = self.call(self.wait_for(&key, other)).await;
        let by = BusyReason::OtherTotal { total: 3 };
        assert!(matches!(waits, Outcome::Busy { by: reason, position: Some(1), .. } if reason == by), "{waits:?}");
        self.call(release(&key, one)).await;
        assert_eq!(self.granted(&key).await.map(|grant| grant.token), Some(other), "the end of the group");
        self.tells_nobody(&key, "the last wants the first total").await;
        self.call(release(&key, other)).await;
        assert_eq!(self.granted(&key).await.map(|grant| grant.token), Some(late), "in the order in which they came");
        self.call(release(&key, late)).await;
    }

    async fn lets_no_reader_pass_a_writer_who_waits(&mut self) {
        let (key, writer, [one, two]) = (self.key(), self.token(), self.shared());
        self.acquire(&key, one, LONG).await;
        self.call(self.wait_for(&key, writer)).await;
        let tried = self.call(acquire(&key, two, LONG)).await;
        let passed_nobody = matches!(tried, Outcome::Busy { position: None, .. } | Outcome::Split { .. });
        assert!(passed_nobody, "a reader who tries passes no writer: {tried:?}");
        let again = self.call(acquire(&key, one, LONG)).await;
        assert!(matches!(again, Outcome::Held { .. }), "a reader who holds is not kept out: {again:?}");
        self.call(leave(&key, writer)).await;
        assert!(self.acquire(&key, two, LONG).await.is_some(), "nobody waits any longer");
        self.call(release(&key, one)).await;
        self.call(release(&key, two)).await;
        self.tells_nobody(&key, "nobody waits any longer").await;
    }

    async fn passes_a_downgraded_key_on_to_readers(&mut self) {
        let (key, [writer, other], [one, two]) = (self.key(), [self.token(), self.token()], self.shared());
        let [late, _] = self.shared();
        self.acquire(&key, writer, LONG).await;
        for token in [two, other, late] {
            self.call(self.wait_for(&key, token)).await;
        }
        let downgrade = Operation::Acquire(Acquire::new(key.clone(), one, LONG).from(writer));
        assert!(matches!(self.call(downgrade).await, Outcome::Held { was_free: false, .. }));
        assert_eq!(
            self.granted(&key).await.map(|grant| grant.token),
            Some(two),
            "a reader who waits shares it at once"
        );
        self.tells_nobody(&key, "but nobody behind a writer").await;
        for token in [other, two, late] {
            self.call(leave(&key, token)).await;
        }
        self.call(release(&key, one)).await;
    }

    async fn lets_in_those_behind_a_reader_that_finds_the_key_expired(&mut self, short: Duration) -> Option<()> {
        let (key, [writer, other], [one, two], [late, _]) =
            (self.key(), [self.token(), self.token()], self.shared(), self.shared());
        let span = Span::begin(short);
        self.acquire(&key, writer, short).await;
        for token in [one, two, other, late] {
            self.call(self.wait_for(&key, token)).await;
        }
        if !span.lasts() {
            for token in [one, two, other, late] {
                self.call(leave(&key, token)).await;
            }
            return None;
        }
        tokio::time::sleep(short + short / 2).await;
        let held = self.call(self.wait_for(&key, one)).await;
        assert!(matches!(held, Outcome::Held { .. }), "the first finds that the key has expired: {held:?}");
        assert_eq!(
            self.granted(&key).await.map(|grant| grant.token),
            Some(two),
            "a reader behind it shares it at once"
        );
        self.tells_nobody(&key, "but nobody behind a writer").await;
        for token in [other, late, two] {
            self.call(leave(&key, token)).await;
        }
        self.call(release(&key, one)).await;
        Some(())
    }

    /// Asks for a key, or a place in its queue.
    fn wait_for(&self, key: &LockKey, token: Token) -> Operation {
        let place = Place::new(Arc::clone(&self.channel), LONG, LONG, SENT);
        Operation::Acquire(Acquire::new(key.clone(), token, LONG).or_wait(place))
    }

    /// Looks at a key that several may hold.
    async fn look(&self, key: &LockKey) -> Shares {
        match self.call(Operation::Inspect { key: key.clone() }).await {
            Outcome::Shared { leases, permits, first, last } => Shares { leases, permits, first, last },
            outcome => panic!("a key that is shared is inspected as such, not as {outcome:?}"),
        }
    }

    async fn is_busy(&self, key: &LockKey) -> bool {
        let inspected = self.call(Operation::Inspect { key: key.clone() }).await;
        matches!(inspected, Outcome::Busy { .. } | Outcome::Shared { .. })
    }

    fn shared(&mut self) -> [Token; 2] {
        [(); 2].map(|()| self.token().in_mode(Mode::Shared))
    }

    fn permits(&mut self, total: u32, take: u32) -> Token {
        // Only lock-core makes the mode itself.
        format!("{}:{take}/{total}", self.token().reveal()).parse().expect("the text of a token with permits")
    }
}

/// Those who share a key, as the store says.
struct Shares {
    leases: u32,
    permits: u32,
    first: Duration,
    last: Duration,
}

fn leave(key: &LockKey, token: Token) -> Operation {
    Operation::Release(Release::new(key.clone(), token).with_place())
}
