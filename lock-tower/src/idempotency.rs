//! One answer for all requests of one `Idempotency-Key` (feature `idempotency`).

mod answers;
mod attempt;
mod form;
mod layer;
mod problem;
mod record;
#[cfg(feature = "idempotency-redis")]
mod redis;
mod service;
mod steps;

#[cfg(feature = "idempotency-redis")]
pub use self::redis::RedisAnswers;
pub use self::{
    answers::{Answers, MemoryAnswers},
    attempt::Attempt,
    form::Form,
    layer::IdempotencyLayer,
    service::IdempotencyService,
};
pub use crate::key::Principal;
