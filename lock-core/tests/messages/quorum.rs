//! Messages over the nodes of a quorum.

use lock_core::backend::QuorumBackend;

use super::*;

/// Three nodes with two managers. The first one is not known to the nodes from the number `deaf` on, and the last node takes `delay` for
/// its messages.
async fn quorum(deaf: usize, delay: Duration) -> Result<[LockManager; 2]> {
    let nodes = [MemoryBackend::new(), MemoryBackend::new(), MemoryBackend::new()];
    let of = |deaf| {
        let delays = [Duration::ZERO, Duration::ZERO, delay];
        let node = |((number, node), delay): ((usize, &MemoryBackend), _)| {
            Arc::new(Node { node: node.clone(), hears: number < deaf, delay }) as Arc<dyn Backend>
        };
        QuorumBackend::new(nodes.iter().enumerate().zip(delays).map(node))
    };
    let managers = [
        LockManager::builder().backend(of(deaf)?).client_name("one").build()?,
        LockManager::builder().backend(of(3)?).client_name("two").build()?,
    ];
    for manager in &managers {
        begin(manager).await?;
    }
    Ok(managers)
}

/// A node as a manager sees it.
#[derive(Debug)]
struct Node {
    node: MemoryBackend,
    /// Whether messages come from it to the manager.
    hears: bool,
    /// How long a message to it takes.
    delay: Duration,
}

impl Backend for Node {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        self.node.call(batch)
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.node.list(prefix)
    }

    fn publish(&self, channel: Arc<str>, message: String) -> Reply<Option<usize>> {
        let (node, delay) = (self.node.clone(), self.delay);
        Reply::new(async move {
            sleep(delay).await;
            node.publish(channel, message).await
        })
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.node.clock()
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        if self.hears { self.node.driver(calls) } else { Box::pin(std::future::pending()) }
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_at_a_quorum_ends_when_all_have_answered_if_all_nodes_know_as_many() -> Result {
    for deaf in [3, 2] {
        let [one, two] = quorum(deaf, Duration::ZERO).await?;
        let _guard = one.lock("k").await?;
        for manager in [&one, &two] {
            let begun = Instant::now();
            assert!(manager.inspect("k").await?.holder().is_some());
            assert!(manager.list("").await?[0].holder().is_some());
            assert_eq!(begun.elapsed() < ms(250), deaf == 3, "{:?}, {deaf}", begun.elapsed());
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_not_held_up_by_a_node_of_a_quorum_that_hangs() -> Result {
    let [one, two] = quorum(3, ms(1_000)).await?;
    let mut guards = Vec::new();
    for number in 0..500 {
        guards.push(one.lock(format!("k{number}")).ttl(ms(60_000)).await?);
    }
    let begun = Instant::now();
    let listed = two.list("k").await?;
    assert_eq!((listed.len(), undescribed(&listed)), (500, 0));
    assert!(begun.elapsed() <= ms(500), "{:?}", begun.elapsed());
    Ok(())
}
