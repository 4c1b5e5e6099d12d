//! The public face of lock-core, on backends in memory. One program, since each is linked with the whole tree.

mod support;

mod acquire;
#[cfg(all(feature = "axum", feature = "tonic"))]
mod answers;
mod auto_traits;
mod blocked;
mod calls;
mod cancel;
mod clock_steps;
mod danger;
mod downgrade;
mod driver;
mod durability;
mod health;
mod in_doubt;
mod inspecting;
#[cfg(feature = "opentelemetry")]
mod links;
mod lost;
mod mass;
mod messages;
mod metrics;
mod modes;
mod on_lost;
mod one_sender;
mod order;
mod panics;
mod parsers;
mod reentry;
mod renewal;
#[cfg(feature = "macros")]
mod results;
mod retry_after;
mod runtime_end;
mod shutdown;
mod slow_answers;
mod spans;
mod together;
mod turns;
mod user_code;
mod waits;
#[cfg(feature = "redis")]
mod warned;
