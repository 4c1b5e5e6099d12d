use proptest::prelude::*;

use super::*;
use crate::{clock::Moment, fencing::FencingToken};

fn manager(id: &str) -> Manager {
    Manager { id: id.into(), service: "shop".into(), host: "web-3".into(), process: 812 }
}

fn entry(key: &str, label: &str, number: u64, holds: bool) -> Entry {
    let what = match holds {
        true => What::Holds { ttl: Duration::from_millis(number), fence: FencingToken::new(number) },
        false => What::Waits { place: number as u32 },
    };
    Entry { key: key.into(), label: label.into(), since: Duration::from_millis(number), trace: label.into(), what }
}

proptest! {
    #[test]
    fn messages_are_read_as_they_were_written(
        id: u64, text in ".{0,40}", label in "[a-z:<>,\n]{0,9}", numbers in prop::collection::vec((any::<u32>(), any::<bool>()), 0..450)
    ) {
        let subject = Subject::Prefix(text.clone());
        let question = Question { id, channel: "lock-core:calls:0123456789abcdef0123456789abcdef".into(), subject };
        prop_assert_eq!(Question::read(&question.write()), Some(question.clone()));
        let entries: Vec<_> =
            numbers.into_iter().map(|(number, holds)| entry(&text, &label, number.into(), holds)).collect();
        let parts = question.answers(&manager("1"), entries.clone());
        let read: Vec<_> = parts.iter().map(|part| Statement::read(&part.write()).expect("was written")).collect();
        prop_assert_eq!(&read, &parts);
        prop_assert!(read.iter().rev().skip(1).all(|part| !part.is_last) && read.last().is_some_and(|part| part.is_last));
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

#[test]
fn an_inquiry_ends_when_all_managers_that_it_has_reached_have_said_all() {
    let question = Question {
        id: 7,
        channel: "lock-core:calls:0123456789abcdef0123456789abcdef".into(),
        subject: Subject::Key("k".into()),
    };
    let at = |ms| Moment::from_origin(Duration::from_millis(ms));
    let mut inquiries = Inquiries::default();
    let asked = Asked::new(at(0));
    let _waits = Arc::clone(&asked.slot);
    inquiries.open(&question, asked, at(250));
    let of = |id| question.answers(&manager(id), vec![entry("k", "", 1, true); 201]);
    of("1").into_iter().for_each(|part| inquiries.add(part));
    assert!(inquiries.take_done(at(1)).is_empty(), "nobody knows how many there are");
    inquiries.reached(7, 2);
    // The same over a second connection.
    of("1").into_iter().for_each(|part| inquiries.add(part));
    inquiries.add(of("2").remove(0));
    assert!(inquiries.take_done(at(1)).is_empty(), "the second has more to say");
    inquiries.add(of("2").remove(1));
    let done = inquiries.take_done(at(1));
    assert_eq!(done[0].1.len(), 4);
    assert_eq!(inquiries.next(), Moment::NEVER);
}

#[test]
fn an_inquiry_ends_with_what_there_is_when_its_time_is_over() {
    let at = |ms| Moment::from_origin(Duration::from_millis(ms));
    let mut inquiries = Inquiries::default();
    let asked = Asked::new(at(0));
    let _waits = Arc::clone(&asked.slot);
    let (id, subject) = (7, Subject::Key("k".into()));
    inquiries.open(&Question { id, channel: "c".into(), subject }, asked, at(250));
    inquiries.reached(7, 3);
    assert_eq!(inquiries.next(), at(250));
    assert!(inquiries.take_done(at(249)).is_empty());
    assert_eq!(inquiries.take_done(at(250)).len(), 1);
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
    let question = Question { id: 7, channel: "c".into(), subject: Subject::Holder("k".into()) };
    let at = |ms| Moment::from_origin(Duration::from_millis(ms));
    let mut inquiries = Inquiries::default();
    let asked = Asked::new(at(0));
    let _waits = Arc::clone(&asked.slot);
    inquiries.open(&question, asked, at(250));
    question.answers(&manager("1"), Vec::new()).into_iter().for_each(|part| inquiries.add(part));
    inquiries.reached(7, 9);
    assert!(inquiries.take_done(at(1)).is_empty());
    question.answers(&manager("2"), vec![entry("k", "", 1, true)]).into_iter().for_each(|part| inquiries.add(part));
    assert_eq!(inquiries.take_done(at(1)).len(), 1);
}

#[test]
fn a_question_whose_answer_would_go_to_another_channel_is_refused() {
    let subject = Subject::Key("k".into());
    let question = |channel: &str| Question { id: 7, channel: channel.into(), subject: subject.clone() }.write();
    assert!(Question::read(&question("lock-core:calls:0123456789abcdef0123456789abcdef")).is_some());
    for elsewhere in ["orders", "{0}lock-core:calls:0123456789abcdef0123456789abcdef", "lock-core:calls:all", ""] {
        assert_eq!(Question::read(&question(elsewhere)), None, "{elsewhere}");
    }
}
