mod late;

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::clock::Moment;
use crate::error::ErrorKind;

/// A backend whose every answer differs from the default.
#[derive(Debug, Default)]
struct Odd {
    polled: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Moment {
        Moment::NEVER
    }

    fn sleep(&self, _: Duration) -> crate::clock::Sleep {
        Box::pin(std::future::pending())
    }
}

impl Backend for Odd {
    fn call(&self, _: Batch) -> Reply<Answer> {
        Reply::ready(Err(BackendError::denied("odd")))
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        Reply::ready(Err(BackendError::unsupported(prefix)))
    }

    fn epoch(&self) -> u64 {
        7
    }

    fn is_reachable(&self) -> bool {
        false
    }

    fn time_limit(&self) -> Duration {
        Duration::from_secs(7)
    }

    fn identity(&self) -> Option<Arc<str>> {
        Some("odd".into())
    }

    fn health(&self) -> Vec<NodeHealth> {
        vec![NodeHealth::new("odd", true)]
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(Stopped)
    }

    fn is_settled(&self) -> bool {
        false
    }

    fn is_held_up(&self) -> bool {
        true
    }

    fn upkeep(&self, _: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let polled = Arc::clone(&self.polled);
        Box::pin(async move { polled.store(true, Ordering::SeqCst) })
    }
}

#[tokio::test]
async fn arc_of_a_backend_is_that_backend() {
    fn given(backend: impl Backend) -> Arc<dyn Backend> {
        Arc::new(backend)
    }
    let odd = Odd::default();
    let polled = Arc::clone(&odd.polled);
    let shared = given(odd);
    let backend = given(shared);
    assert_eq!(backend.call(Batch::new()).await.expect_err("odd").kind(), ErrorKind::Denied);
    assert_eq!(backend.list("p".to_owned()).await.expect_err("odd").to_string(), "p");
    assert_eq!((backend.epoch(), backend.time_limit()), (7, Duration::from_secs(7)));
    assert!(!backend.is_reachable() && !backend.is_settled() && backend.is_held_up());
    assert_eq!(backend.identity().as_deref(), Some("odd"));
    assert_eq!(backend.health()[0].address(), "odd");
    assert_eq!(backend.clock().now(), Moment::NEVER);
    backend.upkeep(Calls::new("channel".into()).0).await;
    assert!(polled.load(Ordering::SeqCst));
}

#[test]
fn items_are_taken_apart_in_order() {
    let mut items: Items<_> = (0..5).collect();
    let rest = items.split_off(2);
    assert_eq!((&items[..], &rest[..]), (&[0, 1][..], &[2, 3, 4][..]));
    items.extend(rest.into_iter().rev());
    assert_eq!(items.pop(), Some(2));
    assert_eq!((items.into_iter().collect::<Vec<_>>(), Items::from([7]).len()), (vec![0, 1, 4, 3], 1));
}
