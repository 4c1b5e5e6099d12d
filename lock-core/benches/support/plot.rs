//! Pictures of what was measured.
use super::handoff::Handoffs;
use std::path::Path;

pub(crate) struct Throughput {
    pub(crate) tasks: usize,
    pub(crate) ours: f64,
    pub(crate) raw: f64,
    pub(crate) ratio: f64,
}
pub(crate) fn throughput(_file: &Path, _points: &[Throughput]) {}
pub(crate) fn handoff(_file: &Path, _played: &Handoffs) {}

pub(crate) struct Cost {
    pub(crate) leases: usize,
    pub(crate) bytes: f64,
    pub(crate) share: f64,
}
pub(crate) fn cost(_file: &Path, _points: &[Cost]) {}
