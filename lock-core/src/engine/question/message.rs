//! What goes over the channels: fields as netstrings (Bernstein, 1997), so that a key may hold any character.

use std::{sync::Arc, time::Duration};

use crate::{
    engine::{hold::Hold, terms::Terms},
    info::{Holder, Party, Waiter},
    key::LockKey,
    mode::Mode,
};

/// The keys that a question is about, as the store knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Key(LockKey),
    /// The holder of a key; managers that do not hold it do not answer.
    Holder(LockKey),
    Prefix(String),
}

/// A question to all managers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// A random number.
    pub(crate) id: u64,
    /// The channel of the manager that asks.
    pub(crate) channel: Arc<str>,
    pub(crate) subject: Subject,
}

impl Question {
    pub(crate) fn write(&self) -> String {
        let Self { id, channel, subject } = self;
        let (form, text) = match subject {
            Subject::Key(key) => ("key", key.wire()),
            Subject::Holder(key) => ("holder", key.wire()),
            Subject::Prefix(prefix) => ("prefix", &**prefix),
        };
        let mut message = QUESTION.to_owned();
        write(&mut message, [&*id.to_string(), channel, form, text]);
        message
    }

    pub(crate) fn read(message: &str) -> Option<Self> {
        let [id, channel, form, text] = read(&mut message.strip_prefix(QUESTION)?)?;
        // Anybody who may publish could have this process publish elsewhere, with its rights.
        let id_of_manager = channel.strip_prefix(CHANNELS)?;
        let is_manager = id_of_manager.len() == 32 && id_of_manager.bytes().all(|byte| byte.is_ascii_hexdigit());
        let channel = is_manager.then(|| channel.into())?;
        let subject = match form {
            "key" => Subject::Key(LockKey::new(text).ok()?),
            "holder" => Subject::Holder(LockKey::new(text).ok()?),
            "prefix" => Subject::Prefix(text.to_owned()),
            _ => return None,
        };
        Some(Self { id: id.parse().ok()?, channel, subject })
    }
}

/// An answer that is being written.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    entries: String,
    number: usize,
    /// Whether the manager has more to say.
    pub(crate) is_cut: bool,
}

impl Draft {
    pub(crate) fn is_empty(&self) -> bool {
        self.number == 0
    }

    /// Names a holder. Returns `None` if the answer is full.
    pub(crate) fn holder(&mut self, hold: &Hold, held: Duration) -> Option<()> {
        let [held, ttl] = [held, hold.ttl.get()].map(ms);
        let (trace, mode, fence) = (hold.trace().unwrap_or_default(), hold.mode.write(), hold.fence.to_string());
        self.add(["holds", hold.key.wire(), hold.label, &held, &ttl, &fence, &trace, &mode])
    }

    /// Names a waiter. Returns `None` if the answer is full.
    pub(crate) fn waiter(&mut self, key: &LockKey, terms: &Terms, waited: Duration, place: u32) -> Option<()> {
        let (waited, mode) = (ms(waited), terms.mode.write());
        self.add(["waits", key.wire(), terms.label, &waited, "0", &place.to_string(), "", &mode])
    }

    pub(crate) fn add(&mut self, entry: [&str; 8]) -> Option<()> {
        if self.number == MOST_ENTRIES {
            self.is_cut = true;
            return None;
        }
        self.number += 1;
        write(&mut self.entries, entry);
        Some(())
    }

    /// Returns the message: the answer of this manager, which has a channel of its own, to a question.
    pub(crate) fn finish(self, question: u64, channel: &str, Party { service, host, process, .. }: &Party) -> String {
        let mut message = ANSWER.to_owned();
        let end = if self.is_cut { CUT } else { WHOLE };
        write(&mut message, [&*question.to_string(), channel, service, host, &process.to_string(), end]);
        message + &self.entries
    }
}

/// An answer that was read: holders and waiters, each with the key as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// The process that answers.
    pub(crate) party: Party,
    /// Whether the manager has more to say.
    pub(crate) is_cut: bool,
    pub(crate) holders: Vec<(String, Holder)>,
    pub(crate) waiters: Vec<(String, Waiter)>,
}

impl Report {
    /// Reads the number of the question and the name of the manager that answers.
    pub(crate) fn head(message: &str) -> Option<(u64, &str)> {
        let [question, manager] = read(&mut message.strip_prefix(ANSWER)?)?;
        Some((question.parse().ok()?, manager))
    }

    pub(crate) fn read(message: &str) -> Option<Self> {
        let mut rest = message.strip_prefix(ANSWER)?;
        let [_, _, service, host, process, end] = read(&mut rest)?;
        // They are shown on terminals and in logs.
        let [service, host] = [service, host].map(|text| Arc::<str>::from(text.escape_debug().to_string()));
        let process = process.parse().ok()?;
        let is_cut = [WHOLE, CUT].iter().position(|known| *known == end)? == 1;
        let party = Party { service: Arc::clone(&service), host: Arc::clone(&host), process, label: String::new() };
        let mut report = Self { party, is_cut, holders: Vec::new(), waiters: Vec::new() };
        while !rest.is_empty() {
            if report.holders.len() + report.waiters.len() == MOST_ENTRIES {
                return None;
            }
            let [form, key, label, since, ttl, number, trace, mode] = read(&mut rest)?;
            let (service, host, label) = (Arc::clone(&service), Arc::clone(&host), label.to_owned());
            let (key, party) = (key.to_owned(), Party { service, host, process, label });
            let (mode, since) = (Mode::read(mode)?, Duration::from_millis(since.parse().ok()?));
            if form == "holds" {
                let (ttl, fencing_token) = (Duration::from_millis(ttl.parse().ok()?), number.parse().ok()?);
                let trace = trace.to_owned();
                report.holders.push((key, Holder { party, mode, held: since, ttl, fencing_token, trace }));
            } else if form == "waits" {
                report.waiters.push((key, Waiter { party, mode, waited: since, place: number.parse().ok()? }));
            } else {
                return None;
            }
        }
        Some(report)
    }
}

fn write<const N: usize>(message: &mut String, fields: [&str; N]) {
    for field in fields {
        message.extend([&*field.len().to_string(), ":", field, ","]);
    }
}

/// Takes fields from the beginning of what is left of a message.
fn read<'a, const N: usize>(rest: &mut &'a str) -> Option<[&'a str; N]> {
    let mut fields = [""; N];
    for field in &mut fields {
        let (length, after) = rest.split_once(':')?;
        let (text, after) = after.split_at_checked(length.parse().ok()?)?;
        (*field, *rest) = (text, after.strip_prefix(',')?);
    }
    Some(fields)
}

fn ms(duration: Duration) -> String {
    duration.as_millis().to_string()
}

/// How the channels of managers begin.
const CHANNELS: &str = "lock-core:calls:";
/// How a question begins.
const QUESTION: &str = "lock-core:who:1 ";
/// How an answer begins.
const ANSWER: &str = "lock-core:told:2 ";
/// Says that an answer names all that the manager has.
const WHOLE: &str = "whole";
/// Says that the manager has more to say.
const CUT: &str = "cut";
/// How many holders and waiters a manager names at most in an answer.
pub(crate) const MOST_ENTRIES: usize = 500;
