//! Beside other attributes, above and below them, and with macros in the body.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use lock_core::{Error, LockManager, distributed_lock};
use tracing::instrument;

mod with_instrument {
    use tracing::{Metadata, span, subscriber::Interest};

    use super::*;

    #[distributed_lock(key = "above:<id>", lease = l)]
    #[instrument(skip(name), fields(length = name.len()), err)]
    async fn above(id: u8, name: String) -> Result<String, Error> {
        tokio::task::yield_now().await;
        Ok(format!("{} {name}", l.key()))
    }

    #[instrument(skip(name), fields(length = name.len()), err)]
    #[distributed_lock(key = "below:<id>", lease = l)]
    async fn below(id: u8, name: String) -> Result<String, Error> {
        tokio::task::yield_now().await;
        Ok(format!("{} {name}", l.key()))
    }

    struct Shop(LockManager);

    impl Shop {
        #[instrument(skip_all)]
        #[distributed_lock(key = "method:<id>", manager = self.0)]
        async fn method(&mut self, id: u8) -> Result<bool, Error> {
            self.0.is_locked(format!("method:{id}")).await
        }
    }

    /// Counts the spans by name, nothing else.
    #[derive(Clone, Default)]
    struct Spans(Arc<AtomicUsize>);

    impl tracing::Subscriber for Spans {
        fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
            Interest::sometimes()
        }

        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
            if ["above", "below", "method"].contains(&span.metadata().name()) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    #[tokio::test]
    async fn bad_input_60_instrumented_functions_are_locked_in_both_orders() -> Result<(), Error> {
        // With one subscriber alone in the process, the first thread to log decides for all of them whether that is of interest,
        // and it may be a thread of another test, which has no subscriber.
        let _other = tracing::Dispatch::new(Spans::default());
        let spans = Spans::default();
        let _default = tracing::subscriber::set_default(spans.clone());
        let manager = LockManager::in_memory();
        assert_eq!(manager.scope(above(1, "a".into())).await?, "above:1 a");
        assert_eq!(manager.scope(below(2, "b".into())).await?, "below:2 b");
        assert!(Shop(manager).method(3).await?);
        assert_eq!(spans.0.load(Ordering::SeqCst), 3, "each function has its span");
        Ok(())
    }
}

mod with_tokio {
    use super::*;

    #[distributed_lock(key = "test", manager = LockManager::in_memory(), lease = l)]
    #[tokio::test]
    async fn bad_input_60_test_below_the_attribute_runs_under_the_lock() -> Result<(), Error> {
        assert!(l.is_held());
        Ok(())
    }

    #[distributed_lock(key = "macros")]
    async fn macros_in_the_body(ready: bool) -> Result<usize, Error> {
        let manager = LockManager::current()?;
        let (locked, free) = tokio::join!(manager.is_locked("macros"), manager.is_locked("free"));
        assert_eq!((locked?, free?), (true, false));
        tokio::select! {
            biased;
            () = std::future::ready(()), if ready => return Ok(1),
            () = tokio::task::yield_now() => {}
        }
        macro_rules! leave {
            ($value:expr) => {
                return Ok($value)
            };
        }
        leave!(2)
    }

    #[tokio::test]
    async fn macros_in_the_body_return_from_the_function() -> Result<(), Error> {
        let manager = LockManager::in_memory();
        assert_eq!(manager.scope(macros_in_the_body(true)).await?, 1);
        assert_eq!(manager.scope(macros_in_the_body(false)).await?, 2);
        Ok(())
    }
}

mod with_built_in_attributes {
    use super::*;

    /// Documented.
    #[cfg(test)]
    #[cfg_attr(test, distributed_lock(key = "k:<id>", lease = l))]
    #[inline]
    #[must_use = "kept"]
    async fn kept(#[cfg(test)] id: u8, #[cfg(not(test))] id: &str) -> Result<String, Error> {
        #![allow(unused_mut)]

        let mut key = l.key().to_owned();
        Ok(key)
    }

    /// An argument that is left out is not asked for.
    #[distributed_lock(key = "k:<id>")]
    async fn partly(id: u8, #[cfg(not(test))] _out: NoSuchType, #[cfg(not(test))] used: u8) -> Result<u8, Error> {
        #[cfg(not(test))]
        drop(used);
        Ok(id)
    }

    #[distributed_lock(key = "left:<out>")]
    #[cfg(not(test))]
    async fn kept(id: NoSuchType) -> Result<(), Error> {}

    #[tokio::test]
    async fn bad_input_60_attributes_keep_their_meaning() -> Result<(), Error> {
        assert_eq!(LockManager::in_memory().scope(kept(1)).await?, "k:1");
        assert_eq!(LockManager::in_memory().scope(partly(1)).await?, 1);
        Ok(())
    }
}
