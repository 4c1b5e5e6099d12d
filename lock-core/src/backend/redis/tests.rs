//! Whatever a server sends, nonsense included, nothing panics. `PROPTEST_CASES` tries more.

use std::time::Duration;

use proptest::{collection::vec, prelude::*, sample::Index};
use redis::Value;

use super::{
    calls_within,
    commands::Commands,
    driver,
    script::{self, By},
    slot::Tag,
};
use crate::{
    backend::{Acquire, BusyReason, Grant, Operation, Outcome, Place, Release, Renew, Token},
    clock::Moment,
    key::LockKey,
};

/// Any value, often one like those that the script gives.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => (-2_i64..8).prop_map(Value::Int),
        2 => any::<i64>().prop_map(Value::Int),
        1 => any::<i64>().prop_map(|number| Value::Int(number.signum() * i64::from(u32::MAX))),
        1 => Just(Value::Nil),
        1 => Just(Value::Okay),
        1 => vec(any::<u8>(), 0..40).prop_map(Value::BulkString),
        1 => "(WRONGTYPE|NOPERM|OOM|[A-Z]{0,9}) ?.{0,40}".prop_map(|text| Value::BulkString(text.into_bytes())),
        1 => ".{0,20}".prop_map(Value::SimpleString),
        1 => any::<f64>().prop_map(Value::Double),
        1 => any::<bool>().prop_map(Value::Boolean),
    ];
    leaf.prop_recursive(3, 64, 9, |inner| {
        prop_oneof![
            4 => vec(inner.clone(), 0..10).prop_map(Value::Array),
            1 => vec((inner.clone(), inner.clone()), 0..4).prop_map(Value::Map),
            1 => vec(inner, 0..4).prop_map(Value::Set),
        ]
    })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let position = || (0..u32::MAX).prop_map(|position| (position > 0).then_some(position));
    let ms = || (0..i64::MAX as u64).prop_map(Duration::from_millis);
    prop_oneof![
        (0..i64::MAX as u64, any::<u32>(), any::<bool>()).prop_map(|(fence, block, was_free)| Outcome::Held {
            fence,
            block,
            was_free
        }),
        (proptest::option::of(ms()), 0..5_usize, any::<u32>(), position()).prop_map(
            |(remaining, kind, total, position)| {
                let other = BusyReason::OtherTotal { total };
                let by =
                    [BusyReason::Holder, BusyReason::Foreign, BusyReason::Waiters, BusyReason::Permits, other][kind];
                Outcome::Busy { remaining, by, position }
            }
        ),
        (ms(), proptest::option::of(1..i64::MAX as u64), any::<u32>())
            .prop_map(|(remaining, fence, block)| Outcome::Renewed { remaining, fence, block }),
        Just(Outcome::Released),
        Just(Outcome::Gone),
        (any::<u32>(), any::<u32>(), ms(), ms()).prop_map(|(leases, permits, first, last)| Outcome::Shared {
            leases,
            permits,
            first,
            last
        }),
    ]
}

/// An outcome as the script says it.
fn said(outcome: &Outcome) -> Vec<Value> {
    let number = |number: u64| i64::try_from(number).expect("the strategies keep to what fits");
    let ms = |duration: Duration| number(duration.as_millis() as u64);
    let numbers = match *outcome {
        Outcome::Held { fence, block, was_free } => vec![1, number(fence), i64::from(block), i64::from(was_free)],
        Outcome::Busy { remaining, by: BusyReason::OtherTotal { total }, position } => {
            vec![6, remaining.map_or(-1, ms), i64::from(total), i64::from(position.unwrap_or(0))]
        }
        Outcome::Busy { remaining, by, position } => {
            let kind = match by {
                BusyReason::Holder => 0,
                BusyReason::Foreign => 1,
                BusyReason::Waiters => 2,
                BusyReason::Permits => 3,
                BusyReason::OtherTotal { .. } => unreachable!("it has a code of its own"),
            };
            vec![2, remaining.map_or(-1, ms), kind, i64::from(position.unwrap_or(0))]
        }
        Outcome::Renewed { remaining, fence, block } => {
            vec![3, ms(remaining), number(fence.unwrap_or(0)), i64::from(block)]
        }
        Outcome::Released => vec![4],
        Outcome::Gone => vec![5],
        Outcome::Shared { leases, permits, first, last } => {
            vec![7, i64::from(leases), i64::from(permits), ms(first), ms(last)]
        }
        Outcome::Split { .. } | Outcome::NotFree => unreachable!("the script says yes or no"),
    };
    numbers.into_iter().map(Value::Int).collect()
}

/// The reply of the script that has these outcomes; `refused` says that it could not notify others.
fn reply(outcomes: &[Outcome], refused: bool) -> Vec<Value> {
    outcomes.iter().flat_map(said).chain([Value::Int(i64::from(refused))]).collect()
}

/// Cases that mattered once, tried each time: the reply of the script, and how many items it has to answer.
const CORPUS: &[(&[i64], usize)] = &[
    (&[], 0),
    (&[4], 1),
    (&[4, 0, 0], 1),
    (&[4, 0], 2),
    (&[1, 7, 0], 1),
    (&[1, -7, 1, 0], 1),
    (&[1, 7, -1, 0], 1),
    (&[1, 7, 1 << 32, 0], 1),
    (&[2, 5, 0, -1, 0], 1),
    (&[2, 5, 4, 0, 0], 1),
    (&[3, -1, 0, 0, 0], 1),
    (&[6, 0], 1),
    (&[6, 5, -1, 0, 0], 1),
    (&[7, 1, 0, 5, 0], 1),
    (&[7, -1, 0, 5, 5, 0], 1),
    (&[7, 1, 0, -5, 5, 0], 1),
    (&[-1, 0], 1),
    (&[i64::MIN, i64::MAX], 1),
    (&[0, 0], 1),
];

#[test]
fn the_longer_the_way_the_more_calls_are_in_flight_from_two_to_64() {
    let micros = [0, 40, 299, 300, 1_250, 6_400, 20_000, u64::MAX];
    let calls = micros.map(|micros| calls_within(Duration::from_micros(micros)));
    assert_eq!(calls, [2, 2, 2, 3, 12, 64, 64, 64]);
}

#[test]
fn replies_that_were_found_to_matter_are_refused() {
    let array = |numbers: &[i64]| Value::Array(numbers.iter().copied().map(Value::Int).collect());
    for (numbers, expected) in CORPUS {
        assert!(
            script::answer(array(numbers), *expected, false, "redis:6379").is_err(),
            "{numbers:?} as the answer to {expected}"
        );
    }
    for reply in [Value::Nil, Value::Okay, Value::Int(0), Value::Map(Vec::new()), Value::Array(vec![Value::Nil])] {
        assert!(script::answer(reply.clone(), 0, false, "redis:6379").is_err(), "{reply:?}");
    }
    let endless = script::answer(array(&[2, -1, 1, 0, 0]), 1, false, "redis:6379").unwrap();
    let busy = Outcome::Busy { remaining: None, by: BusyReason::Foreign, position: None };
    assert!(matches!(endless.outcomes[..], [Ok(outcome)] if outcome == busy), "a key without a ttl");
    // An error whose text is not UTF-8 is still an error.
    for text in [Value::Nil, Value::Int(7), Value::BulkString(vec![0xff])] {
        let reply = Value::Array(vec![Value::Int(0), text, Value::Int(0)]);
        assert!(matches!(script::answer(reply, 1, false, "redis:6379").unwrap().outcomes[..], [Err(_)]));
    }
}

#[test]
fn messages_that_were_found_to_matter_grant_nothing() {
    for payload in ["", " ", "k", "lock-core:1:", " k", "lock-core:1:00 k 1 1 1 1", "\0 \0", " k 1 1 1 1"] {
        assert_eq!(driver::grant(&[Value::BulkString(payload.as_bytes().to_vec())]), None, "{payload:?}");
    }
    let token = Token::from_random(1).reveal();
    for rest in ["", " k", " k 1 1 1", "  1 1 1 1", " k 1 1 1 x", " k 1 1 -1 1", " k 1 1 1 4294967296", " k x 1 1 1"] {
        assert_eq!(driver::grant(&[Value::BulkString(format!("{token}{rest}").into_bytes())]), None, "{rest:?}");
    }
    assert_eq!(driver::grant(&[Value::BulkString(vec![0xff, b' ', 0xfe])]), None);
    assert_eq!(driver::grant(&[]), None);
}

proptest! {
    #[test]
    fn any_reply_is_read_or_refused(reply in value(), expected in 0..4_usize) {
        if let Ok(answer) = script::answer(reply, expected, false, "redis:6379") {
            prop_assert_eq!(answer.outcomes.len(), expected);
        }
    }

    #[test]
    fn a_reply_of_which_a_part_was_changed_is_read_or_refused(
        outcomes in vec(outcome(), 1..8), at in any::<Index>(), with in value(), cut in any::<bool>(),
    ) {
        let mut values = reply(&outcomes, false);
        let at = at.index(values.len());
        values[at] = with;
        if cut {
            values.truncate(at);
        }
        if let Ok(answer) = script::answer(Value::Array(values), outcomes.len(), false, "redis:6379") {
            prop_assert_eq!(answer.outcomes.len(), outcomes.len());
        }
    }

    #[test]
    fn what_the_script_says_is_understood(outcomes in vec(outcome(), 0..20), refused in any::<bool>()) {
        let values = Value::Array(reply(&outcomes, refused));
        let answer = script::answer(values, outcomes.len(), false, "redis:6379").expect("this is what it says");
        prop_assert_eq!(answer.calls_refused, refused);
        let read: Vec<_> = answer.outcomes.into_iter().map(|outcome| outcome.expect("no error")).collect();
        prop_assert_eq!(read, outcomes);
    }

    #[test]
    fn any_message_on_the_channel_of_grants_is_read_or_left(message in vec(value(), 0..5)) {
        driver::grant(&message);
    }

    #[test]
    fn a_grant_names_its_key_whatever_it_holds(key in "\\PC{1,80}|[ -~\r\n\0]{1,80}", random in any::<u128>()) {
        let Ok(key) = LockKey::new(&key) else { return Ok(()) };
        let token = Token::from_random(random);
        let payload = format!("{} {} 1234567 100 1750000000000001 32", token.reveal(), key.wire()).into_bytes();
        let message = [Value::BulkString(b"a channel".to_vec()), Value::BulkString(payload)];
        let sent = Moment::from_origin(Duration::from_micros(1_234_567));
        let grant = Grant::new(key, token, sent, Duration::from_millis(100), (1_750_000_000_000_001, 32));
        prop_assert_eq!(driver::grant(&message), Some(grant));
    }

    #[test]
    fn any_batch_becomes_a_command(key in ".{1,80}", random in any::<u128>(), ttl_ms in 10..u64::MAX) {
        let Ok(key) = LockKey::new(&key) else { return Ok(()) };
        let (token, ttl) = (Token::from_random(random), Duration::from_millis(ttl_ms));
        let place = Place::new("channel".into(), ttl, ttl, Moment::NEVER);
        let batch = [
            Operation::Acquire(Acquire::new(key.clone(), token, ttl).or_wait(place)),
            Operation::Renew(Renew::new(key.clone(), token, ttl).with_block(1)),
            Operation::Release(Release::new(key.clone(), token).after(ttl)),
            Operation::Inspect { key },
        ];
        for by in [By::Hash, By::Source] {
            let (mut call, mut written) = (Commands::default(), Vec::new());
            script::add_call(&mut call, by, Tag::ONE, &batch);
            call.write(&mut written);
            let Ok(Value::Array(arguments)) = redis::parse_redis_value(&written) else { panic!("a command is an array") };
            prop_assert!(arguments.iter().all(|argument| matches!(argument, Value::BulkString(_))));
        }
    }
}
