use proptest::prelude::*;

use super::{message::*, *};
use crate::{
    engine::fixture::{at, terms},
    fencing::FencingToken,
    info::{Holder, Waiter},
    mode::Mode,
};

/// The channel of the manager that asks.
const CHANNEL: &str = "lock-core:calls:0123456789abcdef0123456789abcdef";

fn question(id: u64, subject: Subject) -> Question {
    Question { id, channel: CHANNEL.into(), subject }
}

fn key() -> Subject {
    Subject::Key(LockKey::new("k").unwrap())
}

/// An answer that names so many waiters.
fn answer(id: u64, manager: &str, waiters: u32) -> String {
    let (key, mut draft) = (LockKey::new("k").unwrap(), Draft::default());
    let _ = (1..=waiters).try_for_each(|place| draft.waiter(&key, &terms(9_000), Duration::from_secs(1), place));
    draft.finish(id, manager, &this_process("shop"))
}

proptest! {
    #[test]
    fn messages_are_read_as_they_were_written(
        id: u64, text in ".{0,40}", key in "[a-z:<>,\n{}ä]{1,9}", entries in prop::collection::vec((any::<u32>(), any::<bool>()), 0..60)
    ) {
        let key = LockKey::new(format!("k{key}")).unwrap();
        for subject in [Subject::Prefix(text.clone()), Subject::Key(key.clone()), Subject::Holder(key.clone())] {
            prop_assert_eq!(Question::read(&question(id, subject.clone()).write()), Some(question(id, subject)));
        }
        let mut draft = Draft::default();
        let mut expected = Report { party: this_process("shop"), is_cut: false, holders: Vec::new(), waiters: Vec::new() };
        for (number, holds) in entries {
            let (party, since) = (this_process("shop"), Duration::from_millis(number.into()));
            let mode = [Mode::Exclusive, Mode::Shared, Mode::Permits { total: 10, take: 2 }][number as usize % 3];
            if holds {
                let fields = ["holds", key.wire(), "", &number.to_string(), "9000", &number.to_string(), &text, &mode.write()];
                draft.add(fields).unwrap();
                let (ttl, fencing_token, trace) = (Duration::from_secs(9), FencingToken::new(number.into()), text.clone());
                expected.holders.push((key.wire().to_owned(), Holder { party, mode, held: since, ttl, fencing_token, trace }));
            } else {
                draft.waiter(&key, &crate::engine::terms::Terms { mode, ..terms(9_000) }, since, number).unwrap();
                expected.waiters.push((key.wire().to_owned(), Waiter { party, mode, waited: since, place: number }));
            }
        }
        let message = draft.finish(id, CHANNEL, &this_process("shop"));
        prop_assert_eq!(Report::head(&message), Some((id, CHANNEL)));
        prop_assert_eq!(Report::read(&message), Some(expected));
    }

    #[test]
    fn what_anybody_may_publish_is_read_without_a_panic(text in "(lock-core:(who:1|told:2) )?([0-9]{1,20}:.{0,6},?){0,12}") {
        let _ = (Question::read(&text), Report::head(&text), Report::read(&text));
    }
}

#[test]
fn a_length_in_the_middle_of_a_character_or_beyond_the_end_is_refused() {
    for wrong in ["1:ä,", "9:a,", "18446744073709551616:a,", ":a,", "1:ab", "1a,"] {
        assert_eq!(Question::read(&format!("lock-core:who:1 {wrong}")), None, "{wrong}");
        assert_eq!(Report::read(&format!("lock-core:told:2 {wrong}")), None, "{wrong}");
    }
}

#[test]
fn an_answer_names_five_hundred_and_says_whether_there_are_more() {
    for (waiters, is_cut) in [(499, false), (500, false), (501, true), (9_000, true)] {
        let report = Report::read(&answer(7, "1", waiters)).expect("was written");
        assert_eq!((report.waiters.len(), report.is_cut), (500.min(waiters as usize), is_cut));
    }
}

#[test]
fn an_answer_that_names_more_than_it_may_is_refused() {
    let (one, two) = (answer(7, "1", 500), answer(7, "1", 1));
    let entry = &two[two.find("5:waits,").expect("one waits")..];
    assert!(Report::read(&one).is_some());
    assert_eq!(Report::read(&(one + entry)), None);
}

#[test]
fn a_question_whose_answer_would_go_to_another_channel_is_refused() {
    let written = |channel: &str| Question { id: 7, channel: channel.into(), subject: key() }.write();
    assert!(Question::read(&written(CHANNEL)).is_some());
    for elsewhere in ["orders", &format!("{{0}}{CHANNEL}"), "lock-core:calls:all", ""] {
        assert_eq!(Question::read(&written(elsewhere)), None, "{elsewhere}");
    }
}

/// A question that ends at 250, and the slot of the request that waits for the answers.
fn ask() -> (Questions, Arc<impl Sized>) {
    let (mut questions, responder) = (Questions::default(), Responder::new(at(0)));
    let waits = Arc::clone(&responder.slot);
    questions.open(7, Asker::Request(responder), at(250));
    (questions, waits)
}

#[test]
fn a_question_ends_when_all_managers_that_it_has_reached_have_answered() {
    let (mut questions, _waits) = ask();
    questions.add(7, "1", answer(7, "1", 1));
    assert!(questions.take_done(at(1)).is_empty(), "nobody knows how many there are");
    questions.reached(7, 2);
    // The same over a second connection, and another one that it gives now.
    questions.add(7, "1", answer(7, "1", 1));
    questions.add(7, "1", answer(7, "1", 2));
    // To a question of before.
    questions.add(6, "2", answer(6, "2", 1));
    assert!(questions.take_done(at(1)).is_empty(), "the second is silent");
    questions.add(7, "2", answer(7, "2", 0));
    let (_, heard) = questions.take_done(at(1)).remove(0);
    assert_eq!((heard.answers.len(), heard.reached), (2, Some(2)));
    assert_eq!(heard.answers["1"], answer(7, "1", 1), "the first answer counts");
    assert_eq!(questions.next(), Moment::NEVER);
}

#[test]
fn a_question_ends_with_what_there_is_when_its_time_is_over() {
    let (mut questions, _waits) = ask();
    questions.reached(7, 3);
    questions.add(7, "1", answer(7, "1", 0));
    assert_eq!(questions.next(), at(250));
    assert!(questions.take_done(at(249)).is_empty());
    assert_eq!(questions.take_done(at(250)).remove(0).1.answers.len(), 1);
}

#[test]
fn a_question_is_dropped_when_no_request_waits_for_it() {
    let (mut questions, waits) = ask();
    assert!(questions.take_done(at(1)).is_empty());
    drop(waits);
    assert_eq!(questions.take_done(at(1)).len(), 1);
    assert_eq!(questions.next(), Moment::NEVER);
}

#[test]
fn a_question_for_the_holder_ends_with_the_first_answer() {
    let mut questions = Questions::default();
    questions.open(7, Asker::Waits(LockKey::new("k").unwrap()), at(250));
    questions.reached(7, 9);
    assert!(questions.take_done(at(1)).is_empty());
    questions.add(7, "2", answer(7, "2", 1));
    assert_eq!(questions.take_done(at(1)).len(), 1);
}

#[test]
fn questions_are_answered_one_after_the_other_each_once_and_not_without_end() {
    let mut questions = Questions::default();
    // Each over two connections.
    (0..100).for_each(|id| [0, 1].into_iter().for_each(|_| questions.ask(question(id, key()))));
    let mut answered = Vec::new();
    while let Some(question) = questions.begin_answer() {
        assert_eq!(questions.begin_answer(), None, "one at a time");
        answered.push(question.id);
        questions.end_answer();
    }
    assert_eq!(answered, (0..WAITING as u64).collect::<Vec<_>>());
    questions.ask(question(3, key()));
    assert_eq!(questions.begin_answer(), None, "it was answered");
}

#[test]
fn a_task_that_has_ended_leaves_no_questions() {
    let (mut questions, _waits) = ask();
    questions.ask(question(1, key()));
    questions.ask(question(2, key()));
    assert!(questions.begin_answer().is_some());
    assert_eq!(questions.end().len(), 1);
    assert_eq!((questions.begin_answer(), questions.next()), (None, Moment::NEVER));
}
