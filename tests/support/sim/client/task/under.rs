//! Operations under way.

use super::Client;
use crate::history::{Event, Outcome};

/// An operation under way: one that is not ended has no known outcome, and never came back if its client was killed.
pub(super) struct Under {
    client: Client,
    event: Option<Event>,
}

impl Under {
    pub(super) fn new(client: &Client, event: Event) -> Self {
        Self { client: client.clone(), event: Some(event) }
    }

    pub(super) fn event(&mut self) -> &mut Event {
        self.event.as_mut().expect("there until it ends")
    }

    pub(super) fn key(&self) -> &str {
        self.event.as_ref().and_then(|event| event.key.as_deref()).unwrap_or_default()
    }

    pub(super) fn end(mut self, result: Outcome) {
        let at = self.client.world.moment();
        self.event().t_return.get_or_insert(at);
        self.event().result = result;
        if let Some(event) = self.event.take() {
            self.client.note(event);
        }
    }
}

impl Drop for Under {
    fn drop(&mut self) {
        let Some(mut event) = self.event.take() else { return };
        event.result = Outcome::Info;
        let mut state = self.client.world.state();
        if !state.links[self.client.number].dead {
            event.t_return = Some(state.moment());
        }
        state.note(event);
    }
}
