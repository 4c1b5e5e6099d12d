//! The test kit: what a test with lost leases finds and says, and the suite for backends on stores in memory.

mod conformance;
mod losing;
