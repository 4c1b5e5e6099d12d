use proptest::prelude::*;

use super::*;
use crate::{clock::Moment, fencing::FencingToken};

/// The channel of the manager that asks.
const CHANNEL: &str = "lock-core:calls:0123456789abcdef0123456789abcdef";

fn manager(id: &str) -> Identity {
    Identity { id: id.into(), process: Process { service: "shop".into(), host: "web-3".into(), number: 812 } }
}

fn entry(key: &str, label: &str, number: u64, holds: bool) -> Entry {
    let what = match holds {
        true if number == 0 => What::More,
        true => What::Holds { ttl: Duration::from_millis(number), fence: FencingToken::new(number) },
        false => What::Waits { place: number as u32 },
    };
    let mode = [Mode::Exclusive, Mode::Shared, Mode::Permits { total: 10, take: 2 }][number as usize % 3];
    Entry {
        key: key.into(),
        label: label.into(),
        since: Duration::from_millis(number),
        trace: label.into(),
        mode,
        what,
    }
}

fn answers(question: &Question, id: &str, entries: Vec<Entry>, is_cut: bool) -> Vec<Statement> {
    question.answers(&manager(id), &entries, Entry::clone, is_cut).collect()
}

proptest! {
    #[test]
    fn messages_are_read_as_they_were_written(
        id: u64, text in ".{0,40}", label in "[a-z:<>,\n]{0,9}", numbers in prop::collection::vec((prop_oneof![Just(0), any::<u32>()], any::<bool>()), 0..450), is_cut: bool
    ) {
        let subject = Subject::Prefix(text.clone());
        let question = Question { id, channel: CHANNEL.into(), subject };
        prop_assert_eq!(Question::read(&question.write()), Some(question.clone()));
        let entries: Vec<_> =
            numbers.into_iter().map(|(number, holds)| entry(&text, &label, number.into(), holds)).collect();
        let parts = answers(&question, "1", entries.clone(), is_cut);
        let read: Vec<_> = parts.iter().map(|part| Statement::read(&part.write()).expect("was written")).collect();
        prop_assert_eq!(&read, &parts);
        prop_assert!(read.iter().rev().skip(1).all(|part| !part.is_last) && read.last().is_some_and(|part| part.is_last));
        prop_assert_eq!(read.iter().filter(|part| part.is_cut).count(), usize::from(is_cut));
        let all: Vec<_> = read.into_iter().flat_map(|part| part.entries).collect();
        prop_assert_eq!(all, entries);
    }

    #[test]
    fn what_anybody_may_publish_is_read_without_a_panic(text in "(lock-core:(who|told):1 )?([0-9]{1,20}:.{0,6},?){0,12}") {
        let _ = (Question::read(&text), Statement::read(&text));
    }
}

#[test]
fn a_length_in_the_middle_of_a_character_or_beyond_the_end_is_refused() {
    for wrong in ["1:ä,", "9:a,", "18446744073709551616:a,", ":a,", "1:ab", "1a,"] {
        assert_eq!(Question::read(&format!("lock-core:who:1 {wrong}")), None, "{wrong}");
    }
}

fn at(ms: u64) -> Moment {
    Moment::from_origin(Duration::from_millis(ms))
}

/// A question that was asked at 0 and ends at 250, and the slot of the request that waits for the answer.
fn ask(subject: Subject) -> (Inquiries, Question, Arc<impl Sized>) {
    let (question, mut inquiries) = (Question { id: 7, channel: CHANNEL.into(), subject }, Inquiries::default());
    let asked = Asked::new(at(0));
    let waits = Arc::clone(&asked.slot);
    inquiries.open(&question, asked, at(0), at(250));
    (inquiries, question, waits)
}

#[test]
fn an_inquiry_ends_when_all_managers_that_it_has_reached_have_said_all() {
    let (mut inquiries, question, _waits) = ask(Subject::Key("k".into()));
    let of = |id| answers(&question, id, vec![entry("k", "", 1, true); 201], false);
    of("1").into_iter().for_each(|part| inquiries.add(part, at(1)));
    assert!(inquiries.take_done(at(1)).is_empty(), "nobody knows how many there are");
    inquiries.reached(7, 2);
    // The same over a second connection.
    of("1").into_iter().for_each(|part| inquiries.add(part, at(1)));
    inquiries.add(of("2").remove(0), at(1));
    assert!(inquiries.take_done(at(1)).is_empty(), "the second has more to say");
    inquiries.add(of("2").remove(1), at(1));
    let (_, heard) = inquiries.take_done(at(1)).remove(0);
    assert_eq!((heard.statements.len(), heard.is_truncated, heard.at), (4, false, at(1)));
    assert_eq!(inquiries.next(), Moment::NEVER);
}

#[test]
fn an_inquiry_ends_with_what_there_is_when_its_time_is_over() {
    let (mut inquiries, question, _waits) = ask(Subject::Key("k".into()));
    inquiries.reached(7, 3);
    answers(&question, "1", Vec::new(), false).into_iter().for_each(|part| inquiries.add(part, at(1)));
    assert_eq!(inquiries.next(), at(250));
    assert!(inquiries.take_done(at(249)).is_empty());
    let (_, heard) = inquiries.take_done(at(250)).remove(0);
    assert!(!heard.is_truncated, "those that say nothing at all may have nothing to say");
}

#[test]
fn an_inquiry_is_dropped_when_no_request_waits_for_it() {
    let (mut inquiries, _, waits) = ask(Subject::Holder("k".into()));
    let second = Asked::new(at(1));
    let second_waits = Arc::clone(&second.slot);
    assert!(inquiries.join("k", second).is_none(), "the question is in flight");
    drop(waits);
    assert!(inquiries.take_done(at(1)).is_empty(), "the second waits");
    drop(second_waits);
    assert_eq!(inquiries.take_done(at(1)).len(), 2);
    assert_eq!(inquiries.next(), Moment::NEVER);
}

#[test]
fn an_inquiry_waits_for_the_rest_of_an_answer_and_not_forever() {
    let (mut inquiries, question, _waits) = ask(Subject::Prefix(String::new()));
    let parts = answers(&question, "1", vec![entry("k", "", 1, true); 2_000], false);
    for (part, ms) in parts.into_iter().zip((200..).step_by(240)) {
        assert!(inquiries.take_done(at(ms)).is_empty(), "{ms}");
        inquiries.add(part, at(ms));
        assert_eq!(inquiries.next(), at((ms + 250).min(2_000)));
        if ms > 1_800 {
            break;
        }
    }
    let (_, heard) = inquiries.take_done(at(2_000)).remove(0);
    assert!(heard.is_truncated, "the rest is missing");
}

#[test]
fn an_answer_that_names_not_all_says_so() {
    for is_cut in [false, true] {
        let (mut inquiries, question, _waits) = ask(Subject::Prefix(String::new()));
        inquiries.reached(7, 1);
        let parts = answers(&question, "1", vec![entry("k", "", 1, true); 201], is_cut);
        parts.into_iter().for_each(|part| inquiries.add(part, at(1)));
        assert_eq!(inquiries.take_done(at(1)).remove(0).1.is_truncated, is_cut);
    }
}

#[test]
fn questions_are_answered_one_after_the_other_each_once_and_not_without_end() {
    let ask = |id| Question { id, channel: "c".into(), subject: Subject::Key("k".into()) };
    let mut inquiries = Inquiries::default();
    // Each over two connections.
    (0..100).for_each(|id| [ask(id), ask(id)].into_iter().for_each(|question| inquiries.ask(question)));
    let mut answered = Vec::new();
    while let Some(question) = inquiries.begin_answer() {
        assert_eq!(inquiries.begin_answer(), None, "one at a time");
        answered.push(question.id);
        inquiries.end_answer();
    }
    assert_eq!(answered, (0..WAITING as u64).collect::<Vec<_>>());
    inquiries.ask(ask(3));
    assert_eq!(inquiries.begin_answer(), None, "it was answered");
}

#[test]
fn a_question_for_the_holder_ends_with_the_first_that_is_named() {
    let (mut inquiries, question, _waits) = ask(Subject::Holder("k".into()));
    answers(&question, "1", Vec::new(), false).into_iter().for_each(|part| inquiries.add(part, at(1)));
    inquiries.reached(7, 9);
    assert!(inquiries.take_done(at(1)).is_empty());
    let named = answers(&question, "2", vec![entry("k", "", 1, true)], false);
    named.into_iter().for_each(|part| inquiries.add(part, at(1)));
    assert_eq!(inquiries.take_done(at(1)).len(), 1);
}

#[test]
fn waiters_share_the_answer_about_their_key_for_a_second() {
    let (mut inquiries, question, _waits) = ask(Subject::Holder("k".into()));
    let second = Asked::new(at(1));
    let _second_waits = Arc::clone(&second.slot);
    assert!(inquiries.known_holder("k", at(1)).is_none());
    assert!(inquiries.join("k", second).is_none(), "the question is in flight");
    assert!(inquiries.join("other", Asked::new(at(1))).is_some());
    let named = answers(&question, "2", vec![entry("k", "", 1, true)], false);
    named.into_iter().for_each(|part| inquiries.add(part, at(2)));
    let shared: Vec<_> = inquiries.take_done(at(2)).into_iter().map(|(_, heard)| heard.is_shared).collect();
    assert_eq!(shared, [false, true]);
    assert!(inquiries.known_holder("k", at(1_001)).is_some_and(|heard| heard.is_shared && heard.at == at(2)));
    assert!(inquiries.known_holder("other", at(1_001)).is_none());
    assert!(inquiries.known_holder("k", at(1_002)).is_none());
}

#[test]
fn a_question_whose_answer_would_go_to_another_channel_is_refused() {
    let subject = Subject::Key("k".into());
    let question = |channel: &str| Question { id: 7, channel: channel.into(), subject: subject.clone() }.write();
    assert!(Question::read(&question(CHANNEL)).is_some());
    for elsewhere in ["orders", &format!("{{0}}{CHANNEL}"), "lock-core:calls:all", ""] {
        assert_eq!(Question::read(&question(elsewhere)), None, "{elsewhere}");
    }
}
