//! The orders of buyers: several goods at once, drawn from a seed.

use std::collections::BTreeMap;
use std::fmt;

use rand::rngs::StdRng;
use rand::seq::index;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// The number of one of the [`GOODS`], from 1.
pub(crate) type Good = u32;

/// How many goods the shop has.
pub(crate) const GOODS: usize = 4;

/// How many units of each good there are when a sale begins.
pub(crate) const STOCK: u32 = 100;

/// How many buyers are wholesalers: the first ones.
pub(crate) const WHOLESALERS: usize = 2;

/// The order that both wholesalers place at the same moment; the stock is enough for one of them.
const WHOLESALE: [(Good, u32); 3] = [(1, 99), (2, 20), (3, 30)];

/// Units by good, each good once and in ascending order: `{"1": 99, "2": 20, "3": 30}` in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Order {
    units: BTreeMap<Good, u32>,
}

impl Order {
    /// Goes through the goods of this order and how many units of each it wants.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (Good, u32)> + '_ {
        self.units.iter().map(|(good, units)| (*good, *units))
    }
}

impl<const N: usize> From<[(Good, u32); N]> for Order {
    fn from(lines: [(Good, u32); N]) -> Self {
        Self { units: lines.into() }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lines()).finish()
    }
}

/// Draws the orders of every buyer, `rounds` each: the same seed gives the same orders.
///
/// The wholesalers open with [`WHOLESALE`]. Everybody else, and they later on, wants
/// one to three goods, one to five units of each.
pub(crate) fn draw(seed: u64, buyers: usize, rounds: usize) -> Vec<Vec<Order>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut orders: Vec<Vec<Order>> = (0..buyers).map(|_| (0..rounds).map(|_| small(&mut rng)).collect()).collect();
    for wholesaler in orders.iter_mut().take(WHOLESALERS) {
        if let Some(first) = wholesaler.first_mut() {
            *first = WHOLESALE.into();
        }
    }
    orders
}

fn small(rng: &mut StdRng) -> Order {
    let lines = rng.random_range(1..=3);
    let goods = index::sample(rng, GOODS, lines).into_iter();
    Order { units: goods.map(|at| (at as Good + 1, rng.random_range(1..=5))).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_orders() {
        assert_eq!(draw(7, 10, 5), draw(7, 10, 5));
        assert_ne!(draw(7, 10, 5), draw(8, 10, 5));
    }

    #[test]
    fn two_wholesalers_open_with_the_order_that_only_one_can_get() {
        let orders = draw(1, 6, 2);
        let opening = orders.iter().filter(|orders| orders[0] == WHOLESALE.into()).count();
        assert_eq!(opening, WHOLESALERS);
        assert!(WHOLESALE.iter().all(|(_, units)| *units <= STOCK));
        assert!(WHOLESALE.iter().any(|(_, units)| 2 * units > STOCK));
    }

    #[test]
    fn orders_ask_for_known_goods_and_at_least_one_unit() {
        for order in draw(3, 50, 10).iter().flatten() {
            assert!(order.lines().count() >= 1);
            assert!(order.lines().all(|(good, units)| (1..=GOODS as Good).contains(&good) && units >= 1));
        }
    }
}
