//! What `tracing` gets to see of a locked function.

use std::{
    fmt::{Debug, Write as _},
    sync::{Arc, Mutex},
};

use lock_core::{Error, LockManager, distributed_lock};
use tracing::{
    Metadata, Subscriber,
    field::{Field, Visit},
    instrument, span,
};

/// Notes each span when it begins: its name and its fields.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span()
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        let mut shown = Shown(span.metadata().name().to_owned());
        span.record(&mut shown);
        self.0.lock().expect("not poisoned").push(shown.0);
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Shown(String);

impl Visit for Shown {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").expect("a `String` takes everything");
    }
}

#[distributed_lock(key = "goods:<id>")]
#[instrument]
async fn sell(id: u64) -> Result<(), Error> {
    select(id + 1).await
}

#[instrument]
#[distributed_lock(keys = ["shelf:<id>"])]
async fn select(id: u64) -> Result<(), Error> {
    let _ = id;
    Ok(())
}

#[tokio::test]
async fn spans_name_the_key_and_the_template_and_begin_in_the_order_of_the_attributes() -> Result<(), Error> {
    // With one subscriber alone in the process, the first thread to log decides for all of them whether that is of interest, and it may
    // be a thread of another test, which has no subscriber.
    let _other = tracing::Dispatch::new(Spans::default());
    let spans = Spans::default();
    let _default = tracing::subscriber::set_default(spans.clone());
    LockManager::in_memory().scope(sell(7)).await?;
    let spans = spans.0.lock().expect("not poisoned").clone();
    let [sell, acquire, hold, acquire_other, hold_other, select] = &spans[..] else { panic!("{spans:#?}") };
    // Below the attribute the span is around the lock, above it inside.
    assert_eq!((sell.as_str(), select.as_str()), ("sell id=7", "select id=8"));
    assert_eq!(acquire, r#"lock.acquire key="goods:7" lock="goods:<id>""#);
    assert!(hold.starts_with(r#"lock.hold key="goods:7" fencing_token="#), "{hold}");
    assert_eq!(acquire_other, r#"lock.acquire key="shelf:8" lock="shelf:<id>""#);
    assert!(hold_other.starts_with(r#"lock.hold key="shelf:8" fencing_token="#), "{hold_other}");
    Ok(())
}
