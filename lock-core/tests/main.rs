//! The public face of lock-core, on backends in memory. One program, since each is linked with the whole tree.

mod support;

mod acquire;
#[cfg(all(feature = "axum", feature = "tonic"))]
mod answers;
mod auto_traits;
mod blocked;
mod cancel;
mod clock_steps;
mod conformance;
mod downgrade;
mod durability;
mod health;
mod in_doubt;
mod inspecting;
#[cfg(feature = "opentelemetry")]
mod links;
#[cfg(all(feature = "macros", feature = "test-util"))]
mod losing;
mod lost;
mod mass;
mod messages;
mod metrics;
mod modes;
mod one_sender;
#[cfg(feature = "test-util")]
mod order;
mod panics;
mod parsers;
#[cfg(feature = "test-util")]
mod renewal;
#[cfg(feature = "macros")]
mod results;
mod retry_after;
mod runtime_end;
mod shutdown;
mod slow_answers;
mod spans;
mod together;
#[cfg(feature = "test-util")]
mod turns;
mod upkeep;
mod user_code;
mod waits;
mod warned;
