//! How the map is learned: from the nodes that are connected, or else from those that the URL names.

use std::{collections::HashSet, sync::PoisonError, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Value;
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    super::{
        commands::Commands,
        connector::Connector,
        failure,
        handshake::{Connected, Failure},
        info,
        pauses::PATIENCE,
        reply, slot,
    },
    Cluster,
    map::{Map, Range, ids, ranges},
};
use crate::backend::{BackendError, Replied};

/// A node's view of the cluster.
struct View {
    ranges: Vec<Range>,
    /// The ids of the nodes that it knows.
    ids: HashSet<String>,
    /// Whether the cluster takes commands, as far as the node knows; `None` if the user may not ask.
    is_ok: Option<bool>,
    /// Rises with each change that the nodes have agreed to.
    epoch: u64,
}

/// Learns the map, of the nodes that are connected, or else of those that the URL names.
pub(super) async fn learn(cluster: &Cluster) -> Replied<()> {
    let asked = asked(cluster).await;
    let are_most = asked.len() > cluster.map().nodes().len() / 2;
    let known = cluster.map();
    let is_ours = |view: &View| known.ids.is_empty() || !view.ids.is_disjoint(&known.ids);
    let view = match best(asked, &known.ids) {
        Some(view) if view.is_usable(are_most) && is_ours(&view) => view,
        // A node that has left the cluster, was cut off or never was in it knows no other that could be asked.
        Some(view) if may_ask_seeds(cluster) => {
            let seeded = timeout(SEEDS_LIMIT, seeded(cluster)).await;
            best(seeded.into_iter().flatten().chain([view]), &known.ids).ok_or_else(|| cluster.unknown())?
        }
        Some(view) if !view.ranges.is_empty() => {
            cluster.is_ok.send_replace(view.is_ok);
            return Ok(());
        }
        Some(view) => view,
        None => seeded(cluster).await?,
    };
    if view.ranges.is_empty() {
        let message =
            format!("{} has given none of its slots to a node yet (redis-cli --cluster create)", cluster.name());
        return Err(BackendError::unavailable(message).did_not_happen());
    }
    let known = cluster.map();
    let mut new = Map::of(&view.ranges, &known, &cluster.nodes);
    new.ids = view.ids.into();
    // Before the map, as both are looked at when that comes.
    cluster.is_ok.send_replace(view.is_ok);
    if !new.is_as(&known) {
        cluster.nodes.reorder();
        cluster.map.send_replace(new.into());
    }
    Ok(())
}

/// Whether the nodes of the URL may be asked beside others that answer. Each of them is asked over a connection of its own.
fn may_ask_seeds(cluster: &Cluster) -> bool {
    let mut asked = cluster.seeds_asked.lock().unwrap_or_else(PoisonError::into_inner);
    let may = asked.is_none_or(|asked| asked.elapsed() > SEEDS_PAUSE);
    if may {
        *asked = Some(Instant::now());
    }
    may
}

/// Asks the connected nodes for their views, and leaves out the slow ones.
async fn asked(cluster: &Cluster) -> Vec<View> {
    let map = cluster.map();
    // A guest may have joined another cluster since.
    let nodes = map.nodes().iter().filter(|node| node.link.is_up());
    views(nodes.map(|node| view_of(node)), |_| true).await.0
}

/// Asks the nodes of the URL for their views, and returns the best.
async fn seeded(cluster: &Cluster) -> Replied<View> {
    let is_well = |view: &View| view.is_ok != Some(false);
    let (views, errors) = views(cluster.seeds.iter().map(|seed| view_of_seed(seed)), is_well).await;
    best(views, &cluster.map().ids).ok_or_else(|| {
        let what = format!("no node of {} could be asked which node has which keys", cluster.name());
        failure::of_several(&errors, &what).unwrap_or_else(|| cluster.unknown())
    })
}

/// Collects the views that come soon after the first, and the errors. One that is not `well` is worth a longer wait for others.
async fn views(
    asked: impl Iterator<Item = impl Future<Output = Replied<View>>>,
    is_well: impl Fn(&View) -> bool,
) -> (Vec<View>, Vec<BackendError>) {
    let mut answers: FuturesUnordered<_> = asked.collect();
    let (mut views, mut errors) = (Vec::new(), Vec::new());
    let mut until = None;
    loop {
        let answer = match until {
            Some(until) => timeout_at(until, answers.next()).await.unwrap_or(None),
            None => answers.next().await,
        };
        match answer {
            None => return (views, errors),
            Some(Ok(view)) => {
                let patience = Instant::now() + if is_well(&view) { PATIENCE } else { LONG_PATIENCE };
                until = Some(until.map_or(patience, |until| patience.min(until)));
                views.push(view);
            }
            Some(Err(error)) => errors.push(error),
        }
    }
}

/// Chooses among the views of several nodes: one that knows a node of before, which no other cluster does that was given the address
/// of one of ours; one that says that all is well, and then the newest.
fn best(views: impl IntoIterator<Item = View>, known: &HashSet<String>) -> Option<View> {
    let is_ours = |view: &View| !view.ids.is_disjoint(known);
    views.into_iter().max_by_key(|view| (!view.ranges.is_empty(), is_ours(view), view.is_ok, view.epoch))
}

impl View {
    /// Whether nothing speaks for asking others. If all is not well it is the view of most nodes: one that was cut off for good lists the
    /// slots of all that it knew.
    fn is_usable(&self, is_of_most: bool) -> bool {
        let covered: u32 = self.ranges.iter().map(|(_, first, last)| u32::from(last - first) + 1).sum();
        self.is_ok.unwrap_or(covered > 0) || is_of_most && covered >= u32::from(slot::SLOTS)
    }
}

async fn view_of(node: &Connector) -> Replied<View> {
    view(node, node.query::<Vec<Value>>(&questions()).await?)
}

/// Asks a node of the URL for its view. While it answers, the cluster does not count as down.
async fn view_of_seed(seed: &Connector) -> Replied<View> {
    seed.forget_heard();
    let view = asked_once(seed).await;
    if view.as_ref().is_ok_and(|view| !view.ranges.is_empty()) {
        return view;
    }
    seed.forget_heard();
    view
}

/// Asks a node over a connection that is closed afterwards.
async fn asked_once(seed: &Connector) -> Replied<View> {
    let connected = async { seed.attempt(seed.log_in().await?, None, None).await };
    let Connected { wire, mut reader, .. } = connected.await.map_err(|Failure { error, .. }| error)?;
    seed.heard();
    let replies = timeout(seed.limit(), reader.carry(wire.put(&questions()))).await;
    view(seed, replies.map_err(|_| seed.out_of_time())?.map_err(|error| seed.refusal(error))?)
}

fn questions() -> Commands {
    let mut questions = Commands::one(["CLUSTER", "SLOTS"]);
    questions.add(["CLUSTER", "INFO"]);
    questions
}

/// Reads the replies of a node to the questions.
fn view(node: &Connector, replies: impl IntoIterator<Item = Value>) -> Replied<View> {
    let mut replies = replies.into_iter();
    let slots = replies.next().unwrap_or(Value::Nil).extract_error().map_err(|error| node.refusal(error))?;
    let ids = ids(&slots);
    let ranges = ranges(slots, &node.settings.address).ok_or_else(|| misread(node))?;
    // A user who may not ask gets along without.
    let about = replies.next();
    let about = about.as_ref().and_then(reply::text).unwrap_or_default();
    let is_ok = info::field(about, "cluster_state").map(|state| state == "ok");
    let epoch = info::field(about, "cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    Ok(View { ranges, ids, is_ok, epoch })
}

fn misread(node: &Connector) -> BackendError {
    let message = format!(
        "{} does not say which node has which keys as a cluster does; check that it is a node of one",
        node.address()
    );
    BackendError::unsupported(message)
}

/// How long others are waited for that may know of a cluster in which all is well.
const LONG_PATIENCE: Duration = Duration::from_millis(500);
/// The least pause between two questions to the nodes of the URL while others answer.
const SEEDS_PAUSE: Duration = Duration::from_secs(1);
/// How long they are waited for beside a node that answers, which is not asked again meanwhile.
const SEEDS_LIMIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::stream::Address;

    #[test]
    fn the_view_of_another_cluster_counts_only_if_no_node_of_ours_has_one() {
        let view = |ids: &[&str], is_ok, epoch| {
            let address = Address::Tcp { host: "a".to_owned(), port: 1 };
            let ids = ids.iter().map(|id| (*id).to_owned()).collect();
            View { ranges: vec![(address, 0, 16_383)], ids, is_ok: Some(is_ok), epoch }
        };
        let known = ["a", "b"].map(str::to_owned).into();
        let chosen = |views: Vec<View>| best(views, &known).expect("there are some").epoch;
        let other = || view(&["x", "y"], true, 99);
        assert_eq!(chosen(vec![view(&["a", "c"], false, 7), other(), view(&["a", "b"], false, 6)]), 7);
        assert_eq!(chosen(vec![view(&["a"], true, 6), view(&["b"], false, 8), other()]), 6);
        assert_eq!(chosen(vec![other()]), 99, "all nodes were replaced");
        let empty = View { ranges: Vec::new(), ..view(&[], true, 0) };
        assert_eq!(chosen(vec![empty, other()]), 99, "no node of ours has a view");
        let first = best([other(), view(&["a"], true, 1)], &HashSet::new()).expect("there are some");
        assert_eq!(first.epoch, 99, "nothing is known before the first map");
    }
}
