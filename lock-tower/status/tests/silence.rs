//! What the page says of processes that do not answer.

use lock_core::{LockManager, backend::MemoryBackend};
use lock_status::Status;

use crate::{
    client::{Process, look, mounted},
    showing::{documented, shape},
    support::until,
};

#[tokio::test]
async fn a_silent_process_is_named_if_it_has_answered_before_and_one_that_has_ended_is_not() {
    let store = MemoryBackend::new();
    let ops = LockManager::builder().backend(store.clone()).client_name("ops").build().unwrap();
    let _guard = ops.lock("own").await.unwrap();
    let address = mounted(Status::new(ops)).await;
    // A look is shared for a second: each step waits for the next one.
    let shows = async |part: &str| until(part, async || look(address, "/locks").await.body.contains(part)).await;

    let ended = Process::start(&store, "<ended>", "goods:1").await;
    shows("<dd>2</div>").await;
    ended.end();
    shows("<dd>1</div>").await;
    let mut stopped = Process::start(&store, "<stopped>", "goods:2").await;
    shows("<dd>2</div>").await;
    assert!(!look(address, "/locks").await.body.contains("&lt;ended&gt;"), "it does not count as silent");
    stopped.stop();
    shows("<b>1 of 2 processes did not answer</b>").await;
    let page = look(address, "/locks").await.body;
    let named = "Answered before, and not now:</p><ul><li><b>&lt;stopped&gt;</b> on ";
    assert!(page.contains(named) && !page.contains("&lt;ended&gt;") && !page.contains("CLIENT LIST"), "{page}");
    let json = look(address, "/locks?format=json").await.json();
    assert_eq!(shape(&json["missed"]), shape(&documented()["missed"]));
    assert_eq!((&json["missed"][0]["service"], &json["missed"][1]), (&"<stopped>".into(), &serde_json::Value::Null));

    // Another page has had no answer of it, and says where to find it. Its waiters may be any number.
    let page =
        look(mounted(Status::new(LockManager::builder().backend(store).build().unwrap())).await, "/locks").await.body;
    assert!(page.contains("One has not answered this page before") && page.contains("CLIENT LIST"), "{page}");
    assert!(page.contains("<dt>Requests waiting<dd>not known</div><div><dt>Longest wait<dd>not known</div>"), "{page}");
    assert!(page.contains("<dt>Longest hold<dd>at least "), "{page}");
    stopped.end();
}
