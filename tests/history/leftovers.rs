//! What is found after a run.

use crate::history::lines::*;

fn leftover(change: impl FnOnce(&mut Event)) -> Event {
    Event::new("", Op::Leftover, f64::NAN).with(|event| event.key = Some("k".to_owned())).with(change)
}

#[test]
fn what_is_left_is_caught_unless_it_is_meant_to_be_there_or_will_soon_be_gone() {
    assert_eq!(broken(&[leftover(|_| {})]), [Rule::Leftover]);
    assert_eq!(broken(&[leftover(|event| event.allowed = true)]), NONE);
    let lives = |pttl, max| {
        broken(&[leftover(|event| {
            event.pttl = Some(pttl);
            event.max_pttl = max;
        })])
    };
    assert_eq!(lives(59_000.0, Some(60_000.0)), NONE);
    assert_eq!(lives(61_000.0, Some(60_000.0)), [Rule::Leftover]);
    assert_eq!(lives(-1.0, Some(60_000.0)), [Rule::Leftover], "for ever");
    assert_eq!(lives(10.0, None), [Rule::Leftover]);
}
