//! One answer for all requests of one `Idempotency-Key`: a double click, a client's retry or a webhook's second delivery is not
//! carried out again (feature `idempotency`).
//!
//! Of the requests with one key one runs at a time. All that come later are given the answer that was **stored first**. They wait for
//! it in the queue of a lock, at any number of instances, and come in together.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, routing::post};
//! use lock_core::LockManager;
//! use lock_tower::{idempotency::{IdempotencyLayer, MemoryAnswers}, key::{header, scoped}};
//! use std::time::Duration;
//!
//! // Whose key it is: a gateway has authenticated the account, and set this header.
//! let principal = header::<String>("x-account");
//! let manager = LockManager::in_memory(); // or: LockManager::connect("redis://127.0.0.1").await?
//! let answers = MemoryAnswers::new(); // with a Redis for the locks: RedisAnswers, or a table of the service's own database
//! let once = IdempotencyLayer::http(manager, scoped("payments", principal), answers)
//!     .keep(Duration::from_secs(24 * 3600))
//!     .wait(Duration::from_secs(2))
//!     .limit(256 * 1024);
//! let service: Router = Router::new().route("/payments", post(async || "charged")).route_layer(once);
//! # use {axum::{body::Body, extract::Request}, tower::ServiceExt};
//! # let pay = || Request::post("/payments").header("x-account", "7").header("idempotency-key", "8e03978e").body(Body::from("42"));
//! # assert!(!service.clone().oneshot(pay()?).await?.headers().contains_key("idempotent-replayed"));
//! # assert_eq!(service.oneshot(pay()?).await?.headers()["idempotent-replayed"], "true");
//! # Ok(()) }
//! ```
//!
//! # What it does not promise
//!
//! **A process that dies between the effect and the storing of its answer leaves nothing behind that says so.** After the ttl a duplicate
//! runs again, and the effect happens twice (attack 1 of the table below). The same follows if
//! * the lease is lost before the answer was read to its end, or after that, and a duplicate is quicker than the store,
//! * the store can be read and not written: the lease ends at `max_hold`, five minutes unless set, with 500 `lock_lost` for its client; the
//!   answer is tried for five minutes after the handler's end,
//! * the store panics as it is written: that answer is lost,
//! * the store loses answers before their time,
//! * the handler answers with anything that is [not kept](#which-answers-are-kept) after part of its work: 5xx, 401, 408, 425, 429, a 4xx with
//!   `Retry-After`, the error of a lock (also that its lease was lost), an error of the service or a panic. Acquire every lock before the first
//!   effect.
//!
//! No lock can help there. Only a store in the transaction of the effect can: see [exactly once](#exactly-once).
//!
//! Without such a fault, a handler runs once for each key. And even with one, all clients are told the same answer. That does not hold for
//! answers that are [too large](IdempotencyLayer::limit): if two handlers have run, the client of each is given what its own one returned.
//!
//! **Memory has no bound.** Each request has its body in memory, up to 2 MiB, also while it waits.
//! [`max_waiters`](crate::LockLayer::max_waiters) says how many may wait. [`MemoryAnswers`] has as many answers as clients send keys.
//!
//! # How it works
//!
//! 1. The request is read, up to 2 MiB or the [`limit`](IdempotencyLayer::limit) of answers, if that is more. A client that stalls in its upload keeps no key.
//! 2. The store is read. If it has an answer, that is the answer.
//! 3. The key of scope, principal and `Idempotency-Key` is acquired exclusively, without waiting. In the store it has the prefix of the
//!    manager before it. If it is busy, it is acquired *shared*, for as long as [`wait`](IdempotencyLayer::wait): the release of the first
//!    request lets all duplicates in, and they read the store. If the first left no answer, they acquire the key exclusively, one after
//!    another.
//! 4. The store is read again, under the lease. Another request may have stored its answer since step 2.
//! 5. The handler runs in a task of its own. If the client hangs up, it runs to its end. If the lease is lost, it is cancelled, and the
//!    client is told the answer that is stored by then, or that the lease was lost.
//! 6. The body of its answer is read, up to [`limit`](IdempotencyLayer::limit), and the answer is stored *if there is none*. A task of
//!    its own does that, and tries again for five minutes if the store fails. A lease that is lost does not stop it.
//! 7. What the store holds then is the answer. After an answer that is not kept, the store is read once more, since the handler may have
//!    stored one [itself](#exactly-once). The lease is released.
//!
//! The lease is renewed all the while. [`Lease`](lock_core::Lease) and [`Attempt`] are in the extensions of the request.
//!
//! A handler outlives its client, so a shutdown of the HTTP server alone does not wait for it:
//! [`LockManager::shutdown`](lock_core::LockManager::shutdown) does. A limit of concurrent requests belongs outside of this layer, or
//! requests that wait for an answer keep others of its places.
//!
//! Layers that authenticate, and those for CORS and compression, stand outside of this one. The headers of CORS are those of one client and are
//! not kept; an answer that was compressed inside is given to all, also to a client that cannot read it.
//!
//! A `TimeoutLayer` stands outside, too, where it ends the wait of its client and not the handler. Inside, it drops the handler halfway, and its 408
//! is not kept: the next request runs the handler again. A `LockLayer` inside refuses a request before the handler if the key is busy. If it
//! loses its lease, its 500 is not kept, and the next request runs the handler again; [`OnLost::Ignore`](lock_core::OnLost) there keeps the
//! answer. Outside, it stops protecting when its client hangs up, while the handler runs on. A handler that acquires locks acquires all of them before its first effect, and does not make a loss or a failed release after that
//! its answer.
//!
//! # Which answers are kept
//!
//! | answer of the handler | kept |
//! | --- | --- |
//! | 2xx to 4xx, without those of the next line; gRPC: `OK` and codes that say that a retry makes no sense, such as `INVALID_ARGUMENT` | yes: status, body, trailers, and the headers of the content |
//! | 5xx, 401, 408, 425 and 429; gRPC: `UNAVAILABLE`, `INTERNAL`, `ABORTED`, `UNAUTHENTICATED` and other codes of that kind | no: the next request runs again |
//! | 4xx with `Retry-After`, or any with a [`lock_core::Error`] in its extensions, such as the refusal of a `LockLayer` inside | no |
//! | an error of the service, a panic | no |
//! | more than `limit` bytes, a stream that takes longer than 5 s, a body that fails | that there was one: duplicates are told so, and nothing runs again |
//!
//! A kept answer that is given again has the header `idempotent-replayed: true`, and no `Set-Cookie`, no `Date`, and no header of a
//! connection. Kept are `cache-control`, `content-disposition`, `content-encoding`, `content-language`, `content-location`, `content-type`,
//! `etag`, `last-modified`, `link`, `location` and `vary`, and of gRPC the status and all other trailers.
//!
//! # Refusals
//!
//! | status | gRPC | code | when |
//! | --- | --- | --- | --- |
//! | 400 | `INVALID_ARGUMENT` | `idempotency_key_missing` | there is no key, unless it is [`optional`](IdempotencyLayer::optional) |
//! | 400 | `INVALID_ARGUMENT` | `idempotency_key_unusable` | the key is empty, repeated, not visible ASCII or longer than 255 bytes |
//! | 400 | `INVALID_ARGUMENT` | `idempotency_request_unreadable` | the body of the request failed, or took longer than five minutes |
//! | 413 | `INVALID_ARGUMENT` | `idempotency_request_too_large` | the request has more than 2 MiB |
//! | 422 | `FAILED_PRECONDITION` | `idempotency_key_reused` | the key was used with another method, path, query or body: the same JSON with other spaces is another body |
//! | 409, `Retry-After` | `ABORTED`, `RetryInfo` | `idempotency_in_progress` | the first request is still running after `wait` |
//! | 409 | `FAILED_PRECONDITION` | `idempotency_answer_not_kept` | the first request was carried out, and its answer could not be kept: it was too large, or a stream |
//! | 503, `Retry-After` | `UNAVAILABLE`, `RetryInfo` | `idempotency_unavailable` | the store does not answer, or not within [`store_timeout`](IdempotencyLayer::store_timeout); the handler has not run |
//! | 500 | `UNKNOWN` | `idempotency_answer_not_stored` | the handler has run, the store has not taken the answer for five minutes, and a longer `max_hold` has kept the lease |
//!
//! What the lock refuses is answered as by a [`LockLayer`](crate::LockLayer): its table is that of [`Http`](crate::Http), and 503
//! `lock_unavailable` comes before the handler. A principal that is empty, or has an empty part, or an extension that no layer has set, is a mistake of the service: 500 `lock_misconfigured`. A missing header is 400.
//! All bodies are problem details (RFC 9457).
//!
//! A key is taken as it is sent. The draft of the IETF has it in quotes, Stripe has not; `"a"` and `a` are two keys.
//!
//! # Exactly once
//!
//! If effect and answer are in one database, the handler stores its answer in the transaction of the effect. [`Attempt`] has the key, and
//! the form of the answer. The same table is the [`Answers`] of the layer:
//!
//! ```sql
//! BEGIN;
//! INSERT INTO charges …;
//! INSERT INTO answers (key, answer, until) VALUES (…) ON CONFLICT (key) DO UPDATE
//!     SET answer = excluded.answer, until = excluded.until WHERE answers.until <= now();  -- no row: ROLLBACK
//! COMMIT;
//! ```
//!
//! A handler that died before the commit has done nothing. One that died after it is found by the next request. One that lost its lease
//! inserts no row. The layer answers with what is stored, so it does not matter what the handler returns then. `example-payments` does this
//! with SQLite, and a test of `example-axum-shop` with PostgreSQL, in processes that are killed. This is for HTTP: [`Attempt::answer`] has no trailers, where gRPC has its status. An effect elsewhere (a payment provider) is given the key, or a hash of it (it is longer than some take, and names the principal), as the idempotency key of that call.
//!
//! # Attacks
//!
//! | # | what happens | what follows |
//! | --- | --- | --- |
//! | 1 | the process dies after the effect, before the store | after the ttl a duplicate runs again; in HTTP not with [exactly once](#exactly-once) |
//! | 2 | the lease is lost | 500 `lock_lost`, unless an answer is stored by then, which is told; a handler that still runs is cancelled, and a duplicate runs; an answer that was read is stored all the same |
//! | 3 | an answer is stored after its lease was lost, while the next request runs | the answer that is stored first is told to all |
//! | 4 | the key comes with another body while the first request runs | it waits, then 422 |
//! | 5 | the answer is lost on its way to the client | the retry is given it |
//! | 6 | the client hangs up | the handler runs to its end, and the retry is given its answer; work that a body does after [`limit`](IdempotencyLayer::limit) or 5 s ends with its client |
//! | 7 | the answer is large, or a stream | its client is given it, and what comes after 5 s or the limit is not under the lease; duplicates are told that the request was carried out, as is its client if the lease is lost meanwhile |
//! | 8 | the upload stalls | it keeps no key, and ends after five minutes |
//! | 9 | the answer has a `Set-Cookie` | it is not kept |
//! | 10 | a client sends the key of another | it is another key: the [`Principal`] is required by type, and may have no empty part |
//! | 11 | answers fill Redis | locks go on: the layer refuses to store answers in their server, as far as the addresses show it |
//! | 12 | the store evicts an answer | the next duplicate runs again: [`keep`](IdempotencyLayer::keep) is a wish to the store |
//! | 13 | a server is down | 503, before the handler; the policy `LetThrough` does not apply here |
//! | 14 | thousands of duplicates | two reads of the store each as a rule, and one place in the queue; [`max_waiters_per_key`](crate::LockLayer::max_waiters_per_key) |
//! | 15 | the handler answers with 500, or with another answer that is not kept, after half of its work | a retry runs again, as after a 500 in version 2 of Stripe's interface; version 1 keeps it |
//! | 16 | a client sends two keys for one payment | two payments: nothing helps |
//! | 17 | gRPC | the same, by metadata, with trailers; without [exactly once](#exactly-once) |
//!
//! # When not to use it
//!
//! * The answer is a stream, or larger than you want to store.
//! * The request is large, or has trailers: it is read into memory, and its trailers are not passed on.
//! * The effect is one row: a unique key there is simpler, and cannot be lost.

mod answers;
mod attempt;
mod form;
mod layer;
#[cfg(feature = "idempotency-redis")]
mod redis;
mod service;

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
