//! What a schedule has to keep to, beside the rules of histories.

use std::time::Duration;

use super::{
    Report,
    client::LONGEST_EXTEND,
    network,
    node::Holder,
    order,
    plan::Trouble,
    world::{Server, World, ms},
};
use crate::history::{Checker, Event, History, Op};

/// Nothing is held by a token whose holder is done with it: `of` one client, or of all.
pub(super) fn check_ghosts(world: &World, of: Option<usize>) {
    if world.plan.troubles.contains(&Trouble::ClockBack) {
        // A clock that is set back keeps keys for longer than anybody has to reckon with.
        return;
    }
    for server in 0..world.plan.store.nodes() {
        check_ghosts_of(world, server, of);
    }
}

fn check_ghosts_of(world: &World, server: usize, of: Option<usize>) {
    let mut state = world.state();
    let wall = state.wall(server);
    let node = &state.servers[server].node;
    let mut ghosts: Vec<_> = node
        .leftovers(wall)
        .filter(|(key, _, _)| !state.handed_over.iter().any(|given| given == key.as_str()))
        .filter(|(_, entry, _)| !entry.note.kept)
        // Nobody waits any more, so that nobody comes for a grant.
        .filter(|(_, entry, _)| {
            entry.note.setter.map_or(entry.note.reserved && !entry.note.renewed, |client| !state.links[client].dead)
        })
        .filter(|(_, entry, _)| of.is_none() || entry.note.setter == of)
        .map(|(key, entry, left)| {
            let how = if entry.note.reserved { "reserved" } else { "held" };
            ("ghost", format!("{key} is {how}, for {left} ms more, though nobody holds it"))
        })
        .collect();
    let channel = of.and_then(|client| state.links[client].channel.clone());
    let places = node.places(wall).filter(|(_, theirs)| of.is_none() || Some(*theirs) == channel.as_ref());
    // A lease that is given away may have a place at a node that does not have the lease, which ends by itself.
    let places = places.filter(|(key, _)| {
        !world.plan.store.is_quorum() || !state.handed_over.iter().any(|given| given == key.as_str())
    });
    ghosts.extend(places.map(|(key, _)| ("ghost-place", format!("a place for {key} is left"))));
    for (rule, message) in ghosts {
        state.breach(rule, || message);
    }
}

/// Nobody was told of a grant, and said nothing to it: neither an acquire nor a release followed.
pub(super) fn check_answered(world: &World) {
    let mut state = world.state();
    let mut silent = Vec::new();
    for (client, link) in state.links.iter().enumerate().filter(|(_, link)| !link.dead && link.ends.is_none()) {
        // What was given away is the next one's.
        let own = link.unanswered.iter().filter(|(key, _)| !state.handed_over.contains(key));
        let own = own.filter(|(_, token)| !link.given_away.contains(token));
        silent.extend(
            own.map(|(key, token)| format!("c{client} says nothing to a grant of {key} to {}", network::name(*token))),
        );
    }
    for message in silent {
        state.breach("not-answered", || message);
    }
}

/// Nothing at all is left but the counter.
pub(super) fn check_leftovers(world: &World) {
    let mut state = world.state();
    let now = ms(state.now);
    let mut all = Vec::new();
    for (server, Server { node, .. }) in state.servers.iter().enumerate() {
        all.extend(node.leftovers(state.wall(server)).map(|(key, entry, left)| (key.clone(), entry, left)));
    }
    for (key, entry, left) in all {
        let mut event = Event::new("nemesis", Op::Leftover, now).until(now).on(key.as_str());
        event.foreign = matches!(entry.holder, Holder::Foreign(_));
        event.pttl = Some(left as f64);
        state.note(event);
    }
}

pub(super) fn judge(seed: u64, world: &World) -> Report {
    let mut state = world.state();
    // A call, its answer, and whoever comes first but has gone; or a check of one's own.
    let mut bound = match world.plan.is_calm() {
        true => Duration::from_micros(12 * world.plan.latency.1) + Duration::from_millis(20),
        false => Duration::from_secs(4),
    };
    if u128::from(world.plan.greeting) > world.plan.limit.as_millis() {
        // Most attempts to connect take too long, one after the other.
        bound += Duration::from_secs(10);
    }
    if world.plan.store.is_quorum() {
        // Votes that split are cast again, after pauses that grow to 80 ms.
        bound += Duration::from_millis(400);
    }
    if world.plan.asides {
        // A turn that is missed costs 100 ms.
        bound += Duration::from_millis(110) * u32::try_from(world.plan.clients * world.plan.tasks).unwrap_or(u32::MAX);
    }
    if world.plan.foreign || world.plan.odd > 0 {
        // Another library calls nobody, nor does a key that was kept for a while and expires: there is the next check.
        bound += Duration::from_millis(650);
    }
    if !state.handed_over.is_empty() {
        // A lease that was given away and not taken up expires when it likes: the history knows no better.
        bound += world.plan.longest_ttl() * LONGEST_EXTEND;
    }
    // A clock that was set back keeps keys for longer.
    bound += Duration::from_micros(state.behind());
    let (failed_over, of_quorum) = (state.journal.has_failovers(), world.plan.store.is_quorum());
    let marks = state.marks.clone();
    let mut checker = Checker { marks, failed_over, of_quorum, ..Checker::new().bound(bound) };
    let history: History = std::mem::take(&mut state.history).into_iter().collect();
    checker.undone = state.journal.undone(history.events());
    if !world.plan.store.is_quorum() && !state.marks.is_empty() {
        // What one node of several does late is no lease.
        checker.taken_again = state.journal.taken_again(history.events());
    }
    let acquired = history.events().iter().filter(|event| event.op == Op::Acquire && event.succeeded()).count();
    let mut breaches: Vec<_> =
        std::mem::take(&mut state.breaches).into_iter().map(|(rule, message)| (rule.to_owned(), message)).collect();
    for (rule, message) in order::check(world, &state, history.events()) {
        breaches.push((rule.to_owned(), message));
    }
    for violation in checker.check(&history) {
        breaches.push((violation.rule.to_string(), violation.to_string()));
    }
    let log = state.take_log().into_iter().map(|(at, line)| format!("{:>12.3} ms  {line}", ms(at))).collect();
    Report { store: world.plan.store, seed, breaches, log, acquired, events: history.events().len() }
}
