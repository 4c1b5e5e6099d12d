//! The command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;

use crate::strategies::Strategy;

/// Sells four goods, 100 of each, to many buyers at once, with and without a lock.
///
/// Every strategy sells from fresh stock, in a real database, at several instances of the service. Exits with 1
/// when a strategy oversold that must not, and with 2 when the sale could not be held.
#[derive(Clone, Debug, Parser)]
#[command(name = "shop")]
pub(crate) struct Args {
    /// The strategies to compare, with commas between them [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME")]
    pub(crate) strategy: Vec<Strategy>,

    /// How many buyers there are
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    pub(crate) buyers: u32,

    /// How many instances of the service they are spread over
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N")]
    pub(crate) instances: u32,

    /// How many orders each buyer places, one after another
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    pub(crate) rounds: u32,

    /// The number that the orders are drawn from; the same seed gives the same orders
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) seed: u64,

    /// How long a sale thinks between reading the stock and writing it, in milliseconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=10_000), value_name = "MS")]
    pub(crate) pause_ms: u64,

    /// Makes each instance a process of its own, with a Redis between them: redis://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,

    /// Keeps the stock in this file instead of a temporary one
    #[arg(long, value_name = "sqlite:PATH")]
    pub(crate) database: Option<Database>,

    /// Prints one line of JSON a strategy instead of the table
    #[arg(long)]
    pub(crate) json: bool,

    /// Where to draw the stock over time, a panel for each strategy [default: beside the program, unless --json]
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,

    /// Serves as one instance; what it is to do comes on standard input.
    #[arg(long, hide = true)]
    pub(crate) instance: bool,
}

impl Args {
    /// The strategies to compare, each once, in the order of the question.
    pub(crate) fn strategies(&self) -> Vec<Strategy> {
        let mut strategies = Vec::new();
        for strategy in if self.strategy.is_empty() { &Strategy::ALL[..] } else { &self.strategy } {
            if !strategies.contains(strategy) {
                strategies.push(*strategy);
            }
        }
        strategies
    }

    /// The time between reading and writing.
    pub(crate) fn pause(&self) -> Duration {
        Duration::from_millis(self.pause_ms)
    }
}

/// The file of `sqlite:PATH`.
#[derive(Clone, Debug)]
pub(crate) struct Database(pub(crate) PathBuf);

impl FromStr for Database {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        let path = url.strip_prefix("sqlite:").ok_or("only SQLite is built in; write sqlite:PATH")?;
        let path = path.strip_prefix("//").unwrap_or(path);
        match path {
            "" => Err("the path is missing; write sqlite:PATH".into()),
            ":memory:" => Err("the instances need a file that all of them can open".into()),
            path => Ok(Self(path.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
    }

    #[test]
    fn strategies_are_taken_once_and_in_order() {
        let args = Args::parse_from(["shop", "--strategy", "optimistic,none", "--strategy", "none"]);
        assert_eq!(args.strategies(), [Strategy::Optimistic, Strategy::None]);
        assert_eq!(Args::parse_from(["shop"]).strategies(), Strategy::ALL);
    }

    #[test]
    fn a_database_is_a_sqlite_file() {
        let path = |url: &str| url.parse::<Database>().map(|database| database.0);
        assert_eq!(path("sqlite:shop.db"), Ok("shop.db".into()));
        assert_eq!(path("sqlite:///var/shop.db"), Ok("/var/shop.db".into()));
        assert!(path("postgres://localhost/shop").is_err());
        assert!(path("sqlite:").is_err());
        assert!(path("sqlite::memory:").is_err());
    }
}
