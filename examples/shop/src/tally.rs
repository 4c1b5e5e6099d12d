//! The books after a sale: what was promised, what is left, and whether the two agree.

use std::time::Duration;

use crate::instance::{Outcome, Receipt};
use crate::order::{GOODS, STOCK};
use crate::shop::Stock;
use crate::strategies::Strategy;

/// The outcome of one strategy.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) strategy: Strategy,
    pub(crate) instances: usize,
    /// All receipts, in the order in which the buyers got them.
    receipts: Vec<Receipt>,
    /// Units promised to buyers, of each good.
    sold: [u32; GOODS],
    /// Units that the database shows at the end, of each good.
    left: [u32; GOODS],
}

impl Tally {
    /// Adds up what the buyers were told; `stock` is what the database says at the end.
    pub(crate) fn new(strategy: Strategy, instances: usize, mut receipts: Vec<Receipt>, stock: &[Stock]) -> Self {
        receipts.sort_by_key(|receipt| receipt.at);
        let mut sold = [0; GOODS];
        for (at, units) in accepted(&receipts).flat_map(promised) {
            sold[at] += units;
        }
        let mut left = [0; GOODS];
        for (slot, row) in left.iter_mut().zip(stock) {
            *slot = row.left;
        }
        Self { strategy, instances, receipts, sold, left }
    }

    /// Orders that were placed.
    pub(crate) fn orders(&self) -> usize {
        self.receipts.len()
    }

    /// Orders that went through.
    pub(crate) fn accepted(&self) -> usize {
        accepted(&self.receipts).count()
    }

    /// Orders that could not get the lock in time, or lost it.
    pub(crate) fn turned_away(&self) -> usize {
        self.receipts.iter().filter(|receipt| receipt.outcome == Outcome::TurnedAway).count()
    }

    /// Units promised to buyers, in all accepted orders.
    pub(crate) fn sold(&self) -> u32 {
        self.sold.iter().sum()
    }

    /// Units that the database shows at the end.
    pub(crate) fn left(&self) -> u32 {
        self.left.iter().sum()
    }

    /// Units promised beyond the stock: for each good what was sold above its 100, added up.
    pub(crate) fn oversold(&self) -> u32 {
        self.sold.iter().map(|sold| sold.saturating_sub(STOCK)).sum()
    }

    /// Whether sold and left make up the stock, good by good; else a write was overwritten by another.
    pub(crate) fn adds_up(&self) -> bool {
        self.sold.iter().zip(&self.left).all(|(sold, left)| sold + left == STOCK)
    }

    /// Whether nothing was oversold and no write was lost.
    pub(crate) fn is_right(&self) -> bool {
        self.oversold() == 0 && self.adds_up()
    }

    /// Whether this strategy failed at what it promises.
    pub(crate) fn is_broken(&self) -> bool {
        self.strategy.is_safe(self.instances) && !self.is_right()
    }

    /// Sales that were begun again.
    pub(crate) fn retries(&self) -> u64 {
        self.receipts.iter().map(|receipt| u64::from(receipt.retries)).sum()
    }

    /// From the moment the buyers were let in to the last answer.
    pub(crate) fn took(&self) -> Duration {
        self.receipts.last().map_or(Duration::ZERO, |receipt| receipt.at)
    }

    /// The wait that `percent` of the orders stayed within: nearest rank, over all orders.
    pub(crate) fn wait(&self, percent: usize) -> Duration {
        let mut waits: Vec<_> = self.receipts.iter().map(|receipt| receipt.waited).collect();
        waits.sort();
        let rank = (waits.len() * percent).div_ceil(100);
        waits.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// The units that the shop could still promise of each good after each accepted order: 100 less what it has promised,
    /// below zero where it oversold.
    pub(crate) fn stock_over_time(&self) -> Vec<(Duration, [i64; GOODS])> {
        let mut stock = [i64::from(STOCK); GOODS];
        let mut points = vec![(Duration::ZERO, stock)];
        for receipt in accepted(&self.receipts) {
            for (at, units) in promised(receipt) {
                stock[at] -= i64::from(units);
            }
            points.push((receipt.at, stock));
        }
        points
    }
}

fn accepted(receipts: &[Receipt]) -> impl Iterator<Item = &Receipt> {
    receipts.iter().filter(|receipt| receipt.outcome == Outcome::Accepted)
}

/// The goods of a receipt by their index, with their units.
fn promised(receipt: &Receipt) -> impl Iterator<Item = (usize, u32)> + '_ {
    receipt.order.lines().map(|(good, units)| (good as usize - 1, units))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Order;

    fn receipt(ms: u64, outcome: Outcome, order: impl Into<Order>) -> Receipt {
        let (at, waited) = (Duration::from_millis(ms), Duration::from_millis(ms));
        Receipt { order: order.into(), outcome, at, waited, retries: 1 }
    }

    fn stock(left: [u32; GOODS]) -> Vec<Stock> {
        (1..).zip(left).map(|(good, left)| Stock { good, left, version: 0 }).collect()
    }

    #[test]
    fn two_wholesalers_who_both_got_the_last_of_a_good_show_as_oversold() {
        let both = [(1, 99), (2, 20), (3, 30)];
        let receipts = vec![receipt(2, Outcome::Accepted, both), receipt(1, Outcome::Accepted, both)];
        let tally = Tally::new(Strategy::None, 2, receipts, &stock([1, 80, 70, 100]));
        assert_eq!((tally.sold(), tally.left(), tally.oversold()), (298, 251, 98));
        assert!(!tally.adds_up());
        assert!(!tally.is_broken(), "it promised nothing");
        assert_eq!(tally.stock_over_time().last().map(|point| point.1), Some([-98, 60, 40, 100]));
    }

    #[test]
    fn what_is_oversold_of_one_good_is_not_made_up_by_another_that_is_left() {
        let receipts = vec![receipt(1, Outcome::Accepted, [(1, 101)])];
        let tally = Tally::new(Strategy::LockCore, 1, receipts, &stock([0, 100, 100, 100]));
        assert_eq!(tally.oversold(), 1);
        assert!(tally.is_broken());
    }

    #[test]
    fn a_lost_write_breaks_a_strategy_even_before_it_oversells() {
        let receipts = vec![receipt(1, Outcome::Accepted, [(1, 2)]), receipt(2, Outcome::Accepted, [(1, 3)])];
        let tally = Tally::new(Strategy::Optimistic, 1, receipts, &stock([97, 100, 100, 100]));
        assert_eq!(tally.oversold(), 0);
        assert!(tally.is_broken());
    }

    #[test]
    fn refused_orders_promise_nothing() {
        let refused = [Outcome::SoldOut, Outcome::TurnedAway];
        let receipts = refused.map(|outcome| receipt(1, outcome, [(1, 99)])).to_vec();
        let tally = Tally::new(Strategy::LockMacro, 3, receipts, &stock([100; GOODS]));
        assert_eq!((tally.orders(), tally.accepted(), tally.turned_away(), tally.sold()), (2, 0, 1, 0));
        assert!(!tally.is_broken());
    }

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let receipts = (1..=200).map(|ms| receipt(ms, Outcome::SoldOut, [(1, 1)])).collect();
        let tally = Tally::new(Strategy::None, 1, receipts, &stock([100; GOODS]));
        assert_eq!(tally.wait(50), Duration::from_millis(100));
        assert_eq!(tally.wait(99), Duration::from_millis(198));
        assert_eq!(tally.retries(), 200);
    }
}
